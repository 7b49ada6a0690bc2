package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == emulatedVerb {
		if runEmulated(os.Args[2:], os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		return
	}
	err := run(ctx, os.Args[1:], os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "isolation:", err)
		os.Exit(1)
	}
}

// run is the whole program. It fails when a case failed, after writing what
// there is.
func run(ctx context.Context, args []string, log io.Writer) error {
	cfg, err := parseConfig(args, log)
	if err != nil {
		return err
	}
	if len(cfg.merge) > 0 {
		return mergeFiles(cfg)
	}
	dir, err := os.MkdirTemp("", "isolation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b, err := newBench(ctx, cfg, dir, log)
	if err != nil {
		return err
	}
	defer b.close()
	return b.runSections(ctx)
}

// bench is one run.
type bench struct {
	cfg      config
	dir      string
	log      io.Writer
	started  time.Time
	card     *worker // the emulated card, when the bench serves it
	agent    *agent
	programs programs
	solo     map[string]float64 // finished units a second, alone and without penstock
	result   Result
}

func newBench(ctx context.Context, cfg config, dir string, log io.Writer) (*bench, error) {
	b := &bench{cfg: cfg, dir: dir, log: log, started: time.Now(), solo: map[string]float64{}}
	var err error
	if !b.virtual() && strings.Contains(cfg.penstock, "/") {
		if b.cfg.penstock, err = absolute(cfg.penstock); err != nil {
			return nil, fmt.Errorf("-penstock: %w", err)
		}
	}
	switch b.cfg.emulated {
	case inVirtual:
	case "":
		b.programs, err = findPrograms(ctx, cfg.workloads)
	case emulatedAuto:
		b.card, b.cfg.emulated, err = serveEmulated(ctx, b.cfg.penstock, dir)
	}
	if err != nil {
		return nil, err
	}
	if !b.virtual() {
		if b.agent, err = startAgent(ctx, b.cfg, dir); err != nil {
			b.close()
			return nil, err
		}
	}
	b.result = Result{
		Commit: cfg.commit, Command: cfg.command, Quick: cfg.quick, Window: cfg.seconds,
		Date: b.started.UTC().Format(time.RFC3339),
	}
	if b.result.Commit == "" {
		b.result.Commit = builtFrom()
	}
	if err := b.describeCard(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// close ends what the bench started.
func (b *bench) close() {
	if b.agent != nil {
		b.agent.stop()
	}
	if b.card != nil {
		b.card.terminate()
	}
}

// describeCard names the card in the result.
func (b *bench) describeCard(ctx context.Context) error {
	if b.virtual() {
		b.result.Card = inVirtual
		return nil
	}
	s, err := b.agent.top(ctx)
	if err != nil {
		return err
	}
	if len(s.Cards) == 0 {
		return errors.New("penstock sees no card")
	}
	b.result.Card, b.result.Driver = s.Cards[0].Name, s.Cards[0].Driver
	if b.cfg.emulated != "" {
		b.result.Card = "emulated"
	}
	return nil
}

// runSections runs what was asked for; the files are written after each
// section, so that an end at any time leaves what there is.
func (b *bench) runSections(ctx context.Context) error {
	runners := map[string]func(context.Context){
		secSolo: b.runSolo, secCaps: b.runCaps, secPairs: b.runPairs, secFour: b.runFour,
		secThree: b.runThree, secIdle: b.runIdle, secLatency: b.runLatency, secNative: b.runNative,
		secMPS: b.runMPS, secMemory: b.runMemory, secCalls: b.runCalls, secKill: b.runKill,
	}
	for _, s := range sectionNames() {
		if !contains(b.cfg.sections, s) || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(b.log, "== %s (%.0f s so far)\n", s, time.Since(b.started).Seconds())
		runners[s](ctx)
		if err := b.result.write(b.cfg.out); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.log, "written: %s.{json,md}, %.0f s\n", filepath.Join(b.cfg.out, b.result.name()), time.Since(b.started).Seconds())
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ended early: %w", err)
	}
	if n := headline(b.result.Rows).FailedCases; n > 0 {
		return fmt.Errorf("%d of %d cases failed", n, len(b.result.Rows))
	}
	return nil
}

// record keeps a row and shows it.
func (b *bench) record(r Row) {
	b.result.Rows = append(b.result.Rows, r)
	fmt.Fprintf(b.log, "%-8s %s\n", r.Section, r.line())
}

// spent says why no further case may start, or nil.
func (b *bench) spent(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t := time.Since(b.started); t > b.cfg.budget {
		return fmt.Errorf("skipped: %v of %v used", t.Round(time.Second), b.cfg.budget)
	}
	return nil
}

// mergeFiles joins result files.
func mergeFiles(cfg config) error {
	var parts []Result
	for _, path := range cfg.merge {
		r, err := readResult(path)
		if err != nil {
			return err
		}
		parts = append(parts, r)
	}
	r, err := merge(parts)
	if err != nil {
		return err
	}
	return r.write(cfg.out)
}

// builtFrom is the commit this binary was built from.
func builtFrom() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return rev + dirty
}
