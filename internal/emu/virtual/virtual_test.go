package virtual_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/virtual"
	"github.com/penstock-gpu/penstock/internal/governor"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

type entry struct {
	t    governor.Tenant
	load virtual.Load
}

// bench runs tenants for a warm-up of one second and then for four, and returns each one's per cent of the card.
func bench(t *testing.T, gov virtual.Governor, list []entry) map[governor.TenantID]float64 {
	t.Helper()
	l, err := virtual.New(card.H200(), gov)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if err := l.Join(e.t, e.load); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Run(time.Second); err != nil {
		t.Fatal(err)
	}
	const span = 4 * time.Second
	before := map[governor.TenantID]time.Duration{}
	for _, e := range list {
		r, _ := l.Result(e.t.ID)
		before[e.t.ID] = r.Busy
	}
	if err := l.Run(span); err != nil {
		t.Fatal(err)
	}
	out := map[governor.TenantID]float64{}
	for _, e := range list {
		r, ok := l.Result(e.t.ID)
		if !ok {
			t.Fatalf("no result of %s", e.t.ID)
		}
		out[e.t.ID] = 100 * float64(r.Busy-before[e.t.ID]) / float64(span)
	}
	return out
}

func newGovernor(t *testing.T, cfg governor.Config) *governor.Governor {
	t.Helper()
	g, err := governor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestNativeSharingIsHalves(t *testing.T) {
	busy := virtual.Load{Kernel: 3600 * us}
	got := bench(t, nil, []entry{{governor.Tenant{ID: "a"}, busy}, {governor.Tenant{ID: "b"}, busy}})
	if math.Abs(got["a"]-got["b"]) > 0.1 || got["a"]+got["b"] > 92 || got["a"]+got["b"] < 89 {
		t.Errorf("got %v, want two halves of 90.4 %%", got)
	}
}

// TestGovernor runs the real governor against the card's own latencies and costs.
func TestGovernor(t *testing.T) {
	busy, idle, small := virtual.Load{Kernel: 3600 * us}, virtual.Load{}, virtual.Load{Kernel: 20 * us}
	tests := []struct {
		name   string
		policy governor.Policy
		list   []entry
		want   map[governor.TenantID]float64 // per cent of the card
		within float64                       // points
	}{
		{"fixed 30 alone", governor.Fixed, []entry{{governor.Tenant{ID: "a", Share: 300}, busy}}, map[governor.TenantID]float64{"a": 30}, 1},
		{"fixed 30 and 70", governor.Fixed, []entry{
			{governor.Tenant{ID: "a", Share: 300}, busy}, {governor.Tenant{ID: "b", Share: 700}, small},
		}, map[governor.TenantID]float64{"a": 30, "b": 70}, 3},
		{"fixed beside idle", governor.Fixed, []entry{
			{governor.Tenant{ID: "a", Share: 500}, busy}, {governor.Tenant{ID: "b", Share: 500}, idle},
		}, map[governor.TenantID]float64{"a": 50, "b": 0}, 1},
		{"weights 1:2", governor.Weighted, []entry{
			{governor.Tenant{ID: "a", Weight: 1}, busy}, {governor.Tenant{ID: "b", Weight: 2}, busy},
		}, map[governor.TenantID]float64{"a": 33.3, "b": 66.7}, 1},
		{"burst beside idle", governor.Burst, []entry{
			{governor.Tenant{ID: "a", Share: 500}, busy}, {governor.Tenant{ID: "b", Share: 500}, idle},
		}, map[governor.TenantID]float64{"a": 100, "b": 0}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := bench(t, newGovernor(t, governor.Config{Policy: tt.policy}), tt.list)
			for id, want := range tt.want {
				if math.Abs(got[id]-want) > tt.within {
					t.Errorf("%s got %.2f %%, asked %.1f", id, got[id], want)
				}
			}
		})
	}
}

// TestExactlyRepeatable: two runs of the same case agree to the nanosecond.
func TestExactlyRepeatable(t *testing.T) {
	run := func() (out []virtual.Result) {
		l, err := virtual.New(card.H200(), newGovernor(t, governor.Config{Policy: governor.Fixed}))
		if err != nil {
			t.Fatal(err)
		}
		loads := []virtual.Load{{Kernel: 400 * us, Period: 2 * ms}, {Kernel: ms}, {Frames: 3, Frame: 1366 * us}}
		ids := []governor.TenantID{"a", "b", "c"}
		for i, load := range loads {
			if err := l.Join(governor.Tenant{ID: ids[i], Share: 300}, load); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Run(500 * ms); err != nil {
			t.Fatal(err)
		}
		l.Leave("b")
		if err := l.Run(500 * ms); err != nil {
			t.Fatal(err)
		}
		for _, id := range []governor.TenantID{"a", "c"} {
			r, ok := l.Result(id)
			if !ok {
				t.Fatalf("no result of %s", id)
			}
			out = append(out, r)
		}
		return out
	}
	first := run()
	if d := cmp.Diff(first, run()); d != "" {
		t.Errorf("two runs differ:\n%s", d)
	}
	if first[0].Finished == 0 || first[1].Frames == 0 {
		t.Errorf("nothing was done: %+v", first)
	}
}

func TestLatencyTenant(t *testing.T) {
	l, err := virtual.New(card.H200(), newGovernor(t, governor.Config{Policy: governor.Preemptive}))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Join(governor.Tenant{ID: "train", Priority: governor.Low}, virtual.Load{Kernel: 3600 * us}); err != nil {
		t.Fatal(err)
	}
	if err := l.Join(governor.Tenant{ID: "infer", Priority: governor.High}, virtual.Load{Kernel: 400 * us, Period: 2 * ms}); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(2 * time.Second); err != nil {
		t.Fatal(err)
	}
	r, _ := l.Result("infer")
	// [H] 0.76 ms with a slice of 200 µs for the training.
	if p99 := virtual.Quantile(r.Latencies, 99); p99 > 850*us {
		t.Errorf("p99 %v over %d bursts", p99, len(r.Latencies))
	}
	if len(r.Latencies) < 990 {
		t.Errorf("%d bursts finished in 2 s", len(r.Latencies))
	}
}
