package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/sys"
)

// Restart pace: at once when the worker had served, slower when it fails
// before that.
const (
	restartFirst = 10 * time.Millisecond
	restartMost  = time.Second
	reapAfter    = 3 * time.Second // a worker that closed its pair must be gone by then
)

// Hold is the holder's main: it keeps files for the worker and starts a new
// worker whenever the last one died. An adopted holder was started by a worker
// that lost its holder and takes over from it; another starts the first
// worker. Signals that arrive on sigs go to the worker. It returns nil when
// the worker has said that the agent ends.
func Hold(ctx context.Context, log *slog.Logger, self Self, adopted bool, sigs <-chan os.Signal) error {
	h := &holder{log: log, self: self, kept: map[string]int{}, sigs: sigs}
	defer h.close()
	if adopted {
		done, err := h.adopt()
		if done || err != nil {
			return err
		}
		h.log.Warn("the worker died, starting another", "held", len(h.kept))
	}
	return h.supervise(ctx)
}

// adopt serves the worker that started this holder, until it is dead.
func (h *holder) adopt() (done bool, err error) {
	conn, err := inherited()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	cred, err := peerCred(conn)
	if err != nil {
		return false, err
	}
	pidfd, err := sys.OpenProcess(int(cred.Pid))
	if err != nil {
		return false, err
	}
	defer unix.Close(pidfd)
	done = h.serve(conn, int(cred.Pid))
	awaitDeath(pidfd)
	return done, nil
}

// awaitDeath waits until the process has gone, and ends it if it does not go:
// two workers must never answer for the same tenants.
func awaitDeath(pidfd int) {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for range 2 {
		if n, err := unix.Poll(p, int(reapAfter/time.Millisecond)); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	}
}

type holder struct {
	log  *slog.Logger
	self Self
	kept map[string]int
	sigs <-chan os.Signal
	up   bool   // the present worker has served
	why  string // it could not start
}

func (h *holder) close() {
	for _, fd := range h.kept {
		_ = unix.Close(fd)
	}
}

// supervise starts workers until one ends the agent, or one that holds nothing
// fails before it served.
func (h *holder) supervise(ctx context.Context) error {
	pace := restartFirst
	for ctx.Err() == nil {
		h.up, h.why = false, ""
		done, err := h.oneWorker()
		switch {
		case done:
			return nil
		case !h.up && len(h.kept) == 0:
			if h.why != "" {
				return errors.New(h.why)
			}
			return fmt.Errorf("the agent could not start: %w", err)
		case h.up:
			pace = restartFirst
		default:
			pace = min(2*pace, restartMost)
		}
		h.log.Warn("the worker died, starting another", "held", len(h.kept), "exit", err, "why", h.why, "after", pace)
		select {
		case <-ctx.Done():
		case <-time.After(pace):
		}
	}
	return ctx.Err()
}

func (h *holder) oneWorker() (done bool, err error) {
	cmd, conn, err := h.self.start(h.self.Worker)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err = h.handOver(conn); err == nil {
		done = h.serve(conn, cmd.Process.Pid)
	}
	// The pair is closed: the worker is dead or about to be.
	return done, errors.Join(err, reap(cmd))
}

// reap waits for a child that should have ended, and ends it if it has not.
func reap(cmd *exec.Cmd) error {
	t := time.AfterFunc(reapAfter, func() { _ = cmd.Process.Kill() })
	defer t.Stop()
	return cmd.Wait()
}

// handOver gives a new worker everything that is kept.
func (h *holder) handOver(conn *net.UnixConn) error {
	for name, fd := range h.kept {
		if err := writeFrame(conn, pairMessage{Op: opItem, Name: name}, fd); err != nil {
			return fmt.Errorf("hand over %s: %w", name, err)
		}
	}
	return writeFrame(conn, pairMessage{Op: opReady})
}

// serve answers one worker until its end of the pair closes, however it went.
func (h *holder) serve(conn *net.UnixConn, pid int) (done bool) {
	stop, relayed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(relayed)
		h.relay(pid, stop)
	}()
	defer func() { close(stop); <-relayed }()
	for {
		var m pairMessage
		fds, err := readFrame(conn, &m)
		if err != nil {
			return done
		}
		switch m.Op {
		case opBye:
			done = true
		case opUp:
			h.up = true
		case opFail:
			h.why = m.Error
		default:
			err = h.keep(m, fds)
			if err == nil {
				err = writeFrame(conn, pairMessage{Op: opAck})
			}
			if err != nil {
				h.log.Error("lost the worker", "error", err)
				return done
			}
		}
	}
}

func (h *holder) keep(m pairMessage, fds []int) error {
	switch {
	case m.Op == opPark && len(fds) == 1:
		if old, ok := h.kept[m.Name]; ok {
			_ = unix.Close(old)
		}
		h.kept[m.Name] = fds[0]
	case m.Op == opDrop && len(fds) == 0:
		if fd, ok := h.kept[m.Name]; ok {
			_ = unix.Close(fd)
			delete(h.kept, m.Name)
		}
	default:
		closeAll(fds)
		return fmt.Errorf("the worker sent %q with %d files", m.Op, len(fds))
	}
	return nil
}

// relay passes the holder's signals on to the worker.
func (h *holder) relay(pid int, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case s := <-h.sigs:
			if n, ok := s.(unix.Signal); ok {
				_ = unix.Kill(pid, n)
			}
		}
	}
}

// peerCred asks the kernel who is at the other end.
func peerCred(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	if inner != nil {
		return nil, fmt.Errorf("peer credentials: %w", inner)
	}
	return cred, nil
}
