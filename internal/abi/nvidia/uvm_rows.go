package nvidia

// uvmRows are the commands that the UVM driver implements, from uvm_ioctl.h and the dispatcher in uvm.c; sizes
// are those of 550. The header names more commands (1–20, 35, 36, 2047); no driver line implements them and the
// ioctl answers EINVAL.
//
// Who must make the call. A UVM file belongs to the address space that made UVM_INITIALIZE, and every later
// call finds that address space through the file. So all calls may be proxied on a duplicate of the file,
// except these:
//   - UVM_INITIALIZE registers the caller's mm, and so must run in the tenant;
//   - UVM_REGISTER_GPU_VASPACE and UVM_REGISTER_CHANNEL duplicate an object of a client that must belong to the
//     calling process: made for the tenant they answer INSUFFICIENT_PERMISSIONS (seen on an H200, 580.159.04);
//   - UVM_POPULATE_PAGEABLE works on the caller's mm by definition;
//   - the policy and migration calls (42–47, 51) answer NOT_SUPPORTED for pageable memory when the caller's mm
//     is not the file's; they only touch the tenant's own range, so they run in the tenant;
//   - mmap of the file, which is no ioctl.
//
// rmCtrlFd is accepted and never used: the UVM driver takes client and object handles on trust and duplicates
// the object as a kernel client. A tenant that names a neighbour's client here would map the neighbour's memory.
// Clients lists where those handles lie, and each must be the tenant's own.
func uvmRows() []UVMRow {
	return []UVMRow{
		uvm(Plain, "UVM_CREATE_RANGE_GROUP", UVMCmdCreateRangeGroup, 16, 8),
		uvm(Plain, "UVM_DESTROY_RANGE_GROUP", UVMCmdDestroyRangeGroup, 16, 8),
		uvm(Caller, "UVM_REGISTER_GPU_VASPACE", UVMCmdRegisterGPUVASpace, SizeUVMRegisterGPUVASpace, 28).withFD(16, FDControl).withClients(20),
		uvm(Plain, "UVM_UNREGISTER_GPU_VASPACE", UVMCmdUnregisterGPUVASpace, 20, 16),
		uvm(Caller, "UVM_REGISTER_CHANNEL", UVMCmdRegisterChannel, SizeUVMRegisterChannel, 48).withFD(16, FDControl).withClients(20),
		uvm(Plain, "UVM_UNREGISTER_CHANNEL", UVMCmdUnregisterChannel, 28, 24).withClients(16),
		uvm(Plain, "UVM_ENABLE_PEER_ACCESS", UVMCmdEnablePeerAccess, 36, 32),
		uvm(Plain, "UVM_DISABLE_PEER_ACCESS", UVMCmdDisablePeerAccess, 36, 32),
		uvm(Plain, "UVM_SET_RANGE_GROUP", UVMCmdSetRangeGroup, 32, 24),
		// Takes a reference on device memory: it outlives RM_FREE until UNMAP_EXTERNAL or FREE of the range.
		uvm(Judge, "UVM_MAP_EXTERNAL_ALLOCATION", UVMCmdMapExternal, SizeUVMMapExternal, 9260).withFD(9248, FDControl).withClients(9252),
		uvm(Judge, "UVM_FREE", UVMCmdFree, SizeUVMFree580, 16),
		uvm(Deep, "UVM_REGISTER_GPU", UVMCmdRegisterGPU, SizeUVMRegisterGPU, 36).withFD(24, FDControl).withClients(28),
		uvm(Plain, "UVM_UNREGISTER_GPU", UVMCmdUnregisterGPU, 20, 16),
		uvm(Plain, "UVM_PAGEABLE_MEM_ACCESS", UVMCmdPageableMemAccess, 8, 4),
		uvm(Plain, "UVM_PREVENT_MIGRATION_RANGE_GROUPS", UVMCmdPreventMigration, 272, 264),
		uvm(Plain, "UVM_ALLOW_MIGRATION_RANGE_GROUPS", UVMCmdAllowMigration, 272, 264),
		uvm(Caller, "UVM_SET_PREFERRED_LOCATION", UVMCmdSetPreferredLocation, 40, 36),
		uvm(Caller, "UVM_UNSET_PREFERRED_LOCATION", UVMCmdUnsetPreferredLocation, SizeUVMRange, 16),
		uvm(Caller, "UVM_ENABLE_READ_DUPLICATION", UVMCmdEnableReadDuplication, SizeUVMRange, 16),
		uvm(Caller, "UVM_DISABLE_READ_DUPLICATION", UVMCmdDisableReadDuplication, SizeUVMRange, 16),
		uvm(Caller, "UVM_SET_ACCESSED_BY", UVMCmdSetAccessedBy, 40, 32),
		uvm(Caller, "UVM_UNSET_ACCESSED_BY", UVMCmdUnsetAccessedBy, 40, 32),
		uvm(Caller, "UVM_MIGRATE", UVMCmdMigrate, 80, 72),
		uvm(Plain, "UVM_MIGRATE_RANGE_GROUP", UVMCmdMigrateRangeGroup, 32, 24),
		uvm(Plain, "UVM_ENABLE_SYSTEM_WIDE_ATOMICS", UVMCmdEnableSystemWideAtomics, 20, 16),
		uvm(Plain, "UVM_DISABLE_SYSTEM_WIDE_ATOMICS", UVMCmdDisableSystemWideAtomics, 20, 16),
		uvm(Plain, "UVM_MAP_DYNAMIC_PARALLELISM_REGION", UVMCmdMapDynamicParallelism, 40, 32),
		uvm(Judge, "UVM_UNMAP_EXTERNAL", UVMCmdUnmapExternal, SizeUVMUnmapExternal, 32),
		uvm(Plain, "UVM_ALLOC_SEMAPHORE_POOL", UVMCmdAllocSemaphorePool, SizeUVMAllocSemaphorePool, 9240),
		uvm(Plain, "UVM_CLEAN_UP_ZOMBIE_RESOURCES", UVMCmdCleanUpZombies, 4, 0),
		uvm(Plain, "UVM_PAGEABLE_MEM_ACCESS_ON_GPU", UVMCmdPageableMemAccessOnGPU, 24, 20),
		uvm(Caller, "UVM_POPULATE_PAGEABLE", UVMCmdPopulatePageable, 24, 20),
		uvm(Plain, "UVM_VALIDATE_VA_RANGE", UVMCmdValidateVARange, SizeUVMRange, 16),
		uvm(Plain, "UVM_CREATE_EXTERNAL_RANGE", UVMCmdCreateExternalRange, SizeUVMRange, 16),
		uvm(Plain, "UVM_MAP_EXTERNAL_SPARSE", UVMCmdMapExternalSparse, 40, 32),
		// Uses the mm that INITIALIZE registered, so it could be proxied with uvmFd replaced; nothing is gained.
		uvm(Caller, "UVM_MM_INITIALIZE", UVMCmdMMInitialize, 8, 4).withFD(0, FDUVM),
		uvm(Caller, "UVM_INITIALIZE", UVMCmdInitialize, 16, 8),
		uvm(Caller, "UVM_DEINITIALIZE", UVMCmdDeinitialize, 0, -1),

		// Tools observe or rewrite memory of the file's address space and pin the caller's pages.
		refuseUVM("UVM_TOOLS_INIT_EVENT_TRACKER", UVMCmdToolsInitEventTracker, 64, 48),
		refuseUVM("UVM_TOOLS_SET_NOTIFICATION_THRESHOLD", UVMCmdToolsSetThreshold, 8, 4),
		refuseUVM("UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS", UVMCmdToolsEnableEvents, 16, 8),
		refuseUVM("UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS", UVMCmdToolsDisableEvents, 16, 8),
		refuseUVM("UVM_TOOLS_ENABLE_COUNTERS", UVMCmdToolsEnableCounters, 16, 8),
		refuseUVM("UVM_TOOLS_DISABLE_COUNTERS", UVMCmdToolsDisableCounters, 16, 8),
		refuseUVM("UVM_TOOLS_READ_PROCESS_MEMORY", UVMCmdToolsReadProcessMemory, 40, 32),
		refuseUVM("UVM_TOOLS_WRITE_PROCESS_MEMORY", UVMCmdToolsWriteProcessMemory, 40, 32),
		refuseUVM("UVM_TOOLS_GET_PROCESSOR_UUID_TABLE", UVMCmdToolsGetProcessorUUIDs, 24, 12),
		refuseUVM("UVM_TOOLS_FLUSH_EVENTS", UVMCmdToolsFlushEvents, 4, 0),
	}
}
