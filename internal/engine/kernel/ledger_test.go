package kernel

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

const testMiB = 1 << 20

func memObject(h, parent nvidia.Handle, bytes int64) *object {
	return &object{handle: h, parent: parent, class: nvidia.ClassMemoryLocalUser, mem: &memory{bytes: bytes}}
}

// TestLedgerReferences follows one allocation through everything that can keep
// it alive: it is charged once, until the last reference is gone.
func TestLedgerReferences(t *testing.T) {
	gpu := nvidia.UUID{1}
	for _, tc := range []struct {
		name  string
		hold  func(*ledger)
		drop  func(*ledger)
		after int64 // charged between the free of the object and drop
	}{
		{"free alone", func(*ledger) {}, func(*ledger) {}, 0},
		{
			"duplicate in a second client",
			func(l *ledger) {
				c := l.addClient(0xc2, 2)
				l.addObject(c, &object{handle: 9, parent: 0xc2, mem: l.lookup(0xc1, 5)})
			},
			func(l *ledger) { l.freeHandle(0xc2, 9) }, testMiB,
		},
		{
			"unified mapping, then unmap",
			func(l *ledger) { l.mapExternal(rangeKey{1, 0x1000}, testMiB, []nvidia.UUID{gpu}, l.lookup(0xc1, 5)) },
			func(l *ledger) { l.unmapExternal(1, 0x1000, testMiB, gpu) }, testMiB,
		},
		{
			"unified mapping, then range freed",
			func(l *ledger) { l.mapExternal(rangeKey{1, 0x1000}, testMiB, []nvidia.UUID{gpu}, l.lookup(0xc1, 5)) },
			func(l *ledger) { l.freeRange(1, 0x1000) }, testMiB,
		},
		{
			"unmap of a part keeps the whole",
			func(l *ledger) {
				l.mapExternal(rangeKey{1, 0x1000}, testMiB, []nvidia.UUID{gpu}, l.lookup(0xc1, 5))
				l.unmapExternal(1, 0x1000, testMiB/2, gpu)
			},
			func(l *ledger) { l.dropHeld(1) }, testMiB,
		},
		{
			"exported to a descriptor",
			func(l *ledger) { l.export(1, l.lookup(0xc1, 5)) },
			func(l *ledger) { l.dropHeld(1) }, testMiB,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(0)
			c := l.addClient(0xc1, 1)
			l.addObject(c, &object{handle: 2, parent: 0xc1, class: nvidia.ClassDevice})
			l.addObject(c, memObject(5, 2, testMiB))
			tc.hold(l)
			if got := l.charged(); got != testMiB {
				t.Errorf("held: charged %d, want %d", got, testMiB)
			}
			l.freeHandle(0xc1, 5)
			if got := l.charged(); got != tc.after {
				t.Errorf("freed: charged %d, want %d", got, tc.after)
			}
			tc.drop(l)
			if got := l.charged(); got != 0 {
				t.Errorf("dropped: charged %d, want 0", got)
			}
		})
	}
}

func TestLedgerParents(t *testing.T) {
	l := newLedger(0)
	c := l.addClient(0xc1, 1)
	l.addObject(c, &object{handle: 2, parent: 0xc1, class: nvidia.ClassDevice})
	l.addObject(c, &object{handle: 3, parent: 2, class: nvidia.ClassTSG, overhead: 7 * testMiB})
	l.addObject(c, memObject(4, 2, testMiB))
	l.addObject(c, memObject(5, 0xc1, testMiB)) // elsewhere
	gone := l.freeHandle(0xc1, 2)
	if len(gone) != 3 || l.charged() != testMiB {
		t.Errorf("freeing the device took %d objects and left %d bytes, want 3 and %d", len(gone), l.charged(), testMiB)
	}
	// A handle that the driver accepted again stands for a new object.
	l.addObject(c, memObject(5, 0xc1, 3*testMiB))
	if l.charged() != 3*testMiB {
		t.Errorf("reused handle: charged %d, want %d", l.charged(), 3*testMiB)
	}
	l.freeHandle(0xc1, 0xc1)
	if l.charged() != 0 || len(l.clients) != 0 {
		t.Errorf("freeing the client left %d bytes and %d clients", l.charged(), len(l.clients))
	}
}

func TestLedgerQuota(t *testing.T) {
	l := newLedger(10 * testMiB)
	l.mapped[1] = 3 * testMiB
	l.pending = append(l.pending, pendingMap{pid: 1, bytes: testMiB})
	for _, tc := range []struct {
		want int64
		fits bool
	}{{6 * testMiB, true}, {6*testMiB + 1, false}, {1 << 62, false}} {
		err := l.room(tc.want)
		var q *QuotaError
		if (err == nil) != tc.fits || (err != nil && !errors.As(err, &q)) {
			t.Errorf("room(%d) = %v, want fits %v", tc.want, err, tc.fits)
		}
	}
	if got := l.free(100 * testMiB); got != 6*testMiB {
		t.Errorf("free = %d, want %d", got, 6*testMiB)
	}
}

// step is one random change of a ledger, made both directly and by entry.
func randomEntry(t *rapid.T) entry {
	handle := rapid.Uint64Range(2, 7) // 1 is the stand-in of rewritten journals
	pid := rapid.Uint64Range(1, 3)
	base := rapid.Uint64Range(1, 4)
	e := entry{op: op(rapid.IntRange(int(opClient), int(opExport)).Draw(t, "op"))}
	for i := range e.n {
		e.n[i] = handle.Draw(t, "n")
	}
	switch e.op {
	case opClient, opManaged:
		e.n[1] = pid.Draw(t, "pid")
	case opObject:
		e.n[4] = rapid.SampledFrom([]uint64{noMemory, testMiB, 3 * testMiB}).Draw(t, "bytes")
		if e.n[5] = 0; e.n[4] == noMemory {
			e.n[5] = rapid.SampledFrom([]uint64{0, testMiB}).Draw(t, "overhead")
		}
		e.n[6] = 0
	case opMap, opUnmap, opFreeRange:
		e.n[0], e.n[1], e.n[2] = pid.Draw(t, "pid"), base.Draw(t, "base")<<20, rapid.Uint64Range(0, 3).Draw(t, "len")<<20
	case opHeld, opReleased, opExport:
		e.n[0] = pid.Draw(t, "pid")
	}
	return e
}

// TestLedgerProperties: whatever happens, in whatever order, the charge is the
// sum of the memory that something still refers to, it is never negative, a
// rewritten journal leads to the same charge, and when all processes are gone
// nothing is charged.
func TestLedgerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger(0)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			l.replay(randomEntry(t))
			if want := recount(l); l.charged() != want {
				t.Fatalf("charged %d, recount %d", l.charged(), want)
			}
		}
		again := newLedger(0)
		for _, e := range l.entries() {
			again.replay(decodeBack(t, e))
		}
		if diff := cmp.Diff(l.charged(), again.charged()); diff != "" {
			t.Fatalf("rewritten journal (-want +got):\n%s", diff)
		}
		for pid := 0; pid <= 7; pid++ {
			l.dropProcess(pid)
			l.dropHeld(pid)
		}
		if l.charged() != 0 {
			t.Fatalf("all processes and files gone, %d bytes charged", l.charged())
		}
	})
}

func decodeBack(t *rapid.T, e entry) entry {
	b := e.encode()
	got := decodeEntry(b[:])
	if got != e {
		t.Fatalf("entry %+v came back as %+v", e, got)
	}
	return got
}

// recount adds up what the ledger holds without trusting its sums.
func recount(l *ledger) int64 {
	seen := map[*memory]bool{}
	var sum int64
	add := func(m *memory) {
		if m != nil && !seen[m] {
			seen[m] = true
			sum += m.bytes
		}
	}
	for _, c := range l.clients {
		for _, o := range c.objects {
			add(o.mem)
			sum += o.overhead
		}
	}
	for _, x := range l.external {
		for _, list := range x.mapped {
			for _, m := range list {
				add(m)
			}
		}
	}
	for _, list := range l.exported {
		for _, m := range list {
			add(m)
		}
	}
	for _, n := range l.mapped {
		sum += n
	}
	return sum
}
