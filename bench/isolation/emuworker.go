package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// emulatedVerb as first argument makes this program a worker on the emulated
// card instead of the bench.
const emulatedVerb = "emulated-worker"

// The workers' timing; see lead, and workloads/common.h.
const (
	ramp = 200 * time.Millisecond
	tail = 100 * time.Millisecond
	// patience bounds one wait on the card, so that the ends of the window are
	// seen in time.
	patience = 5 * time.Millisecond
)

// emuConfig is what a worker on the emulated card does.
type emuConfig struct {
	dir, mode, path string
	kernel, period  time.Duration
	batch           int64
	depth, procs    int
	ceiling         int64 // MiB
	ticks           int64 // milliseconds
}

// emuWorker is one such worker.
type emuWorker struct {
	emuConfig
	in  *bufio.Scanner
	out io.Writer
}

// runEmulated is the worker's main; its errors follow the protocol.
func runEmulated(args []string, in io.Reader, out io.Writer) error {
	w := emuWorker{in: bufio.NewScanner(in), out: out}
	f := flag.NewFlagSet(emulatedVerb, flag.ContinueOnError)
	f.StringVar(&w.dir, "dir", "", "emulated card")
	f.StringVar(&w.mode, "mode", "kernel", "kernel, latency, take or churn")
	f.StringVar(&w.path, "path", "malloc", "malloc, heap or managed")
	f.DurationVar(&w.kernel, "kernel", 400*time.Microsecond, "work of one kernel on the full card")
	f.DurationVar(&w.period, "period", 2*time.Millisecond, "time between two submissions of mode latency")
	f.Int64Var(&w.batch, "batch", 1, "kernels a submission")
	f.IntVar(&w.depth, "depth", 3, "submissions in flight")
	f.IntVar(&w.procs, "procs", 1, "clients that allocate at once")
	f.Int64Var(&w.ceiling, "ceiling", ceilingMiB, "most to allocate, MiB")
	f.Int64Var(&w.ticks, "ticks", 0, "print a sign of life every so many milliseconds")
	if err := f.Parse(args); err != nil {
		return err
	}
	err := w.run()
	if err != nil {
		fmt.Fprintf(out, "ERROR %s\n", oneLine(err.Error()))
	}
	return err
}

func (w *emuWorker) run() error {
	if w.mode == "take" || w.mode == "churn" {
		return w.memory()
	}
	port, err := rm.NewDevice(w.dir)
	if err != nil {
		return err
	}
	x, err := rm.Start(port)
	if err != nil {
		return errors.Join(err, port.Release())
	}
	err = w.serve(x)
	return errors.Join(err, x.Close(), port.Release())
}

// serve answers windows until told to leave.
func (w *emuWorker) serve(x *rm.Context) error {
	fmt.Fprintln(w.out, "READY")
	for {
		t0, seconds, ok, err := w.order()
		if err != nil || !ok {
			return err
		}
		var a answer
		switch w.mode {
		case "kernel":
			a, err = w.keepBusy(x, t0, seconds)
		case "latency":
			a, err = w.beats(x, t0, seconds)
		default:
			err = fmt.Errorf("no mode %q", w.mode)
		}
		if err != nil {
			return err
		}
		if err := w.reply(a); err != nil {
			return err
		}
	}
}

func (w *emuWorker) reply(a answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.out, "%s\n", data)
	return err
}

// order is the next window; ok is false when it is time to leave.
func (w *emuWorker) order() (t0 time.Time, seconds time.Duration, ok bool, err error) {
	for w.in.Scan() {
		text := strings.TrimSpace(w.in.Text())
		if text == "" {
			continue
		}
		if text == "QUIT" {
			return
		}
		var at, s float64
		if n, _ := fmt.Sscanf(text, "GO %f %f", &at, &s); n != 2 || s <= 0 || s > 3600 {
			return t0, 0, false, fmt.Errorf("order not understood: %.80q", text)
		}
		return time.UnixMicro(int64(at * 1e6)), time.Duration(s * float64(time.Second)), true, nil
	}
	return t0, 0, false, w.in.Err()
}

// keepBusy keeps submissions in flight and takes the card's own progress and
// time at the two ends of the window.
func (w *emuWorker) keepBusy(x *rm.Context, t0 time.Time, seconds time.Duration) (answer, error) {
	a := answer{Mode: w.mode}
	ch, end := x.Channels[0], t0.Add(seconds+tail)
	looks := []time.Time{t0, t0.Add(seconds)}
	var seen []doorbell.Progress
	var flight []int64
	var next time.Time
	time.Sleep(time.Until(t0.Add(-ramp)))
	for time.Now().Before(end) {
		for len(flight) < w.depth {
			total, err := x.Submit(ch, w.kernel, w.batch)
			if err != nil {
				return a, err
			}
			a.Launches += float64(w.batch)
			flight = append(flight, total)
		}
		wait := patience
		if len(looks) > 0 {
			wait = min(wait, max(time.Until(looks[0]), 100*time.Microsecond))
		}
		done, err := x.Wait(ch, flight[0], wait)
		if err != nil {
			return a, err
		}
		if done.Completed >= flight[0] {
			flight = flight[1:]
			next = w.tick(next, done.Completed)
		}
		if len(looks) > 0 && !time.Now().Before(looks[0]) {
			p, err := x.Progress(ch)
			if err != nil {
				return a, err
			}
			seen, looks = append(seen, p), looks[1:]
		}
	}
	if len(seen) != 2 {
		return a, errors.New("the window was missed")
	}
	a.Units, a.Seconds = float64(seen[1].Completed-seen[0].Completed), (seen[1].Now - seen[0].Now).Seconds()
	return a, nil
}

// tick prints a sign of life when it is time, and returns when the next is due.
func (w *emuWorker) tick(due time.Time, units int64) time.Time {
	now := time.Now()
	if w.ticks == 0 || now.Before(due) {
		return due
	}
	fmt.Fprintf(w.out, "TICK %d.%06d %d\n", now.Unix(), now.Nanosecond()/1000, units)
	return now.Add(time.Duration(w.ticks) * time.Millisecond)
}

// beats submits one kernel a period; latencies are in the card's time.
func (w *emuWorker) beats(x *rm.Context, t0 time.Time, seconds time.Duration) (answer, error) {
	a := answer{Mode: w.mode, Seconds: seconds.Seconds()}
	ch, t1 := x.Channels[0], t0.Add(seconds)
	var ms []float64
	for next := t0.Add(-ramp); next.Before(t1); {
		time.Sleep(time.Until(next))
		target, err := x.Submit(ch, w.kernel, 1)
		if err != nil {
			return a, err
		}
		a.Launches++
		for {
			done, err := x.Wait(ch, target, patience)
			if err != nil {
				return a, err
			}
			if done.Completed < target {
				continue
			}
			if !next.Before(t0) {
				ms = append(ms, float64((done.Finished-done.Submitted).Nanoseconds())/1e6)
			}
			break
		}
		for next = next.Add(w.period); next.Before(time.Now()); next = next.Add(w.period) {
			if !next.Before(t0) && next.Before(t1) {
				a.Missed++
			}
		}
	}
	a.Units = float64(len(ms))
	a.P50, a.P99, a.Max = percentile(ms, 50), percentile(ms, 99), percentile(ms, 100)
	return a, nil
}

// holdings counts what the clients of one tenant hold: added after the driver
// gave it, taken off before it is given back.
type holdings struct{ now, peak, refusals atomic.Int64 }

func (h *holdings) add(bytes int64) {
	now := h.now.Add(bytes)
	for old := h.peak.Load(); now > old; old = h.peak.Load() {
		if h.peak.CompareAndSwap(old, now) {
			return
		}
	}
}

// memory allocates with several clients at once until refused, or at random.
func (w *emuWorker) memory() error {
	fmt.Fprintln(w.out, "READY")
	t0, seconds, ok, err := w.order()
	if err != nil || !ok {
		return err
	}
	var h holdings
	errs := make([]error, w.procs)
	var all sync.WaitGroup
	time.Sleep(time.Until(t0))
	for i := range w.procs {
		all.Go(func() { errs[i] = w.client(&h, uint64(i), t0.Add(seconds)) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.reply(answer{Mode: w.mode, Seconds: seconds.Seconds(), Had: float64(h.now.Load()),
		Peak: float64(h.peak.Load()), Refusals: float64(h.refusals.Load())})
}

// client is one client with a context of its own.
func (w *emuWorker) client(h *holdings, seed uint64, until time.Time) error {
	port, err := rm.NewDevice(w.dir)
	if err != nil {
		return err
	}
	x, err := rm.Start(port)
	if err != nil {
		return errors.Join(err, port.Release())
	}
	if w.mode == "churn" {
		err = w.churn(x, h, seed, until)
	} else {
		err = w.take(x, h)
	}
	time.Sleep(time.Until(until))
	return errors.Join(err, x.Close(), port.Release())
}

// take allocates until refused at every size.
func (w *emuWorker) take(x *rm.Context, h *holdings) error {
	ceiling := w.ceiling << 20
	for size := int64(256 << 20); size >= 2<<20; {
		if h.now.Load()+size > ceiling {
			size /= 2
			continue
		}
		_, err := allocate(x, w.path, size)
		switch {
		case err == nil:
			h.add(size)
		case errors.Is(err, nvidia.StatusNoMemory), errors.Is(err, syscall.ENOMEM): // managed is a mapping
			h.refusals.Add(1)
			size /= 2
		default:
			return err
		}
	}
	return nil
}

// churn allocates and frees at random.
func (w *emuWorker) churn(x *rm.Context, h *holdings, seed uint64, until time.Time) error {
	rng := rand.New(rand.NewPCG(17, seed))
	type block struct {
		handle nvidia.Handle
		bytes  int64
	}
	var mine []block
	for time.Now().Before(until) {
		size := int64(2<<20) << rng.IntN(7)
		if len(mine) == 0 || rng.IntN(3) > 0 && h.now.Load()+size <= w.ceiling<<20 {
			handle, err := allocate(x, "malloc", size)
			if err == nil {
				h.add(size)
				mine = append(mine, block{handle, size})
				continue
			}
			if !errors.Is(err, nvidia.StatusNoMemory) {
				return err
			}
			h.refusals.Add(1)
		}
		if len(mine) == 0 {
			continue
		}
		i := rng.IntN(len(mine))
		h.now.Add(-mine[i].bytes)
		if err := x.Free(mine[i].handle); err != nil {
			return err
		}
		mine[i] = mine[len(mine)-1]
		mine = mine[:len(mine)-1]
	}
	return nil
}

// allocate takes device memory along one of the driver's paths.
func allocate(x *rm.Context, path string, size int64) (h nvidia.Handle, err error) {
	switch path {
	case "malloc":
		h, _, err = x.Memory(x.Device, uint64(size))
	case "heap":
		h, err = x.HeapMemory(x.Device, uint64(size))
	case "managed":
		_, err = x.MapManaged(int(size))
	default:
		err = fmt.Errorf("no path %q", path)
	}
	return h, err
}
