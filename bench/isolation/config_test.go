package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestParseConfig(t *testing.T) {
	c, err := parseConfig([]string{"-workloads", "w", "-quick", "-sections", "caps, pairs,", "-budget", "3m"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(c.sections, " ") != "caps pairs" || c.seconds != quickSeconds || c.kills != 10 || c.budget != 3*time.Minute {
		t.Errorf("config %+v", c)
	}
	if c.command != "isolation -workloads w -quick -sections caps, pairs, -budget 3m" {
		t.Errorf("command %q", c.command)
	}
}

func TestParseConfigRefuses(t *testing.T) {
	cases := map[string]struct {
		args []string
		want string
	}{
		"a section nobody knows": {[]string{"-workloads", "w", "-sections", "caps,cpas"}, `unknown section "cpas"`},
		"no workloads":           {nil, "-workloads is missing"},
		"a stray argument":       {[]string{"-workloads", "w", "quick"}, `unexpected argument "quick"`},
		"a negative window":      {[]string{"-workloads", "w", "-seconds", "-1"}, "-seconds"},
		"no time":                {[]string{"-workloads", "w", "-budget", "0s"}, "-budget"},
		"negative kills":         {[]string{"-workloads", "w", "-kills", "-4"}, "-kills"},
	}
	for name, c := range cases {
		if _, err := parseConfig(c.args, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The windows must not cut a slot of the default cycle.
func TestWindowsAreWholeCycles(t *testing.T) {
	for _, seconds := range []float64{fullSeconds, quickSeconds, emuSeconds} {
		for _, cycle := range []time.Duration{48 * time.Millisecond, 72 * time.Millisecond, 96 * time.Millisecond} {
			if time.Duration(seconds*1e6)*time.Microsecond%cycle != 0 {
				t.Errorf("%v s is no multiple of %v", seconds, cycle)
			}
		}
	}
}
