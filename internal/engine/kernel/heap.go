package kernel

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

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
		var gone freed
		a := s.giveBack(k, last, func() {
			if v, err := nvidia.DecodeVidHeap(k.arg); err == nil && v.Status == nvidia.StatusOK {
				gone = s.ledger.freeHandle(v.Root, v.Memory)
				s.record(entryFree(v.Root, v.Memory))
			}
			s.heapTotalsLocked(k)
		})
		s.retire(gone)
		return a
	case nvidia.HeapInfo, nvidia.HeapGetMemAlignment, nvidia.HeapReleaseCompr, nvidia.HeapReacquireCompr:
		return s.forward(k, &staged{}, func() { s.heapTotals(k) })
	case nvidia.HeapAllocOSDesc:
		return s.pinned(k, v.Root, v.Parent, v.Memory, nvidia.ClassOSDescriptor)
	}
	return s.unknown(k, &staged{}, heapStatus, fmt.Sprintf("VID_HEAP_CONTROL function %d", v.Function))
}

func (s *Session) heapAlloc(k *call, v nvidia.VidHeap) answer {
	row, _ := s.table.Class(nvidia.ClassMemoryLocalUser)
	if d := s.place(k, v.Root, v.Parent, row); d != nil {
		return s.deny(k, d.status, heapStatus, d.why)
	}
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
	return s.purchaseCall(k, &staged{}, p, func() {
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
				s.overfull(k, heapStatus)
			}
		}
		s.heapTotals(k)
	})()
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
	if d := s.place(k, a.Root, a.Parent, row); d != nil {
		return s.deny(k, d.status, memoryStatus, d.why)
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
	return s.purchaseCall(k, st, p, func() {
		done, err := nvidia.DecodeAllocMemory(k.arg)
		ok := err == nil && done.Status == nvidia.StatusOK
		o := &object{handle: done.New, parent: done.Parent, class: p.class}
		if p.vram {
			o.mem = &memory{bytes: p.bytes}
		}
		s.cancel(p)
		if ok && !s.enter(k, done.Root, o) {
			s.overfull(k, memoryStatus)
		}
	})()
}
