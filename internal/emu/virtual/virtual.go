// Package virtual runs pretended tenants and a governor on an emulated card in virtual time: exact, repeatable,
// and as fast as the processor allows, however loaded the machine is.
package virtual

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Governor is what the loop asks about who may run; *governor.Governor is one. A loop without a governor shows
// what the hardware does by itself.
type Governor interface {
	Put(governor.Tenant) error
	Remove(governor.TenantID)
	AddGroup(governor.TenantID, governor.GroupID, governor.Engine, ...governor.GroupFlag) error
	RemoveGroup(governor.GroupID)
	Frozen(governor.TenantID) bool
	Slices() []governor.Slice
	Applied(governor.Slice)
	Step(now time.Duration) ([]governor.Action, time.Duration)
	Next() time.Duration
	Done(a governor.Action, start, end time.Duration)
}

// Load is what a tenant does on the compute engine.
type Load struct {
	// Kernel is one piece of work; 0 leaves the tenant idle.
	Kernel time.Duration
	// Period, when set, submits Pieces (default 1) each Period; otherwise the queue is never empty.
	Period time.Duration
	Pieces int64
	// Frames keeps this many pieces of Frame length in flight on the decode engines.
	Frames int
	Frame  time.Duration
}

// Loop is a card, a supervisor that executes a governor's wishes, and tenants.
type Loop struct {
	Card *card.Card
	gov  Governor
	port *rm.Local
	sup  *rm.Context

	now     time.Duration
	tenants []*tenant
	byGroup map[governor.GroupID]group
	nextGID governor.GroupID
	nextPID int
	// calls are what the supervisor has to do, one after the other; it is in one until busy.
	calls []supervisorCall
	busy  time.Duration
	// Calls counts the freezes and thaws made.
	Calls int
	err   error
}

// supervisorCall is one call in the supervisor's queue. do makes it and returns when it is over.
type supervisorCall struct {
	do   func() (time.Duration, error)
	done func(start, end time.Duration)
	// start is when do was called.
	start   time.Duration
	started bool
}

type group struct {
	t      *tenant
	handle nvidia.Handle
}

// New makes a loop. gov may be nil.
func New(cfg card.Config, gov Governor) (*Loop, error) {
	l := &Loop{Card: card.New(cfg), gov: gov, byGroup: map[governor.GroupID]group{}, nextPID: 100}
	l.port = rm.NewLocal(l.Card, 1)
	var err error
	if l.sup, err = rm.Start(l.port); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	return l, nil
}

// Join admits a tenant and starts its program. Its groups are told to the governor as they are made, and frozen
// at once if the governor says so.
func (l *Loop) Join(who governor.Tenant, load Load) error {
	if l.gov != nil {
		if err := l.gov.Put(who); err != nil {
			return err
		}
	}
	l.nextPID++
	t := &tenant{l: l, id: who.ID, load: load, port: rm.NewLocal(l.Card, l.nextPID), next: l.now}
	var err error
	if t.x, err = rm.Start(t.port); err != nil {
		return fmt.Errorf("start tenant %s: %w", who.ID, err)
	}
	t.file, _ = t.port.File(t.x.FD)
	t.work = t.ref(t.x.Client, t.x.Channels[0])
	t.channels = refs(t.x.Client, t.x.Channels, t.x.CopyChannels)
	if err := l.tell(t, t.x.Compute, governor.Graphics); err != nil {
		return err
	}
	for _, g := range t.x.CopyGroups {
		if err := l.tell(t, g, governor.Copy); err != nil {
			return err
		}
	}
	if load.Frames > 0 {
		if err := t.startDecoder(); err != nil {
			return err
		}
	}
	l.tenants = append(l.tenants, t)
	if l.gov != nil && l.gov.Frozen(who.ID) {
		l.queueFreeze(t, true, func(_, _ time.Duration) {})
	}
	return t.react()
}

// tell adds a group to the governor.
func (l *Loop) tell(t *tenant, h nvidia.Handle, e governor.Engine, flags ...governor.GroupFlag) error {
	if l.gov == nil {
		return nil
	}
	l.nextGID++
	if err := l.gov.AddGroup(t.id, l.nextGID, e, flags...); err != nil {
		return fmt.Errorf("group of tenant %s: %w", t.id, err)
	}
	l.byGroup[l.nextGID] = group{t, h}
	t.groups = append(t.groups, l.nextGID)
	return nil
}

// Leave kills a tenant's program.
func (l *Loop) Leave(id governor.TenantID) {
	i := slices.IndexFunc(l.tenants, func(t *tenant) bool { return t.id == id })
	if i < 0 {
		return
	}
	t := l.tenants[i]
	t.port.Kill()
	t.gone = true
	l.tenants = slices.Delete(l.tenants, i, i+1)
	for _, g := range t.groups {
		delete(l.byGroup, g)
	}
	if l.gov != nil {
		l.gov.Remove(id)
	}
}

// Run lets d pass.
func (l *Loop) Run(d time.Duration) error {
	until := l.now + d
	for l.now < until {
		l.govern()
		l.advance(until)
		if l.err != nil {
			return l.err
		}
	}
	return nil
}

// advance moves to the next thing that happens.
func (l *Loop) advance(until time.Duration) {
	next := until
	at := func(t time.Duration) {
		if t > l.now {
			next = min(next, t)
		}
	}
	if t, ok := l.Card.NextEvent(); ok {
		at(t)
	}
	if len(l.calls) > 0 {
		at(l.busy)
	} else if l.gov != nil {
		at(l.gov.Next())
	}
	for _, t := range l.tenants {
		if t.load.Period > 0 {
			at(t.next)
		}
	}
	l.now = next
	l.Card.Advance(next)
	for _, t := range l.tenants {
		if err := t.react(); err != nil && l.err == nil {
			l.err = err
		}
	}
}

// govern makes the supervisor go on: it finishes and begins calls, and asks the governor when it has none.
func (l *Loop) govern() {
	if l.gov == nil {
		return
	}
	for {
		if len(l.calls) == 0 {
			acts, next := l.gov.Step(l.now)
			for _, s := range l.gov.Slices() {
				l.queueSlice(s)
			}
			for _, a := range acts {
				l.queueAction(a)
			}
			if len(l.calls) == 0 {
				if next <= l.now && l.err == nil {
					l.err = fmt.Errorf("the governor is due at %v and does nothing at %v", next, l.now)
				}
				return
			}
		}
		c := &l.calls[0]
		if !c.started {
			c.started, c.start = true, l.now
			end, err := c.do()
			if err != nil && l.err == nil {
				l.err = err
			}
			l.busy = end
		}
		if l.busy > l.now {
			return
		}
		done, start := c.done, c.start
		l.calls = l.calls[1:]
		done(start, l.now)
	}
}

func (l *Loop) queueSlice(s governor.Slice) {
	l.calls = append(l.calls, supervisorCall{
		do: func() (time.Duration, error) {
			g, ok := l.byGroup[s.Group]
			if !ok {
				return l.now, nil // it left in the meantime
			}
			// On the tenant's own file, as the engine does with its duplicate.
			err := g.t.x.SetTimeslice(g.handle, uint64(s.Duration/time.Microsecond))
			return g.t.port.Done, err
		},
		done: func(_, _ time.Duration) { l.gov.Applied(s) },
	})
}

func (l *Loop) queueAction(a governor.Action) {
	i := slices.IndexFunc(l.tenants, func(t *tenant) bool { return t.id == a.Tenant })
	if i < 0 {
		return
	}
	l.queueFreeze(l.tenants[i], a.Kind == governor.Freeze, func(start, end time.Duration) { l.gov.Done(a, start, end) })
}

// queueFreeze disables or enables all channels of a tenant with one call of the supervisor's own client.
func (l *Loop) queueFreeze(t *tenant, disable bool, done func(start, end time.Duration)) {
	l.calls = append(l.calls, supervisorCall{
		do: func() (time.Duration, error) {
			if t.gone {
				return l.now, nil
			}
			l.Calls++
			var errs []error
			for list := range slices.Chunk(t.channels, nvidia.MaxFifoDisableChannels) {
				errs = append(errs, l.sup.Freeze(l.sup.Subdevice, disable, list))
			}
			return l.port.Done, errors.Join(errs...)
		},
		done: done,
	})
}
