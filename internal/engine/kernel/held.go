package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// held is an open driver file of the tenant that something charged lives on: a
// client of the resource manager, or a unified address space. The session
// keeps a duplicate of it, for three reasons: descriptor numbers and processes
// come and go while the file stays the same; the engine's own calls for the
// tenant (time slices) are made on it; and the memory that hangs on it cannot
// come back unnoticed, because the duplicate is the last one.
//
// The duplicate is given up as soon as no process of the tenant has the file
// any more: at once when the process that had it ends, within a second when it
// merely closed it. Only then is its memory refunded.
type held struct {
	id   int // names it in ranges and in the journal
	file File
	pid  int // a process that has it
	fd   int // its number there
}

// fileOps are what the session does with open files; tests replace them.
type fileOps interface {
	dup(File) (File, error)
	close(File)
	same(a, b File) bool
	// find returns a process and descriptor number that lead to the file, not
	// counting this process. It looks at (pid, fd) first, then at all of pid's
	// descriptors, then at those of every process that is under a call filter,
	// as all of a tenant's are.
	find(f File, pid, fd int) (int, int, bool)
}

type systemFiles struct{}

func (systemFiles) dup(f File) (File, error) {
	fd, err := unix.FcntlInt(uintptr(f.FD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return File{}, fmt.Errorf("keep a driver file: %w", err)
	}
	f.FD = fd
	return f, nil
}

func (systemFiles) close(f File) { unix.Close(f.FD) }

func (systemFiles) same(a, b File) bool {
	self := os.Getpid()
	ok, err := sys.SameFile(self, a.FD, self, b.FD)
	return err == nil && ok
}

func (systemFiles) find(f File, pid, fd int) (int, int, bool) {
	self := os.Getpid()
	if ok, err := sys.SameFile(self, f.FD, pid, fd); err == nil && ok {
		return pid, fd, true
	}
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(f.FD))
	if err != nil {
		return 0, 0, false
	}
	if n, ok := findIn(f, link, pid); ok {
		return pid, n, true
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, 0, false
	}
	for _, p := range procs {
		other, err := strconv.Atoi(p.Name())
		if err != nil || other == self || other == pid || !sys.Filtered(other) {
			continue
		}
		if n, ok := findIn(f, link, other); ok {
			return other, n, true
		}
	}
	return 0, 0, false
}

// findIn looks for the file among the descriptors of one process: in every
// thread's table, as threads may have tables of their own and the first one
// may have ended before the others.
func findIn(f File, link string, pid int) (int, bool) {
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return 0, false
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil || (tid != pid && sys.SameTable(pid, tid)) {
			continue
		}
		if n, ok := findInThread(f, link, tid); ok {
			return n, true
		}
	}
	return 0, false
}

func findInThread(f File, link string, tid int) (int, bool) {
	dir := "/proc/" + strconv.Itoa(tid) + "/fd"
	fds, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	self := os.Getpid()
	for _, e := range fds {
		if to, err := os.Readlink(dir + "/" + e.Name()); err != nil || to != link {
			continue
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ok, err := sys.SameFile(self, f.FD, tid, n); err == nil && ok {
			return n, true
		}
	}
	return 0, false
}

// holding returns the held file that f is. The lock is held.
func (s *Session) holding(f File) *held {
	for _, h := range s.held {
		if h.file.Kind == f.Kind && s.ops.same(h.file, f) {
			return h
		}
	}
	return nil
}

// fileOf returns the held file that a client lives on. The lock is held.
func (s *Session) fileOf(client nvidia.Handle) *held {
	c := s.ledger.clients[client]
	if c == nil {
		return nil
	}
	for _, h := range s.held {
		if h.id == c.held {
			return h
		}
	}
	return nil
}

// hold keeps the file that a call was made on. The lock is held.
func (s *Session) hold(k *call) (*held, error) {
	if h := s.holding(k.file); h != nil {
		return h, nil
	}
	if len(s.held) >= maxHeld {
		return nil, errTooMany
	}
	f, err := s.ops.dup(k.file)
	if err != nil {
		return nil, err
	}
	s.lastHeld++
	h := &held{id: s.lastHeld, file: f, pid: k.process(), fd: k.descriptor}
	s.held = append(s.held, h)
	s.record(entryHeld(h))
	return h, nil
}

// Bounds on what one tenant can make the agent keep.
const (
	maxHeld      = 1024
	maxProcesses = 4096
	maxObjects   = 1 << 18
	maxGroups    = 256 // TSGs and bare channel sets
	maxContexts  = 32  // of these, graphics TSGs: each more costs everybody a switch a round
)

var errTooMany = errors.New("more than one tenant may have")

// release gives a held file up and refunds what hung on it. What the card does
// not show as come back stays charged as limbo: the driver may still be
// tearing down, or something the ledger does not know of has a reference.
func (s *Session) release(h *held) {
	s.withdraw(h)
	c := s.card
	c.memory.Lock()
	_, before, err1 := c.control.memory()
	s.ops.close(h.file)
	_, after, err2 := c.control.memory()
	s.mu.Lock()
	held := s.ledger.objects + s.ledger.overhead
	gone := s.ledger.dropHeld(h.id)
	due := held - s.ledger.objects - s.ledger.overhead
	if s.level == Strict && err1 == nil && err2 == nil {
		s.ledger.limbo = max(0, s.ledger.limbo+due-max(0, before-after))
	}
	for i, x := range s.held {
		if x == h {
			s.held = append(s.held[:i], s.held[i+1:]...)
			break
		}
	}
	s.record(entryReleased(h.id))
	s.mu.Unlock()
	c.memory.Unlock()
	c.mourn(gone)
}

// ghostFor is how long the driver may take to tear a client down, after which
// a channel that still exists means that somebody keeps its file where it
// cannot be seen: in a message on its way, in a mapping, in another tenant.
const ghostFor = 3 * time.Second

// mourn takes the groups of a file that was given up out of the governor, but
// for those whose channels the driver still knows: they stay governed as
// before until they are gone.
func (c *Card) mourn(gone freed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range gone {
		if g := o.group; g != nil && o.handle == g.handle && c.groups[g.id] == g {
			g.orphaned = c.clock()
			c.probe(g)
		}
	}
}

// probe asks the driver for a group's channels, by telling it what it was told
// last, and takes the group out when none is left. The lock is held.
func (c *Card) probe(g *group) {
	s := c.owner[g.id]
	if s == nil {
		return
	}
	dead, err := c.control.disable(c.gov.Frozen(s.tenant), g.refs())
	if err == nil {
		c.bury(dead)
	}
	if len(g.channels) == 0 {
		c.remove(g)
	}
}

// exorcise looks at groups whose file was given up, and kills the tenant of
// one that lives on.
func (c *Card) exorcise() {
	c.mu.Lock()
	guilty := map[*Session]bool{}
	for id, g := range c.groups {
		if g.orphaned == 0 {
			continue
		}
		s := c.owner[id]
		if c.probe(g); len(g.channels) > 0 && c.clock()-g.orphaned > ghostFor {
			guilty[s] = true
		}
	}
	c.mu.Unlock()
	for s := range guilty {
		s.violation("channels outlive the last descriptor of their file")
	}
}

// accuse looks, when a tenant is over, for others that have its driver files:
// one tenant must not leave its memory and channels to another, whom nobody
// would charge for them.
func (s *Session) accuse(h *held) {
	pid, _, ok := s.ops.find(h.file, h.pid, h.fd)
	if !ok {
		return
	}
	if heir := s.card.otherSession(pid, s); heir != nil {
		heir.violation("holds a driver file of another tenant")
		return
	}
	// Often just the last process on its way out.
	s.log.Debug("a driver file of a tenant that ended is still open", "tenant", s.tenant, "pid", pid)
}

// withdraw thaws the channels of a file's clients, so that the driver does not
// have to tear down, with its lock held, channels that it would wait for in
// vain.
func (s *Session) withdraw(h *held) {
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gov.Frozen(s.tenant) {
		return
	}
	s.mu.Lock()
	var list []nvidia.ChannelRef
	for _, cl := range s.ledger.clients {
		if cl.held != h.id {
			continue
		}
		for _, o := range cl.objects {
			if o.group != nil && o.handle == o.group.handle {
				list = append(list, o.group.refs()...)
			}
		}
	}
	s.mu.Unlock()
	if _, err := c.control.disable(false, list); err != nil {
		s.log.Debug("thaw before release", "tenant", s.tenant, "err", err)
	}
}

// sweep gives up the files that the tenant has no more, and follows those that
// moved to another number or process.
func (s *Session) sweep() {
	for _, h := range s.heldFiles() {
		pid, fd, ok := s.ops.find(h.file, h.pid, h.fd)
		if !ok {
			s.release(h)
			continue
		}
		s.mu.Lock()
		h.pid, h.fd = pid, fd
		s.mu.Unlock()
		if heir := s.card.otherSession(pid, s); heir != nil {
			heir.violation("holds a driver file of another tenant")
			continue
		}
		if err := s.follow(pid); err != nil {
			s.log.Warn("cannot follow a process", "tenant", s.tenant, "pid", pid, "err", err)
		}
	}
}

// heldFiles lists the held files, address spaces first: what is mapped into
// them refers to objects of the clients.
func (s *Session) heldFiles() []*held {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := append([]*held(nil), s.held...)
	slices.SortStableFunc(list, func(a, b *held) int {
		return int(boolWord(b.file.Kind == UVMFile)) - int(boolWord(a.file.Kind == UVMFile))
	})
	return list
}

// setSlice sets a group's hardware time slice, on the file that owns it. The
// card's lock is held.
func (s *Session) setSlice(g *group, micros uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.fileOf(g.client)
	if h == nil {
		return fmt.Errorf("client %#x of a group, or its file, is gone", uint32(g.client))
	}
	params := make([]byte, nvidia.SizeTimeslice)
	if err := (nvidia.Timeslice{Micros: micros}).Put(params); err != nil {
		return err
	}
	return s.card.control.controlOn(h.file, g.client, g.handle, nvidia.CtrlTSGSetTimeslice, params)
}
