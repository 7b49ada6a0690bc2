package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// probeCall is a driver call (RM_ALLOC) made on no file: it changes nothing
// and proves that calls of this process reach the agent.
const probeCall = 0xc030462b

// attachTries bounds how often an agent that is leaving is replaced.
const attachTries = 5

func newRun() *cobra.Command {
	var p place
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG…]",
		Short: "Run a program under a share of a GPU",
		Long: "Run a program under a share of a GPU.\n\nThe program replaces this process, so its terminal, signals and exit status\n" +
			"are its own. 125 is an error of penstock, 126 a command that cannot be\nexecuted, 127 one that is not found.",
		Example: "  penstock run --mem 20Gi --compute 30% -- python train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return failRun(errors.New("no command given: penstock run [flags] -- COMMAND"))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return failRun(runTenant(c.Context(), &p, &f, args)) },
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return failRun(err) })
	c.Flags().SetInterspersed(false)
	p.flags(c)
	c.Flags().DurationVar(&p.idleExit, "agent-idle-exit", 30*time.Second, "when an agent must be started: leave after so long without tenants")
	f.flags(c)
	return c
}

// runFlags is a request as typed.
type runFlags struct {
	mem, compute, policy, priority, gpu, level, name string
	weight                                           int
	cycle                                            time.Duration
}

func (f *runFlags) flags(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.mem, "mem", "", "device memory on each card: 20Gi, 500M, 50% (Ki Mi Gi Ti, K M G T, bytes, percent)")
	fl.StringVar(&f.compute, "compute", "", "share of the card's compute: 30% or 300m")
	fl.StringVar(&f.policy, "policy", "", "fair, preemptive, weighted, fixed, soft, native, burst, mixed, or cGPU's number")
	fl.IntVar(&f.weight, "weight", 0, "weight among those who share")
	fl.StringVar(&f.priority, "priority", "", "high, normal or low")
	fl.StringVar(&f.gpu, "gpu", "", "cards by index or UUID, comma separated, or all")
	fl.StringVar(&f.level, "level", "", "strict refuses driver calls it does not know, compatible lets them pass")
	fl.StringVar(&f.name, "name", "", "what the tenant is called (default: the command's name)")
	fl.DurationVar(&f.cycle, "cycle", 0, "time in which everybody on the card has had a turn")
}

// request reads the flags. command names the tenant when nothing else does.
func (f *runFlags) request(command string) (agent.Request, error) {
	r := agent.Request{Name: f.name, Weight: f.weight, Priority: f.priority, Level: f.level, Cycle: f.cycle}
	var err error
	if f.mem != "" {
		if r.Memory, err = agent.ParseMemory(f.mem); err != nil {
			return r, err
		}
	}
	if f.compute != "" {
		if r.Compute, err = agent.ParseCompute(f.compute); err != nil {
			return r, err
		}
	}
	if f.policy != "" {
		p, err := governor.ParsePolicy(f.policy)
		if err != nil {
			return r, err
		}
		r.Policy = &p
	}
	if f.gpu != "" {
		r.Cards = strings.Split(f.gpu, ",")
	}
	if r.Name == "" {
		r.Name = filepath.Base(command)
	}
	return r, r.Validate()
}

// runTenant ends in the program's exec, or returns why it could not.
func runTenant(ctx context.Context, p *place, f *runFlags, args []string) error {
	req, err := f.request(args[0])
	if err != nil {
		return err
	}
	path, err := lookCommand(args[0])
	if err != nil {
		return err
	}
	a, err := ask(ctx, p, req)
	if err != nil {
		return err
	}
	defer a.Close()
	env := tenantEnv(os.Environ(), a, f.gpu != "")
	// The filter belongs to the thread that installs it; exec keeps this
	// thread and ends all others, which are not supervised.
	runtime.LockOSThread()
	if err := supervise(ctx, a); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted before the program started")
	}
	err = unix.Exec(path, args, env)
	return execError(args[0], err)
}

// ask gets a share, starting an agent if need be. One that is just leaving is
// asked again, or replaced.
func ask(ctx context.Context, p *place, req agent.Request) (*agent.Attachment, error) {
	var last error
	for range attachTries {
		client, err := p.launcher().Client(ctx)
		if err != nil {
			return nil, err
		}
		a, err := client.Attach(ctx, req)
		if !errors.Is(err, agent.ErrNoAgent) {
			return a, err
		}
		last = err
		time.Sleep(50 * time.Millisecond)
	}
	return nil, last
}

// supervise puts this thread's driver calls under the agent, and makes sure of
// it: from here on the agent answers them.
func supervise(ctx context.Context, a *agent.Attachment) error {
	prog, err := kernel.Filter()
	if err != nil {
		return err
	}
	listener, err := sys.InstallFilter(prog)
	if err != nil {
		return err
	}
	defer unix.Close(listener) // the agent and its holder have it, or nobody has
	return a.Supervise(ctx, listener, probe)
}

// probe makes a call that only the agent can answer.
func probe() error {
	_, err := sys.IoctlPtr(-1, probeCall, 0)
	for errors.Is(err, unix.EINTR) { // its agent died over it
		_, err = sys.IoctlPtr(-1, probeCall, 0)
	}
	if !errors.Is(err, unix.EBADF) {
		return fmt.Errorf("probe the supervision: a call on no file gave %v in place of EBADF", err)
	}
	return nil
}

// lookCommand finds the program as a shell would.
func lookCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, fs.ErrPermission):
		return "", &exitError{exitNotExecutable, fmt.Errorf("%s: permission denied", name)}
	}
	return "", &exitError{exitNotFound, fmt.Errorf("%s: command not found", name)}
}

func execError(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound // the interpreter that its first line names
	}
	return &exitError{code, fmt.Errorf("%s: %w", name, err)}
}

// visibleEnv are the variables by which GPU programs choose cards.
var visibleEnv = [...]string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}

// tenantEnv is the program's environment: unchanged, except that it names the
// granted cards when the user chose them or the machine has others.
func tenantEnv(env []string, a *agent.Attachment, chosen bool) []string {
	if !chosen && a.Others == 0 {
		return env
	}
	var uuids []string
	for _, c := range a.Cards {
		uuids = append(uuids, c.UUID)
	}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if name != visibleEnv[0] && name != visibleEnv[1] {
			out = append(out, kv)
		}
	}
	for _, name := range visibleEnv {
		out = append(out, name+"="+strings.Join(uuids, ","))
	}
	return out
}
