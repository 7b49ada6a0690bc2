package sim

import (
	"context"
	"errors"
	"math"
)

// lp is a linear programme max c·x, A·x ≤ b, x ≥ 0 with b ≥ 0, whose columns are made on demand: the revised simplex
// method with an explicit inverse, for a few hundred rows.
type lp struct {
	b       []float64
	inverse [][]float64
	basis   []column // by row; the zero column is the row's slack
	x       []float64
}

// column is a sparse column with its objective.
type column struct {
	gain float64
	rows []int
	vals []float64
	tag  int
}

// newLP starts from all slacks, which is feasible since b ≥ 0. Right sides of zero get a tiny slack of differing
// size, so that degenerate pivots make progress; the error is of that size.
func newLP(b []float64) *lp {
	p := &lp{b: make([]float64, len(b)), inverse: make([][]float64, len(b)), basis: make([]column, len(b)), x: make([]float64, len(b))}
	for i, v := range b {
		p.b[i] = v + 1e-6*(1+float64(i%97)/97)
		p.x[i] = p.b[i]
		p.inverse[i] = make([]float64, len(b))
		p.inverse[i][i] = 1
		p.basis[i] = column{rows: []int{i}, vals: []float64{1}, tag: -1}
	}
	return p
}

// duals are the prices of the rows.
func (p *lp) duals() []float64 {
	y := make([]float64, len(p.b))
	for i, c := range p.basis {
		if c.gain != 0 {
			for j, v := range p.inverse[i] {
				y[j] += c.gain * v
			}
		}
	}
	return y
}

// reduced is what a unit of the column gains at the prices.
func (c *column) reduced(y []float64) float64 {
	g := c.gain
	for i, r := range c.rows {
		g -= y[r] * c.vals[i]
	}
	return g
}

// enter brings a column into the basis. It fails when the programme is unbounded.
func (p *lp) enter(c column) error {
	m := len(p.b)
	d := make([]float64, m)
	for i := range m {
		for k, r := range c.rows {
			d[i] += p.inverse[i][r] * c.vals[k]
		}
	}
	out, ratio := -1, math.Inf(1)
	for i := range m {
		if d[i] > 1e-9 {
			if q := p.x[i] / d[i]; q < ratio {
				out, ratio = i, q
			}
		}
	}
	if out < 0 {
		return errors.New("the relaxation is unbounded")
	}
	pivot := p.inverse[out]
	for j := range pivot {
		pivot[j] /= d[out]
	}
	for i := range m {
		if i == out || d[i] == 0 {
			continue
		}
		row, f := p.inverse[i], d[i]
		for j, v := range pivot {
			row[j] -= f * v
		}
		p.x[i] = max(0, p.x[i]-f*ratio)
	}
	p.x[out], p.basis[out] = ratio, c
	return nil
}

// solve asks for columns until none gains more than eps, and returns the objective. It ends
// early with the context's error.
func (p *lp) solve(ctx context.Context, limit int, eps float64, price func(y []float64) (column, float64)) (float64, error) {
	for i := range limit {
		if i%64 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		y := p.duals()
		c, gain := price(y)
		for i, v := range y { // a slack may come back
			if -v > gain {
				c, gain = column{rows: []int{i}, vals: []float64{1}, tag: -1}, -v
			}
		}
		if gain <= eps {
			return p.objective(), nil
		}
		if err := p.enter(c); err != nil {
			return 0, err
		}
	}
	return p.objective(), errors.New("the relaxation did not converge")
}

func (p *lp) objective() (sum float64) {
	for i, c := range p.basis {
		sum += c.gain * p.x[i]
	}
	return sum
}
