package kernel

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// emulatedDriver makes the engine's calls on an emulated card. It sees the
// engine's copies only: any other address faults, as it would be the tenant's
// own that the engine let through.
type emulatedDriver struct {
	w      *stageSet
	card   *card.Card
	copies []chunk // the arenas
	strays int     // accesses outside
}

func (d *emulatedDriver) Ioctl(f File, cmd uint32, arg []byte) (int, error) {
	who := card.Caller{PID: os.Getpid(), Mem: d, File: d.known}
	_, errno := d.card.Ioctl(card.FileID(f.FD), who, cmd, sys.Address(arg))
	if errno != 0 {
		return -1, errno
	}
	return 0, nil
}

func (d *emulatedDriver) known(fd int) (card.FileID, bool) {
	return card.FileID(fd), d.w.byID[fd] != nil
}

func (d *emulatedDriver) at(addr uint64, n int) ([]byte, error) {
	for _, c := range d.copies {
		if addr >= c.at && addr-c.at <= uint64(len(c.b)) && uint64(n) <= uint64(len(c.b))-(addr-c.at) {
			return c.b[addr-c.at:][:n], nil
		}
	}
	if addr != 0 {
		d.strays++
	}
	return nil, unix.EFAULT
}

// ReadAt implements card.Memory.
func (d *emulatedDriver) ReadAt(b []byte, addr uint64) error {
	m, err := d.at(addr, len(b))
	copy(b, m)
	return err
}

// WriteAt implements card.Memory.
func (d *emulatedDriver) WriteAt(b []byte, addr uint64) error {
	m, err := d.at(addr, len(b))
	copy(m, b)
	return err
}

// own is the tenant's memory as the card sees it when a call runs in the
// tenant.
type own struct{ c *player }

// ReadAt implements card.Memory.
func (m own) ReadAt(b []byte, addr uint64) error { return m.c.read(addr, b) }

// WriteAt implements card.Memory.
func (m own) WriteAt(b []byte, addr uint64) error { return m.c.write(addr, b) }

// emulated is a tenant whose calls reach an emulated card, through the engine
// or, where the engine lets them run in the tenant, directly.
type emulated struct {
	*stageSet
	driver  *emulatedDriver
	card    *card.Card
	managed []managed
	touch   bool // managed ranges are used on the card
}

// managed is a managed range of the tenant.
type managed struct {
	file         int
	base, length uint64
}

// mapManaged makes a managed range, and puts all its pages on the card where
// that is wanted.
func (e *emulated) mapManaged(f *openFile, base, length uint64) unix.Errno {
	if errno := e.card.MapManaged(card.FileID(f.id), base, length); errno != 0 {
		return errno
	}
	e.managed = append(e.managed, managed{f.id, base, length})
	if e.touch {
		_, errno := e.card.TouchManaged(card.FileID(f.id), base, length)
		return errno
	}
	return 0
}

// unmapUnder unmaps the managed ranges where another range is to be: that they
// were unmapped before is not to be seen in a recording.
func (e *emulated) unmapUnder(c *player, f *openFile, arg uint64) {
	var b [16]byte
	if c.read(arg, b[:]) != nil {
		return
	}
	base, _ := nvidia.U64At(b[:], 0)
	length, _ := nvidia.U64At(b[:], 8)
	e.managed = slices.DeleteFunc(e.managed, func(m managed) bool {
		if m.file != f.id || m.base >= base+length || base >= m.base+m.length {
			return false
		}
		// The engine sees it in /proc, where a replayed process is not.
		e.s.ledger.pending = slices.DeleteFunc(e.s.ledger.pending, func(p pendingMap) bool { return p.base == m.base })
		return e.card.UnmapManaged(card.FileID(f.id), m.base) == 0
	})
}

// emulatedFiles maps the kinds of file.
var emulatedFiles = map[FileKind]card.Kind{ControlFile: card.KindCtl, GPUFile: card.KindGPU, UVMFile: card.KindUVM}

func newEmulated(tb testing.TB) *emulated {
	tb.Helper()
	w := newStageSet(tb)
	cfg := card.H200()
	cfg.ContextBytes = DefaultContextOverhead
	e := &emulated{stageSet: w, card: card.New(cfg)}
	w.opened = func(k FileKind) int { return int(e.card.Open(emulatedFiles[k])) }
	w.closed = func(id int) { e.card.CloseFile(card.FileID(id)) }
	e.driver = &emulatedDriver{w: w, card: e.card}

	arena, err := sys.NewArena(64 << 10)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { arena.Close() })
	table, err := nvidia.Lookup(corpusDriver)
	if err != nil {
		tb.Fatal(err)
	}
	ctl := File{FD: int(e.card.Open(card.KindCtl)), Kind: ControlFile}
	control := &cardClient{driver: e.driver, ctl: ctl, table: table, arena: arena}
	b, at := whole(arena, 64<<10)
	e.driver.copies = append(e.driver.copies, chunk{at, b})
	if err := control.build(0); err != nil {
		tb.Fatal(err)
	}
	w.attach(tb, control, e.driver, DefaultContextOverhead)
	b, at = whole(w.s.arena, arenaBytes)
	e.driver.copies = append(e.driver.copies, chunk{at, b})
	if _, err := w.s.card.Reconcile(0); err != nil {
		tb.Fatal(err)
	}
	return e
}

// run makes a call in the tenant.
func (e *emulated) run(c *player, n sys.Notification) unix.Errno {
	c.zeroes = true
	f := e.byNumber[[2]int{c.pid, int(int32(n.Args[0]))}]
	if n.NR == unix.SYS_MMAP {
		f = e.byNumber[[2]int{c.pid, int(int32(n.Args[4]))}]
	}
	if f == nil {
		return unix.EBADF
	}
	if n.NR == unix.SYS_MMAP {
		if f.kind != UVMFile || n.Args[0] != n.Args[5] {
			return unix.EINVAL
		}
		return e.mapManaged(f, n.Args[5], n.Args[1])
	}
	if f.kind == UVMFile && uint32(n.Args[1]) == nvidia.UVMCmdCreateExternalRange {
		e.unmapUnder(c, f, n.Args[2])
	}
	who := card.Caller{PID: c.pid, Mem: own{c}, File: func(fd int) (card.FileID, bool) {
		f := e.byNumber[[2]int{c.pid, fd}]
		if f == nil {
			return 0, false
		}
		return card.FileID(f.id), true
	}}
	_, errno := e.card.Ioctl(card.FileID(f.id), who, uint32(n.Args[1]), n.Args[2])
	return errno
}

// play serves a recorded call and lets it run where the engine says.
func (e *emulated) play(r *Record, n sys.Notification) (c *player, a answer, seen bool, err error) {
	if c, err = e.player(r); err != nil {
		return nil, answer{}, false, err
	}
	if seen, err = e.trapped(n); err != nil {
		return nil, answer{}, false, err
	}
	a, err = e.step(c, n)
	return c, a, seen, err
}

// step makes one call: what the filter traps is served, what it lets pass and
// what the engine lets through runs in the tenant.
func (e *emulated) step(c *player, n sys.Notification) (answer, error) {
	seen, err := e.trapped(n)
	if err != nil {
		return answer{}, err
	}
	a := continueCall
	if seen {
		a = e.s.serve(c, n)
	}
	if a.cont {
		a.errno = e.run(c, n)
	}
	return a, nil
}

// used is what the tenant has on the card, in bytes.
func (e *emulated) used() int64 { return e.card.Stats().UsedBytes }

// balance compares the charges with the card.
func (e *emulated) balance() string {
	l := e.s.ledger
	if got, want := l.charged(), e.used(); got != want || l.limbo != 0 {
		return fmt.Sprintf("charged %d, limbo %d, for %d bytes on the card", got, l.limbo, want)
	}
	return ""
}

// giveHandles makes allocations of clients ask for the handle that the
// recording uses afterwards: on the card they ran in the tenant, so the
// recording does not show what the driver chose.
func giveHandles(recs []Record) error {
	for i := range recs {
		a, at := rootAlloc(&recs[i])
		if a == nil {
			continue
		}
		for j := i + 1; j < len(recs) && a.New == 0; j++ {
			if next, _ := rootAlloc(&recs[j]); next != nil && sameNumber(&recs[i], &recs[j]) {
				break // never used
			}
			if !sameNumber(&recs[i], &recs[j]) || len(recs[j].Reads) == 0 {
				continue
			}
			b, err := recs[j].Reads[0].Bytes()
			if err != nil {
				return err
			}
			if c, err := nvidia.DecodeControl(b); err == nil && nvidia.Nr(command(&recs[j])) == nvidia.EscControl {
				a.New = c.Client
			}
		}
		b := make([]byte, nvidia.SizeAlloc64)
		if err := a.Put(b); err != nil {
			return err
		}
		recs[i].Reads[0] = piece(at, b)
	}
	return nil
}

func sameNumber(a, b *Record) bool {
	return a.Process == b.Process && len(a.Files) > 0 && len(b.Files) > 0 && a.Files[0] == b.Files[0]
}

func command(r *Record) uint32 {
	regs, _ := registers(r)
	return uint32(regs[1])
}

// rootAlloc decodes a record that allocates a client in the tenant.
func rootAlloc(r *Record) (*nvidia.Alloc, uint64) {
	if r.End != "continue" || r.NR != unix.SYS_IOCTL || len(r.Reads) == 0 || nvidia.Nr(command(r)) != nvidia.EscAlloc {
		return nil, 0
	}
	list, err := chunks(r.Reads[:1])
	if err != nil || len(list[0].b) != nvidia.SizeAlloc64 {
		return nil, 0
	}
	a, err := nvidia.DecodeAlloc(list[0].b)
	if err != nil || !a.Class.IsRootClient() {
		return nil, 0
	}
	return &a, list[0].at
}

// weighty are the calls whose status the emulated card must get right: those
// that make, free and refer to objects. Of the others it knows few, and answers
// OK where the real card lacks something.
var weighty = map[uint8]bool{
	nvidia.EscAlloc: true, nvidia.EscFree: true, nvidia.EscDup: true, nvidia.EscVidHeap: true, nvidia.EscAllocMemory: true,
}

var weightyUVM = map[uint32]bool{
	nvidia.UVMCmdMapExternal: true, nvidia.UVMCmdUnmapExternal: true, nvidia.UVMCmdFree: true, nvidia.UVMCmdCreateExternalRange: true,
}

// absent reports a call that the emulated card does not have: RM_SHARE, which
// concerns no memory.
func absent(r *Record) bool { return nvidia.Nr(command(r)) == nvidia.EscShare }

// lesser says what the emulated card may answer differently: nothing of it
// concerns memory.
func lesser(r *Record, got, want nvidia.Status) bool {
	switch nvidia.Nr(command(r)) {
	case nvidia.EscFree:
		// The real driver answers OK when there is no such object.
		return got == nvidia.StatusObjectNotFound && want == nvidia.StatusOK
	case nvidia.EscAlloc:
		// The real card has no display.
		return got == nvidia.StatusOK && want == nvidia.StatusNotSupported
	}
	return false
}

// TestReplayEmulated plays each recording against the engine with the emulated
// card as the driver. Calls end as on the real card, allocations and releases
// with the same status, and the charges agree with the card's own figure after
// every call.
func TestReplayEmulated(t *testing.T) {
	for name, recs := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			e := newEmulated(t)
			e.touch = true
			processes := e.meet(recs)
			if err := giveHandles(recs); err != nil {
				t.Fatal(err)
			}
			for i := range recs {
				e.compare(t, name, &recs[i], i)
			}
			if d, err := e.s.card.Reconcile(0); err != nil || d.DriftBytes != d.ManagedBytes {
				t.Errorf("reconciled: %+v, %v", d, err)
			}
			if e.driver.strays > 0 {
				t.Errorf("%d accesses outside the engine's copies", e.driver.strays)
			}
			e.die(processes)
			// What a descriptor closed by its process kept alive came back
			// unseen: limbo until the next look at the card.
			if _, err := e.s.card.Reconcile(0); err != nil {
				t.Fatal(err)
			}
			if e.used() != 0 || e.s.ledger.charged() != 0 || e.s.broken != "" {
				t.Errorf("after death: %d bytes used, %d charged, violation %q", e.used(), e.s.ledger.charged(), e.s.broken)
			}
			if st := e.card.Stats(); st.Files != 1 || st.Clients != 1 {
				t.Errorf("after death: %d files and %d clients on the card, want the engine's own", st.Files, st.Clients)
			}
		})
	}
}

func (e *emulated) compare(t *testing.T, name string, r *Record, i int) {
	t.Helper()
	n, err := notification(r)
	if err != nil {
		t.Fatal(err)
	}
	e.arrange(r, n)
	c, a, seen, err := e.play(r, n)
	if err != nil {
		t.Fatal(err)
	}
	if d := e.balance(); d != "" {
		t.Fatalf("call %d (%s): %s", i, r.Args[1], d)
	}
	if c.lacking > 0 && older[name] && lookedAtLater(r) || !seen {
		return
	}
	if got := end(a); got != r.End && !absent(r) {
		t.Errorf("call %d (%s): ended with %q, recorded %q", i, r.Args[1], got, r.End)
	}
	if got, want := e.status(r, n, c.written); got != want && !lesser(r, got, want) {
		t.Errorf("call %d (%s): status %v, recorded %v", i, r.Args[1], got, want)
	}
}

// status returns the verdict of the resource manager in what was written, and
// in what was written when the call was recorded; equal where neither is known.
func (e *emulated) status(r *Record, n sys.Notification, written []chunk) (got, want nvidia.Status) {
	off := -1
	if n.NR == unix.SYS_IOCTL && len(r.Files) > 0 {
		cmd := uint32(n.Args[1])
		if r.Files[0].Kind == UVMFile {
			if row, ok := e.s.table.UVM(cmd); ok && weightyUVM[cmd] {
				off = row.StatusOffset
			}
		} else if row, ok := e.s.table.Escape(nvidia.Nr(cmd), nvidia.Size(cmd)); ok && weighty[nvidia.Nr(cmd)] {
			off = row.Status
		}
	}
	recorded, err := chunks(r.Writes)
	var g, w [4]byte
	if off < 0 || err != nil || !fill(recorded, n.Args[2]+uint64(off), w[:]) {
		return 0, 0
	}
	fill(written, n.Args[2]+uint64(off), g[:])
	sg, _ := nvidia.U32At(g[:], 0)
	sw, _ := nvidia.U32At(w[:], 0)
	return nvidia.Status(sg), nvidia.Status(sw)
}
