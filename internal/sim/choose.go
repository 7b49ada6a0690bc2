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

// Variants of the best table that are tried: other weights of the best-fit term, and other prices of fairness.
var (
	leftoverWeights = []float64{0, 0.003, 0.02}
	priceFactors    = []float64{0.4, 0.65, 1.6}
	fairnessSteps   = []float64{2, 5, 10, 20, 40} // added, in thousandths of a card, until the table is fair
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
	top := field[0].table
	for _, w := range leftoverWeights {
		field = append(field, &entry{table: withLeftover(top, w)})
	}
	for _, w := range priceFactors {
		if top.Weights.Reserve+top.Weights.Room > 0 {
			field = append(field, &entry{table: reprice(top, w)})
		}
	}
	if field, err = c.heat(ctx, field, c.cfg.Trials/2, 2); err != nil {
		return nil, err
	}
	if field, err = c.heat(ctx, field, c.cfg.Trials, 1); err != nil {
		return nil, err
	}
	best := field[0]
	for _, more := range fairnessSteps {
		kind, worst := c.worst(best)
		if worst <= c.cfg.Unfair {
			break
		}
		fairer := &entry{table: reprice(field[0].table, 1)}
		if kind == alloc.KindCPU {
			fairer.table.Weights.Room += more * roomPerReserve
		} else {
			fairer.table.Weights.Reserve += more
		}
		if err := c.play(ctx, fairer, c.cfg.Trials); err != nil {
			return nil, err
		}
		if c.merit(fairer) > c.merit(best) {
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

// merit is the mean allocation in percent, less five points for each whole unit of unfairness beyond what is allowed.
func (c *contest) merit(e *entry) float64 {
	return e.mean() - 5*max(0, c.unfairness(e)-c.cfg.Unfair)
}

// play runs an entry on the scenarios it has not played yet, up to n.
func (c *contest) play(ctx context.Context, e *entry, n int) error {
	for len(c.played) < n {
		s := c.cfg.scenario(c.machines, c.pods, c.seed)
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

// unfairness is the largest ratio, over the kinds of request, of drops under the table to drops under FGD.
func (c *contest) unfairness(e *entry) float64 {
	_, worst := c.worst(e)
	return worst
}

func (c *contest) worst(e *entry) (alloc.Kind, float64) {
	return Unfairness(e.results, c.fgd[:len(e.results)])
}

// Unfairness compares the drops of two policies on the same scenarios by kind of request: the kind with the largest
// ratio, and the ratio. A kind of which the other policy drops less than one in a hundred is judged against that
// hundredth: a ratio to almost nothing says nothing.
func Unfairness(mine, other []*Result) (kind alloc.Kind, worst float64) {
	for k := range alloc.KindCount {
		name, drops, theirs, arrived := k.String(), 0, 0, 0
		for i := range mine {
			drops += mine[i].Dropped[name]
			theirs += other[i].Dropped[name]
			arrived += mine[i].Arrived[name]
		}
		if drops == 0 {
			continue
		}
		if ratio := float64(drops) / max(float64(theirs), floorRate*float64(arrived)); ratio > worst {
			kind, worst = k, ratio
		}
	}
	return kind, worst
}

// withLeftover copies a table with another weight of the best-fit term; the values are shared.
func withLeftover(t *alloc.Table, w float64) *alloc.Table {
	c := *t
	c.Weights.Leftover = w
	return &c
}

// reprice copies a table with other prices of fairness; the values are shared.
func reprice(t *alloc.Table, factor float64) *alloc.Table {
	c := *t
	c.Weights.Reserve *= factor
	c.Weights.Room *= factor
	return &c
}
