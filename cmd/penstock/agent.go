package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/agent"
)

func newAgent() *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use:   "agent",
		Short: "Serve shares of this machine's GPUs (started by run when there is none)",
		Long: "Serve shares of this machine's GPUs.\n\nThe agent is two processes: the worker does the work, the holder keeps the\n" +
			"tenants' listeners and starts another worker when the worker dies; a dead\nholder is replaced by the worker. SIGTERM ends the agent unless tenants run\n" +
			"(--force: even then); SIGHUP replaces the worker by a new one, also by a new\nversion of the program.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context()) },
	}
	f.flags(c)
	return c
}

type agentFlags struct {
	cfg      agent.Config
	reserve  string
	overhead string
	worker   bool
	holder   bool
	verbose  bool
}

func (f *agentFlags) flags(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.cfg.Socket, "socket", os.Getenv(agent.SocketEnv), "unix socket to serve (default: root's or this user's own place)")
	fl.StringVar(&f.cfg.StateDir, "state", "", "directory of grants and journals (default: state, beside the socket)")
	fl.StringVar(&f.cfg.Emulated, "emulated", "", "govern the emulated card served at this directory")
	fl.BoolVar(&f.cfg.AnyDriver, "any-driver", false, "accept a driver version that this build does not know (calls may be misread)")
	fl.DurationVar(&f.cfg.IdleExit, "idle-exit", 0, "leave when no tenant was there for so long (0: never)")
	fl.BoolVar(&f.cfg.Force, "force", false, "let SIGTERM end the agent even while tenants run (their GPU calls then fail)")
	fl.StringVar(&f.reserve, "reserve", "", "memory of each card that is never promised (default: what is in use without tenants)")
	fl.IntVar(&f.cfg.MaxInst, "max-inst", 0, "most tenants on a card, and the parts of policy fair, 1-25 (default 20)")
	fl.IntVar(&f.cfg.PrioRatio, "prio-ratio", 0, "percent that a higher class gets beside a lower one, 20-99 (default 80)")
	fl.DurationVar(&f.cfg.Cycle, "cycle", 0, "default cycle of a card (default 48ms)")
	fl.StringVar(&f.overhead, "context-overhead", "", "memory charged for each GPU context (default: measured)")
	fl.StringVar(&f.cfg.Record, "record", "", "write the driver calls of a tenant to this file (penstock trace record)")
	_ = fl.MarkHidden("record")
	fl.BoolVar(&f.verbose, "verbose", false, "log more")
	fl.BoolVar(&f.worker, "worker", false, "be the worker (penstock starts it)")
	fl.BoolVar(&f.holder, "holder", false, "be the holder of a worker that lost its own (penstock starts it)")
	_ = fl.MarkHidden("worker")
	_ = fl.MarkHidden("holder")
}

// config is the flags as the agent takes them.
func (f *agentFlags) config() (agent.Config, error) {
	cfg := f.cfg
	if cfg.Socket == "" {
		cfg.Socket = agent.OwnSocket(os.Geteuid(), os.Getenv)
	}
	if f.reserve != "" {
		m, err := agent.ParseMemory(f.reserve)
		if err != nil {
			return cfg, fmt.Errorf("reserve: %w", err)
		}
		cfg.Reserve = m
	}
	if f.overhead != "" {
		m, err := agent.ParseMemory(f.overhead)
		if err != nil || m.Bytes == 0 {
			return cfg, errors.Join(errors.New("context-overhead: want a size such as 512Mi"), err)
		}
		cfg.Overhead = m.Bytes
	}
	return cfg, cfg.Validate()
}

// run is one of the agent's two processes. The context's signals are not used:
// what a signal does depends on the tenants.
func (f *agentFlags) run(ctx context.Context) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(sigs)
	ctx = context.WithoutCancel(ctx)
	self := agentSelf(os.Args[1:])
	if !f.worker {
		return agent.Hold(ctx, log.With("process", "holder"), self, f.holder, sigs)
	}
	log = log.With("process", "worker")
	keep, err := agent.NewKeeper(log, self)
	if err != nil {
		return err
	}
	engine, err := agent.NewKernelEngine(cfg, log)
	var w *agent.Worker
	if err == nil {
		w, err = agent.NewWorker(cfg, version(), log, engine, keep)
	}
	if err != nil {
		keep.Fail(err)
		return &exitError{code: 1} // the holder says why
	}
	return w.Run(ctx, sigs)
}

// agentSelf is this command line in each of the two roles.
func agentSelf(args []string) agent.Self {
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--worker" || a == "--holder" })
	role := func(flag string) []string { return append(slices.Clone(args), flag) }
	return agent.Self{Path: selfPath(), Worker: role("--worker"), Holder: role("--holder")}
}
