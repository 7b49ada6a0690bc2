package governor

import "time"

// State is a snapshot for showing, as of the last Step.
type State struct {
	Policy Policy
	// Slots says whether slots are in use; if not, slices alone share the card.
	Slots bool
	// Cycle is the length of the cycle in force.
	Cycle   time.Duration
	Tenants []TenantState // in the order they came
}

// TenantState is one tenant in a State.
type TenantState struct {
	ID TenantID
	// Target is the share of the card it gets while all others have work.
	Target Milli
	// Hard says that it gets no more than Target in any case.
	Hard bool
	// Slot is the number of its slot in the cycle, or −1 if it has none.
	Slot int
	// Groups is how many TSGs it has.
	Groups int
	// Use is what SetBusy told.
	Use Use
	// Frozen says that it may not run now.
	Frozen bool
	// FrozenFor and ThawedFor are totals since it came.
	FrozenFor, ThawedFor time.Duration
	// Debt is the time it is owed and will be repaid; negative if it had too much.
	Debt time.Duration
}

// Snapshot returns the state of the card.
func (g *Governor) Snapshot() State {
	g.refresh()
	s := State{Policy: g.cfg.Policy, Slots: !g.open, Cycle: g.period()}
	for _, t := range g.tenants {
		ts := TenantState{
			ID: t.ID, Target: g.target(t), Hard: t.hard, Slot: -1, Groups: len(t.groups),
			Use: t.hint, Frozen: t.frozen, FrozenFor: t.frozenNs, ThawedFor: t.thawedNs,
			Debt: time.Duration(t.debt / int64(Card)),
		}
		if t.frozen {
			ts.FrozenFor += g.now - t.since
		} else {
			ts.ThawedFor += g.now - t.since
		}
		for i, owner := range g.ring {
			if !g.open && (owner == t || owner == g.rest && !t.hard) {
				ts.Slot = i
			}
		}
		s.Tenants = append(s.Tenants, ts)
	}
	return s
}

// target is a tenant's share of the card while all tenants have work. Classes of
// priority count as they do for slices.
func (g *Governor) target(t *tenant) Milli {
	if t.hard {
		return t.share
	}
	left := int64(Card)
	on := make([]sharer, 0, len(g.tenants))
	for _, o := range g.tenants {
		if o.hard {
			left -= int64(o.share)
		} else {
			on = append(on, sharer{tenant: o, active: 1})
		}
	}
	shareByClass(g.cfg, on, g.cfg.Cycle)
	var all, mine time.Duration
	for _, s := range on {
		all += s.work
		if s.tenant == t {
			mine = s.work
		}
	}
	if all == 0 {
		return 0
	}
	return Milli((left*int64(mine) + int64(all)/2) / int64(all))
}

// setFrozen notes a freeze or thaw at a time.
func (t *tenant) setFrozen(frozen bool, at time.Duration) {
	if t.frozen == frozen {
		return
	}
	if t.frozen {
		t.frozenNs += at - t.since
	} else {
		t.thawedNs += at - t.since
	}
	t.frozen, t.since = frozen, at
}
