package simcmd

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

func boundCmd() *cobra.Command {
	var w workload
	var asJSON bool
	var seeds string
	cmd := &cobra.Command{
		Use:   "bound",
		Short: "Bound what any policy could allocate in the inflation experiment",
		Long: `Solve two linear relaxations of the inflation experiment: one that no packing can pass, and one that holds, up to the
noise of a finite run, for policies that never turn away what fits.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := parseSeeds(seeds)
			if err != nil {
				return err
			}
			nodes, err := sim.LoadNodes(w.nodes)
			if err != nil {
				return err
			}
			pods, err := sim.LoadPods(w.pods)
			if err != nil {
				return err
			}
			for _, seed := range list {
				s := sim.NewScenario(nodes, pods, sim.Load, seed)
				r, err := sim.Bound(cmd.Context(), &s, seed)
				if err != nil {
					return err
				}
				if asJSON {
					if err := lines(cmd.OutOrStdout(), r); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "seed %d: free choice %.2f %%, never rejecting %.2f %% (%d shapes, %d rows)\n", r.Seed, r.FreeChoice, r.NoReject, r.Classes, r.Rows)
			}
			return nil
		},
	}
	w.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line instead of text")
	cmd.Flags().StringVar(&seeds, "seeds", "42", "seeds, as numbers and ranges")
	return cmd
}
