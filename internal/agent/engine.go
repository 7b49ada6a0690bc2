package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"

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
}

// Card is one opened card.
type Card interface {
	Info() kernel.CardInfo
	Memory() (total, used int64, err error)
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

// kernelEngine is the kernel-mode engine behind the agent's port.
type kernelEngine struct {
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
	return &kernelEngine{eng: eng, infos: infos, cards: map[int]*kernel.Card{}}, nil
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
	s, err := e.eng.Attach(listener, g)
	if err != nil {
		return nil, err
	}
	return s, nil
}
