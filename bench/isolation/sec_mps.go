package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const mpsControl = "nvidia-cuda-mps-control"

// mps is an MPS control daemon of this bench, with pipes of its own.
type mps struct{ env []string }

// startMPS starts the daemon.
func startMPS(ctx context.Context, dir string) (*mps, error) {
	pipe, logs := filepath.Join(dir, "mps-pipe"), filepath.Join(dir, "mps-log")
	for _, d := range []string{pipe, logs} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	m := &mps{env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe, "CUDA_MPS_LOG_DIRECTORY=" + logs}}
	if _, err := m.control(ctx, "-d", ""); err != nil {
		return nil, fmt.Errorf("MPS does not start: %w", err)
	}
	return m, nil
}

// control runs the control program, with an argument or with a command on its
// standard input.
func (m *mps) control(ctx context.Context, argument, command string) ([]byte, error) {
	script := mpsControl + " " + argument
	if command != "" {
		script = "echo " + command + " | " + mpsControl
	}
	argv := append([]string{"env"}, m.env...)
	// The daemon inherits what it is given: it must not hold our pipes open.
	return runOnce(ctx, 20*time.Second, append(argv, "sh", "-c", script+" >/dev/null 2>&1")...)
}

// stop ends the daemon and its server.
func (m *mps) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, _ = m.control(ctx, "", "quit") // nothing to be done about a daemon that died
}

// client is a tenant under MPS with a percentage of the threads.
func (m *mps) client(workload string, percent float64) demand {
	env := append([]string{fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%.0f", percent)}, m.env...)
	return demand{workload: workload, asked: percent, env: env}
}

// runMPS measures MPS with the same programs, as a baseline.
func (b *bench) runMPS(ctx context.Context) {
	if b.cfg.emulated != "" {
		return
	}
	names := []string{k400us, matmul}
	if b.cfg.quick {
		names = names[:1]
	}
	for _, n := range names { // before the daemon: solo is without it
		if _, err := b.soloRate(ctx, n); err != nil && ctx.Err() != nil {
			return
		}
	}
	m, err := startMPS(ctx, b.dir)
	if err != nil {
		b.record(Row{Section: secMPS, Case: "start", Policy: "mps", Error: err.Error()})
		return
	}
	defer m.stop()
	for _, n := range names {
		for _, percent := range b.mpsCaps(n) {
			row := Row{Section: secMPS, Case: fmt.Sprintf("%.0f%%", percent), Policy: "mps"}
			b.shareCase(ctx, row, []demand{m.client(n, percent)})
		}
	}
	for _, percent := range []float64{30, 50} {
		row := Row{Section: secMPS, Case: fmt.Sprintf("%.0f/%.0f", percent, 100-percent), Policy: "mps"}
		b.shareCase(ctx, row, []demand{m.client(k400us, percent), m.client(k400us, 100-percent)})
	}
}

func (b *bench) mpsCaps(name string) []float64 {
	switch {
	case b.cfg.quick:
		return []float64{30}
	case name == matmul:
		return []float64{30, 70}
	}
	return []float64{10, 30, 50, 70, 90}
}

// cardMemoryUsed is the card's own figure in bytes, from outside any tenant.
func cardMemoryUsed(ctx context.Context) (float64, error) {
	out, err := runOnce(ctx, 20*time.Second, "nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
	if err != nil {
		return 0, err
	}
	return parseMiB(string(out))
}

func parseMiB(s string) (float64, error) {
	var mib float64
	if _, err := fmt.Sscanf(strings.TrimSpace(s), "%f", &mib); err != nil {
		return 0, fmt.Errorf("memory.used %.40q: %w", s, err)
	}
	return mib * (1 << 20), nil
}
