package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
)

const (
	squadSize   = 4
	squadShare  = 20.0                   // percent each: room for a newcomer, and nobody runs all the time
	tickEvery   = 50 * time.Millisecond  // sign of life of each tenant
	watchFor    = 600 * time.Millisecond // after each kill
	harmedAfter = time.Second            // a longer stand-still is harm
	squadRun    = 3000.0                 // seconds: longer than the section
)

// victim is what a kill -9 hits.
type victim int

const (
	aTenant victim = iota
	aNewcomer
	theWorker
	theHolder
)

// killer is the state of the section.
type killer struct {
	b      *bench
	rng    *rand.Rand
	squad  []*worker
	last   []tick // last sign of each
	stalls []float64
	row    KillRow
}

// runKill kills tenants and the agent's two processes at random moments, and
// watches the others.
func (b *bench) runKill(ctx context.Context) {
	if b.virtual() {
		return
	}
	row := Row{Section: secKill, Case: fmt.Sprintf("%d × kill -9", b.cfg.kills), Workloads: []string{k400us}, Policy: "fixed"}
	k := &killer{b: b, rng: rand.New(rand.NewPCG(7, 11))} // the same moments in every run
	err := k.run(ctx)
	row.Kill = &k.row
	if err != nil {
		row.Error = err.Error()
	}
	b.record(row)
}

func (k *killer) run(ctx context.Context) error {
	if err := k.b.spent(ctx); err != nil {
		return err
	}
	deviceBefore, deviceErr := k.b.deviceUsed(ctx)
	defer k.disband()
	for range squadSize {
		w, err := k.recruit(ctx)
		if err != nil {
			return err
		}
		k.squad = append(k.squad, w)
		k.last = append(k.last, tick{})
	}
	for i := 0; i < k.b.cfg.kills; i++ {
		if err := k.b.spent(ctx); err != nil {
			return err
		}
		if err := k.strike(ctx); err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
	}
	k.disband()
	return k.settle(ctx, deviceBefore, deviceErr)
}

// recruit starts a tenant of the squad and sets it to work.
func (k *killer) recruit(ctx context.Context) (*worker, error) {
	w, err := k.launchOne()
	if err != nil {
		return nil, err
	}
	if _, err := w.await(ctx, isReady, readyWithin); err != nil {
		w.kill()
		return nil, err
	}
	if err := w.send(order(time.Now().Add(k.b.lead()), squadRun)); err != nil {
		w.kill()
		return nil, err
	}
	return w, nil
}

func (k *killer) launchOne() (*worker, error) {
	argv, err := k.b.ticking(k400us, tickEvery)
	if err != nil {
		return nil, err
	}
	t := tenant{workload: k400us, argv: argv, grant: &grant{policy: "fixed", compute: squadShare}}
	return launch("squad", k.b.commandOf(t, len(k.squad)), nil)
}

// strike waits a random while, kills, and watches the others.
func (k *killer) strike(ctx context.Context) error {
	if err := pause(ctx, time.Duration(k.rng.Int64N(int64(300*time.Millisecond)))); err != nil {
		return err
	}
	from := time.Now()
	hit, err := k.hit(ctx)
	if err != nil {
		return err
	}
	until := time.Now().Add(watchFor)
	for i, w := range k.squad {
		if i == hit {
			continue
		}
		if err := k.watch(ctx, i, w, from, until); err != nil {
			return err
		}
	}
	k.sum()
	if hit < 0 {
		return nil
	}
	w, err := k.recruit(ctx)
	if err != nil {
		return fmt.Errorf("a tenant after a killed one: %w", err)
	}
	k.squad[hit], k.last[hit] = w, tick{}
	return nil
}

// hit kills one thing and returns the place in the squad that is empty now, or
// -1.
func (k *killer) hit(ctx context.Context) (int, error) {
	switch victim(k.rng.IntN(4)) {
	case aTenant:
		i := k.rng.IntN(len(k.squad))
		k.squad[i].kill()
		k.row.Tenants++
		return i, nil
	case aNewcomer:
		w, err := k.launchOne()
		if err != nil {
			return -1, err
		}
		err = pause(ctx, time.Duration(k.rng.Int64N(int64(800*time.Millisecond))))
		w.kill()
		k.row.Tenants++
		return -1, err
	case theWorker:
		k.row.Workers++
		return -1, k.hitAgent(ctx, func(s topStatus) int { return s.PID })
	default:
		k.row.Holders++
		return -1, k.hitAgent(ctx, func(s topStatus) int { return s.Holder })
	}
}

// hitAgent kills one of the agent's processes and waits until another stands
// in for it.
func (k *killer) hitAgent(ctx context.Context, which func(topStatus) int) error {
	s, err := k.b.agent.top(ctx)
	if err != nil {
		return err
	}
	pid := which(s)
	if pid <= 1 {
		return errors.New("penstock top names no such process")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	_, err = k.b.agent.awaitTop(ctx, 10*time.Second, func(s topStatus) bool {
		return which(s) > 1 && which(s) != pid
	})
	return err
}

// watch reads the signs of life of one tenant, from before the kill to a while
// after it, and notes the longest stand-still. A tenant that ended was harmed,
// and is replaced.
func (k *killer) watch(ctx context.Context, i int, w *worker, from, until time.Time) error {
	worst := time.Duration(0)
	for k.last[i].at.Before(until) {
		l, err := w.await(ctx, isTick, harmedAfter*3)
		if err != nil {
			return k.lost(ctx, i, w, err)
		}
		before := k.last[i].at
		k.last[i] = l.tick
		if before.IsZero() || l.tick.at.Before(from) {
			continue
		}
		worst = max(worst, l.tick.at.Sub(before))
	}
	k.stalls = append(k.stalls, float64(worst.Microseconds())/1e3)
	if worst > harmedAfter {
		k.row.Harmed++
	}
	return nil
}

// lost counts a survivor that ended or stands still, and replaces it.
func (k *killer) lost(ctx context.Context, i int, w *worker, why error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	k.row.Harmed++
	k.stalls = append(k.stalls, float64((harmedAfter * 3).Milliseconds()))
	fmt.Fprintf(k.b.log, "%-8s harmed: %v\n", secKill, why)
	w.kill()
	fresh, err := k.recruit(ctx)
	if err != nil {
		return fmt.Errorf("after a harmed tenant: %w", err)
	}
	k.squad[i], k.last[i] = fresh, tick{}
	return nil
}

// sum brings the row up to date, so that an early end leaves what there is.
func (k *killer) sum() {
	k.row.WorstMs = round(percentile(k.stalls, 100), 1)
	k.row.MedianMs = round(percentile(k.stalls, 50), 1)
}

// disband kills what is left of the squad.
func (k *killer) disband() {
	for _, w := range k.squad {
		w.kill()
	}
	k.squad, k.last = nil, nil
}

// settle looks at the ledger and the card once everybody is gone.
func (k *killer) settle(ctx context.Context, deviceBefore float64, deviceErr error) error {
	s, err := k.b.agent.awaitTop(ctx, 5*time.Second, topStatus.clean)
	for _, c := range s.Cards {
		k.row.LedgerLeft += float64(c.Charged + c.Promised)
	}
	if err != nil {
		return fmt.Errorf("the ledger is not empty at the end: %w", err)
	}
	after, afterErr := k.b.deviceUsed(ctx)
	if deviceErr == nil && afterErr == nil {
		k.row.DeviceLeft = after - deviceBefore
	}
	return nil
}

// deviceUsed is the card's own figure: the driver's, or the emulated card's.
func (b *bench) deviceUsed(ctx context.Context) (float64, error) {
	if b.cfg.emulated == "" {
		return cardMemoryUsed(ctx)
	}
	data, err := os.ReadFile(filepath.Join(b.cfg.emulated, fusedev.StatsFile))
	if err != nil {
		return 0, fmt.Errorf("the emulated card's figures: %w", err)
	}
	var s card.Stats
	if err := json.Unmarshal(data, &s); err != nil {
		return 0, fmt.Errorf("the emulated card's figures: %w", err)
	}
	return float64(s.UsedBytes), nil
}
