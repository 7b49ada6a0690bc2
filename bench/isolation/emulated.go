package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	emulatedAuto = "auto" // -emulated: serve a card of our own
	emulatedMem  = "16Gi"
)

// emulatedArgv is a workload on the emulated card: this program as a worker,
// which makes the calls of a CUDA program and submits work of a given full-card
// duration. 40 ms in flight, because a wake-up on a loaded machine is slow and
// a submission costs a system call; what finished is read from the card.
func (b *bench) emulatedArgv(name string) ([]string, error) {
	shapes := map[string][]string{
		k20us:   {"-kernel", "20us", "-batch", "500", "-depth", "4"},
		k400us:  {"-kernel", "400us", "-batch", "25", "-depth", "4"},
		k4ms:    {"-kernel", "4ms", "-batch", "3", "-depth", "4"},
		latency: {"-mode", "latency", "-kernel", "400us", "-period", "2ms"},
	}
	shape, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("workload %q needs a real card", name)
	}
	return b.emulatedWorker(shape...)
}

func (b *bench) emulatedWorker(args ...string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program: %w", err)
	}
	return append([]string{self, emulatedVerb, "-dir", b.cfg.emulated}, args...), nil
}

// takeArgv is the program that allocates against a quota.
func (b *bench) takeArgv(mode, path string, processes int) ([]string, error) {
	n, ceiling := strconv.Itoa(processes), strconv.Itoa(ceilingMiB)
	if b.cfg.emulated != "" {
		return b.emulatedWorker("-mode", mode, "-path", path, "-procs", n, "-ceiling", ceiling)
	}
	return []string{b.programs.memory, "--mode", mode, "--path", path, "--procs", n, "--ceiling-mib", ceiling}, nil
}

// serveEmulated serves an emulated card in a folder of the bench.
func serveEmulated(ctx context.Context, penstock, dir string) (*worker, string, error) {
	card := filepath.Join(dir, "card")
	w, err := launch("penstock emu serve", []string{penstock, "emu", "serve", "--dir", card, "--mem", emulatedMem}, nil)
	if err != nil {
		return nil, "", err
	}
	for range 200 {
		if _, err := os.Stat(filepath.Join(card, "nvidiactl")); err == nil {
			return w, card, nil
		}
		select {
		case <-w.gone:
			return nil, "", w.ended()
		default:
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			break
		}
	}
	w.terminate()
	return nil, "", fmt.Errorf("no emulated card appears at %s%s", card, w.noise.tail())
}
