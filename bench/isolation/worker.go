package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	stopGrace = 10 * time.Second // from QUIT to SIGKILL
	noiseKept = 12               // last lines kept for error texts
)

// worker is one child process, with all it starts, in a process group of its
// own. Nobody but its owner may call its methods.
type worker struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan line // closed when the child's output ends
	gone  chan struct{}
	err   error // of Wait; read after gone
	noise *noiseLog
}

// launch starts argv. The child reads orders from a pipe and so leaves when
// this process dies.
func launch(name string, argv, env []string) (*worker, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	w := &worker{name: name, cmd: cmd, stdin: stdin, lines: make(chan line, 64),
		gone: make(chan struct{}), noise: &noiseLog{}}
	cmd.Stderr = w.noise
	cmd.WaitDelay = time.Second // a grandchild that keeps stderr open must not hold us
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go w.read(stdout)
	return w, nil
}

// read passes the child's lines on until its output ends, then reaps it.
func (w *worker) read(stdout io.Reader) {
	s := bufio.NewScanner(stdout)
	s.Buffer(make([]byte, 4096), 1<<20)
	for s.Scan() {
		l := parseLine(s.Text())
		if l.kind == noise {
			w.noise.add(l.text)
			continue
		}
		w.lines <- l
	}
	close(w.lines)
	w.err = w.cmd.Wait()
	close(w.gone)
}

// await returns the next line of the kind, skipping ticks. An ERROR line, the
// child's end and the timeout are errors.
func (w *worker) await(ctx context.Context, kind lineKind, timeout time.Duration) (line, error) {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return line{}, fmt.Errorf("%s: %w", w.name, ctx.Err())
		case <-t.C:
			return line{}, fmt.Errorf("%s: nothing for %v%s", w.name, timeout, w.noise.tail())
		case l, ok := <-w.lines:
			switch {
			case !ok:
				return line{}, w.ended()
			case l.kind == kind:
				return l, nil
			case l.kind == isError:
				return line{}, fmt.Errorf("%s: %s", w.name, l.text)
			}
		}
	}
}

// ended is the error of a child whose output ended too early.
func (w *worker) ended() error {
	select {
	case <-w.gone:
	case <-time.After(time.Second):
		return fmt.Errorf("%s: output ended%s", w.name, w.noise.tail())
	}
	if w.err != nil {
		return fmt.Errorf("%s: %w%s", w.name, w.err, w.noise.tail())
	}
	return fmt.Errorf("%s: left early%s", w.name, w.noise.tail())
}

// send gives an order.
func (w *worker) send(text string) error {
	if _, err := io.WriteString(w.stdin, text); err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// stop asks the child to leave and sees that it and its group are gone.
func (w *worker) stop() {
	_, _ = io.WriteString(w.stdin, "QUIT\n") // a dead child is what we want
	_ = w.stdin.Close()
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	w.drain(t.C)
	w.kill()
}

// terminate asks the child to end by signal, for programs that take no orders,
// and sees that its group is gone.
func (w *worker) terminate() {
	_ = syscall.Kill(w.cmd.Process.Pid, syscall.SIGTERM) // a dead child is what we want
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	w.drain(t.C)
	w.kill()
}

// kill ends the whole group at once and waits until the child is reaped.
func (w *worker) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL) // ESRCH: nothing is left
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	w.drain(t.C)
}

// drain throws lines away until the child is gone or the time is up.
func (w *worker) drain(late <-chan time.Time) {
	lines := w.lines
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				lines = nil
			}
		case <-w.gone:
			return
		case <-late:
			return
		}
	}
}

// noiseLog keeps the last lines of a child that are not of the protocol.
type noiseLog struct {
	mu   sync.Mutex
	kept []string
}

// Write takes the child's standard error.
func (n *noiseLog) Write(p []byte) (int, error) {
	for s := range strings.Lines(string(p)) {
		n.add(s)
	}
	return len(p), nil
}

func (n *noiseLog) add(s string) {
	if s = strings.TrimSpace(s); s == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept = append(n.kept, s); len(n.kept) > noiseKept {
		n.kept = n.kept[1:]
	}
}

// tail is the last of it as the end of an error text.
func (n *noiseLog) tail() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.kept) == 0 {
		return ""
	}
	last := strings.Join(n.kept[max(0, len(n.kept)-3):], " | ")
	if len(last) > 400 {
		last = last[len(last)-400:]
	}
	return ": " + last
}

// runOnce runs a program to its end and returns its standard output.
func runOnce(ctx context.Context, timeout time.Duration, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return nil, fmt.Errorf("%s: %w: %.300s", argv[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return nil, fmt.Errorf("%s: %w", argv[0], err)
}
