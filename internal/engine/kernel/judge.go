package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// Level says how a call is treated that no rule covers.
type Level uint8

const (
	// Strict refuses it: for tenants who do not trust each other. What may
	// run in the caller is harmless whatever a racing thread turns it into.
	Strict Level = iota
	// Compatible lets it run in the caller and reports that in every status.
	Compatible
)

func (l Level) String() string {
	if l == Compatible {
		return "compatible"
	}
	return "strict"
}

// ParseLevel reads "strict" or "compatible".
func ParseLevel(s string) (Level, error) {
	switch s {
	case "strict", "":
		return Strict, nil
	case "compatible":
		return Compatible, nil
	}
	return Strict, fmt.Errorf("level %q: want strict or compatible", s)
}

// serve judges one trapped call. The number and registers cannot change any
// more; everything in memory is copied once and judged on the copy.
func (s *Session) serve(c caller, n sys.Notification) answer {
	s.count.calls.Add(1)
	s.arena.Reset()
	switch n.NR {
	case unix.SYS_IOCTL:
		return s.ioctl(c, int(int32(n.Args[0])), uint32(n.Args[1]), n.Args[2])
	case unix.SYS_MMAP:
		return s.mmap(c, n.Args)
	}
	return continueCall
}

func (s *Session) ioctl(c caller, fd int, cmd uint32, arg uint64) answer {
	f, err := c.open(fd)
	if err != nil {
		var e unix.Errno
		if errors.As(err, &e) {
			return fail(e)
		}
		return fail(unix.EBADF)
	}
	defer c.close(f)
	k := &call{caller: c, file: f, descriptor: fd, cmd: cmd, addr: arg}
	switch f.Kind {
	case ControlFile, GPUFile:
		return s.escape(k)
	case UVMFile:
		return s.uvm(k)
	case OtherDevice:
		s.refused("call on a driver file that tenants do not get")
		return fail(unix.EACCES)
	}
	return s.foreign(k)
}

// foreign treats a command on a file that is not the driver's. It may run
// only if it would do no harm on a driver file too, since another thread can
// exchange the descriptor before the kernel looks at it again.
func (s *Session) foreign(k *call) answer {
	if s.level == Strict {
		_, esc := s.table.Escape(k.nr(), nvidia.Size(k.cmd))
		_, uvm := s.table.UVM(k.cmd)
		if esc || uvm {
			s.refused(fmt.Sprintf("driver command %#x on a file that is not the driver's", k.cmd))
			return fail(unix.ENOTTY)
		}
	}
	return s.letRun()
}

// letRun lets a call run in its own thread.
func (s *Session) letRun() answer {
	s.count.continued.Add(1)
	return continueCall
}

// unknown treats a call that the table does not have.
func (s *Session) unknown(k *call, st *staged, off int, what string) answer {
	st.unstage(k)
	if s.level == Compatible {
		s.count.unknown.Add(1)
		return s.letRun()
	}
	return s.deny(k, nvidia.StatusNotSupported, off, "unknown "+what)
}

// load copies the call's argument, once.
func (s *Session) load(k *call, n uint32) error {
	b, _, ok := s.arena.Take(int(n))
	if !ok {
		return errTooBig
	}
	if err := k.read(k.addr, b); err != nil {
		return err
	}
	k.arg = b
	return nil
}

// escape judges an ioctl on /dev/nvidiactl or /dev/nvidiaN.
func (s *Session) escape(k *call) answer {
	if k.nr() == nvidia.EscXfer {
		if a, done := s.unwrap(k); done {
			return a
		}
	}
	size := nvidia.Size(k.cmd)
	row, ok := s.table.Escape(k.nr(), size)
	if !ok {
		if s.level == Compatible {
			s.count.unknown.Add(1)
			return s.letRun()
		}
		s.refused(fmt.Sprintf("unknown driver call %#x of %d bytes", k.nr(), size))
		return fail(unix.EINVAL)
	}
	if row.Verdict == nvidia.Caller && k.nr() != nvidia.EscMapMemory {
		return s.letRun()
	}
	if err := s.load(k, size); err != nil {
		return s.abort(k, &staged{}, err)
	}
	switch k.nr() {
	case nvidia.EscAlloc:
		return s.alloc(k)
	case nvidia.EscFree:
		return s.free(k)
	case nvidia.EscControl:
		return s.control(k)
	case nvidia.EscDup:
		return s.dup(k)
	case nvidia.EscVidHeap:
		return s.vidHeap(k)
	case nvidia.EscAllocMemory:
		return s.allocMemory(k)
	case nvidia.EscMapMemoryDma, nvidia.EscMapMemory:
		return s.mapping(k, row)
	}
	return s.plain(k, row)
}

// plain proxies a call that needs no judgement beyond its row.
func (s *Session) plain(k *call, row nvidia.Escape) answer {
	switch row.Verdict {
	case nvidia.Plain, nvidia.Deep:
		st := &staged{}
		if err := s.stageAll(k, st, k.arg, row.Ptrs, row.FDs); err != nil {
			return s.abort(k, st, err)
		}
		return s.forward(k, st, nil)
	case nvidia.Refuse:
		return s.deny(k, row.Refusal, row.Status, row.Name+" is not for tenants")
	}
	return s.unknown(k, &staged{}, row.Status, row.Name)
}

// unwrap turns a wrapped call into the call it wraps. The wrapper is read
// once; the inner call is then made directly, so nothing is left to race.
func (s *Session) unwrap(k *call) (answer, bool) {
	if nvidia.Size(k.cmd) != nvidia.SizeXfer {
		return fail(unix.EINVAL), true
	}
	if err := s.load(k, nvidia.SizeXfer); err != nil {
		return s.abort(k, &staged{}, err), true
	}
	x, err := nvidia.DecodeXfer(k.arg)
	if err != nil || x.Cmd > 0xff || uint8(x.Cmd) == nvidia.EscXfer || x.Size == 0 || x.Size > nvidia.MaxIoctlSize {
		s.refused("wrapped call that cannot be unwrapped")
		return fail(unix.EINVAL), true
	}
	row, ok := s.table.Escape(uint8(x.Cmd), x.Size)
	if !ok || row.Verdict == nvidia.Caller || row.Verdict == nvidia.Pinned {
		// What must run in the caller would be read again from the wrapper.
		s.refused(fmt.Sprintf("wrapped call %#x", x.Cmd))
		return fail(unix.EINVAL), true
	}
	k.cmd, k.addr, k.arg = nvidia.Cmd(uint8(x.Cmd), x.Size), x.Ptr, nil
	k.wrapped = true
	return answer{}, false
}

// mapping judges MAP_MEMORY, which the driver records for the calling process
// and so runs in the caller, and MAP_MEMORY_DMA, which is proxied: only of
// objects that the ledger knows, so that nothing allocated behind its back can
// be used on the card.
func (s *Session) mapping(k *call, row nvidia.Escape) answer {
	if s.level == Strict {
		client, _ := nvidia.U32At(k.arg, 0)
		memory, _ := nvidia.U32At(k.arg, mappedObject(k.nr()))
		if !s.usable(nvidia.Handle(client), nvidia.Handle(memory), k.file) {
			return s.deny(k, nvidia.StatusInvalidObject, row.Status, "mapping of an object that is not what it was made as")
		}
	}
	if row.Verdict == nvidia.Caller {
		return s.letRun()
	}
	st := &staged{}
	if err := s.stageAll(k, st, k.arg, row.Ptrs, row.FDs); err != nil {
		return s.abort(k, st, err)
	}
	return s.forward(k, st, nil)
}

// mappedObject is where the mapped object's handle lies: NVOS33_PARAMETERS
// has client, device, memory; NVOS46_PARAMETERS client, device, dma, memory.
func mappedObject(nr uint8) uint32 {
	if nr == nvidia.EscMapMemoryDma {
		return 12
	}
	return 8
}

// knows reports whether the tenant made an object, or a client, through the
// supervisor. Whether an object may be used is for usable to say.
func (s *Session) knows(client, h nvidia.Handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ledger.clients[client]
	return c != nil && (h == client || c.objects[h] != nil)
}

// errForeignClient says that a call names a client that is not the tenant's.
var errForeignClient = errors.New("names a client that is not the tenant's")

// ownClients checks the handles of other clients inside a call. Where the
// driver takes such handles on trust, they would give a tenant its
// neighbour's memory.
func (s *Session) ownClients(params []byte, offsets []uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, off := range offsets {
		h, err := nvidia.U32At(params, off)
		if err != nil {
			return err
		}
		if h != 0 && s.ledger.clients[nvidia.Handle(h)] == nil {
			return fmt.Errorf("client %#x: %w", h, errForeignClient)
		}
	}
	return nil
}
