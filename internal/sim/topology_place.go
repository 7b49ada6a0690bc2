package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// leafHosts is the size of a full leaf: gangs of 2 to that many machines demand one.
const leafHosts = 8

// gang is the request of a job.
func (j *fabricJob) gang() *alloc.Gang {
	farthest := alloc.Anyplace
	if j.hosts >= 2 && j.hosts <= leafHosts {
		farthest = alloc.OneLeaf
	}
	class := alloc.Online
	if j.opportunistic {
		class = alloc.Offline
	}
	return &alloc.Gang{Farthest: farthest, ID: fmt.Sprintf("g%d.%d", j.id, j.epoch), Members: j.hosts,
		Member: alloc.Request{Class: class, Count: j.cards, Share: alloc.Share{Compute: gpu.Card}}}
}

// placeGuaranteed places as if no opportunistic gang were there, and tells whose members must go. Under penstock the
// nodes of the tenant's share are used alone, so that what the tenant sees is its private cluster: no sharing anomaly
// can arise. The baselines place anywhere, with only the number of cards limited.
func (r *fabric) placeGuaranteed(j *fabricJob) (alloc.GangVerdict, []string) {
	var own func(int) bool
	if r.policy == "penstock" {
		own = func(n int) bool { return r.owner[n] == j.tenant }
	}
	return r.f.TakeBack(func() alloc.GangVerdict { return r.place(j, own) },
		func(g *alloc.Grant) bool { return g.Request.Class == alloc.Offline })
}

// evict stops the gangs that victims belong to, whole gangs only, and puts them back in the queue, in their place by
// arrival. Their work is lost.
func (r *fabric) evict(victims []string) error {
	for _, member := range victims {
		var id, epoch, number int
		if _, err := fmt.Sscanf(member, "g%d.%d/%d", &id, &epoch, &number); err != nil {
			return fmt.Errorf("victim %q is no member of a gang: %w", member, err)
		}
		o, ok := r.running[id]
		if !ok {
			continue // went with another of its members
		}
		if err := r.stop(o); err != nil {
			return err
		}
		o.epoch++
		r.res.Preempted++
		at, _ := slices.BinarySearchFunc(r.queue, o.id, func(q *fabricJob, id int) int { return cmp.Compare(q.id, id) })
		r.queue = slices.Insert(r.queue, at, o)
	}
	return nil
}

// place finds room by the run's policy among the allowed nodes.
func (r *fabric) place(j *fabricJob, allowed func(int) bool) alloc.GangVerdict {
	g := j.gang()
	switch r.policy {
	case "random":
		return r.placeListed(g, r.rng.Perm(r.f.Nodes()))
	case "packing":
		nodes := make([]int, r.f.Nodes())
		for i := range nodes {
			nodes[i] = i
		}
		slices.SortStableFunc(nodes, func(a, b int) int { return cmp.Compare(free(r.f, a), free(r.f, b)) })
		return r.placeListed(g, nodes)
	case "buddy":
		return r.placeBuddy(g)
	}
	return r.net.Place(g, allowed)
}

func free(f *alloc.Fleet, n int) (sum int) {
	for _, c := range f.FreeCards(n) {
		sum += int(c)
	}
	return sum
}

// placeListed fills nodes in a given order, blind to the network.
func (r *fabric) placeListed(g *alloc.Gang, nodes []int) (v alloc.GangVerdict) {
	leaves := map[gpu.Position]bool{}
	r.f.WhatIf(func(txn *alloc.Txn) {
		for _, n := range nodes {
			for len(v.Placements) < g.Members {
				req := g.Member
				req.ID = fmt.Sprintf("%s/%d", g.ID, len(v.Placements))
				p, ok := r.f.Fit(&req, n)
				if !ok || txn.Grant(p) != nil {
					break
				}
				v.Placements = append(v.Placements, p)
				leaves[r.f.Machine(n).Position] = true
			}
		}
	})
	v.Placed, v.Leaves = len(v.Placements) == g.Members, len(leaves)
	return v
}

// placeBuddy gives a gang an aligned cell of a power of two of hosts in one leaf, the leaf with the smallest such cell
// that is free; larger gangs get whole leaves' cells one after another.
func (r *fabric) placeBuddy(g *alloc.Gang) alloc.GangVerdict {
	byLeaf := map[gpu.Position][]int{}
	var order []gpu.Position
	for n := range r.f.Nodes() {
		p := r.f.Machine(n).Position
		if byLeaf[p] == nil {
			order = append(order, p)
		}
		byLeaf[p] = append(byLeaf[p], n)
	}
	fits := func(n int) bool { _, ok := r.f.Fit(&g.Member, n); return ok }
	var nodes []int
	for left := g.Members; left > 0; {
		size := min(left, 8)
		best, bestRoom := []int(nil), 0
		for _, p := range order {
			room := 0
			for _, n := range byLeaf[p] {
				if fits(n) && !slices.Contains(nodes, n) {
					room++
				}
			}
			for at := 0; at+size <= len(byLeaf[p]); at += size {
				cell := byLeaf[p][at : at+size]
				ok := !slices.ContainsFunc(cell, func(n int) bool { return !fits(n) || slices.Contains(nodes, n) })
				if ok && (best == nil || room < bestRoom) {
					best, bestRoom = cell, room
				}
			}
		}
		if best == nil {
			return alloc.GangVerdict{}
		}
		nodes = append(nodes, best...)
		left -= size
	}
	return r.placeListed(g, nodes)
}
