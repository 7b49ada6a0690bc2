package simcmd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

func generateCmd() *cobra.Command {
	var dir string
	var cfg sim.GenerateConfig
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make a cluster, a trace and a fabric, so that nothing needs to be downloaded",
		Long: `Write nodes.csv, pods.csv and hosts.csv into a folder. The same seed writes the same files. The layouts are documented in
docs/scheduling.md; files of your own in the same layouts work as well.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Nodes < 1 || cfg.Pods < 1 || cfg.Hours <= 0 {
				return fmt.Errorf("--nodes %d, --pods %d, --hours %v: expected one or more of each", cfg.Nodes, cfg.Pods, cfg.Hours)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for name, write := range map[string]func(io.Writer, sim.GenerateConfig) error{
				"nodes.csv": sim.GenerateNodes, "pods.csv": sim.GeneratePods, "hosts.csv": sim.GenerateHosts} {
				f, err := os.Create(filepath.Join(dir, name))
				if err != nil {
					return err
				}
				if err := write(f, cfg); err != nil {
					f.Close()
					return err
				}
				if err := f.Close(); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "wrote nodes.csv, pods.csv and hosts.csv to %s\n", dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "out", "", "folder to write to")
	cmd.Flags().IntVar(&cfg.Nodes, "nodes", 200, "machines")
	cmd.Flags().IntVar(&cfg.Pods, "pods", 2000, "pods")
	cmd.Flags().Float64Var(&cfg.Hours, "hours", 24, "hours over which the pods arrive")
	cmd.Flags().Int64Var(&cfg.Seed, "seed", 1, "seed")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}
