package agent

import (
	"os"
	"time"

	"github.com/penstock-gpu/penstock/internal/governor"
)

// rateWindow is the time over which Got is measured.
const rateWindow = 5 * time.Second

// rate remembers how long a tenant had been thawed, and how long its work had
// run, at earlier instants.
type rate struct {
	samples []sample
	work    map[int]time.Duration // engine time by process, kept when it ends
}

type sample struct {
	at           time.Time
	thawed, work time.Duration
}

// add takes a sample. times is the engine time of all processes, or nil.
func (r *rate) add(at time.Time, thawed time.Duration, pids []int, times map[int]time.Duration) {
	s := sample{at: at, thawed: thawed}
	for _, pid := range pids {
		if d, ok := times[pid]; ok {
			if r.work == nil {
				r.work = map[int]time.Duration{}
			}
			r.work[pid] = d
		}
	}
	for _, d := range r.work {
		s.work += d
	}
	r.samples = append(r.samples, s)
	for len(r.samples) > 2 && at.Sub(r.samples[0].at) > rateWindow {
		r.samples = r.samples[1:]
	}
}

// percent is the part of the window that the tenant's work ran, where that is
// known, else the part that a tenant with a hard share was allowed to run.
func (r *rate) percent(hard bool) (got *float64, source string) {
	if r == nil || len(r.samples) < 2 {
		return nil, ""
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	part := func(d time.Duration) *float64 {
		p := 100 * float64(d) / float64(last.at.Sub(first.at))
		return &p
	}
	switch {
	case r.work != nil:
		return part(last.work - first.work), "engine"
	case hard:
		return part(last.thawed - first.thawed), "thawed"
	}
	return nil, ""
}

// reconcile compares, for each card, what tenants are charged with what the
// card itself says is in use, and takes the samples behind Got.
func (w *Worker) reconcile(now time.Time) {
	moved := false
	for i, c := range w.cards {
		if c.card == nil {
			continue
		}
		_, used, err := c.card.Memory()
		if err != nil {
			w.log.Warn("card does not tell its memory", "card", i, "error", err)
			continue
		}
		var times map[int]time.Duration
		if t, ok := w.engine.(truth); ok {
			times = t.EngineTime(i)
		}
		state := c.card.Governor()
		w.mu.Lock()
		c.used = used
		w.sampleRates(i, state, times, now)
		if len(w.ledger.Promises(i)) > 0 {
			c.quiet = 0
		} else if c.quiet++; c.quiet >= quietLooks && c.baseline != used {
			c.baseline, moved = used, true
		}
		baseline := c.baseline
		w.mu.Unlock()
		d, err := c.card.Reconcile(baseline)
		if err != nil {
			w.log.Warn("charges cannot be compared", "card", i, "error", err)
			continue
		}
		w.mu.Lock()
		drift := d.DriftBytes
		c.drift = drift
		if alarm := drift > w.cfg.DriftAlarm || -drift > w.cfg.DriftAlarm; alarm != c.alarmed {
			c.alarmed = alarm
			w.log.Warn("charges and the card's own figure", "card", i, "differ", alarm, "drift", Size(drift), "used", Size(used))
		}
		w.mu.Unlock()
	}
	if moved {
		w.keepBaselines()
	}
}

// quietLooks is how often a card must be seen without tenants before what is
// in use there is its baseline: the memory of the last one may come back late.
const quietLooks = 2

// keepBaselines writes them down for the next worker.
func (w *Worker) keepBaselines() {
	m := map[string]int64{}
	w.mu.Lock()
	for _, c := range w.cards {
		m[c.info.UUID] = c.baseline
	}
	w.mu.Unlock()
	if err := w.store.PutBaselines(m); err != nil {
		w.log.Warn("baselines not kept", "error", err)
	}
}

func (w *Worker) sampleRates(card int, s governor.State, times map[int]time.Duration, now time.Time) {
	for _, ts := range s.Tenants {
		t := w.tenants[string(ts.ID)]
		if t == nil || t.session == nil {
			continue
		}
		if t.rates[card] == nil {
			t.rates[card] = &rate{}
		}
		t.rates[card].add(now, ts.ThawedFor, t.session.Usage().PIDs, times)
	}
}

// charged sums what the tenants of a card are charged. Callers hold mu.
func (w *Worker) charged(card int) int64 {
	var sum int64
	for _, p := range w.ledger.Promises(card) {
		if t := w.tenants[p.ID]; t != nil && t.session != nil {
			sum += t.session.Usage().ChargedBytes
		}
	}
	return sum
}

// status collects what the asker may see.
func (w *Worker) status(uid uint32) Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		Version: w.version, PID: os.Getpid(), Holder: w.keep.HolderPID(), UID: os.Geteuid(),
		Socket: w.cfg.Socket, Since: w.started, AnyDriver: w.cfg.AnyDriver,
		Cards: []CardStatus{}, Tenants: []TenantStatus{},
	}
	governed := map[string]map[int]governor.TenantState{}
	for i, c := range w.cards {
		s.Cards = append(s.Cards, w.cardStatus(i, c, governed))
	}
	for _, p := range w.ledger.Promises(-1) {
		if uid != 0 && uid != p.UID {
			s.Others++
			continue
		}
		if t := w.tenants[p.ID]; t != nil {
			s.Tenants = append(s.Tenants, w.tenantStatus(t, governed[p.ID]))
		}
	}
	return s
}

func (w *Worker) cardStatus(i int, c *cardState, governed map[string]map[int]governor.TenantState) CardStatus {
	slot, here := w.ledger.slots[i], w.ledger.Promises(i)
	cs := CardStatus{
		Index: c.info.Index, Name: c.info.Name, UUID: c.info.UUID, Driver: c.info.Driver, Emulated: c.info.Emulated,
		Policy: slot.Config.Policy, Cycle: slot.Config.Cycle, Tenants: len(here),
		Total: c.total, Used: c.used, Reserve: slot.Reserve, Free: w.ledger.Free(i), Baseline: c.baseline,
	}
	if c.err != nil {
		cs.Error = c.err.Error()
	}
	if c.card == nil {
		return cs
	}
	for _, p := range here {
		cs.Promised += p.Memory
	}
	cs.Charged = w.charged(i)
	cs.Drift = c.drift
	g := c.card.Governor()
	cs.Cycle, cs.Slots = g.Cycle, g.Slots
	for _, ts := range g.Tenants {
		id := string(ts.ID)
		if governed[id] == nil {
			governed[id] = map[int]governor.TenantState{}
		}
		governed[id][i] = ts
	}
	return cs
}

func (w *Worker) tenantStatus(t *tenant, on map[int]governor.TenantState) TenantStatus {
	r := t.Request
	ts := TenantStatus{
		ID: t.ID, Name: r.Name, UID: t.UID, Cards: t.Cards, Since: t.Since, Level: r.Level,
		Attached: t.session != nil, PIDs: []int{t.PID},
		Policy: w.ledger.slots[t.Cards[0]].Config.Policy, Weight: r.Weight, Priority: r.Priority, Limit: t.Memory,
	}
	if ts.Level == "" {
		ts.Level = "strict"
	}
	if t.session != nil {
		u := t.session.Usage()
		ts.PIDs, ts.Used, ts.Managed, ts.Overhead = u.PIDs, u.ChargedBytes, u.ManagedBytes, u.OverheadBytes
		ts.Calls, ts.Proxied, ts.Continued = u.Calls, u.Proxied, u.Continued
		ts.Refused, ts.RefusedCalls, ts.UnknownContinued = u.Refused, u.RefusedCalls, u.UnknownContinued
		ts.Violation = u.Violation
	}
	g, ok := on[t.Cards[0]]
	if !ok {
		return ts
	}
	ts.Frozen, ts.FrozenNs, ts.Hard = g.Frozen, g.FrozenFor, g.Hard
	if ts.Policy != governor.Native && ts.Policy != governor.Soft {
		asked := float64(g.Target) / 10
		ts.Asked = &asked
	}
	ts.Got, ts.GotSource = t.rates[t.Cards[0]].percent(g.Hard)
	return ts
}
