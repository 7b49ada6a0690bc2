package kernel

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// change is one alteration of a recorded call, eight bytes of a fuzzer's
// script.
type change struct {
	call  int
	kind  byte
	where byte
	value uint32
}

const (
	changeByte = iota
	changeWord
	changeLong
	changeInner    // a word behind a pointer
	changeMeaning  // a word, to one that means something
	changeBorrowed // a word of another call's argument
	changeNumber
	changeSize
	changeType
	changeAddress
	changeDescriptor
	changeRegister
	changeRepeat
	changeSkip
	changeKinds
)

// changes reads a script; what is too short at its end counts for nothing.
func changes(script []byte, calls int) map[int][]change {
	out := map[int][]change{}
	const maxChanges = 64
	for n := 0; len(script) >= 8 && n < maxChanges; n++ {
		c := change{
			call:  int(binary.LittleEndian.Uint16(script)) % calls,
			kind:  script[2] % changeKinds,
			where: script[3],
			value: binary.LittleEndian.Uint32(script[4:]),
		}
		out[c.call] = append(out[c.call], c)
		script = script[8:]
	}
	return out
}

// extremes are the values that break sums, signs and bounds.
var extremes = []uint64{
	0, 1, 7, 0xff, 0xffff, 1 << 20, 1 << 31, 1<<31 - 1, 1<<32 - 1, 1 << 32, corpusLimit, corpusLimit + 1,
	1 << 40, 1 << 47, 1 << 50, 1<<50 + 1, 1 << 62, 1<<63 - 1, 1 << 63, ^uint64(0), ^uint64(0) - 65535, 0xffff800000000000,
}

// meanings are words that make another call of a call: classes, engines,
// attributes.
var meanings = []nvidia.Class{
	nvidia.ClassRootClient, nvidia.ClassDevice, nvidia.ClassSubdevice, nvidia.ClassMemoryLocalUser, nvidia.ClassOSDescriptor,
	nvidia.ClassMemoryFabric, nvidia.ClassTSG, 0, 1, 0x3e, 0x3f, 0xc86f, 0x90f1, 0x13, 1 << 25, 2 << 25, 3 << 25, 0x80000, 2, 3, 27,
}

func extreme(v uint32) uint64 { return extremes[int(v)%len(extremes)] }

// apply alters a call. It reports how often the call is to be made.
func (c change) apply(recs []Record, n *sys.Notification, memory []chunk) int {
	switch c.kind {
	case changeRepeat:
		return 2 + int(c.value%3)
	case changeSkip:
		return 0
	case changeNumber:
		n.Args[1] = n.Args[1]&^0xff | uint64(c.value&0xff)
	case changeSize:
		n.Args[1] = n.Args[1]&^0x3fff0000 | uint64(c.value&0x3fff)<<16
	case changeType:
		n.Args[1] = n.Args[1]&^0xff00 | uint64(c.value&0xff)<<8
	case changeAddress:
		n.Args[2] = extreme(c.value)
	case changeDescriptor:
		n.Args[0] = uint64(c.value % 64)
	case changeRegister:
		n.Args[int(c.where)%len(n.Args)] = extreme(c.value)
	default:
		c.alter(recs, memory)
	}
	return 1
}

// alter changes what the tenant's memory holds.
func (c change) alter(recs []Record, memory []chunk) {
	if len(memory) == 0 {
		return
	}
	b := memory[0].b
	if c.kind == changeInner {
		b = memory[int(c.where)%len(memory)].b
		c.where = byte(c.value >> 8)
	}
	off := int(c.where) * 4
	if len(b) < 8 {
		return
	}
	off %= (len(b) - 4)
	switch c.kind {
	case changeByte:
		b[int(c.where)%len(b)] = byte(c.value)
	case changeLong:
		binary.LittleEndian.PutUint64(b[min(off&^7, len(b)-8):], extreme(c.value))
	case changeMeaning:
		binary.LittleEndian.PutUint32(b[off:], uint32(meanings[int(c.value)%len(meanings)]))
	case changeBorrowed:
		other, err := chunks(recs[int(c.value)%len(recs)].Reads)
		if err == nil && len(other) > 0 && len(other[0].b) >= 16 {
			copy(b[off:off+4], other[0].b[4*(c.value>>24%4):])
		}
	default:
		binary.LittleEndian.PutUint32(b[off:], uint32(extreme(c.value)))
	}
}

// sound says what is wrong with the books, if anything.
func (e *emulated) sound() string {
	l, used := e.s.ledger, e.used()
	var pending int64
	for _, p := range l.pending {
		pending += p.bytes
	}
	switch {
	case l.objects < 0 || l.overhead < 0 || l.limbo < 0 || l.managed() < 0:
		return fmt.Sprintf("negative charge: objects %d, overhead %d, limbo %d, managed %d", l.objects, l.overhead, l.limbo, l.managed())
	case recount(l)+pending != l.charged()-l.limbo:
		return fmt.Sprintf("charged %d with limbo %d, recount %d", l.charged(), l.limbo, recount(l)+pending)
	case used > corpusLimit:
		return fmt.Sprintf("%d bytes on the card, limit %d", used, int64(corpusLimit))
	case used > l.charged():
		return fmt.Sprintf("%d bytes on the card, %d charged", used, l.charged())
	case e.driver.strays > 0:
		return "an address of the tenant's reached the driver"
	}
	return ""
}

// fuzzTail is how many calls follow the last changed one.
const fuzzTail = 150

// FuzzServe plays recordings with altered calls against the engine and the
// emulated card. Whatever a tenant asks, nothing panics or hangs, every byte on
// the card is charged, and no more are used than were granted.
func FuzzServe(f *testing.F) {
	programs := corpus(f)
	names := slices.Sorted(maps.Keys(programs))
	for i := range names {
		recs := programs[names[i]]
		if err := giveHandles(recs); err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), []byte{})
		for kind := range byte(changeKinds) {
			f.Add(uint8(i), spread(len(recs), kind))
		}
		for seed := range uint64(5) {
			f.Add(uint8(i), aimed(recs, seed))
		}
	}
	f.Fuzz(func(t *testing.T, program uint8, script []byte) {
		recs := programs[names[int(program)%len(names)]]
		altered := changes(script, len(recs))
		last := 0
		for i := range altered {
			last = max(last, i)
		}
		e := newEmulated(t)
		processes := e.meet(recs)
		for i := range min(len(recs), last+fuzzTail) {
			e.fuzz(t, recs, i, altered[i])
		}
		e.die(processes)
		if _, err := e.s.card.Reconcile(0); err != nil {
			t.Fatal(err)
		}
		if e.used() != 0 || e.s.ledger.charged() != 0 {
			t.Errorf("after death: %d bytes used, %d charged", e.used(), e.s.ledger.charged())
		}
	})
}

// spread is a seed that alters calls all over a recording in one way.
func spread(calls int, kind byte) []byte {
	var out []byte
	for i := range 40 {
		out = binary.LittleEndian.AppendUint16(out, uint16(i*calls/40))
		out = append(out, kind, byte(i*7))
		out = binary.LittleEndian.AppendUint32(out, uint32(i)*2654435761)
	}
	return out
}

// aimed is a seed that alters calls which make, map or free something, in many
// ways.
func aimed(recs []Record, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	var targets []int
	for i := range recs {
		r := &recs[i]
		if r.NR == unix.SYS_MMAP || r.Files[0].Kind == UVMFile || weighty[nvidia.Nr(command(r))] {
			targets = append(targets, i)
		}
	}
	var out []byte
	for range 20 {
		out = binary.LittleEndian.AppendUint16(out, uint16(targets[rng.IntN(len(targets))]))
		out = append(out, byte(rng.IntN(changeKinds)), byte(rng.IntN(32)))
		out = binary.LittleEndian.AppendUint32(out, rng.Uint32())
	}
	return out
}

func (e *emulated) fuzz(t *testing.T, recs []Record, i int, list []change) {
	t.Helper()
	r := &recs[i]
	n, err := notification(r)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := chunks(r.Reads)
	if err != nil {
		t.Fatal(err)
	}
	e.arrange(r, n)
	times := 1
	for _, c := range list {
		times = min(times, 1) * c.apply(recs, &n, memory)
	}
	for range times {
		c := &player{w: e.stageSet, pid: firstPID + r.Process, memory: memory, zeroes: len(list) > 0}
		if _, err := e.step(c, n); err != nil {
			t.Fatal(err)
		}
		if why := e.sound(); why != "" {
			t.Fatalf("call %d (%x, changed by %v): %s", i, n.Args[:3], list, why)
		}
	}
}

// TestFilterTraps: whatever the type byte and the size, exactly the numbers of
// the driver are trapped.
func TestFilterTraps(t *testing.T) {
	w := newStageSet(t)
	for nr := range uint64(256) {
		for _, size := range []uint64{1, 16, nvidia.SizeAlloc64, 16383} {
			for _, kind := range []uint64{0, 'F', 'Z', 255} {
				n := sys.Notification{NR: unix.SYS_IOCTL, Args: [6]uint64{3, 3<<30 | size<<16 | kind<<8 | nr}}
				seen, err := w.trapped(n)
				if err != nil {
					t.Fatal(err)
				}
				if esc := slices.Contains(escapes[:], uint8(nr)); esc != seen {
					t.Errorf("number %#x of %d bytes, type %#x: trapped %v, want %v", nr, size, kind, seen, esc)
				}
			}
		}
	}
}

// TestRefusedMappingKeepsTheOldOne: a mapping over another one, which the
// driver refuses, must not refund what the other one still holds. The object
// under it is gone, so nothing but the mapping keeps its memory.
func TestRefusedMappingKeepsTheOldOne(t *testing.T) {
	const unmap, remap = 603, 608 // of the first and the second of the malloc/free pairs
	recs := corpus(t)["cuda-all"]
	if err := giveHandles(recs); err != nil {
		t.Fatal(err)
	}
	e := newEmulated(t)
	processes := e.meet(recs)
	altered := map[int][]change{
		unmap: {{call: unmap, kind: changeSkip}},
		remap: {{call: remap, kind: changeByte, where: 11, value: 0x40}}, // longer than the object
	}
	for i := range remap + 20 {
		e.fuzz(t, recs, i, altered[i])
	}
	e.die(processes)
}
