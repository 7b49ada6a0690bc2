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
			return s.letRun()
		}
		s.refused(fmt.Sprintf("unknown unified-memory command %d", k.cmd))
		return fail(unix.EINVAL)
	}
	switch row.Verdict {
	case nvidia.Caller:
		return s.uvmInCaller(k, row)
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

// uvmInCaller lets a command run in the tenant. The file is kept from its
// first use on, since what is mapped into its address space lives as long as
// it does.
func (s *Session) uvmInCaller(k *call, row nvidia.UVMRow) answer {
	if len(row.Clients) > 0 {
		if err := s.load(k, row.Size); err != nil {
			return s.abort(k, &staged{}, err)
		}
		if err := s.ownClients(k.arg, row.Clients); err != nil {
			return s.deny(k, nvidia.StatusInvalidClient, row.StatusOffset, row.Name+": "+err.Error())
		}
	}
	s.mu.Lock()
	_, err := s.hold(k)
	s.mu.Unlock()
	if err != nil {
		s.refused(row.Name + ": " + err.Error())
		return fail(unix.EMFILE)
	}
	return s.letRun()
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
	ok := s.level != Strict || s.usable(m.Client, m.Memory, ctl)
	k.close(ctl)
	if !ok {
		return s.deny(k, nvidia.StatusInvalidObject, row.StatusOffset, "unified mapping of an object that is not what it was made as")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.hold(k)
	if err != nil {
		s.refusedLocked("unified mapping: " + err.Error())
		return fail(unix.EMFILE)
	}
	key := rangeKey{h.id, m.Base}
	if mem := s.ledger.lookup(m.Client, m.Memory); mem != nil {
		s.ledger.mapExternal(key, m.Length, m.GPUs, mem)
		for _, g := range m.GPUs {
			s.record(entryMap(key, m, g))
		}
	}
	return s.letRun()
}

func (s *Session) unmapExternal(k *call) answer {
	asked, err := nvidia.DecodeUVMUnmapExternal(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	id := s.space(k)
	last := func(l *ledger) bool { return l.lastMapping(id, asked.Base, asked.Length) }
	return s.giveBack(k, last, func() {
		m, err := nvidia.DecodeUVMUnmapExternal(k.arg)
		if err != nil || m.Status != nvidia.StatusOK {
			return
		}
		s.ledger.unmapExternal(id, m.Base, m.Length, m.GPU)
		s.record(entryUnmap(id, m))
	})
}

func (s *Session) freeRange(k *call) answer {
	asked, err := nvidia.DecodeUVMFree(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	id := s.space(k)
	last := func(l *ledger) bool { return l.lastMapping(id, asked.Base, 1) }
	return s.giveBack(k, last, func() {
		f, err := nvidia.DecodeUVMFree(k.arg)
		if err != nil || f.Status != nvidia.StatusOK {
			return
		}
		s.ledger.freeRange(id, f.Base)
		s.record(entryFreeRange(id, f.Base))
	})
}

// space is the id of the unified address space that a call is about, 0 when
// nothing was ever mapped into it.
func (s *Session) space(k *call) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.holding(k.file); h != nil {
		return h.id
	}
	return 0
}

// mmap judges a shared file mapping that can be a managed range: the driver
// insists that offset and address are equal. It is charged by its length
// before it runs, whatever file the descriptor leads to now, because another
// thread can exchange it in between; what it became is looked at afterwards.
func (s *Session) mmap(c caller, args [6]uint64) answer {
	const fixed = unix.MAP_FIXED | unix.MAP_FIXED_NOREPLACE
	addr, length, flags, offset := args[0], args[1], args[3], args[5]
	f, err := c.open(int(int32(args[4])))
	if err != nil {
		return fail(unix.EBADF)
	}
	managed := f.Kind == UVMFile
	c.close(f)
	if !managed && flags&fixed != 0 && addr != offset {
		return s.letRun()
	}
	n, ok := roundVRAM(length)
	if !ok {
		return fail(unix.ENOMEM)
	}
	room := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ledger.room(n)
	}
	err = room()
	if err != nil && s.reclaim() {
		err = room()
	}
	if err != nil {
		s.count.overQuota.Add(1)
		s.refused("managed range over quota: " + err.Error())
		return fail(unix.ENOMEM)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.pending = append(s.ledger.pending, pendingMap{pid: c.process(), tid: c.threadID(), base: offset, bytes: n})
	s.record(entryManaged(c.process(), s.ledger.mapped[c.process()]+n))
	return s.letRun()
}
