package alloc

// Placer decides for one fleet and one policy, and remembers the score of every (request shape, node) pair: after a
// change only the nodes that changed are rated again, and only when their shape is asked for. What it answers is what
// rating every node afresh would answer (TestCachedEqualsUncached). It is not safe for concurrent use, as the fleet
// is not.
type Placer struct {
	j      *judge
	shapes map[shape]*ranking
	cached bool
}

// ranking holds the scores of one shape on all nodes and a tournament over them.
type ranking struct {
	eligible []bool
	score    []float64
	seen     []uint32 // version of the node when it was rated
	pos      int      // position in the fleet's log of changes up to which scores hold
	tree     []int32  // winner of each pair; tree[1] is the best node; leaves start at len/2
}

// maxShapes bounds the memory of the caches: 16 bytes a shape and node. Beyond it they start afresh.
const maxShapes = 4096

// NewPlacer makes a placer with caches.
func NewPlacer(f *Fleet, p *Policy) *Placer {
	j := newJudge(f, p)
	return &Placer{j: j, shapes: map[shape]*ranking{}, cached: !j.volatile}
}

// NewUncachedPlacer makes a placer that rates every node for every decision: the reference for the caches.
func NewUncachedPlacer(f *Fleet, p *Policy) *Placer {
	return &Placer{j: newJudge(f, p)}
}

// Decide returns the best placement, and whether there is one. It changes nothing in the fleet.
func (p *Placer) Decide(r *Request) (Placement, bool) {
	best := -1
	if p.cached {
		best = p.bestCached(r)
	} else {
		best = p.bestScan(r)
	}
	if best < 0 {
		return Placement{}, false
	}
	_, cards := p.j.rate(r, best)
	return p.j.f.placement(r, best, cards), true
}

func (p *Placer) bestScan(r *Request) int {
	best, top := -1, impossible
	for n := range p.j.f.Nodes() {
		if p.j.f.ineligible(r, n) != Fits {
			continue
		}
		if s, _ := p.j.rate(r, n); s > top {
			best, top = n, s
		}
	}
	return best
}

func (p *Placer) bestCached(r *Request) int {
	key := r.shape()
	k := p.shapes[key]
	if k == nil {
		if len(p.shapes) >= maxShapes {
			clear(p.shapes)
		}
		k = p.newRanking(r)
		p.shapes[key] = k
	} else {
		p.refresh(k, r)
	}
	best := int(k.tree[1])
	if best < 0 || k.score[best] == impossible {
		return -1
	}
	return best
}

func (p *Placer) newRanking(r *Request) *ranking {
	n := p.j.f.Nodes()
	k := &ranking{eligible: make([]bool, n), score: make([]float64, n), seen: make([]uint32, n)}
	for i := range n {
		k.eligible[i] = p.j.f.ineligible(r, i) == Fits
	}
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	k.tree = make([]int32, 2*leaves)
	p.rebuild(k, r)
	return k
}

// rebuild rates every node and plays the whole tournament.
func (p *Placer) rebuild(k *ranking, r *Request) {
	f, leaves := p.j.f, len(k.tree)/2
	for i := range leaves {
		k.tree[leaves+i] = -1
		if i < len(k.score) {
			k.score[i], k.seen[i] = impossible, f.version[i]
			if k.eligible[i] {
				k.score[i], _ = p.j.rate(r, i)
			}
			k.tree[leaves+i] = int32(i)
		}
	}
	for i := leaves - 1; i >= 1; i-- {
		k.tree[i] = k.winner(k.tree[2*i], k.tree[2*i+1])
	}
	k.pos = f.now()
}

// refresh rates the nodes that changed since the shape was last asked for.
func (p *Placer) refresh(k *ranking, r *Request) {
	f := p.j.f
	changed, ok := f.changes(k.pos)
	if !ok {
		p.rebuild(k, r)
		return
	}
	for _, n := range changed {
		if k.seen[n] == f.version[n] || !k.eligible[n] {
			continue
		}
		k.seen[n] = f.version[n]
		score, _ := p.j.rate(r, int(n))
		if score != k.score[n] {
			k.score[n] = score
			k.replay(n)
		}
	}
	k.pos = f.now()
}

// winner is the better of two nodes; the first wins ties; -1 is no node.
func (k *ranking) winner(a, b int32) int32 {
	if b < 0 || a >= 0 && k.score[a] >= k.score[b] {
		return a
	}
	return b
}

// replay plays again the matches on the way from a leaf to the root, until one is won by the same other node as
// before: from there on nothing changes.
func (k *ranking) replay(n int32) {
	for i := (len(k.tree)/2 + int(n)) / 2; i >= 1; i /= 2 {
		w := k.winner(k.tree[2*i], k.tree[2*i+1])
		if w == k.tree[i] && w != n {
			return
		}
		k.tree[i] = w
	}
}
