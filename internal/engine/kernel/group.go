package kernel

import (
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// group is what the hardware schedules as one: a TSG with its channels, or a
// channel that hangs directly under a device (the codecs' are like that).
// Guarded by the card's lock once it is on a card.
type group struct {
	id       governor.GroupID
	engine   nvidia.EngineType
	bare     bool
	client   nvidia.Handle
	handle   nvidia.Handle // of the TSG, or of the bare channel
	channels []nvidia.Handle
	slice    time.Duration // last one set, 0 = the driver's own
	orphaned time.Duration // when its file was given up, 0 = it was not
}

// refs lists the group's channels as the driver's lists want them.
func (g *group) refs() []nvidia.ChannelRef {
	list := make([]nvidia.ChannelRef, 0, len(g.channels))
	for _, h := range g.channels {
		list = append(list, nvidia.ChannelRef{Client: g.client, Channel: h})
	}
	return list
}

// engineOf maps the driver's engine kinds to the governor's runlists.
func engineOf(t nvidia.EngineType) (governor.Engine, bool) {
	switch t.Kind() {
	case nvidia.KindGraphics:
		return governor.Graphics, true
	case nvidia.KindCopy:
		return governor.Copy, true
	case nvidia.KindDecode:
		return governor.Decode, true
	case nvidia.KindEncode:
		return governor.Encode, true
	case nvidia.KindJPEG:
		return governor.JPEG, true
	case nvidia.KindOpticalFlow:
		return governor.OpticalFlow, true
	}
	return 0, false
}

// planDevice notes which devices were not granted. A library may look at them;
// memory and channels of theirs are refused.
func (s *Session) planDevice(p *purchase, params []byte) {
	if instance, err := nvidia.U32At(params, 0); err == nil {
		p.foreign = int(instance) != s.card.info.Index
	} else {
		p.foreign = s.card.info.Index != 0 // without parameters it is device 0
	}
}

// onForeign reports whether an object hangs under a device that was not
// granted.
func (s *Session) onForeign(root, h nvidia.Handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ledger.clients[root]
	for depth := 0; c != nil && depth < 16; depth++ {
		o := c.objects[h]
		if o == nil {
			return false
		}
		if o.foreign {
			return true
		}
		h = o.parent
	}
	return false
}

// grouped reports whether an object is a TSG or a channel.
func (s *Session) grouped(client, h nvidia.Handle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ledger.clients[client]
	return c != nil && c.objects[h] != nil && c.objects[h].group != nil
}

// planGroup works out the hidden cost of a TSG and puts it under the governor.
func (s *Session) planGroup(p *purchase, a nvidia.Alloc, params []byte) *denial {
	g, err := nvidia.DecodeGroupParams(params)
	if err != nil {
		return &denial{status: nvidia.StatusInvalidParamStruct, why: "TSG without its parameters"}
	}
	if g.EngineType.Kind() == nvidia.KindGraphics {
		p.overhead = s.card.overhead
	}
	p.group = &group{engine: g.EngineType, client: a.Root}
	return s.fewGroups(g.EngineType)
}

// fewGroups refuses a TSG beyond the bound: each one more costs everybody on
// the card a switch a round.
func (s *Session) fewGroups(e nvidia.EngineType) *denial {
	s.card.mu.Lock()
	defer s.card.mu.Unlock()
	n, contexts := 0, 0
	for id, o := range s.card.owner {
		if o != s {
			continue
		}
		n++
		if s.card.groups[id].engine.Kind() == nvidia.KindGraphics {
			contexts++
		}
	}
	if n >= maxGroups || (contexts >= maxContexts && e.Kind() == nvidia.KindGraphics) {
		return &denial{status: nvidia.StatusInsufficientResources, why: "more TSGs than one tenant may have"}
	}
	return nil
}

// planChannel puts a channel under its TSG's governance. One without a TSG
// gets a hidden one from the driver whose slice cannot be set: codecs work
// that way and are governed by freezing, compute must not escape that way.
func (s *Session) planChannel(p *purchase, a nvidia.Alloc, params []byte) *denial {
	c, err := nvidia.DecodeChannelParams(params)
	if err != nil {
		return &denial{status: nvidia.StatusInvalidParamStruct, why: "channel without its parameters"}
	}
	if c.Flags&nvidia.ChannelFlagPrivileged != 0 {
		return &denial{status: nvidia.StatusInsufficientPermissions, why: "privileged channel"}
	}
	s.mu.Lock()
	var parent *object
	if cl := s.ledger.clients[a.Root]; cl != nil {
		parent = cl.objects[a.Parent]
	}
	s.mu.Unlock()
	if parent != nil && parent.group != nil && !parent.group.bare {
		p.group, p.channel = parent.group, true
		return nil
	}
	kind := c.EngineType.Kind()
	if s.level == Strict && (kind == nvidia.KindGraphics || kind == nvidia.KindCopy) {
		return &denial{status: nvidia.StatusInvalidObjectParent, why: "channel on " + c.EngineType.String() + " outside a TSG"}
	}
	p.group, p.channel = &group{engine: c.EngineType, bare: true, client: a.Root}, true
	return s.fewGroups(c.EngineType)
}

// govern puts a new TSG or channel under the governor before its allocation is
// answered, so that it has its slice before its first work.
func (s *Session) govern(done nvidia.Alloc, p *purchase) {
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	g := p.group
	if p.channel {
		g.channels = append(g.channels, done.New)
		if !g.bare {
			return
		}
	}
	g.handle = done.New
	c.add(s, g)
}

// retire takes freed TSGs and channels out of the governor.
func (s *Session) retire(gone freed) {
	if len(gone) == 0 {
		return
	}
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range gone {
		g := o.group
		if g == nil {
			continue
		}
		if o.handle == g.handle {
			c.remove(g)
			continue
		}
		for i, h := range g.channels {
			if h == o.handle {
				g.channels = append(g.channels[:i], g.channels[i+1:]...)
				break
			}
		}
	}
}

// schedule forwards the call that makes channels runnable. A tenant that is
// frozen waits for its turn first: the driver would run it at once.
func (s *Session) schedule(k *call, st *staged) answer {
	return s.scheduleInTurn(k, st)()
}

func (s *Session) scheduleInTurn(k *call, st *staged) func() answer {
	c := s.card
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.running && c.gov.Frozen(s.tenant) && !s.stopping.Load() {
		c.turn.Wait()
	}
	return s.execute(k, st, nil)
}
