package alloc

import "github.com/penstock-gpu/penstock/internal/gpu"

// Complement attracts complementary demands to one card: a tenant that renders or decodes goes beside tenants that
// compute, and the reverse. It counts, over the cards chosen, how unevenly compute, codec and rendering would be left;
// requests in the modes RenderMix and CodecMix are rated, others are indifferent.
func Complement(weight float64) Term {
	return Term{"complement", weight, func(*Fleet) Scorer { return complement{} }}
}

type complement struct{}

func (complement) perCard() {}

func (complement) Score(v *View) float64 {
	r := v.Request
	if r.Mode != RenderMix && r.Mode != CodecMix {
		return 0
	}
	f, base, uneven := v.Fleet, int(v.Fleet.offset[v.Node]), 0.0
	for i := range v.Cards.Len() {
		d, s := base+v.Cards.At(i), r.share(i)
		compute := float64(v.After[v.Cards.At(i)])
		other := float64(f.render[d] - s.Render)
		if r.Mode == CodecMix {
			other = float64(f.codec[d] - s.Codec)
		}
		if f.tenants[d] == 0 {
			uneven++ // an empty card complements nothing
			continue
		}
		uneven += max(compute-other, other-compute) / float64(gpu.Card)
	}
	return -uneven
}

// Interference counts against a placement what its class of work is known to lose beside the tenants of the cards
// chosen, and they beside it: slowdown[a][b] is by how many percent a loses beside b. It is an explicit input,
// measured elsewhere.
func Interference(weight float64, slowdown [classCount][classCount]gpu.Percent) Term {
	return Term{"interference", weight, func(*Fleet) Scorer { return interference{&slowdown} }}
}

type interference struct {
	slowdown *[classCount][classCount]gpu.Percent
}

func (interference) perCard() {}

func (s interference) Score(v *View) float64 {
	loss, own, base := 0, v.Request.Class, int(v.Fleet.offset[v.Node])
	for i := range v.Cards.Len() {
		for c, n := range v.Fleet.classes[base+v.Cards.At(i)] {
			loss += int(n) * int(s.slowdown[own][c]+s.slowdown[c][own])
		}
	}
	return -float64(loss)
}
