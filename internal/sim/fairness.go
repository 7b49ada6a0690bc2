package sim

import (
	"context"
	"math"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// tally counts requests by kind.
type tally struct{ arrived, dropped [alloc.KindCount]float64 }

// fairness steers the weights of a policy while its table is learned, so that no kind of request is dropped much
// more often than FGD drops it: the price of taking what a starving kind needs rises from round to round until it
// starves no more, and falls while there is slack.
type fairness struct {
	limit float64
	fgd   [alloc.KindCount]float64 // drop rate by kind
	ratio [alloc.KindCount]float64 // of our drop rate to it, in the last round
}

// Steering: roomPerReserve relates the two prices (a place for a large CPU-only request is several cards' worth of a
// machine), priceStep is by how much a price moves at most in a round, floorRate the drop rate below which nobody starves.
const (
	roomPerReserve = 4
	priceStep      = 2
	floorRate      = 0.01
	fairnessRuns   = 8
)

// newFairness measures FGD's drops on seeds of its own.
func newFairness(ctx context.Context, machines []gpu.Machine, pods []Pod, cfg TrainConfig) (*fairness, error) {
	f := &fairness{limit: cfg.Unfair}
	var sum tally
	for i := range int64(fairnessRuns) {
		s := cfg.scenario(machines, pods, cfg.Seed+500_000+i)
		r, err := run(ctx, &s, 0, alloc.FGD(alloc.NewMix(requests(pods), Cover)))
		if err != nil {
			return nil, err
		}
		for k := range alloc.KindCount {
			sum.arrived[k] += float64(r.Arrived[k.String()])
			sum.dropped[k] += float64(r.Dropped[k.String()])
		}
	}
	for k := range f.fgd {
		f.fgd[k] = floorRate
		if sum.arrived[k] > 0 {
			f.fgd[k] = max(floorRate, sum.dropped[k]/sum.arrived[k])
		}
	}
	return f, nil
}

// adjust moves the prices after a round.
func (f *fairness) adjust(w *alloc.Weights, round tally) {
	for k := range f.ratio {
		if round.arrived[k] == 0 {
			continue
		}
		f.ratio[k] = round.dropped[k] / round.arrived[k] / f.fgd[k]
	}
	w.Reserve = price(w.Reserve, f.ratio[alloc.KindFiveUp], f.limit, 1)
	w.Room = price(w.Room, f.ratio[alloc.KindCPU], f.limit, roomPerReserve)
}

// price moves p towards where the ratio is a little below the limit: up while it is above, down while there is
// slack, by at most priceStep a round. It comes in at first and goes out below half of it.
func price(p, ratio, limit, first float64) float64 {
	gap := ratio - 0.94*limit
	if p == 0 && gap <= 0 {
		return 0
	}
	p = max(p, first) * min(priceStep, max(1/priceStep, math.Exp(1.5*gap)))
	if gap < 0 && p < first/2 {
		return 0
	}
	return p
}

// usefulHole is the smallest hole that a fair part of the workload's fractional requests fits: one in twenty.
func usefulHole(pods []Pod) gpu.Milli {
	var shares []gpu.Milli
	for i := range pods {
		if pods[i].Kind() == alloc.KindShare {
			shares = append(shares, pods[i].Share.Compute)
		}
	}
	if len(shares) == 0 {
		return gpu.Card
	}
	slices.Sort(shares)
	return shares[len(shares)/20]
}

// largeCPU is a large request for CPU alone: nine in ten are no larger. 0 where there are none.
func largeCPU(pods []Pod) gpu.Milli {
	var cpu []gpu.Milli
	for i := range pods {
		if pods[i].Kind() == alloc.KindCPU {
			cpu = append(cpu, pods[i].CPU)
		}
	}
	if len(cpu) == 0 {
		return 0
	}
	slices.Sort(cpu)
	return cpu[len(cpu)*9/10]
}
