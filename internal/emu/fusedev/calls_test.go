package fusedev_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// TestRealTime submits work and waits for it: the card's own times are exact, the wake-up comes soon after.
func TestRealTime(t *testing.T) {
	s := serve(t, card.H200())
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	q, err := x.Submit(x.Channels[0], 2*time.Millisecond, 10)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	w, err := x.Wait(x.Channels[0], q, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Finished - w.Submitted; got != 20*time.Millisecond {
		t.Errorf("ten pieces of 2 ms took %v of card time", got)
	}
	t.Logf("woken %v after the submission (20 ms of work)", time.Since(begin))
	// A freeze blocks its caller for its latency.
	begin = time.Now()
	if err := x.Freeze(x.Subdevice, true, []nvidia.ChannelRef{{Client: x.Handle, Channel: x.Channels[0]}}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < s.Card.Config().DisableCost {
		t.Errorf("the freeze returned after %v", d)
	}
	if err := errors.Join(x.Close(), port.Release()); err != nil {
		t.Fatal(err)
	}
}

func TestManagedMapping(t *testing.T) {
	s := serve(t, card.H200())
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	used := s.Card.Stats().UsedBytes
	m, err := x.MapManaged(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	b := []byte{1}
	if err := sys.WriteMemory(os.Getpid(), m.Address()+(5<<20), b); err != nil {
		t.Fatal(err)
	}
	b[0] = 0
	if err := sys.ReadMemory(os.Getpid(), m.Address()+(5<<20), b); err != nil || b[0] != 1 {
		t.Errorf("wrote 1, read %d: %v", b[0], err)
	}
	if got := s.Card.Stats().UsedBytes - used; got != 16<<20 {
		t.Errorf("managed memory on the card: %d", got)
	}
	if err := m.Free(); err != nil {
		t.Fatal(err)
	}
	if got := s.Card.Stats().UsedBytes - used; got != 0 {
		t.Errorf("managed memory after its free: %d", got)
	}
	if err := errors.Join(x.Close(), port.Release()); err != nil {
		t.Fatal(err)
	}
}

// TestExportToDescriptor resolves a descriptor number of the caller.
func TestExportToDescriptor(t *testing.T) {
	cfg := card.H200()
	cfg.ContextBytes = 0
	s := serve(t, cfg)
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	h, _, err := x.Memory(x.Device, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := port.Open(card.KindCtl)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Export(x.Device, h, fd); err != nil {
		t.Fatal(err)
	}
	if err := x.Export(x.Device, h, 0); err == nil {
		t.Error("exported to a descriptor that is not the card's")
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Card.Stats().UsedBytes; got != 4<<20 {
		t.Errorf("used %d while exported", got)
	}
	if err := errors.Join(port.Close(fd), port.Release()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the export is dropped", func() bool { return s.Card.Stats().UsedBytes == 0 })
}

func TestManyWaiters(t *testing.T) {
	s := serve(t, card.H200())
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	n, err := x.Submit(x.Channels[0], time.Millisecond, 40)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for i := range n {
		go func() {
			b := make([]byte, doorbell.SizeWait)
			doorbell.Wait{Client: uint32(x.Handle), Channel: uint32(x.Channels[0]), Target: i + 1}.Put(b)
			for {
				_, err := sys.Ioctl(x.FD, doorbell.Cmd(doorbell.NrWait, doorbell.SizeWait), b)
				if !errors.Is(err, unix.EINTR) {
					errs <- err
					return
				}
			}
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(x.Close(), port.Release()); err != nil {
		t.Fatal(err)
	}
}
