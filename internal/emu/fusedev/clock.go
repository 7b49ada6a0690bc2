package fusedev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/card"
)

// clock drives a card in real time. It needs to wake only for those who wait: whoever else calls advances the
// card to the present first.
type clock struct {
	card  *card.Card
	start time.Time
	kick  int // eventfd that ends the sleep

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	stopped bool
	done    chan struct{}
}

// waiter is somebody blocked until its test holds; ready is closed then, or when the clock stops.
type waiter struct {
	ready chan struct{}
	// test reports whether the wait is over; else it makes sure the card has an event for it, or returns the
	// time to look again.
	test func(now time.Duration) (over bool, again time.Duration)
}

func newClock(c *card.Card) (*clock, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make the clock's eventfd: %w", err)
	}
	k := &clock{card: c, start: time.Now(), kick: fd, waiters: map[*waiter]struct{}{}, done: make(chan struct{})}
	go k.run()
	return k, nil
}

// stop ends the clock; everybody who waits is released.
func (k *clock) stop() error {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	k.wake()
	<-k.done
	return unix.Close(k.kick)
}

// sync brings the card to the present and returns it.
func (k *clock) sync() time.Duration {
	now := time.Since(k.start)
	k.card.Advance(now)
	return now
}

// changed is called after an input: the next event may come earlier than the clock sleeps for.
func (k *clock) changed() {
	k.mu.Lock()
	n := len(k.waiters)
	k.mu.Unlock()
	if n > 0 {
		k.wake()
	}
}

func (k *clock) wake() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	// EAGAIN means that the counter is full, so the clock is awake already.
	_, _ = unix.Write(k.kick, one)
}

// add registers a waiter.
func (k *clock) add(w *waiter) {
	k.mu.Lock()
	if k.stopped {
		close(w.ready)
	} else {
		k.waiters[w] = struct{}{}
	}
	k.mu.Unlock()
	k.wake()
}

func (k *clock) isStopped() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopped
}

// forget removes a waiter that gave up.
func (k *clock) forget(w *waiter) {
	k.mu.Lock()
	delete(k.waiters, w)
	k.mu.Unlock()
}

// until blocks until the card's time is at least t.
func (k *clock) until(t time.Duration) {
	if time.Since(k.start) >= t {
		return
	}
	w := &waiter{ready: make(chan struct{}), test: func(now time.Duration) (bool, time.Duration) { return now >= t, t }}
	k.add(w)
	<-w.ready
}

// run sleeps until the next event anybody waits for. It keeps an operating-system thread and sleeps in ppoll,
// because the Go runtime's own timers are coarser (up to a millisecond) than the slices of a card.
func (k *clock) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(k.done)
	// A slack of 1 ns instead of the usual 50 µs; without it the clock is only less precise.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for {
		now := k.sync()
		next, wait, stop := k.release(now)
		if stop {
			return
		}
		k.sleep(next, wait)
	}
}

// release lets those go whose wait is over and returns when to look again.
func (k *clock) release(now time.Duration) (next time.Duration, wait, stop bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	add := func(t time.Duration) {
		if !wait || t < next {
			next, wait = t, true
		}
	}
	for w := range k.waiters {
		over, again := true, time.Duration(0)
		if !k.stopped {
			over, again = w.test(now)
		}
		if over {
			close(w.ready)
			delete(k.waiters, w)
		} else if again > 0 {
			add(again)
		}
	}
	if k.stopped {
		return 0, false, true
	}
	if len(k.waiters) > 0 {
		if t, ok := k.card.NextEvent(); ok {
			add(t)
		}
	}
	return next, wait, false
}

// sleep waits until the given card time, or for ever, or until somebody wakes the clock.
func (k *clock) sleep(next time.Duration, wait bool) {
	fds := []unix.PollFd{{Fd: int32(k.kick), Events: unix.POLLIN}}
	var limit *unix.Timespec
	if wait {
		d := next - time.Since(k.start)
		if d <= 0 {
			return
		}
		ts := unix.NsecToTimespec(int64(d))
		limit = &ts
	}
	if n, err := unix.Ppoll(fds, limit, nil); n > 0 || errors.Is(err, unix.EINTR) {
		var b [8]byte
		_, _ = unix.Read(k.kick, b[:]) // non-blocking: only clears the counter
	}
}
