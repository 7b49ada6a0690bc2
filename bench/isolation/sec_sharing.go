package main

import (
	"context"
	"fmt"
)

// runSolo measures what every workload finishes alone and without penstock.
func (b *bench) runSolo(ctx context.Context) {
	for _, name := range b.soloWorkloads() {
		if _, err := b.soloRate(ctx, name); err != nil && ctx.Err() != nil {
			return
		}
	}
}

// soloWorkloads is what section solo measures; other sections measure what
// they miss by themselves.
func (b *bench) soloWorkloads() []string {
	switch {
	case b.virtual():
		return []string{k20us, k400us, k4ms}
	case b.cfg.emulated != "":
		return []string{k400us, k4ms}
	case b.cfg.quick:
		return []string{k20us, k400us, k4ms, matmul}
	}
	var names []string
	for _, w := range catalogue() {
		names = append(names, w.name)
	}
	return names
}

// runCaps gives one tenant alone a hard share of the card.
func (b *bench) runCaps(ctx context.Context) {
	for _, name := range b.soloWorkloads() {
		for _, percent := range b.capsOf(name) {
			row := Row{Section: secCaps, Case: fmt.Sprintf("%.0f%%", percent), Policy: "fixed", Counted: true}
			b.shareCase(ctx, row, []demand{fixedShare(name, percent)})
		}
	}
}

// capsOf is the caps a workload is tried at.
func (b *bench) capsOf(name string) []float64 {
	all := []float64{10, 30, 50, 70, 90}
	switch {
	case b.virtual():
		return all
	case b.cfg.emulated != "" && name == k400us:
		return []float64{10, 30, 70}
	case b.cfg.emulated != "":
		return []float64{30}
	case !b.cfg.quick && name == train: // ten seconds a case, most of them imports
		return []float64{10, 50, 90}
	case !b.cfg.quick || name == k400us:
		return all
	case name == matmul:
		return []float64{30}
	}
	return nil
}

// pairing is two workloads that share.
type pairing struct{ a, b string }

// runPairs lets two tenants share in several ratios, with hard shares and
// with weights.
func (b *bench) runPairs(ctx context.Context) {
	for _, p := range b.pairings() {
		for _, percent := range b.ratiosOf(p) {
			title := fmt.Sprintf("%d/%d", percent, 100-percent)
			row := Row{Section: secPairs, Case: title, Policy: "fixed", Counted: true}
			b.shareCase(ctx, row, []demand{fixedShare(p.a, float64(percent)), fixedShare(p.b, float64(100-percent))})
			row.Policy = "weighted"
			b.shareCase(ctx, row, weighted([]string{p.a, p.b}, []int{percent, 100 - percent}))
		}
	}
}

func (b *bench) pairings() []pairing {
	switch {
	case b.virtual():
		return []pairing{{k400us, k400us}, {k20us, k4ms}, {k400us, k4ms}}
	case b.cfg.emulated != "":
		return []pairing{{k400us, k400us}, {k400us, k4ms}}
	case b.cfg.quick:
		return []pairing{{k400us, k400us}, {k20us, k4ms}}
	}
	return []pairing{{k400us, k400us}, {matmul, matmul}, {k20us, k4ms}, {graphs, matmul}, {persistent, k400us}}
}

func (b *bench) ratiosOf(p pairing) []int {
	if (b.cfg.quick || b.cfg.emulated != "") && !b.virtual() && p.a != p.b {
		return []int{30}
	}
	return []int{10, 30, 50}
}

// runFour lets four tenants have a quarter each.
func (b *bench) runFour(ctx context.Context) {
	names := []string{k400us, k400us, k400us, k400us}
	if !b.cfg.quick && b.cfg.emulated == "" {
		names = []string{k20us, k400us, k4ms, k400us}
	}
	var fixed []demand
	for _, n := range names {
		fixed = append(fixed, fixedShare(n, 25))
	}
	row := Row{Section: secFour, Case: "4 × 25", Policy: "fixed", Counted: true}
	b.shareCase(ctx, row, fixed)
	row.Policy = "weighted"
	b.shareCase(ctx, row, weighted(names, []int{1, 1, 1, 1}))
}

// runThree lets three tenants share by the weights 1, 2 and 4.
func (b *bench) runThree(ctx context.Context) {
	row := Row{Section: secThree, Case: "weights 1/2/4", Policy: "weighted", Counted: true}
	b.shareCase(ctx, row, weighted([]string{k400us, k400us, k400us}, []int{1, 2, 4}))
	if !b.cfg.quick && b.cfg.emulated == "" {
		b.shareCase(ctx, row, weighted([]string{k4ms, k20us, matmul}, []int{1, 2, 4}))
	}
}

// runIdle has one tenant of two do nothing: burst lends its share, fixed does
// not.
func (b *bench) runIdle(ctx context.Context) {
	pair := func(policy string, asked float64) []demand {
		busy := demand{workload: k400us, asked: asked, grant: &grant{policy: policy, compute: 30}}
		idle := demand{workload: k400us, asked: 0, grant: &grant{policy: policy, compute: 70}, idle: true}
		return []demand{busy, idle}
	}
	b.shareCase(ctx, Row{Section: secIdle, Case: "30, beside an idle 70", Policy: "burst"}, pair("burst", 100))
	b.shareCase(ctx, Row{Section: secIdle, Case: "30, beside an idle 70", Policy: "fixed", Counted: true}, pair("fixed", 30))
	lone := []demand{{workload: k400us, asked: 100, grant: &grant{policy: "burst", compute: 30}}}
	b.shareCase(ctx, Row{Section: secIdle, Case: "30, alone", Policy: "burst"}, lone)
}

// runNative lets tenants share without penstock, as the driver does.
func (b *bench) runNative(ctx context.Context) {
	cases := [][]demand{bare(k400us, k400us)}
	if b.cfg.emulated == "" {
		cases = append(cases, bare(k20us, k4ms))
	}
	if !b.cfg.quick && b.cfg.emulated == "" {
		cases = append(cases, bare(matmul, k400us))
	}
	for _, demands := range cases {
		b.shareCase(ctx, Row{Section: secNative, Case: "the driver's own sharing", Policy: "none"}, demands)
	}
}
