package governor

import (
	"math/rand"
	"testing"
	"time"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// The model: one engine's runlist as it was measured on an H200. It goes round
// robin over the TSGs that are enabled and have work. A change of TSG costs
// switchCost during which nobody works; the first sliceLoss of a slice does no
// work either; a TSG alone on the runlist renews its slice at no cost. Work is
// preempted at the end of a slice and by a freeze.
type model struct {
	hw  Hardware
	rng *rand.Rand

	now     time.Duration
	tsgs    []*modelTSG
	cur     *modelTSG     // loaded
	works   time.Duration // when cur works from
	expires time.Duration // end of cur's slice
	loaded  time.Duration // how long loading from an idle card takes
}

// modelTSG is one TSG with its load.
type modelTSG struct {
	owner   TenantID
	slice   time.Duration
	enabled bool
	pending time.Duration // work it has; endless for a busy one
	done    time.Duration // work it did

	every, burst time.Duration // a bursty one gets burst of work each period
	arrives      time.Duration // next burst
	waited       time.Duration // from arrival to first work, worst
	waiting      time.Duration // since, or negative
}

const endless = Never / 4

func newModel(seed int64) *model {
	hw := H200()
	return &model{hw: hw, rng: rand.New(rand.NewSource(seed)), loaded: 100 * us}
}

func (m *model) add(owner TenantID, pending time.Duration) *modelTSG {
	t := &modelTSG{owner: owner, slice: m.hw.NativeSlice, enabled: true, pending: pending, waiting: -1, arrives: Never}
	m.tsgs = append(m.tsgs, t)
	return t
}

func (m *model) addBursty(owner TenantID, every, burst time.Duration) *modelTSG {
	t := m.add(owner, 0)
	t.every, t.burst, t.arrives = every, burst, m.now
	return t
}

func (t *modelTSG) runnable() bool { return t.enabled && t.pending > 0 }

// pick loads the next runnable TSG after the present one, if a change is due.
func (m *model) pick() {
	if m.cur != nil && m.cur.runnable() && m.now < m.expires {
		return
	}
	at := 0
	for i, t := range m.tsgs {
		if t == m.cur {
			at = i
		}
	}
	for k := 1; k <= len(m.tsgs); k++ {
		t := m.tsgs[(at+k)%len(m.tsgs)]
		if !t.runnable() {
			continue
		}
		if t == m.cur && m.works <= m.now { // alone: renewed
			m.expires = m.now + t.slice
			return
		}
		cost := m.hw.SwitchCost
		if m.cur == nil {
			cost = m.loaded
		}
		m.cur, m.expires = t, m.now+cost+t.slice
		m.works = m.now + cost + m.hw.SliceLoss
		return
	}
	m.cur = nil
}

// runTo advances the model.
func (m *model) runTo(until time.Duration) {
	for m.now < until {
		next := until
		for _, t := range m.tsgs {
			if t.arrives <= m.now {
				if t.pending == 0 {
					t.waiting = m.now
				}
				t.pending += t.burst
				t.arrives += t.every
			}
			next = min(next, t.arrives)
		}
		m.pick()
		c := m.cur
		if c == nil {
			m.now = next
			continue
		}
		next = min(next, m.expires)
		from := max(m.now, m.works)
		if from < next {
			next = min(next, from+c.pending)
			did := next - from
			c.pending -= did
			c.done += did
			if did > 0 && c.waiting >= 0 {
				c.waited = max(c.waited, from-c.waiting)
				c.waiting = -1
			}
			if c.pending > endless/2 {
				c.pending = endless
			}
		}
		m.now = max(next, m.now)
	}
}

// between returns a random time.
func (m *model) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(m.rng.Int63n(int64(hi-lo)))
}

// call executes one freeze or thaw, advancing the model to its end. The lengths
// and lags are those of testdata/lags.c on an H200.
func (m *model) call(a Action) {
	start := m.now
	var takes, lag time.Duration
	work, others := false, false
	for _, t := range m.tsgs {
		work = work || t.owner == a.Tenant && t.pending > 0
		others = others || t.owner != a.Tenant && t.runnable()
	}
	runs := m.cur != nil && m.cur.owner == a.Tenant
	switch {
	case a.Kind == Thaw && work && others:
		takes, lag = m.between(465*us, 530*us), 215*us
	case a.Kind == Thaw:
		takes, lag = m.between(350*us, 402*us), 215*us
	case runs && !others:
		takes, lag = m.between(618*us, 668*us), m.between(439*us, 480*us)
	case runs && m.rng.Intn(10) < 3:
		takes, lag = m.between(720*us, 750*us), m.between(510*us, 530*us)
	case runs:
		takes, lag = m.between(555*us, 600*us), m.between(340*us, 370*us)
	case others:
		takes, lag = m.between(637*us, 686*us), 355*us
	default:
		takes, lag = m.between(502*us, 554*us), 355*us
	}
	m.runTo(start + lag)
	for _, t := range m.tsgs {
		if t.owner == a.Tenant {
			t.enabled = a.Kind == Thaw
		}
	}
	m.runTo(start + takes)
}

// bench drives a governor with a model.
type bench struct {
	t       testing.TB
	g       *Governor
	m       *model
	report  bool          // report calls with Done
	late    time.Duration // wake-ups are late by up to this
	byGroup map[GroupID]*modelTSG
	calls   int
}

func newBench(t testing.TB, cfg Config, seed int64) *bench {
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, g: g, m: newModel(seed), byGroup: map[GroupID]*modelTSG{}}
}

// join admits a tenant with TSGs made by the load functions.
func (b *bench) join(t Tenant, loads ...func(*model, TenantID) *modelTSG) {
	b.t.Helper()
	if err := b.g.Put(t); err != nil {
		b.t.Fatal(err)
	}
	for _, load := range loads {
		id := GroupID(len(b.byGroup) + 1)
		if err := b.g.AddGroup(t.ID, id, Graphics); err != nil {
			b.t.Fatal(err)
		}
		b.byGroup[id] = load(b.m, t.ID)
		b.byGroup[id].enabled = !b.g.Frozen(t.ID)
	}
}

func busy(m *model, id TenantID) *modelTSG { return m.add(id, endless) }
func idle(m *model, id TenantID) *modelTSG { return m.add(id, 0) }
func bursty(every, burst time.Duration) func(*model, TenantID) *modelTSG {
	return func(m *model, id TenantID) *modelTSG { return m.addBursty(id, every, burst) }
}

// run drives the card for a time.
func (b *bench) run(d time.Duration) {
	until := b.m.now + d
	for b.m.now < until {
		acts, _ := b.g.Step(b.m.now)
		for _, s := range b.g.Slices() {
			b.byGroup[s.Group].slice = s.Duration
			b.g.Applied(s)
		}
		for _, a := range acts {
			start := b.m.now
			b.m.call(a)
			b.calls++
			if b.report {
				b.g.Done(a, start, b.m.now)
			}
		}
		next := b.g.Next()
		if next <= b.m.now {
			continue
		}
		if b.late > 0 && next < until {
			next += time.Duration(b.m.rng.Int63n(int64(b.late)))
		}
		b.m.runTo(min(next, until))
	}
}

// shares runs the card and returns each tenant's finished work in percent of
// what the card does for one tenant alone.
func (b *bench) shares(d time.Duration) map[TenantID]float64 {
	before := map[*modelTSG]time.Duration{}
	for _, t := range b.m.tsgs {
		before[t] = t.done
	}
	from := b.m.now
	b.run(d)
	out := map[TenantID]float64{}
	for _, t := range b.m.tsgs {
		out[t.owner] += 100 * float64(t.done-before[t]) / float64(b.m.now-from)
	}
	return out
}
