package alloc

import (
	"math"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// The largest machine the published experiment knows, by which its baselines scale their scores.
const (
	maxSpecCPU     = 128000
	maxSpecCompute = 8000
)

// scoreFunc is a scorer without state.
type scoreFunc func(*View) float64

func (s scoreFunc) Score(v *View) float64 { return s(v) }

func stateless(name string, weight float64, s scoreFunc) Term {
	return Term{name, weight, func(*Fleet) Scorer { return s }}
}

// left sums what a machine has free after the placement.
func (v *View) left() (sum int64) {
	for _, c := range v.After[:v.N] {
		sum += int64(c)
	}
	return sum
}

// BestFit prefers the machine with the least CPU and compute left, in hundredths (best_fit_score.go of the
// authors' simulator).
func BestFit() Policy {
	return Policy{"bestfit", []Term{stateless("leftover", 1, func(v *View) float64 {
		rest := 0.0
		rest += float64(v.CPU) / maxSpecCPU * 0.5
		rest += float64(v.left()) / maxSpecCompute * 0.5
		return math.Trunc((1 - rest) * 100)
	})}, Tightest}
}

// DotProd is Tetris' alignment with the sign that the published experiment used: the smaller the product of free
// and wanted, the better (dot_product_score.go, merged GPU dimension, scaled by the largest machine).
func DotProd() Policy {
	return Policy{"dotprod", []Term{stateless("alignment", 1, func(v *View) float64 {
		free := 0.0
		for _, c := range v.Before() {
			free += float64(c)
		}
		r := v.Request
		dot := float64(v.Fleet.cpu[v.Node]) / maxSpecCPU * (float64(r.CPU) / maxSpecCPU)
		dot += free / maxSpecCompute * (float64(r.Compute()) / maxSpecCompute)
		return math.Trunc(100 * (1 - dot/2))
	})}, Tightest}
}

// Packing prefers cards in use, then free cards of machines in use, then free machines (gpu_packing_score.go).
func Packing() Policy {
	return Policy{"packing", []Term{stateless("packing", 1, packingScore)}, Tightest}
}

func packingScore(v *View) float64 {
	r := v.Request
	if r.cards() == 0 {
		return 0
	}
	freeCards := 0
	for _, c := range v.Before() {
		if c == gpu.Card {
			freeCards++
		}
	}
	if freeCards == v.N {
		return float64(max(100/3-freeCards, freeCards))
	}
	fresh, ratio := 0, 0
	for i := range v.Cards.Len() {
		c := v.Before()[v.Cards.At(i)]
		if c == gpu.Card {
			fresh++
		}
		ratio += int(c) * 100 / int(gpu.Card)
	}
	if fresh > 0 {
		return float64(max(100/2-fresh, 100/3))
	}
	return float64(max(100-ratio/10, 100/2))
}

// Clustering prefers machines whose tenants are of the request's own kind (gpu_clustering_score.go).
func Clustering() Policy {
	return Policy{"clustering", []Term{stateless("affinity", 1, clusteringScore)}, Tightest}
}

func clusteringScore(v *View) float64 {
	own := v.Request.tally()
	if own == 0 {
		return 0
	}
	kinds, same := 0, false
	for k, n := range v.Fleet.kinds[v.Node] {
		if k > 0 && n > 0 {
			kinds++
			same = same || k == own
		}
	}
	free := int64(0)
	for _, c := range v.Before() {
		free += int64(c)
	}
	score := 25 * (maxSpecCompute - free) / maxSpecCompute
	switch {
	case same && kinds == 1:
		score += 75
	case same:
		score += 50
	case kinds == 0:
		score += 25
	}
	return float64(score)
}

// Binpack prefers the fullest machine, Spread the emptiest, both by the larger of CPU and compute use.
func Binpack() Policy {
	return Policy{"binpack", []Term{stateless("fullness", 1, fullness)}, Tightest}
}

// Spread prefers the emptiest machine.
func Spread() Policy {
	return Policy{"spread", []Term{stateless("fullness", -1, fullness)}, ByScore}
}

func fullness(v *View) float64 {
	compute := 0.0
	if v.N > 0 {
		compute = 1 - float64(v.left())/float64(v.N*int(gpu.Card))
	}
	cpu := 0.0
	if c := v.Fleet.cpuCap[v.Node]; c > 0 {
		cpu = 1 - float64(v.CPU)/float64(c)
	}
	return 100 * max(compute, cpu)
}

// Random places anywhere it fits, by a hash of the seed, the request and the machine, so that it repeats.
func Random(seed int64) Policy {
	return Policy{"random", []Term{{"chance", 1, func(*Fleet) Scorer { return chance(seed) }}}, Anywhere}
}

type chance int64

func (chance) volatile() {}

func (c chance) Score(v *View) float64 {
	return float64(hash(v.Request.ID, uint64(c)<<32^uint64(v.Node)) >> 11)
}
