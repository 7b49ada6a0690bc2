package hostile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// entryAttacks reach the driver by other doors, or make a call look like something else.
func entryAttacks() []attack {
	return []attack{
		{name: "entry/odd-command-words", run: oddWords},
		{name: "entry/odd-command-words-freeze", run: oddFreeze},
		{name: "entry/high-word", run: highWord},
		{name: "entry/int-0x80", run: byInt80},
		{name: "entry/x32", run: byX32},
		{name: "entry/io-uring", run: byRing},
		{name: "entry/own-filter-on-top", run: ownFilter},
		{name: "entry/own-listener", run: ownListener},
		{name: "entry/traced-by-itself", run: traced},
		{name: "entry/wrapped-allocations", run: wrappedAllocations},
		{name: "entry/wrapped-freeze", run: wrappedFreeze},
		{name: "entry/wrapped-odd", run: wrappedOdd},
		{name: "entry/unknown-controls", run: unknownControls},
		{name: "entry/unknown-classes", run: unknownClasses},
		{name: "entry/unknown-escapes", run: unknownEscapes},
		{name: "entry/every-uvm-command", run: everyUVM},
		{name: "entry/other-device-files", run: otherFiles},
		{name: "entry/calls-on-the-wrong-file", run: wrongFile},
		{name: "entry/thaw-by-other-controls", run: otherThaws},
	}
}

// oddWords asks for memory over quota with every type byte and direction.
func oddWords(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	h := handleFirst + 0x10000
	for typ := range uint32(256) {
		for dir := range uint32(4) {
			if typ%16 != 6 && dir != 3 && typ != 0 {
				continue
			}
			h++
			cmd := dir<<30 | nvidia.SizeAlloc64<<16 | typ<<8 | uint32(nvidia.EscAlloc)
			_ = t.try(t.ioctlAlloc(c, uint64(cmd), h))
		}
	}
	return t.hold("after odd command words")
}

// ioctlAlloc makes RM_ALLOC of 64 MiB with a command word of the caller's choice, all 64 bits of it.
func (t *tenant) ioctlAlloc(c *client, cmd uint64, h nvidia.Handle) error {
	defer t.Reset()
	addr, b, err := t.allocCall(c, h)
	if err != nil {
		return err
	}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), uintptr(cmd), uintptr(addr))
	return verdictOf(e, b, nvidia.EscAlloc)
}

// allocCall writes RM_ALLOC of 64 MiB into scratch memory.
func (t *tenant) allocCall(c *client, h nvidia.Handle) (uint64, []byte, error) {
	p, paddr, err := t.Take(nvidia.SizeMemoryParams)
	if err != nil {
		return 0, nil, err
	}
	copy(p, memoryParams(nvidia.MemoryParams{Size: 64 * mib}))
	b, addr, err := t.Take(nvidia.SizeAlloc64)
	if err != nil {
		return 0, nil, err
	}
	a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser, Params: paddr, ParamsSize: nvidia.SizeMemoryParams}
	return addr, b, a.Put(b)
}

func verdictOf(e unix.Errno, b []byte, nr uint8) error {
	if e != 0 {
		return e
	}
	if st, err := nvidia.GetStatus(b, nr, uint32(len(b))); err != nil || st != 0 {
		return errors.Join(err, st)
	}
	return nil
}

// freezeCall writes a FIFO_DISABLE_CHANNELS of the neighbour's channels into scratch memory.
func (t *tenant) freezeCall(c *client) (uint64, []byte, error) {
	var list []nvidia.ChannelRef
	for _, ch := range t.Victim.Channels {
		list = append(list, nvidia.ChannelRef{Client: t.Victim.Client, Channel: ch})
	}
	q, err := nvidia.FifoDisableChannels{Disable: true, Channels: list}.Encode()
	if err != nil {
		return 0, nil, err
	}
	p, paddr, err := t.Take(len(q))
	if err != nil {
		return 0, nil, err
	}
	copy(p, q)
	b, addr, err := t.Take(nvidia.SizeControl)
	if err != nil {
		return 0, nil, err
	}
	k := nvidia.Control{Client: c.root, Object: c.subdevice, Cmd: nvidia.CtrlFifoDisableChannels, Params: paddr, ParamsSize: uint32(len(q))}
	return addr, b, k.Put(b)
}

func oddFreeze(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	typ := uint32(0)
	return t.measured(func() error {
		addr, b, err := t.freezeCall(c)
		if err != nil {
			return err
		}
		cmd := (typ&3)<<30 | nvidia.SizeControl<<16 | (typ&0xff)<<8 | uint32(nvidia.EscControl)
		typ++
		_ = t.try(verdictOf(asErrno(rawIoctl(c.fd, cmd, addr)), b, nvidia.EscControl))
		t.Reset()
		return nil
	})
}

func asErrno(err error) unix.Errno {
	var e unix.Errno
	if err != nil && !errors.As(err, &e) {
		return unix.EIO
	}
	return e
}

// highWord puts noise where the kernel does not look but a filter might.
func highWord(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	h := handleFirst + 0x10000
	for bit := 32; bit < 64; bit++ {
		h++
		_ = t.try(t.ioctlAlloc(c, uint64(nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64))|1<<bit, h))
		addr, b, err := t.allocCall(c, h)
		if err != nil {
			return err
		}
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(uint64(c.fd)|1<<bit), uintptr(nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64)), uintptr(addr))
		_ = t.try(verdictOf(e, b, nvidia.EscAlloc))
		t.Reset()
	}
	return t.hold("after high words")
}

// byX32 uses the call numbers of the x32 interface.
func byX32(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	for _, nr := range []uintptr{unix.SYS_IOCTL | 0x40000000, 514 | 0x40000000, unix.SYS_IOCTL | 0x80000000, unix.SYS_IOCTL | 1<<32} {
		addr, b, err := t.allocCall(c, handleFirst+0x10000)
		if err != nil {
			return err
		}
		_, _, e := unix.Syscall(nr, uintptr(c.fd), uintptr(nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64)), uintptr(addr))
		_ = t.try(verdictOf(e, b, nvidia.EscAlloc))
		t.Reset()
	}
	return t.hold("after x32 calls")
}

// byInt80 uses the 32-bit entry, in a process of its own: a kernel without that entry ends it.
func byInt80(t *tenant) error {
	if !haveRaw {
		return fmt.Errorf("no 32-bit entry on this machine: %w", errSkip)
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	const low32 = 0x40
	page, err := mmap(0, 1<<16, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|low32, -1, 0)
	if err != nil {
		return err
	}
	for _, h := range []nvidia.Handle{1, 2, 3} {
		b := make([]byte, nvidia.SizeAlloc64)
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst + 0x10000 + h, Class: nvidia.ClassMemoryLocalUser, Params: page + 4096, ParamsSize: nvidia.SizeMemoryParams}
		_ = a.Put(b) // it fits
		if err := errors.Join(sys.WriteMemory(os.Getpid(), page, b), sys.WriteMemory(os.Getpid(), page+4096, memoryParams(nvidia.MemoryParams{Size: 64 * mib}))); err != nil {
			return err
		}
		const ioctl32 = 54
		r := int32(int80(ioctl32, uintptr(c.fd), uintptr(nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64)), uintptr(page)))
		if r < 0 {
			_ = t.try(unix.Errno(-r))
			continue
		}
		if err := sys.ReadMemory(os.Getpid(), page, b); err != nil {
			return err
		}
		_ = t.try(verdictOf(0, b, nvidia.EscAlloc))
	}
	return t.hold("after 32-bit calls")
}

// fillAndAsk is what the attacks on the filter itself do in the end.
func (t *tenant) fillAndAsk(label string) error {
	c, err := t.client()
	if t.try(err) != nil {
		return t.hold(label)
	}
	c.fill(handleFirst)
	_, err = c.vram(handleFirst+0x10000, 64*mib)
	_ = t.try(err)
	return t.hold(label)
}

// ownFilter adds filters of its own that let everything pass, or hand it to a tracer.
func ownFilter(t *tenant) error {
	const allow, trace, log = 0x7fff0000, 0x7ff00000, 0x7ffc0000
	for _, action := range []uint32{allow, log, trace} {
		err := onOwnThread(func() error {
			if err := t.addFilter(action); err != nil {
				return err
			}
			l, err := t.again()
			if err != nil {
				return nil // with a tracer's filter and no tracer, calls fail
			}
			c, err := l.client()
			if t.try(err) != nil {
				return nil
			}
			c.fill(handleFirst)
			_, err = c.vram(handleFirst+0x10000, 64*mib)
			_ = t.try(err)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return t.hold("behind filters of its own")
}

// addFilter installs a filter that gives every ioctl one action.
func (t *tenant) addFilter(action uint32) error {
	ins := []uint64{
		0x20 | 0<<32, // load the call's number
		0x15 | 0<<16 | 1<<24 | unix.SYS_IOCTL<<32, // an ioctl?
		0x06 | uint64(action)<<32,
		0x06 | 0x7fff0000<<32,
	}
	prog, addr, err := t.Take(8 * len(ins))
	if err != nil {
		return err
	}
	for i, v := range ins {
		_ = nvidia.PutU64At(prog, uint32(8*i), v)
	}
	head, at, err := t.Take(16)
	if err != nil {
		return err
	}
	_ = nvidia.PutU32At(head, 0, uint32(len(ins)))
	_ = nvidia.PutU64At(head, 8, addr)
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(at), 0, 0)
}

// ownListener tries to become its own supervisor.
func ownListener(t *tenant) error {
	err := onOwnThread(func() error {
		_, err := sys.InstallFilter([]unix.SockFilter{{Code: 0x06, K: 0x7fff0000}})
		return err
	})
	_ = t.try(err)
	return t.fillAndAsk("after asking for a listener")
}

// wrap makes XFER around a call.
// wrappedOdd wraps with wrong numbers and sizes.
// unknownControls makes controls that no table has, with the neighbour's channels in every place.
// unknownEscapes tries every number with several sizes.
func everyUVM(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	for cmd := range uint32(256) {
		for _, fill := range []byte{0, 0xff} {
			b, addr, err := t.Take(9600)
			if err != nil {
				return err
			}
			for i := range b {
				b[i] = fill
			}
			_ = t.try(rawIoctl(u.FD, cmd, addr))
			t.Reset()
		}
		_ = t.try(rawIoctl(u.FD, cmd, 0))
	}
	return t.hold("after every command")
}

// otherFiles opens what headless tenants do not get.
func otherFiles(t *tenant) error {
	for _, name := range []string{"nvidia-modeset", "nvidia-uvm-tools", "nvidia1", "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0"} {
		fd, err := unix.Open(filepath.Join(t.dir, name), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if t.try(err) == nil {
			_, addr, err := t.Take(256)
			if err != nil {
				return err
			}
			_ = t.try(rawIoctl(fd, nvidia.Cmd(0, 16), addr))
			_ = t.try(rawIoctl(fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), addr))
			closeAll(fd)
		}
	}
	return t.fillAndAsk("after other files")
}

// wrongFile makes the control file's calls on the others, and theirs on it.
func wrongFile(t *tenant) error {
	x, err := t.context()
	if err != nil {
		return err
	}
	c := &client{lib: t.lib, fd: x.FD, root: x.Handle, device: x.Device, subdevice: x.Subdevice}
	c.fill(handleFirst)
	for fd := 3; fd < 12; fd++ {
		if fd == x.FD || fd == wireFD {
			continue
		}
		d := &client{lib: t.lib, fd: fd, root: x.Handle, device: x.Device, subdevice: x.Subdevice}
		_, err := d.vram(handleFirst+0x10000+nvidia.Handle(fd), 64*mib)
		_ = t.try(err)
		addr, b, err := t.freezeCall(d)
		if err != nil {
			return err
		}
		_ = t.try(verdictOf(asErrno(rawIoctl(fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), addr)), b, nvidia.EscControl))
		t.Reset()
		_ = t.try(t.uvmMap(fd, nvidia.UVMMapExternal{Base: uvmBase, Length: 64 << 10, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(x.FD), Client: x.Handle, Memory: handleFirst}))
	}
	if err := t.hold("after calls on other files"); err != nil {
		return err
	}
	return t.measure(measureFor)
}

// otherThaws are controls that enable, restart or evict channels.
func otherThaws(t *tenant) error {
	x, err := t.context()
	if err != nil {
		return err
	}
	for _, ch := range x.Channels {
		if _, err := x.Submit(ch, victimKernel, plenty); err != nil {
			return err
		}
	}
	return t.measured(func() error {
		for _, cmd := range []uint32{0x2080111a, 0x20801109, 0x2080110d, 0x20801112, 0xa06f0111, 0xa06f0112, 0x20801120} {
			for _, n := range []int{0, 4, 8, 536} {
				_ = t.try(t.control(x.FD, x.Handle, x.Subdevice, cmd, make([]byte, n)))
				_ = t.try(t.control(x.FD, x.Handle, x.Compute, cmd, make([]byte, n)))
			}
		}
		return nil
	})
}
