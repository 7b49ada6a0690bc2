package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock-gpu/penstock/internal/agent"
)

func newTop() *cobra.Command {
	p := place{noStart: true}
	var asJSON, once bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "Show who has which share of which card, and what they got",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return fmt.Errorf("interval %v: want 100ms or more", interval)
			}
			v := view{out: c.OutOrStdout(), json: asJSON, live: !asJSON && !once && isTerminal(c.OutOrStdout())}
			return top(c.Context(), &p, v, once, interval)
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print the agent's status as JSON, one object a line")
	c.Flags().BoolVar(&once, "once", false, "print once and leave")
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks")
	return c
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// top shows the agent's status until ctx ends.
func top(ctx context.Context, p *place, v view, once bool, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		client, err := p.launcher().Client(ctx)
		var s agent.Status
		if err == nil {
			s, err = client.Status(ctx)
		}
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := v.show(s); err != nil || once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// view prints statuses: as JSON, as text, or in place on a terminal.
type view struct {
	out   io.Writer
	json  bool
	live  bool
	extra string // a line below the table
}

// Terminal codes of the live view: home, and clear what is below or right.
const (
	ansiHome      = "\x1b[H"
	ansiClearDown = "\x1b[J"
	ansiClearLine = "\x1b[K"
	ansiClearAll  = "\x1b[2J"
)

func (v *view) show(s agent.Status) error {
	if v.json {
		return json.NewEncoder(v.out).Encode(s)
	}
	var b strings.Builder
	render(&b, s)
	if v.extra != "" {
		b.WriteString(v.extra + "\n")
	}
	text := b.String()
	if v.live {
		text = ansiHome + strings.ReplaceAll(text, "\n", ansiClearLine+"\n") + ansiClearDown
	}
	_, err := io.WriteString(v.out, text)
	return err
}

// render writes the table of a status.
func render(w io.Writer, s agent.Status) {
	for _, c := range s.Cards {
		fmt.Fprintf(w, "card %d  %s  driver %s  %s of %s in use, %s promised, %s free  policy %v",
			c.Index, c.Name, c.Driver, agent.Size(c.Used), agent.Size(c.Total), agent.Size(c.Promised), agent.Size(c.Free), c.Policy)
		if c.Slots {
			fmt.Fprintf(w, ", slots of a %v cycle", c.Cycle.Round(time.Millisecond))
		}
		if c.Error != "" {
			fmt.Fprintf(w, "  NOT USABLE: %s", c.Error)
		}
		fmt.Fprintln(w)
	}
	if s.AnyDriver {
		fmt.Fprintln(w, "warning: --any-driver is on: this driver's calls may be misread")
	}
	t := table{{"CARD", "TENANT", "NAME", "PID", "POLICY", "ASKED", "GOT", "MEMORY", "LIMIT", "FROZEN", "REFUSED"}}
	for _, n := range s.Tenants {
		t = append(t, []string{
			joinInts(n.Cards, 4), n.ID, shorten(n.Name, 20), joinInts(n.PIDs, 3), n.Policy.String(),
			points(n.Asked), points(n.Got), agent.Size(n.Used), limit(n.Limit),
			n.FrozenNs.Round(100 * time.Millisecond).String(), refused(n),
		})
	}
	t.write(w)
	if s.Others > 0 {
		fmt.Fprintf(w, "and %d of other users\n", s.Others)
	}
}

func refused(n agent.TenantStatus) string {
	s := fmt.Sprint(n.Refused)
	if n.UnknownContinued > 0 {
		s += fmt.Sprintf(" (%d unknown let pass)", n.UnknownContinued)
	}
	if n.Violation != "" {
		s += " KILLED: " + n.Violation
	}
	return s
}

func limit(n int64) string {
	if n == 0 {
		return "none"
	}
	return agent.Size(n)
}

func points(v *float64) string {
	if v == nil {
		return "-"
	}
	return percent(*v)
}

func joinInts(v []int, most int) string {
	var parts []string
	for i, n := range v {
		if i == most {
			parts = append(parts, fmt.Sprintf("+%d", len(v)-most))
			break
		}
		parts = append(parts, fmt.Sprint(n))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ",")
}

func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

// table is rows of cells; the first row is the head.
type table [][]string

// write pads all columns to their widest cell.
func (t table) write(w io.Writer) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", width[i]-len([]rune(cell))+2))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}
