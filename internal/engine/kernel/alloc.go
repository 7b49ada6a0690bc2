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
		s.count.continued.Add(1)
		return continueCall
	case nvidia.Pinned:
		return s.pinned(k, a.Root, a.Parent, a.New, a.Class)
	}
	if s.level == Strict && a.Parent != a.Root && !s.usable(a.Root, a.Parent, k.file) {
		return s.deny(k, nvidia.StatusInvalidObjectParent, status, "allocation under an object that the ledger does not know")
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
	executed := false
	finish := s.purchaseCall(k, st, p, func() {
		executed = true
		done, err := nvidia.DecodeAlloc(k.arg)
		if err != nil || done.Status != nvidia.StatusOK {
			s.cancel(p)
			return
		}
		if !s.settle(k, done, p, params) {
			s.count.overQuota.Add(1)
			_ = nvidia.PutU32At(k.arg, uint32(status), uint32(nvidia.StatusNoMemory))
		}
	})
	if !executed {
		s.cancel(p)
	}
	return finish()
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

// plan works out what an allocation costs and whom it concerns.
func (s *Session) plan(a nvidia.Alloc, row nvidia.ClassRow, params []byte) (*purchase, *denial) {
	p := &purchase{class: a.Class, parent: a.Parent}
	heavy := row.Kind == nvidia.KindMemory || row.Kind == nvidia.KindGroup || row.Kind == nvidia.KindChannel
	if heavy && s.onForeign(a.Root, a.Parent) {
		return p, &denial{status: nvidia.StatusInsufficientPermissions, why: row.Name + " on a card that was not granted"}
	}
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
	s.mu.Lock()
	err := s.ledger.room(p.bytes + p.overhead)
	s.mu.Unlock()
	if err != nil && s.reclaim() {
		s.mu.Lock()
		err = s.ledger.room(p.bytes + p.overhead)
		s.mu.Unlock()
	}
	if err != nil {
		return &denial{status: nvidia.StatusNoMemory, quota: true, why: err.Error()}
	}
	s.mu.Lock()
	s.ledger.reserved += p.bytes + p.overhead
	s.mu.Unlock()
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

// enter books an object under its client, which the ledger learns of here:
// the driver has just accepted its handle from this file. If it cannot be
// booked, because it is larger than asked for and does not fit or because the
// tenant has too many, it is freed and false returned.
func (s *Session) enter(k *call, root nvidia.Handle, o *object) bool {
	s.mu.Lock()
	c, err := s.client(k, root)
	if err == nil && o.mem != nil {
		err = s.ledger.room(o.mem.bytes)
	}
	if err == nil && s.ledger.count >= maxObjects {
		err = errTooMany
	}
	if err == nil {
		s.ledger.addObject(c, o)
		s.record(entryObject(c, o))
	}
	s.mu.Unlock()
	if err == nil {
		return true
	}
	s.refused("object that cannot be booked: " + err.Error())
	s.discard(k, root, o)
	return false
}

// discard frees an object that the driver has made and the tenant must not
// have.
func (s *Session) discard(k *call, root nvidia.Handle, o *object) {
	arg, _, ok := s.arena.Take(nvidia.SizeFree)
	if !ok || (nvidia.Free{Root: root, Parent: o.parent, Object: o.handle}).Put(arg) != nil {
		return
	}
	ctl := k.file
	s.mu.Lock()
	if c := s.ledger.clients[root]; c != nil {
		for _, h := range s.held {
			if h.id == c.held {
				ctl = h.file // the call may have come on a card's file
			}
		}
	}
	s.mu.Unlock()
	if _, err := s.driver.Ioctl(ctl, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), arg); err != nil {
		s.log.Error("free an object that cannot be booked", "tenant", s.tenant, "err", err)
	}
}

// client returns the ledger's client for a root handle that the driver has
// just accepted from the caller's file. The lock is held.
func (s *Session) client(k *call, root nvidia.Handle) (*client, error) {
	if c := s.ledger.clients[root]; c != nil {
		return c, nil
	}
	if k.file.Kind != ControlFile {
		return nil, errForeignClient
	}
	h, err := s.hold(k)
	if err != nil {
		return nil, err
	}
	c := s.ledger.addClient(root, h.id)
	s.record(entryClient(c))
	return c, nil
}

// denyQuota refuses device memory the way a full card does.
func (s *Session) denyQuota(k *call, status int, why string) answer {
	s.count.overQuota.Add(1)
	return s.deny(k, nvidia.StatusNoMemory, status, "over quota: "+why)
}

// free judges RM_FREE: forwarded, and refunded when the driver agrees.
func (s *Session) free(k *call) answer {
	var gone freed
	emptied := -1
	asked, err := nvidia.DecodeFree(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	last := func(l *ledger) bool { return l.lastReference(asked.Root, asked.Object) }
	a := s.giveBack(k, last, func() {
		f, err := nvidia.DecodeFree(k.arg)
		if err != nil || f.Status != nvidia.StatusOK {
			return
		}
		if f.Object == f.Root {
			emptied = 0
			if c := s.ledger.clients[f.Root]; c != nil {
				emptied = c.held
			}
		}
		gone = s.ledger.freeHandle(f.Root, f.Object)
		s.record(entryFree(f.Root, f.Object))
	})
	s.retire(gone)
	if emptied >= 0 {
		s.letGo(emptied, k)
	}
	return a
}

// letGo gives up a file whose client was freed, so that another may be made
// on it. The client may never have been seen in use.
func (s *Session) letGo(id int, k *call) {
	s.mu.Lock()
	var h *held
	for _, x := range s.held {
		if x.id == id || (id == 0 && x.file.Kind == ControlFile && !s.ledger.owned(x.id) && s.ops.same(x.file, k.file)) {
			h = x
		}
	}
	if h != nil && s.ledger.owned(h.id) {
		h = nil
	}
	s.mu.Unlock()
	if h != nil {
		s.release(h)
	}
}

// owned reports whether a client lives on a held file.
func (l *ledger) owned(id int) bool {
	for _, c := range l.clients {
		if c.held == id {
			return true
		}
	}
	return false
}

// dup judges DUP_OBJECT. Only objects of the tenant's own clients may be
// duplicated: with a leaked handle a neighbour's memory could be taken hold of.
func (s *Session) dup(k *call) answer {
	d, err := nvidia.DecodeDup(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	if !s.knows(d.SrcClient, d.SrcObject) || (s.level == Strict && d.Parent != d.Dst && !s.usable(d.Dst, d.Parent, k.file)) {
		return s.deny(k, nvidia.StatusInsufficientPermissions, dupStatus, "duplicate of an object that is not the tenant's")
	}
	if s.grouped(d.SrcClient, d.SrcObject) {
		return s.deny(k, nvidia.StatusNotSupported, dupStatus, "duplicate of a TSG or channel")
	}
	return s.forward(k, &staged{}, func() { s.duplicated(k) })
}

// duplicated books a successful duplicate: another handle on the same memory.
// A TSG or channel is not governed twice, but the group stays as long as either
// handle does only in the driver, so duplicating one is refused beforehand.
func (s *Session) duplicated(k *call) {
	d, err := nvidia.DecodeDup(k.arg)
	if err != nil || d.Status != nvidia.StatusOK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &object{handle: d.Object, parent: d.Parent}
	if sc := s.ledger.clients[d.SrcClient]; sc != nil && sc.objects[d.SrcObject] != nil {
		src := sc.objects[d.SrcObject]
		o.class, o.mem, o.unvetted = src.class, src.mem, src.unvetted
	}
	c, err := s.client(k, d.Dst)
	if err != nil {
		s.log.Error("duplicate by an unknown client", "tenant", s.tenant, "err", err)
		return
	}
	s.ledger.addObject(c, o)
	s.record(entryDup(d))
}

// vidHeap judges VID_HEAP_CONTROL, the allocation path of the graphics
// libraries.
func (s *Session) vidHeap(k *call) answer {
	v, err := nvidia.DecodeVidHeap(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	switch v.Function {
	case nvidia.HeapAllocSize, nvidia.HeapAllocTiled, nvidia.HeapAllocSizeRange:
		return s.heapAlloc(k, v)
	case nvidia.HeapFree:
		last := func(l *ledger) bool { return l.lastReference(v.Root, v.Memory) }
		return s.giveBack(k, last, func() {
			if v, err := nvidia.DecodeVidHeap(k.arg); err == nil && v.Status == nvidia.StatusOK {
				s.ledger.freeHandle(v.Root, v.Memory)
				s.record(entryFree(v.Root, v.Memory))
			}
			s.heapTotalsLocked(k)
		})
	case nvidia.HeapInfo, nvidia.HeapGetMemAlignment, nvidia.HeapReleaseCompr, nvidia.HeapReacquireCompr:
		return s.forward(k, &staged{}, func() { s.heapTotals(k) })
	case nvidia.HeapAllocOSDesc:
		return s.pinned(k, v.Root, v.Parent, v.Memory, nvidia.ClassOSDescriptor)
	}
	return s.unknown(k, &staged{}, heapStatus, fmt.Sprintf("VID_HEAP_CONTROL function %d", v.Function))
}

func (s *Session) heapAlloc(k *call, v nvidia.VidHeap) answer {
	p := &purchase{class: nvidia.ClassMemoryLocalUser, parent: v.Parent}
	if v.VRAM() {
		n, ok := reserveVRAM(v.Size)
		if !ok {
			return s.denyQuota(k, heapStatus, "absurd size")
		}
		p.vram, p.bytes = true, n
	}
	if d := s.reserve(p); d != nil {
		return s.denyQuota(k, heapStatus, d.why)
	}
	executed := false
	finish := s.purchaseCall(k, &staged{}, p, func() {
		executed = true
		done, err := nvidia.DecodeVidHeap(k.arg)
		if err != nil || done.Status != nvidia.StatusOK {
			s.cancel(p)
		} else {
			o := &object{handle: done.Memory, parent: done.Parent, class: p.class}
			if p.vram {
				o.mem = &memory{bytes: p.bytes}
				if got, ok := roundVRAM(done.Size); ok && got > 0 {
					o.mem.bytes = got
				}
			}
			s.cancel(p)
			if !s.enter(k, done.Root, o) {
				s.count.overQuota.Add(1)
				_ = nvidia.PutU32At(k.arg, heapStatus, uint32(nvidia.StatusNoMemory))
			}
		}
		s.heapTotals(k)
	})
	if !executed {
		s.cancel(p)
	}
	return finish()
}

// heapTotals replaces the card's size and free bytes, which the driver
// reports with every heap call, by the tenant's.
func (s *Session) heapTotals(k *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heapTotalsLocked(k)
}

func (s *Session) heapTotalsLocked(k *call) {
	v, err := nvidia.DecodeVidHeap(k.arg)
	if err != nil || v.Total == 0 || s.ledger.limit == 0 {
		return
	}
	total := min(int64(v.Total), s.ledger.limit)
	_ = nvidia.PutVidHeapTotals(k.arg, uint64(total), uint64(s.ledger.free(int64(v.Total))))
}

// allocMemory judges ALLOC_MEMORY, the third path to device memory.
func (s *Session) allocMemory(k *call) answer {
	a, err := nvidia.DecodeAllocMemory(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	row, ok := s.table.Class(a.Class)
	if !ok {
		return s.unknown(k, &staged{}, memoryStatus, fmt.Sprintf("ALLOC_MEMORY class %#x", uint32(a.Class)))
	}
	if a.Class == nvidia.ClassOSDescriptor {
		return s.pinned(k, a.Root, a.Parent, a.New, a.Class)
	}
	if row.Kind != nvidia.KindMemory || row.Verdict == nvidia.Refuse {
		return s.deny(k, nvidia.StatusInvalidClass, memoryStatus, "ALLOC_MEMORY of "+row.Name)
	}
	p := &purchase{class: a.Class, parent: a.Parent}
	if row.VRAM {
		n, ok := reserveVRAM(a.Length())
		if !ok {
			return s.denyQuota(k, memoryStatus, "absurd size")
		}
		p.vram, p.bytes = true, n
	}
	if d := s.reserve(p); d != nil {
		return s.denyQuota(k, memoryStatus, d.why)
	}
	st := &staged{}
	if err := s.swapFD(k, st, k.arg, nvidia.FD{Offset: 48, Kind: nvidia.FDControl}); err != nil {
		s.cancel(p)
		return s.abort(k, st, err)
	}
	executed := false
	finish := s.purchaseCall(k, st, p, func() {
		executed = true
		done, err := nvidia.DecodeAllocMemory(k.arg)
		ok := err == nil && done.Status == nvidia.StatusOK
		o := &object{handle: done.New, parent: done.Parent, class: p.class}
		if p.vram {
			o.mem = &memory{bytes: p.bytes}
		}
		s.cancel(p)
		if ok && !s.enter(k, done.Root, o) {
			s.count.overQuota.Add(1)
			_ = nvidia.PutU32At(k.arg, memoryStatus, uint32(nvidia.StatusNoMemory))
		}
	})
	if !executed {
		s.cancel(p)
	}
	return finish()
}
