package simcmd

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

type topologyFlags struct {
	output
	file, policies, seeds string
	cards                 int
	cfg                   sim.FabricConfig
}

func topologyCmd() *cobra.Command {
	var f topologyFlags
	cmd := &cobra.Command{
		Use:   "topology",
		Short: "Place gangs on a network of leaves and spines",
		Long: `Gangs of 1 to 512 cards of five tenants arrive on a fabric. Each tenant owns a share of whole leaves. Guaranteed gangs
run within their tenant's share and may take it back from opportunistic ones, which run on whatever is idle. A
sharing anomaly is a guaranteed gang that starts later, or spans more leaves, than in a private cluster of its tenant.`,
		Example: "  penstock sim topology --hosts topo.csv",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.output.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.file, "hosts", "", "CSV file of hosts: ip, DSW, PSW, ASW")
	fs.StringVar(&f.policies, "policies", strings.Join(sim.FabricPolicies(), ","), "placements to compare")
	fs.StringVar(&f.seeds, "seeds", "42", "seeds, as numbers and ranges")
	fs.IntVar(&f.cards, "cards", 8, "cards of each host")
	fs.IntVar(&f.cfg.Gangs, "gangs", 4000, "gangs that arrive")
	fs.Float64Var(&f.cfg.Guaranteed, "guaranteed", 0.6, "load of guaranteed gangs, of the cluster")
	fs.Float64Var(&f.cfg.Opportunistic, "opportunistic", 0.3, "load of opportunistic gangs, of the cluster")
	_ = cmd.MarkFlagRequired("hosts")
	return cmd
}

func (f *topologyFlags) run(cmd *cobra.Command) error {
	seeds, err := parseSeeds(f.seeds)
	if err != nil {
		return err
	}
	if f.cards < 1 || f.cards > 16 || f.cfg.Gangs < 1 || f.cfg.Guaranteed <= 0 || f.cfg.Opportunistic < 0 {
		return fmt.Errorf("--cards %d, --gangs %d, --guaranteed %v, --opportunistic %v: expected 1 to 16 cards, a gang or more, and positive loads", f.cards, f.cfg.Gangs, f.cfg.Guaranteed, f.cfg.Opportunistic)
	}
	hosts, err := sim.LoadTopology(f.file, f.cards)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
	if !f.json {
		fmt.Fprintln(tw, "policy\tseed\tanomalies\tone leaf %\textra leaves\tpartial\tpreempted\twait s\topp. wait s\tused %\tslowest ms\t512 cards ms\t")
	}
	table := sim.Section{Heading: "Runs", Columns: []string{"policy", "seed", "anomalies", "one leaf %", "wait s", "used %"}}
	for _, seed := range seeds {
		for _, p := range strings.Split(f.policies, ",") {
			f.cfg.Seed = seed
			r, err := sim.Fabric(cmd.Context(), hosts, f.cfg, p)
			if err != nil {
				return err
			}
			table.Rows = append(table.Rows, []string{p, fmt.Sprint(seed), fmt.Sprintf("%d/%d", r.Anomalies, r.Guaranteed),
				fmt.Sprintf("%.2f", r.OneLeaf), fmt.Sprintf("%.0f", r.MeanWait), fmt.Sprintf("%.1f", r.Used)})
			if f.json {
				if err := lines(cmd.OutOrStdout(), r); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintf(tw, "%s\t%d\t%d/%d\t%.2f\t%.2f\t%d\t%d\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t\n", p, seed, r.Anomalies, r.Guaranteed, r.OneLeaf,
				r.ExtraLeaves, r.Partial, r.Preempted, r.MeanWait, r.MeanOppWait, r.Used, r.Slowest, r.Large512)
		}
	}
	tw.Flush()
	return f.report(&sim.Report{Title: "Gangs on " + f.file, Sections: []sim.Section{table}})
}
