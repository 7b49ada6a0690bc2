package main

import (
	"context"
	"fmt"
	"time"
)

const (
	quotaText    = "4Gi"
	quotaBytes   = 4 << 30
	ceilingMiB   = 5 << 10 // what a leak could take of the card: a quarter over
	memoryWindow = 2.5     // seconds: allocate, hold, be looked at
	lookAfter    = 1500 * time.Millisecond
)

// runMemory tries every way to allocate against one quota, from one and from
// two processes of the tenant at once, and allocating and freeing at random.
func (b *bench) runMemory(ctx context.Context) {
	if b.virtual() {
		return
	}
	paths := []string{"malloc", "async", "vmm", "managed", "array"}
	if b.cfg.emulated != "" {
		paths = []string{"malloc", "heap", "managed"} // the driver's paths
	}
	for _, path := range paths {
		for _, processes := range b.processCounts() {
			b.memoryCase(ctx, "take", path, processes)
		}
	}
	b.memoryCase(ctx, "churn", "malloc", 2)
}

func (b *bench) processCounts() []int {
	if b.cfg.quick || b.cfg.emulated != "" {
		return []int{2}
	}
	return []int{1, 2}
}

// memoryCase records one path.
func (b *bench) memoryCase(ctx context.Context, mode, path string, processes int) {
	row := Row{Section: secMemory, Case: fmt.Sprintf("%s %s × %d", mode, path, processes),
		Workloads: []string{"memory"}, Policy: "quota " + quotaText}
	m, err := b.tryQuota(ctx, mode, path, processes)
	if err != nil {
		row.Error = err.Error()
	} else {
		row.Memory = &m
	}
	b.record(row)
}

// tryQuota runs one path and looks at the card while everything is held.
func (b *bench) tryQuota(ctx context.Context, mode, path string, processes int) (MemoryRow, error) {
	m := MemoryRow{Path: path, Processes: processes, Quota: quotaBytes}
	if err := b.spent(ctx); err != nil {
		return m, err
	}
	before, errBefore := b.settledUse(ctx)
	argv, err := b.takeArgv(mode, path, processes)
	if err != nil {
		return m, err
	}
	c, err := b.assemble(ctx, []tenant{{workload: "memory", argv: argv, grant: &grant{policy: "native", memory: quotaText}}})
	if err != nil {
		return m, err
	}
	defer c.disband()
	if err := c.open(time.Now().Add(b.lead()), memoryWindow); err != nil {
		return m, err
	}
	if err := pause(ctx, b.lead()+lookAfter); err != nil {
		return m, err
	}
	during, errDuring := b.deviceUsed(ctx)
	answers, err := c.collect(ctx, memoryWindow)
	if err != nil {
		return m, err
	}
	m.Peak, m.Refusals = answers[0].Peak, answers[0].Refusals
	m.Over = max(0, m.Peak-m.Quota)
	m.Refused = m.Refusals > 0 && m.Peak < ceilingMiB<<20
	if m.Measured = errBefore == nil && errDuring == nil; m.Measured {
		m.Device = during - before
		m.DeviceOff = max(0, m.Device-m.Quota)
	}
	return m, nil
}

// settledUse is the card's own figure once it stands still: the memory of the
// tenants before comes back a little after they are gone.
func (b *bench) settledUse(ctx context.Context) (float64, error) {
	last, err := b.deviceUsed(ctx)
	for range 20 {
		if err != nil || ctx.Err() != nil {
			break
		}
		time.Sleep(250 * time.Millisecond)
		var now float64
		if now, err = b.deviceUsed(ctx); err == nil && now == last {
			break
		}
		last = now
	}
	return last, err
}
