package card_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// ledger is the test's own account of the bytes that must be in use: a count of references per allocation.
type ledger struct {
	size map[int]int64
	refs map[int]int
}

func (l *ledger) total() (n int64) {
	for id, r := range l.refs {
		if r > 0 {
			n += l.size[id]
		}
	}
	return n
}

// held is one reference: the client's object.
type held struct {
	proc, id int
	handle   nvidia.Handle
}

// machine drives two processes with random allocations, duplicates, frees, exports and deaths.
type machine struct {
	t     *rapid.T
	c     *card.Card
	ports []*rm.Local
	procs []*rm.Context
	led   ledger
	held  []held
	next  int
}

func (m *machine) start(i int) {
	p := rm.NewLocal(m.c, 100+i)
	x, err := rm.Start(p)
	if err != nil {
		m.t.Fatalf("start: %v", err)
	}
	m.ports[i], m.procs[i] = p, x
}

func (m *machine) alloc(*rapid.T) {
	i := rapid.IntRange(0, len(m.procs)-1).Draw(m.t, "proc")
	size := rapid.Uint64Range(1, uint64(1024*mib)).Draw(m.t, "size")
	h, got, err := m.procs[i].Memory(m.procs[i].Device, size)
	if errors.Is(err, nvidia.StatusNoMemory) {
		return
	}
	if err != nil || got < size {
		m.t.Fatalf("allocate %d: %d, %v", size, got, err)
	}
	m.next++
	m.led.size[m.next], m.led.refs[m.next] = int64(got), 1
	m.held = append(m.held, held{i, m.next, h})
}

func (m *machine) pick() (int, bool) {
	if len(m.held) == 0 {
		return 0, false
	}
	return rapid.IntRange(0, len(m.held)-1).Draw(m.t, "which"), true
}

func (m *machine) free(*rapid.T) {
	i, ok := m.pick()
	if !ok {
		return
	}
	h := m.held[i]
	if err := m.procs[h.proc].Free(h.handle); err != nil {
		m.t.Fatal(err)
	}
	m.led.refs[h.id]--
	m.held = append(m.held[:i], m.held[i+1:]...)
}

func (m *machine) dup(*rapid.T) {
	i, ok := m.pick()
	if !ok {
		return
	}
	h := m.held[i]
	to := rapid.IntRange(0, len(m.procs)-1).Draw(m.t, "to")
	n, err := m.procs[to].Dup(m.procs[to].Device, m.procs[h.proc].Client, h.handle)
	if err != nil {
		m.t.Fatal(err)
	}
	m.led.refs[h.id]++
	m.held = append(m.held, held{to, h.id, n})
}

func (m *machine) die(*rapid.T) {
	i := rapid.IntRange(0, len(m.procs)-1).Draw(m.t, "proc")
	m.ports[i].Kill()
	kept := m.held[:0]
	for _, h := range m.held {
		if h.proc == i {
			m.led.refs[h.id]--
			continue
		}
		kept = append(kept, h)
	}
	m.held = kept
	m.start(i)
}

func (m *machine) check(*rapid.T) {
	s := m.c.Stats()
	want := m.led.total() + int64(len(m.procs))*m.c.Config().ContextBytes
	if s.UsedBytes != want || s.FreeBytes < 0 || s.UsedBytes+s.FreeBytes != s.TotalBytes-m.c.Config().ReservedBytes {
		m.t.Fatalf("used %d, want %d (%+v)", s.UsedBytes, want, s)
	}
}

func TestUsedIsTheSumOfLiveAllocations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := card.H200()
		cfg.TotalBytes, cfg.ContextBytes = 6<<30, 64*mib
		m := &machine{
			t: t, c: card.New(cfg), ports: make([]*rm.Local, 2), procs: make([]*rm.Context, 2),
			led: ledger{map[int]int64{}, map[int]int{}},
		}
		m.start(0)
		m.start(1)
		t.Repeat(map[string]func(*rapid.T){"alloc": m.alloc, "free": m.free, "dup": m.dup, "die": m.die, "": m.check})
		m.ports[0].Kill()
		m.ports[1].Kill()
		if s := m.c.Stats(); s.UsedBytes != 0 || s.Objects != 0 || s.Files != 0 || s.Groups != 0 {
			t.Fatalf("left behind: %+v", s)
		}
	})
}

// step is one random input of the schedule property.
type step struct {
	after   time.Duration
	who     int
	kernel  time.Duration
	n       int64
	slice   uint64
	disable int // 0: nothing, 1: freeze, 2: thaw
}

// replay runs steps on a fresh card, advancing in pieces of at most grain, and returns its state.
func replay(t *rapid.T, steps []step, grain time.Duration) (card.Stats, []card.Progress) {
	c := card.New(card.H200())
	var ports []*rm.Local
	var procs []*rm.Context
	for i := range 3 {
		p := rm.NewLocal(c, i+1)
		x, err := rm.Start(p)
		if err != nil {
			t.Fatal(err)
		}
		ports, procs = append(ports, p), append(procs, x)
	}
	ref := func(i int) card.ChannelRef {
		return card.ChannelRef{Client: uint32(procs[i].Handle), Channel: uint32(procs[i].Channels[0])}
	}
	now := time.Duration(0)
	for _, s := range steps {
		for end := now + s.after; now < end; {
			now = min(now+grain, end)
			c.Advance(now)
		}
		id, _ := ports[s.who].File(procs[s.who].FD)
		if err := c.Submit(id, ref(s.who), s.kernel, s.n); err != nil {
			t.Fatal(err)
		}
		if err := procs[s.who].SetTimeslice(procs[s.who].Compute, s.slice); err != nil {
			t.Fatal(err)
		}
		if s.disable > 0 {
			list := []nvidia.ChannelRef{{Client: procs[s.who].Handle, Channel: procs[s.who].Channels[0]}}
			if err := procs[0].Freeze(procs[0].Subdevice, s.disable == 1, list); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Advance(now + time.Second)
	var out []card.Progress
	for i := range procs {
		p, err := c.Progress(0, ref(i))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return c.Stats(), out
}

// TestDeterministic: the same inputs give the same state, however finely time is cut; engine time is never
// given out twice.
func TestDeterministic(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			after:   time.Duration(rapid.IntRange(0, 20_000).Draw(t, "after")) * us,
			who:     rapid.IntRange(0, 2).Draw(t, "who"),
			kernel:  time.Duration(rapid.IntRange(1, 9000).Draw(t, "kernel")) * us,
			n:       rapid.Int64Range(1, 200).Draw(t, "n"),
			slice:   rapid.Uint64Range(1, 30_000).Draw(t, "slice"),
			disable: rapid.IntRange(0, 2).Draw(t, "disable"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(one, 1, 12).Draw(t, "steps")
		s1, p1 := replay(t, steps, time.Hour)
		s2, p2 := replay(t, steps, 777*us)
		if d := cmp.Diff(s1, s2) + cmp.Diff(p1, p2); d != "" {
			t.Fatalf("coarse against fine:\n%s", d)
		}
		var sum time.Duration
		for _, u := range s1.Usage {
			sum += u.Graphics
		}
		if sum+s1.Overhead > s1.Now+card.H200().SwitchCost+card.H200().SliceLoss {
			t.Fatalf("%v of work and %v of switches in %v", sum, s1.Overhead, s1.Now)
		}
		for _, p := range p1 {
			if p.Completed > p.Submitted || p.Busy < 0 {
				t.Fatalf("impossible progress %+v", p)
			}
		}
	})
}

// flat is a caller's memory that holds the fuzzer's bytes everywhere.
type flat []byte

func (f flat) ReadAt(b []byte, addr uint64) error {
	if addr == 0 || len(f) == 0 {
		return syscall.EFAULT
	}
	for i := range b {
		b[i] = f[(addr+uint64(i))%uint64(len(f))]
	}
	return nil
}

func (f flat) WriteAt(b []byte, addr uint64) error {
	if addr == 0 || len(f) == 0 {
		return syscall.EFAULT
	}
	for i := range b {
		f[(addr+uint64(i))%uint64(len(f))] = b[i]
	}
	return nil
}

// FuzzCardIoctl: whatever a caller writes, the card neither panics nor hangs, and its account stays right.
func FuzzCardIoctl(f *testing.F) {
	for _, cmd := range []uint32{0xC030462B, 0xC020462B, 0xC0104629, 0xC020462A, 0xC0B8464A, 0xC0384627, 0xC01C4634, 0xC01046D3, 33, 34, 66, 73} {
		f.Add(cmd, uint64(4096), uint8(1), make([]byte, 64))
		f.Add(cmd, uint64(1), uint8(3), []byte{1, 0xd0, 0xc1, 2, 0x40, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, cmd uint32, arg uint64, kind uint8, mem []byte) {
		c := card.New(card.H200())
		p := rm.NewLocal(c, 1)
		x, err := rm.Start(p)
		if err != nil {
			t.Fatal(err)
		}
		fds := []int{x.FD, x.UVM.FD, x.FD + 1}
		file := func(fd int) (card.FileID, bool) { return p.File(fd % 8) }
		id, _ := p.File(fds[int(kind)%len(fds)])
		who := card.Caller{PID: 1, Mem: flat(mem), File: file}
		for i := range 4 {
			c.Ioctl(id, who, cmd, arg+uint64(i))
			c.Ioctl(id, who, nvidia.Cmd(uint8(cmd)+uint8(i), uint32(len(mem))), arg)
			c.Advance(time.Duration(i) * time.Millisecond)
		}
		if s := c.Stats(); s.UsedBytes < 0 || s.FreeBytes < 0 {
			t.Fatalf("the account is wrong: %+v", s)
		}
		p.Kill()
		if s := c.Stats(); s.UsedBytes != 0 || s.Objects != 0 {
			t.Fatalf("left behind: %+v", s)
		}
	})
}
