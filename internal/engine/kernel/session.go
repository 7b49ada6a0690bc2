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
}

// counters are what a session reports about the calls it served.
type counters struct {
	calls, proxied, continued, refused, overQuota, unknown atomic.Uint64
	serving, driving                                       atomic.Int64 // nanoseconds
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
	level    Level
	lost     *flight // taken by a predecessor and never answered
	resumed  bool    // the call being served is one that a predecessor took
	again    bool    // and the driver may have executed it
	stopping atomic.Bool
	count    counters
	threads  threads
	poll     poller
	ops      fileOps
	swept    time.Time // last look for closed files

	mu       sync.Mutex
	ledger   *ledger
	journal  *journal
	procs    map[int]*process
	held     []*held
	lastHeld int
	suspect  bool // the call being served could become an allocation in the tenant
	refusal  map[string]uint64
	broken   string // violation that ended the session
}

// How long the loop sleeps at most: idle, and while a mapping that was let
// through has not been seen yet.
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
	sys.WakeInPlace(int(s.listener.Fd()))
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
	if len(s.ledger.pending) > 0 {
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
	start := time.Now()
	defer func() { s.count.serving.Add(int64(time.Since(start))) }()
	var c caller = &trapped{thread: th, listener: fd, id: n.ID, files: s.files}
	finish := func(answer) {}
	if s.recorder != nil {
		c, finish = s.recorder.begin(c, n)
	}
	s.suspect = false
	a := s.serve(c, n)
	finish(a)
	if !s.suspect || !a.cont {
		return s.reply(n.ID, a)
	}
	before := s.card.unexplained()
	if err := s.reply(n.ID, a); err != nil {
		return err
	}
	s.watch(th, n, before)
	return nil
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
	for i := range s.ledger.pending {
		if p := &s.ledger.pending[i]; p.tid == th.tid {
			p.left = true // it makes another call, so its last one has ended
		}
	}
	s.mu.Unlock()
	return s.follow(th.tgid)
}

// follow watches a process for its end.
func (s *Session) follow(pid int) error {
	s.mu.Lock()
	known, n := s.procs[pid] != nil, len(s.procs)
	s.mu.Unlock()
	if known {
		return nil
	}
	if n >= maxProcesses {
		return errTooMany
	}
	fd, err := sys.OpenProcess(pid)
	if err != nil {
		return err
	}
	if err := s.poll.addProcess(fd, pid); err != nil {
		unix.Close(fd)
		return err
	}
	s.mu.Lock()
	s.procs[pid] = &process{pid: pid, pidfd: fd}
	s.mu.Unlock()
	return nil
}

// exit forgets a process that ended, and gives up the files that nobody else
// has.
func (s *Session) exit(pid int) {
	s.inherit(pid)
	s.mu.Lock()
	p := s.procs[pid]
	delete(s.procs, pid)
	s.ledger.dropProcess(pid)
	s.record(entryManaged(pid, 0))
	s.mu.Unlock()
	if p == nil {
		return
	}
	s.poll.removeProcess(p.pidfd)
	unix.Close(p.pidfd)
	if _, over := s.poll.state(); over {
		return // nobody is left who could have the files: finish gives them up
	}
	s.sweep()
}

// finish ends the session after its last task is gone: everything is refunded
// and the tenant leaves the governor.
func (s *Session) finish() {
	s.card.leave(s.tenant)
	s.mu.Lock()
	procs := s.procs
	s.procs = map[int]*process{}
	s.mu.Unlock()
	for _, p := range procs {
		s.poll.removeProcess(p.pidfd)
		unix.Close(p.pidfd)
		s.mu.Lock()
		s.ledger.dropProcess(p.pid)
		s.mu.Unlock()
	}
	for _, h := range s.heldFiles() {
		s.accuse(h)
		s.release(h)
	}
	s.mu.Lock()
	s.ledger.limbo = 0 // there is nobody left to charge
	s.mu.Unlock()
	s.card.forget(s)
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
		_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
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
	if s.refusal[why] == 0 && len(s.refusal) >= maxRefusals {
		why = "other"
	}
	if s.refusal[why]++; s.refusal[why] == 1 {
		s.log.Info("call refused", "tenant", s.tenant, "why", why)
	}
}

// minJournal is the size, in bytes, below which a journal is never rewritten
// to what is still true; above, it is when it has doubled since the last time.
const minJournal = 8 << 20

// record appends to the journal. The lock is held. Without a journal (tests,
// recordings) nothing is kept.
func (s *Session) record(e entry) {
	if s.journal == nil {
		return
	}
	err := s.journal.append(e)
	if err == nil && s.journal.end > max(minJournal, 2*s.journal.live) {
		err = s.journal.rewrite(s.entries())
	}
	if err != nil {
		s.log.Error("journal", "tenant", s.tenant, "err", err)
	}
}
