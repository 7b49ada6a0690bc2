package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The parts of `penstock top --json --once` that are used here.
type (
	topStatus struct {
		PID     int         `json:"pid"`
		Holder  int         `json:"holder"`
		Cards   []topCard   `json:"cards"`
		Tenants []topTenant `json:"tenants"`
	}
	topCard struct {
		Name     string `json:"name"`
		Driver   string `json:"driver"`
		Charged  int64  `json:"chargedBytes"`
		Promised int64  `json:"promisedBytes"`
		Drift    int64  `json:"driftBytes"`
	}
	topTenant struct {
		Name    string `json:"name"`
		PIDs    []int  `json:"pids"`
		Used    int64  `json:"usedBytes"`
		Limit   int64  `json:"limitBytes"`
		Frozen  bool   `json:"frozen"`
		Calls   uint64 `json:"calls"`
		Refused uint64 `json:"refused"`
	}
)

// clean says that nothing is promised, held or charged.
func (s topStatus) clean() bool {
	for _, c := range s.Cards {
		if c.Charged != 0 || c.Promised != 0 {
			return false
		}
	}
	return len(s.Tenants) == 0
}

// agent is the penstock agent of this bench, on a socket of its own.
type agent struct {
	penstock, socket string
	level            string
	proc             *worker
}

// startAgent starts the agent and waits until it answers.
func startAgent(ctx context.Context, c config, dir string) (*agent, error) {
	a := &agent{penstock: c.penstock, socket: filepath.Join(dir, "agent.sock"), level: c.level}
	argv := []string{c.penstock, "agent", "--force", "--socket", a.socket, "--state", filepath.Join(dir, "state")}
	if c.emulated != "" {
		argv = append(argv, "--emulated", c.emulated)
	}
	if c.cycle > 0 {
		argv = append(argv, "--cycle", c.cycle.String())
	}
	proc, err := launch("penstock agent", argv, nil)
	if err != nil {
		return nil, err
	}
	a.proc = proc
	if _, err := a.awaitTop(ctx, 20*time.Second, func(topStatus) bool { return true }); err != nil {
		err = fmt.Errorf("penstock agent does not answer: %w%s", err, proc.noise.tail())
		proc.kill()
		return nil, err
	}
	return a, nil
}

// top asks for the status.
func (a *agent) top(ctx context.Context) (topStatus, error) {
	out, err := runOnce(ctx, 10*time.Second, a.penstock, "top", "--json", "--once", "--socket", a.socket)
	if err != nil {
		return topStatus{}, err
	}
	var s topStatus
	if err := json.Unmarshal(out, &s); err != nil {
		return topStatus{}, fmt.Errorf("penstock top --json: %w", err)
	}
	return s, nil
}

// awaitTop asks until the status is as wanted.
func (a *agent) awaitTop(ctx context.Context, within time.Duration, wanted func(topStatus) bool) (topStatus, error) {
	deadline := time.Now().Add(within)
	for {
		s, err := a.top(ctx)
		if err == nil && wanted(s) {
			return s, nil
		}
		if err == nil {
			err = errors.New("status stays otherwise than wanted")
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return s, fmt.Errorf("after %v: %w", within, err)
		}
		if e := pause(ctx, 50*time.Millisecond); e != nil {
			return s, e
		}
	}
}

// stop ends the agent: both of its processes, which restart each other, whoever
// of them is the child of this bench.
func (a *agent) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := a.top(ctx)
	if err == nil && s.PID > 0 {
		_ = syscall.Kill(s.PID, syscall.SIGTERM) // the orderly way
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && alive(s.PID, s.Holder); {
		time.Sleep(50 * time.Millisecond)
	}
	for _, pid := range []int{s.Holder, s.PID} {
		if err == nil && pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	a.proc.kill()
}

// alive says whether any of the processes is there.
func alive(pids ...int) bool {
	for _, pid := range pids {
		if pid > 0 && syscall.Kill(pid, 0) == nil {
			return true
		}
	}
	return false
}

// commandOf is the command line of a tenant: the bare program, or the program
// under `penstock run`.
func (b *bench) commandOf(t tenant, index int) []string {
	if t.grant == nil {
		return t.argv
	}
	return append(b.agent.runArgs(*t.grant, fmt.Sprintf("%s-%d", t.workload, index)), t.argv...)
}

// runArgs is `penstock run` with its flags, up to the program.
func (a *agent) runArgs(g grant, name string) []string {
	argv := []string{a.penstock, "run", "--socket", a.socket, "--name", name}
	add := func(flag, value string) {
		if value != "" {
			argv = append(argv, flag, value)
		}
	}
	add("--policy", g.policy)
	add("--priority", g.priority)
	add("--mem", g.memory)
	add("--level", a.level)
	if g.compute > 0 {
		add("--compute", strconv.FormatFloat(g.compute, 'f', -1, 64)+"%")
	}
	if g.weight > 0 {
		add("--weight", strconv.Itoa(g.weight))
	}
	return append(argv, "--")
}

// pause sleeps unless the bench is told to end.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// absolute makes the path of a program independent of the working directory.
func absolute(path string) (string, error) {
	p, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if _, err := os.Stat(p); err != nil {
		return "", err
	}
	return p, nil
}
