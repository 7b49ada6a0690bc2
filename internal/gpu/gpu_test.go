package gpu

import (
	"strings"
	"testing"
)

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]Bytes{"0": 0, "1024": 1024, "3Gi": 3 * GiB, "16Ti": 16 * TiB} {
		got, err := ParseBytes(in)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
		if back, err := ParseBytes(got.String()); err != nil || back != got {
			t.Errorf("%d printed as %q reads back as %d, %v", got, got, back, err)
		}
	}
	for _, in := range []string{"", "-1", "1.5Gi", "3GB", "9223372036854775808", "9223372036854775807Ki"} {
		if v, err := ParseBytes(in); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, v)
		}
	}
}

// v100 is the eight-card hybrid cube mesh of a DGX-1: each card has two double and two single NVLinks.
func v100() *Machine {
	m := &Machine{Name: "dgx1", CPU: 80000, Memory: 512 * GiB}
	for i := range 8 {
		m.Devices = append(m.Devices, Device{Index: i, Model: "V100", Memory: 32 * GiB,
			PCIe: PCIe{Switch: int16(i / 2), Bridge: int16(i / 4), NUMA: int16(i / 4)}})
	}
	for _, l := range [][3]int{{0, 3, 2}, {1, 2, 2}, {0, 4, 2}, {0, 1, 1}, {4, 7, 2}, {5, 6, 2}} {
		m.Links = append(m.Links, Link{A: l[0], B: l[1], Count: uint8(l[2])})
	}
	m.NICs = []NIC{
		{Name: "eth0", Gbps: 25, Rail: -1, PCIe: PCIe{Switch: -1, Bridge: 0, NUMA: 0}},
		{Name: "ib0", RDMA: InfiniBand, Gbps: 100, PCIe: PCIe{Switch: 0, Bridge: 0, NUMA: 0}},
		{Name: "ib2", RDMA: InfiniBand, Gbps: 100, PCIe: PCIe{Switch: 2, Bridge: 1, NUMA: 1}},
	}
	return m
}

func TestAffinityOrdersLinks(t *testing.T) {
	m := v100()
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	a := m.Affinity()
	at := func(i, j int) int32 { return a[i*8+j] }
	order := []int32{at(0, 3), at(0, 1), at(2, 3), at(0, 2), at(0, 5)}
	for i := 1; i < len(order); i++ {
		if order[i-1] <= order[i] {
			t.Errorf("ranks %v are not descending: double NVLink, single NVLink, switch, bridge, cross-socket", order)
		}
	}
	for i := range 8 {
		for j := range 8 {
			if at(i, j) != at(j, i) || (i == j) != (at(i, j) == 0) {
				t.Fatalf("affinity is not symmetric with a zero diagonal at %d,%d", i, j)
			}
		}
	}
}

func TestNearestNIC(t *testing.T) {
	m := v100()
	for _, c := range []struct {
		card int
		nic  string
		at   Distance
	}{{0, "ib0", SameSwitch}, {2, "ib0", SameBridge}, {5, "ib2", SameSwitch}, {7, "ib2", SameBridge}} {
		i, at, ok := m.NearestNIC(c.card, InfiniBand)
		if !ok || m.NICs[i].Name != c.nic || at != c.at {
			t.Errorf("card %d: NIC %d at %v, %v; want %s at %v", c.card, i, at, ok, c.nic, c.at)
		}
	}
	if _, _, ok := m.NearestNIC(0, ERDMA); ok {
		t.Error("found an eRDMA port on a machine that has none")
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	m := v100()
	m.Name, m.Devices[3].Index, m.Links[0].B = "", 7, 8
	err := m.Validate()
	for _, want := range []string{"name is empty", "device 3 has index 7", "cards 0 and 8"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not mention %q", err, want)
		}
	}
}
