package alloc

import (
	"cmp"
	"slices"
)

// Move is one step of a defragmentation plan: a grant goes from where it is to another place.
type Move struct {
	ID   string
	From Placement
	To   Placement
	Gain float64 // by the measure, less the cost of moving
}

// Worth measures a node of the fleet; higher is better. The sum over the nodes is what a plan improves.
type Worth func(f *Fleet, node int) float64

// WholeCards measures by the cards that are entirely free, with a bonus for machines that are: what large requests
// need. It is the plain measure; any Worth will do.
func WholeCards(f *Fleet, node int) float64 {
	whole := 0
	for c, free := range f.FreeCards(node) {
		if free == 1000 && f.tenants[int(f.offset[node])+c] == 0 {
			whole++
		}
	}
	if whole > 1 && whole == len(f.FreeCards(node)) {
		return 1.5 * float64(whole)
	}
	return float64(whole)
}

// Defragment plans at most limit moves, each of which gains more than it costs, so that the sum of worth only rises:
// the grants that may move (movable tells, with the cost of moving each in the unit of worth) are taken in turn, the
// emptiest machines first, and put where the policy prefers among places that gain. The plan is an order: each move
// fits once those before it are done. Nothing is changed.
func Defragment(f *Fleet, p *Policy, worth Worth, movable func(*Grant) (cost float64, ok bool), limit int) (plan []Move) {
	f.WhatIf(func(txn *Txn) {
		j := newJudge(f, p)
		for _, g := range f.movables(movable) {
			if len(plan) == limit {
				return
			}
			cost, _ := movable(g)
			if m, ok := j.improve(txn, g, worth, cost); ok {
				plan = append(plan, m)
			}
		}
	})
	return plan
}

// movables lists grants on the emptiest machines first, small ones first, in a fixed order.
func (f *Fleet) movables(movable func(*Grant) (float64, bool)) (out []*Grant) {
	for _, g := range f.grants {
		if _, ok := movable(g); ok {
			out = append(out, g)
		}
	}
	used := func(n int) (sum int64) {
		for _, c := range f.FreeCards(n) {
			sum += 1000 - int64(c)
		}
		return sum
	}
	slices.SortFunc(out, func(a, b *Grant) int {
		return cmp.Or(cmp.Compare(used(a.Node), used(b.Node)), cmp.Compare(a.Node, b.Node),
			cmp.Compare(a.Request.Compute(), b.Request.Compute()), cmp.Compare(a.Request.ID, b.Request.ID))
	})
	return out
}

// improve moves one grant within the transaction if that gains; else it leaves it where it is.
func (j *judge) improve(txn *Txn, g *Grant, worth Worth, cost float64) (Move, bool) {
	f, home := j.f, g.Node
	before := worth(f, home)
	if txn.Release(g.Request.ID) != nil {
		return Move{}, false
	}
	freed := worth(f, home) - before
	best, score, gain := -1, impossible, 0.0
	var cards Cards
	for n := range f.Nodes() {
		if n == home || f.ineligible(g.Request, n) != Fits {
			continue
		}
		s, c := j.rate(g.Request, n)
		if s <= score {
			continue
		}
		was := worth(f, n)
		net := 0.0
		f.WhatIf(func(try *Txn) {
			if try.Grant(f.placement(g.Request, n, c)) == nil {
				net = freed + worth(f, n) - was - cost
			}
		})
		if net > 1e-9 {
			best, score, gain, cards = n, s, net, c
		}
	}
	if best >= 0 {
		to := f.placement(g.Request, best, cards)
		if txn.Grant(to) == nil {
			return Move{g.Request.ID, g.Placement, to, gain}, true
		}
	}
	if err := txn.Grant(g.Placement); err != nil {
		panic("alloc: a grant no longer fits where it was: " + err.Error()) // cannot happen: it was just released
	}
	return Move{}, false
}
