package main

import (
	"math"
	"slices"
)

// mean is the arithmetic mean; 0 of nothing.
func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// meanAbs is the mean of the absolute values; 0 of nothing.
func meanAbs(v []float64) float64 {
	abs := make([]float64, len(v))
	for i, x := range v {
		abs[i] = math.Abs(x)
	}
	return mean(abs)
}

// maxAbs is the largest absolute value; 0 of nothing.
func maxAbs(v []float64) float64 {
	most := 0.0
	for _, x := range v {
		most = max(most, math.Abs(x))
	}
	return most
}

// percentile is the smallest value that at least p percent of v do not exceed
// (nearest rank); 0 of nothing. It does not change v.
func percentile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(v))
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// percentOf is 100 × part / whole; 0 when there is no whole.
func percentOf(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * part / whole
}

// round keeps `digits` decimals, so that files differ only where figures do.
func round(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(x*scale) / scale
}
