package hostile

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

func named(t *testing.T, name string) attack {
	t.Helper()
	for _, a := range attacks() {
		if a.name == name {
			return a
		}
	}
	t.Fatalf("no attack %q", name)
	return attack{}
}

// TestJudgeSeesSuccess runs attacks where nothing, or less, holds them back: a check that stays silent then would
// prove nothing when it is silent elsewhere.
func TestJudgeSeesSuccess(t *testing.T) {
	needCard(t)
	for _, c := range []struct {
		attack string
		weaken func(*setup)
		want   string
	}{
		{"time/nothing-special", unsupervised, "the attacker got"},
		{"time/set-timeslice", unsupervised, "the attacker got"},
		{"time/freeze-neighbour", unsupervised, "the attacker got"},
		{"channel/bare-on-graphics", unsupervised, "the attacker got"},
		{"memory/fill-and-more", unsupervised, "over the quota"},
		{"memory/heap-function-6-every-attribute", unsupervised, "over the quota"},
		{"object/duplicate-neighbours", unsupervised, "outlive"},
		{"managed/over-quota", unsupervised, "of managed memory are mapped"},
		{"entry/wrapped-freeze", unsupervised, "the victim got"},
		{"race/descriptor-to-memory", unsupervised, "over the quota"},
		{"process/eight-threads-at-once", unsupervised, "over the quota"},
		{"managed/over-quota", func(s *setup) { s.quota = 64 * mib }, ""},
	} {
		t.Run(c.attack, func(t *testing.T) {
			a := named(t, c.attack)
			s := a.setup
			s.race = testRace
			c.weaken(&s)
			r := try(t.Context(), a, s)
			if c.want == "" {
				if r.Verdict == Succeeded || r.Verdict == Broken {
					t.Errorf("%s with a smaller quota: %s", r.Verdict, r.Detail)
				}
				return
			}
			if r.Verdict != Succeeded || !strings.Contains(r.Detail, c.want) {
				t.Errorf("the judge says %s (%s), want %s because %q", r.Verdict, r.Detail, Succeeded, c.want)
			}
		})
	}
}

func unsupervised(s *setup) { s.unsupervised = true }

// TestJudgeSeesHarm does by itself what an attack would have to bring about.
func TestJudgeSeesHarm(t *testing.T) {
	needCard(t)
	for name, c := range map[string]struct {
		harm func(t *testing.T, sc *scene)
		want []string
	}{
		"stalled victim": {func(t *testing.T, sc *scene) {
			_ = unix.Kill(sc.handles.PID, unix.SIGSTOP)
			time.Sleep(stallLimit + 200*time.Millisecond)
			_ = unix.Kill(sc.handles.PID, unix.SIGCONT)
		}, []string{"no call of the victim"}},
		"dead victim": {func(t *testing.T, sc *scene) {
			_ = unix.Kill(sc.handles.PID, unix.SIGKILL)
			<-sc.victimChild.exited
		}, []string{"the victim died"}},
		"memory left behind": {func(t *testing.T, sc *scene) {
			p, err := rm.NewDevice(sc.dir)
			if err != nil {
				t.Fatal(err)
			}
			x, err := rm.Start(p)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := x.Memory(x.Device, 64*mib); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = x.Close() })
		}, []string{"charged are", "still held"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc, err := build(t.Context(), setup{probing: true})
			if err != nil {
				t.Fatal(err)
			}
			if sc.attackerChild, err = sc.tenant("time/nothing-special", sc.setup.attacker, int64(sc.quota), true); err != nil {
				t.Fatal(err)
			}
			sc.watchCard()
			c.harm(t, sc)
			if err := sc.judge(); err != nil {
				t.Error(err)
			}
			all := strings.Join(sc.finds, "; ")
			for _, want := range c.want {
				if !strings.Contains(all, want) {
					t.Errorf("the judge found %q, want %q", all, want)
				}
			}
			if err := sc.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
