package alloc

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Mix is a workload as the shapes it consists of, most frequent first, with frequencies that sum to one.
type Mix []MixEntry

// MixEntry is one shape and how often it arrives.
type MixEntry struct {
	CPU     gpu.Milli `json:"cpu"`
	Compute gpu.Milli `json:"compute"` // per card
	Count   int       `json:"count"`
	Models  string    `json:"models,omitempty"` // the constraint as written, alternatives separated by "|"
	Weight  float64   `json:"weight"`
}

// NewMix condenses requests to their most frequent shapes, as many as it takes to cover the given part of them
// (FGD: 0.95), renormalised. Ties order by CPU, compute, count and model, larger first, as the authors' code does
// (GetTypicalPods in hkust-adsl/kubernetes-scheduler-simulator pkg/utils/frag.go).
func NewMix(requests []Request, cover float64) Mix {
	counts := map[MixEntry]float64{}
	for i := range requests {
		counts[mixKey(&requests[i])]++
	}
	mix := make(Mix, 0, len(counts))
	for e, c := range counts {
		e.Weight = c
		mix = append(mix, e)
	}
	slices.SortFunc(mix, func(a, b MixEntry) int {
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Compute, a.Compute),
			cmp.Compare(b.Count, a.Count), cmp.Compare(b.Models, a.Models))
	})
	total, covered, n := float64(len(requests)), 0.0, 0
	for ; n < len(mix) && covered < cover*total; n++ {
		covered += mix[n].Weight
		mix[n].Weight /= total
	}
	if n == len(mix) {
		return mix
	}
	mix = mix[:n:n]
	for i := range mix {
		mix[i].Weight /= covered / total
	}
	return mix
}

func mixKey(r *Request) MixEntry {
	e := MixEntry{CPU: r.CPU, Count: r.cards()}
	if e.Count > 0 {
		e.Compute = r.share(0).Compute
	}
	names := make([]string, len(r.Models))
	for i, m := range r.Models {
		names[i] = string(m)
	}
	e.Models = strings.Join(names, "|")
	return e
}

// FGD rates by the fragmentation gradient of "Beware of Fragmentation" (ATC'23): how much less of a machine's idle
// compute would be useless to the mix after the placement. The score is ⌊100·σ(Δ/1000)⌋; the floor matters, since
// the ties it makes go to the first machine.
func FGD(mix Mix) Policy {
	return Policy{Name: "fgd", Terms: []Term{{"fragmentation", 1, func(f *Fleet) Scorer { return newFGD(f, mix) }}}}
}

type fgdScorer struct {
	mix    Mix
	access [][]bool // by model, by mix entry
	before []float64
	at     []uint32 // version+1 of the node for which before holds; 0: never
	memo   map[fgdState]float64
}

// fgdState is all that fragmentation depends on.
type fgdState struct {
	model int16
	cpu   gpu.Milli
	free  [8]int16
}

func newFGD(f *Fleet, mix Mix) *fgdScorer {
	s := &fgdScorer{mix: mix, before: make([]float64, f.Nodes()), at: make([]uint32, f.Nodes()), memo: map[fgdState]float64{}}
	for _, m := range f.models {
		row := make([]bool, len(mix))
		for i, e := range mix {
			row[i] = e.Models == "" || slices.Contains(strings.Split(e.Models, "|"), string(m))
		}
		s.access = append(s.access, row)
	}
	return s
}

func (s *fgdScorer) Score(v *View) float64 {
	return math.Trunc(1 / (1 + math.Exp(-s.drop(v)/1000)) * 100)
}

// gradient is FGD's Δ itself, in thousandths of a card.
type gradient struct{ *fgdScorer }

func (g gradient) Score(v *View) float64 { return g.drop(v) }

// drop is how much less of the machine is fragmented after the placement.
func (s *fgdScorer) drop(v *View) float64 {
	n := v.Node
	model := v.Fleet.model[n]
	if s.at[n] != v.Version+1 {
		s.before[n], s.at[n] = s.fragmentation(model, v.Fleet.cpu[n], v.Before()), v.Version+1
	}
	return s.before[n] - s.fragmentation(model, v.CPU, v.After[:v.N])
}

// fragmentation is the expected idle compute, in thousandths of a card, that the mix could not use. States repeat
// across machines, so they are remembered, up to a bound.
func (s *fgdScorer) fragmentation(model int16, cpu gpu.Milli, free []gpu.Milli) float64 {
	if len(free) > 8 {
		return s.compute(model, cpu, free)
	}
	key := fgdState{model: model, cpu: cpu}
	for i, f := range free { // insertion sort: order of cards does not matter
		j := i
		for ; j > 0 && key.free[j-1] < int16(f); j-- {
			key.free[j] = key.free[j-1]
		}
		key.free[j] = int16(f)
	}
	if v, ok := s.memo[key]; ok {
		return v
	}
	v := s.compute(model, cpu, free)
	if len(s.memo) < 1<<20 {
		s.memo[key] = v
	}
	return v
}

// compute sums by cause first and then over the causes: the order of additions is the authors', since the last bit
// decides ties.
func (s *fgdScorer) compute(model int16, cpu gpu.Milli, free []gpu.Milli) float64 {
	const lackBoth, lackGPU, lackCPU, cpuOnly, cpuOnlyLack, noAccess, causes = 0, 1, 2, 3, 4, 5, 6
	var sum [causes]float64
	idle := int64(0)
	for _, f := range free {
		idle += int64(f)
	}
	for i := range s.mix {
		e := &s.mix[i]
		hasCPU := cpu >= e.CPU
		cause := lackCPU
		if e.Compute == 0 {
			if cause = cpuOnly; !hasCPU {
				cause = cpuOnlyLack
			}
		} else if !s.access[model][i] {
			cause = noAccess
		} else {
			count, useless := 0, int64(0)
			for _, f := range free {
				if f >= e.Compute {
					count++
				} else {
					useless += int64(f)
				}
			}
			if count >= e.Count && hasCPU {
				sum[lackGPU] += e.Weight * float64(useless)
				continue
			}
			if count < e.Count {
				if cause = lackGPU; !hasCPU {
					cause = lackBoth
				}
			}
		}
		sum[cause] += e.Weight * float64(idle)
	}
	total := 0.0
	for _, v := range sum {
		total += v
	}
	return total
}
