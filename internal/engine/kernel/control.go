package kernel

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// finnFlag marks parameters in the driver's serialised form, which the tables
// do not describe (NVOS54_FLAGS_FINN_SERIALIZED of nvos.h).
const finnFlag = 0x1

// control judges RM_CONTROL.
func (s *Session) control(k *call) answer {
	c, err := nvidia.DecodeControl(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	if c.Cmd == nvidia.CtrlFifoDisableChannels {
		// Nothing in the driver checks whose channels are listed.
		return s.deny(k, nvidia.StatusInsufficientPermissions, controlStatus, "FIFO_DISABLE_CHANNELS is not for tenants")
	}
	row, ok := s.table.Control(c.Cmd)
	if !ok {
		return s.unknown(k, &staged{}, controlStatus, fmt.Sprintf("control %#x of %d bytes", c.Cmd, c.ParamsSize))
	}
	if row.Verdict == nvidia.Refuse && row.Refusal == nvidia.StatusOK {
		// Libraries insist on the call; what it would change is not a tenant's
		// to decide (clocks, watchdogs).
		return s.satisfy(k, &staged{}, controlStatus)
	}
	if row.Verdict == nvidia.Refuse {
		return s.deny(k, row.Refusal, controlStatus, row.Name+" is not for tenants")
	}
	size := c.ParamsSize
	if c.Params == 0 {
		size = 0
	}
	if c.Flags&finnFlag != 0 || (size != 0 && !row.Fits(size)) {
		return s.unknown(k, &staged{}, controlStatus, fmt.Sprintf("%s with %d bytes, flags %#x", row.Name, size, c.Flags))
	}
	if s.level == Strict && c.Object != c.Client && c.Object != 0 && !s.usable(c.Client, c.Object, k.file) {
		return s.deny(k, nvidia.StatusInvalidObject, controlStatus, row.Name+" of an object that the ledger does not know")
	}
	st := &staged{}
	params, err := s.stage(k, st, k.arg[16:24], size, nvidia.InOut)
	if err == nil && params != nil {
		if err := s.ownClients(params, row.Clients); err != nil {
			st.unstage(k)
			return s.deny(k, nvidia.StatusInvalidClient, controlStatus, row.Name+": "+err.Error())
		}
		err = s.stageAll(k, st, params, row.Ptrs, row.FDs)
	}
	if err != nil {
		return s.abort(k, st, err)
	}
	return s.controlStaged(k, st, c, params)
}

// controlStaged treats the controls that concern shares and sizes, and
// forwards the others.
func (s *Session) controlStaged(k *call, st *staged, c nvidia.Control, params []byte) answer {
	switch c.Cmd {
	case nvidia.CtrlTSGSetTimeslice, nvidia.CtrlTSGPreempt, nvidia.CtrlTSGSetInterleave, nvidia.CtrlTSGMakeRealtime:
		// CUDA sets a slice itself; when a tenant runs is not its decision.
		return s.satisfy(k, st, controlStatus)
	case nvidia.CtrlTSGSchedule, nvidia.CtrlChannelSchedule:
		return s.schedule(k, st)
	case ctrlPreemptionMode:
		s.forcePreemption(params)
		return s.forward(k, st, nil)
	case nvidia.CtrlFBGetInfoV2:
		s.freshen(k)
		return s.forward(k, st, func() { s.virtualiseV2(params) })
	case nvidia.CtrlFBGetInfo:
		s.freshen(k)
		return s.forward(k, st, func() { s.virtualiseV1(st, params) })
	case nvidia.CtrlGetPids:
		return s.forward(k, st, func() { s.ownPids(params) })
	case ctrlExportToFD, ctrlExportObjectsToFD:
		return s.forward(k, st, func() { s.exported(k, c.Cmd, params) })
	}
	ans := s.forward(k, st, func() {
		if done, err := nvidia.DecodeControl(k.arg); err == nil && done.Status == nvidia.StatusOK {
			s.mu.Lock()
			_, err := s.client(k, c.Client)
			s.mu.Unlock()
			if err != nil {
				s.log.Debug("client not booked", "tenant", s.tenant, "err", err)
			}
		}
	})
	return ans
}

// Controls of the root client that move objects between processes through a
// file (ctrl0000unix.h).
const (
	ctrlExportToFD        uint32 = 0x3d05
	ctrlExportObjectsToFD uint32 = 0x3d0b
)

// exported keeps what a file descriptor now refers to charged until the
// exporting process ends. In NV0000_CTRL_OS_UNIX_EXPORT_OBJECT the object's
// handle follows its type, device and parent; the list form has them at
// object[i] after the descriptor, device, metadata and counts.
func (s *Session) exported(k *call, cmd uint32, params []byte) {
	c, err := nvidia.DecodeControl(k.arg)
	if err != nil || c.Status != nvidia.StatusOK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cmd == ctrlExportToFD {
		if h, err := nvidia.U32At(params, 12); err == nil {
			s.exportOne(c.Client, nvidia.Handle(h))
		}
		return
	}
	// Every handle in the list: an unknown one has no memory and adds nothing.
	for off := uint32(0); off+4 <= uint32(len(params)); off += 4 {
		if h, err := nvidia.U32At(params, off); err == nil && h != 0 {
			s.exportOne(c.Client, nvidia.Handle(h))
		}
	}
}

func (s *Session) exportOne(client, h nvidia.Handle) {
	m := s.ledger.lookup(client, h)
	if m == nil {
		return
	}
	id := s.ledger.clients[client].held
	s.ledger.export(id, m)
	s.record(entryExport(id, client, h))
}

// NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE (ctrl2080gr.h): how a context
// leaves the engine when its time slice ends.
const (
	ctrlPreemptionMode uint32 = 0x20801210
	preemptionFlags    uint32 = 0
	preemptionCompute  uint32 = 12
	preemptionSet      uint32 = 1 // flags: the compute mode is meant
	preemptCILP        uint32 = 2 // at any instruction
)

// forcePreemption replaces the mode that a tenant chose for itself: with
// another than CILP, which CUDA asks for, a long kernel would run on beyond
// its slice. (Block-level preemption for low-priority tenants was tried on an
// H200: it kept 3 points more of the training's work and cost the
// latency-critical neighbour 0.4 ms of p99.)
func (s *Session) forcePreemption(params []byte) {
	flags, err := nvidia.U32At(params, preemptionFlags)
	if err == nil && flags&preemptionSet != 0 {
		_ = nvidia.PutU32At(params, preemptionCompute, preemptCILP)
	}
}

// freshen looks at the caller's managed ranges before sizes are told: they come
// back without a call (munmap).
func (s *Session) freshen(k *call) {
	s.mu.Lock()
	managed := s.ledger.mapped[k.process()] > 0
	s.mu.Unlock()
	if managed {
		s.inspect(k.process())
	}
}

// kib is the unit of FB_GET_INFO.
const kib = 1 << 10

// virtualise shows the tenant its own share in place of the card's sizes.
func (s *Session) virtualise(list []nvidia.FBInfo) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.ledger.limit
	if limit == 0 {
		return false
	}
	free := s.ledger.free(limit)
	for i := range list {
		v := &list[i].Value
		switch list[i].Index {
		case nvidia.FBRAMSize, nvidia.FBTotalRAMSize, nvidia.FBHeapSize, nvidia.FBMappableHeapSize, nvidia.FBUsableRAMSize:
			*v = min(*v, uint32(limit/kib))
		case nvidia.FBLargestFreeRegion, nvidia.FBHeapFree:
			*v = min(*v, uint32(free/kib))
		}
	}
	return true
}

func (s *Session) virtualiseV2(params []byte) {
	list, err := nvidia.DecodeFBInfoV2(params)
	if err == nil && s.virtualise(list) {
		_ = nvidia.PutFBInfoV2(params, list)
	}
}

// virtualiseV1 rewrites the list that the parameters point to: the one block
// staged after the parameters themselves.
func (s *Session) virtualiseV1(st *staged, params []byte) {
	v, err := nvidia.DecodeFBInfoV1(params)
	if err != nil || len(st.blocks) < 2 {
		return
	}
	data := st.blocks[1].data
	list, err := nvidia.DecodeFBInfoList(data, int(min(v.Count, uint32(len(data)/nvidia.SizeFBInfo))))
	if err == nil && s.virtualise(list) {
		_ = nvidia.PutFBInfoList(data, list)
	}
}

// ownPids leaves only the tenant's own processes in a process list.
func (s *Session) ownPids(params []byte) {
	g, err := nvidia.DecodeGetPids(params)
	if err != nil {
		return
	}
	s.mu.Lock()
	own := g.Pids[:0]
	for _, p := range g.Pids {
		if s.procs[int(p)] != nil {
			own = append(own, p)
		}
	}
	s.mu.Unlock()
	g.Pids = own
	_ = g.Put(params)
}
