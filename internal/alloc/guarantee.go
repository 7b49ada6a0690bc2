package alloc

import (
	"maps"
	"slices"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// TakeBack places as if the grants that takeable accepts were not there, and tells which of them must go for it, by
// ID. It is what makes a tenant's guarantee one (HiveD, OSDI'20): when place looks only at the tenant's own share of
// the cluster, and everything there that is not guaranteed may be taken, then the tenant is answered exactly as in a
// private cluster of that share, whatever others do. Nothing is changed.
func (f *Fleet) TakeBack(place func() GangVerdict, takeable func(*Grant) bool) (v GangVerdict, victims []string) {
	f.WhatIf(func(txn *Txn) {
		var out []*Grant
		for _, id := range slices.Sorted(maps.Keys(f.grants)) {
			if g := f.grants[id]; takeable(g) && txn.Release(id) == nil {
				out = append(out, g)
			}
		}
		if v = place(); !v.Placed || txn.GrantAll(&v) != nil {
			return
		}
		for _, g := range out {
			if txn.Grant(g.Placement) != nil {
				victims = append(victims, g.Request.ID)
			}
		}
	})
	return v, victims
}

// NICs gives each of the cards chosen on a machine a network port of the wanted kind, the nearest first come first
// served, each port once while there are enough: with one port a rail beside each card, a gang's members end up
// rail-aligned. -1 stands for a card that gets none.
func NICs(m *gpu.Machine, cards []int, want gpu.RDMA) []int {
	out := make([]int, len(cards))
	used := make([]bool, len(m.NICs))
	for i, c := range cards {
		best, far, reuse := -1, gpu.CrossSocket, true
		for n, nic := range m.NICs {
			if want != gpu.NoRDMA && nic.RDMA != want {
				continue
			}
			d := m.Devices[c].PCIe.To(nic.PCIe)
			better := best < 0 || reuse && !used[n] || reuse == used[n] && (d < far || d == far && rail(nic, c) && !rail(m.NICs[best], c))
			if better && (best < 0 || reuse || !used[n]) {
				best, far, reuse = n, d, used[n]
			}
		}
		if best >= 0 {
			used[best] = true
		}
		out[i] = best
	}
	return out
}

// rail reports whether a port is on the rail that carries the card's number.
func rail(n gpu.NIC, card int) bool { return int(n.Rail) == card }
