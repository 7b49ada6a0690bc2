package alloc

import "math/bits"

// bestLinked chooses count of the cards in the mask so that the chosen ones are joined best, and among equals so
// that the cards left behind are: no NVLink pair is split while another choice exists. ranks is the machine's
// link matrix (gpu.Machine.Affinity). With at most 16 cards every choice is looked at; the smallest mask wins
// ties.
func bestLinked(ranks []int32, cards int, fit uint32, count int, out *Cards) {
	var best uint32
	var bestWorst, bestIn, bestLeft int64 = -1, -1, -1
	for set := uint32(1)<<count - 1; set < 1<<cards; set = nextSubset(set) {
		if set&^fit != 0 {
			continue
		}
		worst, in := linkSum(ranks, cards, set)
		if worst < bestWorst || worst == bestWorst && in < bestIn {
			continue
		}
		_, left := linkSum(ranks, cards, fit&^set)
		if worst > bestWorst || in > bestIn || left > bestLeft {
			best, bestWorst, bestIn, bestLeft = set, worst, in, left
		}
	}
	*out = Cards{}
	for s := best; s != 0; s &= s - 1 {
		out.add(bits.TrailingZeros32(s))
	}
}

// nextSubset returns the next larger number with as many bits set (Gosper's hack).
func nextSubset(s uint32) uint32 {
	low := s & -s
	ripple := s + low
	return ripple | ((s^ripple)>>2)/low
}

// linkSum returns the best link of the worst-joined card of the set (the bottleneck of a ring through it), and the
// sum of the links of all pairs.
func linkSum(ranks []int32, cards int, set uint32) (worst, sum int64) {
	worst = 1 << 40
	for a := set; a != 0; a &= a - 1 {
		i, nearest := bits.TrailingZeros32(a), int64(0)
		for b := set &^ (1 << i); b != 0; b &= b - 1 {
			j := bits.TrailingZeros32(b)
			r := int64(ranks[i*cards+j])
			if nearest = max(nearest, r); j > i {
				sum += r
			}
		}
		worst = min(worst, nearest)
	}
	return worst, sum
}
