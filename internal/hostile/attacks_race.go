package hostile

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// raceAttacks change an argument or a descriptor between the supervisor's look and the driver's.
func raceAttacks() []attack {
	return []attack{
		{name: "race/root-to-memory", run: raceRoot(rootPlain)},
		{name: "race/root-to-memory-on-card-file", run: raceCardFiles},
		{name: "race/root-to-memory-moved-file", run: raceRoot(rootMoved)},
		{name: "race/root-to-memory-unused-client", run: raceRoot(rootUnused)},
		{name: "race/root-to-memory-exchanged-file", run: raceRootExchanged},
		{name: "race/root-to-memory-unshared-files", run: raceRootUnshared},
		{name: "race/descriptor-to-memory", run: raceDescriptor},
		{name: "race/descriptor-to-memory-other-handle", run: raceDescriptorHandle},
		{name: "race/descriptor-to-memory-heap", run: raceDescriptorHeap},
		{name: "race/descriptor-to-memory-0x27", run: raceDescriptorMemory},
		{name: "race/descriptor-to-group", run: raceDescriptorGroup},
		{name: "race/size", run: raceSize},
		{name: "race/parameter-pointer", run: raceParams},
		{name: "race/location-bits", run: raceLocation},
		{name: "race/control-to-freeze", run: raceControl},
		{name: "race/wrapper", run: raceWrapper},
		{name: "race/mapped-object", run: raceMapped},
		{name: "race/null-to-control-file", run: raceNullControl},
		{name: "race/null-to-uvm-mapping", run: raceUVMFile("/dev/zero")},
		{name: "race/control-file-to-uvm-mapping", run: raceUVMFile("")},
		{name: "race/close-during-call", run: raceClose},
	}
}

// flip runs a and b by turns, as fast as it can, until the returned function is called.
func flip(a, b func()) (stop func()) {
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = onOwnThread(func() error {
			for i := uint32(0); !over.Load(); i++ {
				a()
				spin(i & 63)
				b()
				spin(i >> 6 & 63)
			}
			return nil
		})
	}()
	return func() { over.Store(true); <-done }
}

var sink atomic.Uint32

func spin(n uint32) {
	for range n * 4 {
		sink.Add(1)
	}
}

// racing is a call whose memory another thread changes.
type racing struct {
	t      *tenant
	fd     int
	cmd    uint32
	arg    []byte
	addr   uint64
	params []byte
	at     uint64 // of params
	seen   map[string]int
}

func (t *tenant) newRace(fd int, nr uint8, size, params int) (*racing, error) {
	l, err := newLib(t.dir) // memory that nobody resets
	if err != nil {
		return nil, err
	}
	r := &racing{t: t, fd: fd, cmd: nvidia.Cmd(nr, uint32(size))}
	if r.arg, r.addr, err = l.Take(size); err != nil {
		return nil, err
	}
	r.params, r.at, err = l.Take(max(16, params))
	return r, err
}

// run prepares and makes the call until the time is over.
func (r *racing) run(prepare func(i uint32)) error {
	var n uint32
	err := forTime(r.t.Race, func() error {
		prepare(n)
		n++
		_, err := sys.IoctlPtr(r.fd, r.cmd, r.addr)
		r.tally(err)
		return nil
	})
	r.t.tries += int(n)
	r.t.note("answers: %v", r.seen)
	return err
}

// tally counts the answers, so that a race that never happens is seen.
func (r *racing) tally(err error) {
	what := "ok"
	if e := verdictOf(asErrno(err), r.arg, nvidia.Nr(r.cmd)); e != nil {
		what = strings.TrimPrefix(e.Error(), "NV_ERR_")
	}
	if len(r.arg) == nvidia.SizeAlloc64 {
		what += fmt.Sprintf(" (class %#x)", r.arg[12])
	}
	if r.seen == nil {
		r.seen = map[string]int{}
	}
	r.seen[what]++
}

// rootRace says on which file the client is allocated that turns into memory.
type rootRace func(t *tenant, c *client) (fd int, err error)

func rootPlain(_ *tenant, c *client) (int, error) { return c.fd, nil }

// rootOnCardFile uses the card's file, registered with the control file: the driver takes the one for the other.
func rootOnCardFile(t *tenant, c *client) (int, error) {
	fd, err := t.Open(card.KindGPU)
	if err != nil {
		return -1, err
	}
	b := make(raw, 4)
	_ = nvidia.PutU32At(b, 0, uint32(c.fd))
	defer t.Reset()
	_, addr, err := t.Take(4)
	if err != nil {
		return -1, err
	}
	if err := poke(addr, b); err != nil {
		return -1, err
	}
	return fd, rawIoctl(fd, nvidia.Cmd(nvidia.EscRegisterFD, 4), addr)
}

// rootMoved moves the file to another number.
func rootMoved(_ *tenant, c *client) (int, error) {
	fd, err := unix.Dup(c.fd)
	if err != nil {
		return -1, err
	}
	other, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.Dup2(other, c.fd)
}

// rootUnused gives up its client and takes one on a file whose client the supervisor has never seen used.
func rootUnused(t *tenant, c *client) (int, error) {
	fd, err := t.Open(card.KindCtl)
	if err != nil {
		return -1, err
	}
	root, err := t.object(fd, nvidia.Alloc{Class: nvidia.ClassRootClient}, nil)
	if err != nil {
		return -1, err
	}
	c.fd, c.root, c.device = fd, root, root
	return fd, nil
}

// memoryCall writes an allocation of 32 MiB into the race's memory; class is what it shows at first.
func (r *racing) memoryCall(c *client, h nvidia.Handle, class nvidia.Class, n uint64) {
	copy(r.params, memoryParams(nvidia.MemoryParams{Size: n}))
	a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: class, Params: r.at, ParamsSize: nvidia.SizeMemoryParams}
	_ = a.Put(r.arg) // it fits
}

const raceBytes = 32 * mib

// raceRoot turns the allocation of a client, which runs in the caller, into one of memory.
func raceRoot(where rootRace) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		fd, err := where(t, c)
		if err != nil {
			return err
		}
		c.fill(handleFirst)
		r, err := t.newRace(fd, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
		if err != nil {
			return err
		}
		return errors.Join(r.classes(c, nvidia.ClassRootClient), t.hold("after the race"))
	}
}

// raceCardFiles registers a fresh card file for each try.
func raceCardFiles(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	r, err := t.newRace(c.fd, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
	if err != nil {
		return err
	}
	stop := flip(func() { r.arg[12] = byte(nvidia.ClassRootClient) }, func() { r.arg[12] = byte(nvidia.ClassMemoryLocalUser) })
	err = r.run(func(i uint32) {
		if i > 0 {
			closeAll(r.fd)
		}
		if fd, err := rootOnCardFile(t, c); err == nil {
			r.fd = fd
		}
		r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), nvidia.ClassRootClient, raceBytes)
	})
	stop()
	return errors.Join(err, t.hold("after the race"))
}

// classes races one class against device memory.
func (r *racing) classes(c *client, harmless nvidia.Class) error {
	stop := flip(func() { r.arg[12] = byte(harmless) }, func() { r.arg[12] = byte(nvidia.ClassMemoryLocalUser) })
	defer stop()
	return r.run(func(i uint32) { r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), harmless, raceBytes) })
}

// raceRootExchanged shows a fresh file to the supervisor and lets the driver find one with a client.
func raceRootExchanged(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	fresh, err := t.Open(card.KindCtl)
	if err != nil {
		return err
	}
	slot, err := unix.Dup(fresh)
	if err != nil {
		return err
	}
	r, err := t.newRace(slot, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
	if err != nil {
		return err
	}
	var now atomic.Int32
	now.Store(int32(fresh))
	stop := flip(
		func() { r.arg[12] = byte(nvidia.ClassRootClient); _ = unix.Dup3(int(now.Load()), slot, 0) },
		func() { _ = unix.Dup3(c.fd, slot, 0); r.arg[12] = byte(nvidia.ClassMemoryLocalUser) })
	err = r.run(func(i uint32) {
		// A client may be made once on each file, so each try needs a fresh one.
		if fd, err := t.Open(card.KindCtl); err == nil {
			closeAll(int(now.Swap(int32(fd))))
		}
		r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), nvidia.ClassRootClient, raceBytes)
	})
	stop()
	return errors.Join(err, t.hold("after the race"))
}

// raceRootUnshared makes the call from a thread whose numbers mean other files than its process's.
func raceRootUnshared(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		if err := unix.Dup2(c.fd, null); err != nil {
			return err
		}
		r, err := t.newRace(null, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
		if err != nil {
			return err
		}
		return r.classes(c, nvidia.ClassRootClient)
	})
	return errors.Join(err, t.hold("after the race"))
}

// raceDescriptor turns an OS descriptor, which runs in the caller, into device memory.
// fullRace fills the quota, races, and looks.
// raceDescriptorHandle changes the handle as well, so that the supervisor looks at an object that is not there.
// raceDescriptorGroup turns OS descriptors into channel groups, then works in what it got.
// raceSize shows a small size and means a huge one.
// raceParams changes where the parameters lie: one place asks for little, the other for much.
// raceLocation shows memory of the host and means the card's.
// raceControl turns a control that passes into the one that freezes.
// raceWrapper changes what a wrapper wraps: a harmless call, or a forbidden one.
// raceMapped maps object A while showing B, then frees A: the mapping keeps it.
func raceMapped(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	const n = 64 * mib
	l, err := newLib(t.dir)
	if err != nil {
		return err
	}
	b, addr, err := l.Take(nvidia.SizeUVMMapExternal)
	if err != nil {
		return err
	}
	if err := u.CreateRange(uvmBase, 1<<40); err != nil {
		return err
	}
	at := uint64(uvmBase)
	err = forTime(t.Race, func() error {
		t.tries++
		at += n
		_, err1 := c.vram(handleFirst, n)
		_, err2 := c.vram(handleFirst+1, 64<<10)
		if errors.Join(err1, err2) == nil {
			m := nvidia.UVMMapExternal{Base: at, Length: 64 << 10, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(c.fd), Client: c.root, Memory: handleFirst + 1}
			_ = m.Put(b) // it fits
			stop := flip(func() { b[9256] = 1 }, func() { b[9256] = 0 })
			_, _ = sys.IoctlPtr(u.FD, nvidia.UVMCmdMapExternal, addr)
			stop()
		}
		_ = c.release(handleFirst)
		_ = c.release(handleFirst + 1)
		return nil
	})
	if err != nil {
		return err
	}
	if err := t.hold("after the race"); err != nil {
		return err
	}
	c.fill(handleFirst + 16)
	return t.hold("after filling up")
}

// raceNullControl shows /dev/null to the supervisor and lets the driver find its own file.
func raceNullControl(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	slot, err := unix.Dup(null)
	if err != nil {
		return err
	}
	r, err := t.newRace(slot, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
	if err != nil {
		return err
	}
	stop := flip(func() { _ = unix.Dup3(null, slot, 0) }, func() { _ = unix.Dup3(c.fd, slot, 0) })
	err = r.run(func(i uint32) {
		r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), nvidia.ClassMemoryLocalUser, raceBytes)
	})
	stop()
	return errors.Join(err, t.hold("after the race"))
}

// raceUVMFile shows another file to the supervisor of a managed mapping: a device that maps, or the control file.
func raceUVMFile(path string) func(*tenant) error {
	return managed(func(t *tenant, c *client, u *rm.UVM) error {
		other := c.fd
		if path != "" {
			fd, err := unix.Open(path, unix.O_RDWR, 0)
			if err != nil {
				return err
			}
			other = fd
		}
		// The quota is used up, so that a mapping that is seen for what it is would be refused.
		c.fill(handleFirst)
		slot, err := unix.Dup(other)
		if err != nil {
			return err
		}
		stop := flip(func() { _ = unix.Dup3(other, slot, 0) }, func() { _ = unix.Dup3(u.FD, slot, 0) })
		defer stop()
		at := uint64(managedBase)
		return forTime(t.Race, func() error {
			t.tries++
			if managedAt(slot, at, 8*mib) == nil {
				at += 16 * mib
			}
			return nil
		})
	})
}

// raceClose closes and exchanges the file while calls on it are under way.
func raceClose(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	d, err := t.client()
	if err != nil {
		return err
	}
	slot, err := unix.Dup(c.fd)
	if err != nil {
		return err
	}
	stop := flip(func() { _ = unix.Dup3(c.fd, slot, 0) }, func() { _ = unix.Dup3(d.fd, slot, 0); _ = unix.Close(slot) })
	h := handleFirst
	err = forTime(t.Race, func() error {
		t.tries++
		h++
		x := *c
		if h%2 == 0 {
			x.root, x.device = d.root, d.device
		}
		x.fd = slot
		_, _ = x.vram(h, 16*mib)
		if h%3 == 0 {
			_ = x.release(h - 1)
		}
		return nil
	})
	stop()
	time.Sleep(10 * time.Millisecond)
	return errors.Join(err, t.hold("after the race"))
}
