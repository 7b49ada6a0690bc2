package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/engine/kernel"
)

//go:embed workload/loop.cu workload/loop.py
var workloads embed.FS

// chooseCard says which card will be used, and whether it must be emulated.
func (d *demo) chooseCard() (string, error) {
	cards, err := kernel.Discover(kernel.SystemPaths())
	if err == nil && !d.forceEmulated {
		return cards[0].Name, nil
	}
	if err != nil && !errors.Is(err, kernel.ErrNoCard) {
		return "", err
	}
	d.emulated = true
	return "emulated", nil
}

// reexecInNamespace runs the same command where this user may mount: in a
// user and mount namespace of its own, in which it is root.
func reexecInNamespace(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, selfPath(), append(os.Args[1:], "--inside")...)
	cmd.Args[0] = programName
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &exitError{code: exit.ExitCode()}
	case err != nil:
		return fmt.Errorf("an emulated card needs root or user namespaces: %w", err)
	}
	return nil
}

// start serves the card, if it is emulated, and the agent. stop ends both and
// may be called in any case.
func (d *demo) start(ctx context.Context) (stop func(), err error) {
	var started []*process
	stop = func() {
		for i := len(started) - 1; i >= 0; i-- {
			started[i].stop()
		}
	}
	launch := func(ready func() bool, args ...string) error {
		// Not ended by ctx but by stop, after those who use them.
		p, err := startProcess(context.WithoutCancel(ctx), nil, append([]string{selfPath()}, args...)...)
		if err != nil {
			return err
		}
		started = append(started, p)
		return p.await(ctx, ready)
	}
	if err := os.Mkdir(filepath.Dir(d.socket()), 0o700); err != nil {
		return stop, fmt.Errorf("demo: %w", err)
	}
	agentArgs := []string{"agent", "--socket", d.socket(), "--force"}
	if d.emulated {
		marked := func() bool { return unix.Access(filepath.Join(d.cardDir(), "nvidiactl"), unix.R_OK) == nil }
		if err := launch(marked, "emu", "serve", "--dir", d.cardDir()); err != nil {
			return stop, err
		}
		agentArgs = append(agentArgs, "--emulated", d.cardDir())
	}
	answers := func() bool { _, err := agent.NewClient(d.socket()).Status(ctx); return err == nil }
	return stop, launch(answers, agentArgs...)
}

// tenant starts the workload through penstock run.
func (d *demo) tenant(ctx context.Context, seconds int, flags ...string) (*process, error) {
	args := append([]string{selfPath(), "run", "--socket", d.socket()}, flags...)
	args = append(append(args, "--"), d.load.command(seconds)...)
	return startProcess(ctx, d.load.env, args...)
}

// workload is a program that keeps the card busy and prints a loadReport.
type workload struct {
	command func(seconds int) []string
	env     []string
}

// loadReport is what a workload finished.
type loadReport struct {
	Finished  int64 `json:"finished"`
	ElapsedNs int64 `json:"elapsedNs"`
}

// rate is pieces of work a second.
func (r loadReport) rate() float64 { return float64(r.Finished) / (float64(r.ElapsedNs) / 1e9) }

// findWorkload finds something that can keep the card busy.
func (d *demo) findWorkload(ctx context.Context) (workload, error) {
	if d.emulated {
		return workload{command: func(s int) []string {
			return []string{selfPath(), "emu", "tenant", "--dir", d.cardDir(), "--mem", "1Gi", "--depth", "16", "--for", fmt.Sprintf("%ds", s)}
		}}, nil
	}
	for _, name := range []string{"loop.cu", "loop.py"} {
		b, err := workloads.ReadFile("workload/" + name)
		if err == nil {
			err = os.WriteFile(filepath.Join(d.dir, name), b, 0o600)
		}
		if err != nil {
			return workload{}, fmt.Errorf("demo: %w", err)
		}
	}
	env := []string{"CUDA_VISIBLE_DEVICES=0"}
	timed := func(program ...string) workload {
		return workload{env: env, command: func(s int) []string { return append(program[:len(program):len(program)], strconv.Itoa(s)) }}
	}
	loop := filepath.Join(d.dir, "loop")
	for _, nvcc := range []string{"nvcc", "/usr/local/cuda/bin/nvcc"} {
		if exec.CommandContext(ctx, nvcc, "-O2", "-o", loop, loop+".cu").Run() == nil {
			return timed(loop), nil
		}
	}
	for _, lib := range []string{"torch", "cupy"} {
		if exec.CommandContext(ctx, "python3", "-c", "import "+lib).Run() == nil {
			return timed("python3", loop+".py"), nil
		}
	}
	return workload{}, errors.New("nothing here can keep the card busy: install nvcc, PyTorch or CuPy, or use --emulated")
}

// process is a started child whose words are kept.
type process struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	wait     func() error // may be called several times
	done     chan struct{}
}

func startProcess(ctx context.Context, env []string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if args[0] == selfPath() {
		p.cmd.Args[0] = programName
	}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(unix.SIGTERM) }
	p.cmd.WaitDelay = 5 * time.Second
	// The demo ends its children itself, in order; a terminal's interrupt must
	// not take the card away from under the agent.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(args[1:], " "), err)
	}
	p.wait = sync.OnceValue(p.cmd.Wait)
	go func() { defer close(p.done); _ = p.wait() }()
	return p, nil
}

// stop ends the process and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// await waits until ready holds; the process must not end before.
func (p *process) await(ctx context.Context, ready func() bool) error {
	timeout := time.After(20 * time.Second)
	for !ready() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("%s ended: %s", p.cmd.Args[1], oneLine(p.err.String()))
		case <-timeout:
			return fmt.Errorf("%s does not get ready: %s", p.cmd.Args[1], oneLine(p.err.String()))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// report waits for the workload's end and reads what it printed last.
func (p *process) report() (loadReport, error) {
	var r loadReport
	if err := p.wait(); err != nil {
		return r, fmt.Errorf("the workload failed: %w: %s", err, oneLine(p.err.String()))
	}
	lines := bytes.Split(bytes.TrimSpace(p.out.Bytes()), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &r); err != nil || r.ElapsedNs <= 0 || r.Finished <= 0 {
		return r, fmt.Errorf("the workload printed no report: %s", oneLine(p.out.String()))
	}
	return r, nil
}
