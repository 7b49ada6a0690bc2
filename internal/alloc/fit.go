package alloc

import (
	"slices"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// ineligible judges what grants cannot change: pool, tier, model, network.
func (f *Fleet) ineligible(r *Request, n int) Code {
	m := &f.machines[n]
	switch {
	case r.Pool != m.Pool:
		return WrongPool
	case r.Tier != m.Tier:
		return WrongTier
	case len(r.Models) > 0 && !slices.Contains(r.Models, f.models[f.model[n]]):
		return WrongModel
	case r.RDMA != gpu.NoRDMA && !slices.ContainsFunc(m.NICs, func(c gpu.NIC) bool { return c.RDMA == r.RDMA }):
		return NoRDMAPort
	case r.cards() > 0 && len(m.Devices) == 0:
		return NoCards
	}
	return Fits
}

// refuseNode judges the machine as a whole, without its cards.
func (f *Fleet) refuseNode(r *Request, n int) Reason {
	why := Reason{Node: n, Device: -1, Code: f.ineligible(r, n)}
	switch {
	case why.Code != Fits:
	case f.cpu[n] < r.CPU:
		why.Code, why.Want, why.Have = LackCPU, int64(r.CPU), int64(f.cpu[n])
	case f.memory[n] < r.Memory:
		why.Code, why.Want, why.Have = LackHostMemory, int64(r.Memory), int64(f.memory[n])
	}
	return why
}

// refuseCard judges one card for one share.
func (f *Fleet) refuseCard(s Share, mode Mode, n, card int) Reason {
	d := int(f.offset[n]) + card
	why := Reason{Node: n, Device: card}
	set := func(c Code, want, have int64) { why.Code, why.Want, why.Have = c, want, have }
	switch {
	case f.health[d] != gpu.Healthy:
		set(CardUnhealthy, 0, 0)
	case f.sealed[d] > 0 || f.profiles[d] != nil:
		set(CardBusy, 0, int64(f.tenants[d]))
	case mode == TimeSharing:
		f.refuseTurn(s, d, set)
	case f.turns[d] > 0 || (s.Whole() || mode == Exclusive) && f.tenants[d] > 0:
		set(CardBusy, 0, int64(f.tenants[d]))
	case f.compute[d] < s.Compute:
		set(LackCompute, int64(s.Compute), int64(f.compute[d]))
	case f.vram[d] < s.Memory:
		set(LackMemory, int64(s.Memory), int64(f.vram[d]))
	case f.codec[d] < s.Codec:
		set(LackCodec, int64(s.Codec), int64(f.codec[d]))
	case f.render[d] < s.Render:
		set(LackRender, int64(s.Render), int64(f.render[d]))
	}
	return why
}

// refuseTurn judges a card for a tenant that takes turns: it must fit alone, and the card must be untouched or
// already serve turns with one to spare.
func (f *Fleet) refuseTurn(s Share, d int, set func(Code, int64, int64)) {
	switch {
	case f.turns[d] == 0 && f.tenants[d] > 0:
		set(CardBusy, 0, int64(f.tenants[d]))
	case f.turns[d] >= MaxTurns:
		set(CardBusy, 1, 0)
	case f.vramCap[d] < s.Memory:
		set(LackMemory, int64(s.Memory), int64(f.vramCap[d]))
	}
}

// cardFits is refuseCard without the reason, for the hot path of plain shares.
func (f *Fleet) cardFits(s *Share, d int) bool {
	return f.compute[d] >= s.Compute && f.vram[d] >= s.Memory && f.codec[d] >= s.Codec && f.render[d] >= s.Render &&
		f.health[d] == gpu.Healthy && f.sealed[d] == 0 && f.turns[d] == 0 && f.profiles[d] == nil && (s.Compute < gpu.Card || f.tenants[d] == 0)
}
