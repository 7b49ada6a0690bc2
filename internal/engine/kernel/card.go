package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Card is one card under the engine's control: who may use it, and the
// governor that says when.
type Card struct {
	info     CardInfo
	log      *slog.Logger
	control  *cardClient
	overhead int64 // bytes the driver takes for one graphics TSG
	clock    func() time.Duration

	// memory is held while a release is compared with the card's own figure,
	// and while device memory is allocated. It is taken before all other locks.
	memory   sync.Mutex
	baseline *int64 // in use when no tenant was there; guarded by memory

	mu       sync.Mutex // also held during freezing, thawing and slice setting
	gov      *governor.Governor
	groups   map[governor.GroupID]*group
	owner    map[governor.GroupID]*Session
	sessions map[governor.TenantID]*Session
	lastID   governor.GroupID
	running  bool
	turn     *sync.Cond // a tenant was thawed
	poke     chan struct{}
	failures uint64
}

// Info describes the card.
func (c *Card) Info() CardInfo { return c.info }

// Memory returns the card's device memory and how much of it is in use by
// whomever, as the driver counts it, in bytes.
func (c *Card) Memory() (total, used int64, err error) { return c.control.memory() }

// Governor returns what the governor knows, for reports.
func (c *Card) Governor() governor.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gov.Snapshot()
}

// Configure changes policy and settings while tenants run.
func (c *Card) Configure(gc governor.Config) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.gov.Configure(gc); err != nil {
		return err
	}
	c.applySlices()
	c.wake()
	return nil
}

// otherSession returns a session, other than one, that a process is known to
// belong to.
func (c *Card) otherSession(pid int, than *Session) *Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		if s == than {
			continue
		}
		s.mu.Lock()
		known := s.procs[pid] != nil
		s.mu.Unlock()
		if known {
			return s
		}
	}
	return nil
}

// admit puts a tenant under the governor.
func (c *Card) admit(s *Session, t governor.Tenant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.gov.Put(t); err != nil {
		return err
	}
	c.sessions[t.ID] = s
	c.applySlices()
	c.wake()
	return nil
}

// forget drops a session when nothing of it is left on the card: until then
// its charges explain what is in use.
func (c *Card) forget(s *Session) {
	c.memory.Lock()
	defer c.memory.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.tenant] == s {
		delete(c.sessions, s.tenant)
	}
}

// leave takes a tenant and its groups away. Channels that outlive it (another
// process holds the file) are thawed first.
func (c *Card) leave(t governor.TenantID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, s := range c.owner {
		if s.tenant == t {
			c.remove(c.groups[id])
		}
	}
	c.gov.Remove(t)
	c.applySlices()
	c.wake()
	c.turn.Broadcast()
}

// add puts a new group under the governor and sets its slice. The lock is held.
func (c *Card) add(s *Session, g *group) {
	e, ok := engineOf(g.engine)
	if !ok {
		return
	}
	c.lastID++
	g.id = c.lastID
	var flags []governor.GroupFlag
	if g.bare {
		flags = append(flags, governor.SlotOnly)
	}
	if err := c.gov.AddGroup(s.tenant, g.id, e, flags...); err != nil {
		c.log.Error("govern a new group", "tenant", s.tenant, "engine", g.engine, "err", err)
		return
	}
	c.groups[g.id], c.owner[g.id] = g, s
	c.applySlices()
	c.wake()
}

// remove takes a group out. The lock is held.
func (c *Card) remove(g *group) {
	if g == nil || c.groups[g.id] != g {
		return
	}
	delete(c.groups, g.id)
	delete(c.owner, g.id)
	c.gov.RemoveGroup(g.id)
	c.wake()
}

// applySlices sets the time slices that changed. The lock is held.
func (c *Card) applySlices() {
	for _, sl := range c.gov.Slices() {
		g, s := c.groups[sl.Group], c.owner[sl.Group]
		if g == nil || s == nil {
			continue
		}
		if err := s.setSlice(g, uint64(sl.Duration.Microseconds())); err != nil {
			c.failures++
			c.log.Debug("set a time slice", "tenant", s.tenant, "group", g.handle, "err", err)
			continue
		}
		g.slice = sl.Duration
		c.gov.Applied(sl)
	}
}

func (c *Card) wake() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// Run drives the governor until ctx ends and then thaws everybody: freezing
// must never outlive who decides on it.
func (c *Card) Run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: its priority dies with it
	raisePriority()
	c.mu.Lock()
	c.running = true
	c.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := c.step()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return c.thawAll()
		case <-c.poke:
		case <-timer.C:
		}
	}
}

// maxWait bounds the governor's sleep, so that a wrong answer of it heals.
const maxWait = time.Second

// step lets the governor decide and does what it says.
func (c *Card) step() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	acts, next := c.gov.Step(c.clock())
	for len(acts) > 0 {
		n := 1
		for n < len(acts) && acts[n].Kind == acts[0].Kind {
			n++
		}
		c.act(acts[:n])
		acts = acts[n:]
	}
	c.applySlices()
	if next == governor.Never {
		return maxWait
	}
	return min(max(0, next-c.clock()), maxWait)
}

// act freezes or thaws the tenants of actions of one kind in as few calls as
// the lists allow. The lock is held.
func (c *Card) act(acts []governor.Action) {
	var list []nvidia.ChannelRef
	for _, a := range acts {
		list = append(list, c.channels(a.Tenant)...)
	}
	freeze := acts[0].Kind == governor.Freeze
	started := c.clock()
	dead, err := c.control.disable(freeze, list)
	c.bury(dead)
	if err != nil {
		c.failures++
		c.log.Debug("freeze or thaw", "freeze", freeze, "channels", len(list), "err", err)
	}
	done := c.clock()
	c.log.Debug("act", "freeze", freeze, "tenants", len(acts), "channels", len(list), "took", done-started)
	c.report(acts, started, done)
	if !freeze {
		c.turn.Broadcast()
	}
}

// bury takes channels that the driver does not know any more out of the lists.
// Their file was closed without a call; until that is seen, one of them in a
// list makes the driver refuse the whole list. The lock is held.
func (c *Card) bury(dead []nvidia.ChannelRef) {
	for _, d := range dead {
		for _, g := range c.groups {
			if g.client != d.Client {
				continue
			}
			for i, h := range g.channels {
				if h == d.Channel {
					g.channels = append(g.channels[:i], g.channels[i+1:]...)
					break
				}
			}
		}
	}
}

// report tells the governor how long its actions took.
func (c *Card) report(acts []governor.Action, from, to time.Duration) {
	for _, a := range acts {
		c.gov.Done(a, from, to)
	}
}

// channels lists everything of a tenant that can be frozen. The lock is held.
func (c *Card) channels(t governor.TenantID) []nvidia.ChannelRef {
	var list []nvidia.ChannelRef
	for id, g := range c.groups {
		if c.owner[id].tenant != t {
			continue
		}
		list = append(list, g.refs()...)
	}
	return list
}

// thawAll enables every channel, whatever is believed of its state.
func (c *Card) thawAll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
	c.gov.Reset()
	var errs []error
	for t := range c.sessions {
		_, err := c.control.disable(false, c.channels(t))
		errs = append(errs, err)
	}
	c.turn.Broadcast()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("thaw everybody: %w", err)
	}
	return nil
}

// raisePriority lets the governor's thread run ahead of tenants' host code,
// where that is permitted; slots end on time on a loaded machine then.
func raisePriority() {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 10}
	if unix.SchedSetAttr(0, attr, 0) != nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -10)
	}
}
