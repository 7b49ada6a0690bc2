package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// TidalConfig describes a day: a service whose load rises and falls, and batch jobs that fill what it leaves.
type TidalConfig struct {
	Hosts      int     // of 8 cards each
	Peak       float64 // cards the service needs at its peak, as a part of the cluster
	Trough     float64 // and at its lowest
	Offline    float64 // batch work that arrives, as a part of the separate batch pool's capacity
	Reclaim    int64   // seconds to stop a batch job and hand its card over: the bound on what an instance waits
	Checkpoint int64   // seconds between the checkpoints of batch jobs; work since the last one is lost
	Days       int
	Seed       int64
}

// TidalResult compares one arrangement over the days.
type TidalResult struct {
	Arrangement            string  `json:"arrangement"` // "separate" or "tidal"
	Seed                   int64   `json:"seed"`
	UsedPercent            float64 `json:"usedPercent"` // cards that work, mean over time
	OfflineCompletion      float64 `json:"offlineCompletionSeconds"`
	OfflineDone            int     `json:"offlineDone"`
	OfflineJobs            int     `json:"offlineJobs"`
	Preempted              int     `json:"preempted"`
	LostPercent            float64 `json:"lostPercent"` // of the batch work done
	OnlineStarts           int     `json:"onlineStarts"`
	OnlineWaited           int     `json:"onlineWaited"`
	OnlineMaxWait          int64   `json:"onlineMaxWaitSeconds"`
	OnlineRefused          int     `json:"onlineRefused"`
	hours, online, offline []float64
}

const (
	onlinePriority = 100
	tidalStep      = 60 // seconds of a step of the virtual clock
	dayLength      = 24 * 3600
)

// batchJob is a training job; it goes on from its last checkpoint when it was preempted.
type batchJob struct {
	id           int
	cards        int
	arrive, work int64 // seconds of running it needs
	left         int64
	started      int64 // of the present run
	epoch        int
	placement    *alloc.Placement
}

func (j *batchJob) request() *alloc.Request {
	return &alloc.Request{ID: fmt.Sprintf("b%d.%d", j.id, j.epoch), Count: j.cards, Share: alloc.Share{Compute: gpu.Card},
		Class: alloc.Offline, Mode: alloc.Shared}
}

// tidal is the state of a run.
type tidal struct {
	cfg        TidalConfig
	shared     bool
	f          *alloc.Fleet
	placer     *alloc.Placer
	now        int64
	online     []string // instances, oldest first
	nextOnline int
	queue      []*batchJob
	running    []*batchJob
	rng        *rand.Rand
	res        *TidalResult
	done, lost int64 // card-seconds
	used       float64
}

// Tidal runs the days in one arrangement: two pools, each for itself, or one that both share by time and load.
func Tidal(ctx context.Context, cfg TidalConfig, shared bool) (*TidalResult, error) {
	t := &tidal{cfg: cfg, shared: shared, rng: rand.New(rand.NewSource(cfg.Seed)), res: &TidalResult{Seed: cfg.Seed, Arrangement: "separate"}}
	if shared {
		t.res.Arrangement = "tidal"
	}
	var machines []gpu.Machine
	onlineHosts := int(math.Ceil(cfg.Peak * float64(cfg.Hosts)))
	for i := range cfg.Hosts {
		m := host(fmt.Sprintf("h%03d", i), "", "", "", 8)
		if !shared {
			m.Pool = "offline"
			if i < onlineHosts {
				m.Pool = "online"
			}
		}
		machines = append(machines, m)
	}
	var err error
	if t.f, err = alloc.NewFleet(machines); err != nil {
		return nil, err
	}
	p := alloc.Binpack()
	t.placer = alloc.NewPlacer(t.f, &p)
	jobs := t.jobs(float64(cfg.Hosts-onlineHosts) * 8)
	end := int64(cfg.Days) * dayLength
	for ; t.now < end; t.now += tidalStep {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for len(jobs) > 0 && jobs[0].arrive <= t.now {
			t.queue = append(t.queue, jobs[0])
			jobs = jobs[1:]
		}
		if err := t.step(); err != nil {
			return nil, err
		}
	}
	return t.finish(end), nil
}

// jobs draws the batch work: sizes of 1 to 8 cards, hours of work, arrivals all day.
func (t *tidal) jobs(pool float64) []*batchJob {
	work := t.cfg.Offline * pool * float64(t.cfg.Days) * dayLength
	var out []*batchJob
	for i := 0; work > 0; i++ {
		j := &batchJob{id: i, cards: []int{1, 1, 2, 4, 8}[t.rng.Intn(5)], arrive: int64(t.rng.Float64() * float64(t.cfg.Days) * dayLength * 0.8)}
		j.work = 600 + int64(t.rng.ExpFloat64()*2*3600)
		j.left = j.work
		work -= float64(j.work) * float64(j.cards)
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b *batchJob) int { return cmp.Or(cmp.Compare(a.arrive, b.arrive), cmp.Compare(a.id, b.id)) })
	t.res.OfflineJobs = len(out)
	return out
}

// demand is how many cards the service needs now: a day's wave with noise that repeats.
func (t *tidal) demand() int {
	phase := 2 * math.Pi * float64(t.now%dayLength) / dayLength
	wave := (1 - math.Cos(phase)) / 2
	noise := 0.02 * math.Sin(float64(t.now)/1700+float64(t.cfg.Seed))
	part := t.cfg.Trough + (t.cfg.Peak-t.cfg.Trough)*math.Min(1, math.Max(0, wave+noise))
	return int(part * float64(t.cfg.Hosts) * 8)
}

// step is a minute: batch jobs end, the service is scaled to its load, batch jobs start.
func (t *tidal) step() error {
	kept := t.running[:0]
	for _, j := range t.running {
		if t.now-j.started < j.left {
			kept = append(kept, j)
			continue
		}
		if err := t.f.Begin().Release(j.placement.Request.ID); err != nil {
			return err
		}
		t.done += j.work * int64(j.cards)
		t.res.OfflineDone++
		t.res.OfflineCompletion += float64(j.started + j.left - j.arrive)
	}
	t.running = kept
	if err := t.scale(t.demand()); err != nil {
		return err
	}
	if err := t.fill(); err != nil {
		return err
	}
	busy := t.f.TotalCompute() - t.f.FreeCompute()
	t.used += float64(busy)
	if t.now%1800 == 0 {
		cards := float64(t.f.Cards())
		t.res.hours = append(t.res.hours, float64(t.now)/3600)
		t.res.online = append(t.res.online, 100*float64(len(t.online))/cards)
		t.res.offline = append(t.res.offline, 100*(float64(busy)/1000-float64(len(t.online)))/cards)
	}
	return nil
}

// scale starts or stops instances of the service; the youngest stop first.
func (t *tidal) scale(want int) error {
	for len(t.online) > want {
		last := len(t.online) - 1
		if err := t.f.Begin().Release(t.online[last]); err != nil {
			return err
		}
		t.online = t.online[:last]
	}
	for len(t.online) < want {
		r := &alloc.Request{ID: fmt.Sprintf("s%d", t.nextOnline), Count: 1, Share: alloc.Share{Compute: gpu.Card}, Priority: onlinePriority, Mode: alloc.Tidal}
		if !t.shared {
			r.Pool = "online"
		}
		t.nextOnline++
		t.res.OnlineStarts++
		p, ok := t.placer.Decide(r)
		if !ok {
			var err error
			if p, ok, err = t.reclaim(r); err != nil {
				return err
			}
		}
		if !ok {
			t.res.OnlineRefused++
			return nil
		}
		if err := t.f.Begin().Grant(p); err != nil {
			return err
		}
		t.online = append(t.online, r.ID)
	}
	return nil
}

// reclaim takes cards back from batch jobs, those that lose the least since their checkpoint.
func (t *tidal) reclaim(r *alloc.Request) (alloc.Placement, bool, error) {
	byID := map[string]*batchJob{}
	for _, j := range t.running {
		byID[j.placement.Request.ID] = j
	}
	pre, ok := t.f.Preempt(r, func(g *alloc.Grant) (int64, bool) {
		j := byID[g.Request.ID]
		if j == nil {
			return 0, false
		}
		return t.unsaved(j) * int64(j.cards), true
	})
	if !ok {
		return alloc.Placement{}, false, nil
	}
	for _, id := range pre.Victims {
		j := byID[id]
		if err := t.f.Begin().Release(id); err != nil {
			return alloc.Placement{}, false, err
		}
		t.lost += t.unsaved(j) * int64(j.cards)
		j.left -= t.now - j.started - t.unsaved(j)
		j.epoch++
		t.running = slices.DeleteFunc(t.running, func(x *batchJob) bool { return x == j })
		t.queue = append([]*batchJob{j}, t.queue...)
		t.res.Preempted++
	}
	t.res.OnlineWaited++
	t.res.OnlineMaxWait = max(t.res.OnlineMaxWait, t.cfg.Reclaim)
	return pre.Placement, true, nil
}

// unsaved is the running time of a job since its last checkpoint.
func (t *tidal) unsaved(j *batchJob) int64 { return (t.now - j.started) % t.cfg.Checkpoint }

// fill starts batch jobs in order, passing those that do not fit.
func (t *tidal) fill() error {
	failed := map[int]bool{}
	kept := make([]*batchJob, 0, len(t.queue))
	for _, j := range t.queue {
		r := j.request()
		if !t.shared {
			r.Pool = "offline"
		}
		p, ok := alloc.Placement{}, false
		if !failed[j.cards] {
			p, ok = t.placer.Decide(r)
		}
		if !ok {
			failed[j.cards] = true
			kept = append(kept, j)
			continue
		}
		if err := t.f.Begin().Grant(p); err != nil {
			return err
		}
		j.placement, j.started = &p, t.now
		t.running = append(t.running, j)
	}
	t.queue = kept
	return nil
}

// finish counts jobs that are not done as ending with the run, which flatters whoever leaves more of them.
func (t *tidal) finish(end int64) *TidalResult {
	for _, list := range [][]*batchJob{t.queue, t.running} {
		for _, j := range list {
			t.res.OfflineCompletion += float64(end - j.arrive)
		}
	}
	t.res.OfflineCompletion /= float64(max(1, t.res.OfflineJobs))
	steps := float64(end / tidalStep)
	t.res.UsedPercent = math.Round(t.used/steps/float64(t.f.TotalCompute())*10000) / 100
	t.res.LostPercent = percent(t.lost, max(1, t.done))
	return t.res
}

// TidalReport plots both arrangements.
func TidalReport(results []*TidalResult) *Report {
	rep := &Report{Title: "A tidal day"}
	for _, r := range results {
		rep.Sections = append(rep.Sections, Section{Heading: fmt.Sprintf("%s, seed %d: %.1f %% used", r.Arrangement, r.Seed, r.UsedPercent),
			Plot: &Plot{X: "hours", Y: "cards, %", Lines: []Line{{"online", r.hours, r.online}, {"offline", r.hours, r.offline}}}})
	}
	return rep
}
