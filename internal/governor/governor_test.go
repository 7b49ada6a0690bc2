package governor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParsePolicy(t *testing.T) {
	for in, want := range map[string]Policy{
		"fair": Fair, "0": Fair, "Weighted": Weighted, "2": Weighted, " burst ": Burst, "7": Mixed, "native": Native,
	} {
		if got, err := ParsePolicy(in); err != nil || got != want {
			t.Errorf("ParsePolicy(%q) = %v, %v", in, got, err)
		}
	}
	_, err := ParsePolicy("fare")
	want := `unknown policy "fare": use one of fair (0), preemptive (1), weighted (2), fixed (3), soft (4), native (5), burst (6), mixed (7)`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string // in the error; empty: valid
	}{
		{Config{}, ""},
		{Config{MaxInst: 26}, "max_inst is 26: must be 1–25"},
		{Config{PrioRatio: 19}, "prio_ratio is 19: must be 20–99 percent"},
		{Config{Cycle: time.Millisecond}, "cycle is 1ms: must be 4ms–1s"},
		{Config{Policy: 8}, `unknown policy "8"`},
		{Config{Hardware: Hardware{FreezeLag: time.Second}}, "freeze lag is 1s"},
	} {
		err := c.cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestAdmission(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		have []Tenant
		put  Tenant
		want string // error; empty: admitted
	}{
		{"fixed fits", Config{Policy: Fixed}, []Tenant{{ID: "a", Share: 700}}, Tenant{ID: "b", Share: 300}, ""},
		{"fixed full", Config{Policy: Fixed}, []Tenant{{ID: "a", Share: 700}}, Tenant{ID: "b", Share: 400},
			`tenant "b": a share of 40% does not fit: 70% of the card is promised to 1 tenants; up to 30% would fit`},
		{"fixed by weight", Config{Policy: Fixed, MaxInst: 4}, []Tenant{{ID: "a", Weight: 3}}, Tenant{ID: "b", Weight: 2},
			`tenant "b": a share of 50% does not fit: 75% of the card is promised to 1 tenants; up to 25% would fit`},
		{"change of one's own", Config{Policy: Fixed}, []Tenant{{ID: "a", Share: 700}, {ID: "b", Share: 200}}, Tenant{ID: "a", Share: 800}, ""},
		{"fair", Config{Policy: Fair, MaxInst: 2}, []Tenant{{ID: "a"}, {ID: "b"}}, Tenant{ID: "c"},
			`tenant "c" does not fit: the card takes 2 tenants (max_inst) and has 2`},
		{"mixed sharer", Config{Policy: Mixed}, []Tenant{{ID: "a", Share: 1000}}, Tenant{ID: "b"},
			`tenant "b" shares the remainder, but 100% of the card is promised to 1 tenants and 1% must be left`},
		{"mixed hard", Config{Policy: Mixed}, []Tenant{{ID: "a", Share: 400}, {ID: "s"}}, Tenant{ID: "b", Share: 600},
			`tenant "b": a share of 60% does not fit: 40% of the card is promised to 1 tenants and 1% is kept for 1 who share the remainder; up to 59% would fit`},
		{"burst", Config{Policy: Burst}, []Tenant{{ID: "a", Share: 1000}}, Tenant{ID: "b", Share: 1},
			`tenant "b": a share of 0.1% does not fit: 100% of the card is promised to 1 tenants; nothing is free`},
		{"weights are free", Config{Policy: Weighted}, []Tenant{{ID: "a", Weight: 1000}}, Tenant{ID: "b", Weight: 1000}, ""},
		{"no id", Config{}, nil, Tenant{}, "a tenant needs an id"},
		{"share", Config{}, nil, Tenant{ID: "a", Share: 1001}, `tenant "a": share is 1001: must be 0–1000 thousandths`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := New(c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range c.have {
				if err := g.Put(h); err != nil {
					t.Fatal(err)
				}
			}
			got := ""
			if err := g.Put(c.put); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConfigureRefusesWhatDoesNotFit(t *testing.T) {
	g, _ := New(Config{Policy: Weighted})
	for i := range 3 {
		if err := g.Put(Tenant{ID: TenantID(fmt.Sprint(i)), Share: 500}); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Configure(Config{Policy: Fixed}); err == nil {
		t.Error("three halves were accepted")
	}
	if g.Config().Policy != Weighted {
		t.Error("the refused policy is in force")
	}
}

// sliceCase is a set of tenants, each with so many groups, and the slices
// wanted, by group number in order.
type sliceCase struct {
	name    string
	cfg     Config
	tenants []Tenant
	groups  []int
	idle    []GroupID
	want    []time.Duration
}

func TestSlices(t *testing.T) {
	exact := func(c Config) Config { // no loss, round figures
		c.Hardware.SliceLoss = time.Nanosecond
		c.Cycle = 40 * ms
		return c
	}
	for _, c := range []sliceCase{
		{"equal", Config{Policy: Preemptive}, []Tenant{{ID: "a", Weight: 9}, {ID: "b"}}, []int{1, 2}, nil,
			[]time.Duration{20 * ms, 10 * ms, 10 * ms}},
		{"weights", Config{Policy: Weighted}, []Tenant{{ID: "a", Weight: 1}, {ID: "b", Weight: 3}}, []int{1, 1}, nil,
			[]time.Duration{10 * ms, 30 * ms}},
		{"idle group", Config{Policy: Weighted}, []Tenant{{ID: "a"}, {ID: "b"}}, []int{1, 2}, []GroupID{3},
			[]time.Duration{20 * ms, 20 * ms, 2 * ms}},
		{"burst with one unpromised", Config{Policy: Burst}, []Tenant{{ID: "a", Share: 600}, {ID: "b"}, {ID: "c"}}, []int{1, 1, 1}, nil,
			[]time.Duration{24 * ms, 8 * ms, 8 * ms}},
		{"soft: coarse, not split", Config{Policy: Soft}, []Tenant{{ID: "a"}, {ID: "b"}, {ID: "c"}}, []int{1, 2, 1}, nil,
			[]time.Duration{10 * ms, 10 * ms, 10 * ms, 10 * ms}},
		{"native", Config{Policy: Native}, []Tenant{{ID: "a"}}, []int{2}, nil, nil},
		{"stretched", Config{Policy: Weighted}, []Tenant{{ID: "a", Weight: 1}, {ID: "b", Weight: 39}}, []int{1, 1}, nil,
			[]time.Duration{2 * ms, 78 * ms}},
		{"low beside high", Config{Policy: Preemptive}, []Tenant{{ID: "a", Priority: High}, {ID: "b", Priority: Low}}, []int{1, 1}, nil,
			[]time.Duration{40 * ms, 50 * us}},
		{"two high", Config{Policy: Preemptive, HighSlice: 30 * ms}, []Tenant{{ID: "a", Priority: High}, {ID: "b", Priority: High}, {ID: "c", Priority: Low}}, []int{1, 1, 1}, nil,
			[]time.Duration{30 * ms, 30 * ms, 50 * us}},
		{"ratio", Config{Policy: Preemptive, PrioRatio: 75}, []Tenant{{ID: "a", Priority: High}, {ID: "b"}, {ID: "c"}}, []int{1, 1, 1}, nil,
			[]time.Duration{30 * ms, 5 * ms, 5 * ms}},
		{"normal over low", Config{Policy: Preemptive, PrioRatio: 75}, []Tenant{{ID: "a", Priority: Low}, {ID: "b"}}, []int{1, 1}, nil,
			[]time.Duration{10 * ms, 30 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := New(exact(c.cfg))
			if err != nil {
				t.Fatal(err)
			}
			id := GroupID(0)
			for i, tn := range c.tenants {
				if err := g.Put(tn); err != nil {
					t.Fatal(err)
				}
				for range c.groups[i] {
					id++
					if err := g.AddGroup(tn.ID, id, Graphics); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, gid := range c.idle {
				g.SetActive(gid, false)
			}
			var want []Slice
			for i, d := range c.want {
				want = append(want, Slice{GroupID(i + 1), d})
			}
			if diff := cmp.Diff(want, g.Slices()); diff != "" {
				t.Error(diff)
			}
			if again := g.Slices(); len(again) != 0 {
				t.Errorf("returned again: %v", again)
			}
		})
	}
}

// Slices that were returned and not applied come again after Forget, and only
// those; the engines have runlists of their own.
func TestSlicesAppliedAndEngines(t *testing.T) {
	g, _ := New(Config{Policy: Weighted})
	for _, id := range []TenantID{"a", "b"} {
		if err := g.Put(Tenant{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.AddGroup("a", 1, Graphics))
	must(g.AddGroup("b", 2, Graphics))
	must(g.AddGroup("b", 3, Copy))
	must(g.AddGroup("b", 4, Decode, SlotOnly))
	first := g.Slices()
	if len(first) != 3 || first[2].Duration <= first[1].Duration {
		t.Fatalf("got %v: want 1 and 2 half each, 3 alone on its engine, none for 4", first)
	}
	g.Applied(first[0])
	g.Forget()
	if diff := cmp.Diff(first[1:], g.Slices()); diff != "" {
		t.Error(diff)
	}
	must(g.Configure(Config{Policy: Native}))
	want := []Slice{{1, 2048 * us}, {2, 2048 * us}, {3, 1024 * us}}
	if diff := cmp.Diff(want, g.Slices()); diff != "" {
		t.Errorf("back to native: %s", diff)
	}
}

func TestOnlyOneOwnsTheSlot(t *testing.T) {
	g, _ := New(Config{Policy: Fixed})
	for i, id := range []TenantID{"a", "b"} {
		if err := g.Put(Tenant{ID: id, Share: 500}); err != nil {
			t.Fatal(err)
		}
		if !g.Frozen(id) {
			t.Errorf("%s does not start frozen", id)
		}
		if err := g.AddGroup(id, GroupID(i), Graphics); err != nil {
			t.Fatal(err)
		}
	}
	acts, next := g.Step(0)
	if diff := cmp.Diff([]Action{{"a", Thaw, 0}}, acts); diff != "" {
		t.Error(diff)
	}
	if again, n := g.Step(next - 1); len(again) != 0 || n != next {
		t.Errorf("an early Step returned %v and %v", again, n)
	}
	acts, _ = g.Step(next)
	if diff := cmp.Diff([]Action{{"a", Freeze, next}, {"b", Thaw, next}}, acts); diff != "" {
		t.Error(diff)
	}
	if acts, _ := g.Step(0); len(acts) != 0 {
		t.Errorf("time going backward: %v", acts)
	}
	// The owner dies: the other one has had its slot of this cycle, keeps its cap
	// and is thawed for the next.
	g.Remove("b")
	acts, due := g.Step(next + ms)
	if len(acts) != 0 || due > 41*ms {
		t.Errorf("after a death: %v, next %v", acts, due)
	}
	acts, _ = g.Step(due)
	if diff := cmp.Diff([]Action{{"a", Thaw, due}}, acts); diff != "" {
		t.Error(diff)
	}
	if err := g.Configure(Config{Policy: Burst}); err != nil {
		t.Fatal(err)
	}
	if _, next := g.Step(due + 2*ms); g.Frozen("a") || next != Never {
		t.Errorf("burst: frozen %v, next %v", g.Frozen("a"), next)
	}
}

func TestWholeCardIsNeverFrozen(t *testing.T) {
	g, _ := New(Config{Policy: Fixed})
	if err := g.Put(Tenant{ID: "a", Share: Card}); err != nil {
		t.Fatal(err)
	}
	if err := g.AddGroup("a", 1, Graphics); err != nil {
		t.Fatal(err)
	}
	if acts, next := g.Step(0); len(acts) != 0 || next != Never || g.Frozen("a") {
		t.Errorf("%v, %v, frozen %v", acts, next, g.Frozen("a"))
	}
}

func TestSnapshot(t *testing.T) {
	g, _ := New(Config{Policy: Mixed})
	for i, tn := range []Tenant{{ID: "h", Share: 300}, {ID: "s", Weight: 1}, {ID: "u", Weight: 3}} {
		if err := g.Put(tn); err != nil {
			t.Fatal(err)
		}
		if err := g.AddGroup(tn.ID, GroupID(i), Graphics); err != nil {
			t.Fatal(err)
		}
	}
	g.Step(0)
	g.Step(5 * ms)
	want := State{Policy: Mixed, Slots: true, Cycle: 40 * ms, Tenants: []TenantState{
		{ID: "h", Target: 300, Hard: true, Slot: 0, Groups: 1, ThawedFor: 5 * ms},
		{ID: "s", Target: 175, Slot: 1, Groups: 1, Frozen: true, FrozenFor: 5 * ms},
		{ID: "u", Target: 525, Slot: 1, Groups: 1, Frozen: true, FrozenFor: 5 * ms},
	}}
	if diff := cmp.Diff(want, g.Snapshot()); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkStepAndSlices(b *testing.B) {
	for _, p := range []Policy{Fair, Weighted} {
		b.Run(p.String(), func(b *testing.B) {
			g, _ := New(Config{Policy: p, MaxInst: 25})
			for i := range 25 {
				id := TenantID(fmt.Sprint(i))
				if err := g.Put(Tenant{ID: id, Weight: i + 1}); err != nil {
					b.Fatal(err)
				}
				for j := range 8 {
					if err := g.AddGroup(id, GroupID(100*i+j), Graphics); err != nil {
						b.Fatal(err)
					}
				}
			}
			now := time.Duration(0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				g.SetActive(7, i%2 == 0)
				g.Slices()
				_, next := g.Step(now)
				if now = next; next == Never {
					now = 0
				}
			}
		})
	}
}
