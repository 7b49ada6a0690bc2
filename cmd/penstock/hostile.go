package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/hostile"
)

// newHostile is the hidden suite of attacks: a tenant that tries to get more than its share.
func newHostile() *cobra.Command {
	var asJSON, list, onCard, emulated, verbose bool
	var match string
	var race time.Duration
	c := &cobra.Command{
		Use:    "hostile",
		Short:  "Attack an emulated card as a tenant would, and measure whether anything came of it",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := c.OutOrStdout()
			if list {
				for _, n := range hostile.Names() {
					fmt.Fprintln(out, n)
				}
				return nil
			}
			if onCard {
				return hostile.ErrNoRealCard
			}
			o := hostile.Options{Match: match, Race: race}
			if verbose {
				o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			}
			if !asJSON {
				o.Each = func(r hostile.Result) { fmt.Fprintln(out, r.Line()) }
			}
			results, err := hostile.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = hostile.WriteJSON(out, results)
			} else {
				fmt.Fprintln(out, hostile.Summary(results))
			}
			if err != nil {
				return err
			}
			return hostile.Check(results)
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "one JSON object in place of lines")
	f.BoolVar(&list, "list", false, "list the attacks and do nothing")
	f.BoolVar(&emulated, "emulated", true, "on emulated cards, one for each attack")
	f.BoolVar(&onCard, "card", false, "on this machine's card")
	f.BoolVar(&verbose, "verbose", false, "show what the engine logs")
	f.StringVar(&match, "match", "", "only attacks whose name contains this")
	f.DurationVar(&race, "race", 0, "how long each race is tried (default 700ms)")
	c.MarkFlagsMutuallyExclusive("card", "emulated")
	c.AddCommand(&cobra.Command{
		Use:                "tenant",
		Hidden:             true,
		DisableFlagParsing: true,
		Run:                func(*cobra.Command, []string) { os.Exit(hostile.Tenant(os.Args)) },
	})
	return c
}
