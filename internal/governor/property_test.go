package governor

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// card is what an actuator would have done: the properties compare it with what
// the governor believes.
type card struct {
	g      *Governor
	frozen map[TenantID]bool // as executed
	groups map[GroupID]TenantID
	slices map[GroupID]time.Duration
	now    time.Duration
	next   time.Duration
}

func newCard(t *rapid.T, cfg Config) *card {
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &card{g: g, frozen: map[TenantID]bool{}, groups: map[GroupID]TenantID{}, slices: map[GroupID]time.Duration{}}
}

func (c *card) execute(acts []Action) {
	for _, a := range acts {
		c.frozen[a.Tenant] = a.Kind == Freeze
	}
}

// step is Step with everything that must hold after it.
func (c *card) step(t *rapid.T, now time.Duration, report bool) {
	acts, next := c.g.Step(now)
	c.execute(acts)
	if next <= c.g.now {
		t.Fatalf("next %v is not after %v", next, c.g.now)
	}
	if report {
		at := now
		for _, a := range acts {
			c.g.Done(a, at, at+500*us)
			at += 500 * us
		}
		next = c.g.Next()
	}
	c.next, c.now = next, max(c.now, now)
	for _, s := range c.g.Slices() {
		c.slices[s.Group] = s.Duration
	}
	c.check(t)
}

func (c *card) check(t *rapid.T) {
	hard, sharing := 0, 0
	for _, tn := range c.g.tenants {
		if len(tn.groups) == 0 {
			continue
		}
		if c.frozen[tn.ID] != tn.frozen {
			t.Fatalf("%s: executed %v, believed %v", tn.ID, c.frozen[tn.ID], tn.frozen)
		}
		switch {
		case tn.frozen && (tn.hard && tn.share >= Card || c.g.open):
			t.Fatalf("%s is frozen for nothing", tn.ID)
		case !tn.frozen && tn.hard:
			hard++
		case !tn.frozen:
			sharing++
		}
	}
	if !c.g.open && (hard > 1 || hard == 1 && sharing > 0) {
		t.Fatalf("%d hard and %d sharing tenants run in one slot", hard, sharing)
	}
	if c.g.cfg.Policy != Native {
		for gid := range c.groups {
			if c.slices[gid] < sliceFloor || c.slices[gid] > sliceMax {
				t.Fatalf("group %d has a slice of %v", gid, c.slices[gid])
			}
		}
	}
}

var policies = []Policy{Fair, Preemptive, Weighted, Fixed, Soft, Native, Burst, Mixed}

func drawConfig(t *rapid.T) Config {
	return Config{
		Policy:    rapid.SampledFrom(policies).Draw(t, "policy"),
		MaxInst:   rapid.IntRange(1, 25).Draw(t, "max_inst"),
		PrioRatio: rapid.IntRange(20, 99).Draw(t, "prio_ratio"),
	}
}

func drawTenant(t *rapid.T, ids int) Tenant {
	return Tenant{
		ID:       TenantID(fmt.Sprint(rapid.IntRange(1, ids).Draw(t, "id"))),
		Share:    Milli(rapid.SampledFrom([]int{0, 1, 10, 100, 250, 333, 500, 900, 999, 1000}).Draw(t, "share")),
		Weight:   rapid.IntRange(0, 5).Draw(t, "weight"),
		Priority: Priority(rapid.IntRange(0, 2).Draw(t, "priority")),
	}
}

// op applies one random operation to the card.
func (c *card) op(t *rapid.T) {
	const ids = 8
	id := TenantID(fmt.Sprint(rapid.IntRange(1, ids).Draw(t, "tenant")))
	gid := GroupID(rapid.IntRange(1, 24).Draw(t, "group"))
	switch rapid.IntRange(0, 11).Draw(t, "op") {
	case 0:
		_ = c.g.Put(drawTenant(t, ids))
	case 1:
		c.g.Remove(id)
		for g, owner := range c.groups {
			if owner == id {
				delete(c.groups, g)
			}
		}
	case 2, 3:
		e := Engine(rapid.IntRange(0, 1).Draw(t, "engine"))
		if c.g.AddGroup(id, gid, e) == nil {
			c.groups[gid] = id
			delete(c.slices, gid)
			if len(c.g.byID[id].groups) == 1 {
				c.frozen[id] = c.g.Frozen(id)
			}
		}
	case 4:
		c.g.RemoveGroup(gid)
		delete(c.groups, gid)
	case 5:
		_ = c.g.Configure(drawConfig(t))
	case 6:
		c.g.SetActive(gid, rapid.Bool().Draw(t, "active"))
	case 7:
		c.g.SetBusy(id, Use(rapid.IntRange(0, 2).Draw(t, "use")))
	case 8:
		c.execute(c.g.Reset())
		for _, tn := range c.g.tenants {
			if tn.frozen || len(tn.groups) > 0 && c.frozen[tn.ID] {
				t.Fatalf("%s is frozen after Reset", tn.ID)
			}
		}
	case 9:
		c.step(t, c.now+time.Duration(rapid.Int64Range(-int64(ms), int64(30*ms)).Draw(t, "jump")), false)
	default:
		if c.next == Never {
			return
		}
		late := time.Duration(rapid.Int64Range(0, int64(5*ms)).Draw(t, "late"))
		c.step(t, max(c.now, c.next)+late, rapid.Bool().Draw(t, "report"))
	}
}

func TestRandomLives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCard(t, drawConfig(t))
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			c.op(t)
		}
		c.step(t, c.now, false)
		c.everyoneRuns(t)
		c.execute(c.g.Reset())
		for id, tn := range c.g.byID {
			if c.g.Frozen(id) || len(tn.groups) > 0 && c.frozen[id] {
				t.Fatalf("%s is frozen after Reset", id)
			}
		}
	})
}

// everyoneRuns steps on, in time, until everybody with groups had a turn.
func (c *card) everyoneRuns(t *rapid.T) {
	ran := map[TenantID]time.Duration{}
	smallest := Card
	for _, tn := range c.g.tenants {
		if tn.hard {
			smallest = min(smallest, tn.share)
		}
	}
	if smallest < 100 {
		return // needs very many cycles
	}
	from := c.now
	for c.next != Never && c.now < from+20*c.g.period() {
		before := c.now
		running := map[TenantID]bool{}
		for _, tn := range c.g.tenants {
			running[tn.ID] = !tn.frozen
		}
		c.step(t, max(c.next, c.now), false)
		for id, r := range running {
			if r {
				ran[id] += c.now - before
			}
		}
	}
	for _, tn := range c.g.tenants {
		if len(tn.groups) == 0 || c.next == Never {
			continue
		}
		if ran[tn.ID] == 0 {
			t.Fatalf("%s (%v) never ran in 20 cycles", tn.ID, tn.Tenant)
		}
		if got := ran[tn.ID] * 1000 / (c.now - from); tn.hard && time.Duration(tn.share)+100 < got {
			t.Fatalf("%s was thawed for %d ‰, its cap is %d", tn.ID, got, tn.share)
		}
	}
}

// Equal histories give equal answers.
func TestDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		a, b := newCard(t, cfg), newCard(t, cfg)
		for i := range rapid.IntRange(1, 10).Draw(t, "tenants") {
			tn := drawTenant(t, 8)
			for _, c := range []*card{a, b} {
				if c.g.Put(tn) == nil {
					_ = c.g.AddGroup(tn.ID, GroupID(i), Graphics)
				}
			}
		}
		now := time.Duration(0)
		for range 30 {
			acts, next := a.g.Step(now)
			acts2, next2 := b.g.Step(now)
			if diff := cmp.Diff(acts, acts2); diff != "" || next != next2 {
				t.Fatalf("%v %v %s", next, next2, diff)
			}
			if diff := cmp.Diff(a.g.Slices(), b.g.Slices()); diff != "" {
				t.Fatal(diff)
			}
			if next == Never {
				return
			}
			now = next + time.Duration(rapid.Int64Range(0, int64(3*ms)).Draw(t, "late"))
		}
	})
}
