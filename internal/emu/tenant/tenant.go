// Package tenant is a small GPU program for an emulated card: it makes the calls of a CUDA start-up, allocates
// memory, keeps the card busy with work of a given duration, and reports what it finished. It knows nothing of
// penstock, as a real tenant does not.
package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// Config is what a tenant does. Durations of work are those of a full card that runs nothing else.
type Config struct {
	// Dir holds the device files: an emulated card's mount.
	Dir string
	// Memory is allocated at the start, in pieces of Chunk (default 256 MiB); what is refused is counted.
	Memory, Chunk uint64
	// Kernel is one piece of work; 0 submits none.
	Kernel time.Duration
	// Depth is how many submissions are kept in flight (default 2), each of Batch pieces (default: as many as
	// take 2 ms, since a submission to an emulated card costs a system call, unlike a doorbell).
	Depth int
	Batch int64
	// Period, when set, makes a burst tenant: one submission each Period, then idle.
	Period time.Duration
	// On and Off, when both are set, make a tenant that works and idles by turns.
	On, Off time.Duration
	// Run ends after this time; Count ends after so many pieces. 0: no such limit; with neither, ctx ends it.
	Run   time.Duration
	Count int64
	// Decode keeps this many frames in flight on the decode engines, Frame (default 1.366 ms) each.
	Decode int
	Frame  time.Duration
	// Out gets the report, one line of JSON.
	Out io.Writer
}

// Report is what a tenant got done. Latencies are from submission to completion, in card time, over the last
// piece of each submission.
type Report struct {
	Finished  int64   `json:"finished"`
	BusyNs    int64   `json:"busyNs"`
	ElapsedNs int64   `json:"elapsedNs"`
	P50Ms     float64 `json:"p50Ms"`
	P99Ms     float64 `json:"p99Ms"`
	MaxMs     float64 `json:"maxMs"`
	Allocated uint64  `json:"allocated"` // bytes
	Refused   uint64  `json:"refused"`   // bytes
	Frames    int64   `json:"frames,omitempty"`
	// Total and Free are what the card said after the allocations.
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
}

// defaultFrame is [H] 1080p H.264: one stream alone decodes 732 frames a second.
const defaultFrame = 1366 * time.Microsecond

// normalise fills in defaults and refuses what makes no sense.
func (c *Config) normalise() error {
	if c.Kernel < 0 || c.Depth < 0 || c.Batch < 0 || c.Period < 0 || c.On < 0 || c.Off < 0 || c.Decode < 0 || c.Frame < 0 {
		return errors.New("tenant: negative durations or counts")
	}
	if (c.On > 0) != (c.Off > 0) {
		return errors.New("tenant: a working time needs an idle time, and the other way round")
	}
	if c.Chunk == 0 {
		c.Chunk = 256 << 20
	}
	if c.Frame == 0 {
		c.Frame = defaultFrame
	}
	if c.Depth == 0 {
		c.Depth = 2
	}
	if c.Batch == 0 {
		c.Batch = 1
		if c.Kernel > 0 && c.Period == 0 {
			c.Batch = max(1, int64(2*time.Millisecond/c.Kernel))
		}
	}
	if c.Period > 0 {
		c.Depth = 1
	}
	return nil
}

// Run runs a tenant until its limits or ctx end it, and writes its report.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.normalise(); err != nil {
		return err
	}
	p, err := rm.NewDevice(cfg.Dir)
	if err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	rep, err := run(ctx, p, cfg)
	if err = errors.Join(err, p.Release()); err != nil {
		return fmt.Errorf("tenant: %w", err)
	}
	if cfg.Out == nil {
		return nil
	}
	return json.NewEncoder(cfg.Out).Encode(rep)
}

func run(ctx context.Context, p rm.Port, cfg Config) (Report, error) {
	var rep Report
	x, err := rm.Start(p)
	if err != nil {
		return rep, err
	}
	if err := allocate(x, cfg, &rep); err != nil {
		return rep, errors.Join(err, x.Close())
	}
	if cfg.Run > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Run)
		defer cancel()
	}
	frames := make(chan decoded, 1)
	if cfg.Decode > 0 {
		go func() { frames <- decode(ctx, x, cfg) }()
	} else {
		frames <- decoded{}
	}
	switch {
	case cfg.Kernel > 0:
		err = compute(ctx, x, cfg, &rep)
	case cfg.Run > 0 || cfg.Decode > 0 || cfg.Count == 0:
		<-ctx.Done()
	}
	d := <-frames
	rep.Frames = d.frames
	return rep, errors.Join(err, d.err, x.Close())
}

// allocate takes the memory in pieces; the first refusal ends it, as a program's own out-of-memory error would.
func allocate(x *rm.Context, cfg Config, rep *Report) error {
	for left := cfg.Memory; left > 0; {
		n := min(left, cfg.Chunk)
		err := x.Malloc(n)
		if errors.Is(err, nvidia.StatusNoMemory) {
			rep.Refused = left
			break
		}
		if err != nil {
			return fmt.Errorf("allocate %d bytes: %w", n, err)
		}
		left -= n
		rep.Allocated += n
	}
	info, err := x.MemoryInfo(x.Subdevice)
	rep.Total, rep.Free = info.Total, info.Free
	return err
}

// nap sleeps precisely: the Go runtime's timers may be a millisecond late.
func nap(d time.Duration) {
	if d <= 0 {
		return
	}
	ts := unix.NsecToTimespec(int64(d))
	// An interrupted nap is a short one; the callers look at the clock again.
	_ = unix.Nanosleep(&ts, nil)
}
