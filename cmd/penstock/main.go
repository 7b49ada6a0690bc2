// Command penstock runs unmodified programs on a GPU under an exact share of
// its memory and compute, enforced from outside (docs/cli.md).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	ends := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // as under nohup
		ends = append(ends, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	code := 1
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "penstock:", msg)
	}
	os.Exit(code)
}

// run is the whole program with its edges as arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return cmd.ExecuteContext(ctx)
}

// exitError is an error with an exit status of its own. A nil err says that
// everything was said already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// Exit statuses of penstock run for its own failures, as container tools use
// them; any other status is the program's.
const (
	exitOwn           = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

func failRun(err error) error {
	if err == nil {
		return nil
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return err
	}
	return &exitError{exitOwn, err}
}
