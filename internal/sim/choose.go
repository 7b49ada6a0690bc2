package sim

import (
	"cmp"
	"context"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// contest compares tables on scenarios that none of them has seen, the same for all, and holds FGD's drops on them as
// the measure of fairness.
type contest struct {
	machines []gpu.Machine
	pods     []Pod
	cfg      TrainConfig
	seed     int64
	played   []Scenario
	fgd      []*Result
}

// entry is a table with its results on the first scenarios of the contest.
type entry struct {
	table   *alloc.Table
	results []*Result
}

// Weights of the best-fit term that are tried on the best tables, and of the term that keeps machines whole, which
// rises until the table is fair.
var (
	leftoverWeights = []float64{0, 0.003, 0.02}
	reserveWeights  = []float64{1, 3, 6, 12, 25, 50}
)

// choose plays in three heats, keeping the better part of the tables after each.
func (c *contest) choose(ctx context.Context, tables []*alloc.Table) (*alloc.Table, error) {
	field := make([]*entry, len(tables))
	for i, t := range tables {
		field[i] = &entry{table: t}
	}
	field, err := c.heat(ctx, field, c.cfg.Trials/4, 3)
	if err != nil {
		return nil, err
	}
	for _, e := range slices.Clone(field[:1]) {
		for _, w := range leftoverWeights {
			field = append(field, &entry{table: reweigh(e.table, w, 0)})
		}
	}
	if field, err = c.heat(ctx, field, c.cfg.Trials/2, 2); err != nil {
		return nil, err
	}
	if field, err = c.heat(ctx, field, c.cfg.Trials, 1); err != nil {
		return nil, err
	}
	best := field[0]
	for _, w := range reserveWeights {
		if c.unfairness(best) <= c.cfg.Unfair {
			break
		}
		fairer := &entry{table: reweigh(field[0].table, field[0].table.Leftover, w)}
		if err := c.play(ctx, fairer, c.cfg.Trials); err != nil {
			return nil, err
		}
		if c.unfairness(fairer) < c.unfairness(best) {
			best = fairer
		}
	}
	return best.table, nil
}

// heat plays every entry on n scenarios and keeps the best few.
func (c *contest) heat(ctx context.Context, field []*entry, n, keep int) ([]*entry, error) {
	for _, e := range field {
		if err := c.play(ctx, e, n); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(field, func(a, b *entry) int { return cmp.Compare(c.merit(b), c.merit(a)) })
	return field[:min(keep, len(field))], nil
}

// merit is the mean allocation in percent, less two points for each whole unit of unfairness beyond what is allowed.
func (c *contest) merit(e *entry) float64 {
	return e.mean() - 2*max(0, c.unfairness(e)-c.cfg.Unfair)
}

// play runs an entry on the scenarios it has not played yet, up to n.
func (c *contest) play(ctx context.Context, e *entry, n int) error {
	for len(c.played) < n {
		s := NewScenario(c.machines, c.pods, c.cfg.Load, c.seed)
		r, err := run(ctx, &s, c.seed, alloc.FGD(alloc.NewMix(requests(c.pods), Cover)))
		if err != nil {
			return err
		}
		c.seed++
		c.played, c.fgd = append(c.played, s), append(c.fgd, r)
	}
	for i := len(e.results); i < n; i++ {
		r, err := run(ctx, &c.played[i], 0, alloc.Learned(e.table))
		if err != nil {
			return err
		}
		e.results = append(e.results, r)
	}
	return nil
}

func run(ctx context.Context, s *Scenario, seed int64, p alloc.Policy) (*Result, error) {
	r, _, err := Inflate(ctx, s, seed, p.Name, func(f *alloc.Fleet) Decider { return alloc.NewPlacer(f, &p) })
	return r, err
}

func (e *entry) mean() float64 {
	sum := 0.0
	for _, r := range e.results {
		sum += r.AllocatedPercent
	}
	return sum / float64(max(1, len(e.results)))
}

// unfairness is the largest ratio, over the kinds of request, of drops under the table to drops under FGD. Kinds of
// which FGD drops less than one in a hundred are judged by their drop rate against that hundredth.
func (c *contest) unfairness(e *entry) float64 {
	return Unfairness(e.results, c.fgd[:len(e.results)])
}

// Unfairness compares the drops of two policies on the same scenarios; see contest.unfairness.
func Unfairness(mine, other []*Result) float64 {
	worst := 0.0
	for k := range alloc.KindCount {
		name, drops, theirs, arrived := k.String(), 0, 0, 0
		for i := range mine {
			drops += mine[i].Dropped[name]
			theirs += other[i].Dropped[name]
			arrived += mine[i].Arrived[name]
		}
		if arrived > 0 && drops > 0 {
			worst = max(worst, float64(drops)/max(float64(theirs), float64(arrived)/100))
		}
	}
	return worst
}

// reweigh copies a table with other weights; the values are shared.
func reweigh(t *alloc.Table, leftover, reserve float64) *alloc.Table {
	c := *t
	c.Leftover, c.Reserve = leftover, reserve
	return &c
}
