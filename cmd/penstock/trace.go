package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/agent"
)

func newTrace() *cobra.Command {
	c := &cobra.Command{Use: "trace", Short: "Record what a program asks of the driver"}
	var p place
	var f runFlags
	var out string
	r := &cobra.Command{
		Use:   "record -o FILE -- COMMAND [ARG…]",
		Short: "Run a program and write its driver calls to a file (compressed JSON lines)",
		Long: "Run a program and write its driver calls to a file (compressed JSON lines).\n\n" +
			"It has an agent of its own, which lets calls pass that it does not know\n(--level strict: refuses them). The exit status is the program's.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if f.level == "" {
				f.level = "compatible"
			}
			return failRun(record(c.Context(), p.emulated, &f, out, args))
		},
	}
	r.Flags().SetInterspersed(false)
	r.Flags().StringVar(&p.emulated, "emulated", "", "use the emulated card served at this directory")
	r.Flags().StringVarP(&out, "out", "o", "", "file to write")
	r.Flags().StringVar(&f.level, "level", "", "compatible (default) or strict")
	r.Flags().StringVar(&f.mem, "mem", "", "device memory, to record what a limit does")
	r.Flags().StringVar(&f.gpu, "gpu", "", "card by index or UUID")
	_ = r.MarkFlagRequired("out")
	c.AddCommand(r)
	return c
}

// record runs the program under an agent that writes its calls to out.
func record(ctx context.Context, emulated string, f *runFlags, out string, args []string) (err error) {
	out, err = filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	dir, err := os.MkdirTemp("", "penstock-trace-")
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := demo{dir: dir}
	if err := os.Mkdir(filepath.Dir(d.socket()), 0o700); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	agentArgs := []string{selfPath(), "agent", "--socket", d.socket(), "--record", out}
	if emulated != "" {
		agentArgs = append(agentArgs, "--emulated", emulated)
	}
	a, err := startProcess(context.WithoutCancel(ctx), nil, agentArgs...)
	if err != nil {
		return err
	}
	defer a.stop()
	client := agent.NewClient(d.socket())
	if err := a.await(ctx, func() bool { _, err := client.Status(ctx); return err == nil }); err != nil {
		return err
	}
	status := runRecorded(d.socket(), f, args)
	// The file is whole when the tenant is gone.
	for range 500 {
		s, err := client.Status(context.WithoutCancel(ctx))
		if err != nil || len(s.Tenants) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return status
}

// runRecorded is penstock run as a child, whose status it returns.
func runRecorded(socket string, f *runFlags, args []string) error {
	run := []string{"run", "--socket", socket, "--level", f.level}
	if f.mem != "" {
		run = append(run, "--mem", f.mem)
	}
	if f.gpu != "" {
		run = append(run, "--gpu", f.gpu)
	}
	cmd := exec.Command(selfPath(), append(append(run, "--"), args...)...)
	cmd.Args[0] = programName
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return &exitError{code: 128 + int(ws.Signal())}
	}
	return &exitError{code: exit.ExitCode()}
}
