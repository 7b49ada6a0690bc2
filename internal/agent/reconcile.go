package agent

import (
	"os"
	"time"

	"github.com/penstock-gpu/penstock/internal/governor"
)

// rateWindow is the time over which Got is measured.
const rateWindow = 5 * time.Second

// rate remembers how long a tenant had been thawed at earlier instants.
type rate struct{ samples []sample }

type sample struct {
	at     time.Time
	thawed time.Duration
}

func (r *rate) add(at time.Time, thawed time.Duration) {
	r.samples = append(r.samples, sample{at, thawed})
	for len(r.samples) > 2 && at.Sub(r.samples[0].at) > rateWindow {
		r.samples = r.samples[1:]
	}
}

// percent is the part of the window that the tenant was thawed.
func (r *rate) percent() (float64, bool) {
	if r == nil || len(r.samples) < 2 {
		return 0, false
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	return 100 * float64(last.thawed-first.thawed) / float64(last.at.Sub(first.at)), true
}

// reconcile compares, for each card, what tenants are charged with what the
// card itself says is in use, and takes the samples behind Got.
func (w *Worker) reconcile(now time.Time) {
	baselines := map[string]int64{}
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
		state := c.card.Governor()
		w.mu.Lock()
		c.used = used
		w.sampleRates(i, state, now)
		if len(w.ledger.Promises(i)) == 0 && c.baseline != used {
			c.baseline, moved = used, true
		}
		baselines[c.info.UUID] = c.baseline
		drift := used - c.baseline - w.charged(i)
		if alarm := drift > w.cfg.DriftAlarm || -drift > w.cfg.DriftAlarm; alarm != c.alarmed {
			c.alarmed = alarm
			w.log.Warn("charges and the card's own figure", "card", i, "differ", alarm, "drift", Size(drift), "used", Size(used))
		}
		w.mu.Unlock()
	}
	if moved {
		if err := w.store.PutBaselines(baselines); err != nil {
			w.log.Warn("baselines not kept", "error", err)
		}
	}
}

func (w *Worker) sampleRates(card int, s governor.State, now time.Time) {
	for _, ts := range s.Tenants {
		t := w.tenants[string(ts.ID)]
		if t == nil {
			continue
		}
		if t.rates[card] == nil {
			t.rates[card] = &rate{}
		}
		t.rates[card].add(now, ts.ThawedFor)
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
	cs.Drift = cs.Used - cs.Baseline - cs.Charged
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
	if got, ok := t.rates[t.Cards[0]].percent(); ok && g.Hard {
		ts.Got, ts.GotSource = &got, "thawed"
	}
	return ts
}
