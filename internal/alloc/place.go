package alloc

// Verdict is the whole answer to a request.
type Verdict struct {
	Placed    bool
	Placement Placement
	Score     float64
	Terms     []TermScore // by term, for the placement chosen
	Refusals  []Reason    // why each node, or each card of it, was refused
}

// TermScore is one term's part in a score.
type TermScore struct {
	Name   string
	Weight float64
	Score  float64 // before the weight
}

// Place decides for one request from scratch, and explains. Use a Placer where many requests meet one fleet.
func Place(f *Fleet, r *Request, p *Policy) Verdict { return NewUncachedPlacer(f, p).Place(r) }

// Place decides and explains: the score by term of the placement chosen, and a typed reason for every node that was
// refused, with one for every card where the node itself would have done.
func (p *Placer) Place(r *Request) Verdict {
	var v Verdict
	v.Placement, v.Placed = p.Decide(r)
	if v.Placed {
		v.Score, v.Terms = p.j.explain(&v.Placement)
	}
	for n := range p.j.f.Nodes() {
		v.Refusals = p.j.f.refusals(v.Refusals, r, n)
	}
	return v
}

// refusals appends why node n cannot take r; nothing when it can.
func (f *Fleet) refusals(out []Reason, r *Request, n int) []Reason {
	if why := f.refuseNode(r, n); why.Code != Fits {
		return append(out, why)
	}
	if r.cards() == 0 {
		return out
	}
	var cards Cards
	if f.chooseCards(r, n, &cards) {
		return out
	}
	start, fit := len(out), 0
	if r.MIG != "" {
		for c := range int(f.offset[n+1] - f.offset[n]) {
			out = append(out, Reason{Node: n, Device: c, Code: LackMIG})
		}
		return out
	}
	smallest := r.share(0)
	for i := range r.cards() {
		if s := r.share(i); larger(smallest, s) {
			smallest = s
		}
	}
	for c := range int(f.offset[n+1] - f.offset[n]) {
		if why := f.refuseCard(smallest, r.Mode, n, c); why.Code != Fits {
			out = append(out, why)
		} else {
			fit++
		}
	}
	if fit > 0 || len(out) == start {
		out = append(out, Reason{Node: n, Device: -1, Code: TooFewCards, Want: int64(r.cards()), Have: int64(fit)})
	}
	return out
}

// explain rates one placement term by term.
func (j *judge) explain(p *Placement) (float64, []TermScore) {
	v := View{Fleet: j.f, Request: p.Request, Node: p.Node, CPU: j.f.cpu[p.Node] - p.Request.CPU,
		Version: j.f.version[p.Node], Cards: p.Cards}
	v.N = copy(v.After[:], j.f.FreeCards(p.Node))
	v.take()
	terms := make([]TermScore, len(j.scorers))
	for i, s := range j.scorers {
		terms[i] = TermScore{j.p.Terms[i].Name, j.p.Terms[i].Weight, s.Score(&v)}
	}
	return j.sum(&v), terms
}

// Count says how often each code appears among reasons: the summary that fits in one event.
func Count(reasons []Reason) map[Code]int {
	out := map[Code]int{}
	for _, r := range reasons {
		out[r.Code]++
	}
	return out
}

// Fit puts a request on a given node if it fits there: the cards by their links, without comparing nodes.
func (f *Fleet) Fit(r *Request, node int) (Placement, bool) {
	var cards Cards
	if f.refuseNode(r, node).Code != Fits || r.cards() > 0 && !f.chooseCards(r, node, &cards) {
		return Placement{}, false
	}
	return f.placement(r, node, cards), true
}
