package kernel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// firstPID is above any process id that the system gives out, so that the
// engine finds nothing about a replayed process in /proc.
const firstPID = 1 << 23

// openFile is one open file of a replayed tenant.
type openFile struct {
	id        int // stands for descriptors of it in this process
	kind      FileKind
	minor     int
	pid, fd   int  // where the tenant has it
	open      bool // it still does
	copies    int  // duplicates that the engine has
	client    bool // a driver client was made on it
	tied      bool // a control file was registered on it
	addresses bool // a unified address space was made on it
}

// stageSet is what the replays have in common: the tenant's files, and the
// filter that decides what the engine gets to see.
type stageSet struct {
	s        *Session
	filter   *bpf.VM
	byNumber map[[2]int]*openFile
	byID     map[int]*openFile
	opened   func(FileKind) int // makes a file; its id
	closed   func(id int)       // the last descriptor of it is gone
}

func newStageSet(tb testing.TB) *stageSet {
	tb.Helper()
	raw, err := Filter()
	if err != nil {
		tb.Skip(err)
	}
	prog := make([]bpf.Instruction, len(raw))
	for i, r := range raw {
		prog[i] = bpf.RawInstruction{Op: r.Code, Jt: r.Jt, Jf: r.Jf, K: r.K}.Disassemble()
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		tb.Fatal(err)
	}
	next := 1000 // no descriptor of the test process
	return &stageSet{
		filter: vm, byNumber: map[[2]int]*openFile{}, byID: map[int]*openFile{},
		opened: func(FileKind) int { next++; return next },
		closed: func(int) {},
	}
}

// attach makes the session that the calls are played against.
func (w *stageSet) attach(tb testing.TB, control *cardClient, d Driver, overhead int64) {
	tb.Helper()
	gov, err := governor.New(governor.Config{Policy: governor.Burst})
	if err != nil {
		tb.Fatal(err)
	}
	arena, err := sys.NewArena(arenaBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { arena.Close() })
	table, err := nvidia.Lookup(corpusDriver)
	if err != nil {
		tb.Fatal(err)
	}
	c := newCard(CardInfo{Name: "replayed"}, control, gov, quietLog(), overhead)
	e := &Engine{opt: Options{Log: quietLog()}, files: &locator{}, driver: d, table: table}
	w.s = newSession(e, Grant{Cards: []*Card{c}, MemoryLimit: corpusLimit, Tenant: governor.Tenant{ID: "t"}}, arena)
	w.s.ops = w
	w.s.poll = poller{epoll: -1, wakeup: -1, listener: -1}
	if err := c.admit(w.s, governor.Tenant{ID: "t"}); err != nil {
		tb.Fatal(err)
	}
}

// whole returns an arena's memory and where it lies.
func whole(a *sys.Arena, size int) ([]byte, uint64) {
	a.Reset()
	b, at, _ := a.Take(size)
	a.Reset()
	return b, at
}

// trapped asks the filter about a call.
func (w *stageSet) trapped(n sys.Notification) (bool, error) {
	arch, err := auditArch()
	if err != nil {
		return false, err
	}
	// The virtual machine reads big-endian words, the kernel's native ones.
	var data [64]byte
	put := func(off int, v uint32) { binary.BigEndian.PutUint32(data[off:], v) }
	put(dataNR, uint32(n.NR))
	put(dataArch, arch)
	for i, a := range n.Args {
		put(dataArg0+argStride*i, uint32(a))
		put(dataArg0+argStride*i+highWord, uint32(a>>32))
	}
	verdict, err := w.filter.Run(data[:])
	return verdict == retNotify, err
}

// notification is the call of a record.
func notification(r *Record) (sys.Notification, error) {
	n := sys.Notification{NR: r.NR, TID: firstPID + r.Process}
	var err error
	n.Args, err = registers(r)
	return n, err
}

// arrange gives the tenant the files of a record. A recording shows no close
// and no open, so a number leads to a new file where the old one cannot be
// meant: it is of another kind, or the call can be made once on a file.
func (w *stageSet) arrange(r *Record, n sys.Notification) {
	for i, o := range r.Files {
		if o.Errno != 0 {
			continue
		}
		key := [2]int{firstPID + r.Process, o.FD}
		f := w.byNumber[key]
		if f != nil && (f.kind != o.Kind || i == 0 && f.used(r, n)) {
			w.closeNumber(key)
			w.s.sweep() // the loop does it each second
			f = nil
		}
		if f == nil {
			f = &openFile{id: w.opened(o.Kind), kind: o.Kind, minor: o.Minor, pid: key[0], fd: o.FD, open: true}
			w.byNumber[key], w.byID[f.id] = f, f
		}
		if i == 0 {
			f.use(r, n)
		}
	}
}

func (w *stageSet) closeNumber(key [2]int) {
	f := w.byNumber[key]
	delete(w.byNumber, key)
	f.open = false
	w.dropped(f)
}

func (w *stageSet) dropped(f *openFile) {
	if !f.open && f.copies == 0 {
		delete(w.byID, f.id)
		w.closed(f.id)
	}
}

// once returns the mark of a call that is made once on a file, nil for others.
func (f *openFile) once(r *Record, n sys.Notification) *bool {
	cmd := uint32(n.Args[1])
	switch {
	case n.NR != unix.SYS_IOCTL:
	case f.kind == UVMFile && cmd == nvidia.UVMCmdInitialize:
		return &f.addresses
	case f.kind == GPUFile && nvidia.Nr(cmd) == nvidia.EscRegisterFD:
		return &f.tied
	case f.kind == ControlFile && nvidia.Nr(cmd) == nvidia.EscAlloc && len(r.Reads) > 0:
		b, err := r.Reads[0].Bytes()
		if a, err2 := nvidia.DecodeAlloc(b); err == nil && err2 == nil && a.Class.IsRootClient() {
			return &f.client
		}
	}
	return nil
}

func (f *openFile) used(r *Record, n sys.Notification) bool {
	m := f.once(r, n)
	return m != nil && *m
}

func (f *openFile) use(r *Record, n sys.Notification) {
	if m := f.once(r, n); m != nil {
		*m = true
	}
}

// die ends all processes of the tenant.
func (w *stageSet) die(processes int) {
	for p := range processes {
		pid := firstPID + p
		for key := range w.byNumber {
			if key[0] == pid {
				w.closeNumber(key)
			}
		}
		w.s.exit(pid)
	}
}

// meet makes the session know the processes, as their first calls would.
func (w *stageSet) meet(recs []Record) int {
	n := 0
	for _, r := range recs {
		n = max(n, r.Process+1)
	}
	for p := range n {
		w.s.procs[firstPID+p] = &process{pid: firstPID + p, pidfd: -1}
	}
	return n
}

// The session's view of the tenant's files: a File's descriptor is the id of
// the open file.

func (w *stageSet) dup(f File) (File, error) {
	w.byID[f.FD].copies++
	return f, nil
}

func (w *stageSet) close(f File) {
	o := w.byID[f.FD]
	o.copies--
	w.dropped(o)
}

func (w *stageSet) same(a, b File) bool { return a.FD == b.FD }

func (w *stageSet) find(f File, _, _ int) (int, int, bool) {
	o := w.byID[f.FD]
	return o.pid, o.fd, o.open
}

// chunk is a piece of the tenant's memory.
type chunk struct {
	at uint64
	b  []byte
}

func chunks(list []Piece) ([]chunk, error) {
	out := make([]chunk, 0, len(list))
	for _, p := range list {
		at, err := strconv.ParseUint(p.At, 16, 64)
		if err != nil {
			return nil, fmt.Errorf("recorded address: %w", err)
		}
		b, err := p.Bytes()
		if err != nil {
			return nil, err
		}
		out = append(out, chunk{at, b})
	}
	return out, nil
}

// player is the thread behind one replayed call. Its memory is what was read
// of it when the call was recorded; the rest is not there.
type player struct {
	w       *stageSet
	pid     int
	memory  []chunk
	written []chunk // by the engine, in order
	lacking int     // reads of what the recording does not have
	zeroes  bool    // unrecorded memory reads as zero
}

func (w *stageSet) player(r *Record) (*player, error) {
	m, err := chunks(r.Reads)
	return &player{w: w, pid: firstPID + r.Process, memory: m}, err
}

func (c *player) process() int  { return c.pid }
func (c *player) threadID() int { return c.pid }
func (c *player) waiting() bool { return true }

func (c *player) read(addr uint64, b []byte) error {
	if !fill(c.memory, addr, b) && !(c.zeroes && addr >= 4096) {
		c.lacking++
		return unix.EFAULT
	}
	return nil
}

// fill copies what the chunks have of the bytes at addr, and reports whether
// they have all.
func fill(list []chunk, addr uint64, b []byte) bool {
	have := 0
	got := make([]bool, len(b))
	for _, m := range list {
		for i := range m.b {
			off := m.at + uint64(i) - addr
			if off >= uint64(len(b)) {
				continue
			}
			b[off] = m.b[i]
			if !got[off] {
				got[off] = true
				have++
			}
		}
	}
	return have == len(b)
}

func (c *player) write(addr uint64, b []byte) error {
	c.written = append(c.written, chunk{addr, slices.Clone(b)})
	for i := range c.memory {
		overlay(&c.memory[i], addr, b)
	}
	return nil
}

func overlay(m *chunk, addr uint64, b []byte) {
	for i := range b {
		if off := addr + uint64(i) - m.at; off < uint64(len(m.b)) {
			m.b[off] = b[i]
		}
	}
}

func (c *player) open(fd int) (File, error) {
	f := c.w.byNumber[[2]int{c.pid, fd}]
	if f == nil {
		return File{}, unix.EBADF
	}
	f.copies++
	return File{FD: f.id, Kind: f.kind, Minor: f.minor}, nil
}

func (c *player) close(f File) { c.w.close(f) }

// end words an answer as a recording does.
func end(a answer) string {
	switch {
	case a.cont:
		return "continue"
	case a.errno != 0:
		return fmt.Sprintf("errno %d", int(a.errno))
	}
	return "value"
}
