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
	if !due && len(s.ledger.pending) == 0 && s.auditAt.IsZero() {
		s.mu.Unlock()
		return
	}
	pids := map[int]bool{}
	for _, p := range s.ledger.pending {
		pids[p.pid] = true
	}
	audit := !s.auditAt.IsZero() && now.After(s.auditAt)
	if audit {
		s.auditAt = time.Time{}
		if now.Before(s.suspectUntil) {
			s.auditAt = now.Add(sweepEvery)
		}
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
	if due {
		s.swept = now
		s.sweep()
	}
	if audit {
		s.card.audit(s)
	}
}

// suspicious notes that a call runs in the tenant that another thread could
// turn into an allocation. The card is compared with the charges when it has
// had time to run, and for a while after: a tenant can hold its own call up.
// The lock is held.
func (s *Session) suspicious() {
	now := time.Now()
	s.suspectUntil = now.Add(suspectFor)
	s.auditAt = now.Add(unseenWait)
}

const suspectFor = 30 * time.Second

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
type mapping struct{ start, end, offset uint64 }

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
		if p.pid == pid && (p.left || leftMmap(p.pid, p.tid)) {
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
		return p.pid == pid && (gone[p.tid] || seen && m.managedLike())
	})
	if total == 0 {
		delete(s.ledger.mapped, pid)
	} else {
		s.ledger.mapped[pid] = total
	}
	s.record(entryManaged(pid, total))
}

// leftMmap reports that a thread is certainly not inside an mmap call: it is
// gone, or it is blocked in another call. A running one may be about to enter.
func leftMmap(pid, tid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/syscall")
	if err != nil {
		return true
	}
	nr, _, _ := strings.Cut(string(b), " ")
	n, err := strconv.Atoi(nr)
	return err == nil && n != unix.SYS_MMAP
}

// readMaps returns the file mappings of a process by start address. Adjacent
// lines of one file range are joined, as splitting protections does not end a
// managed range.
func readMaps(pid int) (map[uint64]mapping, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
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
	return mapping{start, end, off}, true
}
