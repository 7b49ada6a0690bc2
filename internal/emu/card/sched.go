package card

import (
	"slices"
	"time"
)

// effect is something a slow control does when it returns.
type effect struct {
	at time.Duration
	do func()
}

// after queues what a slow control does: it bites after lag, and the call returns after cost. The slow controls
// run one after the other, as they do under RM's lock.
func (c *Card) after(cost, lag time.Duration, do func()) time.Duration {
	start := max(c.now, c.controlBusy)
	c.controlBusy = start + max(0, cost)
	c.effects = append(c.effects, effect{start + min(max(0, lag), max(0, cost)), do})
	return c.controlBusy
}

// Advance moves the card to a time; a time in the past changes nothing.
func (c *Card) Advance(to time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(to)
}

func (c *Card) advance(to time.Duration) {
	for len(c.effects) > 0 && c.effects[0].at <= to {
		e := c.effects[0]
		c.effects = c.effects[1:]
		c.run(e.at)
		e.do()
		c.settle()
	}
	c.run(to)
}

func (c *Card) run(to time.Duration) {
	if to <= c.now {
		return
	}
	for _, rl := range c.runlists {
		rl.advance(to)
	}
	c.now = to
}

// settle lets every engine choose again after something changed.
func (c *Card) settle() {
	for _, rl := range c.runlists {
		rl.settle()
	}
}

// NextEvent is the next time at which the card changes by itself in a way that somebody may see: an effect, a
// context switch, the end of a batch or of a watched piece of work. False when nothing is due.
func (c *Card) NextEvent() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, ok := time.Duration(0), false
	add := func(t time.Duration) {
		if !ok || t < next {
			next, ok = t, true
		}
	}
	if len(c.effects) > 0 {
		add(c.effects[0].at)
	}
	for _, rl := range c.runlists {
		rl.events(add)
	}
	return next, ok
}

// runlist is one engine and the channel groups that take turns on it.
type runlist struct {
	card   *Card
	engine uint32
	slice  time.Duration // of new groups
	at     time.Duration
	tsgs   []*tsg
	next   int  // ring position at which the next choice begins
	loaded *tsg // whose context the engine holds
	// emptied says that a freeze took the running context off and nobody came after it.
	emptied bool

	// cur is the group whose turn it is; it is being switched to, or runs, until the given time.
	cur       *tsg
	switching bool
	until     time.Duration
	loss      time.Duration // of the slice that begins after the switch

	switches int64
	overhead time.Duration
}

// settle makes the engine's state agree with what can run: a turn ends when it is over and somebody else
// waits, or when its group has nothing to run; then the next group that has something gets its turn. Idle and
// frozen groups are skipped.
func (rl *runlist) settle() {
	for {
		if rl.cur != nil && !rl.switching && rl.at >= rl.until {
			if rl.othersWait() {
				rl.cur = nil
			} else {
				rl.until = rl.at + rl.cur.slice
			}
		}
		if rl.cur != nil && rl.cur.head() == nil {
			rl.cur = nil
		}
		if rl.cur == nil && !rl.choose() {
			return
		}
		if !rl.switching || rl.at < rl.until {
			return
		}
		rl.loaded, rl.switching, rl.emptied = rl.cur, false, false
		rl.until = rl.at + max(rl.cur.slice-rl.loss, time.Microsecond)
	}
}

// choose gives the next runnable group its turn.
func (rl *runlist) choose() bool {
	for i := range rl.tsgs {
		at := (rl.next + i) % len(rl.tsgs)
		t := rl.tsgs[at]
		if t.head() == nil {
			continue
		}
		rl.cur, rl.next = t, (at+1)%len(rl.tsgs)
		cost := rl.cost(t)
		if cost == 0 && rl.loss == 0 {
			rl.loaded, rl.switching, rl.emptied, rl.until = t, false, false, rl.at+t.slice
			return true
		}
		rl.switching, rl.until = true, rl.at+cost+rl.loss
		rl.switches++
		rl.overhead += cost + rl.loss
		return true
	}
	return false
}

// cost is the time until a group can work on this engine, and sets how much of its slice is lost.
func (rl *runlist) cost(t *tsg) time.Duration {
	cfg := rl.card.cfg
	rl.loss = 0
	switch {
	case rl.emptied:
		return max(0, cfg.LoadCost)
	case rl.loaded == nil || rl.loaded == t:
		return 0
	}
	if rl.loaded.idle() {
		return max(0, cfg.YieldCost)
	}
	rl.loss = max(0, cfg.SliceLoss)
	return max(0, cfg.SwitchCost)
}

// evict is called after channels were disabled: a running group that has nothing enabled any more leaves the
// engine, and its context with it.
func (rl *runlist) evict() {
	if rl.cur != nil && rl.cur.head() == nil {
		if rl.loaded == rl.cur && !rl.othersWait() {
			rl.loaded, rl.emptied = nil, true
		}
		rl.cur, rl.switching = nil, false
	}
}

func (rl *runlist) othersWait() bool {
	for _, t := range rl.tsgs {
		if t != rl.cur && t.head() != nil {
			return true
		}
	}
	return false
}

// advance runs the engine up to a time.
func (rl *runlist) advance(to time.Duration) {
	for {
		rl.settle()
		if rl.at >= to {
			return
		}
		switch {
		case rl.cur == nil:
			rl.at = to
		case rl.switching:
			rl.at = min(rl.until, to)
		default:
			rl.work(rl.cur.head(), min(rl.until, to))
		}
	}
}

// work runs the first batch of a channel until it is finished or time is up.
func (rl *runlist) work(ch *channel, limit time.Duration) {
	b := &ch.queue[0]
	avail, first := limit-rl.at, b.each-b.progress
	if avail < first {
		b.progress += avail
		rl.spend(ch, avail)
		return
	}
	n := min(1+int64((avail-first)/b.each), b.left)
	ch.finish(n, rl.at+first, *b)
	spent := first + time.Duration(n-1)*b.each
	b.left -= n
	b.progress = 0
	if b.left == 0 {
		ch.queue = ch.queue[1:]
	}
	rl.spend(ch, spent)
}

func (rl *runlist) spend(ch *channel, d time.Duration) {
	rl.at += d
	ch.busy += d
	rl.card.charge(ch.pid, rl.engine, d)
}

// preempt ends a group's turn if it has it and somebody else waits.
func (rl *runlist) preempt(t *tsg) {
	if rl.cur == t && !rl.switching && rl.othersWait() {
		rl.cur = nil
	}
}

// events reports the times at which this engine changes.
func (rl *runlist) events(add func(time.Duration)) {
	if rl.cur == nil {
		return
	}
	if rl.switching {
		add(rl.until)
		return
	}
	if rl.othersWait() {
		add(rl.until)
	}
	ch := rl.cur.head()
	b := ch.queue[0]
	at := func(n int64) time.Duration { return rl.at + b.each - b.progress + time.Duration(n-1)*b.each }
	add(at(b.left))
	if n := ch.watch - ch.completed; n > 0 && n < b.left {
		add(at(n))
	}
}

// remove takes a group off the runlist.
func (rl *runlist) remove(t *tsg) {
	i := slices.Index(rl.tsgs, t)
	if i < 0 {
		return
	}
	rl.tsgs = slices.Delete(rl.tsgs, i, i+1)
	if i < rl.next {
		rl.next--
	}
	if len(rl.tsgs) == 0 {
		rl.next = 0
	} else {
		rl.next %= len(rl.tsgs)
	}
	if rl.cur == t {
		rl.cur, rl.switching = nil, false
	}
	if rl.loaded == t {
		rl.loaded = nil
	}
}
