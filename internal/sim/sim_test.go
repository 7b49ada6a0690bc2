package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// synthetic makes a small generated workload.
func synthetic(t testing.TB, nodes, pods int) ([]gpu.Machine, []Pod) {
	t.Helper()
	var n, p bytes.Buffer
	cfg := GenerateConfig{Nodes: nodes, Pods: pods, Hours: 24, Seed: 1}
	if err := errors.Join(GenerateNodes(&n, cfg), GeneratePods(&p, cfg)); err != nil {
		t.Fatal(err)
	}
	machines, err := ReadNodes("nodes.csv", &n)
	if err != nil {
		t.Fatal(err)
	}
	list, err := collect(ReadPods("pods.csv", &p))
	if err != nil {
		t.Fatal(err)
	}
	return machines, list
}

func collect(seq iter.Seq2[Pod, error]) (out []Pod, err error) {
	for p, err := range seq {
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func TestBadTraces(t *testing.T) {
	const podHead = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
	const nodeHead = "sn,cpu_milli,memory_mib,gpu,model\n"
	for _, c := range []struct{ name, pods, nodes, want string }{
		{"empty", "", "", "pods.csv:1: file is empty: expected a header"},
		{"column", "name,cpu_milli\n", "", `pods.csv:1: column "memory_mib" is missing`},
		{"number", podHead + "a,x,0,0,0,\n", "", `pods.csv:2: field "cpu_milli" is "x": expected a whole number from 0 to`},
		{"negative", podHead + "a,1,0,0,0,\nb,-5,0,0,0,\n", "", `pods.csv:3: field "cpu_milli" is "-5"`},
		{"share", podHead + "a,1,0,1,1001,\n", "", `field "gpu_milli" is "1001": expected a whole number from 1 to 1000`},
		{"share without card", podHead + "a,1,0,0,500,\n", "", `field "gpu_milli" is "500": expected 0, since num_gpu is 0`},
		{"cards", podHead + "a,1,0,17,1000,\n", "", `field "num_gpu" is "17": expected a whole number from 0 to 16`},
		{"models", podHead + "a,1,0,1,1000,T4||H200\n", "", `field "gpu_spec" is "T4||H200"`},
		{"name", podHead + ",1,0,0,0,\n", "", `field "name" is "": expected a name`},
		{"fields", podHead + "a,1\n", "", "pods.csv:2: wrong number of fields: expected 6"},
		{"node", "", nodeHead + "n,1,1,99,T4\n", `nodes.csv:2: field "gpu" is "99"`},
		{"node memory", "", nodeHead + "n,1,1e3,1,T4\n", `nodes.csv:2: field "memory_mib" is "1e3"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			if c.nodes != "" {
				_, err = ReadNodes("nodes.csv", strings.NewReader(c.nodes))
			} else {
				_, err = collect(ReadPods("pods.csv", strings.NewReader(c.pods)))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func FuzzReadPods(f *testing.F) {
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1,2,1,500,T4|H200\n")
	f.Fuzz(func(t *testing.T, s string) {
		for p, err := range ReadPods("f", strings.NewReader(s)) {
			if err != nil {
				return
			}
			if err := p.Request.Validate(); err != nil {
				t.Fatalf("the reader let an impossible request through: %v", err)
			}
		}
	})
}

// TestRunsRepeat plays every policy twice, with what learns online among them.
func TestRunsRepeat(t *testing.T) {
	nodes, pods := synthetic(t, 30, 700)
	for _, policy := range PolicyNames() {
		e := Experiment{Machines: nodes, Pods: pods, Load: Load, Policy: policy, Online: TrainConfig{Rounds: 2, Runs: 1, Trials: 4}}
		var last *Result
		for range 2 {
			r, err := e.Run(context.Background(), 7)
			if err != nil {
				t.Fatal(err)
			}
			r.DecisionsPerSecond, r.TrainSeconds, r.curve = 0, 0, nil
			if last != nil {
				if diff := cmp.Diff(last, r, cmp.AllowUnexported(Result{})); diff != "" {
					t.Errorf("%s: two runs differ:\n%s", policy, diff)
				}
			}
			last = r
		}
	}
}

// TestScenario checks what the protocol promises, whatever the workload.
func TestScenario(t *testing.T) {
	nodes, pods := synthetic(t, 20, 300)
	capacity := totalCompute(nodes)
	rapid.Check(t, func(t *rapid.T) {
		load := rapid.Float64Range(0.1, 3).Draw(t, "load")
		seed := rapid.Int64Range(0, 1000).Draw(t, "seed")
		s, again := NewScenario(nodes, pods, load, seed), NewScenario(nodes, pods, load, seed)
		if !reflect.DeepEqual(s, again) {
			t.Fatal("same seed, other scenario")
		}
		sum, ids := int64(0), map[string]bool{}
		for i := range s.Arrivals {
			sum += s.Arrivals[i].Compute()
			ids[s.Arrivals[i].ID] = true
		}
		if float64(sum) > load*float64(capacity)+8000 || len(ids) != len(s.Arrivals) {
			t.Fatalf("asked %d for a target of %.0f, %d of %d names differ", sum, load*float64(capacity), len(ids), len(s.Arrivals))
		}
		if !slices.IsSortedFunc(s.Machines, func(a, b gpu.Machine) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatal("machines are not in the order of their names")
		}
	})
}

func TestTrainedTableIsValidAndPacks(t *testing.T) {
	nodes, pods := synthetic(t, 40, 600)
	table, err := Train(context.Background(), nodes, pods, TrainConfig{Rounds: 4, Runs: 2, Trials: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	ours, theirs := 0.0, 0.0
	for seed := int64(1); seed <= 10; seed++ {
		s := NewScenario(nodes, pods, Load, seed)
		a, err := run(context.Background(), &s, seed, alloc.Learned(table))
		if err != nil {
			t.Fatal(err)
		}
		b, err := run(context.Background(), &s, seed, alloc.BestFit())
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs = ours+a.AllocatedPercent/10, theirs+b.AllocatedPercent/10
	}
	if ours < theirs {
		t.Errorf("the table allocates %.2f %%, best fit %.2f %%", ours, theirs)
	}
	bound, err := Bound(context.Background(), ptr(NewScenario(nodes, pods, Load, 1)), 1)
	if err != nil {
		t.Fatal(err)
	}
	if bound.FreeChoice < bound.NoReject-0.01 || bound.FreeChoice > 100.01 || bound.FreeChoice < ours-0.5 {
		t.Errorf("bounds %+v do not bound %.2f %%", bound, ours)
	}
}

func ptr[T any](v T) *T { return &v }

func TestTrainStopsWithItsContext(t *testing.T) {
	nodes, pods := synthetic(t, 10, 100)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Train(ctx, nodes, pods, TrainConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want the context's", err)
	}
}

// TestReplayConserves checks that every job runs once, in any order of load.
func TestReplayConserves(t *testing.T) {
	nodes, pods := synthetic(t, 12, 300)
	for _, load := range []float64{0.3, 1, 2} {
		p := alloc.BestFit()
		var fleet *alloc.Fleet
		r, err := Replay(context.Background(), nodes, Jobs(pods, totalCompute(nodes), 500, load, 1, 3), 0, "bestfit",
			func(f *alloc.Fleet) Decider { fleet = f; return alloc.NewPlacer(f, &p) })
		if err != nil {
			t.Fatal(err)
		}
		if fleet.FreeCompute() != fleet.TotalCompute() || r.Jobs != 500 || r.MeanAllocatedPercent > 100 {
			t.Errorf("load %v: %d of %d free in the end: %+v", load, fleet.FreeCompute(), fleet.TotalCompute(), r)
		}
	}
	bad := func(yield func(Pod, error) bool) {
		_ = yield(Pod{Created: 5}, nil) && yield(Pod{Created: 4}, nil)
	}
	p := alloc.BestFit()
	if _, err := Replay(context.Background(), nodes, bad, 0, "x", func(f *alloc.Fleet) Decider { return alloc.NewPlacer(f, &p) }); err == nil || !strings.Contains(err.Error(), "creation_time") {
		t.Errorf("jobs out of order: error is %v", err)
	}
}

func TestTidalKeepsItsBound(t *testing.T) {
	cfg := TidalConfig{Hosts: 12, Peak: 0.7, Trough: 0.1, Offline: 1.8, Reclaim: 30, Checkpoint: 900, Days: 1, Seed: 3}
	sep, err := Tidal(context.Background(), cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	tide, err := Tidal(context.Background(), cfg, true)
	if err != nil {
		t.Fatal(err)
	}
	if tide.OnlineRefused != 0 || tide.OnlineMaxWait > cfg.Reclaim {
		t.Errorf("the service was refused %d times and waited %d s, bound %d s", tide.OnlineRefused, tide.OnlineMaxWait, cfg.Reclaim)
	}
	if tide.UsedPercent <= sep.UsedPercent || tide.OfflineCompletion >= sep.OfflineCompletion {
		t.Errorf("tidal is no better: %+v against %+v", tide, sep)
	}
}

func TestFabricHasNoAnomalies(t *testing.T) {
	var b bytes.Buffer
	if err := GenerateHosts(&b, GenerateConfig{Nodes: 256}); err != nil {
		t.Fatal(err)
	}
	hosts, err := ReadTopology("hosts.csv", &b, 8)
	if err != nil {
		t.Fatal(err)
	}
	for seed := int64(1); seed <= 3; seed++ {
		r, err := Fabric(context.Background(), hosts, FabricConfig{Gangs: 400, Guaranteed: 0.5, Opportunistic: 0.4, Seed: seed}, "penstock")
		if err != nil {
			t.Fatal(err)
		}
		if r.Anomalies != 0 || r.Partial != 0 || r.OneLeaf < 95 {
			t.Errorf("seed %d: %+v", seed, r)
		}
	}
}

func TestReportIsSelfContained(t *testing.T) {
	r := &Report{Title: "<b>&", Sections: []Section{{Heading: "h", Columns: []string{"a"}, Rows: [][]string{{"<script>"}},
		Plot: &Plot{X: "x", Y: "<y>", Lines: []Line{{"l", []float64{0, 1}, []float64{2, 3}}, {"empty", nil, nil}}}}}}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script>", "<b>&", "<y>", "http", "NaN"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the report contains %q", bad)
		}
	}
	if !strings.Contains(b.String(), "<svg") {
		t.Error("the report has no plot")
	}
}

// BenchmarkDecide compares cached decisions with rating every node, as a ratio that holds on any machine.
func BenchmarkDecide(b *testing.B) {
	nodes, pods := synthetic(b, 1000, 3000)
	s := NewScenario(nodes, pods, Load, 1)
	p := alloc.FGD(alloc.NewMix(requests(pods), Cover))
	for _, kind := range []string{"cached", "uncached"} {
		b.Run(kind, func(b *testing.B) {
			f, err := alloc.NewFleet(s.Machines)
			if err != nil {
				b.Fatal(err)
			}
			placer := alloc.NewPlacer(f, &p)
			if kind == "uncached" {
				placer = alloc.NewUncachedPlacer(f, &p)
			}
			i := 0
			for b.Loop() {
				r := s.Arrivals[i%len(s.Arrivals)]
				r.ID = fmt.Sprint(i)
				if pl, ok := placer.Decide(&r); ok {
					if err := f.Begin().Grant(pl); err != nil {
						b.Fatal(err)
					}
				}
				i++
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func TestReadPodsStopsWhenTold(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		fmt.Fprint(w, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n")
		w.Close()
	}()
	for range ReadPods("p", r) {
		break
	}
	r.Close()
}

// TestSimplex solves a programme whose answer is known: max 3x+2y, x+y ≤ 4, x+3y ≤ 6, x ≤ 3.
func TestSimplex(t *testing.T) {
	columns := []column{{gain: 3, rows: []int{0, 1, 2}, vals: []float64{1, 1, 1}}, {gain: 2, rows: []int{0, 1}, vals: []float64{1, 3}}}
	got, err := newLP([]float64{4, 6, 3}).solve(context.Background(), 100, 1e-9, func(y []float64) (best column, gain float64) {
		for _, c := range columns {
			if g := c.reduced(y); g > gain {
				best, gain = c, g
			}
		}
		return best, gain
	})
	if err != nil || got < 10.999 || got > 11.001 {
		t.Errorf("optimum is %v, %v; want 11", got, err)
	}
}
