package hostile

import (
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// channelAttacks try to run work that the governor does not know of.
func channelAttacks() []attack {
	return []attack{
		{name: "channel/new-channels-while-frozen", run: newChannels(false)},
		{name: "channel/new-groups-while-frozen", run: newChannels(true)},
		{name: "channel/privileged-flag", run: func(t *tenant) error { return t.oddChannel(nvidia.EngineGR0, 1<<5, false) }},
		{name: "channel/bare-on-graphics", run: func(t *tenant) error { return t.oddChannel(nvidia.EngineGR0, 0, true) }},
		{name: "channel/bare-on-copy", run: func(t *tenant) error { return t.oddChannel(nvidia.EngineCopy0, 0, true) }},
		{name: "channel/wrong-engine-in-group", run: wrongEngine},
		{name: "channel/descriptor-over-group", run: descriptorOverGroup},
		{name: "channel/free-group-as-heap", run: heapFreeGroup},
		{name: "channel/free-parent-device", run: freeDeviceAndGoOn},
		{name: "channel/old-classes", run: oldClasses},
	}
}

// newChannels makes channels (or groups) all the time and submits to each at once: one that is born while the
// tenant is frozen must not run.
func newChannels(groups bool) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		g, err := c.group(nvidia.EngineGR0)
		if err != nil {
			return err
		}
		var last nvidia.Handle
		return t.measured(func() error {
			parent := g
			if groups {
				if parent, err = c.group(nvidia.EngineGR0); t.try(err) != nil {
					time.Sleep(time.Millisecond)
					return nil
				}
			}
			ch, err := c.channel(parent, nvidia.EngineGR0, 0)
			if t.try(err) != nil {
				return nil
			}
			_ = c.control(c.fd, c.root, parent, nvidia.CtrlTSGSchedule, []byte{1, 0, 0})
			if err := c.busy(ch); err != nil {
				return err
			}
			if last != 0 {
				_ = c.release(last)
			}
			last = ch
			if groups {
				last = parent
			}
			return nil
		})
	}
}

// oddChannel makes a channel that a tenant should not get, and works on it if it gets it.
func (t *tenant) oddChannel(e nvidia.EngineType, flags uint32, bare bool) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	parent := c.device
	if !bare {
		if parent, err = c.group(e); err != nil {
			return err
		}
	}
	for range 4 {
		ch, err := c.channel(parent, e, flags)
		if t.try(err) == nil {
			if err := c.busy(ch); err != nil {
				return err
			}
		}
	}
	return t.measure(measureFor)
}

// wrongEngine says of a channel in a graphics group that it is a decoder's.
func wrongEngine(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	g, err := c.group(nvidia.EngineGR0)
	if err != nil {
		return err
	}
	for range 8 {
		ch, err := c.channel(g, nvidia.EngineNVDEC0, 0)
		if t.try(err) == nil {
			if err := c.busy(ch); err != nil {
				return err
			}
		}
	}
	return t.measure(measureFor)
}

// descriptorOverGroup lets the ledger believe that a group's handle is an OS descriptor, then makes channels in it
// that it calls a decoder's.
func descriptorOverGroup(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	g, err := c.group(nvidia.EngineGR0)
	if err != nil {
		return err
	}
	_ = t.try(t.descriptor(c, g))
	for range 4 {
		ch, err := c.channel(g, nvidia.EngineNVDEC0, 0)
		if t.try(err) == nil {
			if err := c.busy(ch); err != nil {
				return err
			}
		}
	}
	return t.measure(measureFor)
}

// descriptor allocates an OS descriptor (class 0x71) with a given handle; its page is the lib's own.
func (t *tenant) descriptor(c *client, h nvidia.Handle) error {
	p := make([]byte, 40)
	_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassOSDescriptor}, p)
	return err
}

// heapFreeGroup frees a group with the heap's call and goes on with others.
func heapFreeGroup(t *tenant) error {
	x, err := t.context()
	if err != nil {
		return err
	}
	_ = t.try(x.HeapFree(x.Device, x.CopyGroups[0]))
	_ = t.try(x.HeapFree(x.Device, x.CopyChannels[4]))
	for _, ch := range x.Channels {
		if _, err := x.Submit(ch, victimKernel, plenty); err != nil {
			return err
		}
	}
	return t.measure(measureFor)
}

// freeDeviceAndGoOn frees a device with all below it, then makes everything again under the same handles.
func freeDeviceAndGoOn(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 3 {
		if err := c.groups(2); err != nil {
			return err
		}
		if err := t.try(c.release(c.device)); err != nil {
			return err
		}
		if c, err = c.clientOn(c.fd, c.root); err != nil {
			return err
		}
	}
	if err := c.groups(2); err != nil {
		return err
	}
	return t.measure(measureFor)
}

// oldClasses makes channels of every generation in a group and under a device.
func oldClasses(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	g, err := c.group(nvidia.EngineGR0)
	if err != nil {
		return err
	}
	for _, class := range []nvidia.Class{0x906f, 0xa06f, 0xa16f, 0xb06f, 0xc06f, 0xc36f, 0xc46f, 0xc56f, 0xc96f, 0xca6f} {
		for _, parent := range []nvidia.Handle{g, c.device} {
			for _, n := range []int{nvidia.SizeChannelParams, nvidia.SizeChannelParams550} {
				p := make([]byte, n)
				_ = nvidia.ChannelParams{EngineType: nvidia.EngineGR0, GPFIFOEntries: 64}.Put(p) // it fits
				ch, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: parent, Class: class}, p)
				if t.try(err) == nil {
					_ = c.busy(ch)
				}
			}
		}
	}
	return t.measure(measureFor)
}
