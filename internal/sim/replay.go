package sim

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// ReplayResult sums up a run with arrivals and departures. Times are in seconds of the virtual clock; figures leave
// out what arrived during the warm-up.
type ReplayResult struct {
	Seed                 int64              `json:"seed"`
	Policy               string             `json:"policy"`
	Jobs                 int                `json:"jobs"`
	MeanAllocatedPercent float64            `json:"meanAllocatedPercent"` // over time, until the last arrival
	MeanWait             float64            `json:"meanWaitSeconds"`
	P95Wait              float64            `json:"p95WaitSeconds"` // upper edge of its bin, a tenth wide
	MeanCompletion       float64            `json:"meanCompletionSeconds"`
	WaitedPercent        float64            `json:"waitedPercent"` // jobs that did not start at once
	Never                int                `json:"never"`         // jobs that no empty machine fits
	LargestQueue         int                `json:"largestQueue"`
	WaitByKind           map[string]float64 `json:"meanWaitByKind"`
	hours, allocated     []float64
}

// Jobs draws a stream of n jobs from a trace: shapes and durations of random pods, arrivals as a Poisson process
// whose rate offers load times the compute of the cluster. Durations are cut at the given quantile, so that one
// giant does not decide the run.
func Jobs(pods []Pod, capacity int64, n int, load, cut float64, seed int64) iter.Seq2[Pod, error] {
	return func(yield func(Pod, error) bool) {
		var durations []float64
		for i := range pods {
			durations = append(durations, float64(pods[i].duration()))
		}
		longest := int64(quantile(durations, cut))
		work := 0.0 // mean milli-seconds of compute of a job
		for i := range pods {
			work += float64(pods[i].Compute()) * float64(min(pods[i].duration(), longest)) / float64(len(pods))
		}
		if work == 0 {
			yield(Pod{}, fmt.Errorf("the trace has no job with cards and a duration: expected creation_time and deletion_time"))
			return
		}
		rng := rand.New(rand.NewSource(seed))
		gap, at := work/(load*float64(capacity)), 0.0
		for i := range n {
			p := pods[rng.Intn(len(pods))]
			at += rng.ExpFloat64() * gap
			d := min(p.duration(), longest)
			p.ID = fmt.Sprintf("%s-%d", p.ID, i)
			p.Created, p.Scheduled, p.Deleted = int64(at), int64(at), int64(at)+d
			if !yield(p, nil) {
				return
			}
		}
	}
}

// duration is how long a pod ran, at least a second.
func (p *Pod) duration() int64 {
	start := max(p.Created, p.Scheduled)
	return max(1, p.Deleted-start)
}

// departures is a heap of running jobs by the time they end.
type departures []running

type running struct {
	end int64
	id  string
}

func (d departures) Len() int { return len(d) }
func (d departures) Less(i, j int) bool {
	return d[i].end < d[j].end || d[i].end == d[j].end && d[i].id < d[j].id
}
func (d departures) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)   { *d = append(*d, x.(running)) }
func (d *departures) Pop() any {
	old := *d
	x := old[len(old)-1]
	*d = old[:len(old)-1]
	return x
}

// waiting is a job in the queue with the number of its shape.
type waiting struct {
	job   *Pod
	shape int
}

// replay is the state of a run; only what runs or waits is held.
type replay struct {
	f                *alloc.Fleet
	empty            *alloc.Placer // of the same machines with nothing on them: what never fits is not queued
	decider          Decider
	now              int64
	queue            []waiting
	shapes           map[string]int // numbers of the shapes seen
	queued           []int          // waiting jobs by shape
	ends             departures
	res              *ReplayResult
	warm             int // jobs of the warm-up still to come
	since            int64
	area             float64
	waits            histogram
	waitSum, doneSum float64
	started          int
	waited           int
	byKind           [alloc.KindCount]struct {
		sum float64
		n   int
	}
}

// Replay plays a stream of jobs, ordered by Created, first come first served with backfilling: a job that does not
// fit waits, later ones may start before it. Memory grows with what runs and waits, not with the stream.
func Replay(ctx context.Context, machines []gpu.Machine, jobs iter.Seq2[Pod, error], warm int, name string, d func(*alloc.Fleet) Decider) (*ReplayResult, error) {
	f, err := alloc.NewFleet(machines)
	if err != nil {
		return nil, err
	}
	p := alloc.BestFit()
	r := &replay{f: f, empty: alloc.NewPlacer(f.Clone(), &p), decider: d(f), warm: warm, shapes: map[string]int{},
		res: &ReplayResult{Policy: name, WaitByKind: map[string]float64{}}}
	last := int64(math.MinInt64)
	for job, err := range jobs {
		if err != nil {
			return nil, err
		}
		if job.Created < last {
			return nil, fmt.Errorf("job %q is created at %d, after one at %d: expected jobs by creation_time", job.ID, job.Created, last)
		}
		last = job.Created
		if r.res.Jobs%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := r.arrive(&job); err != nil {
			return nil, err
		}
	}
	r.account()
	if err := r.drain(math.MaxInt64); err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// arrive lets the clock run to a job's creation and starts or queues it.
func (r *replay) arrive(job *Pod) error {
	if err := r.drain(job.Created); err != nil {
		return err
	}
	r.move(job.Created)
	r.res.Jobs++
	if r.warm--; r.warm == 0 {
		r.since, r.area = r.now, 0
	}
	j := *job
	if _, ok := r.empty.Decide(&j.Request); !ok {
		r.res.Never++
		return nil
	}
	ok, err := r.start(&j)
	if err == nil && !ok {
		r.enqueue(&j)
		r.res.LargestQueue = max(r.res.LargestQueue, len(r.queue))
	}
	return err
}

// drain lets everything depart that ends by t, and starts what waits for it.
func (r *replay) drain(t int64) error {
	for len(r.ends) > 0 && r.ends[0].end <= t {
		r.move(r.ends[0].end)
		for len(r.ends) > 0 && r.ends[0].end == r.now {
			if err := r.f.Begin().Release(heap.Pop(&r.ends).(running).id); err != nil {
				return err
			}
		}
		if err := r.backfill(); err != nil {
			return err
		}
	}
	return nil
}

// enqueue puts a job at the end of the queue.
func (r *replay) enqueue(j *Pod) {
	key := fmt.Sprint(j.CPU, j.Memory, j.Count, j.Share, j.Models)
	n, ok := r.shapes[key]
	if !ok {
		n = len(r.queued)
		r.shapes[key], r.queued = n, append(r.queued, 0)
	}
	r.queued[n]++
	r.queue = append(r.queue, waiting{j, n})
}

// backfill offers the room to the queue in order. A shape that did not fit once in the pass is not tried again: what
// starts only takes room. The pass ends when no shape that waits is left to try.
func (r *replay) backfill() error {
	failed, hopeful := make([]bool, len(r.queued)), 0
	for _, n := range r.queued {
		if n > 0 {
			hopeful++
		}
	}
	kept := r.queue[:0]
	for i, w := range r.queue {
		if hopeful == 0 {
			kept = append(kept, r.queue[i:]...)
			break
		}
		if failed[w.shape] {
			kept = append(kept, w)
			continue
		}
		ok, err := r.start(w.job)
		if err != nil {
			return err
		}
		if ok {
			if r.queued[w.shape]--; r.queued[w.shape] == 0 {
				hopeful--
			}
			continue
		}
		failed[w.shape] = true
		hopeful--
		kept = append(kept, w)
	}
	r.queue = kept
	return nil
}

// start places a job if it fits.
func (r *replay) start(j *Pod) (bool, error) {
	p, ok := r.decider.Decide(&j.Request)
	if !ok {
		return false, nil
	}
	if err := r.f.Begin().Grant(p); err != nil {
		return false, fmt.Errorf("the core placed what does not fit: %w", err)
	}
	d := j.duration()
	heap.Push(&r.ends, running{r.now + d, j.ID})
	if r.warm < 0 {
		wait := float64(r.now - j.Created)
		r.started++
		r.waitSum += wait
		r.doneSum += wait + float64(d)
		r.waits.add(wait)
		k := &r.byKind[j.Kind()]
		k.sum += wait
		k.n++
		if wait > 0 {
			r.waited++
		}
	}
	return true, nil
}

// move advances the clock, booking what was allocated meanwhile.
func (r *replay) move(t int64) {
	r.area += float64(r.f.TotalCompute()-r.f.FreeCompute()) * float64(t-r.now)
	r.now = t
	if hour := float64(t) / 3600; r.warm < 0 && (len(r.res.hours) == 0 || hour >= r.res.hours[len(r.res.hours)-1]+1) {
		r.res.hours = append(r.res.hours, hour)
		r.res.allocated = append(r.res.allocated, percent(r.f.TotalCompute()-r.f.FreeCompute(), r.f.TotalCompute()))
	}
}

// account closes the books of allocation at the last arrival.
func (r *replay) account() {
	if span := float64(r.now - r.since); span > 0 && r.f.TotalCompute() > 0 {
		r.res.MeanAllocatedPercent = math.Round(r.area/span/float64(r.f.TotalCompute())*10000) / 100
	}
}

func (r *replay) finish() *ReplayResult {
	n := float64(max(1, r.started))
	r.res.MeanWait, r.res.MeanCompletion = math.Round(r.waitSum/n), math.Round(r.doneSum/n)
	r.res.P95Wait = math.Round(r.waits.quantile(0.95))
	r.res.WaitedPercent = math.Round(float64(r.waited)/n*10000) / 100
	for k, v := range r.byKind {
		if v.n > 0 {
			r.res.WaitByKind[alloc.Kind(k).String()] = math.Round(v.sum / float64(v.n))
		}
	}
	return r.res
}

// histogram counts values in bins a tenth wide, in bounded memory.
type histogram struct {
	bins [512]int
	n    int
}

func (h *histogram) add(v float64) {
	i := 0
	if v >= 1 {
		i = min(len(h.bins)-1, 1+int(math.Log(v)/math.Log(1.1)))
	}
	h.bins[i]++
	h.n++
}

// quantile is the upper edge of the bin that holds it.
func (h *histogram) quantile(q float64) float64 {
	sum := 0
	for i, c := range h.bins {
		if sum += c; float64(sum) >= q*float64(h.n) {
			if i == 0 {
				return 0
			}
			return math.Pow(1.1, float64(i))
		}
	}
	return 0
}
