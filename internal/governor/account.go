package governor

import "time"

// account is what a tenant with a hard share is owed. It is settled at the end of
// each of its slots, over the time since the end of the one before, so that it
// does not depend on where in the cycle the tenant's slot lies.
type account struct {
	inRing   bool
	debt     int64         // ns × 1000 owed to the tenant; negative if it had too much
	mark     time.Duration // when it was last settled
	lostMark time.Duration // rota.lost at that time
}

// want is how long a tenant's next slot is to be. On a full card a debt to all in
// proportion cannot be repaid and would only lengthen the cycle: it is left out.
func (g *Governor) want(t *tenant) time.Duration {
	debt := t.debt
	if g.remainder <= remainderNone {
		debt -= g.excess * int64(t.share) / int64(Card-g.remainder)
	}
	return max(0, part(g.period(), int64(t.share), int64(Card))+time.Duration(debt/int64(Card)))
}

// settle credits a tenant's share of the time since the last settlement, debits
// what it got, and bounds the difference, so that what a long stall took or gave
// is not repaid for ever.
//
// Time lost by switching is no tenant's: when the card is full everybody bears it
// in proportion. Otherwise the idle remainder or those who share it bear it, these
// up to half of what they have.
func (g *Governor) settle(t *tenant, at, got time.Duration) {
	elapsed := at - t.mark
	lost := g.lost - t.lostMark
	if g.sharing > 0 {
		lost += part(elapsed, int64(g.remainder), 2*int64(Card))
	}
	promised := int64(Card - g.remainder)
	owed := int64(t.share) * int64(elapsed)
	if promised > 0 {
		owed = min(owed, int64(t.share)*int64(max(0, elapsed-lost))*int64(Card)/promised)
	}
	bound := int64(max(part(g.period(), int64(t.share), int64(Card)), g.period()/2)) * int64(Card)
	t.debt = min(max(t.debt+owed-int64(got)*int64(Card), -bound), bound)
	t.mark, t.lostMark = at, g.lost
	g.excess = 0
	for _, o := range g.ring {
		g.excess += o.debt
	}
	g.excess = max(g.excess, 0)
}

// times returns when the leaving tenant could do its last work and when the
// entering one its first. When one of them is idle both times may overlap: each
// account holds what its tenant could use.
func (h *handover) times(hw Hardware) (stop, start time.Duration) {
	stop = h.thawAt
	if h.freezes {
		stop = h.freezeAt + hw.FreezeLag
	}
	start = stop
	if h.thaws {
		start = h.thawAt + hw.ThawLag
	}
	if h.contested {
		start = max(start, stop+hw.SwitchCost)
	}
	return stop, start
}

// closeHandover settles the tenant that left in the last handover.
func (g *Governor) closeHandover() {
	h := &g.hand
	if h.from == nil || g.cur == nil {
		return
	}
	stop, start := h.times(g.cfg.Hardware)
	if h.freezes && h.thaws {
		g.lost += max(0, start-stop)
	}
	if h.thaws && !h.told {
		g.cur.thawCost = 0 // no reports, no telling: be certain instead
	}
	h.from.ran = h.contested
	if h.from != g.rest && h.from.inRing {
		g.settle(h.from, stop, stop-h.fromStart)
	}
	h.from = nil
}

// choose returns the index of the slot that follows at a time, and whether a new
// cycle begins with it. Slots too short to be worth it are passed over; the time
// stays on the account.
func (g *Governor) choose(at time.Duration) (next int, wrapped bool) {
	n, cycleStart := len(g.ring), g.cycleStart
	best := g.idx
	for k := 1; k <= n; k++ {
		i := (g.idx + k) % n
		if i == 0 {
			wrapped, cycleStart = true, at
		}
		t := g.ring[i]
		if t == g.rest {
			if cycleStart+g.period()-at >= g.slotFloor() {
				return i, wrapped
			}
			continue
		}
		if g.want(t) >= g.slotFloor() {
			return i, wrapped
		}
		if b := g.ring[best]; b == g.rest || g.want(t) > g.want(b) {
			best = i
		}
	}
	return best, true
}

// planEnd sets when the present slot is to end: so early that the lags of the
// calls at its end make it last what its owner is owed.
func (g *Governor) planEnd() {
	hw := g.cfg.Hardware
	if g.cur == g.rest {
		g.end = g.cycleStart + g.period() - hw.ThawLag - time.Duration(g.sharing)*hw.FreezeCost
	} else {
		g.end = g.start + g.want(g.cur) - hw.FreezeLag
		next, _ := g.choose(g.end)
		to := g.ring[next]
		switch {
		case to == g.cur || g.freezeFirst(g.cur, to):
		case to == g.rest:
			g.end -= time.Duration(g.sharing) * hw.ThawCost
		default:
			g.end -= hw.ThawCost
		}
	}
	g.end = max(g.end, g.hand.ready, g.now+sliceFloor)
}
