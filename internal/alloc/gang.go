package alloc

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Level is how far apart the members of a gang are in the network: the smallest part that holds all of them.
type Level uint8

// Levels, nearest first.
const (
	OneMachine Level = iota
	OneDomain        // one NVLink domain across machines
	OneLeaf
	OneSpine
	OneZone
	Anyplace
	levelCount
)

// String names the level.
func (l Level) String() string {
	return [...]string{"machine", "nvlink-domain", "leaf", "spine", "zone", "anyplace"}[min(l, Anyplace)]
}

// Gang is a set of equal members that start together or not at all.
type Gang struct {
	ID       string
	Member   Request // of each member; the members' IDs are the gang's with their number
	Members  int
	Farthest Level // a demand: the members must share a part of the network at this level or a nearer one
}

// GangVerdict is where all members of a gang go, or why they cannot.
type GangVerdict struct {
	Placed     bool
	Placements []Placement
	Level      Level // that holds all members
	Leaves     int   // leaf switches under which members are
	Reason     Reason
}

// Network is a fleet's machines by the parts of the network they are in, for placing gangs.
type Network struct {
	f     *Fleet
	parts [levelCount][][]int // by level: nodes of each part, in the fleet's order
	leaf  []int               // by node: number of its leaf
}

// NewNetwork indexes the positions of a fleet's machines. Machines that do not tell their leaf count as alone.
func NewNetwork(f *Fleet) *Network {
	n := &Network{f: f, leaf: make([]int, f.Nodes())}
	for l := range levelCount {
		at := map[string]int{}
		for node := range f.Nodes() {
			key := partKey(&f.machines[node], l)
			if key == "" {
				continue
			}
			i, ok := at[key]
			if !ok {
				i = len(n.parts[l])
				at[key] = i
				n.parts[l] = append(n.parts[l], nil)
			}
			n.parts[l][i] = append(n.parts[l][i], node)
			if l == OneLeaf {
				n.leaf[node] = i
			}
		}
	}
	return n
}

// partKey names the part of the network at a level that a machine is in; empty where it is in none.
func partKey(m *gpu.Machine, l Level) string {
	p := m.Position
	switch l {
	case OneMachine:
		return m.Name
	case OneDomain:
		return m.NVLinkDomain
	case OneLeaf:
		if p.Leaf == "" {
			return "\x00" + m.Name
		}
		return fmt.Sprintf("%s/%s/%s", p.Zone, p.Spine, p.Leaf)
	case OneSpine:
		return fmt.Sprintf("%s/%s/", p.Zone, p.Spine)
	case OneZone:
		return p.Zone + "/"
	}
	return "/"
}

// Place finds room for the whole gang in the smallest part of the network that has it; among equal parts the one
// with the least room left over, so that large parts stay whole. Only nodes that allowed accepts are used (nil: all).
// It changes nothing.
func (n *Network) Place(g *Gang, allowed func(node int) bool) GangVerdict {
	farthest := g.Farthest
	if farthest == OneMachine && g.Members > 1 && g.Member.cards()*g.Members > MaxCards {
		farthest = Anyplace
	}
	if g.Farthest == 0 {
		farthest = Anyplace
	}
	slots := n.slots(&g.Member, g.Members, allowed)
	most := 0
	for l := OneMachine; l <= farthest; l++ {
		best, room := -1, 0
		for i, nodes := range n.parts[l] {
			sum := 0
			for _, node := range nodes {
				sum += slots[node]
			}
			most = max(most, sum)
			if sum >= g.Members && (best < 0 || sum < room) {
				best, room = i, sum
			}
		}
		if best >= 0 {
			return n.fill(g, n.parts[l][best], slots, l)
		}
	}
	return GangVerdict{Reason: Reason{Node: -1, Device: -1, Code: GangIncomplete, Want: int64(g.Members), Have: int64(most)}}
}

// slots counts how many members each node takes, up to the gang's size.
func (n *Network) slots(r *Request, members int, allowed func(int) bool) []int {
	out := make([]int, n.f.Nodes())
	for node := range out {
		if (allowed == nil || allowed(node)) && n.f.refuseNode(r, node).Code == Fits {
			out[node] = n.f.copies(r, node, members)
		}
	}
	return out
}

// copies is how many times a request fits a node at once, by the amounts left; a bound for requests whose cards
// differ, exact for equal shares.
func (f *Fleet) copies(r *Request, node, limit int) int {
	if r.CPU > 0 {
		limit = min(limit, int(f.cpu[node]/r.CPU))
	}
	if r.Memory > 0 {
		limit = min(limit, int(f.memory[node]/r.Memory))
	}
	if r.cards() == 0 || limit == 0 {
		return limit
	}
	if r.MIG != "" {
		return min(limit, 1) // members on one machine see each other's instances only once granted
	}
	s, fit := r.share(0), 0
	for c := range f.FreeCards(node) {
		d := int(f.offset[node]) + c
		if f.cardFits(&s, d) {
			per := 1
			if s.Compute > 0 && s.Compute < gpu.Card && r.cards() == 1 {
				per = int(f.compute[d] / s.Compute)
				if s.Memory > 0 {
					per = min(per, int(f.vram[d]/s.Memory))
				}
			}
			fit += per
		}
	}
	return min(limit, fit/r.cards())
}

// fill takes nodes of one part: leaf by leaf, a leaf that holds all that is left and has the least room beyond it
// first, else the one with the most room; within a leaf the fullest nodes first.
func (n *Network) fill(g *Gang, nodes []int, slots []int, level Level) GangVerdict {
	v := GangVerdict{Placed: true, Level: level}
	byLeaf := map[int][]int{}
	var leaves []int
	for _, node := range nodes {
		if slots[node] > 0 {
			l := n.leaf[node]
			if byLeaf[l] == nil {
				leaves = append(leaves, l)
			}
			byLeaf[l] = append(byLeaf[l], node)
		}
	}
	room := map[int]int{}
	for l, ns := range byLeaf {
		for _, node := range ns {
			room[l] += slots[node]
		}
		slices.SortStableFunc(ns, func(a, b int) int { return cmp.Compare(slots[a], slots[b]) })
	}
	txn := n.f.Begin()
	defer txn.Undo()
	for left := g.Members; left > 0; {
		if len(leaves) == 0 {
			return GangVerdict{Reason: Reason{Node: -1, Device: -1, Code: GangIncomplete, Want: int64(g.Members), Have: int64(g.Members - left)}}
		}
		i := pickLeaf(leaves, room, left)
		v.Leaves++
		left -= n.take(txn, g, byLeaf[leaves[i]], slots, left, &v)
		leaves = slices.Delete(leaves, i, i+1)
	}
	return v
}

// pickLeaf chooses the next leaf to fill.
func pickLeaf(leaves []int, room map[int]int, left int) int {
	best := 0
	for i, l := range leaves {
		a, b := room[l], room[leaves[best]]
		switch {
		case a >= left && (b < left || a < b), a < left && b < left && a > b:
			best = i
		}
	}
	return best
}

// take grants members on the nodes of a leaf within the transaction, so that each sees the ones before it.
func (n *Network) take(txn *Txn, g *Gang, nodes []int, slots []int, left int, v *GangVerdict) (taken int) {
	for _, node := range nodes {
		for range slots[node] {
			if taken == left {
				return taken
			}
			r := g.Member
			r.ID = fmt.Sprintf("%s/%d", g.ID, len(v.Placements))
			p, ok := n.f.Fit(&r, node)
			if !ok || txn.Grant(p) != nil {
				break
			}
			v.Placements = append(v.Placements, p)
			taken++
		}
	}
	return taken
}

// GrantAll grants every member or none.
func (t *Txn) GrantAll(v *GangVerdict) error {
	mark := len(t.done)
	for _, p := range v.Placements {
		if err := t.Grant(p); err != nil {
			t.rewind(mark)
			return err
		}
	}
	return nil
}

// rewind takes back the changes after a mark and keeps the transaction open.
func (t *Txn) rewind(mark int) {
	inner := Txn{f: t.f, done: t.done[mark:], open: true}
	inner.Undo()
	t.done = t.done[:mark]
}
