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
	Rounds   int     // of simulation, each with the table of the one before; default 12
	Runs     int     // simulations a round; default 6
	Trials   int     // simulations by which the late rounds' tables are compared; default 24, negative for none
	Load     float64 // arrivals as a part of the cluster's compute; default Load
	Seed     int64   // of the first simulation; later ones take the seeds that follow; default 100001
	Unfair   float64 // how often a kind may be dropped, as a multiple of FGD's; default 1.2
	Workload string  // noted in the table
	Start    *alloc.Table
	// From makes the simulations go on from a fleet as it is instead of an empty one; the arrivals so far asked for
	// Asked thousandths of a card.
	From     *alloc.Fleet
	Asked    int64
	Progress func(done, total int)
}

func (c TrainConfig) withDefaults() TrainConfig {
	c.Rounds, c.Runs, c.Trials = cmp.Or(c.Rounds, 12), cmp.Or(c.Runs, 6), cmp.Or(c.Trials, 24)
	c.Load, c.Seed, c.Unfair = cmp.Or(c.Load, Load), cmp.Or(c.Seed, 100001), cmp.Or(c.Unfair, 1.2)
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	return c
}

// scenario draws one simulation.
func (c TrainConfig) scenario(machines []gpu.Machine, pods []Pod, seed int64) Scenario {
	if c.From != nil {
		return continueFrom(c.From, pods, int64(c.Load*float64(c.From.TotalCompute())), c.Asked, seed)
	}
	return NewScenario(machines, pods, c.Load, seed)
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
	useful  gpu.Milli
	weights alloc.Weights
	mix     alloc.Mix
}

func newLesson(pods []Pod, useful gpu.Milli) *lesson {
	l := &lesson{knots: alloc.DefaultKnots(), useful: useful}
	l.mix = alloc.NewMix(requests(pods), Cover)
	l.weights = alloc.Weights{Leftover: learnLeftover, RoomCPU: largeCPU(pods)}
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
	fair, err := newFairness(ctx, machines, pods, cfg)
	if err != nil {
		return nil, err
	}
	var late []*alloc.Table
	done := 0
	for _, useful := range cfg.views(pods) {
		tables, err := learn(ctx, machines, pods, cfg, useful, *fair, &done)
		if err != nil {
			return nil, err
		}
		late = append(late, tables...)
	}
	if cfg.Trials < 0 {
		return late[len(late)-1], nil
	}
	c := &contest{machines: machines, pods: pods, cfg: cfg, seed: cfg.Seed + 600_000}
	return c.choose(ctx, late)
}

// views are the two ways to count the holes that compete for CPU (Table.Useful): every hole, or those that a fair
// part of the workload fits. Which of them packs better depends on how scarce CPU is, so both are learned, unless a
// table to start from has decided.
func (c TrainConfig) views(pods []Pod) []gpu.Milli {
	if c.Start != nil {
		return []gpu.Milli{c.Start.Useful}
	}
	return []gpu.Milli{1, usefulHole(pods)}
}

// learn plays the rounds and returns the tables of the later ones.
func learn(ctx context.Context, machines []gpu.Machine, pods []Pod, cfg TrainConfig, useful gpu.Milli, fair fairness, done *int) ([]*alloc.Table, error) {
	l, table := newLesson(pods, useful), cfg.Start
	if table == nil {
		table = l.table(cfg)
	} else {
		l.weights = table.Weights
	}
	seed, total := cfg.Seed, cfg.Rounds*cfg.Runs*len(cfg.views(pods))
	var late []*alloc.Table
	for round := range cfg.Rounds {
		l.decay()
		drops := tally{}
		policy := alloc.Learned(table)
		for range cfg.Runs {
			s := cfg.scenario(machines, pods, seed)
			seed++
			if err := l.watch(ctx, &s, &policy, &drops); err != nil {
				return nil, err
			}
			*done++
			cfg.Progress(*done, total)
		}
		fair.adjust(&l.weights, drops)
		table = l.table(cfg)
		if round >= cfg.Rounds/3 {
			late = append(late, table)
		}
	}
	return late, nil
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
func (l *lesson) watch(ctx context.Context, s *Scenario, policy *alloc.Policy, drops *tally) error {
	f, err := s.fleet()
	if err != nil {
		return err
	}
	placer := alloc.NewPlacer(f, policy)
	holes, useful := make([]hole, 0, 1<<16), max(1, l.useful)
	look := func(n int) {
		free := f.FreeCards(n)
		x := float32(alloc.CoresPerCard(f.FreeCPU(n), free, useful))
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
		kind := s.Arrivals[i].Kind()
		drops.arrived[kind]++
		p, ok := placer.Decide(&s.Arrivals[i])
		if !ok {
			drops.dropped[kind]++
		} else {
			if err := f.Begin().Grant(p); err != nil {
				return fmt.Errorf("the core placed what does not fit: %w", err)
			}
			look(p.Node)
		}
	}
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
		Mix: l.mix, Useful: l.useful, Weights: l.weights, Knots: l.knots, Values: grid(len(l.knots))}
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
