package kernel

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// Status words of the call structures, by offset (nvos.h).
const (
	allocStatus48 = 40
	allocStatus32 = 28
	freeStatus    = 12
	controlStatus = 28
	dupStatus     = 24
	heapStatus    = 20
	memoryStatus  = 40
)

// vramGranule is what a request for device memory is rounded up to before it
// is compared with the quota; the driver's own rounding, if larger, is charged
// when its answer shows it.
const vramGranule = 64 << 10

// hugeGranule is the driver's page size for large allocations.
const hugeGranule = 2 << 20

// maxVRAM is above any card and low enough that sums cannot overflow.
const maxVRAM = 1 << 50

// reserveVRAM rounds a request up to what the driver takes at most: it backs
// larger ones with huge pages.
func reserveVRAM(n uint64) (int64, bool) {
	got, ok := roundVRAM(n)
	if got > hugeGranule/2 {
		got = (got + hugeGranule - 1) &^ (hugeGranule - 1)
	}
	return got, ok
}

func roundVRAM(n uint64) (int64, bool) {
	if n > maxVRAM {
		return 0, false
	}
	return int64((n + vramGranule - 1) &^ (vramGranule - 1)), true
}

// alloc judges RM_ALLOC.
func (s *Session) alloc(k *call) answer {
	status := allocStatus48
	if len(k.arg) < nvidia.SizeAlloc64 {
		status = allocStatus32
	}
	a, err := nvidia.DecodeAlloc(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	if a.Class.IsRootClient() {
		return s.root(k, a, status)
	}
	row, ok := s.table.Class(a.Class)
	if !ok {
		return s.unknown(k, &staged{}, status, fmt.Sprintf("class %#x", uint32(a.Class)))
	}
	switch row.Verdict {
	case nvidia.Refuse:
		return s.deny(k, row.Refusal, status, row.Name+" is not for tenants")
	case nvidia.Caller:
		return s.letRun()
	case nvidia.Pinned:
		return s.pinned(k, a.Root, a.Parent, a.New, a.Class)
	}
	if d := s.place(k, a.Root, a.Parent, row); d != nil {
		return s.deny(k, d.status, status, d.why)
	}
	st := &staged{}
	params, err := s.stageAlloc(k, st, a, row)
	if err != nil {
		return s.abort(k, st, err)
	}
	return s.allocStaged(k, st, a, row, params, status)
}

// stageAlloc copies the class parameters and the rights mask.
func (s *Session) stageAlloc(k *call, st *staged, a nvidia.Alloc, row nvidia.ClassRow) ([]byte, error) {
	// The driver reads the class's own number of bytes, whatever the caller
	// says its parameters have.
	size := row.ParamsSize()
	if a.Params == 0 {
		size = 0
	}
	if a.Params != 0 && a.ParamsSize > size {
		return nil, fmt.Errorf("%s with %d bytes of parameters, want %d: %w", row.Name, a.ParamsSize, size, errTooBig)
	}
	params, err := s.stage(k, st, k.arg[16:24], size, nvidia.InOut)
	if err != nil {
		return nil, err
	}
	if len(k.arg) >= nvidia.SizeAlloc64 && a.Rights != 0 {
		if _, err := s.stage(k, st, k.arg[24:32], rightsBytes, nvidia.InOut); err != nil {
			return nil, err
		}
	}
	if params == nil {
		return nil, nil
	}
	if err := s.ownClients(params, row.Clients); err != nil {
		return nil, err
	}
	return params, s.stageAll(k, st, params, row.Ptrs, row.FDs)
}

// rightsBytes is sizeof(RS_ACCESS_MASK), one 32-bit limb (rs_access.h).
const rightsBytes = 4

// allocStaged reserves what the object will cost, makes the call, and settles
// the reservation with what came of it.
func (s *Session) allocStaged(k *call, st *staged, a nvidia.Alloc, row nvidia.ClassRow, params []byte, status int) answer {
	p, refusal := s.plan(a, row, params)
	if refusal == nil {
		refusal = s.reserve(p)
	}
	if refusal != nil {
		st.unstage(k)
		if refusal.quota {
			return s.denyQuota(k, status, refusal.why)
		}
		return s.deny(k, refusal.status, status, refusal.why)
	}
	return s.purchaseCall(k, st, p, func() {
		done, err := nvidia.DecodeAlloc(k.arg)
		if err != nil || done.Status != nvidia.StatusOK {
			s.cancel(p)
			return
		}
		if !s.settle(k, done, p, params) {
			s.overfull(k, status)
		}
	})()
}

// purchase is an allocation that is reserved but not made yet.
type purchase struct {
	class    nvidia.Class
	vram     bool
	bytes    int64 // reserved
	overhead int64
	group    *group // a TSG or bare channel to be governed
	foreign  bool   // a device that was not granted
	channel  bool
	parent   nvidia.Handle
}

// denial is why an allocation is not made.
type denial struct {
	status nvidia.Status
	quota  bool
	why    string
}

// place judges where an allocation hangs, whichever call makes it: under an
// object of the tenant's that is what it was made as, and, for what takes
// something of a card, under a card that was granted.
func (s *Session) place(k *call, root, parent nvidia.Handle, row nvidia.ClassRow) *denial {
	if s.level == Strict && parent != root && !s.usable(root, parent, k.file) {
		return &denial{status: nvidia.StatusInvalidObjectParent, why: "allocation under an object that the ledger does not know"}
	}
	heavy := row.Kind == nvidia.KindMemory || row.Kind == nvidia.KindGroup || row.Kind == nvidia.KindChannel
	if heavy && s.onForeign(root, parent) {
		return &denial{status: nvidia.StatusInsufficientPermissions, why: row.Name + " on a card that was not granted"}
	}
	return nil
}

// plan works out what an allocation costs and whom it concerns.
func (s *Session) plan(a nvidia.Alloc, row nvidia.ClassRow, params []byte) (*purchase, *denial) {
	p := &purchase{class: a.Class, parent: a.Parent}
	switch row.Kind {
	case nvidia.KindDevice:
		s.planDevice(p, params)
	case nvidia.KindMemory:
		return p, p.planMemory(row, params)
	case nvidia.KindGroup:
		return p, s.planGroup(p, a, params)
	case nvidia.KindChannel:
		return p, s.planChannel(p, a, params)
	}
	return p, nil
}

// planMemory reads the size of a memory object, and whether it is the card's.
func (p *purchase) planMemory(row nvidia.ClassRow, params []byte) *denial {
	if !row.VRAM {
		return nil
	}
	if row.Class == nvidia.ClassMemoryFabric {
		return p.planFabric(params)
	}
	m, err := nvidia.DecodeMemoryParams(params)
	if err != nil {
		return &denial{status: nvidia.StatusInvalidParamStruct, why: row.Name + " without its parameters"}
	}
	if !m.VRAM() {
		return nil
	}
	n, ok := reserveVRAM(m.Size)
	if !ok {
		return &denial{status: nvidia.StatusNoMemory, quota: true, why: "absurd size"}
	}
	p.vram, p.bytes = true, n
	return nil
}

// Offsets in NV00F8_ALLOCATION_PARAMETERS (cl00f8.h).
const (
	fabricSize   = 8
	fabricVidMem = 40
)

// planFabric charges a fabric object unless it stands for memory that is
// charged already.
func (p *purchase) planFabric(params []byte) *denial {
	size, err1 := nvidia.U64At(params, fabricSize)
	attached, err2 := nvidia.U32At(params, fabricVidMem)
	if err1 != nil || err2 != nil {
		return &denial{status: nvidia.StatusInvalidParamStruct, why: "fabric memory without its parameters"}
	}
	if attached != 0 {
		return nil
	}
	n, ok := reserveVRAM(size)
	if !ok {
		return &denial{status: nvidia.StatusNoMemory, quota: true, why: "absurd size"}
	}
	p.vram, p.bytes = true, n
	return nil
}

// reserve charges a purchase before it is made: two threads that both fit
// alone can then never pass together.
func (s *Session) reserve(p *purchase) *denial {
	if p.bytes == 0 && p.overhead == 0 {
		return nil
	}
	err := s.tryReserve(p)
	if err != nil && s.reclaim() {
		err = s.tryReserve(p)
	}
	if err != nil {
		return &denial{status: nvidia.StatusNoMemory, quota: true, why: err.Error()}
	}
	return nil
}

func (s *Session) tryReserve(p *purchase) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ledger.room(p.bytes + p.overhead); err != nil {
		return err
	}
	s.ledger.reserved += p.bytes + p.overhead
	return nil
}

// cancel gives a reservation back.
func (s *Session) cancel(p *purchase) {
	s.mu.Lock()
	s.ledger.reserved -= p.bytes + p.overhead
	s.mu.Unlock()
	p.bytes, p.overhead = 0, 0
}

// settle turns a reservation into a ledger entry, at the size that the driver
// really gave, and puts new scheduling groups under the governor before the
// tenant can submit to them. An object that turns out larger than fits is
// freed again before the tenant hears of it, and false returned.
func (s *Session) settle(k *call, done nvidia.Alloc, p *purchase, params []byte) bool {
	o := &object{handle: done.New, parent: done.Parent, class: p.class, overhead: p.overhead, group: p.group, foreign: p.foreign}
	if p.vram {
		o.mem = &memory{bytes: p.bytes}
		if m, err := nvidia.DecodeMemoryParams(params); err == nil && p.class != nvidia.ClassMemoryFabric {
			// The driver writes the size it really took.
			if got, ok := roundVRAM(m.Size); ok && got > 0 {
				o.mem.bytes = got
			}
		}
	}
	s.cancel(p)
	if !s.enter(k, done.Root, o) {
		return false
	}
	if p.group != nil {
		s.govern(done, p)
	}
	return true
}

// overfull turns the answer of an allocation that could not be kept into that
// of a full card.
func (s *Session) overfull(k *call, status int) {
	s.count.overQuota.Add(1)
	_ = nvidia.PutU32At(k.arg, uint32(status), uint32(nvidia.StatusNoMemory))
}

// denyQuota refuses device memory the way a full card does.
func (s *Session) denyQuota(k *call, status int, why string) answer {
	s.count.overQuota.Add(1)
	return s.deny(k, nvidia.StatusNoMemory, status, "over quota: "+why)
}
