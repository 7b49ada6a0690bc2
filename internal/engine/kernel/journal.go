package kernel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// op names one change of a ledger.
type op uint8

const (
	opClient op = iota + 1
	opObject
	opFree
	opDup
	opMap
	opUnmap
	opFreeRange
	opManaged
	opHeld
	opReleased
	opExport
)

// entry is one journalled change. A journal is replayed by making the same
// changes to an empty ledger, so a crash between two calls loses nothing.
type entry struct {
	op   op
	n    [8]uint64
	uuid nvidia.UUID
}

const entryBytes = 8 + 8*8 + 16

// journalHead is what the file starts with: a magic word and the call that is
// being served.
const (
	journalHead = 128
	headFlight  = 8 // where the call lies
	headStage   = headFlight + flightBytes - 1
)

var journalMagic = [8]byte{'p', 's', 't', 'k', 'j', 'n', 'l', '2'}

// stage says how far the call in flight got.
type stage byte

const (
	stageTaken  stage = 1 // from the kernel; nothing was done for it yet
	stageIssued stage = 2 // the driver may have executed it
)

// flight is the call that a session is serving. A successor that finds it
// still unanswered serves it again.
type flight struct {
	call  sys.Notification
	stage stage
}

const flightBytes = 8 * (1 + 1 + 1 + 6 + 1)

func (f flight) encode() [flightBytes]byte {
	var b [flightBytes]byte
	words := []uint64{f.call.ID, uint64(f.call.TID), uint64(f.call.NR)}
	for i, w := range append(words, f.call.Args[:]...) {
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	b[flightBytes-1] = byte(f.stage)
	return b
}

func decodeFlight(b []byte) flight {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	f := flight{call: sys.Notification{ID: word(0), TID: int(word(1)), NR: int(word(2))}, stage: stage(b[flightBytes-1])}
	for i := range f.call.Args {
		f.call.Args[i] = word(3 + i)
	}
	return f
}

// journal is a session's change log. It lies on a memory file system: it must
// survive the agent, not the machine.
type journal struct {
	f    *os.File
	head []byte // the file's first page, mapped: it changes with every call
	end  int64
	live int64 // size after the last rewrite
}

// openJournal opens or creates a journal and returns what it holds.
func openJournal(path string) (*journal, []entry, flight, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, flight{}, fmt.Errorf("open journal: %w", err)
	}
	list, last, end, err := readJournal(f)
	if err != nil {
		f.Close()
		return nil, nil, flight{}, fmt.Errorf("read journal %s: %w", path, err)
	}
	j := &journal{f: f, end: end}
	if err := j.mapHead(); err != nil {
		f.Close()
		return nil, nil, flight{}, err
	}
	return j, list, last, nil
}

func (j *journal) mapHead() error {
	head, err := unix.Mmap(int(j.f.Fd()), 0, journalHead, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map journal %s: %w", j.f.Name(), err)
	}
	j.head = head
	return nil
}

func readJournal(f *os.File) ([]entry, flight, int64, error) {
	var head [journalHead]byte
	n, err := io.ReadFull(f, head[:])
	if n == 0 && errors.Is(err, io.EOF) {
		copy(head[:], journalMagic[:])
		_, err = f.WriteAt(head[:], 0)
		return nil, flight{}, journalHead, err
	}
	if err != nil {
		return nil, flight{}, 0, err
	}
	if [8]byte(head[:8]) != journalMagic {
		return nil, flight{}, 0, errors.New("not a penstock journal of this version")
	}
	var list []entry
	end := int64(journalHead)
	for r := bufio.NewReader(f); ; end += entryBytes {
		var b [entryBytes]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			break // a torn last record was never acted on
		}
		list = append(list, decodeEntry(b[:]))
	}
	return list, decodeFlight(head[headFlight : headFlight+flightBytes]), end, nil
}

func decodeEntry(b []byte) entry {
	e := entry{op: op(b[0]), uuid: nvidia.UUID(b[72:88])}
	for i := range e.n {
		e.n[i] = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	return e
}

func (e entry) encode() [entryBytes]byte {
	var b [entryBytes]byte
	b[0] = byte(e.op)
	for i, v := range e.n {
		binary.LittleEndian.PutUint64(b[8+8*i:], v)
	}
	copy(b[72:], e.uuid[:])
	return b
}

func (j *journal) append(e entry) error {
	b := e.encode()
	if _, err := j.f.WriteAt(b[:], j.end); err != nil {
		return fmt.Errorf("append to journal %s: %w", j.f.Name(), err)
	}
	j.end += entryBytes
	return nil
}

// taken notes the call that is being served, so that a successor finds it if
// it was taken from the kernel and never answered.
func (j *journal) taken(n sys.Notification) {
	j.head[headStage] = 0 // what is half written counts for nothing
	b := flight{call: n}.encode()
	copy(j.head[headFlight:], b[:])
	j.head[headStage] = byte(stageTaken)
}

// issued notes that the driver is about to execute the call.
func (j *journal) issued() { j.head[headStage] = byte(stageIssued) }

// rewrite replaces the journal's content by a shorter one with the same
// outcome. A crash in between leaves the old file in place.
func (j *journal) rewrite(list []entry) error {
	path := j.f.Name()
	t, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("rewrite journal: %w", err)
	}
	w := bufio.NewWriter(t)
	_, err = w.Write(j.head)
	for _, e := range list {
		b := e.encode()
		_, werr := w.Write(b[:])
		err = errors.Join(err, werr)
	}
	if err = errors.Join(err, w.Flush()); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Close()
		return fmt.Errorf("rewrite journal %s: %w", path, err)
	}
	if err := j.close(); err != nil {
		return err
	}
	// The name is kept for error texts and the next rewrite.
	if t, err = os.OpenFile(path, os.O_RDWR, 0o600); err != nil {
		return fmt.Errorf("reopen journal: %w", err)
	}
	j.f, j.end = t, journalHead+int64(len(list))*entryBytes
	j.live = j.end
	if err := j.mapHead(); err != nil {
		return err
	}
	return nil
}

func (j *journal) close() error { return errors.Join(unix.Munmap(j.head), j.f.Close()) }

func entryClient(c *client) entry {
	return entry{op: opClient, n: [8]uint64{uint64(c.handle), uint64(c.held)}}
}

const noMemory = ^uint64(0)

func entryObject(c *client, o *object) entry {
	e := entry{op: opObject, n: [8]uint64{uint64(c.handle), uint64(o.handle), uint64(o.parent), uint64(o.class), noMemory, uint64(o.overhead)}}
	if o.mem != nil {
		e.n[4] = uint64(o.mem.bytes)
	}
	e.n[6] = uint64(boolWord(o.unvetted))<<2 | uint64(boolWord(o.foreign))<<3
	if g := o.group; g != nil {
		e.n[6] |= 1 | uint64(g.engine)<<8 | uint64(boolWord(g.bare))<<1
		e.n[7] = uint64(g.id)
	}
	return e
}

func boolWord(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func entryFree(client, h nvidia.Handle) entry {
	return entry{op: opFree, n: [8]uint64{uint64(client), uint64(h)}}
}

func entryDup(d nvidia.Dup) entry {
	return entry{op: opDup, n: [8]uint64{uint64(d.Dst), uint64(d.Parent), uint64(d.Object), uint64(d.SrcClient), uint64(d.SrcObject)}}
}

func entryMap(k rangeKey, m nvidia.UVMMapExternal, gpu nvidia.UUID) entry {
	return entry{op: opMap, uuid: gpu, n: [8]uint64{uint64(k.held), k.base, m.Length, uint64(m.Client), uint64(m.Memory)}}
}

func entryUnmap(held int, m nvidia.UVMUnmapExternal) entry {
	return entry{op: opUnmap, uuid: m.GPU, n: [8]uint64{uint64(held), m.Base, m.Length}}
}

func entryFreeRange(held int, base uint64) entry {
	return entry{op: opFreeRange, n: [8]uint64{uint64(held), base}}
}

// entryManaged says how many bytes of managed ranges a process has, or may be
// about to have.
func entryManaged(pid int, bytes int64) entry {
	return entry{op: opManaged, n: [8]uint64{uint64(pid), uint64(bytes)}}
}

func entryHeld(h *held) entry {
	return entry{op: opHeld, n: [8]uint64{uint64(h.id), uint64(h.file.Kind), uint64(h.pid), uint64(h.fd)}}
}

func entryReleased(held int) entry { return entry{op: opReleased, n: [8]uint64{uint64(held)}} }

func entryExport(held int, client, h nvidia.Handle) entry {
	return entry{op: opExport, n: [8]uint64{uint64(held), uint64(client), uint64(h)}}
}

// replay makes the change of one entry. Groups are returned through the
// objects for the session to govern again.
func (l *ledger) replay(e entry) {
	n := e.n
	switch e.op {
	case opClient:
		l.addClient(nvidia.Handle(n[0]), int(n[1]))
	case opObject:
		l.replayObject(n)
	case opFree:
		l.freeHandle(nvidia.Handle(n[0]), nvidia.Handle(n[1]))
	case opDup:
		c := l.clients[nvidia.Handle(n[0])]
		if c == nil {
			return
		}
		o := &object{handle: nvidia.Handle(n[2]), parent: nvidia.Handle(n[1])}
		if src := l.clients[nvidia.Handle(n[3])]; src != nil && src.objects[nvidia.Handle(n[4])] != nil {
			from := src.objects[nvidia.Handle(n[4])]
			o.class, o.mem, o.unvetted = from.class, from.mem, from.unvetted
		}
		l.addObject(c, o)
	case opMap:
		l.mapExternal(rangeKey{int(n[0]), n[1]}, n[2], []nvidia.UUID{e.uuid}, l.lookup(nvidia.Handle(n[3]), nvidia.Handle(n[4])))
	case opUnmap:
		l.unmapExternal(int(n[0]), n[1], n[2], e.uuid)
	case opFreeRange:
		l.freeRange(int(n[0]), n[1])
	case opManaged:
		delete(l.mapped, int(n[0]))
		if n[1] != 0 {
			l.mapped[int(n[0])] = int64(n[1])
		}
	case opReleased:
		l.dropHeld(int(n[0]))
	case opExport:
		l.export(int(n[0]), l.lookup(nvidia.Handle(n[1]), nvidia.Handle(n[2])))
	}
}

func (l *ledger) replayObject(n [8]uint64) {
	c := l.clients[nvidia.Handle(n[0])]
	if c == nil {
		return
	}
	o := &object{handle: nvidia.Handle(n[1]), parent: nvidia.Handle(n[2]), class: nvidia.Class(n[3]), overhead: int64(n[5]), unvetted: n[6]&4 != 0, foreign: n[6]&8 != 0}
	if n[4] != noMemory {
		o.mem = &memory{bytes: int64(n[4])}
	}
	if n[6]&1 != 0 {
		o.group = &group{engine: nvidia.EngineType(n[6] >> 8), bare: n[6]&2 != 0}
	}
	l.addObject(c, o)
}
