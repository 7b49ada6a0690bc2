package virtual

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// tenant is one pretended program.
type tenant struct {
	l        *Loop
	id       governor.TenantID
	load     Load
	port     *rm.Local
	x        *rm.Context
	dec      *rm.Decoder
	file     card.FileID
	decFile  card.FileID
	work     card.ChannelRef
	channels []nvidia.ChannelRef
	groups   []governor.GroupID
	gone     bool

	next      time.Duration // of the next burst
	submitted int64
	seen      int64 // pieces whose latency is recorded
	latencies []time.Duration
	flight    []frame
	frames    int
}

// frame is one piece of work on a decode channel.
type frame struct {
	ref card.ChannelRef
	n   int64
}

// endless is enough work for any run: a busy tenant's queue never empties.
const endless = int64(1) << 31

func (t *tenant) ref(c *rm.Client, ch nvidia.Handle) card.ChannelRef {
	return card.ChannelRef{Client: uint32(c.Handle), Channel: uint32(ch)}
}

func refs(c *rm.Client, lists ...[]nvidia.Handle) (out []nvidia.ChannelRef) {
	for _, ch := range slices.Concat(lists...) {
		out = append(out, nvidia.ChannelRef{Client: c.Handle, Channel: ch})
	}
	return out
}

// startDecoder makes the second client of nvcuvid. Its channels have no group of their own to set a slice on.
func (t *tenant) startDecoder() error {
	const engines = 7
	var err error
	if t.dec, err = t.x.StartDecoder(t.port, engines); err != nil {
		return fmt.Errorf("decoder of tenant %s: %w", t.id, err)
	}
	t.decFile, _ = t.port.File(t.dec.FD)
	t.channels = append(t.channels, refs(t.dec.Client, t.dec.Channels)...)
	for _, ch := range t.dec.Channels {
		if err := t.l.tell(t, ch, governor.Decode, governor.SlotOnly); err != nil {
			return err
		}
	}
	return nil
}

// react does what the program does at this instant: submit, and look at what has finished.
func (t *tenant) react() error {
	c := t.l.Card
	switch {
	case t.load.Kernel <= 0:
	case t.load.Period <= 0:
		if t.submitted == 0 {
			t.submitted = endless
			if err := c.Submit(t.file, t.work, t.load.Kernel, endless); err != nil {
				return fmt.Errorf("tenant %s: %w", t.id, err)
			}
		}
	default:
		if err := t.burst(); err != nil {
			return err
		}
	}
	return t.decode()
}

// burst submits when the period is over, and records latencies of whole bursts.
func (t *tenant) burst() error {
	c, n := t.l.Card, max(1, t.load.Pieces)
	for t.seen+n <= t.submitted {
		done, ok := c.Completion(t.work, t.seen+n)
		if !ok {
			break
		}
		t.seen += n
		t.latencies = append(t.latencies, done.Finished-done.Submitted)
	}
	for ; t.next <= t.l.now; t.next += t.load.Period {
		if err := c.Submit(t.file, t.work, t.load.Kernel, n); err != nil {
			return fmt.Errorf("tenant %s: %w", t.id, err)
		}
		t.submitted += n
	}
	return nil
}

// decode keeps frames in flight, spread over the engines.
func (t *tenant) decode() error {
	if t.dec == nil {
		return nil
	}
	c := t.l.Card
	var errs error
	t.flight = slices.DeleteFunc(t.flight, func(f frame) bool {
		p, err := c.Progress(0, f.ref)
		if err != nil {
			errs = err
		}
		return err == nil && p.Completed >= f.n
	})
	for len(t.flight) < t.load.Frames && errs == nil {
		f := frame{ref: t.ref(t.dec.Client, t.dec.Channels[t.frames%len(t.dec.Channels)])}
		t.frames++
		if errs = c.Submit(t.decFile, f.ref, t.load.Frame, 1); errs != nil {
			break
		}
		p, err := c.Progress(0, f.ref)
		f.n, errs = p.Submitted, err
		t.flight = append(t.flight, f)
	}
	for _, f := range t.flight {
		if err := c.Watch(t.decFile, f.ref, f.n); err != nil {
			errs = err
		}
	}
	if errs != nil {
		return fmt.Errorf("tenant %s: %w", t.id, errs)
	}
	return nil
}

// Result is what a tenant got, since it joined.
type Result struct {
	Finished int64
	// Busy is engine time on the compute engine; DecodeBusy on all decode engines together.
	Busy, DecodeBusy time.Duration
	Frames           int64
	// Latencies are those of finished bursts, in order.
	Latencies []time.Duration
}

// Result returns what a tenant has got so far; false when there is no such tenant.
func (l *Loop) Result(id governor.TenantID) (Result, bool) {
	i := slices.IndexFunc(l.tenants, func(t *tenant) bool { return t.id == id })
	if i < 0 {
		return Result{}, false
	}
	t := l.tenants[i]
	p, err := l.Card.Progress(t.file, t.work)
	if err != nil {
		return Result{}, false
	}
	r := Result{Finished: p.Completed, Busy: p.Busy, Latencies: slices.Clone(t.latencies)}
	if t.dec != nil {
		for _, ch := range t.dec.Channels {
			q, err := l.Card.Progress(t.decFile, t.ref(t.dec.Client, ch))
			if err != nil {
				return Result{}, false
			}
			r.Frames += q.Completed
			r.DecodeBusy += q.Busy
		}
	}
	return r, true
}

// Quantile returns the q-th percentile (0–100) of durations; 0 of none.
func Quantile(d []time.Duration, q int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*q/100)]
}
