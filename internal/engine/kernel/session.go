package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// process is a thread group of the tenant that has called the driver.
type process struct {
	pid   int
	pidfd int
	// exited is set when it is gone but the driver still lists it: another
	// process of the tenant holds its files.
	exited bool
}

// counters are what a session reports about the calls it served.
type counters struct {
	calls, proxied, continued, refused, overQuota, unknown atomic.Uint64
}

// Session serves the calls of one tenant: all processes that run under one
// listener.
type Session struct {
	table    *nvidia.Table
	driver   Driver
	files    *locator
	card     *Card
	log      *slog.Logger
	listener *os.File
	tenant   governor.TenantID
	arena    *sys.Arena
	recorder *Recorder
	// reopen duplicates descriptor fd of a tenant process for one call.
	reopen func(pid, fd int) (File, func(), error)

	level    Level
	lost     *flight // taken by a predecessor and never answered
	again    bool    // the call being served may have been executed before
	stopping atomic.Bool
	count    counters
	threads  threads
	roots    []rooted
	poll     poller

	mu      sync.Mutex
	ledger  *ledger
	journal *journal
	procs   map[int]*process
	unseen  map[rangeKey]bool // mapped but not looked at yet: true for a unified-memory file
	refusal map[string]uint64
	broken  string // violation that ended the session
}

// serveWait is how long the loop sleeps at most between looks at what it
// promised to look at.
const (
	idleWait    = time.Second
	unseenWait  = time.Millisecond
	maxRefusals = 256 // different texts kept
)

// Run serves calls until the last task of the tenant is gone (nil) or ctx
// ends, in which case the listener stays as it is for a successor.
func (s *Session) Run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the thread's capabilities are gone
	if err := sys.DropToProxy(); err != nil {
		return fmt.Errorf("session %s: %w", s.tenant, err)
	}
	stop := context.AfterFunc(ctx, func() { s.stopping.Store(true); s.poll.interrupt() })
	defer stop()
	defer s.threads.closeAll()
	if err := s.resume(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		ready, err := s.poll.wait(s.patience())
		if err != nil {
			return fmt.Errorf("session %s: %w", s.tenant, err)
		}
		for _, pid := range ready.exited {
			s.exit(pid)
		}
		if ready.call {
			if err := s.next(); err != nil {
				return err
			}
		} else if ready.hangup {
			s.finish()
			return nil
		}
		s.look()
	}
	return nil
}

func (s *Session) patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unseen) > 0 {
		return unseenWait
	}
	return idleWait
}

// next takes one call and answers it.
func (s *Session) next() error {
	fd := int(s.listener.Fd())
	n, err := sys.Receive(fd)
	if errors.Is(err, sys.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", s.tenant, err)
	}
	if s.journal != nil {
		s.journal.taken(n)
	}
	return s.answer(n)
}

// answer serves one call and answers it.
func (s *Session) answer(n sys.Notification) error {
	fd := int(s.listener.Fd())
	th, err := s.threads.get(n.TID)
	if err != nil || !sys.Valid(fd, n.ID) {
		// The thread died, or its id was taken over while we looked.
		return s.reply(n.ID, fail(unix.EINTR))
	}
	if err := s.meet(th); err != nil {
		s.log.Warn("cannot follow a process", "tenant", s.tenant, "pid", th.tgid, "err", err)
		return s.reply(n.ID, fail(unix.EPERM))
	}
	var c caller = &trapped{thread: th, listener: fd, id: n.ID, files: s.files}
	if s.recorder == nil {
		return s.reply(n.ID, s.serve(c, n))
	}
	c, finish := s.recorder.begin(c, n)
	a := s.serve(c, n)
	finish(a)
	return s.reply(n.ID, a)
}

func (s *Session) reply(id uint64, a answer) error {
	fd := int(s.listener.Fd())
	var err error
	if a.cont {
		err = sys.Continue(fd, id)
	} else {
		err = sys.Answer(fd, id, a.value, a.errno)
	}
	if err != nil && !errors.Is(err, sys.ErrGone) {
		return fmt.Errorf("session %s: %w", s.tenant, err)
	}
	return nil
}

// meet registers the process of a thread on its first call.
func (s *Session) meet(th *thread) error {
	s.mu.Lock()
	p := s.procs[th.tgid]
	s.mu.Unlock()
	if p != nil {
		if !p.exited {
			return nil
		}
		s.settleExit(p) // the id was taken over by a new process
	}
	fd, err := sys.OpenProcess(th.tgid)
	if err != nil {
		return err
	}
	if err := s.poll.addProcess(fd, th.tgid); err != nil {
		unix.Close(fd)
		return err
	}
	s.mu.Lock()
	s.procs[th.tgid] = &process{pid: th.tgid, pidfd: fd}
	s.mu.Unlock()
	return nil
}

// exit refunds what died with a process, unless the driver says that its
// files live on in another one.
func (s *Session) exit(pid int) {
	s.mu.Lock()
	p := s.procs[pid]
	s.mu.Unlock()
	if p == nil {
		return
	}
	if !p.exited {
		s.poll.removeProcess(p.pidfd)
		unix.Close(p.pidfd)
		p.pidfd = -1
		p.exited = true
	}
	if held, err := s.card.control.holders(); err == nil && held[pid] {
		return
	}
	s.settleExit(p)
}

func (s *Session) settleExit(p *process) {
	s.mu.Lock()
	gone := s.ledger.dropProcess(p.pid)
	s.record(entryExit(p.pid))
	delete(s.procs, p.pid)
	for k := range s.unseen {
		if k.pid == p.pid {
			delete(s.unseen, k)
		}
	}
	s.mu.Unlock()
	s.roots = deleteRoots(s.roots, p.pid)
	s.retire(0, gone)
}

func deleteRoots(list []rooted, pid int) []rooted {
	out := list[:0]
	for _, r := range list {
		if r.pid != pid {
			out = append(out, r)
		}
	}
	return out
}

// finish ends the session after its last task is gone: everything is refunded
// and the tenant leaves the governor.
func (s *Session) finish() {
	s.mu.Lock()
	pids := make([]int, 0, len(s.procs))
	for pid := range s.procs {
		pids = append(pids, pid)
	}
	s.mu.Unlock()
	for _, pid := range pids {
		s.mu.Lock()
		p := s.procs[pid]
		s.mu.Unlock()
		if p.pidfd >= 0 {
			unix.Close(p.pidfd)
		}
		s.settleExit(p)
	}
	s.card.leave(s.tenant)
}

// holdsClient reports whether a client was made on r that still lives.
func (s *Session) holdsClient(r rooted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.ledger.clients {
		if c.pid == r.pid && c.fd == r.fd {
			return true
		}
	}
	return false
}

// violation ends a tenant that was caught breaking the boundary.
func (s *Session) violation(what string) {
	s.log.Error("tenant broke the boundary and is killed", "tenant", s.tenant, "what", what)
	s.mu.Lock()
	s.broken = what
	pids := make([]*process, 0, len(s.procs))
	for _, p := range s.procs {
		pids = append(pids, p)
	}
	s.mu.Unlock()
	s.refused("violation: " + what)
	for _, p := range pids {
		if p.pidfd >= 0 {
			_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
		}
	}
}

// refused counts a refusal by its text.
func (s *Session) refused(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusedLocked(why)
}

func (s *Session) refusedLocked(why string) {
	s.count.refused.Add(1)
	if s.refusal[why] == 0 {
		if len(s.refusal) >= maxRefusals {
			why = "other"
		}
		s.log.Info("call refused", "tenant", s.tenant, "why", why)
	}
	s.refusal[why]++
}

// maxJournal is when the journal is rewritten to what is still true.
const maxJournal = 8 << 20

// record appends to the journal. The lock is held. Without a journal (tests,
// recordings) nothing is kept.
func (s *Session) record(e entry) {
	if s.journal == nil {
		return
	}
	err := s.journal.append(e)
	if err == nil && s.journal.end > maxJournal {
		err = s.journal.rewrite(s.ledger.entries())
	}
	if err != nil {
		s.log.Error("journal", "tenant", s.tenant, "err", err)
	}
}
