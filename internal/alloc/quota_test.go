package alloc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/gpu"
	"pgregory.net/rapid"
)

func TestQuotas(t *testing.T) {
	l, err := NewLedger(10000, []Quota{{Tenant: "a", Guaranteed: 4000}, {Tenant: "b", Guaranteed: 4000, Limit: 5000}, {Tenant: "c", Weight: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tenant string
		ask    int64
		want   Admission
	}{{"a", 4000, Within}, {"a", 4001, Borrowed}, {"b", 5000, Borrowed}, {"b", 5001, Refused}, {"c", 1, Borrowed}, {"d", 1, Refused}} {
		if got, _ := l.Admit(c.tenant, c.ask); got != c.want {
			t.Errorf("Admit(%s, %d) = %v, want %v", c.tenant, c.ask, got, c.want)
		}
	}
	l.Charge("a", 5000)
	l.Charge("b", 1000)
	if n, _ := l.Next([]string{"a", "b", "c"}); n != "b" {
		t.Errorf("next is %s, want b, which is below its guarantee", n)
	}
	if !l.Reclaimable("a", 1000) || l.Reclaimable("a", 1001) || l.Reclaimable("b", 1) {
		t.Error("exactly what is borrowed may be taken back")
	}
	for _, bad := range [][]Quota{{{Tenant: "a", Guaranteed: 10001}}, {{Tenant: "a"}, {Tenant: "a"}}, {{Tenant: "a", Guaranteed: 5, Limit: 4}}} {
		if _, err := NewLedger(10000, bad); err == nil || !strings.Contains(err.Error(), "a") && !strings.Contains(err.Error(), "add up") {
			t.Errorf("%+v: error is %v", bad, err)
		}
	}
}

// TestFairFilling lets tenants that always want more take turns: the guaranteed get their guarantee, and what is left
// is shared by weight.
func TestFairFilling(t *testing.T) {
	l, err := NewLedger(10000, []Quota{{Tenant: "a", Guaranteed: 2000, Weight: 1}, {Tenant: "b", Guaranteed: 1000, Weight: 1}, {Tenant: "c", Weight: 2}})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		n, _ := l.Next([]string{"a", "b", "c"})
		l.Charge(n, 100)
	}
	got := []int64{l.Used("a"), l.Used("b"), l.Used("c")}
	if diff := cmp.Diff([]int64{3800, 2700, 3500}, got); diff != "" {
		for i, want := range []int64{3750, 2750, 3500} {
			if got[i] < want-100 || got[i] > want+100 {
				t.Errorf("shares are %v, want about 3750, 2750, 3500", got)
			}
		}
	}
}

// TestDefragmentOnlyGains carries plans out move by move.
func TestDefragmentOnlyGains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := NewFleet(drawMachines(t))
		if err != nil {
			t.Fatal(err)
		}
		spread, pack := Spread(), Binpack()
		for i := range rapid.IntRange(0, 15).Draw(t, "tenants") {
			r := drawRequest(t, fmt.Sprint("r", i))
			if v := Place(f, r, &spread); v.Placed {
				if err := f.Begin().Grant(v.Placement); err != nil {
					t.Fatal(err)
				}
			}
		}
		sum := func() (s float64) {
			for n := range f.Nodes() {
				s += WholeCards(f, n)
			}
			return s
		}
		before := snapshot(f)
		plan := Defragment(f, &pack, WholeCards, func(g *Grant) (float64, bool) { return 0.1, g.Request.Class == Online }, 20)
		if diff := cmp.Diff(before, snapshot(f)); diff != "" {
			t.Fatalf("planning changed the fleet:\n%s", diff)
		}
		at := sum()
		for _, m := range plan {
			txn := f.Begin()
			if err := txn.Release(m.ID); err != nil {
				t.Fatal(err)
			}
			if err := txn.Grant(m.To); err != nil {
				t.Fatalf("a move of the plan does not fit: %v", err)
			}
			checkWithin(t, f)
			if now := sum(); m.Gain <= 0 || now-at < m.Gain-1e-6 {
				t.Fatalf("a move promised %.2f, worth went from %.2f to %.2f", m.Gain, at, now)
			} else {
				at = now
			}
		}
	})
}

func TestGangIsWholeOrNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machines := drawMachines(t)
		for i := range machines {
			machines[i].Position = gpu.Position{Leaf: fmt.Sprint("l", i/2), Spine: fmt.Sprint("s", i/4)}
		}
		f, err := NewFleet(machines)
		if err != nil {
			t.Fatal(err)
		}
		net, before := NewNetwork(f), snapshot(f)
		g := &Gang{ID: "g", Members: rapid.IntRange(1, 10).Draw(t, "members"),
			Farthest: rapid.SampledFrom([]Level{Anyplace, OneLeaf, OneSpine}).Draw(t, "farthest"),
			Member:   Request{CPU: 1000, Count: rapid.IntRange(0, 4).Draw(t, "cards"), Share: Share{Compute: gpu.Card}}}
		v := net.Place(g, nil)
		if diff := cmp.Diff(before, snapshot(f)); diff != "" {
			t.Fatalf("placing changed the fleet:\n%s", diff)
		}
		if !v.Placed {
			if len(v.Placements) != 0 || v.Reason.Code != GangIncomplete {
				t.Fatalf("refused with %+v", v)
			}
			return
		}
		if len(v.Placements) != g.Members || v.Level > g.Farthest {
			t.Fatalf("%d of %d members, at level %v", len(v.Placements), g.Members, v.Level)
		}
		if err := f.Begin().GrantAll(&v); err != nil {
			t.Fatal(err)
		}
		checkWithin(t, f)
		if err := f.Begin().GrantAll(&v); err == nil {
			t.Fatal("a gang was granted twice")
		}
	})
}

func TestCoLocation(t *testing.T) {
	m := gpu.Machine{Name: "a"}
	for i := range 3 {
		m.Devices = append(m.Devices, gpu.Device{Index: i})
	}
	f, err := NewFleet([]gpu.Machine{m})
	if err != nil {
		t.Fatal(err)
	}
	put := func(id string, card int, class Class, s Share) {
		p := Placement{Request: &Request{ID: id, Class: class, Count: 1, Share: s}}
		p.Cards.add(card)
		if err := f.Begin().Grant(p); err != nil {
			t.Fatal(err)
		}
	}
	put("trainer", 0, Offline, Share{Compute: 500})
	put("renderer", 1, Online, Share{Render: 500, Compute: 10})
	p := mixed()
	for _, c := range []struct {
		r    Request
		want int
	}{
		{Request{Mode: RenderMix, Class: Notebook, Count: 1, Share: Share{Render: 400, Compute: 10}}, 0},
		{Request{Mode: RenderMix, Class: Notebook, Count: 1, Share: Share{Compute: 400}}, 1},
		{Request{Mode: Shared, Class: Online, Count: 1, Share: Share{Compute: 100}}, 2}, // away from the trainer and, by 5 %, from the renderer
	} {
		v := Place(f, &c.r, &p)
		if !v.Placed || v.Placement.Cards.At(0) != c.want || len(v.Terms) != 3 {
			t.Errorf("%+v went to card %v, want %d; terms %+v", c.r, v.Placement.Cards.List(), c.want, v.Terms)
		}
	}
}
