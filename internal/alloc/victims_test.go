package alloc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/gpu"
	"pgregory.net/rapid"
)

// TestPreemptIsMinimal: the placement fits once its victims are gone, none of them is needless, nothing changed.
func TestPreemptIsMinimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := gpu.Machine{Name: "a", CPU: 64000}
		for i := range 2 {
			m.Devices = append(m.Devices, gpu.Device{Index: i})
		}
		f, err := NewFleet([]gpu.Machine{m})
		if err != nil {
			t.Fatal(err)
		}
		p := Binpack()
		placer := NewPlacer(f, &p)
		loss := map[string]int64{}
		for i := range rapid.IntRange(1, 6).Draw(t, "tenants") {
			r := &Request{ID: fmt.Sprint("t", i), Count: 1, Share: Share{Compute: gpu.Milli(rapid.IntRange(1, 9).Draw(t, "share")) * 100}}
			loss[r.ID] = int64(rapid.IntRange(0, 50).Draw(t, "loss"))
			if pl, ok := placer.Decide(r); ok {
				if err := f.Begin().Grant(pl); err != nil {
					t.Fatal(err)
				}
			}
		}
		r := &Request{ID: "new", Priority: 1, Count: 1, Share: Share{Compute: gpu.Milli(rapid.IntRange(1, 10).Draw(t, "want")) * 100}}
		if _, ok := placer.Decide(r); ok {
			return // nothing to take
		}
		before := snapshot(f)
		got, ok := f.Preempt(r, func(g *Grant) (int64, bool) { return loss[g.Request.ID], true })
		if diff := cmp.Diff(before, snapshot(f)); diff != "" {
			t.Fatalf("Preempt changed the fleet:\n%s", diff)
		}
		if !ok {
			t.Fatal("everything may be taken, yet nothing was found")
		}
		f.WhatIf(func(txn *Txn) {
			for _, id := range got.Victims {
				if err := txn.Release(id); err != nil {
					t.Fatal(err)
				}
			}
			if err := txn.Grant(got.Placement); err != nil {
				t.Fatalf("the placement does not fit once its victims are gone: %v", err)
			}
		})
		for _, spare := range got.Victims { // no victim is needless
			f.WhatIf(func(txn *Txn) {
				for _, id := range got.Victims {
					if id != spare {
						if err := txn.Release(id); err != nil {
							t.Fatal(err)
						}
					}
				}
				if _, fits := f.Fit(r, 0); fits {
					t.Fatalf("victim %s of %v is needless", spare, got.Victims)
				}
			})
		}
	})
}

func TestPreemptRespectsPriority(t *testing.T) {
	f, err := NewFleet([]gpu.Machine{{Name: "a", Devices: []gpu.Device{{Index: 0}}}})
	if err != nil {
		t.Fatal(err)
	}
	p := Binpack()
	low := &Request{ID: "low", Priority: 5, Count: 1, Share: Share{Compute: gpu.Card}}
	if err := f.Begin().Grant(Place(f, low, &p).Placement); err != nil {
		t.Fatal(err)
	}
	any := func(*Grant) (int64, bool) { return 0, true }
	if _, ok := f.Preempt(&Request{ID: "equal", Priority: 5, Count: 1, Share: Share{Compute: 100}}, any); ok {
		t.Error("an equal priority was preempted")
	}
	if got, ok := f.Preempt(&Request{ID: "high", Priority: 6, Count: 1, Share: Share{Compute: 100}}, any); !ok || len(got.Victims) != 1 {
		t.Errorf("got %+v, %v; want the one victim", got, ok)
	}
}
