package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
)

func newEmu() *cobra.Command {
	c := &cobra.Command{
		Use:    "emu",
		Short:  "An emulated card, for machines without a GPU",
		Hidden: true,
	}
	c.AddCommand(newEmuServe(), newEmuTenant())
	return c
}

func newEmuServe() *cobra.Command {
	var dir, mem string
	c := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Serve an emulated card at an empty directory until interrupted",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return serveCard(c.Context(), c.OutOrStdout(), dir, mem) },
	}
	c.Flags().StringVar(&dir, "dir", "", "empty directory to mount the card at")
	c.Flags().StringVar(&mem, "mem", "", "device memory, such as 16Gi (default: that of an H200)")
	_ = c.MarkFlagRequired("dir")
	return c
}

// serveCard mounts the card and says so on out.
func serveCard(ctx context.Context, out io.Writer, dir, mem string) (err error) {
	cfg := card.H200()
	if mem != "" {
		m, err := agent.ParseMemory(mem)
		if err != nil || m.Bytes == 0 {
			return errors.Join(fmt.Errorf("mem %q: want a size such as 16Gi", mem), err)
		}
		cfg.TotalBytes = m.Bytes
	}
	made := false
	if err := os.Mkdir(dir, 0o755); err == nil {
		made = true
	} else if !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("directory of the card: %w", err)
	}
	s, err := fusedev.Mount(dir, cfg)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.Close())
		if made {
			err = errors.Join(err, os.Remove(dir))
		}
	}()
	fmt.Fprintf(out, "emulated card of %s at %s\n", agent.Size(cfg.TotalBytes), s.Dir())
	<-ctx.Done()
	return nil
}
