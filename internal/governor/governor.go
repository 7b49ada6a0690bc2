package governor

import (
	"fmt"
	"math"
	"time"
)

// Never is the time Step returns when nothing will be due.
const Never = time.Duration(math.MaxInt64)

// TenantID names a tenant: whoever has been granted a share of the card.
type TenantID string

// GroupID names one hardware time-slice group, or a bare set of channels.
type GroupID uint64

// Milli is thousandths of a card's compute.
type Milli int32

// Card is the whole card.
const Card Milli = 1000

// GroupFlag marks what is special about a group.
type GroupFlag uint8

// SlotOnly marks channels whose slice cannot be set (codec channels straight
// under a device): they are frozen and thawed with their tenant, nothing else.
const SlotOnly GroupFlag = 1

// Tenant is what was granted to one tenant.
type Tenant struct {
	ID TenantID
	// Share is the hard (Fixed, Mixed) or guaranteed (Burst) share.
	Share Milli
	// Weight counts among those who share; 0 means 1. Under Fixed without a
	// Share, Weight/MaxInst is the share.
	Weight int
	// Priority is the class among those who share; hard shares ignore it.
	Priority Priority
}

// Action is one call to make on a tenant's channels. Actions are to be executed
// in the order given; neighbours of the same Kind may be put into one call.
type Action struct {
	Tenant TenantID
	Kind   Kind
	// At is when the action was due; it is late when Step was called late.
	At time.Duration
}

// Slice is a time slice to set on a group.
type Slice struct {
	Group    GroupID
	Duration time.Duration // whole microseconds
}

// tenant is a Tenant with all that the governor knows about it.
type tenant struct {
	Tenant
	groups []*group

	hard   bool  // share is a hard cap
	share  Milli // hard, guaranteed, or zero
	weight int64 // among those who share
	hint   Use   // from SetBusy

	ran      bool          // it was running when last it left its slot
	thawCost time.Duration // of thaws while nobody else ran, averaged; 0: unknown
	entries  int           // how many slots it has had

	account
	frozen   bool
	since    time.Duration // of frozen
	frozenNs time.Duration // total before since
	thawedNs time.Duration
}

// group is one TSG.
type group struct {
	id       GroupID
	owner    *tenant
	engine   Engine
	slotOnly bool
	idle     bool

	sent, confirmed time.Duration // slice returned by Slices, and applied
}

// Governor governs one card. Make it with New.
type Governor struct {
	cfg     Config
	tenants []*tenant // in the order they came
	byID    map[TenantID]*tenant
	groups  map[GroupID]*group

	now     time.Duration // of the last Step
	changed bool          // somebody came, went or changed since refresh
	resized bool          // slices may have changed since Slices
	rota
}

// New returns a governor of an empty card.
func New(cfg Config) (*Governor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := &Governor{
		cfg:    cfg.withDefaults(),
		byID:   map[TenantID]*tenant{},
		groups: map[GroupID]*group{},
	}
	g.rest = &tenant{}
	g.open, g.synced, g.end = true, true, Never
	return g, nil
}

// Configure changes policy and settings of a card in use. If the tenants on it
// would not fit, it changes nothing and says who does not.
func (g *Governor) Configure(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	if err := admit(cfg, g.specs(nil)); err != nil {
		return fmt.Errorf("cannot change the card to %v: %w", cfg.Policy, err)
	}
	g.cfg = cfg
	g.rederive()
	return nil
}

// Config returns the settings in force, with defaults filled in.
func (g *Governor) Config() Config { return g.cfg }

// Put admits a tenant, or changes one that is there. A new tenant with a hard
// share starts frozen (see Frozen) until its first slot.
func (g *Governor) Put(t Tenant) error {
	if err := admit(g.cfg, g.specs(&t)); err != nil {
		return err
	}
	if have := g.byID[t.ID]; have != nil {
		have.Tenant = t
	} else {
		have = &tenant{Tenant: t, since: g.now, account: account{mark: g.now, lostMark: g.lost}}
		g.byID[t.ID] = have
		g.tenants = append(g.tenants, have)
		g.rederive()
		g.refresh()
		have.frozen = !g.mayRun(have)
		return nil
	}
	g.rederive()
	return nil
}

// specs returns the grants on the card with t put in (last, so that it is the one
// to blame when they do not fit).
func (g *Governor) specs(t *Tenant) []Tenant {
	out := make([]Tenant, 0, len(g.tenants)+1)
	for _, have := range g.tenants {
		if t == nil || have.ID != t.ID {
			out = append(out, have.Tenant)
		}
	}
	if t != nil {
		out = append(out, *t)
	}
	return out
}

// Remove forgets a tenant and its groups, at any instant. The others get its
// time from the next Step on; nothing needs to be done to the channels of the
// one who left.
func (g *Governor) Remove(id TenantID) {
	t := g.byID[id]
	if t == nil {
		return
	}
	for _, gr := range t.groups {
		delete(g.groups, gr.id)
	}
	delete(g.byID, id)
	for i, have := range g.tenants {
		if have == t {
			g.tenants = append(g.tenants[:i], g.tenants[i+1:]...)
			break
		}
	}
	g.rederive()
}

// AddGroup tells of a new TSG of a tenant. Its slice is in the next Slices, to
// be set before the group's first work; if Frozen says so its channels are to be
// disabled at creation.
func (g *Governor) AddGroup(id TenantID, gid GroupID, e Engine, flags ...GroupFlag) error {
	t := g.byID[id]
	switch {
	case t == nil:
		return fmt.Errorf("no tenant %q on this card", id)
	case e >= engineKinds:
		return fmt.Errorf("unknown engine %d", e)
	case g.groups[gid] != nil:
		return fmt.Errorf("group %d exists already, of tenant %q", gid, g.groups[gid].owner.ID)
	}
	gr := &group{id: gid, owner: t, engine: e}
	for _, f := range flags {
		gr.slotOnly = gr.slotOnly || f == SlotOnly
	}
	t.groups = append(t.groups, gr)
	g.groups[gid] = gr
	g.resized = true
	if len(t.groups) == 1 {
		g.changed = true
		g.refresh()
		t.setFrozen(!g.mayRun(t), g.now)
	}
	return nil
}

// RemoveGroup forgets a TSG.
func (g *Governor) RemoveGroup(gid GroupID) {
	gr := g.groups[gid]
	if gr == nil {
		return
	}
	delete(g.groups, gid)
	t := gr.owner
	for i, have := range t.groups {
		if have == gr {
			t.groups = append(t.groups[:i], t.groups[i+1:]...)
			break
		}
	}
	g.changed = g.changed || len(t.groups) == 0
	g.resized = true
}

// SetActive is an optional hint: a group seen idle gets no part of its tenant's
// time, so that a tenant with an idle second context still has its whole share.
// Groups are active until told otherwise.
func (g *Governor) SetActive(gid GroupID, active bool) {
	if gr := g.groups[gid]; gr != nil && gr.idle == active {
		gr.idle = !active
		g.resized = true
	}
}

// SetBusy is an optional hint about a tenant. While all tenants are known to be
// busy and the card is fully given away, slices alone hold the hard shares and
// nobody is frozen. Call it with Unknown as soon as it is not sure any more.
func (g *Governor) SetBusy(id TenantID, u Use) {
	if t := g.byID[id]; t != nil && t.hint != u {
		t.hint = u
		g.changed, g.resized = true, true
	}
}

// Frozen says whether a tenant's channels are to be disabled now: also those of
// a group that was just added.
func (g *Governor) Frozen(id TenantID) bool {
	t := g.byID[id]
	return t != nil && t.frozen
}

// rederive computes what the policy makes of each grant.
func (g *Governor) rederive() {
	for _, t := range g.tenants {
		t.hard, t.share, t.weight = derive(g.cfg, t.Tenant)
	}
	lendRemainder(g.cfg, g.tenants)
	g.changed, g.resized = true, true
}
