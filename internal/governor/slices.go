package governor

import (
	"math/bits"
	"time"
)

const (
	// stretchMax bounds how much a cycle grows to keep slices above MinSlice.
	stretchMax = 4
	// sliceFloor is the shortest slice ever set; the hardware takes it.
	sliceFloor = 50 * time.Microsecond
)

// Slices returns the slices to set: those that changed since they were last
// returned, tenant by tenant in the order they came. Report those that the
// hardware took with Applied; Forget makes the others come again.
func (g *Governor) Slices() []Slice {
	g.refresh()
	if !g.resized {
		return nil
	}
	g.resized = false
	var out []Slice
	for e := Engine(0); e < engineKinds; e++ {
		out = g.sliceEngine(out, e)
	}
	return out
}

// Applied tells that the hardware has taken a slice.
func (g *Governor) Applied(s Slice) {
	if gr := g.groups[s.Group]; gr != nil {
		gr.confirmed = s.Duration
	}
}

// Forget makes slices that were returned and not Applied come again.
func (g *Governor) Forget() {
	for _, gr := range g.groups {
		gr.sent = gr.confirmed
	}
	g.resized = true
}

// sharer is a tenant with groups on one engine and the work it may do there per
// round of the runlist.
type sharer struct {
	*tenant
	groups int           // with a slice of their own, on this engine
	active int           // of these, not seen idle; all if all are idle
	work   time.Duration // per round
	low    bool          // low beside high: work is the slice
}

// sliceEngine appends the changed slices of one engine's groups.
func (g *Governor) sliceEngine(out []Slice, e Engine) []Slice {
	var buf [maxInstLimit]sharer
	on := g.sharersOn(buf[:0], e)
	switch {
	case len(on) == 0:
		return out
	case g.cfg.Policy == Native:
		return g.sliceNative(out, on, e)
	case g.cfg.Policy == Soft:
		for i := range on {
			on[i].work = g.cfg.Cycle >> bits.Len(uint(len(on)-1)) * time.Duration(on[i].active)
		}
	default:
		g.shareOut(on)
	}
	for _, s := range on {
		each := g.sliceOf(s)
		for _, gr := range s.tenant.groups {
			switch {
			case gr.engine != e || gr.slotOnly:
			case gr.idle && s.active < s.groups:
				out = gr.send(out, min(each, g.cfg.MinSlice))
			default:
				out = gr.send(out, each)
			}
		}
	}
	return out
}

// sharersOn collects the tenants with groups on an engine.
func (g *Governor) sharersOn(on []sharer, e Engine) []sharer {
	for _, t := range g.tenants {
		s := sharer{tenant: t}
		for _, gr := range t.groups {
			if gr.engine == e && !gr.slotOnly {
				s.groups++
				if !gr.idle {
					s.active++
				}
			}
		}
		if s.active == 0 {
			s.active = s.groups
		}
		if s.groups > 0 {
			on = append(on, s)
		}
	}
	return on
}

// sliceOf is the slice of each active group of a tenant.
func (g *Governor) sliceOf(s sharer) time.Duration {
	d := s.work / time.Duration(s.active)
	if !s.low {
		d += g.cfg.Hardware.SliceLoss
	}
	return min(max(d, sliceFloor), sliceMax).Round(time.Microsecond)
}

// send appends the slice unless it was returned before.
func (gr *group) send(out []Slice, d time.Duration) []Slice {
	if gr.sent == d {
		return out
	}
	gr.sent = d
	return append(out, Slice{gr.id, d})
}

// sliceNative gives back the driver's own slices where they had been changed.
func (g *Governor) sliceNative(out []Slice, on []sharer, e Engine) []Slice {
	d := g.cfg.Hardware.NativeSlice
	if e != Graphics {
		d = g.cfg.Hardware.NativeCopySlice
	}
	for _, s := range on {
		for _, gr := range s.tenant.groups {
			if gr.engine == e && !gr.slotOnly && gr.sent != 0 {
				out = gr.send(out, d)
			}
		}
	}
	return out
}

// shareOut sets the work of all tenants on an engine: a hard tenant's is its share
// of the cycle, unless slots are used (slotSlice).
func (g *Governor) shareOut(on []sharer) {
	cycle, left := g.period(), Card
	var sharing []sharer
	for i := range on {
		if s := &on[i]; s.hard {
			left -= s.share
			s.work = part(cycle, int64(s.share), int64(Card))
			if !g.open {
				s.work = g.slotSlice(s.work, s.active) * time.Duration(s.active)
			}
		}
	}
	if !g.open {
		left = g.remainder
	}
	// Partition in place: order among sharers is kept, and hard ones are done.
	n := 0
	for i := range on {
		if !on[i].hard {
			on[n], on[i] = on[i], on[n]
			n++
		}
	}
	sharing = on[:n]
	shareByClass(g.cfg, sharing, part(cycle, int64(left), int64(Card)))
	if g.open {
		stretch(on, g.cfg.MinSlice)
	} else {
		stretch(sharing, g.cfg.MinSlice)
	}
}

// slotSlice is the slice of each of a hard tenant's groups while slots are used. No
// slice may end during the handover, when the entering tenant is thawed and this
// one is not yet frozen: the runlist would go on to the other tenant. So the last
// of the slices that fit into the slot begins before and ends after it.
func (g *Governor) slotSlice(slot time.Duration, groups int) time.Duration {
	hw := g.cfg.Hardware
	lead := hw.ThawCost + hw.FreezeCost + hw.SwitchCost // before the slot's end
	n := min(time.Duration(groups), slot/max(g.cfg.MinSlice, 3*lead/2))
	if n <= 1 {
		return slot + lead + g.cfg.MinSlice
	}
	least, most := (slot+lead/4)/n, (slot-lead)/(n-1)
	return (least+most)/2 - hw.SwitchCost
}

// part is d × num / den.
func part(d time.Duration, num, den int64) time.Duration {
	return time.Duration(int64(d) * num / den)
}

// shareByClass divides a budget among classes by PrioRatio and among the tenants
// of a class by weight. Low tenants beside a high one get LowSlice each, whatever
// their weight, and then each high one has at least HighSlice.
func shareByClass(cfg Config, on []sharer, budget time.Duration) {
	var weights [3]int64 // by Priority
	for _, s := range on {
		weights[s.Priority] += s.weight
	}
	latency := weights[High] > 0 && weights[Low] > 0
	left := budget
	for _, class := range []Priority{High, Normal, Low} {
		if weights[class] == 0 {
			continue
		}
		below := class != Low && weights[Low] > 0 && !latency || class == High && weights[Normal] > 0
		mine := left
		if below {
			mine = part(left, int64(cfg.PrioRatio), 100)
		}
		left -= mine
		for i := range on {
			s := &on[i]
			if s.Priority != class {
				continue
			}
			s.work = part(mine, s.weight, weights[class])
			if s.low = latency && class == Low; s.low {
				s.work = cfg.LowSlice
			}
		}
	}
	if latency {
		raiseHigh(cfg, on)
	}
}

// raiseHigh scales the slices so that each high tenant has at least HighSlice.
func raiseHigh(cfg Config, on []sharer) {
	least := cfg.HighSlice
	for _, s := range on {
		if s.Priority == High {
			least = min(least, s.work)
		}
	}
	for i := range on {
		if !on[i].low && least < cfg.HighSlice && least > 0 {
			on[i].work = part(on[i].work, int64(cfg.HighSlice), int64(least))
		}
	}
}

// stretch lengthens all slices in proportion until the shortest is at least
// minSlice, within bounds: the ratios matter more than the length.
func stretch(on []sharer, minSlice time.Duration) {
	least := sliceMax
	for _, s := range on {
		if !s.low {
			least = min(least, s.work/time.Duration(s.active))
		}
	}
	if least >= minSlice {
		return
	}
	num, den := int64(minSlice), int64(max(least, minSlice/stretchMax))
	for i := range on {
		if s := &on[i]; !s.low {
			s.work = part(s.work, num, den)
		}
	}
}
