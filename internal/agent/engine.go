package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Engine is what the agent needs of an engine.
type Engine interface {
	Cards() []kernel.CardInfo
	Open(index int, gc governor.Config) (Card, error)
	// Attach serves the tenant behind listener, continuing from its journal
	// when there is one.
	Attach(listener *os.File, p Promise) (Session, error)
	// Thaw ends any freeze of a tenant that cannot be attached again.
	Thaw(p Promise) error
}

// Card is one opened card.
type Card interface {
	Info() kernel.CardInfo
	Memory() (total, used int64, err error)
	// Reconcile compares charges with the card; baseline is what it held when
	// no tenant was there.
	Reconcile(baseline int64) (kernel.Drift, error)
	Configure(governor.Config) error
	Governor() governor.State
	Run(ctx context.Context) error
}

// Session is one attached tenant.
type Session interface {
	Run(ctx context.Context) error
	Usage() kernel.Usage
	Close() error // after Run; the listener stays open
}

// truth is what an engine may know about the work that was really done.
type truth interface {
	// EngineTime is the time that each process has had the compute engine of a
	// card for itself, or nil when that is not known.
	EngineTime(card int) map[int]time.Duration
}

// kernelEngine is the kernel-mode engine behind the agent's port.
type kernelEngine struct {
	cfg   Config
	eng   *kernel.Engine
	infos []kernel.CardInfo
	cards map[int]*kernel.Card
}

// NewKernelEngine finds the cards and checks that their driver is known.
func NewKernelEngine(cfg Config, log *slog.Logger) (Engine, error) {
	cfg = cfg.withDefaults()
	infos, err := kernel.Discover(cfg.paths())
	if err != nil {
		return nil, err
	}
	overhead := cfg.Overhead
	if overhead == 0 {
		overhead = -1 // the engine's own constant
	}
	eng, err := kernel.New(kernel.Options{
		Paths: cfg.paths(), Log: log, AnyDriver: cfg.AnyDriver,
		StateDir: cfg.StateDir, ContextOverhead: overhead,
	})
	if err != nil {
		return nil, err
	}
	return &kernelEngine{cfg: cfg, eng: eng, infos: infos, cards: map[int]*kernel.Card{}}, nil
}

func (e *kernelEngine) Cards() []kernel.CardInfo { return e.infos }

func (e *kernelEngine) Open(index int, gc governor.Config) (Card, error) {
	c, err := e.eng.Open(index, gc)
	if err != nil {
		return nil, fmt.Errorf("open card %d: %w", index, err)
	}
	e.cards[index] = c
	return c, nil
}

func (e *kernelEngine) Attach(listener *os.File, p Promise) (Session, error) {
	level, err := kernel.ParseLevel(p.Request.Level)
	if err != nil {
		return nil, err
	}
	g := kernel.Grant{ID: p.ID, MemoryLimit: p.Memory, Tenant: p.Tenant, Level: level, UID: p.UID}
	for _, i := range p.Cards {
		c := e.cards[i]
		if c == nil {
			return nil, fmt.Errorf("card %d is not open", i)
		}
		g.Cards = append(g.Cards, c)
	}
	if e.cfg.Record != "" {
		return e.attachRecorded(listener, g)
	}
	s, err := e.eng.Attach(listener, g)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attachRecorded also writes the tenant's calls to a file, which is whole when
// the tenant has left.
func (e *kernelEngine) attachRecorded(listener *os.File, g kernel.Grant) (Session, error) {
	f, err := os.OpenFile(e.cfg.Record, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	g.Recorder = kernel.NewRecorder(f)
	s, err := e.eng.Attach(listener, g)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &recorded{Session: s, recorder: g.Recorder, file: f}, nil
}

// recorded is a session whose calls go to a file.
type recorded struct {
	Session
	recorder *kernel.Recorder
	file     *os.File
}

func (r *recorded) Close() error {
	return errors.Join(r.Session.Close(), r.recorder.Close(), r.file.Close())
}

// EngineTime asks an emulated card; a real one does not tell.
func (e *kernelEngine) EngineTime(int) map[int]time.Duration {
	if e.cfg.Emulated == "" {
		return nil
	}
	var stats struct {
		Usage []struct {
			PID      int
			Graphics time.Duration
		}
	}
	b, err := os.ReadFile(filepath.Join(e.cfg.Emulated, "stats"))
	if err != nil || json.Unmarshal(b, &stats) != nil {
		return nil
	}
	times := map[int]time.Duration{}
	for _, u := range stats.Usage {
		times[u.PID] = u.Graphics
	}
	return times
}

// Thaw ends any freeze of a tenant that cannot be attached again.
func (e *kernelEngine) Thaw(p Promise) error {
	var errs []error
	for _, i := range p.Cards {
		if c := e.cards[i]; c != nil {
			errs = append(errs, e.eng.Thaw(c, p.ID))
		}
	}
	return errors.Join(errs...)
}
