package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// uvm judges a command of the unified-memory driver. Its address space
// belongs to the open file, so most commands can be made on a duplicate; the
// ones that need the caller's memory map run in the caller.
func (s *Session) uvm(k *call) answer {
	row, ok := s.table.UVM(k.cmd)
	if !ok {
		if s.level == Compatible {
			s.count.unknown.Add(1)
			s.count.continued.Add(1)
			return continueCall
		}
		s.refused(fmt.Sprintf("unknown unified-memory command %d", k.cmd))
		return fail(unix.EINVAL)
	}
	switch row.Verdict {
	case nvidia.Caller:
		s.count.continued.Add(1)
		return continueCall
	case nvidia.Refuse:
		if err := s.load(k, row.Size); err != nil {
			return s.abort(k, &staged{}, err)
		}
		return s.deny(k, row.Refusal, row.StatusOffset, row.Name+" is not for tenants")
	case nvidia.Unknown:
		s.refused("unified-memory command without a verdict: " + row.Name)
		return fail(unix.EINVAL)
	}
	if err := s.load(k, row.Size); err != nil {
		return s.abort(k, &staged{}, err)
	}
	if err := s.ownClients(k.arg, row.Clients); err != nil {
		return s.deny(k, nvidia.StatusInvalidClient, row.StatusOffset, row.Name+": "+err.Error())
	}
	switch k.cmd {
	case nvidia.UVMCmdMapExternal:
		return s.mapExternal(k, row)
	case nvidia.UVMCmdUnmapExternal:
		return s.unmapExternal(k)
	case nvidia.UVMCmdFree:
		return s.freeRange(k)
	}
	st := &staged{}
	if err := s.stageAll(k, st, k.arg, nil, row.FDs); err != nil {
		return s.abort(k, st, err)
	}
	return s.forward(k, st, nil)
}

// mapExternal books the reference that the unified-memory driver takes on a
// device allocation: RM_FREE alone no longer gives that memory back.
//
// The call must run in the caller, since the driver duplicates the object only
// for the process that owns its client (which also keeps a tenant from naming
// a neighbour's). A racing thread can therefore map another object of its own
// than the one booked; what a free then fails to bring back stays charged, see
// giveBack.
func (s *Session) mapExternal(k *call, row nvidia.UVMRow) answer {
	m, err := nvidia.DecodeUVMMapExternal(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	if s.level == Strict && !s.knows(m.Client, m.Memory) {
		return s.deny(k, nvidia.StatusInvalidObject, row.StatusOffset, "unified mapping of an object that the ledger does not know")
	}
	ctl, err := k.open(int(m.CtrlFD))
	if err != nil || ctl.Kind != ControlFile {
		return s.deny(k, nvidia.StatusInvalidArgument, row.StatusOffset, "unified mapping without the control file")
	}
	ok := s.usable(m.Client, m.Memory, ctl)
	k.close(ctl)
	if !ok {
		return s.deny(k, nvidia.StatusInvalidObject, row.StatusOffset, "unified mapping of an object that is not what it was made as")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := rangeKey{k.process(), m.Base}
	if mem := s.ledger.lookup(m.Client, m.Memory); mem != nil {
		s.ledger.mapExternal(key, m.Length, m.GPUs, mem)
		for _, g := range m.GPUs {
			s.record(entryMap(key, m, g))
		}
	}
	s.count.continued.Add(1)
	return continueCall
}

func (s *Session) unmapExternal(k *call) answer {
	return s.giveBack(k, func() {
		m, err := nvidia.DecodeUVMUnmapExternal(k.arg)
		if err != nil || m.Status != nvidia.StatusOK {
			return
		}
		s.ledger.unmapExternal(k.process(), m.Base, m.Length, m.GPU)
		s.record(entryUnmap(k.process(), m))
	})
}

func (s *Session) freeRange(k *call) answer {
	return s.giveBack(k, func() {
		f, err := nvidia.DecodeUVMFree(k.arg)
		if err != nil || f.Status != nvidia.StatusOK {
			return
		}
		s.ledger.freeRange(k.process(), f.Base, f.Length)
		s.record(entryFreeRange(k.process(), f.Base, f.Length))
	})
}

// mmap judges a shared file mapping at a non-zero offset. On the
// unified-memory file that is a managed range, whose offset equals its
// address; it is charged by its length before it runs. Another file's mapping
// is charged the same way until it is seen what it became, because another
// thread can exchange the descriptor in between.
func (s *Session) mmap(c caller, args [6]uint64) answer {
	const fixed = unix.MAP_FIXED | unix.MAP_FIXED_NOREPLACE
	addr, length, flags, offset := args[0], args[1], args[3], args[5]
	f, err := c.open(int(int32(args[4])))
	if err != nil {
		return fail(unix.EBADF)
	}
	managed := f.Kind == UVMFile
	c.close(f)
	if f.Kind == ControlFile || f.Kind == GPUFile {
		// Register and memory windows are set up by MAP_MEMORY, which is judged.
		s.count.continued.Add(1)
		return continueCall
	}
	if !managed && flags&fixed != 0 && addr != offset {
		s.count.continued.Add(1)
		return continueCall // cannot become a managed range: address and offset differ
	}
	n, ok := roundVRAM(length)
	if !ok {
		if managed {
			return fail(unix.ENOMEM)
		}
		s.count.continued.Add(1)
		return continueCall
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ledger.room(n); err != nil {
		s.count.overQuota.Add(1)
		s.refusedLocked("managed range over quota: " + err.Error())
		return fail(unix.ENOMEM)
	}
	key := rangeKey{c.process(), offset}
	s.ledger.addManaged(key, n)
	s.record(entryManaged(key, n))
	s.unseen[key] = managed
	s.count.continued.Add(1)
	return continueCall
}
