package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
)

// The plot is written as SVG right here: a plotting library with its fonts would make
// the program, and so each sandbox, larger by some megabytes.

// stageColors tell stages apart, from the top down; they stay apart for colour-blind eyes.
var stageColors = []string{"#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#aa4499"}

// Lengths in the plot, in pixels.
const (
	plotWidth  = 900
	plotLeft   = 190 // room for the names of calls
	plotRight  = 90  // room for their means
	plotTop    = 64
	rowHeight  = 34
	barHeight  = 22
	legendStep = 84
)

// plotTrace draws, for each kind of call, how its mean duration is made up of stages.
func plotTrace(path string, r *traceResult) error {
	return os.WriteFile(path, drawTrace(r), 0o644)
}

func drawTrace(r *traceResult) []byte {
	var b bytes.Buffer
	longestUs := 0.0
	for k := range r.Calls {
		longestUs = max(longestUs, r.Calls[k].Total.MeanUs)
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotTop+rowHeight*len(r.Calls)+10)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	text := func(x float64, y int, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	text(10, 20, "start", fmt.Sprintf("container %s: mean time of calls by stage, %.1f s, one call in %d", shortID(r.Container), r.Seconds, r.Every))
	if len(r.Calls) > 0 {
		for n, s := range r.Calls[0].Stages {
			x := 10 + n*legendStep
			fmt.Fprintf(&b, `<rect x="%d" y="34" width="12" height="12" fill="%s"/>`+"\n", x, stageColors[n%len(stageColors)])
			text(float64(x+17), 45, "start", s.Name)
		}
	}
	for k := range r.Calls {
		c := &r.Calls[k]
		y := plotTop + k*rowHeight
		text(plotLeft-8, y+barHeight-7, "end", c.Volume+" "+c.Op)
		x := float64(plotLeft)
		for n, s := range c.Stages {
			us := s.Share * c.Total.MeanUs
			width := us / longestUs * (plotWidth - plotLeft - plotRight)
			if !(width > 0) {
				continue
			}
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
				x, y, width, barHeight, stageColors[n%len(stageColors)], html.EscapeString(s.Name+" "+microseconds(us)))
			x += width
		}
		text(x+6, y+barHeight-7, "start", microseconds(c.Total.MeanUs))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
