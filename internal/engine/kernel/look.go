package kernel

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// look does what the loop promised to look at: what became of mappings that
// were let through, and processes whose files may have died since.
func (s *Session) look() {
	s.mu.Lock()
	pending := map[int]bool{}
	for k := range s.unseen {
		pending[k.pid] = true
	}
	var exited []int
	for pid, p := range s.procs {
		if p.exited {
			exited = append(exited, pid)
		}
	}
	s.mu.Unlock()
	for pid := range pending {
		s.inspect(pid)
	}
	for _, pid := range exited {
		s.exit(pid)
	}
}

// reclaim looks for memory that came back without a call, before a request is
// refused for want of it. It reports whether there was any.
func (s *Session) reclaim() bool {
	s.mu.Lock()
	before := s.ledger.charged()
	pids := map[int]bool{}
	for k := range s.ledger.ranges {
		pids[k.pid] = true
	}
	s.mu.Unlock()
	for pid := range pids {
		s.inspect(pid)
	}
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.charged() < before
}

// mapping is one line of /proc/PID/maps.
type mapping struct{ start, end, offset uint64 }

// managedLike reports whether the mapping can be a managed range: the driver
// insists on offset == address.
func (m mapping) managedLike() bool { return m.start == m.offset }

// inspect compares the managed ranges that are booked for a process with its
// address space. A mapping that was let through and has become something else
// is refunded, and so is one that was unmapped.
func (s *Session) inspect(pid int) {
	maps, err := readMaps(pid)
	if err != nil {
		return // exiting: its end refunds all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.ledger.ranges {
		if k.pid != pid {
			continue
		}
		m, ok := maps[k.base]
		if ok && m.managedLike() {
			continue
		}
		if _, fresh := s.unseen[k]; fresh && !ok && s.inMmap(pid) {
			continue // it has not run yet
		}
		s.ledger.dropManaged(k)
		s.record(entryManaged(k, 0))
	}
	for k := range s.unseen {
		if k.pid == pid && !s.inMmap(pid) {
			delete(s.unseen, k)
		}
	}
}

// inMmap reports whether a thread of the process is still inside an mmap call
// that was let through, so that its outcome cannot be seen yet.
func (s *Session) inMmap(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/syscall")
		if err == nil && strings.HasPrefix(string(b), strconv.Itoa(unix.SYS_MMAP)+" ") {
			return true
		}
	}
	return false
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

// setSlice sets a group's hardware time slice, on the file that owns it.
func (s *Session) setSlice(g *group, d time.Duration) error {
	s.mu.Lock()
	c := s.ledger.clients[g.client]
	s.mu.Unlock()
	if c == nil {
		return fmt.Errorf("client %#x of a group is gone", uint32(g.client))
	}
	f, done, err := s.reopen(c.pid, c.fd)
	if err != nil {
		return err
	}
	defer done()
	params := make([]byte, nvidia.SizeTimeslice)
	if err := (nvidia.Timeslice{Micros: uint64(d.Microseconds())}).Put(params); err != nil {
		return err
	}
	return s.card.control.controlOn(f, g.client, g.handle, nvidia.CtrlTSGSetTimeslice, params)
}
