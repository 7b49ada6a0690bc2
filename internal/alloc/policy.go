package alloc

import (
	"math"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Policy is how candidates are compared: a weighted sum of terms, and how a part of a card is chosen. It is data;
// adding a term is adding a row.
type Policy struct {
	Name  string
	Terms []Term
	Cards CardChoice
}

// Term is one consideration with its weight. New makes the scorer for one fleet, so that scorers may remember
// what they computed about its nodes; scorers are not shared between placers.
type Term struct {
	Name   string
	Weight float64
	New    func(*Fleet) Scorer
}

// Scorer rates a candidate; higher is better. It must depend only on the view.
type Scorer interface {
	Score(v *View) float64
}

// volatileScorer marks a scorer whose rating depends on more than the node and the shape of the request, so that it
// must not be cached by them.
type volatileScorer interface{ volatile() }

// cardScorer marks a scorer that tells cards apart by more than their free compute, so that all of them must be rated.
type cardScorer interface{ perCard() }

// CardChoice is how the card for a part of a card is found.
type CardChoice uint8

// Card choices.
const (
	ByScore  CardChoice = iota // every card with a distinct remainder is rated; the best wins
	Tightest                   // the card with the least left that fits
	Anywhere                   // any card that fits, by the request's own hash
)

// View is one candidate: a request put on a machine in one way, with what is free before and after.
type View struct {
	Fleet   *Fleet
	Request *Request
	Node    int
	Cards   Cards
	CPU     gpu.Milli           // left afterwards
	After   [MaxCards]gpu.Milli // free compute by card afterwards
	N       int                 // cards of the machine
	Version uint32              // of the node, so that scorers can remember the state before
}

// Before returns the free compute by card before the placement.
func (v *View) Before() []gpu.Milli { return v.Fleet.FreeCards(v.Node) }

// impossible is the score of a machine that cannot take the request.
var impossible = math.Inf(-1)

// judge rates requests against nodes for one fleet and policy. It is the one way scores are computed, with or
// without caches around it.
type judge struct {
	f        *Fleet
	p        *Policy
	scorers  []Scorer
	volatile bool
	perCard  bool // some scorer tells cards apart by more than their free compute
	view     View
}

func newJudge(f *Fleet, p *Policy) *judge {
	j := &judge{f: f, p: p}
	for _, t := range p.Terms {
		s := t.New(f)
		if _, v := s.(volatileScorer); v {
			j.volatile = true
		}
		if _, c := s.(cardScorer); c {
			j.perCard = true
		}
		j.scorers = append(j.scorers, s)
	}
	j.volatile = j.volatile || p.Cards == Anywhere
	return j
}

// rate returns the best score of putting r on node n, with the cards that reach it; impossible where it does not
// fit. The node must be eligible (Fleet.ineligible).
func (j *judge) rate(r *Request, n int) (float64, Cards) {
	f := j.f
	if f.cpu[n] < r.CPU || f.memory[n] < r.Memory {
		return impossible, Cards{}
	}
	v := &j.view
	v.Fleet, v.Request, v.Node, v.CPU, v.Version = f, r, n, f.cpu[n]-r.CPU, f.version[n]
	v.N = copy(v.After[:], f.FreeCards(n))
	v.Cards = Cards{}
	if r.cards() == 0 {
		return j.sum(v), v.Cards
	}
	if r.Count == 1 && len(r.Shares) == 0 && r.MIG == "" && !r.Share.Whole() && r.Mode != TimeSharing && r.Mode != Exclusive {
		return j.ratePart(v, r)
	}
	if !f.chooseCards(r, n, &v.Cards) {
		return impossible, Cards{}
	}
	v.take()
	return j.sum(v), v.Cards
}

// take subtracts what the request takes of the chosen cards.
func (v *View) take() {
	r, base := v.Request, int(v.Fleet.offset[v.Node])
	for i := range v.Cards.Len() {
		c := v.Cards.At(i)
		switch {
		case r.Mode == Exclusive || r.Mode == TimeSharing:
			v.After[c] = 0
		case r.MIG != "":
			v.After[c] -= v.Fleet.migCompute(r.MIG, base+c)
		default:
			v.After[c] -= r.share(i).Compute
		}
	}
}

// ratePart tries the cards for a part of a card.
func (j *judge) ratePart(v *View, r *Request) (float64, Cards) {
	f, base := j.f, int(j.f.offset[v.Node])
	best, cards := impossible, Cards{}
	if j.p.Cards != ByScore {
		c := j.pickOne(v, r)
		if c < 0 {
			return impossible, Cards{}
		}
		v.Cards.add(c)
		v.After[c] -= r.Share.Compute
		return j.sum(v), v.Cards
	}
	plain := !j.perCard && r.Share.Memory == 0 && r.Share.Codec == 0 && r.Share.Render == 0
	v.Cards.n = 1
	var tried [MaxCards]gpu.Milli
	n := 0
	for c := range v.N {
		free := v.After[c]
		if free < r.Share.Compute || !f.cardFits(&r.Share, base+c) || plain && repeated(tried[:n], free) {
			continue
		}
		tried[n], n = free, n+1
		v.After[c] = free - r.Share.Compute
		v.Cards.at[0] = uint8(c)
		if s := j.sum(v); s > best {
			best, cards = s, v.Cards
		}
		v.After[c] = free
	}
	return best, cards
}

// repeated reports whether a card with the same remainder was already tried.
func repeated(tried []gpu.Milli, free gpu.Milli) bool {
	for _, t := range tried {
		if t == free {
			return true
		}
	}
	return false
}

// pickOne chooses a card for a part of a card by the policy's simple rules; -1 when none fits.
func (j *judge) pickOne(v *View, r *Request) int {
	base, best, fits := int(j.f.offset[v.Node]), -1, uint64(0)
	for c := range v.N {
		if !j.f.cardFits(&r.Share, base+c) {
			continue
		}
		fits++
		if j.p.Cards == Anywhere {
			if hash(r.ID, uint64(c))%fits == 0 {
				best = c
			}
		} else if best < 0 || v.After[c] < v.After[best] {
			best = c
		}
	}
	return best
}

// sum adds the weighted terms.
func (j *judge) sum(v *View) float64 {
	if len(j.scorers) == 1 && j.p.Terms[0].Weight == 1 {
		return j.scorers[0].Score(v)
	}
	total := 0.0
	for i, s := range j.scorers {
		total += j.p.Terms[i].Weight * s.Score(v)
	}
	return total
}

// chooseCards picks the cards of one machine for several shares, or for whole cards; false when they do not fit.
// Whole cards on a machine with links are chosen by them (links.go).
func (f *Fleet) chooseCards(r *Request, n int, out *Cards) bool {
	count, base, cards := r.cards(), int(f.offset[n]), int(f.offset[n+1]-f.offset[n])
	*out = Cards{}
	if r.MIG != "" {
		return f.chooseMIG(r, n, out)
	}
	if len(r.Shares) > 0 || r.Mode == TimeSharing || r.Mode == Exclusive {
		return f.chooseEach(r, n, out)
	}
	var fit uint32
	found := 0
	for c := range cards {
		if f.cardFits(&r.Share, base+c) {
			fit |= 1 << c
			if found++; found <= count {
				out.add(c)
			}
		}
	}
	if found < count {
		return false
	}
	if found > count && count > 1 && f.affinity[n] != nil {
		bestLinked(f.affinity[n], cards, fit, count, out)
	}
	return true
}

// chooseEach assigns unequal shares one by one, the largest first, each to the tightest card that fits.
func (f *Fleet) chooseEach(r *Request, n int, out *Cards) bool {
	count, base, cards := r.cards(), int(f.offset[n]), int(f.offset[n+1]-f.offset[n])
	var used, assigned uint32
	out.n = uint8(count)
	for range count {
		next := -1
		for i := range count {
			if assigned&(1<<i) == 0 && (next < 0 || larger(r.share(i), r.share(next))) {
				next = i
			}
		}
		assigned |= 1 << next
		best := -1
		for c := range cards {
			if used&(1<<c) == 0 && f.refuseCard(r.share(next), r.Mode, n, c).Code == Fits &&
				(best < 0 || f.prefer(r.Mode, base+c, base+best)) {
				best = c
			}
		}
		if best < 0 {
			return false
		}
		used |= 1 << best
		out.at[next] = uint8(best)
	}
	return true
}

// prefer reports whether card a is the tighter home than card b: for turns a card that already serves turns, else
// the one with less compute and then less memory left.
func (f *Fleet) prefer(mode Mode, a, b int) bool {
	if mode == TimeSharing && f.turns[a] != f.turns[b] {
		return f.turns[a] > f.turns[b]
	}
	if f.compute[a] != f.compute[b] {
		return f.compute[a] < f.compute[b]
	}
	return f.vram[a] < f.vram[b]
}

// larger orders shares so that the hardest to place goes first.
func larger(a, b Share) bool {
	if a.Compute != b.Compute {
		return a.Compute > b.Compute
	}
	return a.Memory > b.Memory
}

// hash mixes a string and a number (FNV-1a with a final avalanche), for choices that must look random and repeat.
func hash(s string, x uint64) uint64 {
	h := uint64(14695981039346656037) ^ x
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}
