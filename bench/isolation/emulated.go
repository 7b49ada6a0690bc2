package main

import (
	"fmt"
	"time"
)

// emulatedArgv is a workload on the emulated card: a program that makes the
// same driver calls as CUDA does and submits work of a given full-card
// duration.
func (b *bench) emulatedArgv(name string) ([]string, error) {
	kernel := map[string]time.Duration{
		k20us:  20 * time.Microsecond,
		k400us: 400 * time.Microsecond,
		k4ms:   4 * time.Millisecond,
	}
	argv := []string{b.cfg.penstock, "emu", "tenant", "--dir", b.cfg.emulated, "--orders"}
	if d, ok := kernel[name]; ok {
		return append(argv, "--kernel", d.String()), nil
	}
	if name == latency {
		return append(argv, "--kernel", "400us", "--every", "2ms"), nil
	}
	return nil, fmt.Errorf("workload %q needs a real card", name)
}
