package nvidia

// VidHeapFunction selects what VID_HEAP_CONTROL does: NVOS32_FUNCTION_* of nvos.h.
type VidHeapFunction uint32

// The functions.
const (
	HeapAllocSize       VidHeapFunction = 2
	HeapFree            VidHeapFunction = 3
	HeapInfo            VidHeapFunction = 5
	HeapAllocTiled      VidHeapFunction = 6
	HeapAllocSizeRange  VidHeapFunction = 14
	HeapReacquireCompr  VidHeapFunction = 15
	HeapReleaseCompr    VidHeapFunction = 16
	HeapGetMemAlignment VidHeapFunction = 18
	HeapHwAlloc         VidHeapFunction = 19 // refused: it carries a kernel callback
	HeapHwFree          VidHeapFunction = 20
	HeapAllocOSDesc     VidHeapFunction = 27
)

// VidHeap is VID_HEAP_CONTROL: NVOS32_PARAMETERS. Memory and what follows are filled in for the functions that
// name memory; the places of Attr, Size and the rest depend on the function.
type VidHeap struct {
	Root, Parent Handle
	Function     VidHeapFunction
	VASpace      Handle
	Status       Status
	Total, Free  uint64

	Memory      Handle
	Type, Flags uint32
	Attr, Attr2 uint32
	Size        uint64 // for HeapAllocOSDesc: limit + 1
	Alignment   uint64
	Offset      uint64
	Limit       uint64
	Descriptor  uint64 // HeapAllocOSDesc: address in the tenant
	DescType    uint32 // HeapAllocOSDesc: what Descriptor is
}

// heapLayout holds the offsets of one function's variant; 0 means the variant has no such field.
type heapLayout struct {
	memory, typ, flags, attr, attr2, size, alignment, offset, limit int
}

func (f VidHeapFunction) layout() (heapLayout, bool) {
	switch f {
	case HeapAllocSize:
		return heapLayout{44, 48, 52, 56, 144, 88, 96, 104, 112}, true
	case HeapAllocTiled:
		return heapLayout{44, 48, 52, 64, 144, 88, 96, 104, 112}, true
	case HeapAllocSizeRange:
		return heapLayout{44, 48, 52, 56, 136, 80, 88, 96, 104}, true
	case HeapFree:
		return heapLayout{memory: 44, flags: 48}, true
	case HeapReleaseCompr, HeapReacquireCompr:
		return heapLayout{memory: 48, flags: 44}, true
	case HeapAllocOSDesc:
		return heapLayout{memory: 40, typ: 44, flags: 48, attr: 52, attr2: 56, limit: 72}, true
	}
	return heapLayout{}, false
}

// Allocates says whether the function makes a memory object of a size the caller names.
func (f VidHeapFunction) Allocates() bool {
	return f == HeapAllocSize || f == HeapAllocTiled || f == HeapAllocSizeRange
}

// DecodeVidHeap reads the call.
func DecodeVidHeap(b []byte) (VidHeap, error) {
	if err := need(b, SizeVidHeap, "VID_HEAP_CONTROL"); err != nil {
		return VidHeap{}, err
	}
	v := VidHeap{
		Root: handle(b, 0), Parent: handle(b, 4), Function: VidHeapFunction(u32(b, 8)), VASpace: handle(b, 12),
		Status: Status(u32(b, 20)), Total: u64(b, 24), Free: u64(b, 32),
	}
	l, ok := v.Function.layout()
	if !ok {
		return v, nil
	}
	get32 := func(off int) uint32 {
		if off == 0 {
			return 0
		}
		return u32(b, off)
	}
	get64 := func(off int) uint64 {
		if off == 0 {
			return 0
		}
		return u64(b, off)
	}
	v.Memory, v.Type, v.Flags = Handle(get32(l.memory)), get32(l.typ), get32(l.flags)
	v.Attr, v.Attr2, v.Size = get32(l.attr), get32(l.attr2), get64(l.size)
	v.Alignment, v.Offset, v.Limit = get64(l.alignment), get64(l.offset), get64(l.limit)
	if v.Function == HeapAllocOSDesc {
		v.Descriptor, v.DescType = u64(b, 64), u32(b, 80)
		v.Size = v.Limit
		if v.Limit != ^uint64(0) {
			v.Size++
		}
	}
	return v, nil
}

// Put writes the call: the head and the fields that the function's variant has.
func (v VidHeap) Put(b []byte) error {
	if err := need(b, SizeVidHeap, "VID_HEAP_CONTROL"); err != nil {
		return err
	}
	putHandle(b, 0, v.Root)
	putHandle(b, 4, v.Parent)
	put32(b, 8, uint32(v.Function))
	putHandle(b, 12, v.VASpace)
	put32(b, 20, uint32(v.Status))
	put64(b, 24, v.Total)
	put64(b, 32, v.Free)
	l, ok := v.Function.layout()
	if !ok {
		return nil
	}
	for _, f := range []struct {
		off int
		v   uint32
	}{{l.memory, uint32(v.Memory)}, {l.typ, v.Type}, {l.flags, v.Flags}, {l.attr, v.Attr}, {l.attr2, v.Attr2}} {
		if f.off != 0 {
			put32(b, f.off, f.v)
		}
	}
	for _, f := range []struct {
		off int
		v   uint64
	}{{l.size, v.Size}, {l.alignment, v.Alignment}, {l.offset, v.Offset}, {l.limit, v.Limit}} {
		if f.off != 0 {
			put64(b, f.off, f.v)
		}
	}
	if v.Function == HeapAllocOSDesc {
		put64(b, 64, v.Descriptor)
		put32(b, 80, v.DescType)
	}
	return nil
}

// PutVidHeapTotals writes the heap's size and free bytes, which the driver fills in on every function.
func PutVidHeapTotals(b []byte, total, free uint64) error {
	if err := need(b, SizeVidHeap, "VID_HEAP_CONTROL"); err != nil {
		return err
	}
	put64(b, 24, total)
	put64(b, 32, free)
	return nil
}

// VRAM says whether an allocating function asks for device memory.
func (v VidHeap) VRAM() bool { return v.Function.Allocates() && vram(v.Attr, v.Flags) }

// Location of a memory object: bits 26:25 of its attributes (NVOS32_ATTR_LOCATION).
const (
	attrLocationShift = 25
	attrLocationMask  = 3
	attrLocationPCI   = 1
	memFlagVirtual    = 0x00080000 // NVOS32_ALLOC_FLAGS_VIRTUAL
)

// vram says whether attributes and flags ask for device memory. Everything but plain host memory is counted:
// the driver prefers the device where it is left the choice, and a quota must not be escaped by an odd value.
func vram(attr, flags uint32) bool {
	if flags&memFlagVirtual != 0 {
		return false
	}
	return attr>>attrLocationShift&attrLocationMask != attrLocationPCI
}

// SizeMemoryParams is sizeof(NV_MEMORY_ALLOCATION_PARAMS).
const SizeMemoryParams = 128

// MemoryParams is NV_MEMORY_ALLOCATION_PARAMS, the parameters of the memory classes.
type MemoryParams struct {
	Owner, Type, Flags           uint32
	Attr, Attr2                  uint32
	Size, Alignment              uint64
	Offset, Limit, Address       uint64
	VASpace                      Handle
	InternalFlags, Tag, NUMANode uint32
}

// DecodeMemoryParams reads the parameters.
func DecodeMemoryParams(b []byte) (MemoryParams, error) {
	if err := need(b, SizeMemoryParams, "NV_MEMORY_ALLOCATION_PARAMS"); err != nil {
		return MemoryParams{}, err
	}
	return MemoryParams{
		Owner: u32(b, 0), Type: u32(b, 4), Flags: u32(b, 8), Attr: u32(b, 24), Attr2: u32(b, 28),
		Size: u64(b, 64), Alignment: u64(b, 72), Offset: u64(b, 80), Limit: u64(b, 88), Address: u64(b, 96),
		VASpace: handle(b, 108), InternalFlags: u32(b, 112), Tag: u32(b, 116), NUMANode: u32(b, 120),
	}, nil
}

// Put writes the parameters; fields the project does not name are left alone.
func (m MemoryParams) Put(b []byte) error {
	if err := need(b, SizeMemoryParams, "NV_MEMORY_ALLOCATION_PARAMS"); err != nil {
		return err
	}
	put32(b, 0, m.Owner)
	put32(b, 4, m.Type)
	put32(b, 8, m.Flags)
	put32(b, 24, m.Attr)
	put32(b, 28, m.Attr2)
	put64(b, 64, m.Size)
	put64(b, 72, m.Alignment)
	put64(b, 80, m.Offset)
	put64(b, 88, m.Limit)
	put64(b, 96, m.Address)
	putHandle(b, 108, m.VASpace)
	put32(b, 112, m.InternalFlags)
	put32(b, 116, m.Tag)
	put32(b, 120, m.NUMANode)
	return nil
}

// VRAM says whether the parameters ask for device memory.
func (m MemoryParams) VRAM() bool { return vram(m.Attr, m.Flags) }
