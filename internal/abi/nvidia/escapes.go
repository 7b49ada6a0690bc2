package nvidia

// escapes are the ioctls of /dev/nvidiactl and /dev/nvidiaN, from nv_escape.h, nv-ioctl-numbers.h and
// nv-ioctl-numa.h; sizes from nvos.h and nv-ioctl.h, those of 550. RM accepts no size but its own.
//
// MAP_MEMORY, UNMAP_MEMORY and UPDATE_DEVICE_MAPPING_INFO are Caller because RM records the process that maps
// and finds the mapping again by it; they reach only objects of a client that the tenant's file owns. The fd of
// the OS-event calls is Plain: the driver posts events to the file that the call was made on and keeps the
// number only as a key, which class 0x79 looks up later; replacing it would break the pair.
func escapes() []Escape {
	return []Escape{
		// Judge: class 0x71 is Pinned, 0x3e with an immediate mapping is Caller, the rest is proxied.
		{Name: "NV_ESC_RM_ALLOC_MEMORY", Nr: EscAllocMemory, Sizes: of(SizeAllocMemory), Status: 40, Verdict: Judge, FDs: []FD{{48, FDControl}}},
		{Name: "NV_ESC_RM_ALLOC_OBJECT", Nr: EscAllocObject, Sizes: of(20), Status: 16, Verdict: Refuse, Refusal: StatusNotSupported},
		{Name: "NV_ESC_RM_FREE", Nr: EscFree, Sizes: of(SizeFree), Status: 12, Verdict: Judge},
		{Name: "NV_ESC_RM_CONTROL", Nr: EscControl, Sizes: of(SizeControl), Status: 28, Verdict: Judge},
		{Name: "NV_ESC_RM_ALLOC", Nr: EscAlloc, Sizes: of(SizeAlloc64, SizeAlloc21), Status: 40, Verdict: Judge},
		{Name: "NV_ESC_RM_DUP_OBJECT", Nr: EscDup, Sizes: of(SizeDup), Status: 24, Verdict: Judge},
		{Name: "NV_ESC_RM_SHARE", Nr: EscShare, Sizes: of(24), Status: 20, Verdict: Plain},
		{Name: "NV_ESC_RM_I2C_ACCESS", Nr: EscI2CAccess, Sizes: of(32), Status: 24, Verdict: Refuse, Refusal: StatusInsufficientPermissions},
		{Name: "NV_ESC_RM_IDLE_CHANNELS", Nr: EscIdleChannels, Sizes: of(56), Status: 48, Verdict: Deep, Ptrs: []Ptr{handles(16, 12).ofClients(), handles(24, 12), handles(32, 12)}},
		// Judge by function: 2, 6 and 14 allocate, 3 frees, 5 tells sizes, 27 is Pinned, 19 and 20 are refused.
		{Name: "NV_ESC_RM_VID_HEAP_CONTROL", Nr: EscVidHeap, Sizes: of(SizeVidHeap), Status: 20, Verdict: Judge},
		{Name: "NV_ESC_RM_ACCESS_REGISTRY", Nr: EscAccessRegistry, Sizes: of(72), Status: 64, Verdict: Refuse, Refusal: StatusInsufficientPermissions},
		{Name: "NV_ESC_RM_MAP_MEMORY", Nr: EscMapMemory, Sizes: of(SizeMapMemory), Status: 40, Verdict: Caller, FDs: []FD{{48, FDControl}}},
		{Name: "NV_ESC_RM_UNMAP_MEMORY", Nr: EscUnmapMemory, Sizes: of(SizeUnmapMemory), Status: 24, Verdict: Caller},
		{Name: "NV_ESC_RM_GET_EVENT_DATA", Nr: EscGetEventData, Sizes: of(16), Status: 12, Verdict: Deep, Ptrs: []Ptr{{Offset: 0, Count: Fixed(1), ElemSize: 16, MaxBytes: 16, Dir: Out}}}, // NvUnixEvent
		{Name: "NV_ESC_RM_ALLOC_CONTEXT_DMA2", Nr: EscAllocContextDma2, Sizes: of(56), Status: 48, Verdict: Plain},
		{Name: "NV_ESC_RM_ADD_VBLANK_CALLBACK", Nr: EscAddVblankCallback, Status: -1, Verdict: Refuse, Refusal: StatusNotSupported},
		{Name: "NV_ESC_RM_MAP_MEMORY_DMA", Nr: EscMapMemoryDma, Sizes: of(56), Status: 48, Verdict: Plain},
		{Name: "NV_ESC_RM_UNMAP_MEMORY_DMA", Nr: EscUnmapMemoryDma, Sizes: of(48), Status: 40, Verdict: Plain},
		{Name: "NV_ESC_RM_BIND_CONTEXT_DMA", Nr: EscBindContextDma, Sizes: of(16), Status: 12, Verdict: Plain},
		{Name: "NV_ESC_RM_EXPORT_OBJECT_TO_FD", Nr: EscExportObjectToFD, Status: -1, Verdict: Refuse, Refusal: StatusNotSupported},
		{Name: "NV_ESC_RM_IMPORT_OBJECT_FROM_FD", Nr: EscImportObjectFromFD, Status: -1, Verdict: Refuse, Refusal: StatusNotSupported},
		{Name: "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO", Nr: EscUpdateDeviceMapping, Sizes: of(40), Status: 32, Verdict: Caller},
		{Name: "NV_ESC_RM_LOCKLESS_DIAGNOSTIC", Nr: EscLocklessDiagnostic, Status: -1, Verdict: Refuse, Refusal: StatusInsufficientPermissions},

		{Name: "NV_ESC_CARD_INFO", Nr: EscCardInfo, Unit: SizeCardInfo, Status: -1, Verdict: Plain},
		{Name: "NV_ESC_REGISTER_FD", Nr: EscRegisterFD, Sizes: of(SizeRegisterFD), Status: -1, Verdict: Deep, FDs: []FD{{0, FDControl}}},
		{Name: "NV_ESC_ALLOC_OS_EVENT", Nr: EscAllocOSEvent, Sizes: of(SizeOSEvent), Status: 12, Verdict: Plain},
		{Name: "NV_ESC_FREE_OS_EVENT", Nr: EscFreeOSEvent, Sizes: of(SizeOSEvent), Status: 12, Verdict: Plain},
		{Name: "NV_ESC_STATUS_CODE", Nr: EscStatusCode, Sizes: of(12), Status: 8, Verdict: Plain},
		{Name: "NV_ESC_CHECK_VERSION_STR", Nr: EscCheckVersion, Sizes: of(SizeCheckVersion), Status: -1, Verdict: Plain},
		// Judge: unwrap and look the inner number up; an XFER inside an XFER is refused.
		{Name: "NV_ESC_IOCTL_XFER_CMD", Nr: EscXfer, Sizes: of(SizeXfer), Status: -1, Verdict: Judge},
		{Name: "NV_ESC_ATTACH_GPUS_TO_FD", Nr: EscAttachGPUs, Unit: 4, Status: -1, Verdict: Plain},
		{Name: "NV_ESC_QUERY_DEVICE_INTR", Nr: EscQueryDeviceIntr, Sizes: of(8), Status: 4, Verdict: Plain},
		{Name: "NV_ESC_SYS_PARAMS", Nr: EscSysParams, Sizes: of(8), Status: -1, Verdict: Plain},
		{Name: "NV_ESC_NUMA_INFO", Nr: EscNumaInfo, Sizes: of(560), Status: -1, Verdict: Plain},
		{Name: "NV_ESC_SET_NUMA_STATUS", Nr: EscSetNumaStatus, Sizes: of(4), Status: -1, Verdict: Refuse, Refusal: StatusInsufficientPermissions},
		// A dma-buf keeps device memory alive in a file that no one can follow.
		{Name: "NV_ESC_EXPORT_TO_DMABUF_FD", Nr: EscExportDmabuf, Sizes: of(2600), Status: 2592, Verdict: Refuse, FDs: []FD{{0, FDControl}}, Refusal: StatusNotSupported},
		{Name: "NV_ESC_WAIT_OPEN_COMPLETE", Nr: EscWaitOpenComplete, Sizes: of(8), Status: 4, Verdict: Plain},
	}
}

func of(sizes ...uint32) []uint32 { return sizes }
