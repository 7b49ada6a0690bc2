package sim

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
)

// Report is a page with tables and plots that needs nothing but itself.
type Report struct {
	Title    string
	Sections []Section
}

// Section is a table, a plot, or both.
type Section struct {
	Heading string
	Text    string
	Columns []string
	Rows    [][]string
	Plot    *Plot
}

// Plot is a set of lines over one axis.
type Plot struct {
	X, Y  string // axis titles
	Lines []Line
}

// Line is one series.
type Line struct {
	Name string
	X, Y []float64
}

// palette has colours that differ in lightness as well, for readers who do not see hues.
var palette = []string{"#1b6ca8", "#d1495b", "#66a182", "#edae49", "#5e548e", "#2e4057", "#8d96a3"}

const page = `<!doctype html><html lang="en"><meta charset="utf-8"><title>{{.Title}}</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1d2530}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #dde2e8}
th{color:#5a6572;font-weight:600}svg{width:100%;height:auto}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}</style>
<h1>{{.Title}}</h1>
{{range .Sections}}<h2>{{.Heading}}</h2>{{if .Text}}<p>{{.Text}}</p>{{end}}
{{if .Rows}}<table><tr>{{range .Columns}}<th>{{.}}</th>{{end}}</tr>{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}</table>{{end}}
{{if .Plot}}{{svg .Plot}}{{end}}{{end}}</html>
`

// Write renders the page.
func (r *Report) Write(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{"svg": (*Plot).svg}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, r)
}

// Geometry of a plot, in SVG units.
const (
	plotWidth, plotHeight = 760.0, 320.0
	plotLeft, plotTop     = 60.0, 14.0
	plotRight, plotBottom = 150.0, 40.0
	plotTicks             = 5
)

// svg draws the plot.
func (p *Plot) svg() template.HTML {
	x0, x1, y0, y1 := p.bounds()
	px := func(x float64) float64 { return plotLeft + (x-x0)/(x1-x0)*(plotWidth-plotLeft-plotRight) }
	py := func(y float64) float64 {
		return plotHeight - plotBottom - (y-y0)/(y1-y0)*(plotHeight-plotTop-plotBottom)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" font-size="12">`, plotWidth, plotHeight)
	for i := range plotTicks + 1 {
		x, y := x0+(x1-x0)*float64(i)/plotTicks, y0+(y1-y0)*float64(i)/plotTicks
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#e6eaef"/>`, plotLeft, py(y), plotWidth-plotRight)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end" fill="#5a6572">%.4g</text>`, plotLeft-6, py(y)+4, y)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#5a6572">%.4g</text>`, px(x), plotHeight-plotBottom+16, x)
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, (plotLeft+plotWidth-plotRight)/2, plotHeight-6, template.HTMLEscapeString(p.X))
	fmt.Fprintf(&b, `<text transform="translate(14 %.1f) rotate(-90)" text-anchor="middle">%s</text>`, plotHeight/2, template.HTMLEscapeString(p.Y))
	for i, l := range p.Lines {
		colour := palette[i%len(palette)]
		b.WriteString(`<path fill="none" stroke-width="1.8" stroke="` + colour + `" d="`)
		for j := range l.X {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(j, 1)], px(l.X[j]), py(l.Y[j]))
		}
		b.WriteString(`"/>`)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" fill="%s">%s</text>`, plotWidth-plotRight+8, plotTop+14+float64(i)*17, colour, template.HTMLEscapeString(l.Name))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// bounds of all lines, never empty.
func (p *Plot) bounds() (x0, x1, y0, y1 float64) {
	x0, y0, x1, y1 = math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, l := range p.Lines {
		for i := range l.X {
			x0, x1 = min(x0, l.X[i]), max(x1, l.X[i])
			y0, y1 = min(y0, l.Y[i]), max(y1, l.Y[i])
		}
	}
	if x0 > x1 {
		return 0, 1, 0, 1
	}
	if x0 == x1 {
		x1++
	}
	if y0 == y1 {
		y1++
	}
	return x0, x1, y0, y1
}

// InflateReport plots how the cluster filled and lists the runs.
func InflateReport(title string, results []*Result) *Report {
	runs := Section{Heading: "Runs", Columns: []string{"seed", "allocated %", "decisions/s"}}
	fill := Section{Heading: "Allocated against arrived", Plot: &Plot{X: "compute asked for, % of the cluster", Y: "allocated, %"}}
	for _, r := range results {
		runs.Rows = append(runs.Rows, []string{fmt.Sprint(r.Seed), fmt.Sprintf("%.2f", r.AllocatedPercent), fmt.Sprintf("%.0f", r.DecisionsPerSecond)})
		l := Line{Name: fmt.Sprintf("seed %d", r.Seed), Y: r.curve}
		for i := range r.curve {
			l.X = append(l.X, float64(i))
		}
		fill.Plot.Lines = append(fill.Plot.Lines, l)
	}
	return &Report{Title: title, Sections: []Section{runs, fill}}
}

// ReplayReport plots allocation over time of the first seed, and lists the runs.
func ReplayReport(title string, names []string, by map[string][]*ReplayResult) *Report {
	runs := Section{Heading: "Runs", Columns: []string{"policy", "seed", "allocated %", "mean wait s", "p95 wait s", "waited %"}}
	plot := &Plot{X: "hours", Y: "allocated, %"}
	for _, n := range names {
		for i, r := range by[n] {
			runs.Rows = append(runs.Rows, []string{n, fmt.Sprint(r.Seed), fmt.Sprintf("%.2f", r.MeanAllocatedPercent),
				fmt.Sprintf("%.0f", r.MeanWait), fmt.Sprintf("%.0f", r.P95Wait), fmt.Sprintf("%.2f", r.WaitedPercent)})
			if i == 0 {
				plot.Lines = append(plot.Lines, Line{Name: n, X: r.hours, Y: r.allocated})
			}
		}
	}
	return &Report{Title: title, Sections: []Section{runs, {Heading: "Allocation over time, first seed", Plot: plot}}}
}
