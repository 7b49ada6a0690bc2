package agent

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Promise is a grant as the ledger remembers it.
type Promise struct {
	ID      string          `json:"id"`
	UID     uint32          `json:"uid"`
	PID     int             `json:"pid"`
	Request Request         `json:"request"`
	Cards   []int           `json:"cards"`  // indexes
	Memory  int64           `json:"memory"` // bytes on each card, 0 without a limit
	Tenant  governor.Tenant `json:"tenant"`
	Since   time.Time       `json:"since"`
}

// Slot is one card with what may be promised of it.
type Slot struct {
	Info    kernel.CardInfo
	Reserve int64           // kept back from promises
	Config  governor.Config // in force; its policy counts while there are tenants
}

// Ledger is what has been promised of which card. It is pure: Admit changes
// nothing, Commit makes it so.
type Ledger struct {
	slots    []Slot
	promises []Promise // in the order they were made
	base     governor.Config
}

// NewLedger returns the ledger of cards that nobody was promised yet. base
// holds the settings that tenants cannot choose.
func NewLedger(slots []Slot, base governor.Config) *Ledger {
	for i := range slots {
		slots[i].Config = base
	}
	return &Ledger{slots: slots, base: base}
}

// maxCardsPerGrant is what the engine can attach one listener to.
const maxCardsPerGrant = 1

// Refusal says why a request does not fit, and what would.
type Refusal struct {
	Reason  string         `json:"reason"`            // one line
	Card    int            `json:"card"`              // the nearest to fitting
	Free    int64          `json:"free"`              // bytes that can still be promised there
	Compute governor.Milli `json:"compute,omitempty"` // share that would fit, when compute was the matter
}

func (r *Refusal) Error() string { return r.Reason }

// Admission is a request that fits: what it will be promised and how its cards
// will be governed then.
type Admission struct {
	Promise
	Configs map[int]governor.Config // by card; only where it changes
}

// Admit says whether the request fits beside what was promised. The error is a
// *Refusal, or says that the request itself is wrong.
func (l *Ledger) Admit(id string, uid uint32, r Request) (Admission, error) {
	if err := r.Validate(); err != nil {
		return Admission{}, err
	}
	sets, err := l.choices(r.Cards)
	if err != nil {
		return Admission{}, err
	}
	var best *Refusal
	for _, set := range sets {
		a, err := l.admitOn(set, id, uid, r)
		var refusal *Refusal
		switch {
		case err == nil:
			return a, nil
		case !errors.As(err, &refusal):
			return Admission{}, err
		case best == nil || refusal.Free > best.Free:
			best = refusal
		}
	}
	return Admission{}, best
}

// Commit records an admission. The caller has held its lock since Admit.
func (l *Ledger) Commit(a Admission) {
	for i, cfg := range a.Configs {
		l.slots[i].Config = cfg
	}
	l.Release(a.ID)
	l.promises = append(l.promises, a.Promise)
}

// Restore records a promise that an earlier worker made, even if it would not
// be made again: its tenant is running.
func (l *Ledger) Restore(p Promise) (Admission, error) {
	if slices.ContainsFunc(p.Cards, func(i int) bool { return i < 0 || i >= len(l.slots) }) {
		return Admission{}, fmt.Errorf("grant %s: its cards %v are not here", p.ID, p.Cards)
	}
	a, err := l.admitOn(p.Cards, p.ID, p.UID, p.Request)
	if err != nil {
		a.Configs = nil
	}
	a.Promise = p
	l.Commit(a)
	return a, nil
}

// Release forgets a promise; false when there was none.
func (l *Ledger) Release(id string) bool {
	n := len(l.promises)
	l.promises = slices.DeleteFunc(l.promises, func(p Promise) bool { return p.ID == id })
	return len(l.promises) < n
}

// Promises lists what was promised on one card, or on all when card < 0.
func (l *Ledger) Promises(card int) []Promise {
	if card < 0 {
		return slices.Clone(l.promises)
	}
	var out []Promise
	for _, p := range l.promises {
		if slices.Contains(p.Cards, card) {
			out = append(out, p)
		}
	}
	return out
}

// Config is how a card is governed now.
func (l *Ledger) Config(card int) governor.Config { return l.slots[card].Config }

// Free is how much memory of a card can still be promised; 0 when somebody
// there has no limit.
func (l *Ledger) Free(card int) int64 {
	s := l.slots[card]
	free := s.Info.TotalBytes - s.Reserve
	for _, p := range l.Promises(card) {
		if p.Memory == 0 {
			return 0
		}
		free -= p.Memory
	}
	return max(free, 0)
}

// choices lists the sets of cards to try, best first: the named ones, or each
// single card, those with the most free memory first.
func (l *Ledger) choices(names []string) ([][]int, error) {
	if len(l.slots) == 0 {
		return nil, &Refusal{Reason: "no card is usable here; penstock doctor says more"}
	}
	if len(names) == 0 {
		var sets [][]int
		for i := range l.slots {
			sets = append(sets, []int{i})
		}
		slices.SortStableFunc(sets, func(a, b []int) int {
			return int(min(1, max(-1, l.Free(b[0])-l.Free(a[0]))))
		})
		return sets, nil
	}
	var set []int
	for _, name := range names {
		found, err := l.find(name)
		if err != nil {
			return nil, err
		}
		set = append(set, found...)
	}
	slices.Sort(set)
	if set = slices.Compact(set); len(set) > maxCardsPerGrant {
		return nil, fmt.Errorf("%d cards for one program: a grant is of one card for now; run one process on each", len(set))
	}
	return [][]int{set}, nil
}

func (l *Ledger) find(name string) ([]int, error) {
	var all []int
	var known []string
	for i, s := range l.slots {
		if name == strconv.Itoa(s.Info.Index) || strings.EqualFold(name, s.Info.UUID) {
			return []int{i}, nil
		}
		all = append(all, i)
		known = append(known, fmt.Sprintf("%d (%s)", s.Info.Index, s.Info.UUID))
	}
	if name == "all" {
		return all, nil
	}
	return nil, fmt.Errorf("no card %q: there are %s", name, strings.Join(known, ", "))
}

// admitOn judges one set of cards.
func (l *Ledger) admitOn(set []int, id string, uid uint32, r Request) (Admission, error) {
	a := Admission{Configs: map[int]governor.Config{}}
	a.Promise = Promise{ID: id, UID: uid, Request: r, Cards: set, Tenant: r.tenant(id)}
	for _, i := range set {
		want, err := l.admitMemory(i, r)
		if err != nil {
			return a, err
		}
		if a.Memory == 0 || want < a.Memory {
			a.Memory = want // of unequal cards, a percentage means the smallest
		}
		cfg, err := l.admitCompute(i, &a.Tenant, r)
		if err != nil {
			return a, err
		}
		if cfg != l.slots[i].Config {
			a.Configs[i] = cfg
		}
	}
	return a, nil
}

// admitMemory says how much of a card the request is promised.
func (l *Ledger) admitMemory(i int, r Request) (int64, error) {
	s, here, free := l.slots[i], l.Promises(i), l.Free(i)
	refuse := func(format string, args ...any) error {
		return &Refusal{Card: i, Free: free, Reason: fmt.Sprintf("card %d: ", s.Info.Index) + fmt.Sprintf(format, args...)}
	}
	want := r.Memory.Of(s.Info.TotalBytes)
	for _, p := range here {
		if p.Memory == 0 && want > 0 {
			return 0, refuse("a memory limit cannot be kept beside %s, which runs without one; start it with --mem", p.label())
		}
	}
	switch limited := slices.ContainsFunc(here, func(p Promise) bool { return p.Memory > 0 }); {
	case want == 0 && limited && free > 0:
		return 0, refuse("its tenants have memory limits, so this one needs one too: add --mem, up to %s is free", floorSize(free))
	case want == 0 && limited:
		return 0, refuse("its tenants have memory limits and hold all of it: nothing is free")
	case want > free && free > 0:
		return 0, refuse("%s of memory does not fit: %s of %s is free; --mem %s would fit",
			Size(want), Size(free), Size(s.Info.TotalBytes), floorSize(free))
	case want > free:
		return 0, refuse("%s of memory does not fit: %d tenants hold all of it, nothing is free", Size(want), len(here))
	}
	return want, nil
}

// admitCompute says how the card would be governed with the tenant on it, by
// asking a governor that has the same tenants. It gives the tenant an explicit
// share where a policy derives it from the weight.
func (l *Ledger) admitCompute(i int, t *governor.Tenant, r Request) (governor.Config, error) {
	s, here := l.slots[i], l.Promises(i)
	refuse := func(free governor.Milli, format string, args ...any) error {
		return &Refusal{Card: i, Free: l.Free(i), Compute: free,
			Reason: fmt.Sprintf("card %d: ", s.Info.Index) + fmt.Sprintf(format, args...)}
	}
	cfg := s.Config
	if len(here) == 0 {
		cfg = l.base
	}
	policy, err := combine(cfg.Policy, here, r)
	if err != nil {
		return cfg, refuse(0, "%v", err)
	}
	cfg.Policy = policy
	switch {
	case r.Cycle == 0:
	case len(here) > 0 && cfg.Cycle != r.Cycle:
		return cfg, refuse(0, "its cycle is %v while it has tenants: leave --cycle out", cfg.Cycle)
	default:
		cfg.Cycle = r.Cycle
	}
	if policy == governor.Fixed && t.Share == 0 {
		t.Share = max(1, governor.Card*governor.Milli(r.Weight)/governor.Milli(cfg.MaxInst))
	}
	g, err := governor.New(cfg)
	if err != nil {
		return cfg, err
	}
	for _, p := range here {
		if err := g.Put(p.Tenant); err != nil {
			return cfg, refuse(0, "policy %v does not fit the tenants already there: %v", policy, err)
		}
	}
	err = g.Put(*t)
	var full *governor.FullError
	if errors.As(err, &full) {
		return cfg, refuse(full.Free, "%s", full.Reason)
	}
	return cfg, err
}

// combine finds the policy that serves those who are there and the newcomer:
// the first tenant's, except that fixed shares and tenants that asked for
// none of their own live together under mixed.
func combine(now governor.Policy, here []Promise, r Request) (governor.Policy, error) {
	want, asks := r.wants()
	indifferent := !slices.ContainsFunc(here, func(p Promise) bool { _, asks := p.Request.wants(); return asks })
	try := now
	switch {
	case len(here) == 0:
		try = want
	case !asks && now == governor.Fixed:
		try = governor.Mixed
	case !asks || want == now:
	case indifferent && want == governor.Fixed:
		try = governor.Mixed
	case indifferent:
		try = want
	case r.Policy == nil && now != governor.Fixed && r.fits(now) == nil:
		// what it asks for has a meaning under the card's policy
	case r.Policy == nil && now == governor.Fixed && want != governor.Fixed:
		try = governor.Mixed
	case now == governor.Fixed && want == governor.Mixed, now == governor.Mixed && want == governor.Fixed:
		try = governor.Mixed
	default:
		return now, fmt.Errorf("it is shared by policy %v and this tenant wants %v: leave --policy out or wait until it is empty", now, want)
	}
	if err := r.fits(try); err != nil && asks {
		return now, fmt.Errorf("it is shared by policy %v: %w", try, err)
	}
	return try, nil
}

// label names a tenant for people.
func (p Promise) label() string {
	if p.Request.Name != "" {
		return fmt.Sprintf("%q (%s)", p.Request.Name, p.ID)
	}
	return p.ID
}
