package nvidia

// What a driver line may do to its parent's table. A delta that names a row its parent does not have is a
// mistake in this package; TestDeltas finds it.

type resize struct {
	cmd, size uint32
}

func (t *Table) addControls(rows ...ControlRow) {
	for _, r := range rows {
		t.controls[r.Cmd] = r
	}
}

func (t *Table) dropControls(cmds ...uint32) {
	for _, c := range cmds {
		delete(t.controls, c)
	}
}

func (t *Table) resizeControls(rs ...resize) {
	for _, r := range rs {
		row := t.controls[r.cmd]
		row.Size = r.size
		t.controls[r.cmd] = row
	}
}

func (t *Table) addClasses(rows ...ClassRow) {
	for _, r := range rows {
		t.classes[r.Class] = r
	}
}

func (t *Table) dropClass(c Class) { delete(t.classes, c) }

func (t *Table) resizeClass(c Class, sizes ...uint32) {
	row := t.classes[c]
	row.Sizes = sizes
	t.classes[c] = row
}

func (t *Table) resizeEscape(nr uint8, size uint32, status int) {
	row := t.escapes[nr]
	row.Sizes, row.Status = of(size), status
	t.escapes[nr] = row
}

func (t *Table) addUVM(rows ...UVMRow) {
	for _, r := range rows {
		t.uvm[r.Cmd] = r
	}
}

func (t *Table) dropUVM(cmds ...uint32) {
	for _, c := range cmds {
		delete(t.uvm, c)
	}
}

func uvm570(t *Table) {
	t.addUVM(
		// Takes a reference on device memory that only the end of the range gives back, for peers outside the
		// GPU; refused until the ledger follows it. Client handle at 44, fd at 40.
		refuseUVM("UVM_ALLOC_DEVICE_P2P", UVMCmdAllocDeviceP2P, 56, 52),
		refuseUVM("UVM_CLEAR_ALL_ACCESS_COUNTERS", UVMCmdClearAllAccessCounters, 4, 0),
		refuseUVM("UVM_TOOLS_INIT_EVENT_TRACKER", UVMCmdToolsInitEventTracker, 56, 48),
		refuseUVM("UVM_TOOLS_INIT_EVENT_TRACKER_V2", UVMCmdToolsInitEventTrackerV2, 56, 48),
		refuseUVM("UVM_TOOLS_GET_PROCESSOR_UUID_TABLE", UVMCmdToolsGetProcessorUUIDs, 16, 8),
		refuseUVM("UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2", UVMCmdToolsGetProcessorUUIDsV2, 16, 8),
	)
}

func uvm580(t *Table) {
	t.addUVM(uvm(Plain, "UVM_DISCARD", UVMCmdDiscard, 32, 24))
}

func uvm590(t *Table) {
	t.addUVM(
		uvm(Plain, "UVM_UNREGISTER_CHANNEL", UVMCmdUnregisterChannel, 12, 8).withClients(0),
		uvm(Judge, "UVM_FREE", UVMCmdFree, SizeUVMFree, 8),
	)
}

func uvm595(t *Table) { t.dropUVM(UVMCmdEnableSystemWideAtomics, UVMCmdDisableSystemWideAtomics) }
