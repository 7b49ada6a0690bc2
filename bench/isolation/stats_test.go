package main

import (
	"math"
	"testing"
)

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // unsorted on purpose
	}
	cases := map[string]struct {
		v    []float64
		p    float64
		want float64
	}{
		"nothing":            {nil, 50, 0},
		"one":                {[]float64{7}, 99, 7},
		"median of four":     {[]float64{4, 1, 3, 2}, 50, 2},
		"p99 of a hundred":   {hundred, 99, 99},
		"p100 is the most":   {hundred, 100, 100},
		"p0 is the least":    {hundred, 0, 1},
		"p1 of a hundred":    {hundred, 1, 1},
		"between two ranks":  {[]float64{10, 20, 30}, 34, 20},
		"beyond is the most": {[]float64{1, 2}, 150, 2},
	}
	for name, c := range cases {
		if got := percentile(c.v, c.p); got != c.want {
			t.Errorf("%s: percentile %v = %v, want %v", name, c.p, got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("percentile changed its argument")
	}
}

func TestErrors(t *testing.T) {
	v := []float64{-1, 0.5, 0, -2.5}
	if got := meanAbs(v); got != 1 {
		t.Errorf("meanAbs = %v, want 1", got)
	}
	if got := maxAbs(v); got != 2.5 {
		t.Errorf("maxAbs = %v, want 2.5", got)
	}
	if meanAbs(nil) != 0 || maxAbs(nil) != 0 || mean(nil) != 0 {
		t.Error("of nothing: want 0")
	}
	if got := percentOf(30, 0); got != 0 {
		t.Errorf("percentOf without a whole = %v, want 0", got)
	}
	if got := percentOf(29.8, 100); math.Abs(got-29.8) > 1e-12 {
		t.Errorf("percentOf = %v", got)
	}
	if got := round(2.345678, 2); got != 2.35 {
		t.Errorf("round = %v", got)
	}
}
