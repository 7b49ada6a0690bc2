package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseLine(t *testing.T) {
	cases := map[string]struct {
		in   string
		kind lineKind
		text string
	}{
		"ready":             {"READY\n", isReady, ""},
		"error":             {"ERROR cudaMalloc(&p, n): cudaErrorMemoryAllocation", isError, "cudaMalloc(&p, n): cudaErrorMemoryAllocation"},
		"tick":              {"TICK 1796070122.468395 748", isTick, ""},
		"damaged tick":      {"TICK soon", isError, `tick "TICK soon": want a time and a count`},
		"answer":            {`{"mode":"kernel","units":2482,"launches":3730,"seconds":1.5}`, isAnswer, ""},
		"a warning":         {"/usr/lib/python3: UserWarning: READY", noise, "/usr/lib/python3: UserWarning: READY"},
		"nothing":           {"", noise, ""},
		"other json":        {`{"level":"info"}`, noise, `{"level":"info"}`},
		"carriage return":   {"READY\r\n", isReady, ""},
		"ready with a tail": {"READY now", noise, "READY now"},
	}
	for name, c := range cases {
		got := parseLine(c.in)
		if got.kind != c.kind || got.text != c.text {
			t.Errorf("%s: kind %d text %q, want %d %q", name, got.kind, got.text, c.kind, c.text)
		}
	}
	if got := parseLine(`{"mode":"kernel","units":3`); got.kind != isError || !strings.Contains(got.text, "answer") {
		t.Errorf("cut answer: %+v", got)
	}
}

func TestAnswerRate(t *testing.T) {
	l := parseLine(`{"mode":"latency","units":494,"launches":693,"seconds":2.0,"p50":0.4032,"p99":0.4520,"max":0.8821,"missed":6}`)
	if l.answer.rate() != 247 || l.answer.P99 != 0.452 || l.answer.Missed != 6 {
		t.Errorf("answer %+v", l.answer)
	}
	if (answer{Units: 3}).rate() != 0 {
		t.Error("a rate without a time must be 0")
	}
}

func TestTickTime(t *testing.T) {
	l := parseLine("TICK 1796070122.468395 748")
	want := time.Unix(1796070122, 468395000)
	if d := l.tick.at.Sub(want).Abs(); d > 2*time.Microsecond || l.tick.units != 748 {
		t.Errorf("tick %v %v, want %v 748", l.tick.at, l.tick.units, want)
	}
}

func TestOrder(t *testing.T) {
	got := order(time.Unix(1796070122, 5_000_999), 2.88)
	if want := "GO 1796070122.005000 2.880000\n"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	var at, seconds float64
	if n, err := fmt.Sscanf(got, "GO %f %f", &at, &seconds); n != 2 || err != nil || seconds != 2.88 {
		t.Errorf("a worker reads %v %v: %v", at, seconds, err)
	}
}

func FuzzParseLine(f *testing.F) {
	for _, s := range []string{"READY", "TICK 1 2", "TICK 1e308 x", `{"mode":"x"}`, "ERROR x", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if l := parseLine(s); l.kind < noise || l.kind > isError {
			t.Errorf("kind %d", l.kind)
		}
	})
}
