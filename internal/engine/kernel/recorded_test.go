package kernel

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden ledgers")

// golden is what a program's calls leave behind in the engine.
type golden struct {
	Calls            int   // recorded
	Untrapped        int   // of these, let pass by the filter now
	ArgumentsLacking int   // of these, older than the engine's look at their arguments
	PeakBytes        int64 // most charged at one time
	PeakManagedBytes int64
	FinalBytes       int64 // charged when the recording ends
	AfterDeathBytes  int64
	Clients          int            // most at one time
	Objects          map[string]int // by class, most at one time
	Groups           map[string]int // by engine, most at one time
	Refusals         map[string]uint64
}

// older are the recordings made before the engine looked into some calls that
// it used to let through or to answer unseen; what it looks at now is missing
// from them, so these calls' ends say nothing.
var older = map[string]bool{"cupy": true, "jax": true, "nvidia-smi": true}

// ctrlPerfBoost is NV2080_CTRL_CMD_PERF_BOOST.
const ctrlPerfBoost uint32 = 0x2080200a

// lookedAtLater reports whether a call is one of those.
func lookedAtLater(r *Record) bool {
	regs, err := registers(r)
	if err != nil || len(r.Files) == 0 {
		return false
	}
	cmd := uint32(regs[1])
	if r.Files[0].Kind == UVMFile {
		return cmd == nvidia.UVMCmdRegisterGPUVASpace || cmd == nvidia.UVMCmdRegisterChannel
	}
	if nvidia.Nr(cmd) != nvidia.EscControl || len(r.Reads) == 0 {
		return nvidia.Nr(cmd) == nvidia.EscMapMemory
	}
	b, err := r.Reads[0].Bytes()
	if err != nil {
		return false
	}
	c, err := nvidia.DecodeControl(b)
	return err == nil && c.Cmd == ctrlPerfBoost
}

// tally keeps maxima over a replay.
type tally struct{ golden }

func newTally() *tally {
	return &tally{golden{Objects: map[string]int{}, Groups: map[string]int{}}}
}

func (y *tally) look(s *Session) {
	y.FinalBytes = s.ledger.charged()
	y.PeakBytes = max(y.PeakBytes, y.FinalBytes)
	y.PeakManagedBytes = max(y.PeakManagedBytes, s.ledger.managed())
	y.Clients = max(y.Clients, len(s.ledger.clients))
	objects := map[string]int{}
	for _, c := range s.ledger.clients {
		for _, o := range c.objects {
			name := fmt.Sprintf("%#x", uint32(o.class))
			if row, ok := s.table.Class(o.class); ok {
				name = row.Name
			}
			objects[name]++
		}
	}
	groups := map[string]int{}
	for _, g := range s.card.groups {
		groups[g.engine.String()]++
	}
	maxima(y.Objects, objects)
	maxima(y.Groups, groups)
}

func maxima(into, now map[string]int) {
	for k, n := range now {
		into[k] = max(into[k], n)
	}
}

// recordedDriver answers as the real driver did when the call was recorded. It
// insists on being asked the same: every byte that the tenant passed, with the
// engine's own copies behind the pointers and its own descriptors.
type recordedDriver struct {
	w        *stageSet
	arena    []byte
	base     uint64
	rec      *Record
	before   []chunk
	after    []chunk
	problems []string
	aside    cardAside
}

func (d *recordedDriver) load(r *Record) error {
	var err1, err2 error
	d.rec, d.problems = r, nil
	d.before, err1 = chunks(r.Reads)
	d.after, err2 = chunks(r.Writes)
	return errors.Join(err1, err2)
}

func (d *recordedDriver) Ioctl(f File, cmd uint32, arg []byte) (int, error) {
	if d.own(cmd, arg) {
		return 0, nil
	}
	regs, err := registers(d.rec)
	if err != nil {
		return -1, err
	}
	at := regs[2]
	if uint32(regs[1]) != cmd {
		d.problem("command %#x, recorded %#x", cmd, regs[1])
	}
	if o := d.w.byID[f.FD]; o == nil || len(d.rec.Files) == 0 || o.fd != d.rec.Files[0].FD {
		d.problem("made on another file")
	}
	d.exchange(at, arg, 0)
	if n, ok := strings.CutPrefix(d.rec.End, "errno "); ok {
		e, _ := strconv.Atoi(n)
		return -1, unix.Errno(e)
	}
	if d.rec.End == "continue" {
		d.problem("made for the tenant, recorded in the tenant")
	}
	return 0, nil
}

// own answers what the engine asks for itself on a tenant's file: where the
// memory of an object lies that was made in the tenant.
func (d *recordedDriver) own(cmd uint32, arg []byte) bool {
	if nvidia.Nr(cmd) != nvidia.EscControl {
		return false
	}
	c, err := nvidia.DecodeControl(arg)
	if err != nil || c.Cmd != ctrlSurfaceInfo || c.Params < d.base {
		return false
	}
	params := d.arena[c.Params-d.base:]
	list, err := nvidia.U64At(params, surfaceInfoList)
	if err != nil || list < d.base {
		return false
	}
	binary.LittleEndian.PutUint32(d.arena[list-d.base+4:], addrSpaceSysmem)
	return true
}

func (d *recordedDriver) problem(format string, args ...any) {
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

// exchange compares what the engine hands over for the tenant's bytes at addr
// and puts the driver's answer there, except over what the engine replaced.
func (d *recordedDriver) exchange(addr uint64, b []byte, depth int) {
	if depth > 4 {
		d.problem("pointers nested too deeply")
		return
	}
	was := make([]byte, len(b))
	if !fill(d.before, addr, was) {
		d.problem("%d bytes at %#x that the tenant did not pass", len(b), addr)
		return
	}
	now := bytes.Clone(was)
	fill(d.after, addr, now)
	for off := 0; off+4 <= len(b); {
		n := d.replaced(b[off:], was[off:], depth)
		if n == 0 && !bytes.Equal(b[off:off+4], was[off:off+4]) {
			d.problem("byte %d of %d at %#x is not the tenant's", off, len(b), addr)
			return
		}
		if n == 0 {
			copy(b[off:off+4], now[off:off+4])
			n = 4
		}
		off += n
	}
	tail := len(b) &^ 3
	copy(b[tail:], now[tail:])
}

// replaced follows a pointer to the engine's copy, or accepts a descriptor of
// its own or a pointer that it hides. It returns how many bytes to leave alone.
func (d *recordedDriver) replaced(b, was []byte, depth int) int {
	if len(b) >= 8 {
		p, old := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(was)
		switch {
		case p >= d.base && p-d.base < uint64(len(d.arena)) && p != old:
			d.exchange(old, d.arena[p-d.base:][:d.lengthAt(old)], depth+1)
			return 8
		case p == 0 && old != 0 && binary.LittleEndian.Uint32(was[4:]) != 0:
			return 8
		}
	}
	v, old := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(was)
	if o := d.w.byID[int(v)]; o != nil && v != old && o.fd == int(old) {
		return 4
	}
	return 0
}

// lengthAt is how much was read of the tenant's memory at an address.
func (d *recordedDriver) lengthAt(addr uint64) int {
	for _, c := range d.before {
		if c.at == addr {
			return len(c.b)
		}
	}
	return 0
}

// cardAside answers what the engine asks the card for itself: time slices are
// set, memory is not told, and channels exist as long as the tenant lives.
type cardAside struct{ dead bool }

func (d *cardAside) Ioctl(_ File, _ uint32, arg []byte) (int, error) {
	c, err := nvidia.DecodeControl(arg)
	switch {
	case err == nil && c.Cmd == nvidia.CtrlTSGSetTimeslice:
		return 0, nil
	case err == nil && c.Cmd == nvidia.CtrlFifoDisableChannels && !d.dead:
		return 0, nil
	case err == nil && c.Cmd == nvidia.CtrlFifoDisableChannels:
		return 0, nvidia.PutU32At(arg, controlStatus, uint32(nvidia.StatusInvalidClient))
	}
	return -1, unix.ENODEV
}

func newRecorded(t *testing.T) (*stageSet, *recordedDriver) {
	t.Helper()
	w := newStageSet(t)
	d := &recordedDriver{w: w}
	arena, err := sys.NewArena(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	table, err := nvidia.Lookup(corpusDriver)
	if err != nil {
		t.Fatal(err)
	}
	// No context overhead was charged when the corpus was recorded, and the
	// sizes that the tenants were told say so.
	w.attach(t, &cardClient{driver: &d.aside, arena: arena, table: table}, d, 0)
	d.arena, d.base = whole(w.s.arena, arenaBytes)
	return w, d
}

// TestReplayRecorded plays each recording against the engine with the driver's
// recorded answers. Every call must end as it did on the card, with the same
// bytes written to the tenant; what the ledger then holds is compared with the
// golden file.
func TestReplayRecorded(t *testing.T) {
	for name, recs := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			w, d := newRecorded(t)
			processes := w.meet(recs)
			y := newTally()
			y.Calls = len(recs)
			for i := range recs {
				y.play(t, name, w, d, &recs[i], i)
				y.look(w.s)
			}
			y.Refusals = w.s.refusal
			d.aside.dead = true
			w.die(processes)
			y.AfterDeathBytes = w.s.ledger.charged()
			if n := len(w.s.held) + len(w.s.ledger.clients) + len(w.s.card.groups) + w.s.ledger.count; n != 0 {
				t.Errorf("%d files, clients, groups and objects outlive the tenant", n)
			}
			if y.AfterDeathBytes != 0 {
				t.Errorf("%d bytes charged after death", y.AfterDeathBytes)
			}
			compareGolden(t, name, y.golden)
		})
	}
}

func (y *tally) play(t *testing.T, name string, w *stageSet, d *recordedDriver, r *Record, i int) {
	t.Helper()
	n, err := notification(r)
	if err != nil {
		t.Fatal(err)
	}
	w.arrange(r, n)
	if seen, err := w.trapped(n); err != nil || !seen {
		y.Untrapped++
		return
	}
	c, err := w.player(r)
	if err == nil {
		err = d.load(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := w.s.serve(c, n)
	if c.lacking > 0 && older[name] && lookedAtLater(r) {
		y.ArgumentsLacking++
		return
	}
	if got := end(a); got != r.End {
		t.Errorf("call %d (%s): ended with %q, recorded %q", i, r.Args[1], got, r.End)
	}
	for _, p := range d.problems {
		t.Errorf("call %d (%s): %s", i, r.Args[1], p)
	}
	if diff := writesDiffer(c.written, d.after); diff != "" {
		t.Errorf("call %d (%s): %s", i, r.Args[1], diff)
	}
}

// writesDiffer compares what the tenant got with what it got on the card.
func writesDiffer(got, want []chunk) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d pieces written, recorded %d", len(got), len(want))
	}
	for i := range got {
		if got[i].at != want[i].at || !bytes.Equal(got[i].b, want[i].b) {
			off := 0
			for off < min(len(got[i].b), len(want[i].b)) && got[i].b[off] == want[i].b[off] {
				off++
			}
			return fmt.Sprintf("piece %d of %d bytes at %#x differs from the recorded one at byte %d: % x, recorded % x", i, len(got[i].b), got[i].at, off, near(got[i].b, off), near(want[i].b, off))
		}
	}
	return ""
}

func compareGolden(t *testing.T, name string, got golden) {
	t.Helper()
	path := filepath.Join(corpusDir, name+".golden.json")
	if *updateGolden {
		b, err := json.MarshalIndent(got, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want golden
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got; rewrite with -update):\n%s", path, diff)
	}
}

// near cuts out the words around a byte.
func near(b []byte, at int) []byte {
	from := max(0, at&^7-8)
	return b[min(from, len(b)):min(from+24, len(b))]
}
