package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
)

// parker keeps files beyond this process's life; Keeper is the real one.
type parker interface {
	Park(name string, fd int) error
	Drop(name string) error
	Take(name string) (fd int, ok bool, err error)
	Names() []string
	Up() error
	HolderPID() int
	Fail(err error)
	Close(bye bool)
}

// Names under which the worker parks what is not a tenant's. Tenants' names
// are grant ids.
const (
	parkedSocket = "@socket"
	parkedLock   = "@lock"
)

// Worker is the working half of the agent.
type Worker struct {
	cfg     Config
	version string
	log     *slog.Logger
	engine  Engine
	keep    parker
	store   store
	started time.Time

	mu      sync.Mutex // guards what follows
	ledger  *Ledger
	cards   []*cardState
	tenants map[string]*tenant // attached or about to be
	leaving bool
	idle    time.Time // since when there is no tenant

	wg sync.WaitGroup // cards and sessions
}

// cardState is a card with what the reconciler knows.
type cardState struct {
	info     kernel.CardInfo
	card     Card // nil when it could not be opened
	err      error
	total    int64
	used     int64
	baseline int64
	drift    int64 // used that no charge explains, as last compared
	quiet    int   // looks in a row without a tenant
	alarmed  bool
}

// tenant is a promise and, once attached, its session.
type tenant struct {
	Promise
	session Session
	rates   map[int]*rate // by card
}

// errLeaving is the answer to those who come too late.
var errLeaving = errors.New("the agent is leaving")

// NewWorker wires a worker. Run closes keep at its end.
func NewWorker(cfg Config, version string, log *slog.Logger, engine Engine, keep parker) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	st, err := openStore(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, version: version, log: log, engine: engine, keep: keep, store: st,
		started: time.Now(), idle: time.Now(), tenants: map[string]*tenant{},
	}, nil
}

// Run serves until the agent ends: it says so to the holder and returns nil.
// SIGHUP, or the end of ctx, makes way for a new worker instead. Every way out
// thaws all tenants first.
func (w *Worker) Run(ctx context.Context, sigs <-chan os.Signal) (err error) {
	bye, up := false, false
	defer func() {
		if err != nil && !up {
			w.keep.Fail(err)
		}
		w.keep.Close(bye)
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer w.wg.Wait()
	defer cancel()

	lis, err := w.listen()
	if err != nil {
		return err
	}
	defer lis.Close()
	if err := w.openCards(ctx); err != nil {
		return err
	}
	w.recover(ctx)
	srv := newServer(ctx, w)
	served := make(chan error, 1)
	go func() { served <- srv.serve(lis) }()
	defer func() { srv.close(); <-served }()
	if err := w.keep.Up(); err != nil {
		return err
	}
	up = true
	w.mu.Lock()
	tenants := len(w.tenants)
	w.mu.Unlock()
	w.log.Info("agent serves", "socket", w.cfg.Socket, "cards", len(w.cards), "tenants", tenants, "config", w.cfg)
	bye, err = w.loop(ctx, sigs)
	if bye {
		_ = os.Remove(w.cfg.Socket)
	}
	return err
}

// loop does what comes by time and by signal. bye says that the agent ends.
func (w *Worker) loop(ctx context.Context, sigs <-chan os.Signal) (bye bool, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
			w.reconcile(time.Now())
			if w.leaveIdle(time.Now()) {
				w.log.Info("no tenant for a while, leaving", "idle", w.cfg.IdleExit)
				return true, nil
			}
		case s := <-sigs:
			if s == unix.SIGHUP {
				w.log.Info("making way for a new worker")
				return false, nil
			}
			n, ok := w.leaveAsked()
			if ok {
				w.log.Info("leaving", "signal", s.String(), "tenants", n)
				return true, nil
			}
			w.log.Warn("not leaving: tenants still run, and without an agent their GPU calls would fail; start the agent with --force to stop it anyway",
				"tenants", n)
		}
	}
}

// leaveIdle decides to leave when nobody was there for long enough.
func (w *Worker) leaveIdle(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tenants) > 0 {
		w.idle = now
	}
	w.leaving = w.leaving || w.cfg.IdleExit > 0 && now.Sub(w.idle) >= w.cfg.IdleExit
	return w.leaving
}

// leaveAsked decides to leave when nobody is harmed, or when force is on.
func (w *Worker) leaveAsked() (tenants int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaving = len(w.tenants) == 0 || w.cfg.Force
	return len(w.tenants), w.leaving
}

// listen returns the agent's socket: the one the last worker had, or a new one
// after making sure that no other agent serves there.
func (w *Worker) listen() (*net.UnixListener, error) {
	fd, ok, err := w.keep.Take(parkedSocket)
	if err != nil {
		return nil, err
	}
	if ok {
		return fileListener(fd)
	}
	if err := prepareDir(w.cfg.Socket); err != nil {
		return nil, err
	}
	if err := w.lock(); err != nil {
		return nil, err
	}
	_ = os.Remove(w.cfg.Socket) // ours by the lock; left by an agent that was killed
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.cfg.Socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	lis.SetUnlinkOnClose(false)
	mode := os.FileMode(0o600)
	if os.Geteuid() == 0 {
		mode = 0o666 // everybody may ask root's agent; it looks at who asks
	}
	err = os.Chmod(w.cfg.Socket, mode)
	if err == nil {
		err = parkListener(w.keep, lis)
	}
	if err != nil {
		_ = lis.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return lis, nil
}

func parkListener(keep parker, lis *net.UnixListener) error {
	raw, err := lis.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = keep.Park(parkedSocket, int(fd)) })
	return errors.Join(err, inner)
}

func fileListener(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take over the socket: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, errors.New("take over the socket: it is no unix socket")
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// lock takes the lock that says an agent serves this socket. It is parked, so
// it lasts as long as either process of the pair.
func (w *Worker) lock() error {
	fd, err := unix.Open(w.cfg.Socket+".lock", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", w.cfg.Socket, err)
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return w.keep.Park(parkedLock, fd)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("another agent serves %s", w.cfg.Socket)
		}
	}
}

// newID returns a grant id that no tenant has. Callers hold mu.
func (w *Worker) newID() string {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:])
		id := "t-" + hex.EncodeToString(b[:])
		if w.tenants[id] == nil {
			return id
		}
	}
}
