package kernel

import (
	"errors"
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// root judges the allocation of a driver client, which must run in the
// caller: the driver records the calling process as the client's owner.
//
// A racing thread could turn the call into the allocation of something else,
// but the driver accepts a client's handle only from the file that made the
// client. On a file without a client nothing else can be allocated, so strict
// lets one client be made on each file.
func (s *Session) root(k *call, a nvidia.Alloc, status int) answer {
	if k.wrapped {
		return s.deny(k, nvidia.StatusNotSupported, status, "wrapped client allocation")
	}
	if k.file.Kind != ControlFile {
		return s.deny(k, nvidia.StatusInvalidClient, status, "client on a card's file")
	}
	if why := s.bookRoot(k); why != "" {
		return s.deny(k, nvidia.StatusInsufficientResources, status, why)
	}
	return s.letRun()
}

// bookRoot keeps the file that a client is about to be made on, or says why
// there must not be one.
func (s *Session) bookRoot(k *call) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.level == Strict && s.holding(k.file) != nil && !s.resumed {
		return "second client on one file"
	}
	if err := s.slackFits(); err != nil {
		return "client: " + err.Error()
	}
	if _, err := s.hold(k); err != nil {
		return "client: " + err.Error()
	}
	s.suspicious()
	return ""
}

// pinned lets an OS descriptor be made in the caller, whose pages it pins. It
// could be turned into the allocation of device memory in flight, so what it
// became is looked at before the object can be used: see vet.
func (s *Session) pinned(k *call, root, parent, h nvidia.Handle, class nvidia.Class) answer {
	if k.wrapped {
		return s.deny(k, nvidia.StatusNotSupported, s.statusOffset(k), "wrapped OS descriptor")
	}
	if why := s.bookPinned(root, parent, h, class); why != "" {
		return s.deny(k, nvidia.StatusInvalidObjectParent, s.statusOffset(k), "OS descriptor: "+why)
	}
	return s.letRun()
}

// bookPinned books an OS descriptor before the driver has answered, so it must
// not touch what is booked already; or it says why there must not be one.
func (s *Session) bookPinned(root, parent, h nvidia.Handle, class nvidia.Class) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ledger.clients[root]
	switch {
	case c == nil || c.objects[parent] == nil:
		return "not under an object of the tenant's"
	case (c.objects[h] != nil && !s.resumed) || h == root || h == 0:
		return "its handle is in use"
	case s.ledger.count >= maxObjects:
		return errTooMany.Error()
	}
	if err := s.slackFits(); err != nil {
		return err.Error()
	}
	o := &object{handle: h, parent: parent, class: class, unvetted: s.level == Strict}
	s.ledger.addObject(c, o)
	s.record(entryObject(c, o))
	s.suspicious()
	return ""
}

// slackFits reports whether what a racing thread could take unproven, while a
// call runs in the tenant, would still be within the limit. The lock is held.
func (s *Session) slackFits() error {
	if s.level != Strict {
		return nil
	}
	return s.ledger.room(watchSlack)
}

func (s *Session) statusOffset(k *call) int {
	switch k.nr() {
	case nvidia.EscVidHeap:
		return heapStatus
	case nvidia.EscAllocMemory:
		return memoryStatus
	}
	if len(k.arg) < nvidia.SizeAlloc64 {
		return allocStatus32
	}
	return allocStatus48
}

// NV0041_CTRL_CMD_GET_SURFACE_INFO (ctrl0041.h) says, among other things, in
// which memory an object lies: an index and a value for each question, the
// list behind a pointer at 8 of the parameters.
const (
	ctrlSurfaceInfo  uint32 = 0x410110
	surfaceInfoBytes        = 16
	surfaceInfoList         = 8
	surfaceInfoItem         = 8
	surfaceAddrSpace uint32 = 9
	addrSpaceSysmem  uint32 = 1 // NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE_SYSMEM
)

// vet looks at where an OS descriptor's memory lies before its first use. It
// reports false for one that turned out not to be system memory, which only a
// racing thread can bring about, and for one that the driver does not know.
func (s *Session) vet(client nvidia.Handle, o *object, ctl File) bool {
	params, at, ok1 := s.arena.Take(surfaceInfoBytes)
	item, itemAt, ok2 := s.arena.Take(surfaceInfoItem)
	arg, _, ok3 := s.arena.Take(nvidia.SizeControl)
	if !ok1 || !ok2 || !ok3 {
		return false
	}
	c := nvidia.Control{Client: client, Object: o.handle, Cmd: ctrlSurfaceInfo, Params: at, ParamsSize: surfaceInfoBytes}
	err := errors.Join(
		nvidia.PutU32At(params, 0, 1), nvidia.PutU64At(params, surfaceInfoList, itemAt),
		nvidia.PutU32At(item, 0, surfaceAddrSpace), c.Put(arg))
	if err != nil {
		return false
	}
	if _, err := s.driver.Ioctl(ctl, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), arg); err != nil {
		return false
	}
	done, err := nvidia.DecodeControl(arg)
	if err != nil || done.Status != nvidia.StatusOK {
		s.log.Info("object made in the caller cannot be looked at", "tenant", s.tenant, "object", uint32(o.handle), "status", done.Status)
		return false
	}
	where, err := nvidia.U32At(item, 4)
	if err != nil || where != addrSpaceSysmem {
		s.violation(fmt.Sprintf("client %#x: OS descriptor %#x was turned into other memory (%d) by another thread", uint32(client), uint32(o.handle), where))
		return false
	}
	return true
}

// usable reports whether the tenant may use an object: one that it made
// through the supervisor, and that is what it was made as. ctl is a file that
// owns its client.
func (s *Session) usable(client, h nvidia.Handle, ctl File) bool {
	s.mu.Lock()
	var o *object
	c := s.ledger.clients[client]
	if c != nil {
		o = c.objects[h]
	}
	s.mu.Unlock()
	if o == nil {
		return c != nil && h == client
	}
	if !o.unvetted {
		return true
	}
	if !s.vet(client, o, ctl) {
		return false
	}
	s.mu.Lock()
	o.unvetted = false
	s.mu.Unlock()
	return true
}
