package hostile

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// measureFor is how long engine time is compared: a good many cycles of the governor.
const measureFor = 400 * time.Millisecond

// timeAttacks try to get more engine time than the share.
func timeAttacks() []attack {
	return []attack{
		{name: "time/nothing-special", harmless: true, run: func(t *tenant) error { return t.working(nil) }},
		{name: "time/set-timeslice", run: onGroup(setSlice(100_000))},
		{name: "time/set-timeslice-endless", run: onGroup(setSlice(1 << 40))},
		{name: "time/preempt", run: onGroup(func(c *rm.Client, g nvidia.Handle) error {
			return c.Control(g, nvidia.CtrlTSGPreempt, make([]byte, 8))
		})},
		{name: "time/interleave-level", run: onGroup(func(c *rm.Client, g nvidia.Handle) error {
			return c.Control(g, nvidia.CtrlTSGSetInterleave, []byte{2, 0, 0, 0})
		})},
		{name: "time/make-realtime", run: onGroup(func(c *rm.Client, g nvidia.Handle) error {
			return c.Control(g, nvidia.CtrlTSGMakeRealtime, []byte{1})
		})},
		{name: "time/schedule-while-frozen", run: onGroup(func(c *rm.Client, g nvidia.Handle) error {
			return c.Control(g, nvidia.CtrlTSGSchedule, []byte{1, 0, 0})
		})},
		{name: "time/thaw-itself", run: func(t *tenant) error { return t.toggle(false, nil) }},
		{name: "time/freeze-neighbour", run: func(t *tenant) error { return t.toggle(true, &t.Victim) }},
		{name: "time/freeze-neighbour-by-guess", run: freezeByGuess},
		{name: "time/slice-of-neighbour", run: sliceOfNeighbour},
		{name: "time/moved-control-file", setup: byWeight(1, 4), run: movedFile},
		{name: "time/moved-control-file-low", setup: lowPriority(), run: movedFile},
		{name: "time/unshared-files", setup: lowPriority(), run: unsharedFiles},
		{name: "time/many-groups", setup: byWeight(1, 1), run: manyGroups},
		{name: "time/many-groups-fixed", run: manyGroups},
		{name: "time/long-kernels", run: longKernels},
		{name: "time/dead-channels", run: deadChannels},
	}
}

// byWeight is a work-conserving setup.
func byWeight(attacker, victim int) setup {
	sum := float64(attacker + victim)
	return setup{
		policy: governor.Weighted, attacker: governor.Tenant{Weight: attacker}, victim: governor.Tenant{Weight: victim},
		expectAttacker: float64(attacker) / sum, expectVictim: float64(victim) / sum,
	}
}

// lowPriority is an attacker of the low class beside a busy victim of the high one, which gets prio_ratio of the card.
func lowPriority() setup {
	return setup{
		policy: governor.Preemptive, attacker: governor.Tenant{Priority: governor.Low}, victim: governor.Tenant{Priority: governor.High},
		expectAttacker: 0.02, expectVictim: 0.92,
	}
}

// working starts a context, keeps its compute channels busy, does something all the while, and is measured.
func (t *tenant) working(during func(x *rm.Context) error) error {
	x, err := t.context()
	if err != nil {
		return err
	}
	for _, ch := range x.Channels {
		if _, err := x.Submit(ch, victimKernel, plenty); err != nil {
			return err
		}
	}
	return t.measured(func() error {
		if during == nil {
			time.Sleep(time.Millisecond)
			return nil
		}
		return during(x)
	})
}

// measured is measured while fn is repeated.
func (t *tenant) measured(fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- t.measure(measureFor) }()
	for {
		select {
		case err := <-done:
			return err
		default:
		}
		if err := fn(); err != nil {
			return err
		}
	}
}

// onGroup repeats a control on the tenant's own channel group.
func onGroup(fn func(c *rm.Client, g nvidia.Handle) error) func(*tenant) error {
	return func(t *tenant) error {
		return t.working(func(x *rm.Context) error {
			_ = t.try(fn(x.Client, x.Compute))
			time.Sleep(time.Millisecond)
			return nil
		})
	}
}

func setSlice(micros uint64) func(c *rm.Client, g nvidia.Handle) error {
	return func(c *rm.Client, g nvidia.Handle) error { return c.SetTimeslice(g, micros) }
}

// toggle freezes or thaws channels: the neighbour's, or its own.
func (t *tenant) toggle(freeze bool, whose *Handles) error {
	return t.working(func(x *rm.Context) error {
		var list []nvidia.ChannelRef
		if whose == nil {
			for _, ch := range x.Channels {
				list = append(list, nvidia.ChannelRef{Client: x.Handle, Channel: ch})
			}
		} else {
			for _, ch := range whose.Channels {
				list = append(list, nvidia.ChannelRef{Client: whose.Client, Channel: ch})
			}
		}
		_ = t.try(x.Freeze(x.Subdevice, freeze, list))
		time.Sleep(time.Millisecond)
		return nil
	})
}

// freezeByGuess counts through the handles that a neighbour is likely to have.
func freezeByGuess(t *tenant) error {
	next := uint32(0)
	return t.working(func(x *rm.Context) error {
		var list []nvidia.ChannelRef
		for range 16 {
			list = append(list, nvidia.ChannelRef{Client: 0xc1d00001 + nvidia.Handle(next/64%8), Channel: 0xcaf00001 + nvidia.Handle(next%64)})
			next++
		}
		for _, ref := range list {
			_ = t.try(x.Freeze(x.Subdevice, true, []nvidia.ChannelRef{ref}))
		}
		return nil
	})
}

// sliceOfNeighbour makes the per-group controls with the neighbour's handles, and frees its objects.
func sliceOfNeighbour(t *tenant) error {
	return t.working(func(x *rm.Context) error {
		p := make([]byte, 8)
		binary.LittleEndian.PutUint64(p, 1)
		_ = t.try(t.control(x.FD, t.Victim.Client, t.Victim.Group, nvidia.CtrlTSGSetTimeslice, p))
		_ = t.try(t.control(x.FD, t.Victim.Client, t.Victim.Group, nvidia.CtrlTSGPreempt, make([]byte, 8)))
		_ = t.try(t.control(x.FD, t.Victim.Client, t.Victim.Channels[0], 0xa06f0112, []byte{1}))
		_ = t.try(t.free(x.FD, t.Victim.Client, t.Victim.Channels[0]))
		_ = t.try(t.free(x.FD, t.Victim.Client, t.Victim.Memory))
		_ = t.try(t.free(x.FD, t.Victim.Client, t.Victim.Client))
		return nil
	})
}

const severalGroups = 16

// groups makes n busy groups with one channel each.
func (c *client) groups(n int) error {
	for range n {
		g, err := c.group(nvidia.EngineGR0)
		if err != nil {
			return err
		}
		ch, err := c.channel(g, nvidia.EngineGR0, 0)
		if err != nil {
			return err
		}
		if err := c.busy(ch); err != nil {
			return err
		}
	}
	return nil
}

// movedFile has its client on a descriptor that it then closes: the file lives on under another number.
func movedFile(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	old := c.fd
	if c.fd, err = unix.Dup(old); err != nil {
		return err
	}
	if err := unix.Close(old); err != nil {
		return err
	}
	if err := c.groups(severalGroups); err != nil {
		return err
	}
	t.note("%d groups on a file that moved", severalGroups)
	return t.measure(measureFor)
}

// unsharedFiles makes its client in a thread that has a descriptor table of its own.
func unsharedFiles(t *tenant) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		c, err := t.client()
		if err != nil {
			return err
		}
		if err := c.groups(severalGroups); err != nil {
			return err
		}
		t.note("%d groups of a thread with its own descriptors", severalGroups)
		time.Sleep(sweepWait)
		return t.measure(measureFor)
	})
}

// manyGroups makes as many groups as memory allows: each change between groups costs everybody time.
func manyGroups(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	n := 0
	for ; n < 300; n++ {
		if t.try(c.groups(1)) != nil {
			break
		}
	}
	t.note("%d groups", n)
	return t.measure(measureFor)
}

// longKernels submits work that is far longer than a slot.
func longKernels(t *tenant) error {
	x, err := t.context()
	if err != nil {
		return err
	}
	for _, ch := range x.Channels {
		if _, err := x.Submit(ch, 300*time.Millisecond, 100); err != nil {
			return err
		}
	}
	return t.measure(measureFor)
}

// deadChannels closes files without a word, again and again, so that lists of what is to be frozen hold the dead.
func deadChannels(t *tenant) error {
	for range 12 {
		c, err := t.client()
		if err != nil {
			return err
		}
		g, err := c.group(nvidia.EngineGR0)
		if err != nil {
			break
		}
		for range 24 {
			if _, err := c.channel(g, nvidia.EngineGR0, 0); t.try(err) != nil {
				break
			}
		}
		closeAll(c.fd)
	}
	return t.working(nil)
}
