package tenant_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
	"github.com/penstock-gpu/penstock/internal/emu/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T) *fusedev.Server {
	t.Helper()
	s, err := fusedev.Mount(t.TempDir(), card.H200())
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func run(t *testing.T, cfg tenant.Config) (rep tenant.Report) {
	t.Helper()
	var out bytes.Buffer
	cfg.Out = &out
	if err := tenant.Run(context.Background(), cfg); err != nil {
		t.Error(err)
		return rep
	}
	if err := json.Unmarshal(out.Bytes(), &rep); err != nil {
		t.Errorf("report %q: %v", out.String(), err)
	}
	return rep
}

func TestAlone(t *testing.T) {
	s := serve(t)
	rep := run(t, tenant.Config{Dir: s.Dir(), Memory: 1 << 30, Kernel: time.Millisecond, Run: 300 * time.Millisecond})
	// Alone on the card, it is never without work in its queue but for the gaps a loaded machine makes.
	if share := float64(rep.BusyNs) / float64(rep.ElapsedNs); share < 0.8 || share > 1 {
		t.Errorf("busy for %.3f of the time: %+v", share, rep)
	}
	if rep.Allocated != 1<<30 || rep.Refused != 0 || rep.Total-rep.Free < 1<<30 {
		t.Errorf("memory: %+v", rep)
	}
}

// TestTwoSharers run two programs at once in real time: the card halves itself between them.
func TestTwoSharers(t *testing.T) {
	s := serve(t)
	// Deep queues, so that a loaded machine does not let one run dry.
	cfg := tenant.Config{Dir: s.Dir(), Kernel: time.Millisecond, Batch: 20, Depth: 4, Run: 400 * time.Millisecond}
	other := make(chan tenant.Report)
	go func() { other <- run(t, cfg) }()
	a, b := run(t, cfg), <-other
	if ratio := float64(a.BusyNs) / float64(b.BusyNs); ratio < 0.75 || ratio > 1.33 {
		t.Errorf("shares of %.3f : 1: %+v, %+v", ratio, a, b)
	}
	if sum := float64(a.BusyNs+b.BusyNs) / float64(max(a.ElapsedNs, b.ElapsedNs)); sum > 1 {
		t.Errorf("%.3f of the card given out", sum)
	}
}

func TestCountAndRefusal(t *testing.T) {
	s := serve(t)
	cfg := tenant.Config{Dir: s.Dir(), Memory: 200 << 30, Chunk: 10 << 30, Kernel: 20 * time.Microsecond, Count: 1001}
	rep := run(t, cfg)
	if rep.Finished != 1001 || rep.BusyNs != 1001*20_000 {
		t.Errorf("work: %+v", rep)
	}
	if rep.Allocated != 140<<30 || rep.Refused != 60<<30 {
		t.Errorf("memory: %+v", rep)
	}
}

func TestDecodeAndBurst(t *testing.T) {
	s := serve(t)
	rep := run(t, tenant.Config{
		Dir: s.Dir(), Kernel: 400 * time.Microsecond, Period: 4 * time.Millisecond, Run: 200 * time.Millisecond,
		Decode: 1, Frame: time.Millisecond,
	})
	if rep.P50Ms != 0.4 || rep.MaxMs != 0.4 {
		t.Errorf("bursts alone on the card: %+v", rep)
	}
	if rep.Frames < 50 || rep.Frames > 200 {
		t.Errorf("%d frames in 200 ms at 1 ms each", rep.Frames)
	}
}

func TestCancelledWhileFrozen(t *testing.T) {
	s := serve(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- tenant.Run(ctx, tenant.Config{Dir: s.Dir(), Kernel: time.Minute}) }()
	time.Sleep(50 * time.Millisecond)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []tenant.Config{{Kernel: -1}, {On: 1}, {Dir: "/nonexistent"}} {
		if err := tenant.Run(context.Background(), cfg); err == nil {
			t.Errorf("%+v ran", cfg)
		}
	}
}
