package main

import (
	"fmt"
	"math"
	"strings"
)

// figure prints three significant digits.
func figure(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case abs >= 1e4:
		return fmt.Sprintf("%.0f k", v/1e3)
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs == 0:
		return "0"
	default:
		return fmt.Sprintf("%.3g", v)
	}
}

// markdown lays out a table whose first row is its head.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	return b.String()
}

// replacer fills the sizes of this run into the names of jobs.
func (s scale) replacer() *strings.Replacer {
	return strings.NewReplacer("$N", thousands(s.files), "$COMMITS", thousands(s.commits))
}

// thousands prints a number with commas.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// report is the text of RESULTS.md.
func report(m machine, s scale, jobs []job, cs []contender, engine []engineResult, res results, plots []string) string {
	subst := s.replacer()
	var b strings.Builder
	fmt.Fprintf(&b, `# Results

Written by the bench (see [docs/performance.md](../docs/performance.md)); nothing here was typed by hand. All
figures are of one run: medians of %d rounds in which the contenders took turns, with the distance
between the smallest and the largest as a share of the median. Read ratios, not absolute figures.

%s
`, s.rounds, m)
	b.WriteString("## Contenders\n\n")
	rows := [][]string{{"name", "what it is"}}
	for _, c := range cs {
		rows = append(rows, []string{c.name, c.about})
	}
	b.WriteString(markdown(rows))
	b.WriteString("\n## Goals\n\nTimes as good (faster, or in less time); goals of which this run has no figures are not shown.\n\n")
	b.WriteString(targetTable(jobs, res, subst))
	if len(engine) > 0 {
		b.WriteString("\n## The engine alone, without a sandbox\n\n")
		b.WriteString(engineTable(engine))
	}
	b.WriteString("\n## Figures\n\n")
	head := []string{"work", "unit"}
	for _, c := range cs {
		head = append(head, c.name)
	}
	rows = [][]string{head}
	var reasons []string
	left := false
	for _, j := range jobs {
		unit := j.unit
		if j.dir == lower {
			unit += " (less is better)"
		}
		row := []string{subst.Replace(j.name), unit}
		for _, c := range cs {
			v := res.at(j.name, c.name)
			if !v.ok() {
				row = append(row, "–")
				if !j.wants(c.name) {
					left = true
					continue
				}
				reasons = append(reasons, fmt.Sprintf("- %s, %s: %s", subst.Replace(j.name), c.name, v.Reason))
				continue
			}
			row = append(row, fmt.Sprintf("%s ± %.0f %%", figure(v.median()), v.spread()*50))
		}
		rows = append(rows, row)
	}
	b.WriteString(markdown(rows))
	if left {
		b.WriteString("\nA quick run measures only what the goals compare.\n")
	}
	if len(reasons) > 0 {
		b.WriteString("\nNot measured:\n\n" + strings.Join(reasons, "\n") + "\n")
	}
	for _, p := range plots {
		fmt.Fprintf(&b, "\n![%s](%s)\n", strings.TrimSuffix(p, ".svg"), p)
	}
	return b.String()
}
