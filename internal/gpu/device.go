package gpu

import "fmt"

// Model names a kind of card as its vendor or the trace spells it ("H200", "T4", "V100M32").
type Model string

// Pool is the name of a share of the cluster that one scheduler, or one mode of use, owns.
type Pool string

// Health says whether a device may take new work.
type Health uint8

// Health states. The zero value is Healthy, so that a fleet read from a trace is usable.
const (
	Healthy  Health = iota
	Draining        // existing work stays, new work is refused
	Failed          // the driver reported an unrecoverable fault (Xid, fallen off the bus)
)

// String names the state.
func (h Health) String() string { return name(int(h), "healthy", "draining", "failed") }

// ComputeCapability is NVIDIA's version of the instruction set and its features, 9.0 for Hopper.
type ComputeCapability struct{ Major, Minor uint8 }

// AtLeast reports whether c can run what was built for o.
func (c ComputeCapability) AtLeast(o ComputeCapability) bool {
	return c.Major > o.Major || c.Major == o.Major && c.Minor >= o.Minor
}

// String prints "9.0".
func (c ComputeCapability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// PCIe is where a function sits in its machine. GPUDirect RDMA is judged by it: a NIC and a GPU below the same
// switch exchange data without crossing the host bridge.
type PCIe struct {
	Address string // domain:bus:device.function, "0000:3b:00.0"; empty where unknown
	Switch  int16  // identity of the PCIe switch; -1 where the function hangs on the root port
	Bridge  int16  // identity of the host bridge (root complex)
	NUMA    int16  // NUMA node; -1 where the firmware does not say
}

// Distance is how far two functions of one machine are apart on the PCIe fabric. Smaller is nearer.
type Distance uint8

// Distances, nearest first; nvidia-smi topo prints them as PIX/PXB, PHB, NODE and SYS.
const (
	SameSwitch Distance = iota
	SameBridge
	SameNUMA
	CrossSocket
)

// String names the distance.
func (d Distance) String() string {
	return name(int(d), "same PCIe switch", "same host bridge", "same NUMA node", "across sockets")
}

// To judges the distance between two functions of one machine.
func (p PCIe) To(o PCIe) Distance {
	switch {
	case p.Switch >= 0 && p.Switch == o.Switch && p.Bridge == o.Bridge:
		return SameSwitch
	case p.Bridge == o.Bridge && p.NUMA == o.NUMA:
		return SameBridge
	case p.NUMA >= 0 && p.NUMA == o.NUMA:
		return SameNUMA
	}
	return CrossSocket
}

// Codec counts the fixed-function video engines of a card.
type Codec struct{ Encoders, Decoders uint8 }

// Device is one card.
type Device struct {
	Index      int
	UUID       string
	Model      Model
	Memory     Bytes
	Capability ComputeCapability
	Codec      Codec
	Graphics   bool // the card serves OpenGL/Vulkan/EGL (MIG instances and some server cards do not)
	PCIe       PCIe
	Health     Health
	MIG        []MIGInstance // instances present now; empty when MIG is off
	Profiles   []MIGProfile  // instance sizes the card offers in MIG mode
	MIGMode    bool          // the card is in MIG mode (changing it needs a reset and root)
}

// MIGProfile is a GPU-instance size the card offers.
type MIGProfile struct {
	Name    string // "3g.71gb"
	Slices  uint8  // compute slices of 1/7
	Memory  Bytes
	Starts  []uint8 // allowed placements, as the first memory slice of 1/8
	Extent  uint8   // memory slices it covers
	Encoder uint8
	Decoder uint8
}

// MIGInstance is one instance, present or planned, at a placement of its profile.
type MIGInstance struct {
	Profile string
	Start   uint8 // first memory slice
	Extent  uint8 // memory slices covered
}

// name picks the label of an enumerated value and prints numbers outside the list as numbers.
func name(i int, labels ...string) string {
	if i < len(labels) {
		return labels[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}
