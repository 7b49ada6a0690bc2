package nvidia

// Commands of /dev/nvidia-uvm, from uvm_ioctl.h and uvm_linux_ioctl.h. They are bare integers, not _IOWR
// values: compare all 32 bits (33 shares its low byte with FIONBIO).
const (
	UVMCmdInitialize               uint32 = 0x30000001
	UVMCmdDeinitialize             uint32 = 0x30000002
	UVMCmdReserveVA                uint32 = 1
	UVMCmdReleaseVA                uint32 = 2
	UVMCmdRegionCommit             uint32 = 3
	UVMCmdRegionDecommit           uint32 = 4
	UVMCmdRegionSetStream          uint32 = 5
	UVMCmdSetStreamRunning         uint32 = 6
	UVMCmdSetStreamStopped         uint32 = 7
	UVMCmdAddSession               uint32 = 10
	UVMCmdRemoveSession            uint32 = 11
	UVMCmdEnableCounters           uint32 = 12
	UVMCmdMapCounter               uint32 = 13
	UVMCmdCreateEventQueue         uint32 = 14
	UVMCmdRemoveEventQueue         uint32 = 15
	UVMCmdMapEventQueue            uint32 = 16
	UVMCmdEventCtrl                uint32 = 17
	UVMCmdRegisterMPSServer        uint32 = 18
	UVMCmdRegisterMPSClient        uint32 = 19
	UVMCmdGetGPUUUIDTable          uint32 = 20
	UVMCmdCreateRangeGroup         uint32 = 23
	UVMCmdDestroyRangeGroup        uint32 = 24
	UVMCmdRegisterGPUVASpace       uint32 = 25
	UVMCmdUnregisterGPUVASpace     uint32 = 26
	UVMCmdRegisterChannel          uint32 = 27
	UVMCmdUnregisterChannel        uint32 = 28
	UVMCmdEnablePeerAccess         uint32 = 29
	UVMCmdDisablePeerAccess        uint32 = 30
	UVMCmdSetRangeGroup            uint32 = 31
	UVMCmdMapExternal              uint32 = 33
	UVMCmdFree                     uint32 = 34
	UVMCmdMemMap                   uint32 = 35
	UVMCmdDebugAccessMemory        uint32 = 36
	UVMCmdRegisterGPU              uint32 = 37
	UVMCmdUnregisterGPU            uint32 = 38
	UVMCmdPageableMemAccess        uint32 = 39
	UVMCmdPreventMigration         uint32 = 40
	UVMCmdAllowMigration           uint32 = 41
	UVMCmdSetPreferredLocation     uint32 = 42
	UVMCmdUnsetPreferredLocation   uint32 = 43
	UVMCmdEnableReadDuplication    uint32 = 44
	UVMCmdDisableReadDuplication   uint32 = 45
	UVMCmdSetAccessedBy            uint32 = 46
	UVMCmdUnsetAccessedBy          uint32 = 47
	UVMCmdMigrate                  uint32 = 51
	UVMCmdMigrateRangeGroup        uint32 = 53
	UVMCmdEnableSystemWideAtomics  uint32 = 54
	UVMCmdDisableSystemWideAtomics uint32 = 55
	UVMCmdToolsInitEventTracker    uint32 = 56
	UVMCmdToolsSetThreshold        uint32 = 57
	UVMCmdToolsEnableEvents        uint32 = 58
	UVMCmdToolsDisableEvents       uint32 = 59
	UVMCmdToolsEnableCounters      uint32 = 60
	UVMCmdToolsDisableCounters     uint32 = 61
	UVMCmdToolsReadProcessMemory   uint32 = 62
	UVMCmdToolsWriteProcessMemory  uint32 = 63
	UVMCmdToolsGetProcessorUUIDs   uint32 = 64
	UVMCmdMapDynamicParallelism    uint32 = 65
	UVMCmdUnmapExternal            uint32 = 66
	UVMCmdToolsFlushEvents         uint32 = 67
	UVMCmdAllocSemaphorePool       uint32 = 68
	UVMCmdCleanUpZombies           uint32 = 69
	UVMCmdPageableMemAccessOnGPU   uint32 = 70
	UVMCmdPopulatePageable         uint32 = 71
	UVMCmdValidateVARange          uint32 = 72
	UVMCmdCreateExternalRange      uint32 = 73
	UVMCmdMapExternalSparse        uint32 = 74
	UVMCmdMMInitialize             uint32 = 75
	UVMCmdToolsInitEventTrackerV2  uint32 = 76
	UVMCmdToolsGetProcessorUUIDsV2 uint32 = 77
	UVMCmdAllocDeviceP2P           uint32 = 78
	UVMCmdClearAllAccessCounters   uint32 = 79
	UVMCmdDiscard                  uint32 = 80
	UVMCmdIs8Supported             uint32 = 2047
)

// UUID names a GPU: NvProcessorUuid, 16 bytes.
type UUID [16]byte

func uuid(b []byte, off int) (u UUID) {
	copy(u[:], b[off:off+16])
	return u
}

// Limits of the per-GPU list in UVM_MAP_EXTERNAL_ALLOCATION and UVM_ALLOC_SEMAPHORE_POOL: UVM_MAX_GPUS entries
// of UvmGpuMappingAttributes (uvm_types.h).
const (
	UVMMaxGPUs      = 256
	sizeMappingAttr = 36
)

// SizeUVMMapExternal is sizeof(UVM_MAP_EXTERNAL_ALLOCATION_PARAMS), the same in every line since 550.
const SizeUVMMapExternal = 9264

// UVMMapExternal is UVM_MAP_EXTERNAL_ALLOCATION_PARAMS: it maps an RM allocation into a GPU address range and
// takes a reference on it, so that RM_FREE alone no longer gives the memory back.
type UVMMapExternal struct {
	Base, Length, Offset uint64
	GPUs                 []UUID
	CtrlFD               int32
	Client, Memory       Handle
	Status               Status
}

// DecodeUVMMapExternal reads the parameters.
func DecodeUVMMapExternal(b []byte) (UVMMapExternal, error) {
	if err := need(b, SizeUVMMapExternal, "UVM_MAP_EXTERNAL_ALLOCATION"); err != nil {
		return UVMMapExternal{}, err
	}
	n := u64(b, 9240)
	if n > UVMMaxGPUs {
		return UVMMapExternal{}, &CountError{What: "UVM_MAP_EXTERNAL_ALLOCATION", Count: n, Max: UVMMaxGPUs}
	}
	m := UVMMapExternal{
		Base: u64(b, 0), Length: u64(b, 8), Offset: u64(b, 16),
		CtrlFD: i32(b, 9248), Client: handle(b, 9252), Memory: handle(b, 9256), Status: Status(u32(b, 9260)),
	}
	for i := range int(n) {
		m.GPUs = append(m.GPUs, uuid(b, 24+i*sizeMappingAttr))
	}
	return m, nil
}

// Put writes the parameters; the mapping attributes beside each UUID are left alone.
func (m UVMMapExternal) Put(b []byte) error {
	if err := need(b, SizeUVMMapExternal, "UVM_MAP_EXTERNAL_ALLOCATION"); err != nil {
		return err
	}
	if len(m.GPUs) > UVMMaxGPUs {
		return &CountError{What: "UVM_MAP_EXTERNAL_ALLOCATION", Count: uint64(len(m.GPUs)), Max: UVMMaxGPUs}
	}
	put64(b, 0, m.Base)
	put64(b, 8, m.Length)
	put64(b, 16, m.Offset)
	for i, u := range m.GPUs {
		copy(b[24+i*sizeMappingAttr:], u[:])
	}
	put64(b, 9240, uint64(len(m.GPUs)))
	put32(b, 9248, uint32(m.CtrlFD))
	putHandle(b, 9252, m.Client)
	putHandle(b, 9256, m.Memory)
	put32(b, 9260, uint32(m.Status))
	return nil
}

// SizeUVMUnmapExternal is sizeof(UVM_UNMAP_EXTERNAL_PARAMS).
const SizeUVMUnmapExternal = 40

// UVMUnmapExternal is UVM_UNMAP_EXTERNAL_PARAMS. UVM_MAP_EXTERNAL_SPARSE and UVM_MAP_DYNAMIC_PARALLELISM_REGION
// have the same layout.
type UVMUnmapExternal struct {
	Base, Length uint64
	GPU          UUID
	Status       Status
}

// DecodeUVMUnmapExternal reads the parameters.
func DecodeUVMUnmapExternal(b []byte) (UVMUnmapExternal, error) {
	if err := need(b, SizeUVMUnmapExternal, "UVM_UNMAP_EXTERNAL"); err != nil {
		return UVMUnmapExternal{}, err
	}
	return UVMUnmapExternal{Base: u64(b, 0), Length: u64(b, 8), GPU: uuid(b, 16), Status: Status(u32(b, 32))}, nil
}

// Put writes the parameters.
func (m UVMUnmapExternal) Put(b []byte) error {
	if err := need(b, SizeUVMUnmapExternal, "UVM_UNMAP_EXTERNAL"); err != nil {
		return err
	}
	put64(b, 0, m.Base)
	put64(b, 8, m.Length)
	copy(b[16:32], m.GPU[:])
	put32(b, 32, uint32(m.Status))
	return nil
}

// Sizes of UVM_FREE_PARAMS: 590 dropped the length.
const (
	SizeUVMFree    = 16
	SizeUVMFree580 = 24
)

// UVMFree is UVM_FREE_PARAMS. Length is 0 in the form since 590: the range that starts at Base is freed whole.
type UVMFree struct {
	Base, Length uint64
	Status       Status
}

// DecodeUVMFree reads either form; the length of b says which, so pass exactly the row's size.
func DecodeUVMFree(b []byte) (UVMFree, error) {
	if err := need(b, SizeUVMFree, "UVM_FREE"); err != nil {
		return UVMFree{}, err
	}
	if len(b) >= SizeUVMFree580 {
		return UVMFree{Base: u64(b, 0), Length: u64(b, 8), Status: Status(u32(b, 16))}, nil
	}
	return UVMFree{Base: u64(b, 0), Status: Status(u32(b, 8))}, nil
}

// Put writes the form that len(b) selects.
func (f UVMFree) Put(b []byte) error {
	if err := need(b, SizeUVMFree, "UVM_FREE"); err != nil {
		return err
	}
	put64(b, 0, f.Base)
	if len(b) >= SizeUVMFree580 {
		put64(b, 8, f.Length)
		put32(b, 16, uint32(f.Status))
		return nil
	}
	put32(b, 8, uint32(f.Status))
	return nil
}

// SizeUVMRange is the size of the params that are a range and a status.
const SizeUVMRange = 24

// UVMRange is the layout of UVM_CREATE_EXTERNAL_RANGE_PARAMS and of the other calls that carry only a range:
// VALIDATE_VA_RANGE, MEM_MAP, UNSET_PREFERRED_LOCATION, ENABLE/DISABLE_READ_DUPLICATION.
type UVMRange struct {
	Base, Length uint64
	Status       Status
}

// UVMCreateExternalRange is UVM_CREATE_EXTERNAL_RANGE_PARAMS.
type UVMCreateExternalRange = UVMRange

// DecodeUVMRange reads the parameters.
func DecodeUVMRange(b []byte) (UVMRange, error) {
	if err := need(b, SizeUVMRange, "UVM range"); err != nil {
		return UVMRange{}, err
	}
	return UVMRange{Base: u64(b, 0), Length: u64(b, 8), Status: Status(u32(b, 16))}, nil
}

// DecodeUVMCreateExternalRange reads the parameters.
func DecodeUVMCreateExternalRange(b []byte) (UVMCreateExternalRange, error) { return DecodeUVMRange(b) }

// Put writes the parameters.
func (r UVMRange) Put(b []byte) error {
	if err := need(b, SizeUVMRange, "UVM range"); err != nil {
		return err
	}
	put64(b, 0, r.Base)
	put64(b, 8, r.Length)
	put32(b, 16, uint32(r.Status))
	return nil
}

// SizeUVMAllocSemaphorePool is sizeof(UVM_ALLOC_SEMAPHORE_POOL_PARAMS).
const SizeUVMAllocSemaphorePool = 9248

// UVMSemaphorePool is UVM_ALLOC_SEMAPHORE_POOL_PARAMS; the pool's pages are system memory.
type UVMSemaphorePool struct {
	Base, Length uint64
	GPUs         []UUID
	Status       Status
}

// DecodeUVMSemaphorePool reads the parameters.
func DecodeUVMSemaphorePool(b []byte) (UVMSemaphorePool, error) {
	if err := need(b, SizeUVMAllocSemaphorePool, "UVM_ALLOC_SEMAPHORE_POOL"); err != nil {
		return UVMSemaphorePool{}, err
	}
	n := u64(b, 9232)
	if n > UVMMaxGPUs {
		return UVMSemaphorePool{}, &CountError{What: "UVM_ALLOC_SEMAPHORE_POOL", Count: n, Max: UVMMaxGPUs}
	}
	p := UVMSemaphorePool{Base: u64(b, 0), Length: u64(b, 8), Status: Status(u32(b, 9240))}
	for i := range int(n) {
		p.GPUs = append(p.GPUs, uuid(b, 16+i*sizeMappingAttr))
	}
	return p, nil
}

// Sizes of the UVM calls that tie a GPU object to the address space.
const (
	SizeUVMRegisterGPU        = 40
	SizeUVMRegisterGPUVASpace = 32
	SizeUVMRegisterChannel    = 56
)

// UVMRegister is what the three REGISTER calls name: a GPU, the control file and client it is reached through,
// and the object (an SMC partition, a VA space or a channel).
type UVMRegister struct {
	GPU          UUID
	CtrlFD       int32
	Client       Handle
	Object       Handle
	Base, Length uint64 // UVM_REGISTER_CHANNEL only
	Status       Status
}

// DecodeUVMRegister reads the parameters of UVMCmdRegisterGPU, UVMCmdRegisterGPUVASpace or UVMCmdRegisterChannel.
func DecodeUVMRegister(cmd uint32, b []byte) (UVMRegister, error) {
	switch cmd {
	case UVMCmdRegisterGPU:
		if err := need(b, SizeUVMRegisterGPU, "UVM_REGISTER_GPU"); err != nil {
			return UVMRegister{}, err
		}
		return UVMRegister{GPU: uuid(b, 0), CtrlFD: i32(b, 24), Client: handle(b, 28), Object: handle(b, 32), Status: Status(u32(b, 36))}, nil
	case UVMCmdRegisterGPUVASpace:
		if err := need(b, SizeUVMRegisterGPUVASpace, "UVM_REGISTER_GPU_VASPACE"); err != nil {
			return UVMRegister{}, err
		}
		return UVMRegister{GPU: uuid(b, 0), CtrlFD: i32(b, 16), Client: handle(b, 20), Object: handle(b, 24), Status: Status(u32(b, 28))}, nil
	case UVMCmdRegisterChannel:
		if err := need(b, SizeUVMRegisterChannel, "UVM_REGISTER_CHANNEL"); err != nil {
			return UVMRegister{}, err
		}
		return UVMRegister{
			GPU: uuid(b, 0), CtrlFD: i32(b, 16), Client: handle(b, 20), Object: handle(b, 24),
			Base: u64(b, 32), Length: u64(b, 40), Status: Status(u32(b, 48)),
		}, nil
	}
	return UVMRegister{}, &CommandError{Cmd: cmd}
}
