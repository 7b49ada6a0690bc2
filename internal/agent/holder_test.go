package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary one of the processes of the pair; its value is
// a directory in which the worker leaves notes.
const roleEnv = "PENSTOCK_TEST_PAIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(roleEnv); dir != "" {
		if err := pairRole(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// pairRole is the agent without its work: the worker parks a pipe on each
// SIGUSR1, tells what it has on SIGUSR2 and says bye on SIGTERM.
func pairRole(dir string, args []string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	self := Self{Path: "/proc/self/exe", Holder: []string{"holder"}, Worker: []string{"worker"}}
	if _, err := os.Stat(filepath.Join(dir, "end")); err == nil {
		return nil
	}
	if _, err := os.Stat(dir); err != nil {
		return err // the test is over
	}
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	if len(args) == 0 || args[0] != "worker" {
		note(dir, "holder", os.Getpid())
		return Hold(context.Background(), log, self, len(args) > 0, sigs)
	}
	if _, err := os.Stat(filepath.Join(dir, "broken")); err == nil {
		return fmt.Errorf("broken worker")
	}
	k, err := NewKeeper(log, self)
	if err != nil {
		return err
	}
	if err := k.Up(); err != nil {
		return err
	}
	note(dir, "worker", os.Getpid())
	for s := range sigs {
		switch s {
		case unix.SIGUSR1:
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			name := fmt.Sprintf("t-%d", len(k.Names()))
			if _, err := unix.Write(p[1], []byte(name)); err != nil {
				return err
			}
			if err := k.Park(name, p[0]); err != nil {
				return err
			}
			note(dir, "parked", name)
		case unix.SIGUSR2:
			note(dir, "kept", contents(k))
		case unix.SIGTERM:
			k.Close(true)
			return nil
		}
	}
	return nil
}

// contents says how much lies in each parked pipe.
func contents(k *Keeper) map[string]string {
	m := map[string]string{}
	for _, name := range k.Names() {
		fd, _, err := k.Take(name)
		if err != nil {
			m[name] = err.Error()
			continue
		}
		var n int
		if n, err = unix.IoctlGetInt(fd, unix.TIOCINQ); err == nil {
			m[name] = fmt.Sprintf("%d bytes", n)
		}
		unix.Close(fd)
	}
	return m
}

// note appends a line to a file that the test reads.
func note(dir, name string, v any) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	_ = json.NewEncoder(f).Encode(v)
}

// notes waits until a file has n lines and returns them.
func notes(t *testing.T, dir, name string, n int) []string {
	t.Helper()
	for range 1000 {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		if lines := strings.Split(strings.TrimSpace(string(b)), "\n"); len(b) > 0 && len(lines) >= n {
			return lines
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %d lines of %s", n, name)
	return nil
}

func pidOf(t *testing.T, line string) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

type pair struct {
	dir string
	cmd *exec.Cmd
}

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{dir: t.TempDir()}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleEnv+"="+p.dir)
	p.cmd.Stderr = io.Discard
	if testing.Verbose() {
		p.cmd.Stderr = os.Stderr
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	notes(t, p.dir, "worker", 1)
	return p
}

// end kills both halves; one that is started meanwhile finds the mark and
// leaves by itself.
func (p *pair) end() {
	_ = os.WriteFile(filepath.Join(p.dir, "end"), nil, 0o600)
	for _, name := range []string{"holder", "worker"} {
		b, _ := os.ReadFile(filepath.Join(p.dir, name))
		for line := range strings.Lines(string(b)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	_ = p.cmd.Wait()
}

func (p *pair) last(t *testing.T, what string, n int) int {
	all := notes(t, p.dir, what, n)
	return pidOf(t, all[len(all)-1])
}

func kill(t *testing.T, pid int, s unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, s); err != nil {
		t.Fatalf("signal %v to %d: %v", s, pid, err)
	}
}

// Whoever of the two is killed, in whatever order, what was parked is there
// afterwards and the agent can still end properly.
func TestEitherMayBeKilled(t *testing.T) {
	p := startPair(t)
	workers, holders, parked := 1, 1, 0
	for i, victim := range []string{"worker", "holder", "worker", "worker", "holder", "holder", "worker"} {
		kill(t, p.last(t, "worker", workers), unix.SIGUSR1)
		parked++
		notes(t, p.dir, "parked", parked)
		kill(t, p.last(t, victim, 1), unix.SIGKILL)
		if victim == "worker" {
			workers++
		} else {
			holders++
		}
		p.last(t, "holder", holders)
		kill(t, p.last(t, "worker", workers), unix.SIGUSR2)
		var kept map[string]string
		line := notes(t, p.dir, "kept", i+1)[i]
		if err := json.Unmarshal([]byte(line), &kept); err != nil {
			t.Fatal(err)
		}
		if len(kept) != parked {
			t.Fatalf("after killing the %s: kept %v, want %d files", victim, kept, parked)
		}
		for name, what := range kept {
			if what != fmt.Sprintf("%d bytes", len(name)) {
				t.Errorf("%s holds %s", name, what)
			}
		}
	}
	worker, holder := p.last(t, "worker", workers), p.last(t, "holder", holders)
	kill(t, holder, unix.SIGTERM)
	waitGone(t, worker)
	waitGone(t, holder)
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || slices.Contains(strings.Fields(string(b)), "Z") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d is still there", pid)
}

// A new worker is there within 100 ms of the old one's death.
func TestRestartIsQuick(t *testing.T) {
	p := startPair(t)
	kill(t, p.last(t, "worker", 1), unix.SIGUSR1)
	notes(t, p.dir, "parked", 1)
	best := time.Hour
	for i := range 3 {
		pid := p.last(t, "worker", i+1)
		start := time.Now()
		kill(t, pid, unix.SIGKILL)
		p.last(t, "worker", i+2)
		best = min(best, time.Since(start))
	}
	if best > 100*time.Millisecond {
		t.Errorf("the quickest of three restarts took %v, want at most 100ms", best)
	}
}

// A first worker that cannot start ends the agent; a later one is tried again
// as long as something is held.
func TestBrokenWorker(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the agent could not start") {
		t.Errorf("%v, %s", err, out)
	}

	p := startPair(t)
	kill(t, p.last(t, "worker", 1), unix.SIGUSR1)
	notes(t, p.dir, "parked", 1)
	broken := filepath.Join(p.dir, "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kill(t, p.last(t, "worker", 1), unix.SIGKILL)
	time.Sleep(300 * time.Millisecond)
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	kill(t, p.last(t, "worker", 2), unix.SIGUSR2)
	if line := notes(t, p.dir, "kept", 1)[0]; !strings.Contains(line, "t-0") {
		t.Errorf("after a bad spell: %s", line)
	}
}
