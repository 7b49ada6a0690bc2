package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
)

// killsEnv is how many processes TestStorm kills (default 60).
const killsEnv = "PENSTOCK_KILLS"

// TestStorm kills tenants and both halves of the agent at random moments. Who
// was not killed must not notice, and at the end nothing may be left over.
func TestStorm(t *testing.T) {
	kills := 60
	if v := os.Getenv(killsEnv); v != "" {
		var err error
		if kills, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	s := startStorm(t)
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	killed := map[string]int{}
	for range kills {
		s.refill(rnd)
		time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
		victim := []string{"tenant", "worker", "holder"}[rnd.IntN(3)]
		if s.kill(rnd, victim) {
			killed[victim]++
		}
		s.checkAlive()
	}
	t.Logf("killed %v", killed)
	s.finish()
}

// storm is a card, an agent and a few tenants.
type storm struct {
	t       *testing.T
	card    *fusedev.Server
	client  *agent.Client
	tenants []*stormTenant
}

type stormTenant struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	done     chan struct{}
	end      error
}

func (n *stormTenant) gone() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

func startStorm(t *testing.T) *storm {
	dir, err := os.MkdirTemp("", "penstock-storm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "card"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := card.H200()
	cfg.TotalBytes = 16 << 30
	s := &storm{t: t}
	s.card, err = fusedev.Mount(filepath.Join(dir, "card"), cfg)
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("no emulated card: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "a", "agent.sock")
	t.Setenv(agent.SocketEnv, socket)
	t.Cleanup(func() {
		_ = os.Unsetenv(agent.SocketEnv) // or this process would be one of them
		endAll(agent.SocketEnv + "=" + socket)
		if err := s.card.Close(); err != nil {
			t.Error(err)
		}
	})
	s.client = agent.NewClient(socket)
	return s
}

// refill starts tenants until there are three.
func (s *storm) refill(rnd *rand.Rand) {
	for len(s.tenants) < 3 {
		n := &stormTenant{done: make(chan struct{})}
		n.cmd = exec.Command("penstock", "run", "--emulated", s.card.Dir(), "--agent-idle-exit", "60s", "--mem", "4Gi", "--compute", "30%", "--",
			"penstock", "emu", "tenant", "--dir", s.card.Dir(), "--mem", strconv.Itoa(256+rnd.IntN(1024))+"Mi", "--chunk", "64Mi")
		n.cmd.Stdout, n.cmd.Stderr = &n.out, &n.err
		if err := n.cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		go func() { defer close(n.done); n.end = n.cmd.Wait() }()
		s.tenants = append(s.tenants, n)
	}
}

// kill ends one process the hard way.
func (s *storm) kill(rnd *rand.Rand, victim string) bool {
	if victim == "tenant" {
		i := rnd.IntN(len(s.tenants))
		n := s.tenants[i]
		s.tenants = append(s.tenants[:i], s.tenants[i+1:]...)
		_ = n.cmd.Process.Kill()
		<-n.done
		return true
	}
	st, err := s.client.Status(context.Background())
	if err != nil {
		return false // it is being replaced
	}
	pid := st.PID
	if victim == "holder" {
		pid = st.Holder
	}
	if unix.Kill(pid, unix.SIGKILL) != nil {
		return false
	}
	// One half at a time is what the agent survives.
	s.until("the agent is whole again", func(now agent.Status) bool { return now.PID != pid && now.Holder != pid })
	return true
}

// until waits for a state of the agent.
func (s *storm) until(what string, ok func(agent.Status) bool) {
	s.t.Helper()
	var last agent.Status
	var err error
	for range 2000 {
		if last, err = s.client.Status(context.Background()); err == nil && ok(last) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Fatalf("waited in vain until %s: %+v, %v", what, last, err)
}

// checkAlive fails when a tenant ended though nobody killed it.
func (s *storm) checkAlive() {
	s.t.Helper()
	for _, n := range s.tenants {
		if n.gone() {
			s.t.Fatalf("a tenant that nobody killed ended: %v: %s", n.end, n.err.String())
		}
	}
}

// finish ends the tenants politely and looks at what is left.
func (s *storm) finish() {
	s.until("all are attached", func(st agent.Status) bool {
		s.checkAlive()
		for _, n := range st.Tenants {
			if n.Used < 256<<20 {
				return false
			}
		}
		return len(st.Tenants) == len(s.tenants)
	})
	for _, n := range s.tenants {
		_ = n.cmd.Process.Signal(unix.SIGTERM)
		<-n.done
		var r struct{ Finished, Refused int64 }
		if n.end != nil || json.Unmarshal(n.out.Bytes(), &r) != nil || r.Refused != 0 {
			s.t.Errorf("a tenant that was asked to end: %v: %s%s", n.end, n.out.String(), n.err.String())
		}
	}
	s.until("nobody is left", func(st agent.Status) bool {
		return len(st.Tenants) == 0 && st.Cards[0].Promised == 0 && st.Cards[0].Charged == 0
	})
	for range 200 {
		if st := s.card.Card.Stats(); st.Groups == 0 && st.Channels == 0 && st.Frozen == 0 && st.UsedBytes == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Errorf("left on the card: %+v", s.card.Card.Stats())
}
