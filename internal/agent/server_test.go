package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// fakeEngine has cards that remember how they were configured; nobody can be
// attached to it.
type fakeEngine struct{ cards []*fakeCard }

func (e *fakeEngine) Thaw(Promise) error { return nil }

func (e *fakeEngine) Cards() []kernel.CardInfo {
	var infos []kernel.CardInfo
	for _, c := range e.cards {
		infos = append(infos, c.info)
	}
	return infos
}

func (e *fakeEngine) Open(i int, gc governor.Config) (Card, error) {
	return e.cards[i], e.cards[i].broken
}

func (e *fakeEngine) Attach(*os.File, Promise) (Session, error) {
	return nil, errors.New("the fake engine attaches nobody")
}

type fakeCard struct {
	info   kernel.CardInfo
	broken error
	mu     sync.Mutex
	used   int64
	cfg    governor.Config
}

func (c *fakeCard) Info() kernel.CardInfo { return c.info }

// Reconcile knows of no charges: all that came after the baseline is drift.
func (c *fakeCard) Reconcile(baseline int64) (kernel.Drift, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return kernel.Drift{UsedBytes: c.used, BaselineBytes: baseline, DriftBytes: c.used - baseline}, nil
}

func (c *fakeCard) Memory() (int64, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return 16 * gi, c.used, nil
}
func (c *fakeCard) Configure(cfg governor.Config) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg = cfg
	return nil
}
func (c *fakeCard) Governor() governor.State { return governor.State{} }
func (c *fakeCard) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// fakeKeeper keeps in this process only.
type fakeKeeper struct {
	mu     sync.Mutex
	kept   map[string]int
	up     chan struct{}
	failed error
}

func newFakeKeeper() *fakeKeeper {
	return &fakeKeeper{kept: map[string]int{}, up: make(chan struct{})}
}

func (k *fakeKeeper) Park(name string, fd int) error {
	n, err := dup(fd)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[name] = n
	return err
}

func (k *fakeKeeper) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd, ok := k.kept[name]; ok {
		delete(k.kept, name)
		return unix.Close(fd)
	}
	return nil
}

func (k *fakeKeeper) Take(name string) (int, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.kept[name]
	if !ok {
		return -1, false, nil
	}
	n, err := dup(fd)
	return n, true, err
}

func (k *fakeKeeper) Names() (names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n := range k.kept {
		names = append(names, n)
	}
	return names
}
func (k *fakeKeeper) Up() error      { close(k.up); return nil }
func (k *fakeKeeper) HolderPID() int { return 1 }
func (k *fakeKeeper) Fail(err error) { k.failed = err }
func (k *fakeKeeper) Close(bool) {
	for _, n := range k.Names() {
		_ = k.Drop(n)
	}
}

type testAgent struct {
	*Worker
	keep   *fakeKeeper
	card   *fakeCard
	client *Client
	sigs   chan os.Signal
	done   chan error
}

// startAgent runs a worker with one card of 16Gi, of which used is in use.
func startAgent(t *testing.T, used int64, change func(*Config)) *testAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Socket: filepath.Join(dir, "s", "agent.sock"), Force: true}
	if change != nil {
		change(&cfg)
	}
	a := &testAgent{
		keep: newFakeKeeper(), sigs: make(chan os.Signal, 1), done: make(chan error, 1),
		card: &fakeCard{used: used, info: kernel.CardInfo{Name: "fake", UUID: "GPU-0"}}, client: NewClient(cfg.Socket),
	}
	log := slog.New(slog.DiscardHandler)
	a.Worker, err = NewWorker(cfg, "test", log, &fakeEngine{[]*fakeCard{a.card}}, a.keep)
	if err != nil {
		t.Fatal(err)
	}
	go func() { a.done <- a.Run(context.Background(), a.sigs) }()
	t.Cleanup(func() {
		a.sigs <- unix.SIGTERM
		if err := <-a.done; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	select {
	case <-a.keep.up:
	case err := <-a.done:
		t.Fatalf("the agent ended: %v", err)
	}
	return a
}

func (a *testAgent) see(t *testing.T) Status {
	t.Helper()
	s, err := a.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for a state of the agent.
func (a *testAgent) until(t *testing.T, what string, ok func(Status) bool) {
	t.Helper()
	for range 500 {
		if ok(a.see(t)) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("waited in vain until %s: %+v", what, a.see(t))
}

func TestReserveIsWhatIsInUse(t *testing.T) {
	a := startAgent(t, 2*gi, nil)
	if c := a.see(t).Cards[0]; c.Reserve != 2*gi || c.Free != 14*gi || c.Baseline != 2*gi {
		t.Errorf("reserve %d, free %d, baseline %d", c.Reserve, c.Free, c.Baseline)
	}
}

// A client that never sends its listener, sends something else, or leaves,
// holds its share no longer than the conversation.
func TestUnfinishedAttach(t *testing.T) {
	a := startAgent(t, 0, nil)
	free := func(s Status) bool { return s.Cards[0].Free == 16*gi && len(s.Tenants) == 0 }
	for name, then := range map[string]func(*Attachment) error{
		"leaves":       func(at *Attachment) error { return at.Close() },
		"sends a file": func(at *Attachment) error { return at.supervise(0, nil) },
		"sends none": func(at *Attachment) error {
			_ = at.send(attachFrame{Op: opListener})
			_, err := at.receive(opAttached)
			return err
		},
		"skips a step":     func(at *Attachment) error { return at.send(attachFrame{Op: opProbed}) },
		"sends no frame":   func(at *Attachment) error { _, err := at.conn.Write([]byte("GET / HTTP/1.1\r\n")); return err },
		"sends half a one": func(at *Attachment) error { _, err := at.conn.Write([]byte{0, 0}); _ = at.Close(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			at, err := a.client.Attach(t.Context(), Request{Name: "x", Memory: mem(4), Compute: 300})
			if err != nil {
				t.Fatal(err)
			}
			defer at.Close()
			a.until(t, "the share is held", func(s Status) bool { return s.Cards[0].Free == 12*gi })
			err = then(at)
			if strings.HasPrefix(name, "sends a") && (err == nil || !strings.Contains(err.Error(), "seccomp listener")) {
				t.Errorf("the agent said %v", err)
			}
			a.until(t, "the share is free", free)
		})
	}
	a.card.mu.Lock()
	defer a.card.mu.Unlock()
	if a.card.cfg.Policy != governor.Fixed {
		t.Errorf("the card was configured for %v", a.card.cfg.Policy)
	}
}

func TestBadRequests(t *testing.T) {
	a := startAgent(t, 0, nil)
	big := strings.Repeat("x", maxMessage+1)
	for name, c := range map[string]struct {
		method, path, body string
		upgrade            bool
		code               int
	}{
		"no upgrade":    {"POST", "/v1/attach", `{}`, false, 426},
		"no JSON":       {"POST", "/v1/attach", `{`, true, 400},
		"unknown field": {"POST", "/v1/attach", `{"root":true}`, true, 400},
		"bad value":     {"POST", "/v1/attach", `{"compute":-5}`, true, 400},
		"no such card":  {"POST", "/v1/attach", `{"cards":["9"]}`, true, 400},
		"does not fit":  {"POST", "/v1/attach", `{"memory":"17Gi"}`, true, 409},
		"too big":       {"POST", "/v1/attach", `{"name":"` + big + `"}`, true, 400},
		"no such path":  {"GET", "/v2/status", "", false, 404},
		"wrong method":  {"DELETE", "/v1/status", "", false, 405},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(c.method, "http://penstock"+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if c.upgrade {
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", attachProtocol)
			}
			conn, _, resp, err := a.client.roundTrip(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if resp.StatusCode != c.code {
				b, _ := io.ReadAll(resp.Body)
				t.Errorf("%s %s: %s, want %d: %s", c.method, c.path, resp.Status, c.code, b)
			}
			_ = resp.Body.Close()
		})
	}
	if s := a.see(t); len(s.Tenants) != 0 {
		t.Errorf("tenants %+v", s.Tenants)
	}
}

// One user's idle connections are bounded, and end.
func TestConnectionsPerUser(t *testing.T) {
	l := userListener{open: map[uint32]int{}}
	for i := range maxConnsPerUser {
		if !l.enter(7) {
			t.Fatalf("connection %d was refused", i)
		}
	}
	if l.enter(7) {
		t.Error("one more than the bound was let in")
	}
	if !l.enter(8) {
		t.Error("another user was refused")
	}
	l.leave(7)
	if !l.enter(7) {
		t.Error("a place that became free was not given")
	}
	a := startAgent(t, 0, nil)
	conn, err := net.Dial("unix", a.client.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/attach HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if s := a.see(t); len(s.Cards) != 1 {
		t.Error("a slow client blocks others")
	}
	_ = conn.SetReadDeadline(time.Now().Add(2 * requestTimeout))
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("a slow client is not sent away: %v", err)
	}
}

// Others see how many there are, not who.
func TestOtherUsersSeeTotals(t *testing.T) {
	a := startAgent(t, 0, nil)
	if _, err := a.admit(1000, 1, Request{Name: "secret", Memory: mem(1)}); err != nil {
		t.Fatal(err)
	}
	for uid, listed := range map[uint32]int{0: 1, 1000: 1, 1001: 0} {
		s := a.status(uid)
		if len(s.Tenants) != listed || s.Others != 1-listed || s.Cards[0].Tenants != 1 || s.Cards[0].Promised != gi {
			t.Errorf("user %d sees %+v", uid, s)
		}
	}
}

func TestIdleExit(t *testing.T) {
	a := startAgent(t, 0, func(c *Config) { c.IdleExit = time.Millisecond })
	select {
	case err := <-a.done:
		a.done <- err
	case <-time.After(5 * time.Second):
		t.Fatal("the agent stays")
	}
	if _, err := a.client.Status(t.Context()); !errors.Is(err, ErrNoAgent) {
		t.Errorf("after it left: %v", err)
	}
}

// A grant that never attached, or whose listener is lost, is forgotten at the next start.
func TestOrphanGrants(t *testing.T) {
	dir := t.TempDir()
	st, err := openStore(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Put(Promise{ID: "t-0", Cards: []int{0}, Memory: gi}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(st.grant("t-1"), []byte("{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, 0, func(c *Config) { c.StateDir = st.dir })
	if s := a.see(t); len(s.Tenants) != 0 || s.Cards[0].Free != 16*gi {
		t.Errorf("%+v", s)
	}
	if _, err := os.Stat(st.grant("t-0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the orphan's file: %v", err)
	}
}

func TestDriftAndBaseline(t *testing.T) {
	a := startAgent(t, gi, nil)
	a.card.mu.Lock()
	a.card.used = 3 * gi
	a.card.mu.Unlock()
	for range quietLooks {
		a.reconcile(time.Now())
	}
	if c := a.see(t).Cards[0]; c.Baseline != 3*gi || c.Drift != 0 {
		t.Errorf("without tenants: baseline %d, drift %d", c.Baseline, c.Drift)
	}
	if _, err := a.admit(0, 1, Request{Memory: mem(1)}); err != nil {
		t.Fatal(err)
	}
	a.card.mu.Lock()
	a.card.used = 5 * gi
	a.card.mu.Unlock()
	a.reconcile(time.Now())
	if c := a.see(t).Cards[0]; c.Baseline != 3*gi || c.Drift != 2*gi {
		t.Errorf("with a tenant: baseline %d, drift %d", c.Baseline, c.Drift)
	}
	if m := a.store.Baselines(); m["GPU-0"] != 3*gi {
		t.Errorf("kept baselines %v", m)
	}
}

func TestNoUsableCard(t *testing.T) {
	dir := t.TempDir()
	keep := newFakeKeeper()
	card := &fakeCard{broken: errors.New("it has fallen off the bus")}
	w, err := NewWorker(Config{Socket: filepath.Join(dir, "s", "a.sock")}, "test", slog.New(slog.DiscardHandler), &fakeEngine{[]*fakeCard{card}}, keep)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Run(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "fallen off the bus") || keep.failed == nil {
		t.Errorf("%v, told to the holder: %v", err, keep.failed)
	}
}
