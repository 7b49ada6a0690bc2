package alloc

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Cards is an ordered choice of cards of one machine: Cards[i] serves the i-th share of the request.
type Cards struct {
	n  uint8
	at [MaxCards]uint8
}

// Len is the number of cards chosen.
func (c *Cards) Len() int { return int(c.n) }

// At is the index, in its machine, of the i-th card.
func (c *Cards) At(i int) int { return int(c.at[i]) }

func (c *Cards) add(card int) { c.at[c.n] = uint8(card); c.n++ }

// List returns the chosen indexes.
func (c *Cards) List() []int {
	out := make([]int, c.n)
	for i := range out {
		out[i] = int(c.at[i])
	}
	return out
}

// Placement is where a request may go. It holds nothing until a transaction grants it; from then on the request must
// not change.
type Placement struct {
	Request *Request
	Node    int
	Cards   Cards
	Start   uint8 // first memory slice of a MIG instance
}

// Grant is a placement that holds its resources.
type Grant struct{ Placement }

// Txn changes a fleet and can take every change back. Changes are visible in the fleet at once (that is what
// makes a what-if run the production code); Undo restores every amount and grant exactly, newest first.
type Txn struct {
	f    *Fleet
	done []change
	open bool
}

// change is one step of a transaction: a grant, or a release of one.
type change struct {
	grant   *Grant
	release bool
}

// Begin opens a transaction. Transactions nest when the inner one ends first.
func (f *Fleet) Begin() *Txn { return &Txn{f: f, open: true} }

// Grant takes the placement's resources. It fails, changing nothing, when they are no longer free or the
// request already holds a grant.
func (t *Txn) Grant(p Placement) error {
	if err := t.f.check(&p); err != nil {
		return err
	}
	g := &Grant{p}
	t.f.apply(g, 1)
	t.f.grants[p.Request.ID] = g
	t.done = append(t.done, change{grant: g})
	return nil
}

// Release returns what the request with that ID holds. It fails when there is no such grant.
func (t *Txn) Release(id string) error {
	g, ok := t.f.grants[id]
	if !ok {
		return fmt.Errorf("release %q: no such grant", id)
	}
	t.f.apply(g, -1)
	delete(t.f.grants, id)
	t.done = append(t.done, change{grant: g, release: true})
	return nil
}

// Commit keeps the changes and ends the transaction.
func (t *Txn) Commit() { t.done, t.open = nil, false }

// Undo takes the changes back and ends the transaction. After Commit it does nothing.
func (t *Txn) Undo() {
	if !t.open {
		return
	}
	for i := len(t.done) - 1; i >= 0; i-- {
		c := t.done[i]
		if c.release {
			t.f.apply(c.grant, 1)
			t.f.grants[c.grant.Request.ID] = c.grant
		} else {
			t.f.apply(c.grant, -1)
			delete(t.f.grants, c.grant.Request.ID)
		}
	}
	t.Commit()
}

// WhatIf runs fn on the fleet and takes back everything it did.
func (f *Fleet) WhatIf(fn func(*Txn)) {
	t := f.Begin()
	defer t.Undo()
	fn(t)
}

// check proves that a placement fits now.
func (f *Fleet) check(p *Placement) error {
	r := p.Request
	if _, held := f.grants[r.ID]; held {
		return fmt.Errorf("grant %q: it already holds a grant", r.ID)
	}
	if r.Class >= classCount || r.Mode >= modeCount {
		return fmt.Errorf("grant %q: class %v and mode %v: expected known ones", r.ID, r.Class, r.Mode)
	}
	if p.Node < 0 || p.Node >= f.Nodes() || p.Cards.Len() != r.cards() {
		return fmt.Errorf("grant %q: node %d with %d cards is no placement of it", r.ID, p.Node, p.Cards.Len())
	}
	if why := f.refuseNode(r, p.Node); why.Code != Fits {
		return fmt.Errorf("grant %q on %s: %v", r.ID, f.names[p.Node], why)
	}
	seen := uint32(0)
	for i := range p.Cards.Len() {
		card := p.Cards.At(i)
		if card >= int(f.offset[p.Node+1]-f.offset[p.Node]) || seen&(1<<card) != 0 {
			return fmt.Errorf("grant %q on %s: card %d is absent or named twice", r.ID, f.names[p.Node], card)
		}
		seen |= 1 << card
		if r.MIG != "" {
			if !f.migFits(r.MIG, int(f.offset[p.Node])+card, p.Start) {
				return fmt.Errorf("grant %q on %s: card %d: %v", r.ID, f.names[p.Node], card, LackMIG)
			}
			continue
		}
		if why := f.refuseCard(r.share(i), r.Mode, p.Node, card); why.Code != Fits {
			return fmt.Errorf("grant %q on %s: %v", r.ID, f.names[p.Node], why)
		}
	}
	return nil
}

// apply takes (sign 1) or returns (sign -1) what a grant holds.
func (f *Fleet) apply(g *Grant, sign int32) {
	r, n := g.Request, g.Node
	f.cpu[n] -= r.CPU * gpu.Milli(sign)
	f.memory[n] -= r.Memory * gpu.Bytes(sign)
	f.kinds[n][r.tally()] += uint16(sign)
	for i := range g.Cards.Len() {
		d := int(f.offset[n]) + g.Cards.At(i)
		f.tenants[d] += uint16(sign)
		f.classes[d][r.Class] += uint16(sign)
		s := r.share(i)
		switch r.Mode {
		case TimeSharing: // the first in takes the card, the last out returns it
			before := f.turns[d]
			f.turns[d] += uint8(sign)
			if before != 0 && f.turns[d] != 0 {
				continue
			}
			s = Share{Compute: gpu.Card}
		case Exclusive:
			f.sealed[d] += uint8(sign)
			s.Compute = gpu.Card
		}
		if r.MIG != "" {
			s = f.migTake(r.MIG, d, g.Start)
		}
		if s.Whole() {
			s.Compute, s.Memory = gpu.Card, f.vramCap[d]
		}
		f.take(d, s, sign)
	}
	f.touch(n)
}

// take subtracts a share from a card's free amounts, or adds it back.
func (f *Fleet) take(d int, s Share, sign int32) {
	f.compute[d] -= s.Compute * gpu.Milli(sign)
	f.codec[d] -= s.Codec * gpu.Milli(sign)
	f.render[d] -= s.Render * gpu.Milli(sign)
	f.vram[d] -= s.Memory * gpu.Bytes(sign)
	f.total -= int64(s.Compute) * int64(sign)
}

// tally is the request's slot in a kindTally.
func (r *Request) tally() int {
	n := r.cards()
	switch {
	case n == 0:
		return 0
	case n == 1 && !r.share(0).Whole():
		return 1
	}
	return 1 + n
}
