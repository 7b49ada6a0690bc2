package card

import (
	"fmt"
	"slices"
	"sort"
	"time"
)

// tsg is a channel group: what a runlist switches between.
type tsg struct {
	id       uint32
	rl       *runlist
	slice    time.Duration
	channels []*channel
}

// channel is a queue of work.
type channel struct {
	tsg     *tsg
	pid     int
	enabled bool
	queue   []batch

	submitted, completed int64
	busy                 time.Duration
	watch                int64 // an event is wanted when this many have completed; 0: none
	history              []span
}

// batch is a number of equal pieces of work, each a duration of the whole engine.
type batch struct {
	each, progress time.Duration
	left           int64
	submitted      time.Duration
}

// span is a run of completions at equal distances: pieces first .. first+n−1, the earliest at time start.
type span struct {
	first, n    int64
	start, each time.Duration
	submitted   time.Duration
}

// maxSpans bounds the completions a channel remembers.
const maxSpans = 2048

func (t *tsg) remove() { t.rl.remove(t) }

// head is the channel of the group that runs next: the one whose work was submitted first; nil when the
// group is idle or frozen.
func (t *tsg) head() *channel {
	var best *channel
	for _, ch := range t.channels {
		if !ch.enabled || len(ch.queue) == 0 {
			continue
		}
		if best == nil || earlier(ch.queue[0], best.queue[0]) {
			best = ch
		}
	}
	return best
}

// idle reports that the group has no work at all, frozen or not.
func (t *tsg) idle() bool {
	for _, ch := range t.channels {
		if len(ch.queue) > 0 {
			return false
		}
	}
	return true
}

// earlier puts work already begun first, then what was submitted first.
func earlier(a, b batch) bool {
	if (a.progress > 0) != (b.progress > 0) {
		return a.progress > 0
	}
	return a.submitted < b.submitted
}

func (ch *channel) remove() {
	ch.queue, ch.enabled = nil, false
	if i := slices.Index(ch.tsg.channels, ch); i >= 0 {
		ch.tsg.channels = slices.Delete(ch.tsg.channels, i, i+1)
	}
}

// finish records n completions of a batch, the first at the given time.
func (ch *channel) finish(n int64, first time.Duration, b batch) {
	ch.history = append(ch.history, span{ch.completed + 1, n, first, b.each, b.submitted})
	if len(ch.history) > maxSpans {
		ch.history = append([]span(nil), ch.history[maxSpans/2:]...)
	}
	ch.completed += n
	if ch.watch != 0 && ch.completed >= ch.watch {
		ch.watch = 0
	}
}

// runlistOf returns the runlist of an engine the card has.
func (c *Card) runlistOf(engine uint32) *runlist {
	for _, rl := range c.runlists {
		if rl.engine == engine {
			return rl
		}
	}
	return nil
}

// newTSG puts a group on a runlist. Graphics/compute groups cost context memory.
func (c *Card) newTSG(rl *runlist, pid int) (*tsg, *region, uint32) {
	var mem *region
	if rl.engine == engGR0 && c.cfg.ContextBytes > 0 {
		if mem = c.take(uint64(c.cfg.ContextBytes), pid); mem == nil {
			return nil, nil, stNoMemory
		}
	}
	c.nextTSG++
	t := &tsg{id: c.nextTSG, rl: rl, slice: rl.slice}
	rl.tsgs = append(rl.tsgs, t)
	return t, mem, stOK
}

// buildTSG reads NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: engineType 12.
func (c *Card) buildTSG(cl *client, parent *object, want uint32, params []byte) (*object, uint32) {
	if len(params) < sizeTSGParams {
		return nil, stInvalidParams
	}
	if parent.class != clsDevice {
		return nil, stInvalidParent
	}
	rl := c.runlistOf(u32(params, 12))
	if rl == nil {
		return nil, stInvalidArg
	}
	t, mem, st := c.newTSG(rl, cl.pid)
	if st != stOK {
		return nil, st
	}
	o, st := cl.insert(parent, want, clsTSG)
	if st != stOK {
		t.remove()
		c.drop(mem)
		return nil, st
	}
	o.tsg, o.mem = t, mem
	return o, stOK
}

// buildChannel reads NV_CHANNEL_ALLOC_PARAMS: engineType 128. A channel under a group runs on its engine; one
// straight under a device gets a group of its own.
func (c *Card) buildChannel(cl *client, parent *object, want, class uint32, params []byte) (*object, uint32) {
	if len(params) < sizeChannelParams550 {
		return nil, stInvalidParams
	}
	t, own := parent.tsg, false
	var mem *region
	switch {
	case parent.class == clsTSG && t != nil:
	case parent.class == clsDevice:
		rl := c.runlistOf(u32(params, 128))
		if rl == nil {
			return nil, stInvalidArg
		}
		var st uint32
		if t, mem, st = c.newTSG(rl, cl.pid); st != stOK {
			return nil, st
		}
		own = true
	default:
		return nil, stInvalidParent
	}
	o, st := cl.insert(parent, want, class)
	if st != stOK {
		if own {
			t.remove()
			c.drop(mem)
		}
		return nil, st
	}
	o.ch = &channel{tsg: t, pid: cl.pid, enabled: true}
	t.channels = append(t.channels, o.ch)
	if own {
		o.tsg, o.mem = t, mem
	}
	return o, stOK
}

// ChannelRef names a channel.
type ChannelRef struct{ Client, Channel uint32 }

// ErrChannel is returned for a channel that the file may not use.
var ErrChannel = fmt.Errorf("no such channel of this file")

// channelOf finds a channel; a zero file skips the check of ownership.
func (c *Card) channelOf(id FileID, ref ChannelRef) (*channel, error) {
	cl := c.clients[ref.Client]
	if cl == nil {
		return nil, fmt.Errorf("channel %#x of client %#x: %w", ref.Channel, ref.Client, ErrChannel)
	}
	if id != 0 {
		if f := c.files[id]; f == nil || cl.file != f.owner() {
			return nil, fmt.Errorf("channel %#x of client %#x: %w", ref.Channel, ref.Client, ErrChannel)
		}
	}
	if o := cl.objects[ref.Channel]; o != nil && o.ch != nil {
		return o.ch, nil
	}
	return nil, fmt.Errorf("channel %#x of client %#x: %w", ref.Channel, ref.Client, ErrChannel)
}

// Submit queues n pieces of work on a channel of the file, each a duration of the whole engine: what a
// doorbell does on a real card, without a system call. A frozen channel takes work and keeps it.
func (c *Card) Submit(id FileID, ref ChannelRef, each time.Duration, n int64) error {
	const maxQueued = int64(1) << 32
	if each <= 0 || each > time.Hour || n <= 0 || n > maxQueued {
		return fmt.Errorf("submit %d × %v: outside 1 ns … 1 h or 1 … %d pieces", n, each, maxQueued)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, err := c.channelOf(id, ref)
	if err != nil {
		return err
	}
	if ch.submitted-ch.completed+n > maxQueued || len(ch.queue) >= maxSpans {
		return fmt.Errorf("submit %d pieces: channel %#x is full", n, ref.Channel)
	}
	ch.submitted += n
	if q := len(ch.queue); q > 0 && ch.queue[q-1].each == each && ch.queue[q-1].submitted == c.now {
		ch.queue[q-1].left += n
	} else {
		ch.queue = append(ch.queue, batch{each: each, left: n, submitted: c.now})
	}
	c.settle()
	return nil
}

// Progress is how far a channel has come.
type Progress struct {
	Submitted, Completed int64
	Busy                 time.Duration // engine time spent on it
	Enabled              bool
}

// Progress returns how far a channel of the file has come; a zero file asks about anybody's.
func (c *Card) Progress(id FileID, ref ChannelRef) (Progress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, err := c.channelOf(id, ref)
	if err != nil {
		return Progress{}, err
	}
	return Progress{ch.submitted, ch.completed, ch.busy, ch.enabled}, nil
}

// Watch asks for an event (see NextEvent) when n pieces of a channel have completed. A channel has one watch,
// the smallest still ahead; n already completed asks for nothing.
func (c *Card) Watch(id FileID, ref ChannelRef, n int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, err := c.channelOf(id, ref)
	if err != nil {
		return err
	}
	if n > ch.completed && (ch.watch == 0 || n < ch.watch) {
		ch.watch = n
	}
	return nil
}

// Completion is when the nth piece of a channel's work was submitted and finished.
type Completion struct{ Submitted, Finished time.Duration }

// Completion returns the times of a completed piece, counted from 1; false when it has not completed or is no
// longer remembered (a channel remembers its latest 1,000 runs of equal pieces).
func (c *Card) Completion(ref ChannelRef, n int64) (Completion, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, err := c.channelOf(0, ref)
	if err != nil || n < 1 || n > ch.completed {
		return Completion{}, false
	}
	i := sort.Search(len(ch.history), func(i int) bool { return ch.history[i].first > n }) - 1
	if i < 0 {
		return Completion{}, false
	}
	s := ch.history[i]
	return Completion{s.submitted, s.start + time.Duration(n-s.first)*s.each}, true
}
