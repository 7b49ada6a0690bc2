package fusedev

import (
	"context"
	"encoding/binary"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// Ioctl implements fs.FileIoctler. The kernel has copied the structure in, and copies output back to the same
// address; the card reads and writes the caller's memory by itself, as the driver does, since the structures
// hold pointers and the card must see them as they are when the call executes. output is kept equal to what was
// written, so that the kernel's copy changes nothing.
func (h *handle) Ioctl(ctx context.Context, cmd uint32, arg uint64, input, output []byte) (int32, syscall.Errno) {
	if doorbell.Is(cmd) {
		return 0, h.private(ctx, cmd, input, output)
	}
	tid := 0
	if caller, ok := fuse.FromContext(ctx); ok {
		tid = int(caller.Pid)
	}
	if tid == 0 {
		return 0, syscall.EPERM // a caller outside the server's process namespace has no memory to read
	}
	copy(output, input)
	mem := &callerMemory{tid: tid, arg: arg, out: output}
	who := card.Caller{PID: tid, Mem: mem, File: func(fd int) (card.FileID, bool) { return h.s.file(tid, fd) }}
	if nr := nvidia.Nr(cmd); nr == nvidia.EscAlloc || nr == nvidia.EscXfer {
		// Clients are listed under their process; nothing else looks at the number.
		if tgid, err := sys.ThreadGroup(tid); err == nil {
			who.PID = tgid
		}
	}
	h.s.clock.sync()
	done, errno := h.s.Card.Ioctl(h.id, who, cmd, arg)
	h.s.clock.changed()
	h.s.clock.until(done)
	return 0, errno
}

// callerMemory is the address space of the thread that makes a call.
type callerMemory struct {
	tid int
	arg uint64
	out []byte // what the kernel will copy to arg
}

// ReadAt implements card.Memory.
func (m *callerMemory) ReadAt(b []byte, addr uint64) error { return sys.ReadMemory(m.tid, addr, b) }

// WriteAt implements card.Memory.
func (m *callerMemory) WriteAt(b []byte, addr uint64) error {
	if err := sys.WriteMemory(m.tid, addr, b); err != nil {
		return err
	}
	if off := int64(addr - m.arg); off >= 0 && off < int64(len(m.out)) {
		copy(m.out[off:], b)
	} else if off < 0 && -off < int64(len(b)) {
		copy(m.out, b[-off:])
	}
	return nil
}

// file resolves a descriptor of a caller to the card's file: the descriptor is duplicated for a moment and asked
// for its name. A descriptor of anything else is unknown.
func (s *Server) file(tid, fd int) (card.FileID, bool) {
	tgid, err := sys.ThreadGroup(tid)
	if err != nil {
		return 0, false
	}
	pidfd, err := sys.OpenProcess(tgid)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(pidfd) }() // a pidfd has nothing to flush
	dup, err := sys.GetFile(pidfd, fd)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(dup) }() // nor has the duplicate, which is not the last
	var st unix.Stat_t
	if unix.Fstat(dup, &st) != nil || st.Dev != s.dev.Load() {
		return 0, false
	}
	b := make([]byte, doorbell.SizeIdentify)
	if _, err := sys.Ioctl(dup, doorbell.Cmd(doorbell.NrIdentify, doorbell.SizeIdentify), b); err != nil {
		return 0, false
	}
	return card.FileID(binary.LittleEndian.Uint64(b)), true
}

// private runs the calls of package doorbell, which need nothing of the caller's memory.
func (h *handle) private(ctx context.Context, cmd uint32, in, out []byte) syscall.Errno {
	row, ok := privateCalls[cmd]
	if !ok || len(in) != len(out) {
		return syscall.ENOTTY
	}
	copy(out, in)
	return row(h, ctx, out)
}

var privateCalls = map[uint32]func(*handle, context.Context, []byte) syscall.Errno{
	doorbell.Cmd(doorbell.NrSubmit, doorbell.SizeSubmit):     (*handle).submit,
	doorbell.Cmd(doorbell.NrWait, doorbell.SizeWait):         (*handle).wait,
	doorbell.Cmd(doorbell.NrProgress, doorbell.SizeProgress): (*handle).progress,
	doorbell.Cmd(doorbell.NrManaged, doorbell.SizeManaged):   (*handle).managed,
	doorbell.Cmd(doorbell.NrIdentify, doorbell.SizeIdentify): (*handle).identify,
}

func (h *handle) identify(_ context.Context, b []byte) syscall.Errno {
	binary.LittleEndian.PutUint64(b, uint64(h.id))
	return 0
}

func (h *handle) submit(_ context.Context, b []byte) syscall.Errno {
	s := doorbell.GetSubmit(b)
	ref := card.ChannelRef{Client: s.Client, Channel: s.Channel}
	h.s.clock.sync()
	if err := h.s.Card.Submit(h.id, ref, s.Each, s.Count); err != nil {
		return syscall.EINVAL
	}
	h.s.clock.changed()
	p, err := h.s.Card.Progress(h.id, ref)
	if err != nil {
		return syscall.EINVAL
	}
	s.Submitted = p.Submitted
	s.Put(b)
	return 0
}

func (h *handle) progress(_ context.Context, b []byte) syscall.Errno {
	q := doorbell.GetProgress(b)
	now := h.s.clock.sync()
	p, err := h.s.Card.Progress(h.id, card.ChannelRef{Client: q.Client, Channel: q.Channel})
	if err != nil {
		return syscall.EINVAL
	}
	q.Submitted, q.Completed, q.Busy, q.Now = p.Submitted, p.Completed, p.Busy, now
	q.Put(b)
	return 0
}

// wait blocks its caller only, and ends early when the caller is interrupted or dies.
func (h *handle) wait(ctx context.Context, b []byte) syscall.Errno {
	q := doorbell.GetWait(b)
	ref := card.ChannelRef{Client: q.Client, Channel: q.Channel}
	if q.Target <= 0 {
		return syscall.EINVAL
	}
	c, k := h.s.Card, h.s.clock
	limit := k.sync() + q.Timeout
	test := func(now time.Duration) (bool, time.Duration) {
		p, err := c.Progress(h.id, ref)
		if err != nil || p.Completed >= q.Target || q.Timeout > 0 && now >= limit {
			return true, 0
		}
		over := c.Watch(h.id, ref, q.Target) != nil
		if q.Timeout > 0 {
			return over, limit
		}
		return over, 0
	}
	if over, _ := test(0); !over {
		w := &waiter{ready: make(chan struct{}), test: test}
		k.add(w)
		select {
		case <-w.ready:
		case <-ctx.Done():
			k.forget(w)
			return syscall.EINTR
		}
	}
	if k.isStopped() {
		return syscall.ENODEV // the card is going away
	}
	p, err := c.Progress(h.id, ref)
	if err != nil {
		return syscall.EINVAL
	}
	done, _ := c.Completion(ref, q.Target) // zero times when it is not done, or too long ago
	q.Completed, q.Submitted, q.Finished = p.Completed, done.Submitted, done.Finished
	q.Put(b)
	return 0
}

func (h *handle) managed(_ context.Context, b []byte) syscall.Errno {
	m := doorbell.GetManaged(b)
	h.s.clock.sync()
	if errno := h.s.Card.MapManaged(h.id, m.Base, m.Length); errno != 0 && errno != syscall.EINVAL {
		return errno // EINVAL: the range is there already, or the touch says so
	}
	n, errno := h.s.Card.TouchManaged(h.id, m.Base, m.Length)
	m.Resident = n
	m.Put(b)
	return errno
}
