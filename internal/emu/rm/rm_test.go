package rm_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// inspector is a Port that looks every call up in the driver's tables before it is made: an emulated tenant must
// not do what a strict supervisor would refuse.
type inspector struct {
	*rm.Local
	t     *testing.T
	table *nvidia.Table
	uvm   map[int]bool
	seen  map[string]int
}

func (i *inspector) Open(kind card.Kind) (int, error) {
	fd, err := i.Local.Open(kind)
	i.uvm[fd] = kind == card.KindUVM
	return fd, err
}

func (i *inspector) read(addr uint64, n int) []byte {
	i.t.Helper()
	b := make([]byte, n)
	if err := i.Memory().ReadAt(b, addr); err != nil {
		i.t.Fatalf("read %d bytes of a call at %#x: %v", n, addr, err)
	}
	return b
}

func refused(v nvidia.Verdict) bool { return v == nvidia.Refuse || v == nvidia.Unknown }

func (i *inspector) Ioctl(fd int, cmd uint32, arg uint64) error {
	i.t.Helper()
	if doorbell.Is(cmd) {
		return i.Local.Ioctl(fd, cmd, arg)
	}
	if i.uvm[fd] {
		row, ok := i.table.UVM(cmd)
		if !ok || refused(row.Verdict) {
			i.t.Errorf("uvm command %d: known %v, %v", cmd, ok, row.Verdict)
		}
		i.seen[row.Name]++
		return i.Local.Ioctl(fd, cmd, arg)
	}
	nr, size := nvidia.Nr(cmd), nvidia.Size(cmd)
	row, ok := i.table.Escape(nr, size)
	if !ok || refused(row.Verdict) {
		i.t.Errorf("escape %#x of %d bytes: known %v, %v", nr, size, ok, row.Verdict)
	}
	i.seen[row.Name]++
	b := i.read(arg, int(size))
	switch nr {
	case nvidia.EscAlloc:
		i.alloc(b)
	case nvidia.EscControl:
		i.control(b)
	}
	return i.Local.Ioctl(fd, cmd, arg)
}

func (i *inspector) alloc(b []byte) {
	i.t.Helper()
	a, err := nvidia.DecodeAlloc(b)
	if err != nil {
		i.t.Fatal(err)
	}
	row, ok := i.table.Class(a.Class)
	if !ok || refused(row.Verdict) || !slices.Contains(row.Sizes, a.ParamsSize) {
		i.t.Errorf("class %#x with %d bytes: known %v, %v, sizes %v", a.Class, a.ParamsSize, ok, row.Verdict, row.Sizes)
	}
	i.seen[row.Name]++
}

func (i *inspector) control(b []byte) {
	i.t.Helper()
	k, err := nvidia.DecodeControl(b)
	if err != nil {
		i.t.Fatal(err)
	}
	row, ok := i.table.Control(k.Cmd)
	if !ok || refused(row.Verdict) || k.ParamsSize != row.Size {
		i.t.Errorf("control %#x with %d bytes: known %v, %v, size %d", k.Cmd, k.ParamsSize, ok, row.Verdict, row.Size)
	}
	i.seen[row.Name]++
}

// TestCallsAreInTheTables runs a program's life on every driver line.
func TestCallsAreInTheTables(t *testing.T) {
	for _, version := range []string{"550.54.15", "570.86.15", "575.51.03", "580.159.04", "590.44.01"} {
		t.Run(version, func(t *testing.T) {
			table, err := nvidia.Lookup(version)
			if err != nil {
				t.Skipf("skipped: %v", err)
			}
			cfg := card.H200()
			cfg.Version = version
			p := &inspector{
				Local: rm.NewLocal(card.New(cfg), 1), t: t, table: table, uvm: map[int]bool{}, seen: map[string]int{},
			}
			x, err := rm.Start(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Malloc(1 << 30); err != nil {
				t.Fatal(err)
			}
			h, err := x.HeapMemory(x.Device, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if err := x.HeapFree(x.Device, h); err != nil {
				t.Fatal(err)
			}
			if _, err := x.AllocMemory(x.Device, 0, 1<<20); err != nil {
				t.Fatal(err)
			}
			if _, err := x.StartDecoder(p, 7); err != nil {
				t.Fatal(err)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			p.Kill()
			if s := p.Card.Stats(); s.UsedBytes != 0 || s.Objects != 0 {
				t.Errorf("left behind: %+v", s)
			}
			if len(p.seen) < 20 {
				t.Errorf("only %d kinds of call: %v", len(p.seen), p.seen)
			}
		})
	}
}

func TestDoorbellLayouts(t *testing.T) {
	b := make([]byte, 64)
	s := doorbell.Submit{Client: 1, Channel: 2, Each: 3, Count: 4, Submitted: 5}
	w := doorbell.Wait{Client: 1, Channel: 2, Target: 3, Completed: 4, Submitted: 5, Finished: 6, Timeout: 7}
	p := doorbell.Progress{Client: 1, Channel: 2, Submitted: 3, Completed: 4, Busy: 5, Now: 6}
	m := doorbell.Managed{Base: 1, Length: 2, Resident: 3}
	if s.Put(b); doorbell.GetSubmit(b) != s {
		t.Errorf("submit: %+v", doorbell.GetSubmit(b))
	}
	if w.Put(b); doorbell.GetWait(b) != w {
		t.Errorf("wait: %+v", doorbell.GetWait(b))
	}
	if p.Put(b); doorbell.GetProgress(b) != p {
		t.Errorf("progress: %+v", doorbell.GetProgress(b))
	}
	if m.Put(b); doorbell.GetManaged(b) != m {
		t.Errorf("managed: %+v", doorbell.GetManaged(b))
	}
	if cmd := doorbell.Cmd(doorbell.NrSubmit, doorbell.SizeSubmit); !doorbell.Is(cmd) || doorbell.Is(nvidia.Cmd(nvidia.EscAlloc, 48)) {
		t.Errorf("the numbers overlap the driver's: %#x", cmd)
	}
	if binary.LittleEndian.Uint32(b) != 1 {
		t.Error("not little endian")
	}
}
