package card

import (
	"slices"
	"syscall"
)

// vaSpace is the unified-memory state of one nvidia-uvm file.
type vaSpace struct {
	ready  bool
	ranges []*vaRange // ordered by base, disjoint
}

// vaRange is an external range, into which RM memory is mapped, or a managed one, which owns its pages.
type vaRange struct {
	base, length uint64
	managed      bool
	pages        *region // managed memory resident on the card
	maps         []mapping
}

// mapping keeps an RM allocation alive until it is unmapped, whatever happens to the object.
type mapping struct {
	base, length uint64
	mem          *region
}

func newVASpace() *vaSpace { return &vaSpace{} }

func (r *vaRange) release(c *Card) {
	for _, m := range r.maps {
		c.drop(m.mem)
	}
	c.drop(r.pages)
	r.maps, r.pages = nil, nil
}

func (v *vaSpace) close(c *Card) {
	for _, r := range v.ranges {
		r.release(c)
	}
	v.ranges = nil
}

// find returns the range that holds [base, base+length).
func (v *vaSpace) find(base, length uint64) *vaRange {
	for _, r := range v.ranges {
		if base >= r.base && length <= r.length && base-r.base <= r.length-length {
			return r
		}
	}
	return nil
}

// add inserts a range; it must not overlap another.
func (v *vaSpace) add(base, length uint64, managed bool) uint32 {
	if length == 0 || base+length < base || base%4096 != 0 || length%4096 != 0 {
		return stInvalidAddress
	}
	at := len(v.ranges)
	for i, r := range v.ranges {
		if base < r.base+r.length && r.base < base+length {
			return stAddressInUse
		}
		if r.base > base && i < at {
			at = i
		}
	}
	v.ranges = slices.Insert(v.ranges, at, &vaRange{base: base, length: length, managed: managed})
	return stOK
}

// remove frees the range that begins at base.
func (v *vaSpace) remove(c *Card, base uint64) uint32 {
	for i, r := range v.ranges {
		if r.base == base {
			r.release(c)
			v.ranges = slices.Delete(v.ranges, i, i+1)
			return stOK
		}
	}
	return stInvalidAddress
}

// uvmRow is one UVM command: its structure's size and where its status lies.
type uvmRow struct {
	size, statusAt int
	fdAt           int // a descriptor of the caller; -1: none
	run            func(c *Card, f *file, ctl *file, p []byte) uint32
}

var uvmCalls = map[uint32]uvmRow{
	uvmInitialize:     {16, 8, -1, uvmInit},
	uvmRegisterGPU:    {40, 36, 24, uvmRegister},
	uvmRegisterVA:     {32, 28, 16, uvmRegister},
	uvmCreateExternal: {24, 16, -1, uvmCreate},
	uvmMapExternal:    {sizeMapExternal, 9260, 9248, uvmMap},
	uvmUnmapExternal:  {40, 32, -1, uvmUnmap},
	uvmFree:           {24, 16, -1, uvmFreeRange},
	uvmMMInitialize:   {8, 4, 0, uvmRegister},
}

// sizeMapExternal is UVM_MAP_EXTERNAL_ALLOCATION_PARAMS since 550.54: base 0, length 8, offset 16, 256
// attributes of 36 bytes, count 9240, rmCtrlFd 9248, hClient 9252, hMemory 9256, status 9260.
const sizeMapExternal = 9264

// uvmIoctl runs a command of nvidia-uvm. Unknown commands answer 0 and touch nothing.
func (c *Card) uvmIoctl(f *file, who Caller, cmd uint32, arg uint64) syscall.Errno {
	row, ok := uvmCalls[cmd]
	if !ok {
		return 0
	}
	if cmd == uvmFree && c.major >= 590 {
		row.size, row.statusAt = 16, 8 // 590 dropped the length
	}
	p := make([]byte, row.size)
	if who.Mem.ReadAt(p, arg) != nil {
		return syscall.EFAULT
	}
	var named FileID
	if row.fdAt >= 0 {
		named, _ = who.file(int32(u32(p, row.fdAt)))
	}
	c.mu.Lock()
	st := uint32(stIllegalAction)
	if f.refs > 0 && (f.uvm.ready || cmd == uvmInitialize) {
		st = row.run(c, f, c.files[named], p)
	}
	c.mu.Unlock()
	put32(p, row.statusAt, st)
	if who.Mem.WriteAt(p, arg) != nil {
		return syscall.EFAULT
	}
	return 0
}

func uvmInit(_ *Card, f *file, _ *file, _ []byte) uint32 {
	f.uvm.ready = true
	return stOK
}

// uvmRegister accepts a GPU or an address space when its control file is one of the card's.
func uvmRegister(_ *Card, _ *file, ctl *file, _ []byte) uint32 {
	if ctl == nil {
		return stInvalidArg
	}
	return stOK
}

func uvmCreate(_ *Card, f *file, _ *file, p []byte) uint32 {
	return f.uvm.add(u64(p, 0), u64(p, 8), false)
}

// uvmMap maps a client's memory object. The client must belong to the control file named in the call.
func uvmMap(c *Card, f *file, ctl *file, p []byte) uint32 {
	base, length, offset := u64(p, 0), u64(p, 8), u64(p, 16)
	if ctl == nil {
		return stInvalidArg
	}
	cl, st := c.lookup(ctl, u32(p, 9252))
	if st != stOK {
		return st
	}
	o := cl.objects[u32(p, 9256)]
	if o == nil || o.mem == nil || o.tsg != nil {
		return stNotFound
	}
	size := uint64(o.mem.size)
	if length == 0 || offset > size || length > size-offset {
		return stInvalidArg
	}
	r := f.uvm.find(base, length)
	if r == nil || r.managed {
		return stInvalidAddress
	}
	r.unmap(c, base, length)
	r.maps = append(r.maps, mapping{base, length, c.hold(o.mem)})
	return stOK
}

// unmap drops the mappings that begin inside [base, base+length).
func (r *vaRange) unmap(c *Card, base, length uint64) {
	r.maps = slices.DeleteFunc(r.maps, func(m mapping) bool {
		if m.base < base || m.base >= base+length {
			return false
		}
		c.drop(m.mem)
		return true
	})
}

func uvmUnmap(c *Card, f *file, _ *file, p []byte) uint32 {
	base, length := u64(p, 0), u64(p, 8)
	r := f.uvm.find(base, length)
	if r == nil || r.managed {
		return stInvalidAddress
	}
	r.unmap(c, base, length)
	return stOK
}

func uvmFreeRange(c *Card, f *file, _ *file, p []byte) uint32 {
	return f.uvm.remove(c, u64(p, 0))
}

// MapManaged is an mmap of nvidia-uvm at its own offset: a managed range, of which nothing is resident yet.
func (c *Card) MapManaged(id FileID, base, length uint64) syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[id]
	if f == nil || f.uvm == nil || !f.uvm.ready {
		return syscall.EBADF
	}
	if f.uvm.add(base, length, true) != stOK {
		return syscall.EINVAL
	}
	return 0
}

// TouchManaged makes the first n bytes of a managed range resident, as far as the card has room: what does
// not fit stays in system memory, as on a card that is oversubscribed. It returns the bytes resident.
func (c *Card) TouchManaged(id FileID, base, n uint64) (int64, syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[id]
	if f == nil || f.uvm == nil {
		return 0, syscall.EBADF
	}
	r := f.uvm.find(base, 1)
	if r == nil || !r.managed || r.base != base {
		return 0, syscall.EINVAL
	}
	c.drop(r.pages)
	r.pages = c.take(min(n, r.length, uint64(max(0, c.free()))), 0)
	if r.pages == nil {
		return 0, 0
	}
	return r.pages.size, 0
}

// UnmapManaged is the munmap of a managed range.
func (c *Card) UnmapManaged(id FileID, base uint64) syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[id]
	if f == nil || f.uvm == nil || f.uvm.remove(c, base) != stOK {
		return syscall.EINVAL
	}
	return 0
}
