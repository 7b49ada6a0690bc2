package alloc

import (
	"cmp"
	"slices"
)

// Cost is what taking a grant back loses, in a unit of the caller's choice (card-seconds since the last checkpoint,
// say); ok is false for grants that must not be taken. The core has no clock, so the caller tells.
type Cost func(g *Grant) (loss int64, ok bool)

// Preemption is a placement that becomes possible once its victims are gone.
type Preemption struct {
	Placement Placement
	Victims   []string // IDs of grants, in the order in which they were chosen
	Loss      int64
}

// Preempt finds the placement that loses the least when grants of lower priority are taken back: on every eligible
// node victims are taken, the cheapest first, until the request fits, then those that turn out not to be needed are
// spared, the dearest first. Ties go to fewer victims, then to the first node. It changes nothing.
func (f *Fleet) Preempt(r *Request, cost Cost) (best Preemption, found bool) {
	byNode := f.candidates(r, cost)
	for n := range f.Nodes() {
		if len(byNode[n]) == 0 || f.ineligible(r, n) != Fits {
			continue
		}
		p, ok := f.preemptOn(r, n, byNode[n])
		if ok && (!found || p.Loss < best.Loss || p.Loss == best.Loss && len(p.Victims) < len(best.Victims)) {
			best, found = p, true
		}
	}
	return best, found
}

// victim is a grant that may be taken, and its price.
type victim struct {
	g    *Grant
	loss int64
}

// candidates lists by node what may be taken for r, cheapest first.
func (f *Fleet) candidates(r *Request, cost Cost) map[int][]victim {
	out := map[int][]victim{}
	for _, g := range f.grants {
		if g.Request.Priority >= r.Priority {
			continue
		}
		if loss, ok := cost(g); ok {
			out[g.Node] = append(out[g.Node], victim{g, loss})
		}
	}
	for _, vs := range out {
		slices.SortFunc(vs, func(a, b victim) int {
			return cmp.Or(cmp.Compare(a.g.Request.Priority, b.g.Request.Priority), cmp.Compare(a.loss, b.loss),
				cmp.Compare(a.g.Request.ID, b.g.Request.ID))
		})
	}
	return out
}

// preemptOn tries one node.
func (f *Fleet) preemptOn(r *Request, n int, vs []victim) (p Preemption, ok bool) {
	f.WhatIf(func(txn *Txn) {
		taken := 0
		for ; taken < len(vs); taken++ {
			if _, ok = f.Fit(r, n); ok {
				break
			}
			if txn.Release(vs[taken].g.Request.ID) != nil {
				return
			}
		}
		if p.Placement, ok = f.Fit(r, n); !ok {
			return
		}
		for i := taken - 1; i >= 0; i-- { // spare who is not needed
			if txn.Grant(vs[i].g.Placement) == nil {
				if again, fits := f.Fit(r, n); fits {
					p.Placement = again
					continue
				}
				if txn.Release(vs[i].g.Request.ID) != nil {
					return
				}
			}
			p.Victims = append(p.Victims, vs[i].g.Request.ID)
			p.Loss += vs[i].loss
		}
		slices.Reverse(p.Victims)
	})
	return p, ok
}
