package hostile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	defaultQuota = 1 * gib
	victimMemory = 512 * mib
	cardMemory   = 16 * gib
)

// setup is what a scene is made of.
type setup struct {
	policy         governor.Policy
	attacker       governor.Tenant // ID is filled in
	victim         governor.Tenant
	quota          uint64
	probing        bool // the victim allocates and frees all the time
	unsupervised   bool // the attacker runs without a filter: for proving that the judge sees success
	level          kernel.Level
	race           time.Duration
	log            *slog.Logger
	expectAttacker float64 // share of the card that is the attacker's, 0–1
	expectVictim   float64
}

// withDefaults is a fixed share of 20 % beside one of 50 %.
func (s setup) withDefaults() setup {
	if s.policy == 0 {
		s.policy = governor.Fixed
	}
	if s.policy == governor.Fixed && s.attacker.Share == 0 {
		s.attacker.Share, s.victim.Share = 200, 500
		s.expectAttacker, s.expectVictim = 0.2, 0.5
	}
	s.attacker.ID, s.victim.ID = "attacker", "victim"
	if s.quota == 0 {
		s.quota = defaultQuota
	}
	return s
}

// scene is one emulated card with a victim and an attacker on it.
type scene struct {
	setup
	dir    string
	server *fusedev.Server
	engine *kernel.Engine
	card   *kernel.Card
	cancel context.CancelFunc
	ctx    context.Context
	govern chan error

	victimChild, attackerChild *child
	allowed                    atomic.Int64 // bytes that an accomplice may hold beside the attacker
	handles                    Handles
	base                       int64        // bytes in use before anybody came
	mine                       atomic.Int64 // bytes the victim holds
	watch                      *watcher
	gone                       bool // the card was taken away
	measured                   string
	finds                      []string // effects seen
	findsMu                    sync.Mutex
}

// build mounts a card, takes it under control and lets the victim work.
func build(ctx context.Context, s setup) (_ *scene, err error) {
	sc := &scene{setup: s.withDefaults(), govern: make(chan error, 1)}
	sc.ctx, sc.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, sc.close())
		}
	}()
	if sc.dir, err = os.MkdirTemp("", "penstock-hostile-"); err != nil {
		return nil, err
	}
	if err := unix.Chmod(sc.dir, 0o755); err != nil {
		return nil, err
	}
	cfg := card.H200()
	cfg.TotalBytes, cfg.ContextBytes = cardMemory, kernel.DefaultContextOverhead
	if sc.server, err = fusedev.Mount(sc.dir, cfg); err != nil {
		return nil, err
	}
	sc.engine, err = kernel.New(kernel.Options{
		Paths: kernel.Paths{Dev: sc.dir, Emulated: true}, ContextOverhead: kernel.DefaultContextOverhead, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	if sc.card, err = sc.engine.Open(0, governor.Config{Policy: sc.policy}); err != nil {
		return nil, err
	}
	go func() { sc.govern <- sc.card.Run(sc.ctx) }()
	sc.base = sc.server.Card.Stats().UsedBytes
	if err := sc.reconcile(); err != nil {
		return nil, err
	}
	return sc, sc.startVictim()
}

// reconcileEvery is how often the charges are compared with the card, as an agent does.
const reconcileEvery = time.Second

// reconcile does that from now on.
func (sc *scene) reconcile() error {
	if _, err := sc.card.Reconcile(sc.base); err != nil {
		return err
	}
	go func() {
		for {
			select {
			case <-sc.ctx.Done():
				return
			case <-time.After(reconcileEvery):
				_, _ = sc.card.Reconcile(sc.base)
			}
		}
	}()
	return nil
}

func (sc *scene) startVictim() (err error) {
	sc.victimChild, err = sc.tenant(roleVictim, sc.setup.victim, victimMemory+defaultQuota, true)
	if err != nil {
		return fmt.Errorf("victim: %w", err)
	}
	hints := Hints{Dir: sc.dir, Memory: victimMemory, Probe: sc.probing, Quota: victimMemory + defaultQuota}
	if err := sendMessage(sc.victimChild.wire, message{Hints: &hints}); err != nil {
		return fmt.Errorf("victim: %w", err)
	}
	m, err := receiveMessage(sc.victimChild.wire)
	if err != nil || m.Ready == nil {
		return fmt.Errorf("victim does not start: %s: %w", m.Error, err)
	}
	sc.handles = *m.Ready
	sc.mine.Store(sc.server.Card.Stats().UsedBytes - sc.base)
	return sendMessage(sc.victimChild.wire, message{})
}

// tenant starts a process and attaches it.
func (sc *scene) tenant(role string, t governor.Tenant, quota int64, supervised bool) (*child, error) {
	c, l, err := start(role, supervised)
	if err != nil || !supervised {
		return c, err
	}
	c.listener = l
	c.session, err = sc.engine.Attach(l, kernel.Grant{
		ID: string(t.ID), Cards: []*kernel.Card{sc.card}, MemoryLimit: quota, Tenant: t, Level: sc.level,
	})
	if err != nil {
		return c, err
	}
	go func() { c.ended <- c.session.Run(context.WithoutCancel(sc.ctx)) }()
	return c, unix.Send(c.wire, []byte{1}, unix.MSG_NOSIGNAL)
}

func (sc *scene) found(format string, args ...any) {
	sc.findsMu.Lock()
	defer sc.findsMu.Unlock()
	if len(sc.finds) < 4 {
		sc.finds = append(sc.finds, fmt.Sprintf(format, args...))
	}
}

// close ends what still runs and takes the card away.
func (sc *scene) close() error {
	var errs []error
	if sc.watch != nil {
		sc.watch.stop()
		sc.watch = nil
	}
	for _, c := range []*child{sc.attackerChild, sc.victimChild} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	sc.attackerChild, sc.victimChild = nil, nil
	sc.cancel()
	if sc.card != nil {
		select {
		case err := <-sc.govern:
			errs = append(errs, err)
		case <-time.After(endWait):
			errs = append(errs, errors.New("the governor does not end"))
		}
	}
	if sc.server != nil && !sc.gone {
		errs = append(errs, sc.server.Close())
	}
	if sc.dir != "" {
		errs = append(errs, os.Remove(sc.dir))
	}
	return errors.Join(errs...)
}
