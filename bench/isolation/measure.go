package main

import (
	"context"
	"fmt"
	"time"
)

const (
	readyWithin = 90 * time.Second // PyTorch's first import on a cold disk is slow
	overrun     = 45 * time.Second // a hard 10 % tenant finishes what it has queued
)

// lead is the time from GO to the window: workers ramp up in it (kRamp of
// workloads/common.h, ramp of emuworker.go).
func (b *bench) lead() time.Duration {
	if b.cfg.emulated != "" {
		return 300 * time.Millisecond
	}
	return 600 * time.Millisecond
}

// tenant is one program of a case.
type tenant struct {
	workload string
	argv     []string
	env      []string
	grant    *grant  // nil: without penstock
	asked    float64 // percent of the card it should get
	idle     bool    // starts and warms up, then does nothing
}

// grant is what a tenant asks penstock for.
type grant struct {
	policy   string
	compute  float64 // percent; 0: none
	weight   int     // 0: none
	priority string
	memory   string
}

// crew is the running tenants of one case, in the order of the case.
type crew struct {
	b       *bench
	workers []*worker
	idle    []bool
}

// assemble starts the tenants and waits until all are warm. On an error none
// is left.
func (b *bench) assemble(ctx context.Context, tenants []tenant) (*crew, error) {
	c := &crew{b: b}
	for i, t := range tenants {
		w, err := launch(fmt.Sprintf("%s#%d", t.workload, i), b.commandOf(t, i), t.env)
		if err != nil {
			c.kill()
			return nil, err
		}
		c.workers = append(c.workers, w)
		c.idle = append(c.idle, t.idle)
	}
	for _, w := range c.workers {
		if _, err := w.await(ctx, isReady, readyWithin); err != nil {
			c.kill()
			return nil, fmt.Errorf("start: %w", err)
		}
	}
	return c, nil
}

// window opens one measuring window over all who work. The answer of an idle
// tenant is zero.
func (c *crew) window(ctx context.Context, seconds float64) ([]answer, error) {
	begin := time.Now().Add(c.b.lead())
	if err := c.open(begin, seconds); err != nil {
		return nil, err
	}
	return c.collect(ctx, seconds)
}

// open gives all who work their order.
func (c *crew) open(begin time.Time, seconds float64) error {
	for i, w := range c.workers {
		if c.idle[i] {
			continue
		}
		if err := w.send(order(begin, seconds)); err != nil {
			return err
		}
	}
	return nil
}

// collect waits for the answers of all who work.
func (c *crew) collect(ctx context.Context, seconds float64) ([]answer, error) {
	answers := make([]answer, len(c.workers))
	within := c.b.lead() + time.Duration(seconds*float64(time.Second)) + overrun
	for i, w := range c.workers {
		if c.idle[i] {
			continue
		}
		l, err := w.await(ctx, isAnswer, within)
		if err != nil {
			return nil, err
		}
		answers[i] = l.answer
	}
	return answers, nil
}

// disband lets all tenants leave together.
func (c *crew) disband() { c.each((*worker).stop) }

// kill ends all tenants at once.
func (c *crew) kill() { c.each((*worker).kill) }

func (c *crew) each(end func(*worker)) {
	done := make(chan struct{})
	for _, w := range c.workers {
		go func() {
			end(w)
			done <- struct{}{}
		}()
	}
	for range c.workers {
		<-done
	}
}

// together runs one window over the tenants and ends them.
func (b *bench) together(ctx context.Context, tenants []tenant, seconds float64) ([]answer, error) {
	if b.virtual() {
		return b.inVirtualTime(tenants, seconds)
	}
	c, err := b.assemble(ctx, tenants)
	if err != nil {
		return nil, err
	}
	answers, err := c.window(ctx, seconds)
	if err != nil {
		c.kill()
		return nil, err
	}
	c.disband()
	return answers, nil
}
