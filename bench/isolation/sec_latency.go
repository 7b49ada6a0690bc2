package main

import (
	"context"
	"fmt"
)

// Cases of section latency start with one of these.
const (
	caseAlone    = "alone"
	caseNative   = "native"
	casePenstock = "penstock"
)

// alone is the latency tenant without company, to compare with.
type alone struct {
	p99  float64
	left float64 // percent of the card that the bursts leave to others
}

// runLatency measures a tenant that submits a 0.4 ms kernel every 2 ms: alone,
// beside training as the driver shares, and at high priority under penstock.
func (b *bench) runLatency(ctx context.Context) {
	a, err := b.latencyAlone(ctx)
	if err != nil {
		b.record(Row{Section: secLatency, Case: caseAlone, Workloads: []string{latency}, Policy: "none", Error: err.Error()})
		return
	}
	trainings := []string{k4ms, train}
	if b.cfg.quick || b.cfg.emulated != "" {
		trainings = []string{k4ms}
	}
	for _, t := range trainings {
		b.latencyBeside(ctx, a, t, nil, nil)
		high := &grant{policy: "preemptive", priority: "high"}
		low := &grant{policy: "preemptive", priority: "low"}
		b.latencyBeside(ctx, a, t, high, low)
	}
}

// latencyAlone measures and records the tenant without company.
func (b *bench) latencyAlone(ctx context.Context) (alone, error) {
	full, err := b.soloRate(ctx, k400us) // the same kernel, back to back
	if err != nil {
		return alone{}, err
	}
	answers, err := b.aloneBare(ctx, latency)
	if err != nil {
		return alone{}, err
	}
	row := Row{Section: secLatency, Case: caseAlone, Workloads: []string{latency}, Policy: "none"}
	row.Latency = latencyRow(answers[0], answers[0].P99)
	b.record(row)
	return alone{p99: answers[0].P99, left: 100 - percentOf(answers[0].rate(), full)}, nil
}

// latencyBeside measures the tenant beside a training; without grants as the
// driver shares.
func (b *bench) latencyBeside(ctx context.Context, a alone, training string, high, low *grant) {
	kind, policy := caseNative, "none"
	if high != nil {
		kind, policy = casePenstock, fmt.Sprintf("%s, %s over %s", high.policy, high.priority, low.priority)
	}
	row := Row{Section: secLatency, Case: kind + ", beside " + training, Workloads: []string{latency, training}, Policy: policy}
	answers, err := b.latencyWindow(ctx, training, high, low)
	if err != nil {
		row.Error = err.Error()
		b.record(row)
		return
	}
	got := percentOf(answers[1].rate(), b.solo[training])
	row.Tenants = []TenantRow{{Workload: training, Asked: round(a.left, 2), Got: round(got, 2),
		Error: round(got-a.left, 2), Rate: round(answers[1].rate(), 2)}}
	row.Sum = round(got, 2)
	row.Latency = latencyRow(answers[0], a.p99)
	row.Latency.TrainingKept = round(percentOf(got, a.left), 2)
	b.record(row)
}

// latencySeconds gives the p99 at least ten beats above it on a real card.
func (b *bench) latencySeconds() float64 {
	if b.cfg.emulated != "" {
		return b.cfg.seconds
	}
	return max(b.cfg.seconds, 2)
}

// latencyWindow opens a window over both.
func (b *bench) latencyWindow(ctx context.Context, training string, high, low *grant) ([]answer, error) {
	if err := b.spent(ctx); err != nil {
		return nil, err
	}
	if _, err := b.soloRate(ctx, training); err != nil {
		return nil, err
	}
	tenants, err := b.tenantsFor([]demand{{workload: latency, grant: high}, {workload: training, grant: low}})
	if err != nil {
		return nil, err
	}
	return b.together(ctx, tenants, b.latencySeconds())
}

func latencyRow(a answer, aloneP99 float64) *LatencyRow {
	return &LatencyRow{P50: a.P50, P99: a.P99, Max: a.Max, Missed: a.Missed, DeltaMs: round(a.P99-aloneP99, 4)}
}
