package sim

import (
	"cmp"
	"context"
	"fmt"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// TrainConfig says how a table is learned. The zero value of a field means its default.
type TrainConfig struct {
	Rounds   int     // of simulation, each with the table of the one before; default 16
	Runs     int     // simulations a round; default 6
	Trials   int     // simulations by which the late rounds' tables are compared; default 24, negative for none
	Load     float64 // arrivals as a part of the cluster's compute; default Load
	Seed     int64   // of the first simulation; later ones take the seeds that follow; default 100001
	Unfair   float64 // how often a kind may be dropped, as a multiple of FGD's; default 1.2
	Workload string  // noted in the table
	Start    *alloc.Table
	Progress func(done, total int)
}

func (c TrainConfig) withDefaults() TrainConfig {
	c.Rounds, c.Runs, c.Trials = cmp.Or(c.Rounds, 16), cmp.Or(c.Runs, 6), cmp.Or(c.Trials, 24)
	c.Load, c.Seed, c.Unfair = cmp.Or(c.Load, Load), cmp.Or(c.Seed, 100001), cmp.Or(c.Unfair, 1.2)
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	return c
}

// Learning constants: how much older rounds count, how far a sample speaks for its neighbours, and how many samples
// the mean of a row is worth where a cell has few of its own.
const (
	learnDecay   = 0.92
	smoothRows   = 3
	smoothRow    = 0.3
	smoothKnots  = 0.15
	priorSamples = 3
)

// lesson holds, by row and knot, how many holes were seen (by weight) and which fraction of them stayed idle.
type lesson struct {
	knots   []int
	idle    [][]float64
	seen    [][]float64
	samples int64
	last    float64
}

func newLesson() *lesson {
	l := &lesson{knots: alloc.DefaultKnots()}
	l.idle, l.seen = grid(len(l.knots)), grid(len(l.knots))
	return l
}

func grid(columns int) [][]float64 {
	g := make([][]float64, alloc.TableBins)
	for i := range g {
		g[i] = make([]float64, columns)
	}
	return g
}

// learnLeftover is the weight of the best-fit term while learning: it gives the first rounds an order.
const learnLeftover = 0.01

// Train learns a table from a workload by simulating it: each hole seen in a run is a sample of how much of it is
// idle in the end. The pods are the mix; their order and number come from seeds of its own. The tables of the later
// rounds differ by luck, so they are compared on seeds of their own and the best fair one is returned (choose.go).
func Train(ctx context.Context, machines []gpu.Machine, pods []Pod, cfg TrainConfig) (*alloc.Table, error) {
	cfg = cfg.withDefaults()
	l, table := newLesson(), cfg.Start
	if table == nil {
		table = l.table(cfg)
	}
	seed, total := cfg.Seed, cfg.Rounds*cfg.Runs
	var late []*alloc.Table
	for round := range cfg.Rounds {
		l.decay()
		policy := alloc.Learned(table)
		for run := range cfg.Runs {
			s := NewScenario(machines, pods, cfg.Load, seed)
			seed++
			if err := l.watch(ctx, &s, &policy); err != nil {
				return nil, err
			}
			if labHook != nil {
				labHook(round, l, table)
			}
			cfg.Progress(round*cfg.Runs+run+1, total)
		}
		table = l.table(cfg)
		if round >= cfg.Rounds-8 && round >= cfg.Rounds/3 {
			late = append(late, table)
		}
	}
	if cfg.Trials < 0 {
		return table, nil
	}
	c := &contest{machines: machines, pods: pods, cfg: cfg, seed: seed}
	return c.choose(ctx, late)
}

// decay lets older rounds count less: they were played with a worse table.
func (l *lesson) decay() {
	for r := range l.seen {
		for k := range l.seen[r] {
			l.seen[r][k] *= learnDecay
			l.idle[r][k] *= learnDecay
		}
	}
}

// hole is one sighting: a card with r free on a machine with x cores per free card.
type hole struct {
	node, card int32
	free       gpu.Milli
	x          float32
}

// watch plays one scenario and learns from every hole it saw.
func (l *lesson) watch(ctx context.Context, s *Scenario, policy *alloc.Policy) error {
	f, err := alloc.NewFleet(s.Machines)
	if err != nil {
		return err
	}
	placer := alloc.NewPlacer(f, policy)
	holes := make([]hole, 0, 1<<16)
	look := func(n int) {
		free := f.FreeCards(n)
		x := float32(alloc.CoresPerCard(f.FreeCPU(n), free))
		for c, r := range free {
			if r > 0 {
				holes = append(holes, hole{int32(n), int32(c), r, x})
			}
		}
	}
	for n := range f.Nodes() {
		look(n)
	}
	for i := range s.Arrivals {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if p, ok := placer.Decide(&s.Arrivals[i]); ok {
			if err := f.Begin().Grant(p); err != nil {
				return fmt.Errorf("the core placed what does not fit: %w", err)
			}
			look(p.Node)
		}
	}
	l.last = percent(f.TotalCompute()-f.FreeCompute(), f.TotalCompute())
	for _, h := range holes {
		l.add(h, f.FreeCards(int(h.node))[h.card])
	}
	return nil
}

// add books a sample on the two knots around it.
func (l *lesson) add(h hole, end gpu.Milli) {
	k, w := locate(l.knots, float64(h.x))
	r, idle := alloc.Bin(h.free), float64(end)/float64(h.free)
	l.seen[r][k] += 1 - w
	l.idle[r][k] += (1 - w) * idle
	if w > 0 {
		l.seen[r][k+1] += w
		l.idle[r][k+1] += w * idle
	}
	l.samples++
}

// locate returns the knot at or below x and the weight of the next one.
func locate(knots []int, x float64) (int, float64) {
	last := len(knots) - 1
	for k := range last {
		if x < float64(knots[k+1]) {
			return k, max(0, (x-float64(knots[k]))/float64(knots[k+1]-knots[k]))
		}
	}
	return last, 0
}

// table turns what was seen into values: smoothed over neighbouring rows and knots, with the row's mean as prior.
func (l *lesson) table(cfg TrainConfig) *alloc.Table {
	idle, seen := smooth(l.idle, len(l.knots)), smooth(l.seen, len(l.knots))
	t := &alloc.Table{Version: alloc.TableVersion, Workload: cfg.Workload, Samples: l.samples,
		Leftover: learnLeftover, Knots: l.knots, Values: grid(len(l.knots))}
	for r := 1; r < alloc.TableBins; r++ {
		rowIdle, rowSeen := 0.0, 0.0
		for k := range l.knots {
			rowIdle += idle[r][k]
			rowSeen += seen[r][k]
		}
		prior := 0.0
		if rowSeen > 0 {
			prior = rowIdle / rowSeen
		}
		for k := range l.knots {
			v := (idle[r][k] + priorSamples*prior) / (seen[r][k] + priorSamples)
			t.Values[r][k] = v * float64(r*alloc.TableBin)
		}
	}
	return t
}

// smooth spreads each cell over its neighbours, rows with a falling weight.
func smooth(g [][]float64, columns int) [][]float64 {
	out := grid(columns)
	for r := 1; r < alloc.TableBins; r++ {
		for d := -smoothRows; d <= smoothRows; d++ {
			if r+d < 1 || r+d >= alloc.TableBins {
				continue
			}
			w := rowWeight(r, d)
			for k, v := range g[r+d] {
				out[r][k] += w * v
			}
		}
		row := append([]float64(nil), out[r]...)
		for k := range row {
			if k > 0 {
				out[r][k] += smoothKnots * row[k-1]
			}
			if k+1 < columns {
				out[r][k] += smoothKnots * row[k+1]
			}
		}
	}
	return out
}

// rowWeight is how much the row d away speaks for row r. The row of untouched cards stands alone: they are the only
// ones a whole-card request can use.
func rowWeight(r, d int) float64 {
	if d == 0 {
		return 1
	}
	if r == alloc.TableBins-1 || r+d == alloc.TableBins-1 {
		return 0
	}
	return smoothRow / float64(d*d)
}

var labHook func(int, *lesson, *alloc.Table)
