package governor

import "time"

const (
	// remainderNone: a remainder of at most this is what rounding leaves, as of
	// three thirds; it does not lengthen the cycle.
	remainderNone Milli = 3
	// probeEvery: one of so many slots of a tenant begins with the card idle, to
	// learn how long its thaw takes then.
	probeEvery = 64
)

// rota is the state of the slots.
type rota struct {
	open      bool      // no slots are needed: everybody may run
	ring      []*tenant // owners of slots in order; rest is last
	slots     int       // how many of them have a part of the cycle
	remainder Milli     // what the hard shares in the ring leave
	sharing   int       // tenants with groups that share the remainder
	rest      *tenant   // stands for those who share, or for nobody

	synced     bool // the last Step has acted on the present ring
	idx        int  // of the slot's owner in ring
	cur        *tenant
	start      time.Duration // of the owner's first work in this slot
	cycleStart time.Duration
	end        time.Duration // when Step is due
	lost       time.Duration // by switching between hard tenants, since ever
	excess     int64         // sum of the debts in the ring, if positive; as account.debt
	hand       handover      // into this slot
}

// handover is the change from one slot's owner to the next. Its times are
// planned ones until Done reports the real ones.
type handover struct {
	from        *tenant       // nil: nobody
	fromStart   time.Duration // of its first work
	freezes     bool          // there are calls to freeze it
	thaws       bool          // there are calls to thaw the next one
	freezeFirst bool
	contested   bool          // from runs until it is frozen and the next one has work
	told        bool          // the thaw was reported
	freezeAt    time.Duration // start of the (last) freeze call
	thawAt      time.Duration // start of the (first) thaw call
	ready       time.Duration // end of the last call
}

// refresh derives the ring from the tenants. It needs no time.
func (g *Governor) refresh() {
	if !g.changed {
		return
	}
	g.changed, g.synced, g.resized = false, false, true
	g.ring, g.remainder, g.sharing = g.ring[:0], Card, 0
	allBusy := true
	for _, t := range g.tenants {
		slot := t.hard && t.share < Card && len(t.groups) > 0
		if slot {
			g.ring = append(g.ring, t)
			g.remainder -= t.share
		} else if !t.hard && len(t.groups) > 0 {
			g.sharing++
		}
		if slot && !t.inRing {
			t.account = account{mark: g.now, lostMark: g.lost}
		}
		t.inRing = slot
		allBusy = allBusy && (len(t.groups) == 0 || t.hint == Busy)
	}
	full := g.remainder <= remainderNone || g.sharing > 0
	g.open = len(g.ring) == 0 || full && allBusy
	g.slots = len(g.ring)
	if len(g.ring) > 0 {
		g.ring = append(g.ring, g.rest)
		if g.remainder > remainderNone || g.sharing > 0 {
			g.slots++
		}
	}
	if g.open {
		for _, t := range g.ring {
			t.inRing = false // accounts start anew when slots come back
		}
	}
}

// period is the length of the cycle in force.
func (g *Governor) period() time.Duration {
	if g.open {
		return g.cfg.Cycle
	}
	slots := min(max(g.slots, 2), 2*cycleCapTimes)
	return g.cfg.Cycle / 2 * time.Duration(slots)
}

// slotFloor is the shortest slot worth the calls that make it.
func (g *Governor) slotFloor() time.Duration {
	return 2 * (g.cfg.Hardware.FreezeCost + g.cfg.Hardware.ThawCost)
}

// mayRun says whether a tenant is to be thawed in the present slot.
func (g *Governor) mayRun(t *tenant) bool {
	switch {
	case t.hard && t.share >= Card:
		return true
	case t.hard && len(t.groups) == 0:
		return false // its first group waits for its slot
	case g.open:
		return true
	case t.hard:
		return g.cur == t
	default:
		return g.cur == g.rest
	}
}

// Step is to be called at the time it last returned, after every change of
// tenants or groups, and whenever else one likes. It returns the calls to make
// now, in order, and when it is next due. A late call is repaid in later slots;
// a time that goes backward counts as the latest one seen.
func (g *Governor) Step(now time.Duration) (acts []Action, next time.Duration) {
	g.now = max(g.now, now)
	g.refresh()
	if !g.synced {
		acts = g.sync()
	}
	if !g.open && g.now >= g.end {
		acts = append(acts, g.advance()...)
	}
	return acts, g.end
}

// Next is when Step is due. It may move after Done, SetBusy and other news.
func (g *Governor) Next() time.Duration {
	if g.changed || !g.synced {
		return g.now
	}
	return g.end
}

// Done reports when a call that Step asked for was really made. It is optional
// and sharpens the accounts: without it calls are taken to follow each other at
// once and to last what the configuration says.
func (g *Governor) Done(a Action, start, end time.Duration) {
	t := g.byID[a.Tenant]
	if t == nil || g.open || g.cur == nil || end < start {
		return
	}
	h := &g.hand
	switch {
	case a.Kind == Thaw && t.frozen, a.Kind == Freeze && !t.frozen:
		return // of an earlier slot
	case a.Kind == Thaw && h.thaws && (t == g.cur || g.cur == g.rest):
		h.thawAt = start
		g.noteThaw(t, end-start)
	case a.Kind == Freeze && h.freezes && (t == h.from || h.from == g.rest):
		h.freezeAt = start
	default:
		return
	}
	h.ready = max(h.ready, end)
	_, g.start = h.times(g.cfg.Hardware)
	g.planEnd()
}

// noteThaw learns how long a tenant's thaw takes while nobody runs, and tells from
// a longer one that the tenant that is about to be frozen is running.
func (g *Governor) noteThaw(t *tenant, took time.Duration) {
	h, extra := &g.hand, g.cfg.Hardware.ContestedThaw
	h.told = true
	switch {
	case h.freezeFirst || !h.freezes:
		if t.thawCost == 0 {
			t.thawCost = took
		}
		t.thawCost += (took - t.thawCost) / 4
	case t == g.cur && h.from != nil && h.from.hint == Unknown:
		h.contested = took > t.thawCost+extra/2
	}
}

// sync acts on a changed ring: the owner of the slot keeps it if it still has
// one, else the next one's slot begins.
func (g *Governor) sync() (acts []Action) {
	g.synced = true
	if g.open {
		g.closeHandover()
		g.cur, g.end = nil, Never
		return g.actOn(nil, Thaw, g.now)
	}
	for i, t := range g.ring {
		if t == g.cur {
			g.idx = i
			acts = g.actOn(g.actOn(nil, Thaw, g.now), Freeze, g.now)
			g.hand.ready = max(g.hand.ready, g.now+g.callTime(acts))
			g.planEnd()
			return acts
		}
	}
	g.closeHandover()
	g.hand = handover{}
	g.cur = nil
	g.idx = (g.idx + len(g.ring) - 1) % len(g.ring) // the one before whose turn it is
	g.end = g.now
	return nil // Step goes on to advance
}

// advance ends the slot and begins the next one.
func (g *Governor) advance() []Action {
	g.closeHandover()
	next, wrapped := g.choose(g.now)
	for i := (g.idx + 1) % len(g.ring); i != next; i = (i + 1) % len(g.ring) {
		if t := g.ring[i]; t != g.rest && t != g.cur {
			g.settle(t, g.now, 0) // too little to be worth a slot: kept for later
		}
	}
	from, to := g.cur, g.ring[next]
	g.idx = next
	if from == to {
		if to != g.rest {
			g.settle(to, g.now, g.now-g.start)
		}
		g.start = g.now
		g.hand = handover{}
		if wrapped {
			g.cycleStart = g.now
		}
		g.planEnd()
		return nil
	}
	return g.handOver(from, to, wrapped)
}

// handOver makes to the owner of the slot and returns the calls that do it.
func (g *Governor) handOver(from, to *tenant, wrapped bool) (acts []Action) {
	due := min(g.end, g.now)
	h := handover{from: from, fromStart: g.start, freezeFirst: g.freezeFirst(from, to)}
	if from != nil && to != g.rest && !h.freezeFirst {
		h.contested = from.hint == Busy || from.hint == Unknown && from.ran
	}
	g.cur = to
	to.entries++
	first, second := Thaw, Freeze
	if h.freezeFirst {
		first, second = Freeze, Thaw
	}
	acts = g.actOn(acts, first, due)
	n := len(acts)
	acts = g.actOn(acts, second, due)
	h.thawAt, h.freezeAt = g.now, g.now
	mid := g.now + g.callTime(acts[:n])
	if h.freezeFirst {
		h.thawAt = mid
	} else {
		h.freezeAt = mid
	}
	for _, a := range acts {
		h.freezes = h.freezes || a.Kind == Freeze
		h.thaws = h.thaws || a.Kind == Thaw
	}
	h.contested = h.contested && h.freezes && h.thaws
	h.ready = g.now + g.callTime(acts)
	g.hand = h
	_, g.start = h.times(g.cfg.Hardware)
	if wrapped {
		g.cycleStart = g.start
	}
	g.planEnd()
	return acts
}

// freezeFirst says in which order the calls of a handover are made.
//
// Thawing first is cheap, for the leaving tenant runs on until it is frozen; but
// if it happens to be idle the entering one gets that time as a present. So this
// order is for when one can tell which, and for when those who enter only share
// what is left. Otherwise the card idles for the length of a thaw, and the slot
// begins at a certain time.
func (g *Governor) freezeFirst(from, to *tenant) bool {
	switch {
	case from == nil || to == g.rest:
		return false
	case from == g.rest:
		return true
	case from.hint != Unknown:
		return false
	}
	canTell := g.cfg.Hardware.ContestedThaw > 0 && to.thawCost > 0
	return !canTell || to.entries%probeEvery == 0
}

// actOn appends the freezes (or thaws) that the present slot needs.
func (g *Governor) actOn(acts []Action, k Kind, due time.Duration) []Action {
	for _, t := range g.tenants {
		if t.frozen == (k == Freeze) || g.mayRun(t) != (k == Thaw) {
			continue
		}
		t.setFrozen(k == Freeze, g.now)
		if len(t.groups) > 0 {
			acts = append(acts, Action{Tenant: t.ID, Kind: k, At: due})
		}
	}
	return acts
}

// callTime is how long calls take, one after the other.
func (g *Governor) callTime(acts []Action) (d time.Duration) {
	for _, a := range acts {
		if a.Kind == Freeze {
			d += g.cfg.Hardware.FreezeCost
		} else {
			d += g.cfg.Hardware.ThawCost
		}
	}
	return d
}

// Reset thaws everybody: to be called when the caller stops, and when it has lost
// sight of the card. The next Step begins anew.
func (g *Governor) Reset() (acts []Action) {
	for _, t := range g.tenants {
		if t.frozen {
			t.setFrozen(false, g.now)
			acts = append(acts, Action{Tenant: t.ID, Kind: Thaw, At: g.now})
		}
	}
	g.cur, g.hand, g.end = nil, handover{}, g.now
	g.synced = false
	return acts
}
