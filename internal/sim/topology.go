package sim

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// ReadTopology reads hosts with their switches in the layout of the lingjun trace: ip, DSW, PSW, ASW. A leaf is an
// ASW below a PSW; every host gets the given number of whole cards.
func ReadTopology(file string, r io.Reader, cards int) ([]gpu.Machine, error) {
	t, err := openTable(file, r, "ip", "DSW", "PSW", "ASW")
	if err != nil {
		return nil, err
	}
	var out []gpu.Machine
	for {
		if err := t.next(); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		for _, f := range []string{"ip", "DSW", "PSW", "ASW"} {
			if t.text(f) == "" {
				t.fail(f, "a name")
			}
		}
		if t.err != nil {
			return nil, t.err
		}
		out = append(out, host(string([]byte(t.text("ip"))), string([]byte(t.text("ASW"))), string([]byte(t.text("PSW"))), string([]byte(t.text("DSW"))), cards))
	}
}

// host is a machine of whole cards at a place in the network.
func host(name, leaf, spine, zone string, cards int) gpu.Machine {
	m := gpu.Machine{Name: name, CPU: gpu.Milli(cards) * 16000, Memory: gpu.Bytes(cards) * 128 * gpu.GiB,
		Position: gpu.Position{Leaf: leaf, Spine: spine, Zone: zone}}
	for c := range cards {
		m.Devices = append(m.Devices, gpu.Device{Index: c, Model: "H800", Memory: 80 * gpu.GiB,
			PCIe: gpu.PCIe{Switch: int16(c / 2), Bridge: int16(c / 4), NUMA: int16(c / 4)}})
		m.NICs = append(m.NICs, gpu.NIC{Name: fmt.Sprintf("ib%d", c), RDMA: gpu.RoCEv2, Gbps: 400, Rail: int16(c),
			PCIe: gpu.PCIe{Switch: int16(c / 2), Bridge: int16(c / 4), NUMA: int16(c / 4)}})
	}
	return m
}

// LoadTopology reads a file of hosts.
func LoadTopology(path string, cards int) ([]gpu.Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadTopology(path, f, cards)
}

// FabricConfig describes the load of a topology run.
type FabricConfig struct {
	Gangs         int     // that arrive
	Guaranteed    float64 // load of gangs that their tenant's share guarantees, of the cluster
	Opportunistic float64 // load of gangs that run on what is idle and are taken from, of the cluster
	Seed          int64
}

// FabricResult sums up a topology run.
type FabricResult struct {
	Policy      string  `json:"policy"`
	Seed        int64   `json:"seed"`
	Gangs       int     `json:"gangs"`
	Anomalies   int     `json:"sharingAnomalies"` // guaranteed gangs that start later, or span more leaves, than in a private cluster
	Guaranteed  int     `json:"guaranteedGangs"`
	OneLeaf     float64 `json:"oneLeafPercent"` // of the gangs of 2 machines or more that fit a leaf
	ExtraLeaves float64 `json:"extraLeaves"`    // mean number of leaves beyond the fewest possible, larger gangs
	Partial     int     `json:"partialGangs"`
	Preempted   int     `json:"preempted"`
	MeanWait    float64 `json:"meanWaitSeconds"` // guaranteed gangs
	MeanOppWait float64 `json:"meanOpportunisticWaitSeconds"`
	Used        float64 `json:"usedPercent"` // mean over time
	Slowest     float64 `json:"slowestDecisionMillis"`
	Large512    float64 `json:"gang512DecisionMillis"` // the slowest decision about 512 cards; 0 where none arrived
}

// fabricJob is one gang of the load.
type fabricJob struct {
	id            int
	tenant        int
	hosts, cards  int // members and cards of each
	arrive, run   float64
	opportunistic bool
	started       float64 // first start; -1 while it waits
	verdict       alloc.GangVerdict
	epoch         int // rises when it is preempted, so that its old end is ignored
}

// Tenants and their parts of the cluster; the first is large enough for 512 cards on a cluster of 847 hosts.
var tenantShares = []float64{0.4, 0.15, 0.15, 0.15, 0.15}

// gangSizes are cards and their weights: most gangs are small, most work is in large ones.
var gangSizes = []struct {
	cards  int
	weight float64
}{{1, 20}, {2, 14}, {4, 14}, {8, 20}, {16, 12}, {32, 9}, {64, 7}, {128, 2.5}, {256, 1}, {512, 0.5}}

// FabricLoad draws the gangs of a run.
func FabricLoad(cfg FabricConfig, cluster int) []*fabricJob {
	rng := rand.New(rand.NewSource(cfg.Seed))
	weights, mean := 0.0, 0.0
	for _, g := range gangSizes {
		weights += g.weight
		mean += float64(g.cards) * g.weight
	}
	const meanRun = 4 * 3600.0
	gap := mean / weights * meanRun / ((cfg.Guaranteed + cfg.Opportunistic) * float64(cluster))
	at := 0.0
	jobs := make([]*fabricJob, cfg.Gangs)
	for i := range jobs {
		at += rng.ExpFloat64() * gap
		j := &fabricJob{id: i, arrive: at, run: 60 + rng.ExpFloat64()*meanRun, started: -1,
			opportunistic: rng.Float64()*(cfg.Guaranteed+cfg.Opportunistic) >= cfg.Guaranteed}
		pick := rng.Float64() * weights
		for _, g := range gangSizes {
			if pick -= g.weight; pick < 0 {
				j.cards, j.hosts = min(8, g.cards), max(1, g.cards/8)
				break
			}
		}
		pick = rng.Float64()
		for t, s := range tenantShares {
			if pick -= s; pick < 0 {
				j.tenant = t
				break
			}
		}
		if float64(j.hosts*j.cards) > 0.5*tenantShares[j.tenant]*float64(cluster) {
			j.tenant = 0
		}
		jobs[i] = j
	}
	return jobs
}

// fabric is the state of a run.
type fabric struct {
	policy                          string
	f                               *alloc.Fleet
	net                             *alloc.Network
	owner                           []int // by node: whose share it is in
	quota                           []int // by tenant, cards
	held                            []int // by tenant, guaranteed cards in use
	queue                           []*fabricJob
	running                         map[int]*fabricJob
	ends                            fabricEnds
	now                             float64
	area                            float64
	rng                             *rand.Rand
	res                             *FabricResult
	only                            int // a tenant whose private cluster this is; -1 for the shared one
	leafFit, leafOne, larger, extra int
}

type fabricEnd struct {
	at    float64
	job   *fabricJob
	epoch int
}

type fabricEnds []fabricEnd

func (h fabricEnds) Len() int { return len(h) }
func (h fabricEnds) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].job.id < h[j].job.id
}
func (h fabricEnds) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *fabricEnds) Push(x any)   { *h = append(*h, x.(fabricEnd)) }
func (h *fabricEnds) Pop() any     { o := *h; x := o[len(o)-1]; *h = o[:len(o)-1]; return x }

// FabricPolicies lists the placements that a topology run compares.
func FabricPolicies() []string { return []string{"penstock", "buddy", "packing", "random"} }

// Fabric runs the load on the machines under one policy, after the private clusters of the tenants, against which
// anomalies are judged.
func Fabric(ctx context.Context, machines []gpu.Machine, cfg FabricConfig, policy string) (*FabricResult, error) {
	if !slices.Contains(FabricPolicies(), policy) {
		return nil, fmt.Errorf("policy %q is unknown: expected one of %v", policy, FabricPolicies())
	}
	private := map[int]*fabricJob{}
	for t := range tenantShares {
		r, err := newFabric(machines, cfg, "penstock", t)
		if err != nil {
			return nil, err
		}
		jobs, err := r.play(ctx, cfg)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			if j.tenant == t && !j.opportunistic {
				private[j.id] = j
			}
		}
	}
	r, err := newFabric(machines, cfg, policy, -1)
	if err != nil {
		return nil, err
	}
	jobs, err := r.play(ctx, cfg)
	if err != nil {
		return nil, err
	}
	waits, opp, oppN := 0.0, 0.0, 0
	for _, j := range jobs {
		switch {
		case j.opportunistic && j.started >= 0:
			opp += j.started - j.arrive
			oppN++
		case !j.opportunistic:
			r.res.Guaranteed++
			waits += j.started - j.arrive
			if p := private[j.id]; j.started > p.started+1e-9 || j.verdict.Leaves > p.verdict.Leaves {
				r.res.Anomalies++
			}
		}
	}
	r.res.MeanWait = waits / float64(max(1, r.res.Guaranteed))
	r.res.MeanOppWait = opp / float64(max(1, oppN))
	r.res.OneLeaf = percent(int64(r.leafOne), int64(max(1, r.leafFit)))
	r.res.ExtraLeaves = float64(r.extra) / float64(max(1, r.larger))
	return r.res, nil
}

func newFabric(machines []gpu.Machine, cfg FabricConfig, policy string, only int) (*fabric, error) {
	f, err := alloc.NewFleet(machines)
	if err != nil {
		return nil, err
	}
	r := &fabric{policy: policy, f: f, net: alloc.NewNetwork(f), only: only, running: map[int]*fabricJob{},
		rng: rand.New(rand.NewSource(cfg.Seed + 1)), held: make([]int, len(tenantShares)), quota: make([]int, len(tenantShares)),
		res: &FabricResult{Policy: policy, Seed: cfg.Seed}}
	r.owner = shareOut(machines, r.quota)
	return r, nil
}

// shareOut gives whole leaves to the tenants by their shares, the one furthest below its share first, and sets the
// quotas to what they got.
func shareOut(machines []gpu.Machine, quota []int) []int {
	type leaf struct {
		key   string
		nodes []int
	}
	at := map[string]int{}
	var leaves []leaf
	for i := range machines {
		p := machines[i].Position
		key := p.Zone + "/" + p.Spine + "/" + p.Leaf
		j, ok := at[key]
		if !ok {
			j = len(leaves)
			at[key] = j
			leaves = append(leaves, leaf{key: key})
		}
		leaves[j].nodes = append(leaves[j].nodes, i)
	}
	slices.SortFunc(leaves, func(a, b leaf) int {
		if len(a.nodes) != len(b.nodes) {
			return len(b.nodes) - len(a.nodes)
		}
		return compareStrings(a.key, b.key)
	})
	owner := make([]int, len(machines))
	for _, l := range leaves {
		t := 0
		for i := range quota {
			if float64(quota[i])/tenantShares[i] < float64(quota[t])/tenantShares[t] {
				t = i
			}
		}
		for _, n := range l.nodes {
			owner[n] = t
			quota[t] += len(machines[n].Devices)
		}
	}
	return owner
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// play runs the whole load.
func (r *fabric) play(ctx context.Context, cfg FabricConfig) ([]*fabricJob, error) {
	jobs := FabricLoad(cfg, r.f.Cards())
	last := 0.0
	for i, j := range jobs {
		if i%64 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if r.only >= 0 && (j.tenant != r.only || j.opportunistic) {
			continue
		}
		if err := r.until(j.arrive); err != nil {
			return nil, err
		}
		r.move(j.arrive)
		last = j.arrive
		r.res.Gangs++
		r.queue = append(r.queue, j)
		if err := r.dispatch(); err != nil {
			return nil, err
		}
	}
	r.res.Used = r.area / max(1, last) / float64(r.f.Cards()) * 100
	for len(r.ends) > 0 {
		if err := r.until(r.ends[0].at); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// until lets gangs end up to a time.
func (r *fabric) until(t float64) error {
	for len(r.ends) > 0 && r.ends[0].at <= t {
		e := heap.Pop(&r.ends).(fabricEnd)
		if e.job.epoch != e.epoch {
			continue
		}
		r.move(e.at)
		if err := r.stop(e.job); err != nil {
			return err
		}
		if err := r.dispatch(); err != nil {
			return err
		}
	}
	return nil
}

func (r *fabric) move(t float64) {
	r.area += float64(r.f.TotalCompute()-r.f.FreeCompute()) / 1000 * (t - r.now)
	r.now = t
}

// stop releases every member of a gang.
func (r *fabric) stop(j *fabricJob) error {
	txn := r.f.Begin()
	for _, p := range j.verdict.Placements {
		if err := txn.Release(p.Request.ID); err != nil {
			return err
		}
	}
	txn.Commit()
	delete(r.running, j.id)
	if !j.opportunistic {
		r.held[j.tenant] -= j.hosts * j.cards
	}
	return nil
}

// dispatch starts what can start: guaranteed gangs in each tenant's order, then opportunistic ones in order of
// arrival, smaller ones passing those that do not fit.
func (r *fabric) dispatch() error {
	blocked := make([]bool, len(tenantShares))
	tried := map[[2]int]bool{}
	for _, opportunistic := range []bool{false, true} {
		for i := 0; i < len(r.queue); i++ {
			j := r.queue[i]
			if j.opportunistic != opportunistic || !opportunistic && blocked[j.tenant] || opportunistic && tried[[2]int{j.hosts, j.cards}] {
				continue
			}
			ok, err := r.try(j)
			if err != nil {
				return err
			}
			if ok {
				at := slices.Index(r.queue, j) // preempted gangs may have come back before it
				r.queue = slices.Delete(r.queue, at, at+1)
				i = -1
				continue
			}
			blocked[j.tenant] = blocked[j.tenant] || !opportunistic
			tried[[2]int{j.hosts, j.cards}] = opportunistic
		}
	}
	return nil
}

// try places one gang; a guaranteed one may take from opportunistic gangs, whole gangs only.
func (r *fabric) try(j *fabricJob) (bool, error) {
	start := time.Now()
	var v alloc.GangVerdict
	var victims []string
	if j.opportunistic {
		v = r.place(j, nil)
	} else {
		if r.only < 0 && r.held[j.tenant]+j.hosts*j.cards > r.quota[j.tenant] {
			return false, nil
		}
		v, victims = r.placeGuaranteed(j)
	}
	took := float64(time.Since(start).Microseconds()) / 1000
	r.res.Slowest = max(r.res.Slowest, took)
	if j.hosts*j.cards >= 512 {
		r.res.Large512 = max(r.res.Large512, took)
	}
	if !v.Placed {
		return false, nil
	}
	if err := r.evict(victims); err != nil {
		return false, err
	}
	txn := r.f.Begin()
	if err := txn.GrantAll(&v); err != nil {
		return false, fmt.Errorf("a gang was placed where it does not fit: %w", err)
	}
	txn.Commit()
	r.count(j, &v)
	j.verdict = v
	if j.started < 0 {
		j.started = r.now
	}
	if !j.opportunistic {
		r.held[j.tenant] += j.hosts * j.cards
	}
	r.running[j.id] = j
	heap.Push(&r.ends, fabricEnd{r.now + j.run, j, j.epoch})
	return true, nil
}

// count books how well a gang was placed.
func (r *fabric) count(j *fabricJob, v *alloc.GangVerdict) {
	if len(v.Placements) != j.hosts {
		r.res.Partial++
	}
	if j.hosts >= 2 && j.hosts <= leafHosts {
		r.leafFit++
		if v.Leaves == 1 {
			r.leafOne++
		}
	} else if j.hosts > leafHosts {
		r.larger++
		r.extra += v.Leaves - (j.hosts+leafHosts-1)/leafHosts
	}
}
