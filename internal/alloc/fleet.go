package alloc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Fleet is what is free on every machine, as arrays by node and by card, and the grants that took the rest.
// Nodes keep the order in which they were given: ties in scores go to the first. A Fleet has one writer; Clone
// gives another goroutine its own.
type Fleet struct {
	*inventory
	cpu     []gpu.Milli          // free, by node
	memory  []gpu.Bytes          // free host memory, by node
	kinds   []kindTally          // tenants by kind, by node
	compute []gpu.Milli          // free, by card
	vram    []gpu.Bytes          // free, by card
	codec   []gpu.Milli          // free, by card
	render  []gpu.Milli          // free, by card
	tenants []uint16             // by card
	sealed  []uint8              // tenants that tolerate no neighbour (Exclusive), by card
	turns   []uint8              // tenants that take turns (TimeSharing), by card
	classes [][classCount]uint16 // tenants by class of work, by card
	mig     []uint8              // memory slices that instances cover, by card
	health  []gpu.Health
	grants  map[string]*Grant
	total   int64 // free compute of all cards

	version []uint32 // by node; rises with every change and never falls, not even on undo
	log     []int32  // nodes in the order of their changes; logBase entries were forgotten
	logBase int
}

// kindTally counts the tenants of a node by kind of request, cards counted up to MaxCards.
type kindTally [MaxCards + 2]uint16 // 0: no card, 1: part of a card, 1+n: n whole cards

// inventory is the part of a fleet that grants do not change; clones share it.
type inventory struct {
	names    []string
	index    map[string]int
	cpuCap   []gpu.Milli
	memCap   []gpu.Bytes
	vramCap  []gpu.Bytes        // by card
	profiles [][]gpu.MIGProfile // by card; nil unless it is in MIG mode
	offset   []int32            // first card of each node; one more at the end
	model    []int16            // by node, into models
	models   []gpu.Model
	machines []gpu.Machine
	affinity [][]int32 // link ranks by node; nil where all pairs are equal
}

// MaxTurns is how many time-sharing tenants one card takes.
const MaxTurns = 4

// NewFleet lists the machines as entirely free. It fails on machines that do not validate, on names that repeat,
// on more than MaxCards cards, and on cards of two models in one machine.
func NewFleet(machines []gpu.Machine) (*Fleet, error) {
	inv := &inventory{index: make(map[string]int, len(machines)), machines: machines, offset: []int32{0}}
	f := &Fleet{inventory: inv, grants: map[string]*Grant{}}
	modelIDs := map[gpu.Model]int16{}
	var errs []error
	for i := range machines {
		m := &machines[i]
		if err := m.Validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		if j, dup := inv.index[m.Name]; dup {
			errs = append(errs, fmt.Errorf("machine %q appears as number %d and %d", m.Name, j, i))
		}
		if len(m.Devices) > MaxCards {
			errs = append(errs, fmt.Errorf("machine %q has %d cards: expected at most %d", m.Name, len(m.Devices), MaxCards))
			continue
		}
		var model gpu.Model
		for j, d := range m.Devices {
			if j > 0 && d.Model != model {
				errs = append(errs, fmt.Errorf("machine %q mixes models %q and %q: list it as two machines", m.Name, model, d.Model))
			}
			model = d.Model
			f.addCard(d)
		}
		id, ok := modelIDs[model]
		if !ok {
			id = int16(len(inv.models))
			modelIDs[model], inv.models = id, append(inv.models, model)
		}
		inv.add(i, m, id)
		f.cpu, f.memory = append(f.cpu, m.CPU), append(f.memory, m.Memory)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	f.kinds = make([]kindTally, len(machines))
	f.version = make([]uint32, len(machines))
	return f, nil
}

func (inv *inventory) add(i int, m *gpu.Machine, model int16) {
	inv.index[m.Name] = i
	inv.names = append(inv.names, m.Name)
	inv.cpuCap, inv.memCap = append(inv.cpuCap, m.CPU), append(inv.memCap, m.Memory)
	inv.model = append(inv.model, model)
	inv.offset = append(inv.offset, inv.offset[len(inv.offset)-1]+int32(len(m.Devices)))
	for _, d := range m.Devices {
		inv.vramCap = append(inv.vramCap, d.Memory)
		var offers []gpu.MIGProfile
		if d.MIGMode {
			offers = append(make([]gpu.MIGProfile, 0, len(d.Profiles)), d.Profiles...)
		}
		inv.profiles = append(inv.profiles, offers)
	}
	var ranks []int32
	if len(m.Links) > 0 {
		ranks = m.Affinity()
	}
	inv.affinity = append(inv.affinity, ranks)
}

func (f *Fleet) addCard(d gpu.Device) {
	f.compute, f.vram = append(f.compute, gpu.Card), append(f.vram, d.Memory)
	f.codec, f.render = append(f.codec, gpu.Card), append(f.render, gpu.Card)
	f.tenants, f.sealed, f.turns = append(f.tenants, 0), append(f.sealed, 0), append(f.turns, 0)
	f.classes = append(f.classes, [classCount]uint16{})
	f.mig = append(f.mig, 0)
	f.health = append(f.health, d.Health)
	f.total += int64(gpu.Card)
}

// Clone returns an independent copy for a what-if elsewhere; the inventory is shared, the free amounts are not.
func (f *Fleet) Clone() *Fleet {
	c := *f
	c.cpu, c.memory, c.kinds = slices.Clone(f.cpu), slices.Clone(f.memory), slices.Clone(f.kinds)
	c.compute, c.vram = slices.Clone(f.compute), slices.Clone(f.vram)
	c.codec, c.render = slices.Clone(f.codec), slices.Clone(f.render)
	c.tenants, c.sealed, c.turns = slices.Clone(f.tenants), slices.Clone(f.sealed), slices.Clone(f.turns)
	c.classes, c.mig = slices.Clone(f.classes), slices.Clone(f.mig)
	c.health, c.version = slices.Clone(f.health), slices.Clone(f.version)
	c.log = slices.Clone(f.log)
	c.grants = make(map[string]*Grant, len(f.grants))
	for id, g := range f.grants {
		c.grants[id] = g
	}
	return &c
}

// Nodes is the number of machines, Cards the number of cards in all.
func (f *Fleet) Nodes() int { return len(f.names) }

// Cards is the number of cards of all machines.
func (f *Fleet) Cards() int { return len(f.compute) }

// Name returns the name of a node.
func (f *Fleet) Name(node int) string { return f.names[node] }

// Find returns the number of the node with that name.
func (f *Fleet) Find(name string) (node int, ok bool) { node, ok = f.index[name]; return node, ok }

// Machine returns what was observed about a node.
func (f *Fleet) Machine(node int) *gpu.Machine { return &f.machines[node] }

// FreeCPU is what is left of a node's CPU.
func (f *Fleet) FreeCPU(node int) gpu.Milli { return f.cpu[node] }

// FreeMemory is what is left of a node's host memory.
func (f *Fleet) FreeMemory(node int) gpu.Bytes { return f.memory[node] }

// FreeCards returns the free compute of each card of a node. The slice is the fleet's own: read it only.
func (f *Fleet) FreeCards(node int) []gpu.Milli {
	return f.compute[f.offset[node]:f.offset[node+1]:f.offset[node+1]]
}

// Model is the kind of card a node has; empty for a node without cards.
func (f *Fleet) Model(node int) gpu.Model { return f.models[f.model[node]] }

// FreeCompute is the free compute of all cards, in thousandths of a card.
func (f *Fleet) FreeCompute() int64 { return f.total }

// TotalCompute is the compute of all cards, free or not.
func (f *Fleet) TotalCompute() int64 { return int64(f.Cards()) * int64(gpu.Card) }

// Granted returns the grant of that ID.
func (f *Fleet) Granted(id string) (*Grant, bool) { g, ok := f.grants[id]; return g, ok }

// SetHealth records the state of a card; existing grants stay.
func (f *Fleet) SetHealth(node, card int, h gpu.Health) {
	f.health[int(f.offset[node])+card] = h
	f.touch(node)
}

// touch records that a node changed.
func (f *Fleet) touch(node int) {
	f.version[node]++
	if len(f.log) >= 4*len(f.names)+1024 { // forget the older half; who is behind rescores everything
		half := len(f.log) / 2
		f.log = append(f.log[:0], f.log[half:]...)
		f.logBase += half
	}
	f.log = append(f.log, int32(node))
}

// changes returns the nodes touched since position pos, with repeats, and whether that far back is remembered.
func (f *Fleet) changes(pos int) ([]int32, bool) {
	if pos < f.logBase {
		return nil, false
	}
	return f.log[pos-f.logBase:], true
}

// now is the present position in the log of changes.
func (f *Fleet) now() int { return f.logBase + len(f.log) }
