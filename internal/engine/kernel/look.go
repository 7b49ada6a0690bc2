package kernel

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/sys"
)

// sweepEvery is how often files that the tenant may have closed are looked for.
const sweepEvery = time.Second

// look does what the loop promised to look at: what became of mappings that
// were let through, what may have been turned into something else by another
// thread, and files that the tenant has no more.
func (s *Session) look() {
	now := time.Now()
	s.mu.Lock()
	if s.swept.IsZero() {
		s.swept = now
	}
	due := now.Sub(s.swept) >= sweepEvery
	if !due && len(s.ledger.pending) == 0 {
		s.mu.Unlock()
		return
	}
	pids := map[int]bool{}
	for _, p := range s.ledger.pending {
		pids[p.pid] = true
	}
	if due {
		for pid := range s.ledger.mapped {
			pids[pid] = true
		}
	}
	s.mu.Unlock()
	for pid := range pids {
		s.inspect(pid)
	}
	if !due {
		return
	}
	s.swept = now
	s.sweep()
}

// Bounds on how long a call that runs in the tenant, and that another thread
// could turn into an allocation, is waited for. No driver call of that kind
// takes a millisecond of a processor; a tenant that holds its own call up for
// longer than the second bound means to.
const (
	watchRun     = time.Millisecond
	watchBlocked = time.Second
)

// watch waits until a suspicious call has ended, and compares the card with the
// charges before any other call of the tenant is served: whatever the call was
// turned into cannot have been used. before is the drift when it was let go.
func (s *Session) watch(th *thread, n sys.Notification, before int64) {
	ran := runTime(th.tgid, th.tid)
	for start := time.Now(); ; time.Sleep(50 * time.Microsecond) {
		call, running, ok := inCall(th.tgid, th.tid)
		if !ok || (running && runTime(th.tgid, th.tid)-ran >= watchRun) {
			break
		}
		waits, _ := s.poll.state()
		same := call.nr == n.NR && call.args == [3]uint64(n.Args[:3])
		if !running && (!same || waits) {
			break // blocked elsewhere, or in a call like this one that waits for us
		}
		if time.Since(start) > watchBlocked {
			if !running {
				s.violation("a call that must run in the tenant was held up")
			}
			break
		}
	}
	// Managed pages move on their own; what they may hold is left out of both.
	grown := s.card.unexplained() - max(before, 0)
	if grown <= 0 {
		return
	}
	s.mu.Lock()
	s.ledger.limbo += grown
	s.mu.Unlock()
	if grown > watchSlack {
		s.violation(fmt.Sprintf("%d bytes of device memory appeared while a call ran in the tenant", grown))
	}
}

// watchSlack is how much may appear, in bytes, without proof of bad intent while
// a client or an OS descriptor is made: others' contexts are charged when they
// are made and taken a little later. It is charged all the same, and must fit
// the tenant's limit before such a call is let go.
const watchSlack = 16 << 20

// runTime is how long a thread has been on a processor, as of the last clock
// tick.
func runTime(pid, tid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/schedstat")
	if err != nil {
		return 0
	}
	word, _, _ := strings.Cut(string(b), " ")
	n, _ := strconv.ParseInt(word, 10, 64)
	return time.Duration(n)
}

// suspicious notes that the call being served runs in the tenant and could be
// turned into an allocation by another thread.
func (s *Session) suspicious() { s.suspect = s.level == Strict }

// reclaim looks for memory that came back without a call, before a request is
// refused for want of it. It reports whether there was any.
func (s *Session) reclaim() bool {
	s.mu.Lock()
	before := s.ledger.charged()
	pids := map[int]bool{}
	for pid := range s.ledger.mapped {
		pids[pid] = true
	}
	for _, p := range s.ledger.pending {
		pids[p.pid] = true
	}
	s.mu.Unlock()
	for pid := range pids {
		s.inspect(pid)
	}
	s.sweep()
	s.card.settleLimbo()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.charged() < before
}

// mapping is one line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
	path               string
}

// managedLike reports whether the mapping can be a managed range: the driver
// insists on offset == address.
func (m mapping) managedLike() bool { return m.start == m.offset }

// inspect charges a process for the managed ranges that its address space
// shows. A mapping that was let through stays charged on its own until it is
// seen there, or its thread is seen to have left the call.
func (s *Session) inspect(pid int) {
	s.mu.Lock()
	gone := map[int]bool{}
	for _, p := range s.ledger.pending {
		call, running, ok := inCall(p.pid, p.tid)
		if p.pid == pid && (p.left || !ok || (!running && call.nr != unix.SYS_MMAP)) {
			gone[p.tid] = true
		}
	}
	s.mu.Unlock()
	maps, err := readMaps(pid)
	if err != nil {
		return // exiting: its end refunds all
	}
	var total int64
	for _, m := range maps {
		if m.managedLike() {
			total += int64(m.end - m.start)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.pending = slices.DeleteFunc(s.ledger.pending, func(p pendingMap) bool {
		m, seen := maps[p.base]
		// An older, shorter range may lie at the same address.
		whole := seen && m.managedLike() && int64(m.end-m.start) >= p.bytes
		return p.pid == pid && (gone[p.tid] || whole)
	})
	if total == 0 {
		delete(s.ledger.mapped, pid)
	} else {
		s.ledger.mapped[pid] = total
	}
	s.record(entryManaged(pid, total))
}

// blockedCall is the system call that a thread is blocked in.
type blockedCall struct {
	nr   int
	args [3]uint64
}

// inCall says what a thread is blocked in. A running thread may be on its way
// into or out of a call; ok is false for one that is gone.
func inCall(pid, tid int) (call blockedCall, running, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/syscall")
	if err != nil {
		return call, false, false
	}
	f := strings.Fields(string(b))
	if len(f) < 4 {
		return call, true, true // "running"
	}
	if call.nr, err = strconv.Atoi(f[0]); err != nil {
		return call, true, true
	}
	for i := range call.args {
		call.args[i], _ = strconv.ParseUint(strings.TrimPrefix(f[1+i], "0x"), 16, 64)
	}
	return call, false, true
}

// readMaps returns the file mappings of a process by start address. Adjacent
// lines of one file range are joined, as splitting protections does not end a
// managed range.
//
// The first thread may have ended before the others, and shows nothing then.
func readMaps(pid int) (map[uint64]mapping, error) {
	tid := pid
	if tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task"); err == nil && len(tasks) > 0 {
		tid, _ = strconv.Atoi(tasks[len(tasks)-1].Name())
	}
	f, err := os.Open("/proc/" + strconv.Itoa(tid) + "/maps")
	if err != nil {
		return nil, fmt.Errorf("address space of %d: %w", pid, err)
	}
	defer f.Close()
	out := map[uint64]mapping{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		m, ok := parseMapping(sc.Text())
		if ok {
			out[m.start] = m
		}
	}
	return out, nil
}

// parseMapping reads "start-end perms offset dev inode path"; anonymous lines
// (inode 0) are of no interest.
func parseMapping(line string) (mapping, bool) {
	f := strings.Fields(line)
	if len(f) < 5 || f[4] == "0" {
		return mapping{}, false
	}
	a, b, ok := strings.Cut(f[0], "-")
	start, err1 := strconv.ParseUint(a, 16, 64)
	end, err2 := strconv.ParseUint(b, 16, 64)
	off, err3 := strconv.ParseUint(f[2], 16, 64)
	if !ok || err1 != nil || err2 != nil || err3 != nil {
		return mapping{}, false
	}
	m := mapping{start: start, end: end, offset: off}
	if len(f) > 5 {
		m.path = f[5]
	}
	return m, true
}

// inherit looks, when a process with managed ranges ends, for others that have
// them too: its address space may have been shared with a process that never
// called the driver itself.
func (s *Session) inherit(pid int) {
	s.mu.Lock()
	had := s.ledger.mapped[pid] > 0
	for _, p := range s.ledger.pending {
		had = had || p.pid == pid
	}
	s.mu.Unlock()
	if _, over := s.poll.state(); !had || over {
		return
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range procs {
		other, err := strconv.Atoi(e.Name())
		if err != nil || other == pid || other == os.Getpid() || !sys.Filtered(other) || s.card.otherSession(other, s) != nil {
			continue
		}
		maps, err := readMaps(other)
		if err != nil {
			continue
		}
		for _, m := range maps {
			if m.managedLike() && strings.HasSuffix(m.path, "nvidia-uvm") {
				if err := s.follow(other); err == nil {
					s.inspect(other)
				}
				break
			}
		}
	}
}
