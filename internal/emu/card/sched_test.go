package card_test

import (
	"math"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// worker is a process that always has work queued on its first compute channel.
type worker struct {
	port *rm.Local
	x    *rm.Context
	file card.FileID
	ref  card.ChannelRef
}

func newWorker(t *testing.T, c *card.Card, pid int, kernel time.Duration, n int64) *worker {
	t.Helper()
	p, x := start(t, c, pid)
	w := &worker{port: p, x: x, ref: card.ChannelRef{Client: uint32(x.Handle), Channel: uint32(x.Channels[0])}}
	w.file, _ = p.File(x.FD)
	if err := c.Submit(w.file, w.ref, kernel, n); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *worker) busy(t *testing.T, c *card.Card) time.Duration {
	t.Helper()
	p, err := c.Progress(w.file, w.ref)
	if err != nil {
		t.Fatal(err)
	}
	return p.Busy
}

func (w *worker) slice(t *testing.T, micros uint64) {
	t.Helper()
	if err := w.x.SetTimeslice(w.x.Compute, micros); err != nil {
		t.Fatal(err)
	}
}

// share runs two processes with the given slices for whole cycles and returns their ratio and the sum of their
// work in per cent of solo.
func share(t *testing.T, cfg card.Config, kernel time.Duration, sliceA, sliceB uint64) (ratio, sum float64) {
	t.Helper()
	c := card.New(cfg)
	a := newWorker(t, c, 1, kernel, 1<<30)
	b := newWorker(t, c, 2, kernel, 1<<30)
	a.slice(t, sliceA)
	b.slice(t, sliceB)
	c.Advance(100 * ms)
	a0, b0 := a.busy(t, c), b.busy(t, c)
	cycle := time.Duration(sliceA+sliceB)*us + 2*cfg.SwitchCost
	span := 1000 * cycle
	c.Advance(100*ms + span)
	da, db := a.busy(t, c)-a0, b.busy(t, c)-b0
	return float64(da) / float64(db), 100 * float64(da+db) / float64(span)
}

// TestSlicesAreExact: without the loss at the start of a slice, work is in the ratio of the slices.
func TestSlicesAreExact(t *testing.T) {
	cfg := card.H200()
	cfg.SliceLoss = 0
	for _, tt := range []struct {
		a, b uint64 // µs
		sum  float64
	}{{12000, 4000, 100 * 16.0 / 16.36}, {1500, 500, 100 * 2.0 / 2.36}, {3, 1, 100 * 4.0 / 364}} {
		ratio, sum := share(t, cfg, 370*us, tt.a, tt.b)
		if want := float64(tt.a) / float64(tt.b); math.Abs(ratio-want) > 1e-9 || math.Abs(sum-tt.sum) > 1e-9 {
			t.Errorf("%d:%d µs: ratio %v, sum %v %%; want %v, %v", tt.a, tt.b, ratio, sum, want, tt.sum)
		}
	}
}

// TestSlicesAsMeasured compares shares and sums with the figures of the H200.
func TestSlicesAsMeasured(t *testing.T) {
	tests := []struct {
		name       string
		kernel     time.Duration
		a, b       uint64 // slices, µs
		ratio, sum float64
	}{
		{"12 ms to 4 ms", 370 * us, 12000, 4000, 3.03, 97.7},
		{"1.5 ms to 0.5 ms", 370 * us, 1500, 500, 3.14, 82},
		{"6 ms to 2 ms, 20 µs kernels", 20 * us, 6144, 2048, 3.01, 95.3},
		{"8 ms to 2 ms, 3.6 ms kernels", 3600 * us, 8000, 2048, 3.96, 96},
		{"default", 3600 * us, 2048, 2048, 1, 90.9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ratio, sum := share(t, card.H200(), tt.kernel, tt.a, tt.b)
			if math.Abs(ratio-tt.ratio) > 0.01*tt.ratio {
				t.Errorf("ratio %.3f, measured %.3f", ratio, tt.ratio)
			}
			if math.Abs(sum-tt.sum) > 1 {
				t.Errorf("sum %.2f %% of solo, measured %.1f", sum, tt.sum)
			}
		})
	}
}

func TestSoloHasNoSwitches(t *testing.T) {
	c := card.New(card.H200())
	w := newWorker(t, c, 1, 4*ms, 1000)
	c.Advance(time.Second)
	p, err := c.Progress(w.file, w.ref)
	if err != nil || p.Completed != 250 || p.Busy != time.Second {
		t.Errorf("%+v, %v; want 250 pieces in a full second", p, err)
	}
	if got := c.Stats().Switches; got != 0 {
		t.Errorf("%d switches", got)
	}
	done, ok := c.Completion(w.ref, 100)
	if !ok || done.Finished != 400*ms || done.Submitted != 0 {
		t.Errorf("piece 100: %+v, %v", done, ok)
	}
}

// TestDutyCycle freezes and thaws with a cycle of 20 ms, as was measured: asked 10/30/50/70 %, got within
// 0.4 points.
func TestDutyCycle(t *testing.T) {
	for _, kernel := range []time.Duration{20 * us, 370 * us, 3600 * us} {
		for _, duty := range []int{10, 30, 50, 70} {
			c := card.New(card.H200())
			w := newWorker(t, c, 1, kernel, 1<<30)
			_, governor := start(t, c, 9)
			list := []nvidia.ChannelRef{{Client: w.x.Handle, Channel: w.x.Channels[0]}}
			on := 20 * ms * time.Duration(duty) / 100
			// Effects come a latency after the call, so each call is made that much earlier.
			const cycles = 50
			for i := range time.Duration(cycles) {
				begin := 20*ms*(i+1) + time.Millisecond
				c.Advance(begin - c.Config().EnableLag - c.Config().LoadCost)
				freeze(t, governor, false, list)
				c.Advance(begin + on - c.Config().DisableLag)
				freeze(t, governor, true, list)
			}
			c.Advance(20*ms*(cycles+1) + 10*ms)
			// Before its first freeze the worker ran alone for 20 ms and its own share.
			got := 100 * float64(w.busy(t, c)-21*ms) / float64(20*ms*cycles)
			if math.Abs(got-float64(duty)) > 0.4 {
				t.Errorf("kernels of %v: asked %d %%, got %.2f", kernel, duty, got)
			}
		}
	}
}

func freeze(t *testing.T, x *rm.Context, disable bool, list []nvidia.ChannelRef) {
	t.Helper()
	if err := x.Freeze(x.Subdevice, disable, list); err != nil {
		t.Fatal(err)
	}
}

func TestFreezeTakesItsTime(t *testing.T) {
	c := card.New(card.H200())
	w := newWorker(t, c, 1, ms, 1<<20)
	p, governor := start(t, c, 9)
	list := []nvidia.ChannelRef{{Client: w.x.Handle, Channel: w.x.Channels[0]}}
	freeze(t, governor, true, list)
	if p.Done != c.Config().DisableCost {
		t.Errorf("the call returns at %v, want %v", p.Done, c.Config().DisableCost)
	}
	if at, ok := c.NextEvent(); !ok || at != c.Config().DisableLag {
		t.Errorf("next event at %v (%v)", at, ok)
	}
	c.Advance(time.Second)
	if got := w.busy(t, c); got != c.Config().DisableLag {
		t.Errorf("ran for %v, want %v", got, c.Config().DisableLag)
	}
	// A frozen channel takes work, GPFIFO_SCHEDULE wakes nobody, and a thaw resumes in the middle of a piece.
	if err := w.x.Control(w.x.Compute, nvidia.CtrlTSGSchedule, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	c.Advance(2 * time.Second)
	freeze(t, governor, false, list)
	rest := ms - c.Config().DisableLag
	c.Advance(2*time.Second + c.Config().EnableLag + c.Config().LoadCost + rest)
	got, err := c.Progress(w.file, w.ref)
	if err != nil || got.Busy != ms || got.Completed != 1 {
		t.Errorf("after the thaw: %+v, %v", got, err)
	}
}

// TestIdleGroupsAreSkipped gives a burst tenant a tiny share of the turns beside a training loop: it waits for
// the loop's slice and one switch, and no longer.
func TestIdleGroupsAreSkipped(t *testing.T) {
	c := card.New(card.H200())
	train := newWorker(t, c, 1, 3600*us, 1<<30)
	train.slice(t, 50)
	p, burst := start(t, c, 2)
	if err := burst.SetTimeslice(burst.Compute, 200_000); err != nil {
		t.Fatal(err)
	}
	file, _ := p.File(burst.FD)
	ref := card.ChannelRef{Client: uint32(burst.Handle), Channel: uint32(burst.Channels[0])}
	c.Advance(10 * ms)
	const bursts = 500
	for i := range time.Duration(bursts) {
		c.Advance(10*ms + 2*ms*i)
		if err := c.Submit(file, ref, 400*us, 1); err != nil {
			t.Fatal(err)
		}
	}
	c.Advance(time.Second + 10*ms)
	var worst time.Duration
	for i := range int64(bursts) {
		done, ok := c.Completion(ref, i+1)
		if !ok {
			t.Fatalf("burst %d is not finished", i+1)
		}
		worst = max(worst, done.Finished-done.Submitted)
	}
	// At worst it arrives while the engine is switching to the loop.
	if limit := 400*us + 213*us + 50*us + 213*us; worst > limit {
		t.Errorf("worst latency %v, want at most %v", worst, limit)
	}
	if got := float64(train.busy(t, c)) / float64(time.Second); got < 0.67 {
		t.Errorf("training kept %.2f of the card", got)
	}
}

func TestDecodersAreSevenServers(t *testing.T) {
	c := card.New(card.H200())
	compute := newWorker(t, c, 1, ms, 1<<20)
	port, x := start(t, c, 2)
	d, err := x.StartDecoder(port, 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range d.Channels {
		if err := c.Submit(0, card.ChannelRef{Client: uint32(d.Handle), Channel: uint32(ch)}, ms, 1000); err != nil {
			t.Fatal(err)
		}
	}
	c.Advance(time.Second)
	var frames int64
	for _, ch := range d.Channels {
		p, err := c.Progress(0, card.ChannelRef{Client: uint32(d.Handle), Channel: uint32(ch)})
		if err != nil {
			t.Fatal(err)
		}
		frames += p.Completed
	}
	if frames != 7000 {
		t.Errorf("%d frames in a second, want 7000", frames)
	}
	if got := compute.busy(t, c); got != time.Second {
		t.Errorf("decoding took %v of the compute engine", time.Second-got)
	}
	u := c.Stats().Usage
	if len(u) != 2 || u[0].Graphics != time.Second || u[1].Decoder != 7*time.Second {
		t.Errorf("usage %+v", u)
	}
}

func TestPreemptAndWatch(t *testing.T) {
	c := card.New(card.H200())
	a := newWorker(t, c, 1, 100*ms, 10)
	b := newWorker(t, c, 2, ms, 10)
	a.slice(t, 1_000_000)
	c.Advance(10 * ms)
	// A has its long slice at its next turn; before that B runs its own, then preempting A lets B in again.
	if err := a.x.Control(a.x.Compute, nvidia.CtrlTSGPreempt, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(b.file, b.ref, 10); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		at, ok := c.NextEvent()
		if !ok || at > 40*ms {
			break
		}
		c.Advance(at)
	}
	if p, _ := c.Progress(b.file, b.ref); p.Completed < 2 {
		t.Errorf("B finished %d pieces", p.Completed)
	}
}
