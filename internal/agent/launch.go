package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout bounds how long a started agent may take to answer.
const startTimeout = 20 * time.Second

// Launcher finds the agent to use and starts one when there is none.
type Launcher struct {
	Sockets []string // where an agent may be, in the order they are tried
	Own     string   // where to start one; empty: do not
	Command []string // what starts it: program and arguments
}

// Client returns a client of a running agent, which it starts if need be.
// Several callers at once start only one.
func (l Launcher) Client(ctx context.Context) (*Client, error) {
	c, err := l.find(ctx)
	if err == nil || l.Own == "" || !errors.Is(err, ErrNoAgent) {
		return c, err
	}
	if err := prepareDir(l.Own); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(l.Own+".start", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	if c, err := l.find(ctx); err == nil || !errors.Is(err, ErrNoAgent) {
		return c, err // somebody was faster
	}
	return l.start(ctx)
}

func (l Launcher) find(ctx context.Context) (*Client, error) {
	var last error
	for _, s := range l.Sockets {
		c := NewClient(s)
		conn, err := c.dial(ctx)
		if err == nil {
			_ = conn.Close()
			return c, nil
		}
		last = err
		if !errors.Is(err, ErrNoAgent) && s == l.Own {
			return nil, err
		}
	}
	return nil, last
}

// start runs the agent in a session of its own, its words in a log file, and
// waits until it answers.
func (l Launcher) start(ctx context.Context) (*Client, error) {
	path := l.Own + ".log"
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(l.Command[0], l.Command[1:]...)
	cmd.Args[0] = programName
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	restore := hideInherited()
	err = cmd.Start()
	restore()
	if err != nil {
		return nil, fmt.Errorf("start an agent: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the agent or with this process
	c := NewClient(l.Own)
	timeout := time.After(startTimeout)
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-ended:
			return nil, fmt.Errorf("the agent did not start: %s (%w; more in %s)", lastLine(path), err, path)
		case <-timeout:
			return nil, fmt.Errorf("the agent does not answer after %v; see %s", startTimeout, path)
		case <-time.After(5 * time.Millisecond):
		}
		conn, err := c.dial(ctx)
		if err == nil {
			_ = conn.Close()
			return c, nil
		}
		if !errors.Is(err, ErrNoAgent) {
			return nil, err
		}
	}
}

// hideInherited keeps the files that this process was given from being given
// on: an agent that outlives it must not hold its caller's pipes and locks.
func hideInherited() (restore func()) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return func() {}
	}
	var hidden []int
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
			hidden = append(hidden, fd)
		}
	}
	return func() {
		for _, fd := range hidden {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) // it was open a moment ago
		}
	}
}

// lastLine is what an agent said before it ended.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "it left no message"
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return strings.TrimPrefix(strings.TrimSpace(string(lines[len(lines)-1])), "penstock: ")
}
