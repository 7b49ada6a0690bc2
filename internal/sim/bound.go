package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// BoundResult bounds what any policy can allocate in a scenario, in percent of the cluster's compute.
type BoundResult struct {
	Seed       int64   `json:"seed"`
	FreeChoice float64 `json:"freeChoicePercent"`  // policies that may turn away what fits
	NoReject   float64 `json:"neverRejectPercent"` // policies that place whatever fits, in the fluid limit
	Classes    int     `json:"classes"`
	Rows       int     `json:"rows"`
}

// demand is one shape and how many of it arrive.
type demand struct {
	alloc.MixEntry
	memory  gpu.Bytes
	arrived float64
	models  []gpu.Model
}

// supply is one kind of machine, all of them together.
type supply struct {
	model              gpu.Model
	perNode            int
	cards, cpu, memory float64
}

// Bound solves two relaxations of a scenario. Both let cards be cut into patterns of shares that fit one card, in
// fractions of a pattern, and pool CPU and memory over all machines of a kind; no packing can do better than the
// first. The second adds what a policy cannot help that never turns away what fits: once a shape fits nowhere, no
// larger shape fits either, and nothing ever leaves, so the part of a larger shape's arrivals that is placed is at
// most the part of a smaller one's. That holds exactly where arrivals of each shape are spread evenly (the fluid
// limit); a run of finite length may exceed it by its noise.
func Bound(ctx context.Context, s *Scenario, seed int64) (*BoundResult, error) {
	ds, ss := demands(s.Arrivals), supplies(s.Machines)
	r := &BoundResult{Seed: seed, Classes: len(ds)}
	total := float64(totalCompute(s.Machines))
	for _, monotone := range []bool{false, true} {
		b := newBounder(ds, ss, monotone)
		v, err := newLP(b.right).solve(ctx, 200_000, 1e-7, b.price)
		if err != nil {
			return nil, err
		}
		p := math.Round(v/total*10000) / 100
		if monotone {
			r.NoReject, r.Rows = p, len(b.right)
		} else {
			r.FreeChoice = p
		}
	}
	return r, nil
}

func demands(arrivals []alloc.Request) []demand {
	type key struct {
		alloc.MixEntry
		memory gpu.Bytes
	}
	count, models := map[key]float64{}, map[key][]gpu.Model{}
	for i := range arrivals {
		a := &arrivals[i]
		k := key{alloc.MixEntry{CPU: a.CPU, Compute: a.Share.Compute, Count: a.Count, Models: fmt.Sprint(a.Models)}, a.Memory}
		count[k]++
		models[k] = a.Models
	}
	var out []demand
	for k, n := range count {
		out = append(out, demand{k.MixEntry, k.memory, n, models[k]})
	}
	slices.SortFunc(out, func(a, b demand) int {
		return cmp.Or(cmp.Compare(a.Count, b.Count), cmp.Compare(a.Compute, b.Compute), cmp.Compare(a.CPU, b.CPU),
			cmp.Compare(a.memory, b.memory), cmp.Compare(a.Models, b.Models))
	})
	return out
}

func supplies(machines []gpu.Machine) []supply {
	type key struct {
		model  gpu.Model
		cards  int
		cpu    gpu.Milli
		memory gpu.Bytes
	}
	at := map[key]int{}
	var out []supply
	for i := range machines {
		m := &machines[i]
		k := key{cards: len(m.Devices), cpu: m.CPU, memory: m.Memory}
		if k.cards > 0 {
			k.model = m.Devices[0].Model
		}
		j, ok := at[k]
		if !ok {
			j = len(out)
			at[k] = j
			out = append(out, supply{model: k.model, perNode: k.cards})
		}
		out[j].cards += float64(k.cards)
		out[j].cpu += float64(k.cpu) / 1000
		out[j].memory += float64(k.memory) / float64(gpu.GiB)
	}
	return out
}

// bounder holds the rows of the relaxation: per shape how many arrive; per kind of machine cards, CPU and memory;
// per pair of shapes their order.
type bounder struct {
	ds    []demand
	ss    []supply
	right []float64
	pairs [][]pair // by demand, the order rows it is in
	best  [101]float64
	take  [101]int
	fits  [][]bool // by supply, demand
}

type pair struct {
	row  int
	coef float64
}

func newBounder(ds []demand, ss []supply, monotone bool) *bounder {
	b := &bounder{ds: ds, ss: ss, pairs: make([][]pair, len(ds))}
	for i := range ds {
		b.right = append(b.right, ds[i].arrived)
	}
	for i := range ss {
		b.right = append(b.right, ss[i].cards, ss[i].cpu, ss[i].memory)
		row := make([]bool, len(ds))
		for j := range ds {
			row[j] = ds[j].Count <= ss[i].perNode && (len(ds[j].models) == 0 || slices.Contains(ds[j].models, ss[i].model))
		}
		b.fits = append(b.fits, row)
	}
	if !monotone {
		return b
	}
	for large := range ds {
		for small := range ds {
			if large != small && b.covers(large, small) && !b.between(large, small) {
				row := len(b.right)
				b.right = append(b.right, 0)
				b.pairs[large] = append(b.pairs[large], pair{row, 1 / ds[large].arrived})
				b.pairs[small] = append(b.pairs[small], pair{row, -1 / ds[small].arrived})
			}
		}
	}
	return b
}

// covers reports whether wherever the large shape fits the small one does too, and they differ.
func (b *bounder) covers(large, small int) bool {
	l, s := &b.ds[large], &b.ds[small]
	if l.CPU < s.CPU || l.memory < s.memory || l.Count < s.Count || s.Count > 0 && l.Compute < s.Compute {
		return false
	}
	if len(s.models) > 0 && l.Models != s.Models {
		return false
	}
	return l.CPU > s.CPU || l.memory > s.memory || l.Count > s.Count || l.Compute > s.Compute || l.Models != s.Models
}

// between reports whether another shape lies between the two, which makes their own row redundant.
func (b *bounder) between(large, small int) bool {
	for m := range b.ds {
		if m != large && m != small && b.covers(large, m) && b.covers(m, small) {
			return true
		}
	}
	return false
}

// price finds the column that gains most: a pattern of shares for one card of some kind of machine, a request for
// whole cards, or one without.
func (b *bounder) price(y []float64) (column, float64) {
	var best column
	top := 0.0
	consider := func(kind int, picks []int, cards float64) {
		c := b.column(kind, picks, cards)
		if g := c.reduced(y); g > top {
			best, top = c, g
		}
	}
	for kind := range b.ss {
		worth := make([]float64, len(b.ds))
		for d := range b.ds {
			if !b.fits[kind][d] {
				worth[d] = math.Inf(-1)
				continue
			}
			single := b.column(kind, []int{d}, 0)
			worth[d] = single.reduced(y)
			if e := &b.ds[d]; e.Count == 0 || e.Compute == gpu.Card || e.Count > 1 {
				consider(kind, []int{d}, float64(e.Count))
			}
		}
		consider(kind, b.pattern(worth), 1)
	}
	return best, top
}

// pattern fills one card with shares by dynamic programming over hundredths of a card, shares rounded down so that
// the bound stays one.
func (b *bounder) pattern(worth []float64) []int {
	for room := range b.best {
		b.best[room], b.take[room] = 0, -1
		if room > 0 {
			b.best[room] = b.best[room-1]
		}
		for d := range b.ds {
			e := &b.ds[d]
			size := int(e.Compute) / 10
			if e.Count != 1 || e.Compute >= gpu.Card || size > room || worth[d] <= 0 || size == 0 {
				continue
			}
			if v := b.best[room-size] + worth[d]; v > b.best[room]+1e-12 {
				b.best[room], b.take[room] = v, d
			}
		}
	}
	var picks []int
	for room := 100; room > 0; {
		if d := b.take[room]; d >= 0 {
			picks = append(picks, d)
			room -= int(b.ds[d].Compute) / 10
		} else {
			room--
		}
	}
	return picks
}

// column writes a pattern as a column.
func (b *bounder) column(kind int, picks []int, cards float64) column {
	c := column{tag: kind}
	cpu, memory := 0.0, 0.0
	add := func(row int, v float64) {
		for i, r := range c.rows {
			if r == row {
				c.vals[i] += v
				return
			}
		}
		c.rows, c.vals = append(c.rows, row), append(c.vals, v)
	}
	for _, d := range picks {
		e := &b.ds[d]
		c.gain += float64(e.Compute) * float64(e.Count)
		cpu += float64(e.CPU) / 1000
		memory += float64(e.memory) / float64(gpu.GiB)
		add(d, 1)
		for _, p := range b.pairs[d] {
			add(p.row, p.coef)
		}
	}
	base := len(b.ds) + 3*kind
	add(base, cards)
	add(base+1, cpu)
	add(base+2, memory)
	return c
}
