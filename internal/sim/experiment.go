package sim

import (
	"context"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Experiment is a workload, a cluster and a policy; a seed makes it a run.
type Experiment struct {
	Machines []gpu.Machine
	Pods     []Pod
	Load     float64
	Policy   string       // one of PolicyNames
	Table    *alloc.Table // for "penstock"; learned online where nil
	Online   TrainConfig  // how
}

// Run plays the inflation experiment with one seed.
func (e *Experiment) Run(ctx context.Context, seed int64) (*Result, error) {
	s := NewScenario(e.Machines, e.Pods, e.Load, seed)
	decider, err := e.decider(ctx, s.Machines, seed)
	if err != nil {
		return nil, err
	}
	r, _, err := Inflate(ctx, &s, seed, e.Policy, decider)
	return r, err
}

func (e *Experiment) decider(ctx context.Context, machines []gpu.Machine, seed int64) (func(*alloc.Fleet) Decider, error) {
	switch {
	case e.Policy == "penstock" && e.Table != nil:
		p := alloc.Learned(e.Table)
		return func(f *alloc.Fleet) Decider { return alloc.NewPlacer(f, &p) }, nil
	case e.Policy == "penstock":
		return func(f *alloc.Fleet) Decider { return NewOnline(ctx, f, machines, e.Online) }, nil
	}
	p, err := PolicyFor(e.Policy, e.Pods, seed)
	if err != nil {
		return nil, err
	}
	return func(f *alloc.Fleet) Decider { return alloc.NewPlacer(f, p) }, nil
}
