package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// verdict of one check.
type verdict string

const (
	good verdict = "ok"
	warn verdict = "warn"
	bad  verdict = "fail"
)

// finding is one line of the doctor.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Do      string  `json:"do,omitempty"` // what helps
}

// found makes a finding; the advice is for those that are not ok.
func found(check string, v verdict, do, format string, args ...any) finding {
	f := finding{Check: check, Verdict: v, Detail: fmt.Sprintf(format, args...)}
	if v != good {
		f.Do = do
	}
	return f
}

func newDoctor() *cobra.Command {
	p := place{noStart: true}
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can share its GPUs, and say what to do",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return report(c.OutOrStdout(), examine(c.Context(), &p), asJSON)
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

// examine runs all checks.
func examine(ctx context.Context, p *place) []finding {
	var all []finding
	all = append(all, checkKernel(), checkNotify(), checkWaitKillable(), checkPidfd(), checkPtrace(), checkCaps())
	all = append(all, checkCards(p)...)
	all = append(all, checkOthers(p)...)
	return append(all, checkAgent(ctx, p))
}

// report prints the findings; any failure is exit status 1.
func report(w io.Writer, all []finding, asJSON bool) error {
	failed := 0
	for _, f := range all {
		if f.Verdict == bad {
			failed++
		}
	}
	if asJSON {
		if err := json.NewEncoder(w).Encode(all); err != nil {
			return err
		}
	} else {
		for _, f := range all {
			fmt.Fprintf(w, "%-4s  %s: %s\n", f.Verdict, f.Check, oneLine(f.Detail))
			if f.Do != "" {
				fmt.Fprintf(w, "      → %s\n", f.Do)
			}
		}
	}
	if failed > 0 {
		return &exitError{code: 1}
	}
	return nil
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
