package alloc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/gpu"
	"pgregory.net/rapid"
)

// h100Profiles are the sizes of an 80 GB card: eight memory slices, seven of compute.
func h100Profiles() []gpu.MIGProfile {
	return []gpu.MIGProfile{
		{Name: "1g.10gb", Slices: 1, Extent: 1, Memory: 10 * gpu.GiB, Starts: []uint8{0, 1, 2, 3, 4, 5, 6}},
		{Name: "2g.20gb", Slices: 2, Extent: 2, Memory: 20 * gpu.GiB, Starts: []uint8{0, 2, 4}},
		{Name: "3g.40gb", Slices: 3, Extent: 4, Memory: 40 * gpu.GiB, Starts: []uint8{0, 4}},
		{Name: "4g.40gb", Slices: 4, Extent: 4, Memory: 40 * gpu.GiB, Starts: []uint8{0}},
		{Name: "7g.80gb", Slices: 7, Extent: 8, Memory: 80 * gpu.GiB, Starts: []uint8{0}},
	}
}

func migFleet(t testing.TB, cards int) *Fleet {
	m := gpu.Machine{Name: "a"}
	for i := range cards {
		m.Devices = append(m.Devices, gpu.Device{Index: i, Memory: 80 * gpu.GiB, MIGMode: i > 0, Profiles: h100Profiles()})
	}
	f, err := NewFleet([]gpu.Machine{m})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestMIGPacks lays out several sizes; card 0 is not in MIG mode.
func TestMIGPacks(t *testing.T) {
	f, p := migFleet(t, 4), Binpack()
	for i, c := range []struct {
		profile     string
		card, start int
	}{{"1g.10gb", 1, 6}, {"3g.40gb", 1, 0}, {"2g.20gb", 1, 4}, {"4g.40gb", 2, 0}, {"3g.40gb", 2, 4}, {"7g.80gb", 3, 0}} {
		r := &Request{ID: fmt.Sprint(i), Count: 1, MIG: c.profile}
		v := Place(f, r, &p)
		if !v.Placed || v.Placement.Cards.At(0) != c.card || int(v.Placement.Start) != c.start {
			t.Fatalf("%s: placed %v on card %v at slice %d, want card %d at %d", c.profile, v.Placed, v.Placement.Cards.List(), v.Placement.Start, c.card, c.start)
		}
		if err := f.Begin().Grant(v.Placement); err != nil {
			t.Fatal(err)
		}
	}
	v := Place(f, &Request{ID: "more", Count: 1, MIG: "2g.20gb"}, &p)
	if v.Placed || Count(v.Refusals)[LackMIG] != 4 {
		t.Errorf("placed %v, refusals %v; want every card to lack the profile", v.Placed, v.Refusals)
	}
	v = Place(f, &Request{ID: "share", Count: 2, Share: Share{Compute: 100}}, &p)
	if v.Placed || Count(v.Refusals)[CardBusy] != 3 {
		t.Errorf("a share was placed on a card in MIG mode: %v", v.Refusals)
	}
}

// TestMIGNeverOverlaps grants and releases at random and adds the slices up from the grants.
func TestMIGNeverOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := gpu.Machine{Name: "a"}
		for i := range 2 {
			m.Devices = append(m.Devices, gpu.Device{Index: i, Memory: 80 * gpu.GiB, MIGMode: true, Profiles: h100Profiles()})
		}
		f, err := NewFleet([]gpu.Machine{m})
		if err != nil {
			t.Fatal(err)
		}
		p := Binpack()
		placer, plain, empty := NewPlacer(f, &p), NewUncachedPlacer(f, &p), snapshot(f)
		for i := range 25 {
			r := &Request{ID: fmt.Sprint(i), Count: 1, MIG: rapid.SampledFrom(h100Profiles()).Draw(t, "profile").Name}
			pl, ok := placer.Decide(r)
			if same, okPlain := plain.Decide(r); ok != okPlain || pl != same {
				t.Fatal("cached and uncached placements differ")
			}
			if ok {
				if err := f.Begin().Grant(pl); err != nil {
					t.Fatal(err)
				}
			}
			for id := range f.grants {
				if rapid.IntRange(0, 9).Draw(t, "release") == 0 {
					if err := f.Begin().Release(id); err != nil {
						t.Fatal(err)
					}
				}
			}
			var slices [2]uint8
			for _, g := range f.grants {
				d := g.Cards.At(0)
				mask := covered(g.Start, f.profile(g.Request.MIG, d).Extent)
				if slices[d]&mask != 0 {
					t.Fatalf("instances overlap on card %d", d)
				}
				slices[d] |= mask
			}
		}
		for id := range f.grants {
			if err := f.Begin().Release(id); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(empty, snapshot(f)); diff != "" {
			t.Fatalf("releasing everything left a difference:\n%s", diff)
		}
	})
}
