package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/alloc"
)

// Result is one run of the inflation experiment.
type Result struct {
	Seed               int64          `json:"seed"`
	Policy             string         `json:"policy"`
	AllocatedMilli     int64          `json:"allocatedMilli"`
	TotalMilli         int64          `json:"totalMilli"`
	AllocatedPercent   float64        `json:"allocatedPercent"`
	Arrived            map[string]int `json:"arrived"` // requests by kind
	Dropped            map[string]int `json:"dropped"` // requests that did not fit, by kind
	DecisionsPerSecond float64        `json:"decisionsPerSecond"`
	TrainSeconds       float64        `json:"trainSeconds,omitempty"` // spent learning during the run, not counted above
	curve              []float64      // allocated percent at each percent of arrived compute, for plots
}

// PolicyNames lists what PolicyFor knows, and "penstock", which needs a table or learns one.
func PolicyNames() []string {
	return []string{"fgd", "bestfit", "dotprod", "clustering", "packing", "random", "binpack", "spread", "penstock"}
}

// PolicyFor makes a policy that needs no table. FGD aims at the mix of the pods, as in the published experiment,
// which tells it the workload beforehand; random draws by the seed.
func PolicyFor(name string, pods []Pod, seed int64) (*alloc.Policy, error) {
	var p alloc.Policy
	switch name {
	case "fgd":
		p = alloc.FGD(alloc.NewMix(requests(pods), Cover))
	case "bestfit":
		p = alloc.BestFit()
	case "dotprod":
		p = alloc.DotProd()
	case "clustering":
		p = alloc.Clustering()
	case "packing":
		p = alloc.Packing()
	case "binpack":
		p = alloc.Binpack()
	case "spread":
		p = alloc.Spread()
	case "random":
		p = alloc.Random(seed)
	default:
		return nil, fmt.Errorf("policy %q is unknown: expected one of %v", name, PolicyNames())
	}
	return &p, nil
}

// Cover is the part of the workload that FGD's target mix covers.
const Cover = 0.95

// Decider is what an inflation run asks for each arrival.
type Decider interface {
	Decide(*alloc.Request) (alloc.Placement, bool)
}

// Inflate offers the arrivals one by one, drops what does not fit, and reports. It ends early with the context's
// error.
func Inflate(ctx context.Context, s *Scenario, seed int64, name string, d func(*alloc.Fleet) Decider) (*Result, *alloc.Fleet, error) {
	fleet, err := s.fleet()
	if err != nil {
		return nil, nil, err
	}
	decider := d(fleet)
	res := &Result{Seed: seed, Policy: name, TotalMilli: fleet.TotalCompute(), Arrived: map[string]int{}, Dropped: map[string]int{}}
	var arrived, dropped [alloc.KindCount]int
	asked := int64(0)
	start := time.Now()
	for i := range s.Arrivals {
		if i%256 == 0 && ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		r := &s.Arrivals[i]
		arrived[r.Kind()]++
		if p, ok := decider.Decide(r); ok {
			if err := fleet.Begin().Grant(p); err != nil {
				return nil, nil, fmt.Errorf("the core placed what does not fit: %w", err)
			}
		} else {
			dropped[r.Kind()]++
		}
		asked += r.Compute()
		for int64(len(res.curve))*res.TotalMilli <= asked*100 {
			res.curve = append(res.curve, percent(res.TotalMilli-fleet.FreeCompute(), res.TotalMilli))
		}
	}
	elapsed := time.Since(start).Seconds()
	if o, ok := decider.(*Online); ok {
		res.TrainSeconds = o.spent.Seconds()
		elapsed -= res.TrainSeconds
	}
	res.DecisionsPerSecond = float64(len(s.Arrivals)) / elapsed
	res.AllocatedMilli = res.TotalMilli - fleet.FreeCompute()
	res.AllocatedPercent = percent(res.AllocatedMilli, res.TotalMilli)
	for k := range alloc.KindCount {
		res.Arrived[k.String()], res.Dropped[k.String()] = arrived[k], dropped[k]
	}
	return res, fleet, nil
}

// percent is 100·a/b with two decimals kept.
func percent(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return math.Round(float64(a)*10000/float64(b)) / 100
}

// quantile of a list, by rank; 0 for an empty one.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
