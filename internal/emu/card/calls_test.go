package card_test

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

var le = binary.LittleEndian

func TestProcessLists(t *testing.T) {
	c := card.New(card.H200())
	_, a := start(t, c, 700)
	_, b := start(t, c, 30)
	if _, _, err := b.Memory(b.Device, uint64(10*mib)); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, nvidia.SizeGetPids)
	if err := a.Control(a.Subdevice, nvidia.CtrlGetPids, p); err != nil {
		t.Fatal(err)
	}
	pids, err := nvidia.DecodeGetPids(p)
	if err != nil || len(pids.Pids) != 2 || pids.Pids[0] != 30 || pids.Pids[1] != 700 {
		t.Errorf("%+v, %v", pids, err)
	}
	p = make([]byte, nvidia.SizeGetPidInfo)
	if err := nvidia.PutPidInfos(p, []nvidia.PidInfo{{Pid: 30}, {Pid: 4}}); err != nil {
		t.Fatal(err)
	}
	if err := a.Control(a.Subdevice, nvidia.CtrlGetPidInfo, p); err != nil {
		t.Fatal(err)
	}
	info, err := nvidia.DecodePidInfos(p)
	if want := uint64(c.Config().ContextBytes + 10*mib); err != nil || info[0].Private != want || info[1].Private != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

// pairs makes a control whose {index, value} pair lies behind a pointer, and returns the value.
func pairs(t *testing.T, p *rm.Local, x *rm.Context, object nvidia.Handle, cmd, index uint32) uint32 {
	t.Helper()
	defer p.Reset()
	take := func(n int) ([]byte, uint64) {
		b, addr, err := p.Take(n)
		if err != nil {
			t.Fatal(err)
		}
		return b, addr
	}
	list, addr := take(8)
	params, at := take(16)
	call, where := take(nvidia.SizeControl)
	le.PutUint32(list, index)
	le.PutUint32(params, 1)
	le.PutUint64(params[8:], addr)
	k := nvidia.Control{Client: x.Handle, Object: object, Cmd: cmd, Params: at, ParamsSize: 16}
	if err := k.Put(call); err != nil {
		t.Fatal(err)
	}
	if err := p.Ioctl(x.FD, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), where); err != nil {
		t.Fatal(err)
	}
	if k, err := nvidia.DecodeControl(call); err != nil || k.Status != nvidia.StatusOK {
		t.Fatalf("control %#x: %v, %v", cmd, k.Status, err)
	}
	return le.Uint32(list[4:])
}

func TestControlsWithAList(t *testing.T) {
	c := card.New(card.H200())
	p, x := start(t, c, 1)
	if got := int64(pairs(t, p, x, x.Subdevice, nvidia.CtrlFBGetInfo, nvidia.FBHeapFree)) * kib; got != c.Stats().FreeBytes {
		t.Errorf("free %d, want %d", got, c.Stats().FreeBytes)
	}
	// GET_SURFACE_INFO's index 9 says where memory lies: 1 in the host, 2 on the card.
	h, _, err := x.Memory(x.Device, 1)
	if err != nil {
		t.Fatal(err)
	}
	host, err := x.Alloc(x.Device, nvidia.ClassOSDescriptor, nil)
	if err != nil {
		t.Fatal(err)
	}
	if on, off := pairs(t, p, x, h, 0x410110, 9), pairs(t, p, x, host, 0x410110, 9); on != 2 || off != 1 {
		t.Errorf("card memory lies in %d, host memory in %d", on, off)
	}
}

func TestXferWrapsAndOddTypeBytesWork(t *testing.T) {
	c := card.New(card.H200())
	p, x := start(t, c, 1)
	call := func() uint64 {
		p.Reset()
		b, addr, err := p.Take(nvidia.SizeAllocMemory)
		if err != nil {
			t.Fatal(err)
		}
		m := nvidia.AllocMemory{Root: x.Handle, Parent: x.Device, Class: nvidia.ClassMemoryLocalUser, Limit: uint64(mib) - 1}
		if err := m.Put(b); err != nil {
			t.Fatal(err)
		}
		return addr
	}
	used := c.Stats().UsedBytes
	// The driver looks at the number and the size only.
	const odd = 0x00380000 | 'Z'<<8 | 0x27
	if err := p.Ioctl(x.FD, odd, call()); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, used+mib)
	inner := call()
	b, addr, err := p.Take(nvidia.SizeXfer)
	if err != nil {
		t.Fatal(err)
	}
	wrap := nvidia.Cmd(nvidia.EscXfer, nvidia.SizeXfer)
	for _, tt := range []struct {
		nr, size uint32
		want     error
	}{
		{uint32(nvidia.EscAllocMemory), nvidia.SizeAllocMemory, nil},
		{uint32(nvidia.EscXfer), nvidia.SizeXfer, unix.EINVAL},
		{uint32(nvidia.EscAllocMemory), 1 << 20, unix.EINVAL},
		{uint32(nvidia.EscAllocMemory), 48, unix.EINVAL},
		{0x127, nvidia.SizeAllocMemory, unix.EINVAL},
	} {
		le.PutUint32(b, tt.nr)
		le.PutUint32(b[4:], tt.size)
		le.PutUint64(b[8:], inner)
		if err := p.Ioctl(x.FD, wrap, addr); !errors.Is(err, tt.want) {
			t.Errorf("wrapped %#x of %d bytes: %v, want %v", tt.nr, tt.size, err, tt.want)
		}
	}
	wantUsed(t, c, used+2*mib)
}

func TestBadCalls(t *testing.T) {
	c := card.New(card.H200())
	p, x := start(t, c, 1)
	id, _ := p.File(x.FD)
	for _, tt := range []struct {
		name string
		cmd  uint32
		arg  uint64
		want syscall.Errno
	}{
		{"an unknown number", nvidia.Cmd(0x99, 16), 1 << 20, syscall.EINVAL},
		{"a wrong size", nvidia.Cmd(nvidia.EscAlloc, 40), 1 << 20, syscall.EINVAL},
		{"a null pointer", nvidia.Cmd(nvidia.EscAlloc, 48), 0, syscall.EFAULT},
		{"a pointer past the end", nvidia.Cmd(nvidia.EscFree, 16), ^uint64(0) - 3, syscall.EFAULT},
	} {
		if _, errno := c.Ioctl(id, card.Caller{PID: 1, Mem: p.Memory()}, tt.cmd, tt.arg); errno != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, errno, tt.want)
		}
	}
	if _, errno := c.Ioctl(9999, card.Caller{Mem: p.Memory()}, 0, 0); errno != syscall.EBADF {
		t.Errorf("a closed file: %v", errno)
	}
	wantStatus(t, x.Freeze(x.Device, true, nil), nvidia.StatusNotSupported)
	wantStatus(t, x.Freeze(x.Subdevice, true, []nvidia.ChannelRef{{Client: 1, Channel: 2}}), nvidia.StatusInvalidClient)
	wantStatus(t, x.SetTimeslice(x.Compute, 0), nvidia.StatusInvalidArgument)
	wantStatus(t, x.Control(x.Compute, nvidia.CtrlTSGSetTimeslice, make([]byte, 4)), nvidia.StatusInvalidParamStruct)
	wantStatus(t, x.Control(0xdead, nvidia.CtrlTSGSetTimeslice, make([]byte, 8)), nvidia.StatusObjectNotFound)
	if err := x.Control(x.Subdevice, 0x2080ffff, make([]byte, 8)); err != nil {
		t.Errorf("an unknown control: %v", err)
	}
	if err := c.Submit(id, card.ChannelRef{Client: uint32(x.Handle), Channel: 1}, ms, 1); !errors.Is(err, card.ErrChannel) {
		t.Errorf("work for no channel: %v", err)
	}
}

func TestConfiguredVerdicts(t *testing.T) {
	cfg := card.H200()
	cfg.ControlStatus = map[uint32]uint32{0xa06c0110: uint32(nvidia.StatusNotSupported)}
	_, x := start(t, card.New(cfg), 1)
	wantStatus(t, x.Control(x.CopyGroups[0], 0xa06c0110, nil), nvidia.StatusNotSupported)
}

// TestExportMany uses the forms that CUDA's peer and IPC paths use: several objects on one descriptor.
func TestExportMany(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	p, x := start(t, c, 1)
	var objects []nvidia.Handle
	for range 3 {
		h, _, err := x.Memory(x.Device, uint64(2*mib))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, h)
	}
	fd, err := p.Open(card.KindCtl)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 2128)
	le.PutUint32(out, uint32(fd))
	for i, h := range objects {
		le.PutUint32(out[76+4*i:], uint32(h))
	}
	le.PutUint16(out[2124:], uint16(len(objects)))
	if err := x.Control(x.Handle, 0x3d0b, out); err != nil {
		t.Fatal(err)
	}
	for _, h := range objects {
		if err := x.Free(h); err != nil {
			t.Fatal(err)
		}
	}
	wantUsed(t, c, 6*mib)
	in := make([]byte, 652)
	le.PutUint32(in, uint32(fd))
	le.PutUint32(in[4:], uint32(x.Device))
	le.PutUint16(in[648:], 2)
	le.PutUint16(in[650:], 1)
	if err := x.Control(x.Handle, 0x3d0c, in); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(fd); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 4*mib)
	le.PutUint16(in[648:], 200)
	if err := x.Control(x.Handle, 0x3d0c, in); err == nil {
		t.Error("imported from a closed descriptor")
	}
}

// TestChangedAfterTheCheck: what counts is what the memory holds when the call executes.
func TestChangedAfterTheCheck(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	p, x := start(t, c, 1)
	b, addr, err := p.Take(nvidia.SizeAllocMemory)
	if err != nil {
		t.Fatal(err)
	}
	m := nvidia.AllocMemory{Root: x.Handle, Parent: x.Device, Class: nvidia.ClassMemoryLocalUser, Limit: 4095}
	if err := m.Put(b); err != nil {
		t.Fatal(err)
	}
	m.Limit = uint64(64*mib) - 1 // a racing thread
	if err := m.Put(b); err != nil {
		t.Fatal(err)
	}
	if err := p.Ioctl(x.FD, nvidia.Cmd(nvidia.EscAllocMemory, nvidia.SizeAllocMemory), addr); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 64*mib)
}

var _ rm.Port = (*rm.Local)(nil)
