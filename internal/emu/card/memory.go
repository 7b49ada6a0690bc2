package card

// region is a piece of video memory. It goes back when its last reference goes: an object, a duplicate, an
// export held by a descriptor, or a mapping in a UVM address space.
type region struct {
	size int64
	refs int
	pid  int
}

// round returns what the card takes for a request: pages of SmallPage below LargePage, else of LargePage.
func (c *Card) round(size uint64) (int64, bool) {
	if size == 0 || size > uint64(c.cfg.TotalBytes) {
		return 0, false
	}
	page := c.cfg.SmallPage
	if int64(size) >= c.cfg.LargePage {
		page = c.cfg.LargePage
	}
	return (int64(size) + page - 1) / page * page, true
}

// take allocates video memory with one reference; nil when it does not fit.
func (c *Card) take(size uint64, pid int) *region {
	n, ok := c.round(size)
	if !ok || n > c.free() {
		return nil
	}
	c.used += n
	return &region{size: n, refs: 1, pid: pid}
}

func (c *Card) hold(r *region) *region {
	if r != nil {
		r.refs++
	}
	return r
}

func (c *Card) drop(r *region) {
	if r == nil {
		return
	}
	r.refs--
	if r.refs == 0 {
		c.used -= r.size
	}
}

func (c *Card) free() int64 { return c.cfg.TotalBytes - c.cfg.ReservedBytes - c.used }
