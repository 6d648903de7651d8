package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// plotBase is what the plots compare with.
const plotBase = runscDirectfs

// ratioTicks marks a logarithmic axis of ratios at round values.
type ratioTicks struct{}

// Ticks implements plot.Ticker. The axis holds decimal logarithms.
func (ratioTicks) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(lo); e <= math.Ceil(hi); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if at := math.Log10(v); at >= lo && at <= hi {
				ticks = append(ticks, plot.Tick{Value: at, Label: fmt.Sprintf("%g ×", v)})
			}
		}
	}
	return ticks
}

// drawRatios writes an SVG with a row for each job and a mark for each contender:
// how many times as good it is as the base. It returns false when there is nothing
// to draw.
func drawRatios(path, title string, jobs []job, cs []contender, res results, subst *strings.Replacer) (bool, error) {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "times as good as " + plotBase
	p.X.Tick.Marker = ratioTicks{}
	p.Legend.Top = true
	p.Legend.ThumbnailWidth = vg.Points(12)
	p.Add(plotter.NewGrid())

	var names []string
	rows := map[string]float64{} // y of a job; the first is on top
	for i := len(jobs) - 1; i >= 0; i-- {
		if res.at(jobs[i].name, plotBase).ok() {
			rows[jobs[i].name] = float64(len(names))
			names = append(names, subst.Replace(jobs[i].name))
		}
	}
	for i, c := range cs {
		var points plotter.XYs
		for _, j := range jobs {
			y, ok := rows[j.name]
			v := ratio(j.dir, res.at(j.name, c.name), res.at(j.name, plotBase))
			if !ok || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
				continue
			}
			points = append(points, plotter.XY{X: math.Log10(v), Y: y})
		}
		if len(points) == 0 {
			continue
		}
		s, err := plotter.NewScatter(points)
		if err != nil {
			return false, err
		}
		s.GlyphStyle.Color = plotutil.Color(i)
		s.GlyphStyle.Shape = plotutil.Shape(i)
		s.GlyphStyle.Radius = vg.Points(4)
		p.Add(s)
		p.Legend.Add(c.name, s)
	}
	if len(names) == 0 {
		return false, nil
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
	return true, p.Save(24*vg.Centimeter, vg.Length(len(names)+4)*0.8*vg.Centimeter, path)
}

// drawAll writes the plots of a run into a directory and gives their names.
func drawAll(dir string, s scale, cs []contender, res results) ([]string, error) {
	var files []string
	for _, group := range []struct {
		file, title string
		jobs        []job
	}{
		{"fio.svg", "fio", fioJobs()},
		{"files.svg", "Names and inodes", fileJobs()},
		{"apps.svg", "Databases", appJobs()},
	} {
		drawn, err := drawRatios(filepath.Join(dir, group.file), group.title, group.jobs, cs, res, s.replacer())
		if err != nil {
			return nil, err
		}
		if drawn {
			files = append(files, group.file)
		}
	}
	return files, nil
}
