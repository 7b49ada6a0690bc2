package kernel

import (
	"errors"
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// rooted is a file on which a client was made.
type rooted struct{ pid, fd int }

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
	me := rooted{k.process(), k.descriptor}
	if s.level == Strict {
		for _, r := range s.roots {
			if same, err := sys.SameFile(me.pid, me.fd, r.pid, r.fd); err == nil && same && s.holdsClient(r) {
				return s.deny(k, nvidia.StatusInsufficientResources, status, "second client on one file")
			}
		}
	}
	s.roots = append(s.roots, me)
	s.count.continued.Add(1)
	return continueCall
}

// pinned lets an OS descriptor be made in the caller, whose pages it pins. It
// could be turned into the allocation of device memory in flight, so what it
// became is looked at before the object can be used: see vet.
func (s *Session) pinned(k *call, root, parent, h nvidia.Handle, class nvidia.Class) answer {
	if k.wrapped {
		return s.deny(k, nvidia.StatusNotSupported, s.statusOffset(k), "wrapped OS descriptor")
	}
	if s.level == Strict && parent != root && !s.knows(root, parent) {
		return s.deny(k, nvidia.StatusInvalidObjectParent, s.statusOffset(k), "OS descriptor under an object that the ledger does not know")
	}
	o := &object{handle: h, parent: parent, class: class, unvetted: s.level == Strict}
	s.enter(k, root, o)
	s.count.continued.Add(1)
	return continueCall
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

// usable vets an object before its first use. ctl is the file that owns its
// client.
func (s *Session) usable(client, h nvidia.Handle, ctl File) bool {
	s.mu.Lock()
	var o *object
	if c := s.ledger.clients[client]; c != nil {
		o = c.objects[h]
	}
	s.mu.Unlock()
	if o == nil || !o.unvetted {
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
