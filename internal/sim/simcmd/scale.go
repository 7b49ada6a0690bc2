package simcmd

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

type scaleFlags struct {
	workload
	output
	policy, table string
	times, check  int
	seed          int64
}

func scaleCmd() *cobra.Command {
	var f scaleFlags
	cmd := &cobra.Command{
		Use:     "scale",
		Short:   "Measure decisions a second on a multiple of the cluster",
		Example: "  penstock sim scale --nodes nodes.csv --pods pods.csv --times 8 --table table.json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.workload.flags(cmd)
	f.output.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.policy, "policy", "penstock", "penstock (with --table) or any other policy")
	fs.StringVar(&f.table, "table", "", "value table for --policy penstock")
	fs.IntVar(&f.times, "times", 8, "copies of the cluster")
	fs.IntVar(&f.check, "check", 997, "repeat every n-th decision without caches and compare; 0 for none")
	fs.Int64Var(&f.seed, "seed", 42, "seed of the arrivals")
	return cmd
}

func (f *scaleFlags) run(cmd *cobra.Command) error {
	if f.times < 1 || f.times > 1000 {
		return fmt.Errorf("--times is %d: expected 1 to 1000", f.times)
	}
	nodes, err := sim.LoadNodes(f.nodes)
	if err != nil {
		return err
	}
	pods, err := sim.LoadPods(f.pods)
	if err != nil {
		return err
	}
	policy, err := onePolicy(f.policy, f.table, pods)
	if err != nil {
		return err
	}
	s := sim.NewScenario(sim.Multiply(nodes, f.times), pods, sim.Load, f.seed)
	r, err := sim.Scale(cmd.Context(), &s, f.seed, policy, f.check)
	if err != nil {
		return err
	}
	if f.json {
		return lines(cmd.OutOrStdout(), r)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s on %d machines with %d cards: %d decisions, %.0f/s, p50 %.1f µs, p99 %.1f µs, max %.0f µs; allocated %.2f %%\n%d decisions repeated without caches, %d different\n",
		r.Policy, r.Nodes, r.Cards, r.Decisions, r.DecisionsPerSecond, r.P50Micros, r.P99Micros, r.MaxMicros, r.AllocatedPercent, r.Checked, r.Different)
	return f.report(&sim.Report{Title: "Decision rate", Sections: []sim.Section{{Heading: r.Policy,
		Columns: []string{"machines", "decisions", "per second", "p50 µs", "p99 µs"},
		Rows: [][]string{{fmt.Sprint(r.Nodes), fmt.Sprint(r.Decisions), fmt.Sprintf("%.0f", r.DecisionsPerSecond),
			fmt.Sprintf("%.1f", r.P50Micros), fmt.Sprintf("%.1f", r.P99Micros)}}}}})
}

// onePolicy makes a policy that is known before the run.
func onePolicy(name, table string, pods []sim.Pod) (*alloc.Policy, error) {
	switch {
	case name == "penstock" && table == "":
		return nil, fmt.Errorf("--policy penstock needs --table here: make one with penstock sim train")
	case name == "penstock":
		t, err := readTable(table)
		if err != nil {
			return nil, err
		}
		p := alloc.Learned(t)
		return &p, nil
	}
	return sim.PolicyFor(name, pods, 0)
}
