package alloc

import (
	"math/bits"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// placement completes a choice of cards with what follows from it.
func (f *Fleet) placement(r *Request, node int, cards Cards) Placement {
	p := Placement{Request: r, Node: node, Cards: cards}
	if r.MIG != "" && cards.Len() == 1 {
		p.Start, _ = f.migStart(r.MIG, int(f.offset[node])+cards.At(0))
	}
	return p
}

// profile finds a MIG profile among those of a card; nil where it offers none of that name.
func (f *Fleet) profile(name string, d int) *gpu.MIGProfile {
	for i := range f.profiles[d] {
		if f.profiles[d][i].Name == name {
			return &f.profiles[d][i]
		}
	}
	return nil
}

// covered is the mask of memory slices of an instance.
func covered(start, extent uint8) uint8 { return uint8((1<<extent - 1) << start) }

// migCompute is the compute of an instance: sevenths of a card, rounded down.
func (f *Fleet) migCompute(name string, d int) gpu.Milli {
	if p := f.profile(name, d); p != nil {
		return gpu.Card * gpu.Milli(p.Slices) / 7
	}
	return 0
}

// migFits reports whether an instance may be made at that slice of the card.
func (f *Fleet) migFits(name string, d int, start uint8) bool {
	p := f.profile(name, d)
	if p == nil || f.health[d] != gpu.Healthy || f.mig[d]&covered(start, p.Extent) != 0 || f.compute[d] < f.migCompute(name, d) {
		return false
	}
	for _, s := range p.Starts {
		if s == start {
			return true
		}
	}
	return false
}

// migStart chooses where on a card an instance goes: where most placements of any profile remain possible, the first
// of equals. Layouts persist, so a bad start costs a whole card.
func (f *Fleet) migStart(name string, d int) (start uint8, ok bool) {
	p, most := f.profile(name, d), -1
	if p == nil {
		return 0, false
	}
	for _, s := range p.Starts {
		if !f.migFits(name, d, s) {
			continue
		}
		if left := f.migLeft(d, f.mig[d]|covered(s, p.Extent)); left > most {
			start, most, ok = s, left, true
		}
	}
	return start, ok
}

// migLeft counts the placements of all profiles that a mask of covered slices leaves, each by its extent.
func (f *Fleet) migLeft(d int, mask uint8) (sum int) {
	for _, p := range f.profiles[d] {
		for _, s := range p.Starts {
			if mask&covered(s, p.Extent) == 0 {
				sum += int(p.Extent)
			}
		}
	}
	return sum
}

// chooseMIG picks the card for an instance: the one with the most slices in use that still has a place for it, so that
// requests of several sizes stay on the fewest cards.
func (f *Fleet) chooseMIG(r *Request, n int, out *Cards) bool {
	best, most := -1, -1
	for c := range int(f.offset[n+1] - f.offset[n]) {
		d := int(f.offset[n]) + c
		if _, ok := f.migStart(r.MIG, d); ok && bits.OnesCount8(f.mig[d]) > most {
			best, most = c, bits.OnesCount8(f.mig[d])
		}
	}
	if best < 0 {
		return false
	}
	out.add(best)
	return true
}

// migTake marks (or, on release, unmarks) the slices of an instance and returns what it takes of the card.
func (f *Fleet) migTake(name string, d int, start uint8) Share {
	p := f.profile(name, d)
	f.mig[d] ^= covered(start, p.Extent)
	return Share{Compute: f.migCompute(name, d), Memory: p.Memory}
}
