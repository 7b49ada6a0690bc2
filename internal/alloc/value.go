package alloc

import (
	"fmt"
	"math"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Table is a learned value function: V[r][x] is the compute, in thousandths of a card, that is expected to be idle
// in the end in a hole of r thousandths when its machine has x CPU cores left per free card. It is learned from a
// workload by simulation (sim train) and is plain data: versioned, printable, safe to be without.
type Table struct {
	Version  int         `json:"version"`
	Workload string      `json:"workload"` // what it was learned from, for the reader
	Samples  int64       `json:"samples"`
	Useful   gpu.Milli   `json:"useful"`        // the smallest hole that competes for CPU
	Weights  Weights     `json:"weights"`       // of the other terms, as chosen with the table
	Mix      Mix         `json:"mix,omitempty"` // for the fragmentation term
	Knots    []int       `json:"knots"`         // CPU cores per free card, ascending whole numbers from 0
	Values   [][]float64 `json:"values"`        // by ⌈r/10⌉ (0..100), by knot
}

// Weights are what the learned policy's other terms weigh against one thousandth of a card of expected idle.
type Weights struct {
	Leftover float64 `json:"leftover"` // classic best fit; 0 to 0.02 is sensible
	Reserve  float64 `json:"reserve"`  // fairness to requests for a whole machine (see reserveScore)
	Room     float64 `json:"room"`     // fairness to requests for CPU alone (see roomScore)
	// Fragmentation weighs FGD's gradient, before its rounding. It keeps machines whole where jobs leave again: a
	// table learned from filling a cluster does not know that a machine can become whole.
	Fragmentation float64   `json:"fragmentation,omitempty"`
	RoomCPU       gpu.Milli `json:"roomCPU"` // a large request for CPU alone
}

// TableVersion is the layout this code reads and writes.
const TableVersion = 1

// TableBin is the width of a bin of r, TableBins their number.
const (
	TableBin  = 10
	TableBins = 101
)

// DefaultKnots are dense where the openb machines' CPU per card lies.
func DefaultKnots() []int {
	return []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 28, 32, 40, 52, 80}
}

// Validate proves that the table can be used, naming the first thing that is wrong.
func (t *Table) Validate() error {
	if t.Version != TableVersion {
		return fmt.Errorf("table: version is %d: expected %d", t.Version, TableVersion)
	}
	if len(t.Values) != TableBins {
		return fmt.Errorf("table: values has %d rows: expected %d", len(t.Values), TableBins)
	}
	if len(t.Knots) < 2 || t.Knots[0] != 0 || t.Knots[len(t.Knots)-1] > 4096 {
		return fmt.Errorf("table: knots are %v: expected two or more from 0 to at most 4096", t.Knots)
	}
	for i, k := range t.Knots[1:] {
		if k <= t.Knots[i] {
			return fmt.Errorf("table: knots[%d] is %d: expected more than %d", i+1, k, t.Knots[i])
		}
	}
	for i, row := range t.Values {
		if len(row) != len(t.Knots) {
			return fmt.Errorf("table: values[%d] has %d columns: expected one per knot, %d", i, len(row), len(t.Knots))
		}
		for k, v := range row {
			if math.IsNaN(v) || v < 0 || v > float64(gpu.Card) {
				return fmt.Errorf("table: values[%d][%d] is %v: expected 0 to 1000", i, k, v)
			}
		}
	}
	return nil
}

// Bin is the row of a hole of r thousandths.
func Bin(r gpu.Milli) int { return (int(r) + TableBin - 1) / TableBin }

// CoresPerCard is x: the CPU cores a machine has left for each card with a useful hole, of at least useful
// thousandths. Holes that almost no request fits compete for no CPU; counting them would make a machine look short of
// it. Where no hole is useful the cores are not divided.
func CoresPerCard(cpu gpu.Milli, free []gpu.Milli, useful gpu.Milli) float64 {
	holes := 0
	for _, c := range free {
		if c >= useful {
			holes++
		}
	}
	return float64(cpu) / 1000 / float64(max(1, holes))
}

// valueScorer rates by how much less idle compute is expected afterwards.
type valueScorer struct {
	grid   [][TableBins]float32 // the table at every whole x, by x, so that the inner loop reads one column
	before []float64
	at     []uint32
	useful gpu.Milli
}

func newValue(f *Fleet, t *Table) *valueScorer {
	last := t.Knots[len(t.Knots)-1]
	s := &valueScorer{grid: make([][TableBins]float32, last+2), before: make([]float64, f.Nodes()), at: make([]uint32, f.Nodes()), useful: max(1, t.Useful)}
	k := 0
	for x := range s.grid {
		for k+2 < len(t.Knots) && x > t.Knots[k+1] {
			k++
		}
		w := min(1, float64(x-t.Knots[k])/float64(t.Knots[k+1]-t.Knots[k]))
		for r := range TableBins {
			s.grid[x][r] = float32(t.Values[r][k]*(1-w) + t.Values[r][k+1]*w)
		}
	}
	return s
}

// expected is the idle compute expected to be left on a machine in the end.
func (s *valueScorer) expected(cpu gpu.Milli, free []gpu.Milli) float64 {
	x := CoresPerCard(cpu, free, s.useful)
	i := int(x)
	if i > len(s.grid)-2 {
		i = len(s.grid) - 2
		x = float64(i)
	}
	w := float32(x - float64(i))
	low, high := &s.grid[i], &s.grid[i+1]
	sum := float32(0)
	for _, c := range free {
		if c > 0 {
			b := (uint(c) + TableBin - 1) / TableBin
			sum += low[b] + (high[b]-low[b])*w
		}
	}
	return float64(sum)
}

func (s *valueScorer) Score(v *View) float64 {
	n := v.Node
	if s.at[n] != v.Version+1 {
		s.before[n], s.at[n] = s.expected(v.Fleet.cpu[n], v.Before()), v.Version+1
	}
	return s.before[n] - s.expected(v.CPU, v.After[:v.N])
}

// leftoverScore is the classic best fit in thousandths of a card: it breaks ties between equal values.
func leftoverScore(v *View) float64 {
	return -500 * (float64(v.CPU)/maxSpecCPU + float64(v.left())/maxSpecCompute)
}

// Learned is the policy that packs by a learned table, with the weights the table was chosen with.
func Learned(t *Table) Policy {
	p := Policy{Name: "penstock", Terms: []Term{
		{"expected-idle", 1, func(f *Fleet) Scorer { return newValue(f, t) }},
	}}
	w := t.Weights
	if w.Leftover != 0 {
		p.Terms = append(p.Terms, stateless("leftover", w.Leftover, leftoverScore))
	}
	if w.Reserve != 0 {
		p.Terms = append(p.Terms, stateless("reserve", w.Reserve, reserveScore))
	}
	if w.Fragmentation != 0 && len(t.Mix) > 0 {
		p.Terms = append(p.Terms, Term{"fragmentation", w.Fragmentation, func(f *Fleet) Scorer { return gradient{newFGD(f, t.Mix)} }})
	}
	if w.Room != 0 && w.RoomCPU > 0 {
		p.Terms = append(p.Terms, stateless("cpu-room", w.Room, roomScore(w.RoomCPU)))
	}
	return p
}

// roomScore counts against a request the places for large CPU-only requests that it takes from a machine.
func roomScore(cpu gpu.Milli) scoreFunc {
	return func(v *View) float64 {
		return float64(v.CPU/cpu - v.Fleet.cpu[v.Node]/cpu)
	}
}

// reserveScore counts against a request that takes less than a whole untouched machine the cards of the machine it
// would break into: fairness to the kinds that need all of one.
func reserveScore(v *View) float64 {
	for _, c := range v.Before() {
		if c < gpu.Card {
			return 0
		}
	}
	if v.N < 8 || v.Cards.Len() == 0 || v.left() == 0 {
		return 0
	}
	return -float64(v.N)
}
