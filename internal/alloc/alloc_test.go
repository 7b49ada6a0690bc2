package alloc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/gpu"
	"pgregory.net/rapid"
)

// drawMachines makes a small mixed fleet: several sizes, models, links, memory.
func drawMachines(t *rapid.T) []gpu.Machine {
	n := rapid.IntRange(1, 7).Draw(t, "machines")
	out := make([]gpu.Machine, n)
	for i := range out {
		out[i] = drawMachine(t, fmt.Sprintf("n%d", i))
	}
	return out
}

func drawMachine(t *rapid.T, name string) gpu.Machine {
	m := gpu.Machine{Name: name, CPU: gpu.Milli(rapid.IntRange(0, 64).Draw(t, "cores")) * 1000,
		Memory: gpu.Bytes(rapid.IntRange(0, 256).Draw(t, "GiB")) * gpu.GiB}
	model := rapid.SampledFrom([]gpu.Model{"T4", "H200"}).Draw(t, "model")
	cards := rapid.SampledFrom([]int{0, 1, 2, 4, 8}).Draw(t, "cards")
	for c := range cards {
		m.Devices = append(m.Devices, gpu.Device{Index: c, Model: model, Memory: 16 * gpu.GiB,
			Health: rapid.SampledFrom([]gpu.Health{gpu.Healthy, gpu.Healthy, gpu.Healthy, gpu.Draining}).Draw(t, "health")})
	}
	if cards >= 4 && rapid.Bool().Draw(t, "linked") {
		for c := 0; c+1 < cards; c += 2 {
			m.Links = append(m.Links, gpu.Link{A: c, B: c + 1, Count: 2})
		}
	}
	return m
}

func drawRequest(t *rapid.T, id string) *Request {
	r := &Request{ID: id, CPU: gpu.Milli(rapid.IntRange(0, 16).Draw(t, "cpu")) * 1000,
		Memory: gpu.Bytes(rapid.IntRange(0, 32).Draw(t, "mem")) * gpu.GiB,
		Class:  rapid.SampledFrom([]Class{Online, Offline, Notebook}).Draw(t, "class"),
		Mode:   rapid.SampledFrom([]Mode{Shared, Shared, Shared, Exclusive, TimeSharing, RenderMix}).Draw(t, "mode")}
	if rapid.IntRange(0, 3).Draw(t, "typed") == 0 {
		r.Models = []gpu.Model{"T4"}
	}
	switch rapid.IntRange(0, 4).Draw(t, "shape") {
	case 0:
		r.Mode, r.Class = Shared, Online
	case 1:
		r.Count, r.Share = 1, drawShare(t)
	case 2:
		r.Count, r.Share = rapid.IntRange(1, 8).Draw(t, "count"), Share{Compute: gpu.Card}
	case 3:
		r.Count, r.Share = rapid.IntRange(2, 3).Draw(t, "count"), drawShare(t)
	case 4:
		r.Shares = []Share{drawShare(t), drawShare(t)}
	}
	return r
}

func drawShare(t *rapid.T) Share {
	return Share{Compute: gpu.Milli(rapid.IntRange(1, 100).Draw(t, "compute")) * 10,
		Memory: gpu.Bytes(rapid.IntRange(0, 16).Draw(t, "vram")) * gpu.GiB,
		Codec:  gpu.Milli(rapid.SampledFrom([]int{0, 0, 300, 700}).Draw(t, "codec")),
		Render: gpu.Milli(rapid.SampledFrom([]int{0, 0, 500}).Draw(t, "render"))}
}

// policies are all that can be chosen, for properties that hold whatever the policy.
func policies() []Policy {
	mix := NewMix([]Request{{CPU: 4000, Count: 1, Share: Share{Compute: 500}}, {CPU: 8000, Count: 2, Share: Share{Compute: gpu.Card}},
		{CPU: 1000}, {CPU: 2000, Count: 1, Share: Share{Compute: 230}, Models: []gpu.Model{"T4"}}}, 0.95)
	return []Policy{FGD(mix), BestFit(), DotProd(), Clustering(), Packing(), Binpack(), Spread(), Random(7), Learned(someTable()), mixed()}
}

// mixed is a policy with the terms that tell cards apart.
func mixed() Policy {
	p := Binpack()
	p.Name, p.Cards = "mixed", ByScore
	p.Terms = append(p.Terms, Complement(50), Interference(1, [classCount][classCount]gpu.Percent{Online: {Online: 5, Offline: 30}, Offline: {Online: 30}}))
	return p
}

// someTable is a table with a shape like a learned one: idle rises with the hole and falls with the CPU beside it.
func someTable() *Table {
	t := &Table{Version: TableVersion, Knots: DefaultKnots(), Useful: 200,
		Weights: Weights{Leftover: 0.01, Reserve: 3, Room: 2, RoomCPU: 8000}}
	for r := range TableBins {
		row := make([]float64, len(t.Knots))
		for k, x := range t.Knots {
			row[k] = float64(r*TableBin) * (0.1 + 0.8/float64(1+x)) * float64(7+r%5) / 12
		}
		t.Values = append(t.Values, row)
	}
	return t
}

// state is everything of a fleet that an undo must restore.
type state struct {
	CPU           []gpu.Milli
	Memory        []gpu.Bytes
	Kinds         []kindTally
	Compute       []gpu.Milli
	VRAM          []gpu.Bytes
	Codec, Render []gpu.Milli
	Tenants       []uint16
	Classes       [][classCount]uint16
	Sealed, Turns []uint8
	Grants        []string
	Total         int64
}

func snapshot(f *Fleet) state {
	s := state{slices.Clone(f.cpu), slices.Clone(f.memory), slices.Clone(f.kinds), slices.Clone(f.compute), slices.Clone(f.vram),
		slices.Clone(f.codec), slices.Clone(f.render), slices.Clone(f.tenants), slices.Clone(f.classes), slices.Clone(f.sealed), slices.Clone(f.turns), nil, f.total}
	for id, g := range f.grants {
		s.Grants = append(s.Grants, fmt.Sprint(id, g.Node, g.Cards.List()))
	}
	slices.Sort(s.Grants)
	return s
}

// checkWithin proves that nothing is oversubscribed, from the grants and not from the running sums.
func checkWithin(t *rapid.T, f *Fleet) {
	type use struct{ compute, codec, render, vram int64 }
	cards := make([]use, f.Cards())
	turns := make([]int, f.Cards())
	cpu, mem := make([]gpu.Milli, f.Nodes()), make([]gpu.Bytes, f.Nodes())
	for _, g := range f.grants {
		r := g.Request
		cpu[g.Node] += r.CPU
		mem[g.Node] += r.Memory
		for i := range g.Cards.Len() {
			d, s := int(f.offset[g.Node])+g.Cards.At(i), r.share(i)
			if r.Mode == TimeSharing {
				turns[d]++
				continue
			}
			if r.Mode == Exclusive {
				s.Compute = gpu.Card
			}
			cards[d].compute += int64(s.Compute)
			cards[d].codec += int64(s.Codec)
			cards[d].render += int64(s.Render)
			cards[d].vram += int64(s.Memory)
		}
	}
	for d, u := range cards {
		if turns[d] > 0 {
			u.compute += 1000
		}
		if u.compute > 1000 || u.codec > 1000 || u.render > 1000 || u.vram > int64(f.vramCap[d]) || turns[d] > MaxTurns {
			t.Fatalf("card %d is oversubscribed: %+v, %d turns", d, u, turns[d])
		}
	}
	for n := range cpu {
		if cpu[n] > f.cpuCap[n] || mem[n] > f.memCap[n] {
			t.Fatalf("node %d is oversubscribed: cpu %v of %v, memory %v of %v", n, cpu[n], f.cpuCap[n], mem[n], f.memCap[n])
		}
	}
}

// TestCachedEqualsUncached drives cached and uncached placers over the same changes: grants, releases, undone
// transactions, failing cards.
func TestCachedEqualsUncached(t *testing.T) {
	for _, p := range policies() {
		t.Run(p.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				f, err := NewFleet(drawMachines(t))
				if err != nil {
					t.Fatal(err)
				}
				cached, plain := NewPlacer(f, &p), NewUncachedPlacer(f, &p)
				shapes := []*Request{drawRequest(t, ""), drawRequest(t, ""), drawRequest(t, "")}
				var held []string
				for i := range 30 {
					r := *rapid.SampledFrom(shapes).Draw(t, "request")
					r.ID = fmt.Sprint("r", i)
					a, okA := cached.Decide(&r)
					b, okB := plain.Decide(&r)
					if okA != okB || a.Node != b.Node || a.Cards != b.Cards {
						t.Fatalf("cached %v %d %v, uncached %v %d %v", okA, a.Node, a.Cards.List(), okB, b.Node, b.Cards.List())
					}
					txn := f.Begin()
					if okA {
						if err := txn.Grant(a); err != nil {
							t.Fatal(err)
						}
					}
					checkWithin(t, f)
					switch rapid.IntRange(0, 4).Draw(t, "then") {
					case 0:
						txn.Undo()
						continue
					case 1:
						if len(held) > 0 {
							if err := txn.Release(held[0]); err != nil {
								t.Fatal(err)
							}
							held = held[1:]
						}
					}
					txn.Commit()
					if okA {
						held = append(held, r.ID)
					}
				}
			})
		})
	}
}

func TestUndoRestoresEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, err := NewFleet(drawMachines(t))
		if err != nil {
			t.Fatal(err)
		}
		p := BestFit()
		placer := NewPlacer(f, &p)
		fill := func(txn *Txn, prefix string) {
			for i := range rapid.IntRange(0, 10).Draw(t, "n") {
				r := drawRequest(t, fmt.Sprint(prefix, i))
				if pl, ok := placer.Decide(r); ok {
					if err := txn.Grant(pl); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		first := f.Begin()
		fill(first, "a")
		first.Commit()
		before := snapshot(f)
		f.WhatIf(func(txn *Txn) {
			fill(txn, "b")
			for id := range f.grants {
				if rapid.Bool().Draw(t, "release") {
					if err := txn.Release(id); err != nil {
						t.Fatal(err)
					}
				}
			}
			fill(txn, "c")
		})
		if diff := cmp.Diff(before, snapshot(f)); diff != "" {
			t.Fatalf("undo left a difference (-before +after):\n%s", diff)
		}
	})
}

func TestFreeNodeKeepsPlaceable(t *testing.T) {
	for _, p := range policies() {
		t.Run(p.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				machines := drawMachines(t)
				more := append(slices.Clone(machines), drawMachine(t, "extra"))
				f, err := NewFleet(machines)
				if err != nil {
					t.Fatal(err)
				}
				g, err := NewFleet(more)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 12 {
					r := drawRequest(t, fmt.Sprint("r", i))
					v := Place(f, r, &p)
					if again := Place(f, r, &p); again.Placed != v.Placed || again.Placement.Cards != v.Placement.Cards || again.Placement.Node != v.Placement.Node {
						t.Fatal("same input, other output")
					}
					if v.Placed && !Place(g, r, &p).Placed {
						t.Fatalf("%+v fits, but not with one more free machine", r)
					}
					if !v.Placed && len(v.Refusals) < f.Nodes() {
						t.Fatalf("refused with %d reasons for %d machines", len(v.Refusals), f.Nodes())
					}
					if v.Placed { // the same grant in both fleets
						if f.Begin().Grant(v.Placement) != nil || g.Begin().Grant(v.Placement) != nil {
							t.Fatal("a placement did not fit")
						}
					}
				}
			})
		})
	}
}

func TestRefusals(t *testing.T) {
	m := gpu.Machine{Name: "a", CPU: 8000, Memory: gpu.GiB, Devices: []gpu.Device{
		{Index: 0, Model: "T4", Memory: 16 * gpu.GiB}, {Index: 1, Model: "T4", Memory: 16 * gpu.GiB, Health: gpu.Failed}}}
	half := Share{Compute: 500, Memory: 8 * gpu.GiB}
	for _, c := range []struct {
		name string
		r    Request
		want []Code
	}{
		{"cpu", Request{CPU: 9000}, []Code{LackCPU}},
		{"host memory", Request{Memory: 2 * gpu.GiB}, []Code{LackHostMemory}},
		{"model", Request{Count: 1, Share: half, Models: []gpu.Model{"H200"}}, []Code{WrongModel}},
		{"pool", Request{Pool: "x"}, []Code{WrongPool}},
		{"tier", Request{Tier: gpu.Edge}, []Code{WrongTier}},
		{"rdma", Request{RDMA: gpu.ERDMA}, []Code{NoRDMAPort}},
		{"whole", Request{Count: 1, Share: Share{Compute: gpu.Card}}, []Code{CardBusy, CardUnhealthy}},
		{"memory", Request{Count: 1, Share: Share{Compute: 100, Memory: 12 * gpu.GiB}}, []Code{LackMemory, CardUnhealthy}},
		{"compute", Request{Count: 1, Share: Share{Compute: 600}}, []Code{LackCompute, CardUnhealthy}},
		{"codec", Request{Count: 1, Share: Share{Codec: 900}}, []Code{LackCodec, CardUnhealthy}},
		{"render", Request{Count: 1, Share: Share{Render: 900}}, []Code{LackRender, CardUnhealthy}},
		{"two cards", Request{Count: 2, Share: Share{Compute: 100}}, []Code{CardUnhealthy, TooFewCards}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := NewFleet([]gpu.Machine{m})
			if err != nil {
				t.Fatal(err)
			}
			p := Binpack()
			half.Codec, half.Render = 200, 200
			first := Place(f, &Request{ID: "first", Count: 1, Share: half}, &p)
			if err := f.Begin().Grant(first.Placement); err != nil {
				t.Fatal(err)
			}
			v := Place(f, &c.r, &p)
			var got []Code
			for _, r := range v.Refusals {
				got = append(got, r.Code)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || v.Placed {
				t.Errorf("placed %v, reasons (-want +got):\n%s", v.Placed, diff)
			}
		})
	}
}

func TestPerCardShares(t *testing.T) {
	m := gpu.Machine{Name: "a", CPU: 8000, Devices: []gpu.Device{{Index: 0, Memory: 4 * gpu.GiB}, {Index: 1, Memory: 16 * gpu.GiB}}}
	f, err := NewFleet([]gpu.Machine{m})
	if err != nil {
		t.Fatal(err)
	}
	p := Binpack()
	v := Place(f, &Request{ID: "3,1", Shares: []Share{{Memory: 12 * gpu.GiB}, {Memory: gpu.GiB}}}, &p)
	if !v.Placed || v.Placement.Cards.At(0) != 1 || v.Placement.Cards.At(1) != 0 {
		t.Errorf("placed %v on %v, want the first share on card 1 and the second on card 0", v.Placed, v.Placement.Cards.List())
	}
}

func TestLinksAreKeptTogether(t *testing.T) {
	m := gpu.Machine{Name: "a"}
	for i := range 8 {
		m.Devices = append(m.Devices, gpu.Device{Index: i, PCIe: gpu.PCIe{Switch: int16(i / 4), Bridge: int16(i / 4), NUMA: int16(i / 4)}})
	}
	for _, l := range [][2]int{{0, 3}, {1, 2}, {4, 7}, {5, 6}} {
		m.Links = append(m.Links, gpu.Link{A: l[0], B: l[1], Count: 2})
	}
	for _, c := range []struct {
		busy  []int
		count int
		want  []int
	}{
		{nil, 2, []int{1, 2}},
		{[]int{1}, 2, []int{0, 3}},
		{[]int{0, 1}, 3, []int{4, 5, 6}}, // a third card is lone anyway: stay on one socket
		{nil, 4, []int{0, 1, 2, 3}},
		{[]int{0, 4}, 4, []int{1, 2, 5, 6}},
	} {
		f, err := NewFleet([]gpu.Machine{m})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range c.busy {
			f.compute[b], f.tenants[b] = 0, 1
		}
		var got Cards
		if !f.chooseCards(&Request{Count: c.count, Share: Share{Compute: gpu.Card}}, 0, &got) {
			t.Fatalf("busy %v: no choice of %d", c.busy, c.count)
		}
		if !slices.Equal(got.List(), c.want) {
			t.Errorf("busy %v: %d cards are %v, want %v", c.busy, c.count, got.List(), c.want)
		}
	}
}
