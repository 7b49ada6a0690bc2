package card

import (
	"slices"
	"time"
)

// Usage is the ground truth about one process: engine time it got, by kind of engine.
type Usage struct {
	PID                             int
	Graphics, Copy, Decoder, Others time.Duration
}

func (c *Card) charge(pid int, engine uint32, d time.Duration) {
	u := c.usage[pid]
	if u == nil {
		u = &Usage{PID: pid}
		c.usage[pid] = u
	}
	switch {
	case engine == engGR0:
		u.Graphics += d
	case engine >= engCopy0 && engine <= engCopy9:
		u.Copy += d
	case engine >= engNVDEC0 && engine <= engNVDEC7:
		u.Decoder += d
	default:
		u.Others += d
	}
}

// Stats is the card's state at a glance.
type Stats struct {
	Now                              time.Duration
	TotalBytes, UsedBytes, FreeBytes int64
	Files, Clients, Objects          int
	Groups, Channels, Frozen         int
	// Switches and Overhead count the context switches of the graphics/compute engine.
	Switches int64
	Overhead time.Duration
	Usage    []Usage // by PID
}

// Stats returns the card's state.
func (c *Card) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{
		Now: c.now, TotalBytes: c.cfg.TotalBytes, UsedBytes: c.used, FreeBytes: c.free(),
		Files: len(c.files), Clients: len(c.clients),
	}
	for _, cl := range c.clients {
		s.Objects += len(cl.objects)
	}
	for _, rl := range c.runlists {
		s.Groups += len(rl.tsgs)
		for _, t := range rl.tsgs {
			s.Channels += len(t.channels)
			for _, ch := range t.channels {
				if !ch.enabled {
					s.Frozen++
				}
			}
		}
	}
	s.Switches, s.Overhead = c.runlists[0].switches, c.runlists[0].overhead
	for _, u := range c.usage {
		s.Usage = append(s.Usage, *u)
	}
	slices.SortFunc(s.Usage, func(a, b Usage) int { return a.PID - b.PID })
	return s
}
