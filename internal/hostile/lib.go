package hostile

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// lib makes calls as a program can that knows no manners. It serves one goroutine.
type lib struct {
	*rm.Device
	dir string
}

func newLib(dir string) (*lib, error) {
	d, err := rm.NewDevice(dir)
	if err != nil {
		return nil, err
	}
	return &lib{Device: d, dir: dir}, nil
}

// again is another lib for another goroutine.
func (l *lib) again() (*lib, error) { return newLib(l.dir) }

// put is any structure of internal/abi/nvidia.
type put interface{ Put(b []byte) error }

// raw is a structure given as bytes.
type raw []byte

func (r raw) Put(b []byte) error { copy(b, r); return nil }

// issue makes a call and returns its status as an error.
func (l *lib) issue(fd int, cmd uint32, size int, s put) ([]byte, error) {
	b, addr, err := l.Take(size)
	if err != nil {
		return nil, err
	}
	if err := s.Put(b); err != nil {
		return nil, err
	}
	if err := l.Ioctl(fd, cmd, addr); err != nil {
		return b, err
	}
	st, err := nvidia.GetStatus(b, nvidia.Nr(cmd), uint32(size))
	if err == nil && st != nvidia.StatusOK {
		return b, st
	}
	return b, nil
}

// object makes RM_ALLOC in the long form.
func (l *lib) object(fd int, a nvidia.Alloc, params []byte) (nvidia.Handle, error) {
	defer l.Reset()
	if params != nil {
		p, addr, err := l.Take(max(1, len(params)))
		if err != nil {
			return 0, err
		}
		copy(p, params)
		a.Params, a.ParamsSize = addr, uint32(len(params))
	}
	b, err := l.issue(fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), nvidia.SizeAlloc64, a)
	if err != nil {
		return 0, err
	}
	done, err := nvidia.DecodeAlloc(b)
	return done.New, err
}

// free makes RM_FREE.
func (l *lib) free(fd int, root, object nvidia.Handle) error {
	defer l.Reset()
	_, err := l.issue(fd, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), nvidia.SizeFree, nvidia.Free{Root: root, Object: object})
	return err
}

// control makes RM_CONTROL with parameters, which get the answer.
func (l *lib) control(fd int, client, object nvidia.Handle, cmd uint32, params []byte) error {
	defer l.Reset()
	c := nvidia.Control{Client: client, Object: object, Cmd: cmd, ParamsSize: uint32(len(params))}
	p, addr, err := l.Take(max(1, len(params)))
	if err != nil {
		return err
	}
	copy(p, params)
	c.Params = addr
	_, err = l.issue(fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), nvidia.SizeControl, c)
	copy(params, p)
	return err
}

// dup makes DUP_OBJECT.
func (l *lib) dup(fd int, d nvidia.Dup) (nvidia.Handle, error) {
	defer l.Reset()
	b, err := l.issue(fd, nvidia.Cmd(nvidia.EscDup, nvidia.SizeDup), nvidia.SizeDup, d)
	if err != nil {
		return 0, err
	}
	done, err := nvidia.DecodeDup(b)
	return done.Object, err
}

// heap makes VID_HEAP_CONTROL.
func (l *lib) heap(fd int, v nvidia.VidHeap) (nvidia.VidHeap, error) {
	defer l.Reset()
	b, err := l.issue(fd, nvidia.Cmd(nvidia.EscVidHeap, nvidia.SizeVidHeap), nvidia.SizeVidHeap, v)
	if err != nil {
		return v, err
	}
	return nvidia.DecodeVidHeap(b)
}

// allocMemory makes ALLOC_MEMORY.
func (l *lib) allocMemory(fd int, m nvidia.AllocMemory) (nvidia.Handle, error) {
	defer l.Reset()
	b, err := l.issue(fd, nvidia.Cmd(nvidia.EscAllocMemory, nvidia.SizeAllocMemory), nvidia.SizeAllocMemory, m)
	if err != nil {
		return 0, err
	}
	done, err := nvidia.DecodeAllocMemory(b)
	return done.New, err
}

// memoryParams are the parameters of a memory class.
func memoryParams(m nvidia.MemoryParams) []byte {
	b := make([]byte, nvidia.SizeMemoryParams)
	_ = m.Put(b) // it fits
	return b
}

// client is a bare start: a control file with a client, a device and a subdevice on it.
type client struct {
	*lib
	fd                      int
	root, device, subdevice nvidia.Handle
}

// Handles that clients of the suite give their objects.
const (
	handleDevice    nvidia.Handle = 0x5c000080
	handleSubdevice nvidia.Handle = 0x5c002080
	handleFirst     nvidia.Handle = 0x5c100000
)

func (l *lib) client() (*client, error) {
	fd, err := l.Open(card.KindCtl)
	if err != nil {
		return nil, err
	}
	root, err := l.object(fd, nvidia.Alloc{Class: nvidia.ClassRootClient}, nil)
	if err != nil {
		return nil, fmt.Errorf("root client: %w", err)
	}
	return l.clientOn(fd, root)
}

// clientOn makes the device of a client that is there.
func (l *lib) clientOn(fd int, root nvidia.Handle) (*client, error) {
	c := &client{lib: l, fd: fd, root: root, device: handleDevice, subdevice: handleSubdevice}
	if _, err := l.object(fd, nvidia.Alloc{Root: root, Parent: root, New: c.device, Class: nvidia.ClassDevice}, make([]byte, 56)); err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	if _, err := l.object(fd, nvidia.Alloc{Root: root, Parent: c.device, New: c.subdevice, Class: nvidia.ClassSubdevice}, make([]byte, 4)); err != nil {
		return nil, fmt.Errorf("subdevice: %w", err)
	}
	return c, nil
}

// vram allocates device memory the usual way.
func (c *client) vram(h nvidia.Handle, size uint64) (nvidia.Handle, error) {
	a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser}
	return c.object(c.fd, a, memoryParams(nvidia.MemoryParams{Size: size}))
}

// release frees one object.
func (c *client) release(h nvidia.Handle) error { return c.free(c.fd, c.root, h) }

// group makes a channel group.
func (c *client) group(e nvidia.EngineType) (nvidia.Handle, error) {
	p := make([]byte, nvidia.SizeGroupParams)
	_ = nvidia.GroupParams{EngineType: e}.Put(p) // it fits
	return c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, Class: nvidia.ClassTSG}, p)
}

// channel makes a channel under a group or a device.
func (c *client) channel(parent nvidia.Handle, e nvidia.EngineType, flags uint32) (nvidia.Handle, error) {
	p := make([]byte, nvidia.SizeChannelParams)
	_ = nvidia.ChannelParams{EngineType: e, Flags: flags, GPFIFOEntries: 1024}.Put(p) // it fits
	return c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: parent, Class: nvidia.ClassChannelHopper}, p)
}

// fill takes all memory the quota still gives, in pieces of halving size. It returns what it got.
func (c *client) fill(from nvidia.Handle) (list []nvidia.Handle) {
	h := from
	for s := uint64(512 * mib); s >= 64<<10; s /= 2 {
		for {
			if _, err := c.vram(h, s); err != nil {
				break
			}
			list = append(list, h)
			h++
		}
	}
	return list
}

// submit queues work on a channel, as ringing a doorbell does: no supervisor sees it.
func (l *lib) submit(fd int, root, ch nvidia.Handle, each time.Duration, n int64) error {
	b := make([]byte, doorbell.SizeSubmit)
	doorbell.Submit{Client: uint32(root), Channel: uint32(ch), Each: each, Count: n}.Put(b)
	return l.private(fd, doorbell.NrSubmit, b)
}

// touch makes managed memory resident on the card, as a kernel that uses it does.
func (l *lib) touch(fd int, base, n uint64) error {
	b := make([]byte, doorbell.SizeManaged)
	doorbell.Managed{Base: base, Length: n}.Put(b)
	return l.private(fd, doorbell.NrManaged, b)
}

func (l *lib) private(fd int, nr uint8, in []byte) error {
	defer l.Reset()
	b, addr, err := l.Take(len(in))
	if err != nil {
		return err
	}
	copy(b, in)
	return l.Ioctl(fd, doorbell.Cmd(nr, uint32(len(in))), addr)
}

// plenty is work for longer than any attack takes.
const plenty = 1 << 20

// busy keeps a channel full of work for ever.
func (c *client) busy(ch nvidia.Handle) error {
	return c.submit(c.fd, c.root, ch, victimKernel, plenty)
}

// probe is the call that a victim makes now and then.
func (t *tenant) probe(x *rm.Context) error {
	if _, err := x.MemoryInfo(x.Subdevice); err != nil {
		return err
	}
	if !t.Hints.Probe {
		return nil
	}
	h, _, err := x.Memory(x.Device, probeBytes)
	if err != nil {
		return err
	}
	return x.Client.Free(h)
}

// forTime repeats fn until d has passed.
func forTime(d time.Duration, fn func() error) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

// rawIoctl makes one call without repeating it.
func rawIoctl(fd int, cmd uint32, arg uint64) error {
	_, err := sys.IoctlPtr(fd, cmd, arg)
	return err
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// unified opens and initialises nvidia-uvm.
func (c *client) unified() (*rm.UVM, error) {
	fd, err := c.Open(card.KindUVM)
	if err != nil {
		return nil, err
	}
	return rm.NewUVM(c.Device, fd, c.fd)
}

// Addresses for unified memory.
const (
	uvmBase = 0x7e00_0000_0000
	uvmStep = 4 * gib
)

// mapped makes an external range at base and maps an object there.
func (c *client) mapped(u *rm.UVM, base, length uint64, h nvidia.Handle) error {
	if err := u.CreateRange(base, length); err != nil {
		return err
	}
	return u.Map(base, length, &rm.Client{FD: c.fd, Handle: c.root}, h)
}

// uvmCall makes a command of nvidia-uvm whose status lies at an offset.
func (l *lib) uvmCall(fd int, cmd uint32, statusAt uint32, s put, size int) error {
	defer l.Reset()
	b, addr, err := l.Take(size)
	if err != nil {
		return err
	}
	if err := s.Put(b); err != nil {
		return err
	}
	if err := l.Ioctl(fd, cmd, addr); err != nil {
		return err
	}
	if st, err := nvidia.U32At(b, statusAt); err != nil || st != 0 {
		return nvidia.Status(st)
	}
	return nil
}

func (l *lib) uvmMap(fd int, m nvidia.UVMMapExternal) error {
	return l.uvmCall(fd, nvidia.UVMCmdMapExternal, 9260, m, nvidia.SizeUVMMapExternal)
}

// uvmFree is UVM_FREE with a length of the caller's choice.
func (l *lib) uvmFree(fd int, base, length uint64) error {
	return l.uvmCall(fd, nvidia.UVMCmdFree, 16, nvidia.UVMFree{Base: base, Length: length}, nvidia.SizeUVMFree580)
}

// mmap is the bare system call.
func mmap(addr, length uint64, flags, fd int, offset uint64) (uint64, error) {
	r, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(addr), uintptr(length), unix.PROT_READ|unix.PROT_WRITE, uintptr(flags), uintptr(fd), uintptr(offset))
	if e != 0 {
		return 0, e
	}
	return uint64(r), nil
}

func munmap(addr, length uint64) error {
	_, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(addr), uintptr(length), 0)
	if e != 0 {
		return e
	}
	return nil
}

// managedAt maps nvidia-uvm at an offset equal to the address.
func managedAt(fd int, addr, length uint64) error {
	_, err := mmap(addr, length, unix.MAP_SHARED|unix.MAP_FIXED, fd, addr)
	return err
}

// poke writes to this process's own memory at an address that Go knows nothing of.
func poke(addr uint64, b []byte) error { return sys.WriteMemory(unix.Getpid(), addr, b) }
