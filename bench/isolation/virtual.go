package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/virtual"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// inVirtual as value of -emulated runs tenants and governor in virtual time:
// no processes, exact and repeatable however loaded the machine is.
const inVirtual = "virtual"

// settle is the virtual time before the window, in which slots find their feet.
const settleTime = time.Second

// virtual says that time is.
func (b *bench) virtual() bool { return b.cfg.emulated == inVirtual }

// loadOf is a workload as the emulated card takes it.
func loadOf(t tenant) (virtual.Load, error) {
	loads := map[string]virtual.Load{
		k20us:   {Kernel: 20 * time.Microsecond},
		k400us:  {Kernel: 400 * time.Microsecond},
		k4ms:    {Kernel: 4 * time.Millisecond},
		latency: {Kernel: 400 * time.Microsecond, Period: 2 * time.Millisecond},
	}
	load, ok := loads[t.workload]
	if !ok {
		return load, fmt.Errorf("workload %q needs a real card", t.workload)
	}
	if t.idle {
		return virtual.Load{}, nil
	}
	return load, nil
}

// inVirtualTime runs one window over the tenants.
func (b *bench) inVirtualTime(tenants []tenant, seconds float64) ([]answer, error) {
	gov, err := b.governorFor(tenants)
	if err != nil {
		return nil, err
	}
	loop, err := virtual.New(card.H200(), gov)
	if err != nil {
		return nil, err
	}
	loads := make([]virtual.Load, len(tenants))
	for i, t := range tenants {
		if loads[i], err = loadOf(t); err != nil {
			return nil, err
		}
		who, err := governed(t, i)
		if err != nil {
			return nil, err
		}
		if err := loop.Join(who, loads[i]); err != nil {
			return nil, err
		}
	}
	if err := loop.Run(settleTime); err != nil {
		return nil, err
	}
	before, err := results(loop, tenants)
	if err != nil {
		return nil, err
	}
	if err := loop.Run(time.Duration(seconds * float64(time.Second))); err != nil {
		return nil, err
	}
	after, err := results(loop, tenants)
	if err != nil {
		return nil, err
	}
	answers := make([]answer, len(tenants))
	for i := range tenants {
		answers[i] = virtualAnswer(before[i], after[i], loads[i], seconds)
	}
	return answers, nil
}

// governorFor is the governor of a case; none when no tenant has a grant.
func (b *bench) governorFor(tenants []tenant) (virtual.Governor, error) {
	if len(tenants) == 0 || tenants[0].grant == nil {
		return nil, nil
	}
	p, err := governor.ParsePolicy(tenants[0].grant.policy)
	if err != nil {
		return nil, err
	}
	return governor.New(governor.Config{Policy: p, Cycle: b.cfg.cycle})
}

// governed is a tenant as the governor takes it.
func governed(t tenant, index int) (governor.Tenant, error) {
	who := governor.Tenant{ID: governor.TenantID(strconv.Itoa(index))}
	if t.grant == nil {
		return who, nil
	}
	who.Share = governor.Milli(math.Round(10 * t.grant.compute))
	who.Weight = t.grant.weight
	if t.grant.priority == "" {
		return who, nil
	}
	var err error
	who.Priority, err = governor.ParsePriority(t.grant.priority)
	return who, err
}

func results(loop *virtual.Loop, tenants []tenant) ([]virtual.Result, error) {
	out := make([]virtual.Result, len(tenants))
	for i, t := range tenants {
		r, ok := loop.Result(governor.TenantID(strconv.Itoa(i)))
		if !ok {
			return nil, fmt.Errorf("%s#%d is gone", t.workload, i)
		}
		out[i] = r
	}
	return out, nil
}

// virtualAnswer is what a worker would have said. Units are work done, parts
// of kernels included.
func virtualAnswer(before, after virtual.Result, load virtual.Load, seconds float64) answer {
	a := answer{Mode: inVirtual, Seconds: seconds}
	if load.Kernel > 0 {
		a.Units = float64(after.Busy-before.Busy) / float64(load.Kernel)
	}
	var ms []float64
	for _, d := range after.Latencies[min(len(before.Latencies), len(after.Latencies)):] {
		ms = append(ms, float64(d)/float64(time.Millisecond))
	}
	a.P50, a.P99, a.Max = percentile(ms, 50), percentile(ms, 99), percentile(ms, 100)
	return a
}
