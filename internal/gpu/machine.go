package gpu

import (
	"errors"
	"fmt"
)

// LinkKind is what joins two cards directly.
type LinkKind uint8

// Kinds of link.
const (
	NVLink   LinkKind = iota // a fixed number of point-to-point links
	NVSwitch                 // every card reaches every other at full rate
)

// String names the kind.
func (k LinkKind) String() string { return name(int(k), "NVLink", "NVSwitch") }

// Link joins two cards of one machine by their indexes.
type Link struct {
	A, B  int
	Kind  LinkKind
	Count uint8 // parallel links of the pair; 1 or more
}

// RDMA is how a NIC moves data between machines without the CPU.
type RDMA uint8

// RDMA kinds. ERDMA is Alibaba Cloud's: iWARP over the VPC network, no special hardware.
const (
	NoRDMA RDMA = iota
	InfiniBand
	RoCE
	RoCEv2
	IWARP
	ERDMA
)

// String names the kind as users write it.
func (r RDMA) String() string {
	return name(int(r), "none", "infiniband", "roce", "rocev2", "iwarp", "erdma")
}

// NIC is one network port.
type NIC struct {
	Name string
	RDMA RDMA
	Gbps int32
	Rail int16 // which of the parallel fabrics it belongs to; -1 where the network has no rails
	PCIe PCIe
}

// Tier is where a machine stands between the user and the data centre.
type Tier uint8

// Tiers: rising power, rising latency (a few ms, tens of ms, hundreds of ms). The zero value is Cloud.
const (
	Cloud Tier = iota
	Edge
	OnDevice
)

// String names the tier.
func (t Tier) String() string { return name(int(t), "cloud", "edge", "device") }

// Position places a machine in the network, from the nearest switch outwards. Empty names mean "not told".
type Position struct{ Leaf, Spine, Pod, Zone string }

// Machine is one host with its cards.
type Machine struct {
	Name         string
	CPU          Milli // thousandths of a core
	Memory       Bytes // of the host
	Devices      []Device
	Links        []Link
	NICs         []NIC
	NVLinkDomain string // NVLink joined across machines (NVL32/72); empty when it ends at the chassis
	Position     Position
	Tier         Tier
	Pool         Pool
}

// Validate reports every inconsistency of the machine at once: device indexes that do not count up from zero,
// links that name cards it has not, negative sizes.
func (m *Machine) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("machine %q: "+format, append([]any{m.Name}, args...)...))
	}
	if m.Name == "" {
		bad("name is empty")
	}
	if m.CPU < 0 || m.Memory < 0 {
		bad("cpu %v and memory %v must not be negative", m.CPU, m.Memory)
	}
	for i, d := range m.Devices {
		if d.Index != i {
			bad("device %d has index %d: expected indexes from 0 without gaps", i, d.Index)
		}
		if d.Memory < 0 {
			bad("device %d: memory %v must not be negative", i, d.Memory)
		}
	}
	for i, l := range m.Links {
		if l.A < 0 || l.B < 0 || l.A >= len(m.Devices) || l.B >= len(m.Devices) || l.A == l.B {
			bad("link %d joins cards %d and %d: expected two different cards of 0..%d", i, l.A, l.B, len(m.Devices)-1)
		}
	}
	return errors.Join(errs...)
}

// Bandwidth relations between two cards, as comparable whole numbers; they are ranks with the ratio of real
// links in mind, not measurements: one NVLink of the Volta generation ≈ 25 GB/s, PCIe 3.0 x16 ≈ 12 GB/s.
const (
	rankCrossSocket = 4
	rankSameNUMA    = 6
	rankSameBridge  = 9
	rankSameSwitch  = 12
	rankPerNVLink   = 25
	rankNVSwitch    = 300
)

// Affinity returns the matrix of pairwise link ranks of the machine's cards, row-major, diagonal zero: the sum
// of NVLink and NVSwitch ranks where cards are joined, else the rank of their PCIe distance.
func (m *Machine) Affinity() []int32 {
	n := len(m.Devices)
	out := make([]int32, n*n)
	pcie := [...]int32{rankSameSwitch, rankSameBridge, rankSameNUMA, rankCrossSocket}
	for i := range n {
		for j := range n {
			if i != j {
				out[i*n+j] = pcie[m.Devices[i].PCIe.To(m.Devices[j].PCIe)]
			}
		}
	}
	linked := make([]int32, n*n)
	for _, l := range m.Links {
		rank := int32(l.Count) * rankPerNVLink
		if l.Kind == NVSwitch {
			rank = rankNVSwitch
		}
		linked[l.A*n+l.B] += rank
		linked[l.B*n+l.A] += rank
	}
	for i, v := range linked {
		if v > 0 {
			out[i] = v
		}
	}
	return out
}

// NearestNIC returns the index of the NIC nearest to card d among those that offer the wanted kind (NoRDMA
// accepts any), preferring speed and then order; ok is false when there is none.
func (m *Machine) NearestNIC(d int, want RDMA) (nic int, at Distance, ok bool) {
	for i, n := range m.NICs {
		if want != NoRDMA && n.RDMA != want {
			continue
		}
		dist := m.Devices[d].PCIe.To(n.PCIe)
		if !ok || dist < at || dist == at && n.Gbps > m.NICs[nic].Gbps {
			nic, at, ok = i, dist, true
		}
	}
	return nic, at, ok
}
