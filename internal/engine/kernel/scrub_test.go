package kernel

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// A recording made with `penstock trace record -o FILE -- CMD` becomes part of
// the corpus with
//
//	go test ./internal/engine/kernel -run TestImport -import FILE -as NAME.rec
var (
	importFrom = flag.String("import", "", "recording to scrub into the corpus")
	importAs   = flag.String("as", "", "its name there")
)

func TestImport(t *testing.T) {
	if *importFrom == "" {
		t.Skip("no -import")
	}
	f, err := os.Open(*importFrom)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recs, err := ReadRecords(f)
	if err != nil {
		t.Fatal(err)
	}
	recs = cutRepeats(recs, keptRepeats)
	if err := scrub(recs); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := NewRecorder(&out)
	for _, r := range recs {
		if err := w.enc.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(corpusDir, filepath.Base(*importAs)), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls in %d bytes", len(recs), out.Len())
}

const (
	keptRepeats = 20
	maxPeriod   = 16 // calls in one round of a loop that is cut
)

// cutRepeats shortens loops to a number of rounds. Only whole rounds of calls
// of the same shape go, so that what a round makes and frees stays balanced.
func cutRepeats(recs []Record, keep int) []Record {
	shapes := make([]string, len(recs))
	for i := range recs {
		shapes[i] = shape(&recs[i])
	}
	for period := 2; period <= maxPeriod; period++ {
		for at := 0; at+period < len(recs); at++ {
			n := at
			for n+period < len(recs) && shapes[n] == shapes[n+period] {
				n++
			}
			rounds := (n-at)/period + 1
			if rounds <= keep {
				continue
			}
			from, to := at+keep*period, at+rounds*period
			recs, shapes = slices.Delete(recs, from, to), slices.Delete(shapes, from, to)
		}
	}
	return recs
}

// shape is what makes two calls rounds of one loop: number, command and, of an
// allocation, the class.
func shape(r *Record) string {
	if r.NR != unix.SYS_IOCTL || len(r.Args) < 2 {
		return strconv.Itoa(r.NR)
	}
	s := r.Args[1]
	if len(r.Reads) > 0 {
		b, _ := r.Reads[0].Bytes()
		if a, err := nvidia.DecodeAlloc(b); err == nil && len(r.Files) > 0 && r.Files[0].Kind != UVMFile {
			s += fmt.Sprintf(" %#x", uint32(a.Class))
		}
	}
	return s
}

// Addresses that the system placed at random lie here (x86-64); what lies
// below, as the addresses that CUDA chooses itself, is the same in every run.
const (
	randomFrom = uint64(0x550000000000)
	randomTo   = uint64(0x800000000000)
	stableFrom = uint64(0x600000000000) // where they are moved to
	stableStep = uint64(2 << 20)        // low bits below this stay: alignments matter
	reachOver  = uint64(64 << 10)       // ranges closer than this stay together
)

// fixedUUID stands for the card's own.
var fixedUUID = [16]byte{0x11, 0x11, 0x11, 0x11, 0x22, 0x22, 0x43, 0x33, 0x84, 0x44, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55}

// span is a range of the tenant's addresses that moves as one.
type span struct {
	from, to uint64
	order    int // of first appearance
	moved    uint64
}

// scrub makes a recording independent of the run and of the card: addresses
// that were random become small multiples of 2 MiB above one base, consistently
// in registers, pieces and what they hold; the card's UUID becomes a fixed one.
func scrub(recs []Record) error {
	var spans []span
	note := func(from, length uint64) {
		if from >= randomFrom && from < randomTo && length < randomTo-from {
			spans = append(spans, span{from: from, to: from + max(length, 1), order: len(spans)})
		}
	}
	for i := range recs {
		if err := noteAddresses(&recs[i], note); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	spans = settleSpans(spans)
	move := func(v uint64) uint64 {
		i, _ := slices.BinarySearchFunc(spans, v, func(s span, v uint64) int {
			switch {
			case s.to <= v:
				return -1
			case s.from > v:
				return 1
			}
			return 0
		})
		if i < len(spans) && spans[i].from <= v && v < spans[i].to {
			return spans[i].moved + (v - spans[i].from)
		}
		return v
	}
	renumber := pids{}
	for i := range recs {
		if err := renumber.rewrite(&recs[i]); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	uuid := cardUUID(recs)
	for i := range recs {
		if err := rewrite(&recs[i], move, uuid); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return nil
}

// settleSpans joins ranges that touch and gives each its place.
func settleSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return compareUint(a.from, b.from) })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.from <= out[n-1].to+reachOver {
			out[n-1].to = max(out[n-1].to, s.to)
			out[n-1].order = min(out[n-1].order, s.order)
			continue
		}
		out = append(out, s)
	}
	byOrder := make([]*span, len(out))
	for i := range out {
		byOrder[i] = &out[i]
	}
	slices.SortFunc(byOrder, func(a, b *span) int { return a.order - b.order })
	next := stableFrom
	for _, s := range byOrder {
		s.moved = next + s.from%stableStep
		next = (s.moved+s.to-s.from)/stableStep*stableStep + 2*stableStep
	}
	return out
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// noteAddresses reports every address in a call, with the length that is known.
func noteAddresses(r *Record, note func(from, length uint64)) error {
	regs, err := registers(r)
	if err != nil {
		return err
	}
	for _, v := range regs {
		note(v, 1)
	}
	if r.NR == unix.SYS_MMAP {
		note(regs[0], regs[1])
	}
	for _, p := range slices.Concat(r.Reads, r.Writes) {
		b, err := p.Bytes()
		if err != nil {
			return err
		}
		at, err := strconv.ParseUint(p.At, 16, 64)
		if err != nil {
			return err
		}
		note(at, uint64(len(b)))
		for off := 0; off+8 <= len(b); off += 4 {
			note(binary.LittleEndian.Uint64(b[off:]), 1)
		}
		if len(r.Files) > 0 && r.Files[0].Kind == UVMFile && len(b) >= 16 {
			note(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])) // a range
		}
	}
	return nil
}

func registers(r *Record) ([6]uint64, error) {
	var out [6]uint64
	if len(r.Args) != len(out) {
		return out, fmt.Errorf("%d registers", len(r.Args))
	}
	for i, a := range r.Args {
		v, err := strconv.ParseUint(a, 16, 64)
		if err != nil {
			return out, fmt.Errorf("register %d: %w", i, err)
		}
		out[i] = v
	}
	return out, nil
}

func rewrite(r *Record, move func(uint64) uint64, uuid []byte) error {
	regs, err := registers(r)
	if err != nil {
		return err
	}
	for i, v := range regs {
		r.Args[i] = hexWord(move(v))
	}
	if r.NR == unix.SYS_IOCTL {
		// What the call does not use holds leftovers.
		r.Args[3], r.Args[4], r.Args[5] = "0", "0", "0"
	}
	for _, list := range [][]Piece{r.Reads, r.Writes} {
		for i := range list {
			b, err := list[i].Bytes()
			if err != nil {
				return err
			}
			at, err := strconv.ParseUint(list[i].At, 16, 64)
			if err != nil {
				return err
			}
			for off := 0; off+8 <= len(b); {
				v := binary.LittleEndian.Uint64(b[off:])
				if w := move(v); w != v {
					binary.LittleEndian.PutUint64(b[off:], w)
					off += 8
					continue
				}
				off += 4
			}
			list[i] = piece(move(at), replaceUUID(b, uuid))
		}
	}
	return nil
}

func replaceUUID(b, uuid []byte) []byte {
	if len(uuid) == 0 {
		return b
	}
	return bytes.ReplaceAll(b, uuid, fixedUUID[:])
}

// ctrlGIDInfo answers with the card's UUID (NV2080_CTRL_GPU_GET_GID_INFO:
// index, flags, length, data).
const (
	ctrlGIDInfo = uint32(0x2080014a)
	gidData     = 12
	gidFlags    = 4
	gidBinary   = 2
)

// cardUUID finds the UUID in the answer that tells it.
func cardUUID(recs []Record) []byte {
	for i := range recs {
		r := &recs[i]
		if len(r.Reads) == 0 || len(r.Writes) < 2 {
			continue
		}
		arg, err := r.Reads[0].Bytes()
		if err != nil {
			continue
		}
		c, err := nvidia.DecodeControl(arg)
		if err != nil || c.Cmd != ctrlGIDInfo {
			continue
		}
		b, err := r.Writes[0].Bytes()
		if err != nil || len(b) < gidData+16 || b[gidFlags]&3 != gidBinary {
			continue
		}
		return b[gidData : gidData+16]
	}
	return nil
}

// pids gives process ids new ones, as replayed processes have, by order of
// appearance: the lists that the driver answers with hold the tenant's own only.
type pids map[uint32]uint32

func (p pids) of(old uint32) uint32 {
	if old >= firstPID || old == 0 {
		return old
	}
	if _, ok := p[old]; !ok {
		p[old] = firstPID + uint32(len(p))
	}
	return p[old]
}

func (p pids) rewrite(r *Record) error {
	if len(r.Reads) == 0 || len(r.Files) == 0 || r.Files[0].Kind == UVMFile {
		return nil
	}
	arg, err := r.Reads[0].Bytes()
	if err != nil {
		return err
	}
	c, err := nvidia.DecodeControl(arg)
	if err != nil || (c.Cmd != nvidia.CtrlGetPids && c.Cmd != nvidia.CtrlGetPidInfo) {
		return nil
	}
	for _, list := range [][]Piece{r.Reads[1:], r.Writes} {
		for i := range list {
			b, err := list[i].Bytes()
			if err != nil {
				return err
			}
			if len(b) == nvidia.SizeControl {
				continue
			}
			if err := p.inList(c.Cmd, b); err != nil {
				return err
			}
			at, err := strconv.ParseUint(list[i].At, 16, 64)
			if err != nil {
				return err
			}
			list[i] = piece(at, b)
		}
	}
	return nil
}

func (p pids) inList(cmd uint32, b []byte) error {
	if cmd == nvidia.CtrlGetPids {
		g, err := nvidia.DecodeGetPids(b)
		if err != nil {
			return err
		}
		for i := range g.Pids {
			g.Pids[i] = p.of(g.Pids[i])
		}
		return g.Put(b)
	}
	list, err := nvidia.DecodePidInfos(b)
	if err != nil {
		return err
	}
	// In place: an entry has more than the decoded fields.
	for i := range list {
		const first, stride = 8, 72
		if err := nvidia.PutU32At(b, uint32(first+stride*i), p.of(list[i].Pid)); err != nil {
			return err
		}
	}
	return nil
}

// TestScrub moves addresses consistently and keeps what matters about them.
func TestScrub(t *testing.T) {
	arg := make([]byte, nvidia.SizeControl)
	c := nvidia.Control{Client: 1, Object: 1, Cmd: ctrlGIDInfo, Params: 0x7ffd00001040, ParamsSize: 28}
	if err := c.Put(arg); err != nil {
		t.Fatal(err)
	}
	params := make([]byte, 28)
	params[gidFlags] = gidBinary
	copy(params[gidData:], "a card's own id.")
	recs := []Record{
		{
			NR: unix.SYS_IOCTL, Args: []string{"8", "c020462a", "7ffd00001000", "7ffd0000dead", "0", "0"}, End: "value",
			Reads:  []Piece{piece(0x7ffd00001000, arg), piece(0x7ffd00001040, make([]byte, 28))},
			Writes: []Piece{piece(0x7ffd00001040, params), piece(0x7ffd00001000, arg)},
		},
		{NR: unix.SYS_MMAP, Args: []string{"7f1234400000", "200000", "3", "11", "9", "7f1234400000"}, End: "continue"},
	}
	if err := scrub(recs); err != nil {
		t.Fatal(err)
	}
	got, err := recs[0].Reads[0].Bytes()
	if err != nil {
		t.Fatal(err)
	}
	at, _ := strconv.ParseUint(recs[0].Reads[1].At, 16, 64)
	if done, err := nvidia.DecodeControl(got); err != nil || done.Params != at || at < stableFrom || at > stableFrom+1<<30 || at%stableStep != 0x1040 {
		t.Errorf("parameters at %#x (%v), their piece at %#x", done.Params, err, at)
	}
	if a := recs[1].Args; a[0] != a[5] || a[1] != "200000" || recs[0].Args[3] != "0" {
		t.Errorf("registers %v, %v", a, recs[0].Args)
	}
	if d := recs[0].Writes[0].Data; !bytes.Contains([]byte(d), []byte(hex.EncodeToString(fixedUUID[:]))) {
		t.Errorf("answer %s keeps the card's id", d)
	}
}
