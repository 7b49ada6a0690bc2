package tenant

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// patience bounds one wait, so that a frozen tenant still sees its own end.
const patience = 20 * time.Millisecond

// maxSamples bounds the latencies kept.
const maxSamples = 1 << 20

// worker keeps one channel busy.
type worker struct {
	x         *rm.Context
	ch        nvidia.Handle
	cfg       Config
	submitted int64
	ends      []int64 // last piece of each submission in flight, oldest first
	samples   []time.Duration
}

// compute submits work on the first compute channel until ctx ends or the count is reached.
func compute(ctx context.Context, x *rm.Context, cfg Config, rep *Report) error {
	w := &worker{x: x, ch: x.Channels[0], cfg: cfg}
	first, err := x.Progress(w.ch)
	if err != nil {
		return err
	}
	begin := time.Now()
	for n := time.Duration(1); ctx.Err() == nil; n++ {
		done, err := w.step(ctx)
		if err != nil {
			return err
		}
		if done {
			break
		}
		if cfg.Period > 0 {
			// A missed period is skipped, as a program with a deadline per frame does.
			next := begin.Add(n * cfg.Period)
			for time.Until(next) < -cfg.Period {
				n++
				next = begin.Add(n * cfg.Period)
			}
			nap(time.Until(next))
		}
		if cfg.Off > 0 && time.Since(begin)%(cfg.On+cfg.Off) >= cfg.On {
			if err := w.drain(ctx); err != nil {
				return err
			}
			pause(ctx, cfg.On+cfg.Off-time.Since(begin)%(cfg.On+cfg.Off))
		}
	}
	last, err := x.Progress(w.ch)
	if err != nil {
		return err
	}
	rep.Finished, rep.BusyNs = last.Completed, int64(last.Busy)
	rep.ElapsedNs = int64(last.Now - first.Now)
	rep.P50Ms, rep.P99Ms, rep.MaxMs = quantiles(w.samples)
	return nil
}

// step fills the queue, then waits for its oldest submission. It reports whether the count is reached.
func (w *worker) step(ctx context.Context) (bool, error) {
	for len(w.ends) < w.cfg.Depth {
		n := w.cfg.Batch
		if w.cfg.Count > 0 {
			n = min(n, w.cfg.Count-w.submitted)
		}
		if n == 0 {
			break
		}
		total, err := w.x.Submit(w.ch, w.cfg.Kernel, n)
		if err != nil {
			return false, err
		}
		w.submitted += n
		w.ends = append(w.ends, total)
	}
	if len(w.ends) == 0 {
		return true, nil
	}
	return false, w.oldest(ctx)
}

// oldest waits for the oldest submission in flight, or until ctx ends.
func (w *worker) oldest(ctx context.Context) error {
	for ctx.Err() == nil {
		wait, err := w.x.Wait(w.ch, w.ends[0], patience)
		if err != nil {
			return err
		}
		if wait.Completed < w.ends[0] {
			continue
		}
		w.ends = w.ends[1:]
		if len(w.samples) < maxSamples && wait.Finished > 0 {
			w.samples = append(w.samples, wait.Finished-wait.Submitted)
		}
		return nil
	}
	return nil
}

func (w *worker) drain(ctx context.Context) error {
	for len(w.ends) > 0 && ctx.Err() == nil {
		if err := w.oldest(ctx); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// quantiles returns the median, the 99th percentile and the largest, in milliseconds.
func quantiles(s []time.Duration) (p50, p99, worst float64) {
	if len(s) == 0 {
		return 0, 0, 0
	}
	slices.Sort(s)
	at := func(q int) float64 { return float64(s[min(len(s)-1, len(s)*q/100)]) / float64(time.Millisecond) }
	return at(50), at(99), float64(s[len(s)-1]) / float64(time.Millisecond)
}

type decoded struct {
	frames int64
	err    error
}

// decodeEngines is [H] the channels nvcuvid makes: one on each of seven decode engines.
const decodeEngines = 7

// decode keeps frames in flight on a decoder of its own, spread over the engines, through a port of its own.
func decode(ctx context.Context, x *rm.Context, cfg Config) decoded {
	p, err := rm.NewDevice(cfg.Dir)
	if err != nil {
		return decoded{err: err}
	}
	d, err := x.StartDecoder(p, decodeEngines)
	if err != nil {
		return decoded{err: errors.Join(err, p.Release())}
	}
	type frame struct {
		ch nvidia.Handle
		n  int64
	}
	var flight []frame
	for i := 0; ctx.Err() == nil && err == nil; {
		for ; len(flight) < cfg.Decode && err == nil; i++ {
			ch := d.Channels[i%len(d.Channels)]
			var n int64
			if n, err = d.Submit(ch, cfg.Frame, 1); err == nil {
				flight = append(flight, frame{ch, n})
			}
		}
		if err != nil {
			break
		}
		w, e := d.Wait(flight[0].ch, flight[0].n, patience)
		if err = e; err == nil && w.Completed >= flight[0].n {
			flight = flight[1:]
		}
	}
	var total int64
	for _, ch := range d.Channels {
		q, e := d.Progress(ch)
		err = errors.Join(err, e)
		total += q.Completed
	}
	return decoded{total, errors.Join(err, d.Close(), p.Release())}
}
