package nvidia

// Sizes of the fixed call structs, from nvos.h and nv-ioctl.h.
const (
	SizeAlloc64      = 48  // NVOS64_PARAMETERS
	SizeAlloc21      = 32  // NVOS21_PARAMETERS
	SizeFree         = 16  // NVOS00_PARAMETERS
	SizeControl      = 32  // NVOS54_PARAMETERS
	SizeDup          = 28  // NVOS55_PARAMETERS
	SizeAllocMemory  = 56  // NVOS02_PARAMETERS (48) followed by an fd and padding
	SizeVidHeap      = 184 // NVOS32_PARAMETERS
	SizeMapMemory    = 56  // NVOS33_PARAMETERS (48) followed by an fd and padding
	SizeUnmapMemory  = 32  // NVOS34_PARAMETERS
	SizeXfer         = 16  // nv_ioctl_xfer_t
	SizeRegisterFD   = 4   // nv_ioctl_register_fd_t
	SizeOSEvent      = 16  // nv_ioctl_alloc_os_event_t, nv_ioctl_free_os_event_t
	SizeCheckVersion = 72  // nv_ioctl_rm_api_version_t
	SizeCardInfo     = 72  // one nv_ioctl_card_info_t; the call carries an array
)

// Alloc is RM_ALLOC in either form: NVOS64_PARAMETERS (48 bytes) or NVOS21_PARAMETERS (32 bytes).
type Alloc struct {
	Root, Parent, New Handle
	Class             Class
	Params            uint64 // pointer into the tenant
	Rights            uint64 // pointer into the tenant; long form only
	ParamsSize        uint32
	Flags             uint32 // long form only
	Status            Status
}

// DecodeAlloc reads either form; the length of b says which.
func DecodeAlloc(b []byte) (Alloc, error) {
	if err := need(b, SizeAlloc21, "RM_ALLOC"); err != nil {
		return Alloc{}, err
	}
	a := Alloc{Root: handle(b, 0), Parent: handle(b, 4), New: handle(b, 8), Class: Class(u32(b, 12)), Params: u64(b, 16)}
	if len(b) >= SizeAlloc64 {
		a.Rights, a.ParamsSize, a.Flags, a.Status = u64(b, 24), u32(b, 32), u32(b, 36), Status(u32(b, 40))
	} else {
		a.ParamsSize, a.Status = u32(b, 24), Status(u32(b, 28))
	}
	return a, nil
}

// Put writes the call in the form that len(b) selects.
func (a Alloc) Put(b []byte) error {
	if err := need(b, SizeAlloc21, "RM_ALLOC"); err != nil {
		return err
	}
	putHandle(b, 0, a.Root)
	putHandle(b, 4, a.Parent)
	putHandle(b, 8, a.New)
	put32(b, 12, uint32(a.Class))
	put64(b, 16, a.Params)
	if len(b) >= SizeAlloc64 {
		put64(b, 24, a.Rights)
		put32(b, 32, a.ParamsSize)
		put32(b, 36, a.Flags)
		put32(b, 40, uint32(a.Status))
		return nil
	}
	put32(b, 24, a.ParamsSize)
	put32(b, 28, uint32(a.Status))
	return nil
}

// PutAllocParams writes pAllocParms, the same place in both forms.
func PutAllocParams(b []byte, ptr uint64) error {
	if err := need(b, SizeAlloc21, "RM_ALLOC"); err != nil {
		return err
	}
	put64(b, 16, ptr)
	return nil
}

// PutAllocRights writes pRightsRequested; the short form has none and accepts only 0.
func PutAllocRights(b []byte, ptr uint64) error {
	if len(b) >= SizeAlloc21 && len(b) < SizeAlloc64 && ptr == 0 {
		return nil
	}
	if err := need(b, SizeAlloc64, "RM_ALLOC rights"); err != nil {
		return err
	}
	put64(b, 24, ptr)
	return nil
}

// Free is RM_FREE: NVOS00_PARAMETERS.
type Free struct {
	Root, Parent, Object Handle
	Status               Status
}

// DecodeFree reads the call.
func DecodeFree(b []byte) (Free, error) {
	if err := need(b, SizeFree, "RM_FREE"); err != nil {
		return Free{}, err
	}
	return Free{Root: handle(b, 0), Parent: handle(b, 4), Object: handle(b, 8), Status: Status(u32(b, 12))}, nil
}

// Put writes the call.
func (f Free) Put(b []byte) error {
	if err := need(b, SizeFree, "RM_FREE"); err != nil {
		return err
	}
	putHandle(b, 0, f.Root)
	putHandle(b, 4, f.Parent)
	putHandle(b, 8, f.Object)
	put32(b, 12, uint32(f.Status))
	return nil
}

// Control is RM_CONTROL: NVOS54_PARAMETERS.
type Control struct {
	Client, Object Handle
	Cmd, Flags     uint32
	Params         uint64 // pointer into the tenant
	ParamsSize     uint32
	Status         Status
}

// DecodeControl reads the call.
func DecodeControl(b []byte) (Control, error) {
	if err := need(b, SizeControl, "RM_CONTROL"); err != nil {
		return Control{}, err
	}
	return Control{
		Client: handle(b, 0), Object: handle(b, 4), Cmd: u32(b, 8), Flags: u32(b, 12),
		Params: u64(b, 16), ParamsSize: u32(b, 24), Status: Status(u32(b, 28)),
	}, nil
}

// Put writes the call.
func (c Control) Put(b []byte) error {
	if err := need(b, SizeControl, "RM_CONTROL"); err != nil {
		return err
	}
	putHandle(b, 0, c.Client)
	putHandle(b, 4, c.Object)
	put32(b, 8, c.Cmd)
	put32(b, 12, c.Flags)
	put64(b, 16, c.Params)
	put32(b, 24, c.ParamsSize)
	put32(b, 28, uint32(c.Status))
	return nil
}

// PutControlParams writes the params pointer.
func PutControlParams(b []byte, ptr uint64) error {
	if err := need(b, SizeControl, "RM_CONTROL"); err != nil {
		return err
	}
	put64(b, 16, ptr)
	return nil
}

// Dup is RM_DUP_OBJECT: NVOS55_PARAMETERS.
type Dup struct {
	Dst, Parent, Object  Handle // the new object, in the caller's client
	SrcClient, SrcObject Handle
	Flags                uint32
	Status               Status
}

// DecodeDup reads the call.
func DecodeDup(b []byte) (Dup, error) {
	if err := need(b, SizeDup, "RM_DUP_OBJECT"); err != nil {
		return Dup{}, err
	}
	return Dup{
		Dst: handle(b, 0), Parent: handle(b, 4), Object: handle(b, 8),
		SrcClient: handle(b, 12), SrcObject: handle(b, 16), Flags: u32(b, 20), Status: Status(u32(b, 24)),
	}, nil
}

// Put writes the call.
func (d Dup) Put(b []byte) error {
	if err := need(b, SizeDup, "RM_DUP_OBJECT"); err != nil {
		return err
	}
	putHandle(b, 0, d.Dst)
	putHandle(b, 4, d.Parent)
	putHandle(b, 8, d.Object)
	putHandle(b, 12, d.SrcClient)
	putHandle(b, 16, d.SrcObject)
	put32(b, 20, d.Flags)
	put32(b, 24, uint32(d.Status))
	return nil
}

// AllocMemory is RM_ALLOC_MEMORY: NVOS02_PARAMETERS followed by the fd that the driver will map through.
type AllocMemory struct {
	Root, Parent, New Handle
	Class             Class
	Flags             uint32
	PMem              uint64 // address in the tenant, or an answer
	Limit             uint64 // size − 1
	Status            Status
	FD                int32
}

// Length returns the number of bytes asked for; a limit of 2^64−1 saturates.
func (a AllocMemory) Length() uint64 {
	if a.Limit == ^uint64(0) {
		return a.Limit
	}
	return a.Limit + 1
}

// DecodeAllocMemory reads the call.
func DecodeAllocMemory(b []byte) (AllocMemory, error) {
	if err := need(b, SizeAllocMemory, "RM_ALLOC_MEMORY"); err != nil {
		return AllocMemory{}, err
	}
	return AllocMemory{
		Root: handle(b, 0), Parent: handle(b, 4), New: handle(b, 8), Class: Class(u32(b, 12)), Flags: u32(b, 16),
		PMem: u64(b, 24), Limit: u64(b, 32), Status: Status(u32(b, 40)), FD: i32(b, 48),
	}, nil
}

// Put writes the call.
func (a AllocMemory) Put(b []byte) error {
	if err := need(b, SizeAllocMemory, "RM_ALLOC_MEMORY"); err != nil {
		return err
	}
	putHandle(b, 0, a.Root)
	putHandle(b, 4, a.Parent)
	putHandle(b, 8, a.New)
	put32(b, 12, uint32(a.Class))
	put32(b, 16, a.Flags)
	put64(b, 24, a.PMem)
	put64(b, 32, a.Limit)
	put32(b, 40, uint32(a.Status))
	put32(b, 48, uint32(a.FD))
	return nil
}

// MapMemory is RM_MAP_MEMORY: NVOS33_PARAMETERS followed by the fd that the caller will mmap.
type MapMemory struct {
	Client, Device, Memory Handle
	Offset, Length         uint64
	Address                uint64 // answer: the token for mmap
	Status                 Status
	Flags                  uint32
	FD                     int32
}

// DecodeMapMemory reads the call.
func DecodeMapMemory(b []byte) (MapMemory, error) {
	if err := need(b, SizeMapMemory, "RM_MAP_MEMORY"); err != nil {
		return MapMemory{}, err
	}
	return MapMemory{
		Client: handle(b, 0), Device: handle(b, 4), Memory: handle(b, 8), Offset: u64(b, 16), Length: u64(b, 24),
		Address: u64(b, 32), Status: Status(u32(b, 40)), Flags: u32(b, 44), FD: i32(b, 48),
	}, nil
}

// Put writes the call.
func (m MapMemory) Put(b []byte) error {
	if err := need(b, SizeMapMemory, "RM_MAP_MEMORY"); err != nil {
		return err
	}
	putHandle(b, 0, m.Client)
	putHandle(b, 4, m.Device)
	putHandle(b, 8, m.Memory)
	put64(b, 16, m.Offset)
	put64(b, 24, m.Length)
	put64(b, 32, m.Address)
	put32(b, 40, uint32(m.Status))
	put32(b, 44, m.Flags)
	put32(b, 48, uint32(m.FD))
	return nil
}

// Xfer wraps another call whose size does not fit the ioctl encoding: nv_ioctl_xfer_t. Cmd is the bare number
// of the inner call, and Ptr its argument in the tenant.
type Xfer struct {
	Cmd, Size uint32
	Ptr       uint64
}

// DecodeXfer reads the wrapper.
func DecodeXfer(b []byte) (Xfer, error) {
	if err := need(b, SizeXfer, "XFER"); err != nil {
		return Xfer{}, err
	}
	return Xfer{Cmd: u32(b, 0), Size: u32(b, 4), Ptr: u64(b, 8)}, nil
}

// Put writes the wrapper.
func (x Xfer) Put(b []byte) error {
	if err := need(b, SizeXfer, "XFER"); err != nil {
		return err
	}
	put32(b, 0, x.Cmd)
	put32(b, 4, x.Size)
	put64(b, 8, x.Ptr)
	return nil
}

// RegisterFD is nv_ioctl_register_fd_t: it ties a device file to the control file that fd names.
type RegisterFD struct{ FD int32 }

// DecodeRegisterFD reads the call.
func DecodeRegisterFD(b []byte) (RegisterFD, error) {
	if err := need(b, SizeRegisterFD, "REGISTER_FD"); err != nil {
		return RegisterFD{}, err
	}
	return RegisterFD{FD: i32(b, 0)}, nil
}

// OSEvent is nv_ioctl_alloc_os_event_t or nv_ioctl_free_os_event_t.
type OSEvent struct {
	Client, Device Handle
	FD             int32
	Status         Status
}

// DecodeOSEvent reads ALLOC_OS_EVENT or FREE_OS_EVENT.
func DecodeOSEvent(b []byte) (OSEvent, error) {
	if err := need(b, SizeOSEvent, "OS_EVENT"); err != nil {
		return OSEvent{}, err
	}
	return OSEvent{Client: handle(b, 0), Device: handle(b, 4), FD: i32(b, 8), Status: Status(u32(b, 12))}, nil
}
