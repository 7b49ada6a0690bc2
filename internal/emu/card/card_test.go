package card_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	ms  = time.Millisecond
	us  = time.Microsecond
)

// start makes a pretended process with a CUDA context.
func start(t *testing.T, c *card.Card, pid int) (*rm.Local, *rm.Context) {
	t.Helper()
	p := rm.NewLocal(c, pid)
	x, err := rm.Start(p)
	if err != nil {
		t.Fatalf("start process %d: %v", pid, err)
	}
	return p, x
}

func wantStatus(t *testing.T, err error, want nvidia.Status) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func wantUsed(t *testing.T, c *card.Card, want int64) {
	t.Helper()
	if got := c.Stats().UsedBytes; got != want {
		t.Errorf("used %d bytes, want %d", got, want)
	}
}

func TestStartAndClose(t *testing.T) {
	c := card.New(card.H200())
	_, x := start(t, c, 100)
	wantUsed(t, c, c.Config().ContextBytes)
	info, err := x.MemoryInfo(x.Subdevice)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := int64(info.Total-info.Free), c.Config().ReservedBytes+c.Config().ContextBytes; got != want {
		t.Errorf("total − free = %d, want %d", got, want)
	}
	s := c.Stats()
	if s.Groups != 4 || s.Channels != 20 {
		t.Errorf("%d groups and %d channels, want 4 and 20", s.Groups, s.Channels)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	s = c.Stats()
	if s.UsedBytes != 0 || s.Files != 0 || s.Clients != 0 || s.Objects != 0 || s.Groups != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func TestOwnership(t *testing.T) {
	c := card.New(card.H200())
	_, a := start(t, c, 1)
	_, b := start(t, c, 2)

	// B's file may not use A's client, whatever the call.
	thief := *b.Client
	thief.Handle = a.Handle
	wantStatus(t, thief.Control(a.Handle, 0x201, make([]byte, 128)), nvidia.StatusInvalidClient)
	wantStatus(t, thief.Free(a.Handle), nvidia.StatusInvalidClient)
	wantStatus(t, thief.SetTimeslice(a.Compute, 1), nvidia.StatusInvalidClient)
	_, _, err := thief.Memory(a.Device, 1)
	wantStatus(t, err, nvidia.StatusInvalidClient)

	// The lists of FIFO_DISABLE_CHANNELS are checked by nobody.
	if err := b.Freeze(b.Subdevice, true, []nvidia.ChannelRef{{Client: a.Handle, Channel: a.Channels[0]}}); err != nil {
		t.Fatal(err)
	}
	c.Advance(10 * ms)
	p, err := c.Progress(0, card.ChannelRef{Client: uint32(a.Handle), Channel: uint32(a.Channels[0])})
	if err != nil || p.Enabled {
		t.Errorf("the neighbour's channel is still enabled (%+v, %v)", p, err)
	}
}

func TestMemoryPaths(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	_, x := start(t, c, 1)

	h, got, err := x.Memory(x.Device, 1)
	if err != nil || got != uint64(64*kib) {
		t.Fatalf("1 byte took %d (%v), want 64 KiB", got, err)
	}
	wantUsed(t, c, 64*kib)
	h2, err := x.HeapMemory(x.Device, uint64(2*mib+1))
	if err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 64*kib+4*mib)
	h3, err := x.AllocMemory(x.Device, 0x77, uint64(mib))
	if err != nil || h3 != 0x77 {
		t.Fatalf("ALLOC_MEMORY gave %#x: %v", h3, err)
	}
	wantUsed(t, c, 64*kib+5*mib)
	if _, err := x.AllocMemory(x.Device, 0x77, 1); !errors.Is(err, nvidia.StatusInsertDuplicateName) {
		t.Errorf("a handle twice: %v", err)
	}
	if err := x.HeapFree(x.Device, h2); err != nil {
		t.Fatal(err)
	}
	for _, h := range []nvidia.Handle{h, h3} {
		if err := x.Free(h); err != nil {
			t.Fatal(err)
		}
	}
	wantUsed(t, c, 0)
	_, _, err = x.Memory(x.Device, uint64(cfg.TotalBytes))
	wantStatus(t, err, nvidia.StatusNoMemory)
	_, _, err = x.Memory(x.Device, ^uint64(0))
	wantStatus(t, err, nvidia.StatusNoMemory)
	wantUsed(t, c, 0)
	if err := x.Free(x.Device); err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Channels; got != 0 {
		t.Errorf("%d channels outlive their device", got)
	}
}

func TestReferencesKeepMemory(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	pa, a := start(t, c, 1)
	pb, b := start(t, c, 2)
	const base = 0x7000_0000_0000

	h, size, err := a.Memory(a.Device, uint64(8*mib))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.UVM.CreateRange(base, size); err != nil {
		t.Fatal(err)
	}
	if err := a.UVM.Map(base, size, a.Client, h); err != nil {
		t.Fatal(err)
	}
	dup, err := b.Dup(b.Device, a.Client, h)
	if err != nil {
		t.Fatal(err)
	}
	exported, err := pa.Open(card.KindCtl)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Export(a.Device, h, exported); err != nil {
		t.Fatal(err)
	}
	imported, err := a.Import(a.Device, exported)
	if err != nil {
		t.Fatal(err)
	}
	// One allocation, five references: each step drops one, and only the last gives the memory back.
	steps := []func() error{
		func() error { return a.Free(h) },
		func() error { return a.UVM.Unmap(base, size) },
		func() error { return a.Free(imported) },
		func() error { return b.Free(dup) },
	}
	for i, step := range steps {
		wantUsed(t, c, 8*mib)
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	wantUsed(t, c, 8*mib)
	if err := pa.Close(exported); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 0)
	pa.Kill()
	pb.Kill()
	if s := c.Stats(); s.Objects != 0 || s.Files != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func TestUVMFileKeepsMemoryOfAFreedClient(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	_, x := start(t, c, 1)
	if err := x.Malloc(uint64(64 * mib)); err != nil {
		t.Fatal(err)
	}
	if err := x.Free(x.Handle); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 64*mib)
}

func TestManagedMemory(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	c := card.New(cfg)
	p, x := start(t, c, 1)
	id, _ := p.File(x.UVM.FD)
	const base = 0x6000_0000_0000
	if errno := c.MapManaged(id, base, uint64(32*mib)); errno != 0 {
		t.Fatal(errno)
	}
	wantUsed(t, c, 0)
	if n, errno := c.TouchManaged(id, base, uint64(10*mib)); errno != 0 || n != 10*mib {
		t.Fatalf("touched %d: %v", n, errno)
	}
	wantUsed(t, c, 10*mib)
	if err := x.UVM.Free(base); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, c, 0)
}

func TestDeviceFileHoldsControlFile(t *testing.T) {
	c := card.New(card.H200())
	p, x := start(t, c, 1)
	if err := p.Close(x.FD); err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Clients; got != 1 {
		t.Errorf("%d clients while the device file is open, want 1", got)
	}
	p.Kill()
	if got := c.Stats().Clients; got != 0 {
		t.Errorf("%d clients after the last close", got)
	}
}

func TestEncodersAreAbsent(t *testing.T) {
	c := card.New(card.H200())
	_, x := start(t, c, 1)
	if _, err := x.Channel(x.Device, nvidia.EngineNVENC0); !errors.Is(err, nvidia.StatusInvalidArgument) {
		t.Errorf("a channel on an encoder the card lacks: %v", err)
	}
	if _, err := x.Alloc(x.Channels[0], 0xc9b7, nil); !errors.Is(err, nvidia.StatusInvalidClass) {
		t.Errorf("an encoder object: %v", err)
	}
}
