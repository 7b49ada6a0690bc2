package nvidia

// classes are what RM_ALLOC may make, from resource_list.h (which says whether a class takes params, and which)
// and the class headers. Sizes are those of 550.
//
// Who makes the call matters beyond pointers. RM reads the caller's CAP_SYS_ADMIN at every call and, for a
// channel, turns it into a privileged channel that may address any physical memory. A supervisor that proxies
// must therefore make the call from a thread without that capability, or it hands its own rights to the tenant.
func classes() []ClassRow {
	return []ClassRow{
		// RM ties a client to the process that made it.
		class(KindClient, "NV01_ROOT", ClassRoot, 0, 4).as(Caller),
		class(KindClient, "NV01_ROOT_NON_PRIV", ClassRootNonPriv, 0, 4).as(Caller),
		class(KindClient, "NV01_ROOT_CLIENT", ClassRootClient, 0, 4).as(Caller),
		class(KindDevice, "NV01_DEVICE_0", ClassDevice, 0, 56).withClients(4, 8),
		class(KindSubdevice, "NV20_SUBDEVICE_0", ClassSubdevice, 0, 4),

		// Memory. Judge: charged when it is device memory.
		class(KindMemory, "NV01_MEMORY_SYSTEM", ClassMemorySystem, 128),
		class(KindMemory, "NV01_MEMORY_LOCAL_PRIVILEGED", ClassMemoryLocalPriv, 0).as(Judge).vram(),
		class(KindMemory, "NV01_MEMORY_LOCAL_USER", ClassMemoryLocalUser, 128).as(Judge).vram(),
		class(KindMemory, "NV_MEMORY_EXTENDED_USER", ClassMemoryExtended, 128).as(Judge).vram(),
		class(KindMemory, "NV01_MEMORY_VIRTUAL", ClassMemoryVirtual, 24),
		class(KindMemory, "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR", ClassOSDescriptor, 40).as(Pinned),
		class(KindMemory, "NV50_MEMORY_VIRTUAL", ClassVirtualRange, 128),
		class(KindMemory, "NV01_MEMORY_DEVICELESS", 0x90ce, 128),
		class(KindMemory, "NV_MEMORY_FABRIC", ClassMemoryFabric, 48).as(Judge).vram(),
		// pOsEvent is a key like the data of an OS event, no fd to replace.
		class(KindMemory, "NV_MEMORY_MULTICAST_FABRIC", ClassMemoryMulticast, 80).as(Judge),

		class(KindVASpace, "FERMI_VASPACE_A", ClassVASpace, 48),
		class(KindContextShare, "FERMI_CONTEXT_SHARE_A", ClassContextShare, 12),
		class(KindGroup, "KEPLER_CHANNEL_GROUP_A", ClassTSG, SizeGroupParams).as(Judge),

		// data at 16 is the fd number given to ALLOC_OS_EVENT: RM looks the pair (client, number) up in its own
		// list and follows no file and no pointer, so it is copied as it is. RM takes class 5 to be the class
		// named in the params at 8, and refuses the kernel-callback classes to user space itself.
		class(KindEvent, "NV01_EVENT", ClassEvent, 24).withClients(0),
		class(KindEvent, "NV01_EVENT_OS_EVENT", ClassEventOSEvent, 24).withClients(0),

		class(KindChannel, "GF100_CHANNEL_GPFIFO", 0x906f, 360).as(Judge),
		class(KindChannel, "KEPLER_CHANNEL_GPFIFO_A", 0xa06f, 360).as(Judge),
		class(KindChannel, "KEPLER_CHANNEL_GPFIFO_B", 0xa16f, 360).as(Judge),
		class(KindChannel, "MAXWELL_CHANNEL_GPFIFO_A", 0xb06f, 360).as(Judge),
		class(KindChannel, "PASCAL_CHANNEL_GPFIFO_A", 0xc06f, 360).as(Judge),
		class(KindChannel, "VOLTA_CHANNEL_GPFIFO_A", 0xc36f, 360).as(Judge),
		class(KindChannel, "TURING_CHANNEL_GPFIFO_A", 0xc46f, 360).as(Judge),
		class(KindChannel, "AMPERE_CHANNEL_GPFIFO_A", 0xc56f, 360).as(Judge),
		class(KindChannel, "HOPPER_CHANNEL_GPFIFO_A", 0xc86f, 360).as(Judge),

		class(KindEngine, "FERMI_TWOD_A", 0x902d, 0, 16),
		class(KindEngine, "KEPLER_INLINE_TO_MEMORY_B", 0xa140, 0, 16),
		class(KindEngine, "MAXWELL_DMA_COPY_A", 0xb0b5, 0, 8),
		class(KindEngine, "NVB4B7_VIDEO_ENCODER", 0xb4b7, 0, 12),
		class(KindEngine, "NVB8B0_VIDEO_DECODER", 0xb8b0, 0, 12),
		class(KindEngine, "NVB8D1_VIDEO_NVJPG", 0xb8d1, 0, 12),
		class(KindEngine, "NVB8FA_VIDEO_OFA", 0xb8fa, 0, 12),
		class(KindEngine, "PASCAL_DMA_COPY_A", 0xc0b5, 0, 8),
		class(KindEngine, "NVC4B0_VIDEO_DECODER", 0xc4b0, 0, 12),
		class(KindEngine, "NVC4B7_VIDEO_ENCODER", 0xc4b7, 0, 12),
		class(KindEngine, "NVC4D1_VIDEO_NVJPG", 0xc4d1, 0, 12),
		class(KindEngine, "TURING_A", 0xc597, 0, 16),
		class(KindEngine, "TURING_DMA_COPY_A", 0xc5b5, 0, 8),
		class(KindEngine, "TURING_COMPUTE_A", 0xc5c0, 0, 16),
		class(KindEngine, "AMPERE_A", 0xc697, 0, 16),
		class(KindEngine, "NVC6B0_VIDEO_DECODER", 0xc6b0, 0, 12),
		class(KindEngine, "AMPERE_DMA_COPY_A", 0xc6b5, 0, 8),
		class(KindEngine, "AMPERE_COMPUTE_A", 0xc6c0, 0, 16),
		class(KindEngine, "NVC6FA_VIDEO_OFA", 0xc6fa, 0, 12),
		class(KindEngine, "AMPERE_B", 0xc797, 0, 16),
		class(KindEngine, "NVC7B0_VIDEO_DECODER", 0xc7b0, 0, 12),
		class(KindEngine, "AMPERE_DMA_COPY_B", 0xc7b5, 0, 8),
		class(KindEngine, "NVC7B7_VIDEO_ENCODER", 0xc7b7, 0, 12),
		class(KindEngine, "AMPERE_COMPUTE_B", 0xc7c0, 0, 16),
		class(KindEngine, "NVC7FA_VIDEO_OFA", 0xc7fa, 0, 12),
		class(KindEngine, "HOPPER_DMA_COPY_A", 0xc8b5, 0, 8),
		class(KindEngine, "ADA_A", 0xc997, 0, 16),
		class(KindEngine, "NVC9B0_VIDEO_DECODER", 0xc9b0, 0, 12),
		class(KindEngine, "NVC9B7_VIDEO_ENCODER", 0xc9b7, 0, 12),
		class(KindEngine, "ADA_COMPUTE_A", 0xc9c0, 0, 16),
		class(KindEngine, "NVC9D1_VIDEO_NVJPG", 0xc9d1, 0, 12),
		class(KindEngine, "NVC9FA_VIDEO_OFA", 0xc9fa, 0, 12),
		class(KindEngine, "HOPPER_A", 0xcb97, 0, 16),
		class(KindEngine, "HOPPER_COMPUTE_A", 0xcbc0, 0, 16),

		class(KindObject, "NV01_CONTEXT_DMA", 0x0002, 32),
		class(KindObject, "NV01_TIMER", 0x0004, 0),
		class(KindObject, "NV0060_SYNC_GPU_BOOST", 0x0060, 4),
		class(KindObject, "NV04_DISPLAY_COMMON", 0x0073, 0),
		class(KindObject, "NV_SEMAPHORE_SURFACE", 0x00da, 16),
		class(KindObject, "RM_USER_SHARED_DATA", 0x00de, 8),
		class(KindObject, "NV_MEMORY_MAPPER", 0x00fe, 8),
		class(KindObject, "NV2081_BINAPI", 0x2081, 0, 4),
		class(KindObject, "NV20_SUBDEVICE_DIAG", 0x208f, 0),
		class(KindObject, "NV50_P2P", 0x503b, 72),
		class(KindObject, "NV50_THIRD_PARTY_P2P", 0x503c, 0, 4),
		class(KindObject, "MPS_COMPUTE", 0x900e, 0),
		class(KindObject, "GF100_DISP_SW", 0x9072, 12),
		class(KindObject, "GF100_TIMED_SEMAPHORE_SW", 0x9074, 0),
		class(KindObject, "GF100_ZBC_CLEAR", 0x9096, 0),
		class(KindObject, "GF100_SUBDEVICE_MASTER", 0x90e6, 0),
		class(KindObject, "GF100_SUBDEVICE_INFOROM", 0x90e7, 0),
		class(KindObject, "NVENC_SW_SESSION", 0xa0bc, 20),
		class(KindObject, "NVFBC_SW_SESSION", 0xa0bd, 20),
		class(KindObject, "VOLTA_USERMODE_A", 0xc361, 0),
		class(KindObject, "TURING_USERMODE_A", 0xc461, 0),
		class(KindObject, "AMPERE_USERMODE_A", 0xc561, 0),
		class(KindObject, "HOPPER_USERMODE_A", 0xc661, 0, 2),
		class(KindObject, "NV_CONFIDENTIAL_COMPUTE", 0xcb33, 0, 4),
		class(KindObject, "HOPPER_SEC2_WORK_LAUNCH_A", 0xcba2, 0),
		// A debugger session names the client it debugs.
		class(KindObject, "GT200_DEBUGGER", 0x83de, 12).withClients(4),
		// MIG: capDescriptor is an fd of a /dev/nvidia-caps file, or none for what the file system does not guard.
		class(KindObject, "AMPERE_SMC_PARTITION_REF", 0xc637, 16).as(Deep).withFD(0, FDCap),
		class(KindObject, "AMPERE_SMC_EXEC_PARTITION_REF", 0xc638, 16).as(Deep).withFD(0, FDCap),
	}
}

// refusedClasses are never made for a tenant.
func refusedClasses() []ClassRow {
	return []ClassRow{
		refuseClass("FABRIC_MANAGER_SESSION", 0x000f, StatusInsufficientPermissions),
		refuseClass("NV0020_GPU_MANAGEMENT", 0x0020, StatusInsufficientPermissions),
		refuseClass("NV_CE_UTILS", 0x0050, StatusInsufficientPermissions),
		refuseClass("NV01_EVENT_KERNEL_CALLBACK", 0x0078, StatusInsufficientPermissions),
		refuseClass("NV01_EVENT_KERNEL_CALLBACK_EX", 0x007e, StatusInsufficientPermissions),
		refuseClass("NV01_MEMORY_LIST_SYSTEM", 0x0081, StatusInsufficientPermissions), // these name physical pages
		refuseClass("NV01_MEMORY_LIST_FBMEM", ClassMemoryListFB, StatusInsufficientPermissions),
		refuseClass("NV01_MEMORY_LIST_OBJECT", ClassMemoryListObject, StatusInsufficientPermissions),
		refuseClass("NV01_MEMORY_HW_RESOURCES", 0x00b1, StatusInsufficientPermissions), // carries a callback
		refuseClass("NV01_MEMORY_LOCAL_PHYSICAL", ClassMemoryPhysical, StatusInsufficientPermissions),
		refuseClass("NV_MEMORY_EXPORT", 0x00e0, StatusNotSupported),
		refuseClass("NV_IMEX_SESSION", 0x00f1, StatusInsufficientPermissions),
		refuseClass("NV01_MEMORY_FLA", 0x00f3, StatusNotSupported),
		refuseClass("NV_MEMORY_FABRIC_IMPORT_V2", ClassMemoryImport, StatusNotSupported),
		refuseClass("NV_MEMORY_FABRIC_IMPORTED_REF", 0x00fb, StatusNotSupported),
		refuseClass("NV2082_BINAPI_PRIVILEGED", 0x2082, StatusInsufficientPermissions),
		refuseClass("NV40_I2C", 0x402c, StatusInsufficientPermissions),
		refuseClass("NV50_DEFERRED_API_CLASS", 0x5080, StatusInsufficientPermissions), // hides controls in a method
		refuseClass("G84_PERFBUFFER", 0x844c, StatusInsufficientPermissions),
		refuseClass("GF100_PROFILER", 0x90cc, StatusInsufficientPermissions),
		refuseClass("NV_EVENT_BUFFER", 0x90cd, StatusInsufficientPermissions),
		refuseClass("NVA081_VGPU_CONFIG", 0xa081, StatusInsufficientPermissions),
		refuseClass("NVA084_KERNEL_HOST_VGPU_DEVICE", 0xa084, StatusInsufficientPermissions),
		refuseClass("MAXWELL_PROFILER_CONTEXT", 0xb1cc, StatusInsufficientPermissions),
		refuseClass("MAXWELL_PROFILER_DEVICE", 0xb2cc, StatusInsufficientPermissions),
		refuseClass("ACCESS_COUNTER_NOTIFY_BUFFER", 0xc365, StatusInsufficientPermissions),
		refuseClass("AMPERE_SMC_CONFIG_SESSION", 0xc639, StatusInsufficientPermissions),
		refuseClass("AMPERE_SMC_MONITOR_SESSION", 0xc640, StatusInsufficientPermissions),
		refuseClass("MMU_VIDMEM_ACCESS_BIT_BUFFER", 0xc763, StatusInsufficientPermissions),
		refuseClass("NV_COUNTER_COLLECTION_UNIT", 0xcbca, StatusInsufficientPermissions),
	}
}
