package alloc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

func TestNICsAreBesideTheirCards(t *testing.T) {
	m := &gpu.Machine{Name: "a"}
	for c := range 8 {
		at := gpu.PCIe{Switch: int16(c / 2), Bridge: int16(c / 4), NUMA: int16(c / 4)}
		m.Devices = append(m.Devices, gpu.Device{Index: c, PCIe: at})
		m.NICs = append(m.NICs, gpu.NIC{Name: fmt.Sprint("ib", c), RDMA: gpu.RoCEv2, Rail: int16(c), PCIe: at})
	}
	m.NICs = append(m.NICs, gpu.NIC{Name: "eth0", Rail: -1, PCIe: gpu.PCIe{Switch: -1, NUMA: 0}})
	for _, c := range []struct {
		cards []int
		want  gpu.RDMA
		nics  []int
	}{
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, gpu.RoCEv2, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{[]int{5, 4}, gpu.RoCEv2, []int{5, 4}},
		{[]int{6}, gpu.NoRDMA, []int{6}},
		{[]int{6}, gpu.InfiniBand, []int{-1}},
	} {
		if diff := cmp.Diff(c.nics, NICs(m, c.cards, c.want)); diff != "" {
			t.Errorf("cards %v, %v (-want +got):\n%s", c.cards, c.want, diff)
		}
	}
	m.NICs = m.NICs[:1]
	if diff := cmp.Diff([]int{0, 0}, NICs(m, []int{0, 7}, gpu.RoCEv2)); diff != "" {
		t.Errorf("one port for two cards:\n%s", diff)
	}
}

func TestTakeBackIsAsInAPrivateCluster(t *testing.T) {
	var machines []gpu.Machine
	for i := range 4 {
		m := gpu.Machine{Name: fmt.Sprint(i), Position: gpu.Position{Leaf: fmt.Sprint(i / 2)}}
		for c := range 2 {
			m.Devices = append(m.Devices, gpu.Device{Index: c})
		}
		machines = append(machines, m)
	}
	f, err := NewFleet(machines)
	if err != nil {
		t.Fatal(err)
	}
	net := NewNetwork(f)
	own := func(n int) bool { return n < 2 }
	opp := net.Place(&Gang{ID: "opp", Members: 3, Member: Request{Count: 2, Share: Share{Compute: gpu.Card}}}, nil)
	if err := f.Begin().GrantAll(&opp); err != nil {
		t.Fatal(err)
	}
	before := snapshot(f)
	gang := &Gang{ID: "mine", Members: 1, Member: Request{Count: 2, Share: Share{Compute: gpu.Card}}}
	v, victims := f.TakeBack(func() GangVerdict { return net.Place(gang, own) }, func(g *Grant) bool { return g.Request.ID[0] == 'o' })
	if !v.Placed || v.Placements[0].Node != 0 || len(victims) != 1 {
		t.Errorf("placed %v on %+v with victims %v, want machine 0 and one victim", v.Placed, v.Placements, victims)
	}
	if diff := cmp.Diff(before, snapshot(f)); diff != "" {
		t.Errorf("asking changed the fleet:\n%s", diff)
	}
}
