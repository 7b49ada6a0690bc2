package simcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

type inflateFlags struct {
	workload
	output
	policy, table, seeds string
	load                 float64
	rounds, runs, trials int
}

func inflateCmd() *cobra.Command {
	var f inflateFlags
	cmd := &cobra.Command{
		Use:   "inflate",
		Short: "Fill a cluster until it overflows (the experiment of the FGD paper)",
		Long: `Offer a workload to an empty cluster until it asks for --load times what there is; nothing ever leaves, and what
does not fit is dropped. The order of arrival and the ties are those of the published experiment for the same seed.

Policy "penstock" packs by a table from "penstock sim train"; without --table it learns one online from the arrivals
it sees.`,
		Example: "  penstock sim inflate --nodes nodes.csv --pods pods.csv --policy fgd --seeds 42-51",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.workload.flags(cmd)
	f.output.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.policy, "policy", "penstock", "one of "+strings.Join(sim.PolicyNames(), ", "))
	fs.StringVar(&f.table, "table", "", "value table for --policy penstock; learned online where empty")
	fs.StringVar(&f.seeds, "seeds", "42-51", "seeds, as numbers and ranges")
	fs.Float64Var(&f.load, "load", sim.Load, "compute asked for, as a multiple of the cluster's")
	fs.IntVar(&f.rounds, "online-rounds", 8, "rounds of each online training")
	fs.IntVar(&f.runs, "online-runs", 4, "simulations a round of each online training")
	fs.IntVar(&f.trials, "online-trials", 8, "simulations by which tables learned online are compared")
	return cmd
}

// readTable loads and validates a value table.
func readTable(path string) (*alloc.Table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := new(alloc.Table)
	if err := json.Unmarshal(data, t); err != nil {
		return nil, fmt.Errorf("%s: %w: expected a table written by penstock sim train", path, err)
	}
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func (f *inflateFlags) run(cmd *cobra.Command) error {
	seeds, err := parseSeeds(f.seeds)
	if err != nil {
		return err
	}
	if f.load <= 0 || f.load > 100 {
		return fmt.Errorf("--load is %v: expected more than 0 and at most 100", f.load)
	}
	if f.table != "" && f.policy != "penstock" {
		return errors.New("--table goes with --policy penstock only")
	}
	nodes, err := sim.LoadNodes(f.nodes)
	if err != nil {
		return err
	}
	pods, err := sim.LoadPods(f.pods)
	if err != nil {
		return err
	}
	exp := sim.Experiment{Machines: nodes, Pods: pods, Load: f.load, Policy: f.policy,
		Online: sim.TrainConfig{Rounds: f.rounds, Runs: f.runs, Trials: f.trials}}
	if f.table != "" {
		if exp.Table, err = readTable(f.table); err != nil {
			return err
		}
	}
	progress := newBar(cmd)
	var results []*sim.Result
	for i, seed := range seeds {
		r, err := exp.Run(cmd.Context(), seed)
		if err != nil {
			return err
		}
		progress.step(i+1, len(seeds))
		results = append(results, r)
		if f.json {
			if err := lines(cmd.OutOrStdout(), r); err != nil {
				return err
			}
		}
	}
	if !f.json {
		inflateTable(cmd.OutOrStdout(), results)
	}
	return f.report(sim.InflateReport(f.policy+" on "+f.pods, results))
}

// inflateTable prints one row a seed and the mean.
func inflateTable(w io.Writer, results []*sim.Result) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "seed\tallocated %\tdecisions/s\t")
	for k := range alloc.KindCount {
		fmt.Fprintf(tw, "dropped %v\t", k)
	}
	fmt.Fprintln(tw)
	sum := 0.0
	for _, r := range results {
		sum += r.AllocatedPercent
		fmt.Fprintf(tw, "%d\t%.2f\t%.0f\t", r.Seed, r.AllocatedPercent, r.DecisionsPerSecond)
		for k := range alloc.KindCount {
			fmt.Fprintf(tw, "%d/%d\t", r.Dropped[k.String()], r.Arrived[k.String()])
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprintf(tw, "mean\t%.2f\t\t\n", sum/float64(len(results)))
	tw.Flush()
}

type trainFlags struct {
	workload
	out string
	cfg sim.TrainConfig
}

func trainCmd() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:     "train",
		Short:   "Learn a value table from a workload",
		Example: "  penstock sim train --nodes nodes.csv --pods pods.csv --out table.json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.workload.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.out, "out", "", "file to write the table to")
	fs.IntVar(&f.cfg.Rounds, "rounds", 12, "rounds of simulation")
	fs.IntVar(&f.cfg.Runs, "runs", 6, "simulations a round")
	fs.IntVar(&f.cfg.Trials, "trials", 24, "simulations by which tables are compared")
	fs.Int64Var(&f.cfg.Seed, "seed", 100001, "first of the seeds that training uses; keep them apart from those you report")
	fs.Float64Var(&f.cfg.Load, "load", sim.Load, "compute asked for, as a multiple of the cluster's")
	fs.Float64Var(&f.cfg.Unfair, "unfair", 1.2, "how often a kind of request may be dropped, as a multiple of FGD's rate")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}

func (f *trainFlags) run(cmd *cobra.Command) error {
	nodes, err := sim.LoadNodes(f.nodes)
	if err != nil {
		return err
	}
	pods, err := sim.LoadPods(f.pods)
	if err != nil {
		return err
	}
	f.cfg.Workload, f.cfg.Progress = f.pods, newBar(cmd).step
	t, err := sim.Train(cmd.Context(), nodes, pods, f.cfg)
	if err != nil {
		return err
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "learned from %d holes, wrote %d bytes to %s; weights %+v\n", t.Samples, len(data)+1, f.out, t.Weights)
	return nil
}
