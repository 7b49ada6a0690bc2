package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/agent"
)

// demoTenants are the shares of the demonstration: hard ones, so that what
// each gets can be told in advance.
var demoTenants = [...]struct {
	name    string
	compute string
	mem     string
	asked   float64
}{
	{"small", "20%", "15%", 20},
	{"medium", "30%", "25%", 30},
	{"large", "50%", "40%", 50},
}

// soloSeconds is how long the workload runs alone, twice, to know what 100 %
// is.
const soloSeconds = 2

func newDemo() *cobra.Command {
	var d demo
	var inside bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Share a card among three tenants and show what each asked for and got",
		Long: "Share a card among three tenants and show what each asked for and got.\n\n" +
			"It uses the first card of this machine, or an emulated one where there is\nnone, with an agent of its own that ends with it.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if d.seconds < 1 || d.seconds > 3600 {
				return fmt.Errorf("seconds %d: want 1 to 3600", d.seconds)
			}
			d.out = c.OutOrStdout()
			return d.run(c.Context(), inside)
		},
	}
	c.Flags().BoolVar(&d.json, "json", false, "print only the verdict, as one JSON object")
	c.Flags().IntVar(&d.seconds, "seconds", 20, "how long the three share the card")
	c.Flags().BoolVar(&d.forceEmulated, "emulated", false, "use an emulated card even where there is a real one")
	c.Flags().BoolVar(&inside, "inside", false, "in a namespace that may mount (penstock starts it)")
	_ = c.Flags().MarkHidden("inside")
	return c
}

// demo is one demonstration.
type demo struct {
	json, forceEmulated bool
	seconds             int
	out                 io.Writer

	dir      string // of everything it makes
	emulated bool
	load     workload
}

// demoVerdict is what the demonstration found; percent points throughout.
type demoVerdict struct {
	Card     string       `json:"card"` // "emulated", or the card's name
	Tenants  []demoResult `json:"tenants"`
	MaxError float64      `json:"maxError"`
}

type demoResult struct {
	Name   string  `json:"name"`
	Policy string  `json:"policy"`
	Asked  float64 `json:"asked"`
	Got    float64 `json:"got"`
	Error  float64 `json:"error"` // distance of the two
}

func (d *demo) run(ctx context.Context, inside bool) (err error) {
	card, err := d.chooseCard()
	if err != nil {
		return err
	}
	if d.emulated && os.Geteuid() != 0 && !inside {
		return reexecInNamespace(ctx)
	}
	if d.dir, err = os.MkdirTemp("", "penstock-demo-"); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	stop, err := d.start(ctx)
	defer stop()
	if err != nil {
		return err
	}
	if err = d.measure(ctx, card); ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// measure does the work of the demonstration once card and agent are there.
func (d *demo) measure(ctx context.Context, card string) (err error) {
	if d.load, err = d.findWorkload(ctx); err != nil {
		return err
	}
	v := demoVerdict{Card: card}
	d.say("measuring what the workload finishes alone on the whole card: %d s\n", 2*soloSeconds)
	solo, err := d.solo(ctx)
	if err != nil {
		return err
	}
	reports, err := d.share(ctx)
	if err != nil {
		return err
	}
	for i, t := range demoTenants {
		got := round(100 * reports[i].rate() / solo)
		r := demoResult{Name: t.name, Policy: "fixed", Asked: t.asked, Got: got, Error: round(math.Abs(got - t.asked))}
		v.Tenants = append(v.Tenants, r)
		v.MaxError = max(v.MaxError, r.Error)
	}
	return d.conclude(v)
}

// round keeps two decimals.
func round(v float64) float64 { return math.Round(v*100) / 100 }

func (d *demo) say(format string, args ...any) {
	if !d.json {
		fmt.Fprintf(d.out, format, args...)
	}
}

func (d *demo) conclude(v demoVerdict) error {
	if d.json {
		return json.NewEncoder(d.out).Encode(v)
	}
	t := table{{"TENANT", "POLICY", "ASKED", "GOT", "ERROR"}}
	for _, r := range v.Tenants {
		t = append(t, []string{r.Name, r.Policy, percent(r.Asked), fmt.Sprintf("%.2f%%", r.Got), fmt.Sprintf("%.2f", r.Error)})
	}
	fmt.Fprintf(d.out, "\nfinished work on the card (%s), by what the workload finishes alone:\n", v.Card)
	t.write(d.out)
	_, err := fmt.Fprintf(d.out, "verdict: largest error %.2f percent points\n", v.MaxError)
	return err
}

// solo runs the workload alone under an agent that limits nothing. The better
// of two runs counts: whatever disturbs a run makes it slower.
func (d *demo) solo(ctx context.Context) (best float64, err error) {
	for range 2 {
		p, err := d.tenant(ctx, soloSeconds, "--name", "solo")
		if err != nil {
			return 0, err
		}
		r, err := p.report()
		if err != nil {
			return 0, err
		}
		best = max(best, r.rate())
	}
	return best, nil
}

// share runs the three tenants at the same time and shows them meanwhile.
func (d *demo) share(ctx context.Context) ([]loadReport, error) {
	d.say("three tenants for %d s:\n", d.seconds)
	var running []*process
	defer func() {
		for _, p := range running {
			p.stop()
		}
	}()
	for _, t := range demoTenants {
		p, err := d.tenant(ctx, d.seconds, "--name", t.name, "--mem", t.mem, "--compute", t.compute, "--policy", "fixed")
		if err != nil {
			return nil, err
		}
		running = append(running, p)
	}
	showCtx, done := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() { defer close(shown); d.watch(showCtx) }()
	defer func() { done(); <-shown }()
	var reports []loadReport
	for _, p := range running {
		r, err := p.report()
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// watch shows the agent's status: in place on a terminal, else now and then.
func (d *demo) watch(ctx context.Context) {
	if d.json {
		return
	}
	v := view{out: d.out, live: isTerminal(d.out)}
	every := 5 * time.Second
	if v.live {
		every = time.Second
		fmt.Fprint(d.out, ansiClearAll)
	}
	client := agent.NewClient(d.socket())
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		s, err := client.Status(ctx)
		if err != nil || len(s.Tenants) < len(demoTenants) {
			continue // between two phases, or at the end
		}
		if v.show(s) != nil {
			return
		}
	}
}

func (d *demo) socket() string  { return filepath.Join(d.dir, "agent", "agent.sock") }
func (d *demo) cardDir() string { return filepath.Join(d.dir, "card") }
