package main

import (
	"context"
	"errors"
	"fmt"
)

// runCalls measures what supervision costs: an allocation pair, and the calls
// that kernel launches make.
func (b *bench) runCalls(ctx context.Context) {
	if b.virtual() {
		return
	}
	launchers := []string{k20us, graphs}
	if b.cfg.emulated != "" {
		launchers = []string{k400us} // and there is no driver's cudaMalloc to compare with
	} else {
		b.pairCase(ctx)
	}
	for _, name := range launchers {
		row := Row{Section: secCalls, Case: "calls while launching", Workloads: []string{name}, Policy: "native"}
		c, err := b.launchCalls(ctx, name)
		if err != nil {
			row.Error = err.Error()
		} else {
			row.Calls = &c
		}
		b.record(row)
	}
}

// pairCase records the cost of an allocation pair.
func (b *bench) pairCase(ctx context.Context) {
	row := Row{Section: secCalls, Case: "cudaMalloc + cudaFree, 4 MiB", Workloads: []string{"memory"}, Policy: "native"}
	c, err := b.pairCost(ctx)
	if err != nil {
		row.Error = err.Error()
	} else {
		row.Calls = &c
	}
	b.record(row)
}

// pairCost compares the median of an allocation pair without and with
// penstock.
func (b *bench) pairCost(ctx context.Context) (CallsRow, error) {
	if err := b.spent(ctx); err != nil {
		return CallsRow{}, err
	}
	argv := []string{b.programs.memory, "--mode", "pairs", "--mib", "4", "--count", "2000"}
	var medians []float64
	for _, g := range []*grant{nil, {policy: "native", memory: quotaText}} {
		answers, err := b.together(ctx, []tenant{{workload: "memory", argv: argv, grant: g}}, 1)
		if err != nil {
			return CallsRow{}, err
		}
		medians = append(medians, answers[0].MedianUs)
	}
	if medians[0] <= 0 {
		return CallsRow{}, errors.New("the bare pair took no time")
	}
	return CallsRow{BareUs: medians[0], SupervisedUs: medians[1], Ratio: round(medians[1]/medians[0], 3)}, nil
}

// launchCalls counts the calls the agent saw while a warm tenant launched.
func (b *bench) launchCalls(ctx context.Context, name string) (CallsRow, error) {
	if err := b.spent(ctx); err != nil {
		return CallsRow{}, err
	}
	tenants, err := b.tenantsFor([]demand{{workload: name, grant: &grant{policy: "native"}}})
	if err != nil {
		return CallsRow{}, err
	}
	c, err := b.assemble(ctx, tenants)
	if err != nil {
		return CallsRow{}, err
	}
	defer c.disband()
	before, err := b.onlyTenant(ctx)
	if err != nil {
		return CallsRow{}, err
	}
	answers, err := c.window(ctx, b.cfg.seconds)
	if err != nil {
		return CallsRow{}, err
	}
	after, err := b.onlyTenant(ctx)
	if err != nil {
		return CallsRow{}, err
	}
	row := CallsRow{Launches: answers[0].Launches, Calls: float64(after.Calls - before.Calls)}
	if row.Launches <= 0 {
		return row, errors.New("nothing was launched")
	}
	row.Per10k = round(row.Calls/row.Launches*1e4, 4)
	return row, nil
}

// onlyTenant is the status of the one tenant there is.
func (b *bench) onlyTenant(ctx context.Context) (topTenant, error) {
	s, err := b.agent.top(ctx)
	if err != nil {
		return topTenant{}, err
	}
	if len(s.Tenants) != 1 {
		return topTenant{}, fmt.Errorf("penstock top shows %d tenants, not one", len(s.Tenants))
	}
	return s.Tenants[0], nil
}
