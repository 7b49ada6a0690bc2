package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"penstock": main})
}

// TestScripts runs the real program, with a real filter, on an emulated card
// of 16Gi for each script. Its scripts find the card at $CARD and an agent, if
// there is one, at $PENSTOCK_SOCKET.
func TestScripts(t *testing.T) {
	probe, err := os.MkdirTemp("", "penstock-probe-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(probe)
	s, err := fusedev.Mount(probe, card.H200())
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("no emulated card: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfor": waitFor,
			"murder":  murder,
			"sleep":   sleep,
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		TestWork: false,
	})
}

func setup(env *testscript.Env) error {
	// Not below the script's directory, which only this user may enter.
	dir, err := os.MkdirTemp("", "penstock-script-")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "card"), 0o755))
	}
	if err != nil {
		return err
	}
	cfg := card.H200()
	cfg.TotalBytes = 16 << 30
	s, err := fusedev.Mount(filepath.Join(dir, "card"), cfg)
	if err != nil {
		return err
	}
	socket := filepath.Join(dir, "a", "agent.sock")
	env.Setenv("PUBLIC", dir)
	env.Setenv("CARD", s.Dir())
	env.Setenv(emuDirEnv, s.Dir())
	env.Setenv(agent.SocketEnv, socket)
	env.Defer(func() {
		endAll(agent.SocketEnv + "=" + socket)
		if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
			env.T().Log(err)
		}
	})
	return nil
}

// endAll kills every process that a script has left: those that have its
// socket in their environment. The agent's halves start each other again, so
// it looks until there is none.
func endAll(mark string) {
	for range 100 {
		found := false
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil || !strings.Contains("\x00"+string(b), "\x00"+mark+"\x00") {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				found = unix.Kill(pid, unix.SIGKILL) == nil
			}
		}
		if !found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// waitFor looks at the agent's status, or at a file, until it matches:
//
//	waitfor status REGEXP
//	waitfor file FILE REGEXP
//	waitfor gone FILE
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: waitfor status|file|gone …")
	}
	var last string
	for range 1000 {
		switch args[0] {
		case "status":
			last = statusText(ts)
		case "file", "gone":
			b, err := os.ReadFile(ts.MkAbs(args[1]))
			last = string(b)
			if args[0] == "gone" && errors.Is(err, os.ErrNotExist) {
				return
			}
		}
		if args[0] != "gone" && regexp.MustCompile(args[len(args)-1]).MatchString(last) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	ts.Fatalf("waited in vain for %q; last seen: %s", args[1:], last)
}

func statusText(ts *testscript.TestScript) string {
	s, err := client(ts).Status(context.Background())
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	v := view{out: &b, json: true}
	ts.Check(v.show(s))
	return b.String()
}

func client(ts *testscript.TestScript) *agent.Client {
	return agent.NewClient(ts.Getenv(agent.SocketEnv))
}

// murder kills one half of the agent and waits until it has a successor:
//
//	murder worker|holder [TIMES]
func murder(ts *testscript.TestScript, neg bool, args []string) {
	times := 1
	if len(args) == 2 {
		var err error
		times, err = strconv.Atoi(args[1])
		ts.Check(err)
	}
	for range times {
		before, err := client(ts).Status(context.Background())
		ts.Check(err)
		victim := before.PID
		if args[0] == "holder" {
			victim = before.Holder
		}
		ts.Check(unix.Kill(victim, unix.SIGKILL))
		start := time.Now()
		for {
			after, err := client(ts).Status(context.Background())
			if err == nil && (args[0] == "worker" && after.PID != victim || args[0] == "holder" && after.Holder != victim) {
				ts.Logf("another %s after %v", args[0], time.Since(start))
				break
			}
			if time.Since(start) > 10*time.Second {
				ts.Fatalf("no other %s: %v", args[0], err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}

func sleep(ts *testscript.TestScript, neg bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}
