package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/governor"
)

// openCards opens every card, which also thaws what a crash left frozen there,
// and starts governing it. One that cannot be opened takes no tenants; that
// none can be is an error.
func (w *Worker) openCards(ctx context.Context) error {
	base := w.baselines()
	var slots []Slot
	var errs []error
	for i, info := range w.engine.Cards() {
		c := &cardState{info: info}
		w.cards = append(w.cards, c)
		c.card, c.err = w.engine.Open(i, w.cfg.governor())
		if c.err == nil {
			c.info = c.card.Info()
			c.total, c.used, c.err = c.card.Memory()
		}
		if c.err != nil {
			errs = append(errs, c.err)
			w.log.Error("card takes no tenants", "card", i, "error", c.err)
			c.card = nil
			slots = append(slots, Slot{Info: c.info})
			continue
		}
		c.baseline = c.used
		if base != nil {
			c.baseline = base[c.info.UUID]
		}
		c.info.TotalBytes = c.total
		reserve := w.cfg.Reserve.Of(c.total)
		if w.cfg.Reserve.IsZero() {
			reserve = c.baseline
		}
		slots = append(slots, Slot{Info: c.info, Reserve: reserve})
		w.wg.Go(func() { w.govern(ctx, c) })
	}
	w.ledger = NewLedger(slots, w.cfg.governor())
	if base == nil {
		w.keepBaselines()
	}
	if len(errs) == len(w.cards) {
		return fmt.Errorf("no card is usable: %w", errors.Join(errs...))
	}
	return nil
}

// baselines returns what each card had in use before the tenants that an
// earlier worker left; nil when there are none, so that it can be seen now.
func (w *Worker) baselines() map[string]int64 {
	if promises, _ := w.store.Load(); len(promises) == 0 {
		return nil
	}
	return w.store.Baselines()
}

// govern runs a card's governor until the agent ends.
func (w *Worker) govern(ctx context.Context, c *cardState) {
	err := c.card.Run(ctx)
	if err == nil || ctx.Err() != nil {
		return
	}
	w.log.Error("card is not governed any more", "card", c.info.Index, "error", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	c.err = err
}

// recover attaches the tenants of the last worker again.
func (w *Worker) recover(ctx context.Context) {
	promises, err := w.store.Load()
	if err != nil {
		w.log.Warn("some grants could not be read", "error", err)
	}
	known := map[string]bool{parkedSocket: true, parkedLock: true}
	for _, p := range promises {
		known[p.ID] = true
		if err := w.recoverOne(ctx, p); err != nil {
			w.log.Error("tenant is lost: its further GPU calls fail", "tenant", p.ID, "error", errors.Join(err, w.engine.Thaw(p)))
			w.forget(p.ID)
		}
	}
	for _, name := range w.keep.Names() {
		if !known[name] {
			w.log.Error("tenant is lost: nothing is known of its grant", "tenant", name)
			_ = w.keep.Drop(name)
		}
	}
}

func (w *Worker) recoverOne(ctx context.Context, p Promise) error {
	fd, ok, err := w.keep.Take(p.ID)
	if err != nil {
		return err
	}
	if !ok {
		// It never attached, or both halves died and it with them.
		return errors.Join(w.engine.Thaw(p), w.store.Remove(p.ID))
	}
	w.mu.Lock()
	a, err := w.ledger.Restore(p)
	if err == nil {
		w.tenants[p.ID] = &tenant{Promise: p, rates: map[int]*rate{}}
	}
	w.mu.Unlock()
	if err == nil {
		err = w.configure(a.Configs)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	return w.attach(ctx, p, fd)
}

// configure applies new settings to cards.
func (w *Worker) configure(configs map[int]governor.Config) error {
	for i, cfg := range configs {
		if err := w.cards[i].card.Configure(cfg); err != nil {
			return fmt.Errorf("configure card %d: %w", i, err)
		}
	}
	return nil
}

// admit promises a share to a new tenant.
func (w *Worker) admit(uid uint32, pid int, r Request) (Promise, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leaving {
		return Promise{}, errLeaving
	}
	a, err := w.ledger.Admit(w.newID(), uid, r)
	if err != nil {
		return Promise{}, err
	}
	for _, i := range a.Cards {
		if c := w.cards[i]; c.card == nil || c.err != nil {
			return Promise{}, &Refusal{Card: i, Reason: fmt.Sprintf("card %d is not usable: %v", i, c.err)}
		}
	}
	if err := w.configure(a.Configs); err != nil {
		return Promise{}, err
	}
	a.PID, a.Since = pid, time.Now()
	if err := w.store.Put(a.Promise); err != nil {
		return Promise{}, err
	}
	w.ledger.Commit(a)
	w.tenants[a.ID] = &tenant{Promise: a.Promise, rates: map[int]*rate{}}
	return a.Promise, nil
}

// promised finds the attached tenant that a client wants to go on with, after
// the worker that it spoke to has died.
func (w *Worker) promised(id string, uid uint32) (Promise, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenants[id]
	if t == nil || t.session == nil || t.UID != uid {
		return Promise{}, false
	}
	return t.Promise, true
}

// attach starts the session of an admitted tenant. It owns fd.
func (w *Worker) attach(ctx context.Context, p Promise, fd int) error {
	listener := os.NewFile(uintptr(fd), "listener "+p.ID)
	s, err := w.engine.Attach(listener, p)
	if err != nil {
		_ = listener.Close()
		return fmt.Errorf("attach: %w", err)
	}
	w.mu.Lock()
	w.tenants[p.ID].session = s
	w.mu.Unlock()
	w.log.Info("tenant attached", "tenant", p.ID, "name", p.Request.Name, "uid", p.UID, "pid", p.PID, "cards", p.Cards)
	w.wg.Go(func() {
		err := errors.Join(s.Run(ctx), s.Close())
		_ = listener.Close()
		if ctx.Err() != nil {
			return // the next worker goes on
		}
		if err != nil {
			w.log.Error("tenant is lost: its further GPU calls fail", "tenant", p.ID, "error", err)
		} else {
			w.log.Info("tenant left", "tenant", p.ID, "after", time.Since(p.Since).Round(time.Millisecond))
		}
		w.forget(p.ID)
	})
	return nil
}

// forget takes back what was promised to a tenant that is gone.
func (w *Worker) forget(id string) {
	err := errors.Join(w.keep.Drop(id), w.store.Remove(id))
	if err != nil {
		w.log.Error("tidy up after a tenant", "tenant", id, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.Release(id)
	delete(w.tenants, id)
	w.idle = time.Now()
}

// isListener reports whether fd is a seccomp listener, and nothing that would
// make the engine wait for ever.
func isListener(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && strings.Contains(name, "seccomp notify")
}
