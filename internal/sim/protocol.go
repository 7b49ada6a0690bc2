package sim

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Load is how much the inflation experiment asks for, as a part of the cluster's compute.
const Load = 1.3

// Scenario is one run of the inflation experiment of ATC'23: machines in their tie-breaking order, and requests in
// their order of arrival.
type Scenario struct {
	Machines []gpu.Machine
	Arrivals []alloc.Request
	base     *alloc.Fleet // where the run starts; an empty fleet of the machines where nil
}

// fleet is a fresh fleet to play the scenario on.
func (s *Scenario) fleet() (*alloc.Fleet, error) {
	if s.base != nil {
		return s.base.Clone(), nil
	}
	return alloc.NewFleet(s.Machines)
}

// continueFrom makes a scenario that goes on from a fleet as it is: arrivals drawn from those seen, until they ask for
// what is left of the target, in thousandths of a card, and at least for what is free.
func continueFrom(base *alloc.Fleet, seen []Pod, target, asked int64, seed int64) Scenario {
	rng := rand.New(rand.NewSource(seed))
	s := Scenario{base: base}
	left := max(target-asked, base.FreeCompute())
	for i := 0; left > 0; i++ {
		r := seen[rng.Intn(len(seen))].Request
		r.ID = fmt.Sprintf("next-%d", i)
		left -= max(1, r.Compute())
		s.Arrivals = append(s.Arrivals, r)
	}
	return s
}

// NewScenario shuffles and tunes a workload as the authors' simulator does (pkg/simulator/core.go and simulator.go
// of hkust-adsl/kubernetes-scheduler-simulator), so that one seed gives the same arrivals and ties as theirs: pods
// sorted by name, shuffled, tuned to load × the cluster's compute; machines renamed by a permutation.
func NewScenario(machines []gpu.Machine, pods []Pod, load float64, seed int64) Scenario {
	rng := rand.New(rand.NewSource(seed))
	rng.Int()
	base := make([]*alloc.Request, len(pods))
	for i := range pods {
		base[i] = &pods[i].Request
	}
	slices.SortStableFunc(base, func(a, b *alloc.Request) int { return cmp.Compare(a.ID, b.ID) })
	order := slices.Clone(base)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	arrivals := tune(rng, base, order, load*float64(totalCompute(machines)))
	for range 10 {
		rng.Float64()
	}
	return Scenario{Machines: rename(machines, rng), Arrivals: arrivals}
}

// tune cuts or extends the arrivals until they ask for the target, in thousandths of a card. Like its model it
// counts one card's share of a candidate when it decides to stop, but all its cards once it is in.
func tune(rng *rand.Rand, base, order []*alloc.Request, target float64) []alloc.Request {
	total := int64(0)
	for _, r := range order {
		total += r.Compute()
	}
	up := total > 0 && float64(total) < target
	for float64(total) > target && len(order) > 0 {
		i := rng.Intn(len(order))
		total -= order[i].Compute()
		order = slices.Delete(order, i, i+1)
	}
	out := make([]alloc.Request, 0, len(order)*5/4)
	for _, r := range order {
		out = append(out, *r)
	}
	if !up {
		return out
	}
	for i := 0; ; i++ { // a candidate is drawn even when the target is already passed; it counts for the ties
		r := *base[rng.Intn(len(base))]
		if float64(total+int64(r.Share.Compute)) > target {
			break
		}
		total += r.Compute()
		r.ID = fmt.Sprintf("%s-tuned-%d", r.ID, i)
		out = append(out, r)
	}
	return out
}

// rename prefixes the machines' names with a permutation and returns them in the order of the new names.
func rename(machines []gpu.Machine, rng *rand.Rand) []gpu.Machine {
	out := slices.Clone(machines)
	slices.SortStableFunc(out, func(a, b gpu.Machine) int { return cmp.Compare(a.Name, b.Name) })
	for i, p := range rng.Perm(len(out)) {
		out[i].Name = fmt.Sprintf("%04d-%s", p, out[i].Name)
	}
	slices.SortFunc(out, func(a, b gpu.Machine) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func totalCompute(machines []gpu.Machine) (sum int64) {
	for i := range machines {
		sum += int64(len(machines[i].Devices)) * int64(gpu.Card)
	}
	return sum
}

// requests strips the times off.
func requests(pods []Pod) []alloc.Request {
	out := make([]alloc.Request, len(pods))
	for i := range pods {
		out[i] = pods[i].Request
	}
	return out
}

// Workloads names the 17 workloads of the published tables.
func Workloads() []string {
	return []string{"default", "cpu050", "cpu100", "cpu200", "cpu250", "gpushare40", "gpushare60", "gpushare80",
		"gpushare100", "gpuspec10", "gpuspec20", "gpuspec25", "gpuspec33", "multigpu20", "multigpu30", "multigpu40",
		"multigpu50"}
}
