package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Tolerances of the judge. The emulated card runs in real time on a machine that does other things too, so
// shares are compared with a margin; memory is exact.
const (
	shareMargin   = 0.10 // of the card, above the attacker's share
	victimMargin  = 0.10 // of the card, below the victim's share
	quietWindow   = 60 * time.Millisecond
	quietStep     = 5 * time.Millisecond
	stallLimit    = 1500 * time.Millisecond
	goneWait      = 3 * time.Second
	sampleEvery   = 500 * time.Microsecond
	victimPresent = 20 * time.Millisecond
)

// held is what the card holds for the attacker: everything that is not the victim's, in bytes.
func (sc *scene) held() int64 { return sc.server.Card.Stats().UsedBytes - sc.base - sc.mine.Load() }

// slack is what a probing victim may hold at a moment beside what it holds all the time.
func (sc *scene) slack() int64 {
	if sc.probing {
		return probeBytes
	}
	return 0
}

// watcher samples the card all the time.
type watcher struct {
	peak   atomic.Int64
	stall  atomic.Int64 // longest time without progress of the victim's calls, ns
	quit   chan struct{}
	closed chan struct{}
}

// watchCard starts sampling. A probing victim holds a little more at times, which is allowed for.
func (sc *scene) watchCard() {
	w := &watcher{quit: make(chan struct{}), closed: make(chan struct{})}
	sc.watch = w
	v := sc.victimChild
	go func() {
		defer close(w.closed)
		last, since := uint64(0), time.Now()
		for {
			select {
			case <-w.quit:
				return
			case <-time.After(sampleEvery):
			}
			w.note(sc.held())
			if sc.probing {
				n := v.session.Usage().Calls
				if n != last {
					last, since = n, time.Now()
				} else if d := int64(time.Since(since)); d > w.stall.Load() {
					w.stall.Store(d)
				}
			}
		}
	}()
}

// note keeps the largest figure.
func (w *watcher) note(held int64) {
	for old := w.peak.Load(); held > old && !w.peak.CompareAndSwap(old, held); old = w.peak.Load() {
	}
}

func (w *watcher) stop() { close(w.quit); <-w.closed }

// hold looks at a tenant that stands still: whatever the card holds for it must be charged.
func (sc *scene) hold(label string) {
	sc.watch.note(sc.held())
	live := sc.managedLive()
	if live > int64(sc.quota) {
		sc.found("%s: %s of managed memory are mapped, the quota is %s", label, size(live), size(int64(sc.quota)))
	}
	if sc.unsupervised {
		return // nothing is charged
	}
	least := int64(1) << 62
	var real, charged int64
	for end := time.Now().Add(quietWindow); time.Now().Before(end); time.Sleep(quietStep) {
		real = sc.held() - sc.slack()
		u := sc.attackerChild.session.Usage()
		charged = u.ChargedBytes
		least = min(least, real-charged)
	}
	if least > 0 {
		sc.found("%s: the card holds %s, charged are %s", label, size(real), size(charged))
	}
	if m := sc.attackerChild.session.Usage().ManagedBytes; live > m {
		sc.found("%s: %s of managed memory are mapped, charged are %s", label, size(live), size(m))
	}
}

// managedLive is the length of what the tenant's processes have mapped as managed memory, by the kernel's list:
// nvidia-uvm mapped at an offset equal to the address. Processes that share an address space count once.
func (sc *scene) managedLive() int64 {
	var st unix.Stat_t
	if err := unix.Stat(sc.dir+"/"+rm.DeviceName(card.KindUVM), &st); err != nil {
		return 0
	}
	var total int64
	seen := map[string]bool{}
	pids := []int{sc.attackerChild.cmd.Process.Pid}
	if s := sc.attackerChild.session; s != nil {
		pids = append(pids, s.Usage().PIDs...)
	}
	for _, pid := range pids {
		n, sum := managedOf(pid, st.Ino, sc.dir)
		if !seen[sum] {
			seen[sum] = true
			total += n
		}
	}
	return total
}

func managedOf(pid int, ino uint64, dir string) (n int64, key string) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 6 || w[4] != strconv.FormatUint(ino, 10) || !strings.HasPrefix(w[5], dir) {
			continue
		}
		a, b, _ := strings.Cut(w[0], "-")
		from, err1 := strconv.ParseUint(a, 16, 64)
		to, err2 := strconv.ParseUint(b, 16, 64)
		off, err3 := strconv.ParseUint(w[2], 16, 64)
		if errors.Join(err1, err2, err3) == nil && off == from && strings.HasSuffix(w[1], "s") {
			n += int64(to - from)
			key += w[0] + ","
		}
	}
	return n, key
}

// usage splits engine time into the victim's and everybody else's.
func (sc *scene) usage() (attacker, victim time.Duration) {
	sc.syncCard()
	for _, u := range sc.server.Card.Stats().Usage {
		if u.PID == sc.handles.PID {
			victim += u.Graphics
		} else {
			attacker += u.Graphics
		}
	}
	return attacker, victim
}

// syncCard brings the card's books to the present, as reading its statistics file does.
func (sc *scene) syncCard() { _, _ = os.ReadFile(sc.dir + "/" + fusedev.StatsFile) }

// measure compares engine time with the shares. What looks like an effect is measured again: a machine that is busy
// with something else can starve a tenant for a moment, an attack that works goes on working.
func (sc *scene) measure(d time.Duration) {
	var found string
	for range measures {
		if found = sc.measureOnce(d); found == "" {
			return
		}
	}
	sc.found("%s", found)
}

const measures = 5

// measureOnce says what is wrong, if anything.
func (sc *scene) measureOnce(d time.Duration) string {
	a0, v0 := sc.usage()
	start := time.Now()
	time.Sleep(d)
	a1, v1 := sc.usage()
	span := float64(time.Since(start))
	a, v := float64(a1-a0)/span, float64(v1-v0)/span
	sc.measured = fmt.Sprintf("engine time: attacker %.1f %%, victim %.1f %%", 100*a, 100*v)
	switch {
	case a > sc.expectAttacker+shareMargin:
		return fmt.Sprintf("the attacker got %.0f %% of the card, its share is %.0f %% (victim %.0f %%)", 100*a, 100*sc.expectAttacker, 100*v)
	case v < sc.expectVictim-victimMargin:
		return fmt.Sprintf("the victim got %.0f %% of the card, its share is %.0f %% (attacker %.0f %%)", 100*v, 100*sc.expectVictim, 100*a)
	}
	return ""
}

// killVictim ends the victim. What was its alone must be free afterwards.
func (sc *scene) killVictim() error {
	before := sc.held()
	err := sc.victimChild.stop()
	sc.victimChild = nil
	sc.mine.Store(0)
	time.Sleep(victimPresent)
	if after := sc.held(); after > before {
		sc.found("%s of the neighbour's memory outlive it", size(after-before))
	}
	return err
}

// judge is called when the attacker is through: the last look while it stands still, then without it.
func (sc *scene) judge() error {
	sc.hold("at the end")
	if sc.victimChild != nil {
		sc.victimWorks()
	}
	err := sc.attackerChild.stop()
	stuck := errors.Is(err, errStuck)
	if stuck {
		err = sc.abort()
	}
	sc.attackerChild = nil
	sc.measured = strings.TrimPrefix(fmt.Sprintf("%s; held at most %s of %s", sc.measured, size(sc.watch.peak.Load()), size(int64(sc.quota))), "; ")
	peak, stall := sc.watch.peak.Load(), time.Duration(sc.watch.stall.Load())
	sc.watch.stop()
	sc.watch = nil
	if over := peak - sc.slack() - int64(sc.quota) - sc.allowed.Load(); over > 0 {
		sc.found("the card held %s, %s over the quota of %s", size(peak), size(over), size(int64(sc.quota)))
	}
	if stall > stallLimit {
		sc.found("no call of the victim was answered for %v", stall.Round(10*time.Millisecond))
	}
	if !stuck {
		sc.quiet(sc.slack())
	}
	return err
}

// abort takes the card away under a process that hangs in it, and ends that.
func (sc *scene) abort() error {
	err := sc.server.Close()
	sc.gone = true
	return errors.Join(err, sc.attackerChild.stop())
}

// victimWorks checks that the neighbour still gets work done and its calls answered.
func (sc *scene) victimWorks() {
	if !alive(sc.victimChild) {
		sc.found("the victim died")
		return
	}
	c0 := sc.victimChild.session.Usage().Calls
	_, v0 := sc.usage()
	for end := time.Now().Add(stallLimit); time.Now().Before(end); time.Sleep(quietStep) {
		_, v1 := sc.usage()
		if v1 > v0 && sc.victimChild.session.Usage().Calls > c0 {
			return
		}
	}
	_, v1 := sc.usage()
	sc.found("the victim stands still: %v of engine time and %d calls in %v", v1-v0, sc.victimChild.session.Usage().Calls-c0, stallLimit)
}

func alive(c *child) bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// quiet waits for the card to be as it was before the attacker came.
func (sc *scene) quiet(slack int64) {
	var h int64
	for end := time.Now().Add(goneWait); time.Now().Before(end); time.Sleep(quietStep) {
		if h = sc.held(); h <= slack && h >= 0 {
			return
		}
	}
	if h < 0 {
		sc.found("the victim lost %s", size(-h))
	} else {
		sc.found("%s are still held after the tenant's end", size(h))
	}
}

// converse serves the attacker's requests until it is done.
func (sc *scene) converse(ctx context.Context) (message, error) {
	wire := sc.attackerChild.wire
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(wire, unix.SHUT_RDWR) })
	defer stop()
	for {
		m, err := receiveMessage(wire)
		if err != nil {
			return m, err
		}
		switch {
		case m.Done != nil || m.Error != "" || m.Skip != "":
			return m, nil
		case m.Hold != "":
			sc.hold(m.Hold)
		case m.Measure > 0:
			sc.measure(m.Measure)
		case m.Accomplice != "":
			if err := sc.accomplice(m.Accomplice); err != nil {
				return m, err
			}
		case m.KillVictim:
			if err := sc.killVictim(); err != nil {
				return m, err
			}
		}
		if err := sendMessage(wire, message{}); errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			return m, errPeerGone
		} else if err != nil {
			return m, err
		}
	}
}

// accomplice runs another tenant, with a grant of its own, to its end.
func (sc *scene) accomplice(socket string) error {
	sc.allowed.Store(accompliceQuota)
	c, err := sc.tenant(roleAccomplice, governor.Tenant{ID: "accomplice", Share: 100}, accompliceQuota, !sc.unsupervised)
	if err != nil {
		return err
	}
	if err := sendMessage(c.wire, message{Hints: &Hints{Dir: sc.dir, Quota: accompliceQuota, Socket: socket}}); err != nil {
		return errors.Join(c.stop()) // it is gone already: the attacker will notice
	}
	select {
	case <-c.exited:
	case <-time.After(endWait):
	}
	return c.stop()
}

// size prints bytes for people.
func size(n int64) string {
	switch {
	case n >= gib:
		return fmt.Sprintf("%.2f GiB", float64(n)/gib)
	case n >= mib:
		return fmt.Sprintf("%.2f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
