package main

import (
	"math"
	"slices"
)

// better says which direction of a figure is the good one.
type better int

const (
	higher better = iota
	lower
)

// sample is the figures of one job under one contender, one a round.
type sample struct {
	Values []float64 `json:"values,omitempty"`
	// Reason says why there are no values.
	Reason string `json:"reason,omitempty"`
}

// ok says whether there is anything to report.
func (s sample) ok() bool { return len(s.Values) > 0 }

// median is the middle value, the mean of the middle two for an even number.
func (s sample) median() float64 {
	if !s.ok() {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(s.Values))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

// spread is the distance of the extremes as a share of the median.
func (s sample) spread() float64 {
	if !s.ok() || s.median() == 0 {
		return 0
	}
	return (slices.Max(s.Values) - slices.Min(s.Values)) / s.median()
}

// ratio says how many times better a is than b; 1 is as good.
func ratio(dir better, a, b sample) float64 {
	if !a.ok() || !b.ok() {
		return math.NaN()
	}
	x, y := a.median(), b.median()
	if dir == lower {
		x, y = y, x
	}
	return x / y
}
