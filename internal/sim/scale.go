package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// ScaleResult is the speed of the decision core on a large fleet, one thread. A decision is Decide and, when it
// places, Grant.
type ScaleResult struct {
	Policy             string  `json:"policy"`
	Nodes              int     `json:"nodes"`
	Cards              int     `json:"cards"`
	Decisions          int     `json:"decisions"`
	Placed             int     `json:"placed"`
	AllocatedPercent   float64 `json:"allocatedPercent"`
	DecisionsPerSecond float64 `json:"decisionsPerSecond"`
	P50Micros          float64 `json:"p50Micros"`
	P99Micros          float64 `json:"p99Micros"`
	MaxMicros          float64 `json:"maxMicros"`
	Checked            int     `json:"checked"` // decisions repeated without caches
	Different          int     `json:"different"`
}

// Multiply repeats a cluster; the copies' names end in their number.
func Multiply(machines []gpu.Machine, times int) []gpu.Machine {
	out := make([]gpu.Machine, 0, len(machines)*times)
	for i := range times {
		for _, m := range machines {
			if i > 0 {
				m.Name = fmt.Sprintf("%s-%d", m.Name, i)
			}
			out = append(out, m)
		}
	}
	return out
}

// Scale fills a fleet and times every decision. Each check-th decision is repeated without caches, off the clock.
func Scale(ctx context.Context, s *Scenario, seed int64, policy *alloc.Policy, check int) (*ScaleResult, error) {
	f, err := alloc.NewFleet(s.Machines)
	if err != nil {
		return nil, err
	}
	placer, plain := alloc.NewPlacer(f, policy), alloc.NewUncachedPlacer(f, policy)
	r := &ScaleResult{Policy: policy.Name, Nodes: f.Nodes(), Cards: f.Cards(), Decisions: len(s.Arrivals)}
	took := make([]float64, 0, len(s.Arrivals))
	total := time.Duration(0)
	for i := range s.Arrivals {
		req := &s.Arrivals[i]
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if check > 0 && i%check == check-1 {
			a, okA := placer.Decide(req)
			b, okB := plain.Decide(req)
			r.Checked++
			if okA != okB || a.Node != b.Node || a.Cards != b.Cards {
				r.Different++
			}
		}
		start := time.Now()
		if p, ok := placer.Decide(req); ok {
			if err := f.Begin().Grant(p); err != nil {
				return nil, err
			}
			r.Placed++
		}
		d := time.Since(start)
		total += d
		took = append(took, float64(d.Nanoseconds())/1000)
	}
	slices.Sort(took)
	r.DecisionsPerSecond = float64(len(took)) / total.Seconds()
	r.P50Micros, r.P99Micros, r.MaxMicros = quantile(took, 0.5), quantile(took, 0.99), took[len(took)-1]
	r.AllocatedPercent = percent(f.TotalCompute()-f.FreeCompute(), f.TotalCompute())
	return r, nil
}
