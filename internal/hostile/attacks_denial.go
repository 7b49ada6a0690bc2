package hostile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// denialAttacks keep the supervisor from serving others.
func denialAttacks() []attack {
	probing := setup{probing: true}
	return []attack{
		{name: "denial/page-held-back-in-free", setup: probing, run: heldBack(freeOn)},
		{name: "denial/page-held-back-in-allocation", setup: probing, run: heldBack(allocOn)},
		{name: "denial/page-held-back-in-schedule", setup: probing, run: heldBack(scheduleOn)},
		{name: "denial/page-held-back-while-reading", setup: probing, run: heldBackReading},
		{name: "denial/page-held-back-in-caller", setup: probing, run: heldInCaller},
		{name: "denial/flood-of-frees", setup: probing, run: flood(func(c *client) error { return c.release(handleFirst + 0xffff) })},
		{name: "denial/flood-of-questions", setup: probing, run: flood(func(c *client) error {
			return c.control(c.fd, c.root, c.subdevice, nvidia.CtrlFBGetInfoV2, make([]byte, 1028))
		})},
		{name: "denial/flood-of-refusals", setup: probing, run: flood(func(c *client) error {
			return c.control(c.fd, c.root, c.subdevice, 0x20800000|uint32(rand.IntN(1<<16)), nil)
		})},
		{name: "denial/many-objects", setup: probing, run: manyObjects},
		{name: "denial/many-processes", setup: probing, run: manyProcesses},
		{name: "denial/many-threads", setup: probing, run: manyThreads},
		{name: "denial/many-mappings", setup: probing, run: manyMappings},
		{name: "denial/stopped-in-a-call", setup: probing, run: stopped},
	}
}

// Parts of linux/userfaultfd.h.
const (
	uffdAPI          = 0xc018aa3f
	uffdRegister     = 0xc020aa00
	uffdWriteProtect = 0xc018aa06
	uffdCopy         = 0xc028aa03
	uffdMissing      = 1
	uffdProtected    = 2
	uffdFeatureWP    = 1
)

// guardPage returns a page at which whoever writes (or, with missing, reads) waits until this process says so.
func (t *tenant) guardPage(missing bool) (page uint64, arm func() error, err error) {
	r, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if e != 0 {
		return 0, nil, fmt.Errorf("userfaultfd: %w: %w", e, errSkip)
	}
	fd := int(r)
	t.faults = fd
	ask := func(cmd uint32, words ...uint64) error {
		defer t.Reset()
		b, addr, err := t.Take(8 * len(words))
		if err != nil {
			return err
		}
		for i, w := range words {
			_ = nvidia.PutU64At(b, uint32(8*i), w)
		}
		return rawIoctl(fd, cmd, addr)
	}
	if err := ask(uffdAPI, 0xaa, uffdFeatureWP, 0); err != nil {
		return 0, nil, fmt.Errorf("userfaultfd: %w: %w", err, errSkip)
	}
	if page, err = mmap(0, 4096, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0); err != nil {
		return 0, nil, err
	}
	mode := uint64(uffdProtected)
	if missing {
		mode = uffdMissing
	}
	if !missing {
		if err := poke(page, make([]byte, 64)); err != nil {
			return 0, nil, err
		}
	}
	if err := ask(uffdRegister, page, 4096, mode, 0); err != nil {
		return 0, nil, fmt.Errorf("userfaultfd: %w: %w", err, errSkip)
	}
	return page, func() error { return ask(uffdWriteProtect, page, 4096, 1) }, nil
}

// supply gives the content of a page that somebody waits for.
func (t *tenant) supply(page uint64, content []byte) error {
	l, err := t.again()
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	src, at, err := l.Take(2 * 4096)
	if err != nil {
		return err
	}
	off := (4096 - at%4096) % 4096
	copy(src[off:off+4096], content)
	b, addr, err := l.Take(40)
	if err != nil {
		return err
	}
	for i, w := range []uint64{page, at + off, 4096, 0, 0} {
		_ = nvidia.PutU64At(b, uint32(8*i), w)
	}
	return rawIoctl(t.faults, uffdCopy, addr)
}

// guarded is a call whose answer goes to a guarded page.
type guarded func(t *tenant, c *client, page uint64) (cmd uint32, arg uint64, err error)

func freeOn(_ *tenant, c *client, page uint64) (uint32, uint64, error) {
	if _, err := c.vram(handleFirst, 2*mib); err != nil {
		return 0, 0, err
	}
	b := make([]byte, nvidia.SizeFree)
	_ = nvidia.Free{Root: c.root, Object: handleFirst}.Put(b) // it fits
	return nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), page, poke(page, b)
}

func allocOn(_ *tenant, c *client, page uint64) (uint32, uint64, error) {
	b := make([]byte, 512)
	a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst, Class: nvidia.ClassMemoryLocalUser, Params: page + 256, ParamsSize: nvidia.SizeMemoryParams}
	_ = a.Put(b) // it fits
	copy(b[256:], memoryParams(nvidia.MemoryParams{Size: 2 * mib}))
	return nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), page, poke(page, b)
}

func scheduleOn(_ *tenant, c *client, page uint64) (uint32, uint64, error) {
	g, err := c.group(nvidia.EngineGR0)
	if err != nil {
		return 0, 0, err
	}
	b := make([]byte, 512)
	k := nvidia.Control{Client: c.root, Object: g, Cmd: nvidia.CtrlTSGSchedule, Params: page + 256, ParamsSize: 3}
	_ = k.Put(b) // it fits
	b[256] = 1
	return nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), page, poke(page, b)
}

// heldWait is how long a page is held back: longer than the judge's patience with the victim's calls.
const heldWait = stallLimit + 400*time.Millisecond

// heldBack makes a call whose answer cannot be written until the attacker allows it.
func heldBack(call guarded) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		page, arm, err := t.guardPage(false)
		if err != nil {
			return err
		}
		cmd, arg, err := call(t, c, page)
		if err != nil {
			return err
		}
		if err := arm(); err != nil {
			return fmt.Errorf("userfaultfd: %w: %w", err, errSkip)
		}
		t.tries++
		go func() { _ = onOwnThread(func() error { return rawIoctl(c.fd, cmd, arg) }) }()
		time.Sleep(heldWait)
		return nil
	}
}

// heldBackReading gives an argument that cannot be read until the attacker allows it.
func heldBackReading(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	page, _, err := t.guardPage(true)
	if err != nil {
		return err
	}
	t.tries++
	go func() {
		_ = onOwnThread(func() error { return rawIoctl(c.fd, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), page) })
	}()
	time.Sleep(heldWait)
	return nil
}

// heldInCaller lets the supervisor read an argument that the driver then does not get: a call that runs in the
// tenant stays there for as long as the tenant likes.
func heldInCaller(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	page, _, err := t.guardPage(true)
	if err != nil {
		return err
	}
	fill := func(h nvidia.Handle) error {
		b := make([]byte, 4096)
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassOSDescriptor, Params: page + 256, ParamsSize: 40}
		_ = a.Put(b) // it fits
		return t.supply(page, b)
	}
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = onOwnThread(func() error {
			for !over.Load() {
				_ = rawIoctl(c.fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), page)
			}
			return nil
		})
	}()
	for i := range nvidia.Handle(300) {
		t.tries++
		_ = fill(handleFirst + i)
		spin(uint32(i % 50 * 20))
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(page), 4096, unix.MADV_DONTNEED); e != 0 {
			return e
		}
	}
	time.Sleep(heldWait)
	// Let go, since an emulated card that waits for the page itself would keep this process from ending.
	over.Store(true)
	for {
		_ = fill(handleFirst)
		select {
		case <-ended:
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}

// flood makes one call from several threads as fast as it can.
func flood(call func(c *client) error) func(*tenant) error {
	return func(t *tenant) error {
		end := time.Now().Add(max(t.Race, 500*time.Millisecond))
		measured := make(chan error, 1)
		go func() { measured <- t.measure(max(t.Race, 500*time.Millisecond)) }()
		t.tries = 4
		err := t.together(4, func(_ int, l *lib) error {
			c, err := l.client()
			if err != nil {
				return err
			}
			for time.Now().Before(end) {
				_ = call(c)
			}
			return nil
		})
		return errors.Join(err, <-measured)
	}
}

// manyObjects makes objects that cost nothing, without end.
func manyObjects(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	p := memoryParams(nvidia.MemoryParams{Size: 4096, Attr: 1 << 25})
	h := handleFirst
	err = forTime(max(t.Race, 500*time.Millisecond), func() error {
		h++
		_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemorySystem}, p)
		_ = t.try(err)
		return nil
	})
	return errors.Join(err, t.hold("with many objects"))
}

func manyProcesses(t *tenant) error {
	var all []*sibling
	for range 24 {
		s, err := spawn(t.Hints, "helper-weight", "", nil)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	for _, s := range all {
		s.await()
		t.tries++
	}
	return errors.Join(t.hold("with many processes"), t.measure(measureFor))
}

func manyThreads(t *tenant) error {
	err := t.together(100, func(i int, l *lib) error {
		c, err := l.client()
		if err != nil {
			return nil
		}
		_, _ = c.vram(handleFirst, 2*mib)
		closeAll(c.fd)
		return nil
	})
	t.tries = 100
	return errors.Join(err, t.hold("after many threads"))
}

// manyMappings gives the supervisor a long address space to look through.
func manyMappings(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	zero, err := unix.Open("/dev/zero", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	for i := range uint64(4000) {
		if _, err := mmap(managedBase+1<<42+i*8192, 4096, unix.MAP_PRIVATE|unix.MAP_FIXED, zero, 0); err != nil {
			break
		}
	}
	err = forTime(max(t.Race, 500*time.Millisecond), func() error {
		at := managedBase + uint64(t.tries%8)<<21
		_ = t.try(managedAt(u.FD, at, 64<<10))
		return nil
	})
	return errors.Join(err, t.settle(c, u), t.hold("with a long address space"))
}

// stopped stops processes in the middle of their calls.
func stopped(t *tenant) error {
	for range 6 {
		s, err := spawn(t.Hints, "helper-storm", "", nil)
		if err != nil {
			return err
		}
		s.await()
		time.Sleep(time.Duration(5+rand.IntN(10)) * time.Millisecond)
		_ = s.cmd.Process.Signal(unix.SIGSTOP)
		t.tries++
	}
	time.Sleep(heldWait)
	return nil
}
