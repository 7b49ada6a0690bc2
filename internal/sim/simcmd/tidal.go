package simcmd

import (
	"fmt"
	"text/tabwriter"

	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

func tidalCmd() *cobra.Command {
	var o output
	var cfg sim.TidalConfig
	var seeds string
	cmd := &cobra.Command{
		Use:   "tidal",
		Short: "Fill the valleys of a service's day with batch jobs",
		Long: `A service needs many cards by day and few by night. In separate pools its pool is sized for the peak and batch jobs
have the rest; in the tidal arrangement both share all cards: batch jobs run on what the service leaves, and give cards
back within --reclaim seconds, those first that lose the least work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := parseSeeds(seeds)
			if err != nil {
				return err
			}
			if cfg.Hosts < 2 || cfg.Peak <= 0 || cfg.Peak >= 1 || cfg.Trough < 0 || cfg.Trough > cfg.Peak || cfg.Offline <= 0 ||
				cfg.Reclaim < 0 || cfg.Checkpoint < 1 || cfg.Days < 1 {
				return fmt.Errorf("%+v: expected 2 hosts or more, 0 ≤ trough ≤ peak < 1, and positive offline work, checkpoint and days", cfg)
			}
			var all []*sim.TidalResult
			tw := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', tabwriter.AlignRight)
			if !o.json {
				fmt.Fprintln(tw, "arrangement\tseed\tused %\toffline completion s\tdone\tpreempted\tlost %\tonline waited\tmax wait s\trefused\t")
			}
			for _, seed := range list {
				for _, shared := range []bool{false, true} {
					cfg.Seed = seed
					r, err := sim.Tidal(cmd.Context(), cfg, shared)
					if err != nil {
						return err
					}
					all = append(all, r)
					if o.json {
						if err := lines(cmd.OutOrStdout(), r); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(tw, "%s\t%d\t%.1f\t%.0f\t%d/%d\t%d\t%.2f\t%d/%d\t%d\t%d\t\n", r.Arrangement, r.Seed, r.UsedPercent, r.OfflineCompletion,
						r.OfflineDone, r.OfflineJobs, r.Preempted, r.LostPercent, r.OnlineWaited, r.OnlineStarts, r.OnlineMaxWait, r.OnlineRefused)
				}
			}
			tw.Flush()
			return o.report(sim.TidalReport(all))
		},
	}
	o.flags(cmd)
	fs := cmd.Flags()
	fs.StringVar(&seeds, "seeds", "42-46", "seeds, as numbers and ranges")
	fs.IntVar(&cfg.Hosts, "hosts", 50, "hosts of 8 cards")
	fs.Float64Var(&cfg.Peak, "peak", 0.7, "cards the service needs at its peak, as a part of the cluster")
	fs.Float64Var(&cfg.Trough, "trough", 0.1, "cards the service needs at its lowest")
	fs.Float64Var(&cfg.Offline, "offline", 1.8, "batch work, as a part of what the separate batch pool can do")
	fs.Int64Var(&cfg.Reclaim, "reclaim", 30, "seconds to hand a card back to the service")
	fs.Int64Var(&cfg.Checkpoint, "checkpoint", 900, "seconds between checkpoints of batch jobs")
	fs.IntVar(&cfg.Days, "days", 3, "days to run")
	return cmd
}
