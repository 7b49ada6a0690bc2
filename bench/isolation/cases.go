package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// demand is one tenant of a sharing case, before it has a command line.
type demand struct {
	workload string
	asked    float64 // percent of the card
	grant    *grant
	idle     bool
	env      []string
}

// fixedShare demands a hard share.
func fixedShare(workload string, percent float64) demand {
	return demand{workload: workload, asked: percent, grant: &grant{policy: "fixed", compute: percent}}
}

// weighted demands shares in the ratio of the weights.
func weighted(workloads []string, weights []int) []demand {
	total := 0
	for _, w := range weights {
		total += w
	}
	out := make([]demand, len(workloads))
	for i, name := range workloads {
		out[i] = demand{workload: name, asked: percentOf(float64(weights[i]), float64(total)),
			grant: &grant{policy: "weighted", weight: weights[i]}}
	}
	return out
}

// bare demands the same without penstock.
func bare(workloads ...string) []demand {
	out := make([]demand, len(workloads))
	for i, name := range workloads {
		out[i] = demand{workload: name, asked: 100 / float64(len(workloads))}
	}
	return out
}

// shareCase runs one case of sharing and records its row, whatever happens.
func (b *bench) shareCase(ctx context.Context, row Row, demands []demand) {
	row.Workloads = workloadsOf(demands)
	tenants, err := b.judge(ctx, demands)
	if err != nil {
		row.Error = err.Error()
		row.Counted = false
	}
	row.Tenants = tenants
	for _, t := range tenants {
		row.Sum += t.Got
		if classOf(t.Workload) != compute {
			row.Counted = false
		}
	}
	row.Sum = round(row.Sum, 2)
	b.record(row)
}

// judge runs the tenants over one window and compares each with its solo.
func (b *bench) judge(ctx context.Context, demands []demand) ([]TenantRow, error) {
	if err := b.spent(ctx); err != nil {
		return nil, err
	}
	for _, d := range demands {
		if _, err := b.soloRate(ctx, d.workload); err != nil {
			return nil, err
		}
	}
	tenants, err := b.tenantsFor(demands)
	if err != nil {
		return nil, err
	}
	answers, err := b.together(ctx, tenants, b.cfg.seconds)
	if err != nil {
		return nil, err
	}
	return b.compare(demands, answers), nil
}

// compare makes rows of answers.
func (b *bench) compare(demands []demand, answers []answer) []TenantRow {
	rows := make([]TenantRow, len(demands))
	for i, d := range demands {
		got := percentOf(answers[i].rate(), b.solo[d.workload])
		rows[i] = TenantRow{Workload: d.workload, Asked: round(d.asked, 2), Got: round(got, 2),
			Error: round(got-d.asked, 2), Rate: round(answers[i].rate(), 2), Idle: d.idle}
	}
	return rows
}

// tenantsFor gives demands their command lines.
func (b *bench) tenantsFor(demands []demand) ([]tenant, error) {
	out := make([]tenant, len(demands))
	for i, d := range demands {
		argv, err := b.argvOf(d.workload)
		if err != nil {
			return nil, err
		}
		out[i] = tenant{workload: d.workload, argv: argv, env: d.env, grant: d.grant, asked: d.asked, idle: d.idle}
	}
	return out, nil
}

// soloRate is what a workload finishes a second alone and without penstock;
// measured once a run, and recorded, when first needed.
func (b *bench) soloRate(ctx context.Context, name string) (float64, error) {
	if r, ok := b.solo[name]; ok {
		return r, nil
	}
	if err := b.spent(ctx); err != nil {
		return 0, err
	}
	row := Row{Section: secSolo, Case: "alone", Workloads: []string{name}, Policy: "none"}
	answers, err := b.aloneBare(ctx, name)
	if err != nil {
		row.Error = err.Error()
		b.record(row)
		return 0, fmt.Errorf("solo of %s: %w", name, err)
	}
	rate := answers[0].rate()
	if rate <= 0 {
		return 0, fmt.Errorf("solo of %s finished nothing", name)
	}
	b.solo[name] = rate
	row.Sum = 100
	row.Tenants = []TenantRow{{Workload: name, Asked: 100, Got: 100, Rate: round(rate, 2)}}
	b.record(row)
	return rate, nil
}

func (b *bench) aloneBare(ctx context.Context, name string) ([]answer, error) {
	tenants, err := b.tenantsFor(bare(name))
	if err != nil {
		return nil, err
	}
	return b.together(ctx, tenants, b.cfg.seconds)
}

func workloadsOf(demands []demand) []string {
	var out []string
	for _, d := range demands {
		if !slices.Contains(out, d.workload) {
			out = append(out, d.workload)
		}
	}
	return out
}

// line is the row on the bench's log.
func (r Row) line() string {
	head := strings.TrimSpace(strings.Join(r.Workloads, "+") + " " + r.Policy + " " + r.Case)
	switch {
	case r.Error != "":
		return head + ": FAILED: " + r.Error
	case r.Memory != nil:
		return fmt.Sprintf("%s: held %.0f MiB of %.0f, over %.0f bytes", head, r.Memory.Peak/(1<<20), r.Memory.Quota/(1<<20), r.Memory.Over)
	case r.Calls != nil:
		return fmt.Sprintf("%s: ratio %.2f, %.2f calls per 10,000 launches", head, r.Calls.Ratio, r.Calls.Per10k)
	case r.Kill != nil:
		return fmt.Sprintf("%s: worst stand-still %.0f ms, harmed %d, ledger left %.0f", head, r.Kill.WorstMs, r.Kill.Harmed, r.Kill.LedgerLeft)
	case r.Latency != nil:
		head += fmt.Sprintf(" p50/p99/max %.2f/%.2f/%.2f ms", r.Latency.P50, r.Latency.P99, r.Latency.Max)
	}
	var got []string
	for _, t := range r.Tenants {
		got = append(got, fmt.Sprintf("%.1f→%.2f", t.Asked, t.Got))
	}
	return fmt.Sprintf("%s: %s sum %.1f", head, strings.Join(got, " "), r.Sum)
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
