package simcmd

import (
	"fmt"
	"iter"
	"math"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

type replayFlags struct {
	workload
	output
	policies, table, seeds string
	jobs, warm             int
	load, cut              float64
	whole                  float64
	trace                  bool
}

func replayCmd() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Run jobs that arrive, wait, run and leave",
		Long: `Jobs arrive, wait where they do not fit, run as long as they ran in the trace, and leave. By default each seed draws
--jobs jobs from the trace at an offered load of --load; with --as-recorded the trace is played with its own times,
streamed, in memory that grows with what runs and not with the file.`,
		Example: "  penstock sim replay --nodes nodes.csv --pods pods.csv --policies fgd,penstock --table table.json --seeds 42-51",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.workload.flags(cmd)
	f.output.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.policies, "policies", "fgd,bestfit", "policies to compare on the same jobs")
	fs.StringVar(&f.table, "table", "", "value table for policy penstock")
	fs.StringVar(&f.seeds, "seeds", "42-46", "seeds, as numbers and ranges")
	fs.IntVar(&f.jobs, "jobs", 30000, "jobs a seed")
	fs.IntVar(&f.warm, "warm", 8000, "first jobs that are left out of the figures")
	fs.Float64Var(&f.load, "load", 1, "compute offered, as a part of the cluster's")
	fs.Float64Var(&f.cut, "cut", 0.95, "quantile at which durations are cut")
	fs.Float64Var(&f.whole, "fragmentation", 0.3, "weight of FGD's gradient in policy penstock: keeps machines whole where jobs leave again")
	fs.BoolVar(&f.trace, "as-recorded", false, "play the trace's own times")
	return cmd
}

func (f *replayFlags) run(cmd *cobra.Command) error {
	seeds, err := parseSeeds(f.seeds)
	if err != nil {
		return err
	}
	if f.load <= 0 || f.cut <= 0 || f.cut > 1 || f.jobs < 1 || f.warm < 0 || f.warm >= f.jobs {
		return fmt.Errorf("--load %v, --cut %v, --jobs %d, --warm %d: expected a load above 0, a cut of 0 to 1, and fewer warm-up jobs than jobs", f.load, f.cut, f.jobs, f.warm)
	}
	nodes, err := sim.LoadNodes(f.nodes)
	if err != nil {
		return err
	}
	var pods []sim.Pod
	if !f.trace || strings.Contains(f.policies, "fgd") {
		if pods, err = sim.LoadPods(f.pods); err != nil {
			return err
		}
	}
	if f.trace {
		seeds = seeds[:1]
	}
	fleet, err := alloc.NewFleet(nodes)
	if err != nil {
		return err
	}
	names := strings.Split(f.policies, ",")
	progress, done := newBar(cmd), 0
	byPolicy := map[string][]*sim.ReplayResult{}
	for _, seed := range seeds {
		for _, name := range names {
			policy, err := f.policy(name, pods)
			if err != nil {
				return err
			}
			jobs, warm := sim.Jobs(pods, fleet.TotalCompute(), f.jobs, f.load, f.cut, seed), f.warm
			if f.trace {
				jobs, warm = streamFile(f.pods), 0
			}
			r, err := sim.Replay(cmd.Context(), nodes, jobs, warm, name, func(fl *alloc.Fleet) sim.Decider { return alloc.NewPlacer(fl, policy) })
			if err != nil {
				return err
			}
			r.Seed = seed
			byPolicy[name] = append(byPolicy[name], r)
			done++
			progress.step(done, len(seeds)*len(names))
			if f.json {
				if err := lines(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			}
		}
	}
	if !f.json {
		replayTable(cmd, names, byPolicy)
	}
	return f.report(sim.ReplayReport("Replay of "+f.pods, names, byPolicy))
}

// policy makes one of the policies; penstock with the weight for runs in which jobs leave.
func (f *replayFlags) policy(name string, pods []sim.Pod) (*alloc.Policy, error) {
	if name != "penstock" || f.table == "" {
		return onePolicy(name, f.table, pods)
	}
	t, err := readTable(f.table)
	if err != nil {
		return nil, err
	}
	t.Weights.Fragmentation = f.whole
	p := alloc.Learned(t)
	return &p, nil
}

// streamFile reads pods as they are asked for.
func streamFile(path string) iter.Seq2[sim.Pod, error] {
	return func(yield func(sim.Pod, error) bool) {
		file, err := os.Open(path)
		if err != nil {
			yield(sim.Pod{}, err)
			return
		}
		defer file.Close()
		sim.ReadPods(path, file)(yield)
	}
}

// replayTable prints means over the seeds with 95 % confidence intervals (normal, of the mean).
func replayTable(cmd *cobra.Command, names []string, by map[string][]*sim.ReplayResult) {
	tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "policy\tallocated %\tmean wait s\tp95 wait s\tmean completion s\twaited %\t")
	for _, n := range names {
		fmt.Fprintf(tw, "%s\t", n)
		for _, get := range []func(*sim.ReplayResult) float64{
			func(r *sim.ReplayResult) float64 { return r.MeanAllocatedPercent }, func(r *sim.ReplayResult) float64 { return r.MeanWait },
			func(r *sim.ReplayResult) float64 { return r.P95Wait }, func(r *sim.ReplayResult) float64 { return r.MeanCompletion },
			func(r *sim.ReplayResult) float64 { return r.WaitedPercent }} {
			m, ci := meanCI(by[n], get)
			if len(by[n]) < 2 {
				fmt.Fprintf(tw, "%.2f\t", m)
				continue
			}
			fmt.Fprintf(tw, "%.2f ± %.2f\t", m, ci)
		}
		fmt.Fprintln(tw)
	}
	tw.Flush()
}

func meanCI(rs []*sim.ReplayResult, get func(*sim.ReplayResult) float64) (mean, ci float64) {
	for _, r := range rs {
		mean += get(r) / float64(len(rs))
	}
	if len(rs) < 2 {
		return mean, 0
	}
	varSum := 0.0
	for _, r := range rs {
		varSum += (get(r) - mean) * (get(r) - mean)
	}
	return mean, 1.96 * math.Sqrt(varSum/float64(len(rs)-1)/float64(len(rs)))
}
