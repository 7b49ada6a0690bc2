package nvidia

import "slices"

// Verdict says how a supervisor may treat a call of a tenant.
type Verdict uint8

// The verdicts. The zero value is Unknown so that a row that forgot its verdict is refused, not let through.
const (
	Unknown Verdict = iota
	// Plain: no pointer and no fd inside. Proxied from a bounded copy.
	Plain
	// Deep: the pointers listed in Ptrs are copied one by one, the fds listed in FDs replaced. Proxied.
	Deep
	// Caller: must run in the tenant (it acts on the caller's process), and is harmless whatever a racing
	// thread turns it into afterwards.
	Caller
	// Pinned: must run in the tenant because RM pins its pages; what it did is verified afterwards.
	Pinned
	// Judge: the engine has a handler of its own; the row still says what lies inside.
	Judge
	// Refuse: never for a tenant; answered with the row's Refusal.
	Refuse
)

func (v Verdict) String() string {
	switch v {
	case Plain:
		return "plain"
	case Deep:
		return "deep"
	case Caller:
		return "caller"
	case Pinned:
		return "pinned"
	case Judge:
		return "judge"
	case Refuse:
		return "refuse"
	}
	return "unknown"
}

// Dir says which way the bytes behind a pointer travel.
type Dir uint8

// The directions.
const (
	In    Dir = 1 << iota // tenant → driver
	Out                   // driver → tenant
	InOut = In | Out
)

// Field says where a count is found: a 32-bit word at Offset, squared when Square is set. With Const set the
// count is Offset itself.
type Field struct {
	Offset uint32
	Square bool
	Const  bool
}

// Fixed returns a count that is always n.
func Fixed(n uint32) Field { return Field{Offset: n, Const: true} }

// At returns a count held in the 32-bit word at off.
func At(off uint32) Field { return Field{Offset: off} }

// AtSquared returns a count that is the square of the 32-bit word at off: a matrix of GPUs.
func AtSquared(off uint32) Field { return Field{Offset: off, Square: true} }

// Read returns the count for the struct b.
func (f Field) Read(b []byte) (uint64, error) {
	if f.Const {
		return uint64(f.Offset), nil
	}
	v, err := U32At(b, f.Offset)
	if err != nil {
		return 0, err
	}
	if f.Square {
		return uint64(v) * uint64(v), nil
	}
	return uint64(v), nil
}

// Bounds of what a call may carry, and so of what a supervisor copies.
const (
	// MaxParamsSize is what RM itself accepts for params and for a list behind a pointer (param_copy.h).
	MaxParamsSize = 1 << 20
	// maxList is enough for every list of the info and capability calls, which have at most a few hundred
	// entries; more is refused.
	maxList = 64 << 10
)

// Ptr describes one 8-byte pointer inside a struct. A null pointer is passed through. The pointed-to bytes are
// Count × ElemSize, and more than MaxBytes is refused. MaxBytes 0 means that the driver never follows the
// pointer: pass null, and restore the tenant's value in the answer.
type Ptr struct {
	Offset   uint32
	Count    Field
	ElemSize uint32
	MaxBytes uint32
	Dir      Dir
	Clients  bool // the elements are handles of clients: each must be one of the tenant's
}

// Bytes returns how many bytes the pointer of the struct b covers.
func (p Ptr) Bytes(b []byte) (uint32, error) {
	if p.MaxBytes == 0 {
		return 0, nil
	}
	n, err := p.Count.Read(b)
	if err != nil {
		return 0, err
	}
	if max := uint64(p.MaxBytes / p.ElemSize); n > max {
		return 0, &CountError{What: "pointed-to elements", Count: n, Max: max}
	}
	return uint32(n) * p.ElemSize, nil
}

// FDKind says what kind of file an fd number inside a struct must name.
type FDKind uint8

// The kinds.
const (
	FDControl FDKind = iota + 1 // /dev/nvidiactl or /dev/nvidiaN
	FDUVM                       // /dev/nvidia-uvm
	FDCap                       // a /dev/nvidia-caps node
)

// FD describes one 4-byte fd number inside a struct. The engine puts its duplicate's number there for the call
// and restores the tenant's number in what it writes back. A negative number means none.
type FD struct {
	Offset uint32
	Kind   FDKind
}

// Escape is one ioctl of /dev/nvidiactl and /dev/nvidiaN.
type Escape struct {
	Name    string
	Nr      uint8
	Sizes   []uint32 // allowed sizes; empty when the argument is an array, then Unit is its element size
	Unit    uint32
	Status  int // offset of the status word in the first of Sizes, −1 when there is none
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	Refusal Status
}

// Fits says whether an argument size is one the row allows.
func (e Escape) Fits(size uint32) bool {
	if e.Unit != 0 {
		return size != 0 && size%e.Unit == 0 && size <= MaxIoctlSize
	}
	return slices.Contains(e.Sizes, size)
}

// ControlRow is one command of RM_CONTROL. RM refuses any other params size than its own, except where Size is
// 0 and MaxSize is not.
type ControlRow struct {
	Name    string
	Cmd     uint32
	Size    uint32 // of the params; 0 when there are none, or when it varies up to MaxSize
	MaxSize uint32
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	Clients []uint32 // offsets of handles of other clients: each must be 0 or a client of the tenant
	Refusal Status   // StatusOK: say it worked, forward nothing
}

// Fits says whether a params size is one the row allows.
func (r ControlRow) Fits(size uint32) bool {
	if r.MaxSize != 0 {
		return size <= r.MaxSize
	}
	return size == r.Size
}

// ClassKind says what kind of object a class makes.
type ClassKind uint8

// The kinds.
const (
	KindObject ClassKind = iota // anything the engine only tracks
	KindClient
	KindDevice
	KindSubdevice
	KindMemory
	KindVASpace
	KindGroup
	KindChannel
	KindContextShare
	KindEngine
	KindEvent
)

func (k ClassKind) String() string {
	names := [...]string{"object", "client", "device", "subdevice", "memory", "vaspace", "group", "channel", "context-share", "engine", "event"}
	if int(k) < len(names) {
		return names[k]
	}
	return "object"
}

// ClassRow is one class of RM_ALLOC.
//
// RM takes the size of the params from the class and ignores the paramsSize of the call. So must a supervisor:
// with a non-null pointer it copies ParamsSize() bytes, whatever the call says.
type ClassRow struct {
	Name    string
	Class   Class
	Kind    ClassKind
	Sizes   []uint32 // what the params may be: 0 for a null pointer, n for a struct of n bytes
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	Clients []uint32 // offsets of handles of other clients: each must be 0 or a client of the tenant
	VRAM    bool     // device memory when the params say so
	Refusal Status
}

// ParamsSize returns how many bytes RM reads from a non-null params pointer; 0 when it ignores the pointer.
func (r ClassRow) ParamsSize() uint32 { return slices.Max(r.Sizes) }

// NullOK says whether the params pointer may be null.
func (r ClassRow) NullOK() bool { return slices.Contains(r.Sizes, 0) }

// UVMRow is one command of /dev/nvidia-uvm.
type UVMRow struct {
	Name         string
	Cmd          uint32
	Size         uint32
	Verdict      Verdict
	FDs          []FD
	Clients      []uint32 // offsets of client handles: each must be 0 or a client of the tenant
	StatusOffset int      // −1 when there is none
	Refusal      Status
}
