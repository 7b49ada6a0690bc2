package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"
)

// class is which engine of the card a workload lives on.
type class string

const (
	compute class = "compute" // judged in the headline error
	copies  class = "copy"    // copy engines: shown, not counted as compute
)

// workload is one kind of program.
type workload struct {
	name  string
	class class
	what  string // for the report
	// argv builds the command line; ticks asks for signs of progress.
	argv func(p programs) []string
}

// programs is what command lines are made of.
type programs struct {
	burn, memory string // compiled workers
	python, dir  string
	cal          answer // of burn --mode calibrate
}

// iters is how much fixed work takes the whole card us microseconds.
func (p programs) iters(us float64) string {
	n := (us - p.cal.OverheadMicroseconds) * p.cal.ItersPerMicrosecond
	return strconv.Itoa(max(1, int(math.Round(n))))
}

// kernelArgs is burn in a mode with work of us microseconds.
func (p programs) kernelArgs(mode string, us float64, more ...string) []string {
	return append([]string{p.burn, "--mode", mode, "--iters", p.iters(us), "--sms", strconv.Itoa(p.cal.SMs)}, more...)
}

// The names of the workloads.
const (
	k20us, k400us, k4ms     = "k20us", "k400us", "k4ms"
	graphs, persistent      = "graph", "persistent"
	coop, matmul, train, cp = "coop", "matmul", "train", "copy"
	latency                 = "latency"
)

// catalogue is all workloads that can be solo, capped and shared, in the
// order of the report. In-flight work is 3 to 5 ms each, so that the card is
// never idle for want of a launch.
func catalogue() []workload {
	return []workload{
		{k20us, compute, "20 µs kernels that fill the card", func(p programs) []string {
			return p.kernelArgs("kernel", 20, "--chunk", "50", "--depth", "5")
		}},
		{k400us, compute, "0.4 ms kernels", func(p programs) []string {
			return p.kernelArgs("kernel", 400, "--waves", "4", "--chunk", "2", "--depth", "6")
		}},
		{k4ms, compute, "4 ms kernels", func(p programs) []string {
			return p.kernelArgs("kernel", 4000, "--waves", "8", "--depth", "3")
		}},
		{graphs, compute, "CUDA graphs of 20 kernels of 20 µs", func(p programs) []string {
			return p.kernelArgs("graph", 20, "--chunk", "20", "--depth", "12")
		}},
		{persistent, compute, "a persistent kernel, one block an SM, 50 ms a launch", func(p programs) []string {
			// one block an SM does a unit in half the time that two need
			return p.kernelArgs("persistent", 200, "--units", "500")
		}},
		{coop, compute, "cooperative launches, ten grid.sync() in 1 ms", func(p programs) []string {
			return p.kernelArgs("coop", 200, "--rounds", "10", "--depth", "5")
		}},
		{matmul, compute, "PyTorch bf16 matrix products, 4096³", func(p programs) []string {
			return []string{p.python, "-u", filepath.Join(p.dir, "matmul.py")}
		}},
		{train, compute, "PyTorch training steps, MLP with AdamW", func(p programs) []string {
			return []string{p.python, "-u", filepath.Join(p.dir, "train.py")}
		}},
		{cp, copies, "64 MiB copies to and from the card at once", func(p programs) []string {
			return []string{p.burn, "--mode", "copy", "--mib", "64", "--depth", "4"}
		}},
	}
}

// workloadNamed finds a workload of the catalogue.
func workloadNamed(name string) (workload, error) {
	for _, w := range catalogue() {
		if w.name == name {
			return w, nil
		}
	}
	return workload{}, fmt.Errorf("no workload %q", name)
}

// argvOf is the command line of a workload on the card or the emulated card.
func (b *bench) argvOf(name string) ([]string, error) {
	if b.virtual() {
		return nil, nil // there are no programs
	}
	if b.cfg.emulated != "" {
		return b.emulatedArgv(name)
	}
	if name == latency {
		return b.programs.kernelArgs("latency", 400, "--waves", "4", "--period-ms", "2"), nil
	}
	w, err := workloadNamed(name)
	if err != nil {
		return nil, err
	}
	return w.argv(b.programs), nil
}

// ticking is the same workload, giving signs of progress.
func (b *bench) ticking(name string, every time.Duration) ([]string, error) {
	argv, err := b.argvOf(name)
	if err != nil {
		return nil, err
	}
	return append(argv, "--ticks", strconv.FormatInt(every.Milliseconds(), 10)), nil
}

// classOf is the class of a workload.
func classOf(name string) class {
	w, err := workloadNamed(name)
	if err != nil {
		return compute
	}
	return w.class
}

// findPrograms locates the workers and sizes the fixed work on this card.
func findPrograms(ctx context.Context, dir string) (programs, error) {
	p := programs{python: "python3", dir: dir}
	var err error
	if p.burn, err = absolute(filepath.Join(dir, "burn")); err != nil {
		return p, fmt.Errorf("workloads are not built (see run-on-card.sh): %w", err)
	}
	if p.memory, err = absolute(filepath.Join(dir, "memory")); err != nil {
		return p, fmt.Errorf("workloads are not built (see run-on-card.sh): %w", err)
	}
	out, err := runOnce(ctx, time.Minute, p.burn, "--mode", "calibrate")
	if err != nil {
		return p, fmt.Errorf("calibrate: %w: %.200s", err, out)
	}
	l := parseLine(string(out))
	if l.kind != isAnswer || l.answer.ItersPerMicrosecond <= 0 || l.answer.SMs <= 0 {
		return p, fmt.Errorf("calibrate: %.200q", out)
	}
	p.cal = l.answer
	return p, nil
}
