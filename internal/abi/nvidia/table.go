package nvidia

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

// Field says where a count is found: a word of Width bytes (1, 2, 4 or 8) at Offset, or the number Fixed when
// Width is 0.
type Field struct {
	Offset uint32
	Width  uint8
	Fixed  uint32
}

// Fixed returns a count that is always n.
func Fixed(n uint32) Field { return Field{Fixed: n} }

// At returns a count held in the 32-bit word at off.
func At(off uint32) Field { return Field{Offset: off, Width: 4} }

// At64 returns a count held in the 64-bit word at off.
func At64(off uint32) Field { return Field{Offset: off, Width: 8} }

// Read returns the count for the struct b.
func (f Field) Read(b []byte) (uint64, error) {
	end := uint64(f.Offset) + uint64(f.Width)
	if f.Width != 0 && end > uint64(len(b)) {
		return 0, &ShortError{What: "count field", Have: len(b), Want: int(end)}
	}
	switch f.Width {
	case 0:
		return uint64(f.Fixed), nil
	case 1:
		return uint64(b[f.Offset]), nil
	case 2:
		return uint64(le.Uint16(b[f.Offset:])), nil
	case 4:
		return uint64(le.Uint32(b[f.Offset:])), nil
	case 8:
		return le.Uint64(b[f.Offset:]), nil
	}
	return 0, &CountError{What: "count field width", Count: uint64(f.Width), Max: 8}
}

// Ptr describes one 8-byte pointer inside a struct. A null pointer is passed through. The pointed-to bytes are
// Count × ElemSize, and more than MaxBytes is refused.
type Ptr struct {
	Offset   uint32
	Count    Field
	ElemSize uint32
	MaxBytes uint32
	Dir      Dir
}

// Bytes returns how many bytes the pointer of the struct b covers.
func (p Ptr) Bytes(b []byte) (uint32, error) {
	n, err := p.Count.Read(b)
	if err != nil {
		return 0, err
	}
	if p.ElemSize != 0 && n > uint64(p.MaxBytes)/uint64(p.ElemSize) {
		return 0, &CountError{What: "pointed-to elements", Count: n, Max: uint64(p.MaxBytes) / uint64(p.ElemSize)}
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
	FDEvent                     // a file that events are posted to: /dev/nvidiactl or /dev/nvidiaN
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
	Sizes   []uint32 // allowed sizes; empty when the call carries an array (then Unit says of what)
	Unit    uint32   // element size of an array argument
	Status  int      // offset of the status word in the first size, −1 when there is none
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	Refusal Status
}

// ControlRow is one command of RM_CONTROL.
type ControlRow struct {
	Name    string
	Cmd     uint32
	Size    uint32 // of the params; 0 when it varies, then MaxSize bounds it
	MaxSize uint32
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	Refusal Status
}

// Fits says whether a params size is one the row allows.
func (r ControlRow) Fits(size uint32) bool {
	if r.Size == 0 {
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
	KindProfiler
)

func (k ClassKind) String() string {
	names := [...]string{"object", "client", "device", "subdevice", "memory", "vaspace", "group", "channel", "context-share", "engine", "event", "profiler"}
	if int(k) < len(names) {
		return names[k]
	}
	return "object"
}

// ClassRow is one class of RM_ALLOC.
type ClassRow struct {
	Name    string
	Class   Class
	Kind    ClassKind
	Sizes   []uint32 // allowed sizes of the params; 0 allows NULL params
	Verdict Verdict
	Ptrs    []Ptr
	FDs     []FD
	VRAM    bool // device memory when the params say so
	Refusal Status
}

// Fits says whether a params size is one the row allows.
func (r ClassRow) Fits(size uint32) bool {
	for _, s := range r.Sizes {
		if s == size {
			return true
		}
	}
	return false
}

// UVMRow is one command of /dev/nvidia-uvm.
type UVMRow struct {
	Name         string
	Cmd          uint32
	Size         uint32
	Verdict      Verdict
	FDs          []FD
	StatusOffset int // −1 when there is none
	Refusal      Status
}
