package sim

import (
	"context"
	"math"
	"time"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Online decides with nothing known beforehand: it learns the workload's mix from the arrivals of the run itself.
// Until it has seen enough it packs by FGD towards the mix seen so far; then it trains a table on simulations that go
// on from the fleet as it is with arrivals drawn from those seen, and trains again, from the table it has, as they
// double. Training works on copies and could run beside the decisions; here it runs between them, so that a run repeats exactly, and its time
// is told apart.
type Online struct {
	ctx      context.Context
	fleet    *alloc.Fleet
	machines []gpu.Machine
	seen     []Pod
	next     int // arrivals at which it learns again
	cfg      TrainConfig
	table    *alloc.Table
	placer   *alloc.Placer
	asked    int64 // by the arrivals seen, in thousandths of a card
	spent    time.Duration
}

// Learning happens at these numbers of arrivals; the mix for FGD is taken first at firstLook.
const (
	firstLook  = 64
	firstTable = 250
	relearn    = 2 // times as many arrivals as at the time before
)

// NewOnline makes a decider for a fleet of the given machines. The zero configuration is a small training.
func NewOnline(ctx context.Context, f *alloc.Fleet, machines []gpu.Machine, cfg TrainConfig) *Online {
	cfg.Workload = "arrivals of the run"
	o := &Online{ctx: ctx, fleet: f, machines: machines, next: firstLook, cfg: cfg}
	p := alloc.BestFit()
	o.placer = alloc.NewPlacer(f, &p)
	return o
}

// Decide notes the arrival and places it.
func (o *Online) Decide(r *alloc.Request) (alloc.Placement, bool) {
	o.seen = append(o.seen, Pod{Request: *r})
	o.asked += r.Compute()
	if len(o.seen) >= o.next {
		start := time.Now()
		o.learn()
		o.spent += time.Since(start)
	}
	return o.placer.Decide(r)
}

// learn changes the policy. When training fails (the context ended) the policy in force stays.
func (o *Online) learn() {
	if len(o.seen) < firstTable {
		p := alloc.FGD(alloc.NewMix(requests(o.seen), Cover))
		o.placer = alloc.NewPlacer(o.fleet, &p)
		o.next = min(firstTable, 2*o.next)
		return
	}
	cfg := o.cfg
	cfg.Start, cfg.From, cfg.Asked = o.table, o.fleet, o.asked
	if o.table != nil { // most is learned: refine
		cfg.Rounds = int(math.Ceil(float64(cfg.withDefaults().Rounds) / 2))
	}
	o.next = len(o.seen) * relearn
	t, err := Train(o.ctx, o.machines, o.seen, cfg)
	if err != nil {
		return
	}
	o.table = t
	p := alloc.Learned(t)
	o.placer = alloc.NewPlacer(o.fleet, &p)
}

// Table is what was learned so far; nil before the first training.
func (o *Online) Table() *alloc.Table { return o.table }
