package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/emu/tenant"
)

// emuDirEnv names the emulated card to the tenant program.
const emuDirEnv = "PENSTOCK_EMULATED"

func newEmuTenant() *cobra.Command {
	var cfg tenant.Config
	var mem, chunk string
	c := &cobra.Command{
		Use:   "tenant",
		Short: "Make the calls of a CUDA program on an emulated card, and keep it busy",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if cfg.Memory, err = bytesOf(mem); err != nil {
				return err
			}
			if cfg.Chunk, err = bytesOf(chunk); err != nil {
				return err
			}
			if cfg.Dir == "" {
				return errors.New("no card given: --dir, or " + emuDirEnv)
			}
			cfg.Out = c.OutOrStdout()
			return tenant.Run(c.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Dir, "dir", os.Getenv(emuDirEnv), "directory of the emulated card")
	f.StringVar(&mem, "mem", "", "memory to allocate")
	f.StringVar(&chunk, "chunk", "", "size of one allocation (default 256Mi)")
	f.DurationVar(&cfg.Kernel, "kernel", 400*time.Microsecond, "length of one piece of work on a card of its own; 0 for none")
	f.IntVar(&cfg.Depth, "depth", 0, "submissions in flight (default 2)")
	f.Int64Var(&cfg.Batch, "batch", 0, "pieces of work in a submission (default: 2ms of them)")
	f.DurationVar(&cfg.Period, "period", 0, "one submission in each such time, then idle")
	f.DurationVar(&cfg.On, "on", 0, "work for so long, then idle (with --off)")
	f.DurationVar(&cfg.Off, "off", 0, "idle for so long, then work (with --on)")
	f.DurationVar(&cfg.Run, "for", 0, "end after so long")
	f.Int64Var(&cfg.Count, "count", 0, "end after so many pieces of work")
	f.IntVar(&cfg.Decode, "decode", 0, "frames in flight on the decode engines")
	f.DurationVar(&cfg.Frame, "frame", 0, "time to decode one frame")
	return c
}

func bytesOf(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	m, err := agent.ParseMemory(s)
	if err == nil && m.Bytes == 0 {
		err = errors.New("want a size such as 1Gi")
	}
	return uint64(m.Bytes), err
}
