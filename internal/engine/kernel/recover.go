package kernel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// lostWindow is how many notification ids after the last noted one may have
// been taken by a predecessor that died before it could note them. Ids count
// up by one and one thread serves a listener, so there is at most one.
const lostWindow = 4

// recover opens the journal and, if it has content, continues the session.
func (s *Session) recover(path string) error {
	j, list, last, err := openJournal(path)
	if err != nil {
		return err
	}
	s.journal = j
	if len(list) == 0 && last.stage == 0 {
		return nil
	}
	files := map[int]entry{}
	for _, e := range list {
		s.ledger.replay(e)
		switch e.op {
		case opHeld:
			files[int(e.n[0])] = e
		case opReleased:
			delete(files, int(e.n[0]))
		}
	}
	s.readopt(files)
	s.lost = &last
	return nil
}

// Thaw enables every channel that the journal of a tenant mentions, for one
// that cannot be taken over again: if both halves of an agent die at once,
// nobody else ends a freeze. A channel that is gone is passed over.
func (e *Engine) Thaw(c *Card, id string) error {
	if e.opt.StateDir == "" {
		return nil
	}
	f, err := os.Open(filepath.Join(e.opt.StateDir, id+".journal"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it never got as far
	}
	if err != nil {
		return fmt.Errorf("thaw tenant %s: %w", id, err)
	}
	defer f.Close()
	entries, _, _, err := readJournal(f)
	if err != nil {
		return fmt.Errorf("thaw tenant %s: %w", id, err)
	}
	l := newLedger(0)
	for _, en := range entries {
		l.replay(en)
	}
	var list []nvidia.ChannelRef
	for _, h := range slices.Sorted(maps.Keys(l.clients)) {
		for oh, o := range l.clients[h].objects {
			if o.class.IsChannel() {
				list = append(list, nvidia.ChannelRef{Client: h, Channel: oh})
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.control.disable(false, list); err != nil {
		return fmt.Errorf("thaw tenant %s: %w", id, err)
	}
	return nil
}

// resume serves the call that a predecessor took and did not answer. If the
// driver may have executed it, it is served in a way that a second execution
// ends like the first. One that was taken and not even noted (the two happen
// within a microsecond) gets EINTR.
func (s *Session) resume() error {
	if s.lost == nil {
		return nil
	}
	last := *s.lost
	s.lost = nil
	fd := int(s.listener.Fd())
	for id := last.call.ID + 1; id <= last.call.ID+lostWindow; id++ {
		if sys.Valid(fd, id) {
			s.log.Warn("call lost by a crash is interrupted", "tenant", s.tenant)
			_ = sys.Answer(fd, id, 0, unix.EINTR)
		}
	}
	if !sys.Valid(fd, last.call.ID) {
		return nil
	}
	s.resumed, s.again = true, last.stage == stageIssued
	defer func() { s.resumed, s.again = false, false }()
	return s.answer(last.call)
}

// undo frees what a first execution of an allocation may have made under the
// handle that the caller chose, so that the second does not find it taken.
func (s *Session) undo(k *call) {
	a, err := nvidia.DecodeAlloc(k.arg)
	if err != nil || a.New == 0 {
		return
	}
	arg, _, ok := s.arena.Take(nvidia.SizeFree)
	if !ok || (nvidia.Free{Root: a.Root, Parent: a.Parent, Object: a.New}).Put(arg) != nil {
		return
	}
	_, _ = s.driver.Ioctl(k.file, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), arg)
}

// repeated turns the status with which the driver refuses the second execution
// of a call whose first one succeeded into success.
func repeated(k *call) {
	off, done := 0, []nvidia.Status(nil)
	switch {
	case k.file.Kind == UVMFile && k.cmd == nvidia.UVMCmdCreateExternalRange:
		off, done = 16, []nvidia.Status{nvidia.StatusUVMAddressInUse}
	case k.file.Kind == UVMFile && k.cmd == nvidia.UVMCmdFree:
		off, done = 16, []nvidia.Status{nvidia.StatusInvalidAddress, nvidia.StatusObjectNotFound}
	case k.file.Kind == UVMFile && k.cmd == nvidia.UVMCmdUnmapExternal:
		off, done = 32, []nvidia.Status{nvidia.StatusInvalidAddress, nvidia.StatusObjectNotFound}
	case k.file.Kind != UVMFile && k.nr() == nvidia.EscFree:
		off, done = freeStatus, []nvidia.Status{nvidia.StatusInvalidObjectHandle, nvidia.StatusObjectNotFound, nvidia.StatusInvalidObjectOld, nvidia.StatusInvalidClient}
	default:
		return
	}
	if st, err := nvidia.U32At(k.arg, uint32(off)); err == nil && slices.Contains(done, nvidia.Status(st)) {
		_ = nvidia.PutU32At(k.arg, uint32(off), uint32(nvidia.StatusOK))
	}
}

// readopt takes hold of the files of a rebuilt ledger again and puts its
// groups back under the governor; what is not found again is refunded.
func (s *Session) readopt(files map[int]entry) {
	for _, id := range slices.Sorted(maps.Keys(files)) {
		s.lastHeld = max(s.lastHeld, id)
		e := files[id]
		h := &held{id: id, pid: int(e.n[2]), fd: int(e.n[3])}
		if err := s.retake(h, FileKind(e.n[1])); err != nil {
			s.log.Warn("file of a recovered tenant is gone", "tenant", s.tenant, "pid", h.pid, "err", err)
			s.ledger.dropHeld(id)
			s.record(entryReleased(id))
			continue
		}
		s.held = append(s.held, h)
		if err := s.follow(h.pid); err != nil {
			s.log.Warn("cannot follow a process", "tenant", s.tenant, "pid", h.pid, "err", err)
		}
	}
	for pid := range s.ledger.mapped {
		s.inspect(pid)
		if s.follow(pid) != nil {
			s.ledger.dropProcess(pid)
		}
	}
	s.card.mu.Lock()
	defer s.card.mu.Unlock()
	for _, h := range slices.Sorted(maps.Keys(s.ledger.clients)) {
		s.readoptGroups(s.ledger.clients[h])
	}
}

// retake duplicates a held file anew. The number may lead elsewhere by now:
// then the process's other descriptors are tried, and a control file counts
// only if the driver accepts a client of ours on it.
func (s *Session) retake(h *held, kind FileKind) error {
	pidfd, err := sys.OpenProcess(h.pid)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	numbers := []int{h.fd}
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(h.pid) + "/fd")
	if err != nil {
		return fmt.Errorf("descriptors of process %d: %w", h.pid, err)
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != h.fd {
			numbers = append(numbers, n)
		}
	}
	for _, n := range numbers {
		fd, err := sys.GetFile(pidfd, n)
		if err != nil {
			continue
		}
		f, err := s.files.identify(fd)
		if err == nil && f.Kind == kind && s.owns(f, h.id) {
			h.file, h.fd = f, n
			return nil
		}
		unix.Close(fd)
	}
	return errWrongFile
}

// owns asks the driver whether the clients booked on a held file are really
// on f. A unified-memory file has none, and a control file may have none yet.
func (s *Session) owns(f File, id int) bool {
	for _, c := range s.ledger.clients {
		if c.held != id {
			continue
		}
		params := make([]byte, attachedIDsBytes)
		err := s.card.control.controlOn(f, c.handle, c.handle, ctrlAttachedIDs, params)
		var st *StatusError
		return !errors.As(err, &st) || st.Status != nvidia.StatusInvalidClient
	}
	return true
}

// NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS (ctrl0000gpu.h): harmless, and refused
// for a client that is not the file's.
const (
	ctrlAttachedIDs  = uint32(0x201)
	attachedIDsBytes = 128
)

// readoptGroups puts one client's TSGs and channels back. The card's lock is
// held. Frozen channels were thawed when the card was opened or will be by the
// governor's first step.
func (s *Session) readoptGroups(c *client) {
	for _, h := range slices.Sorted(maps.Keys(c.objects)) {
		o := c.objects[h]
		if o.group == nil {
			continue
		}
		o.group.client = c.handle
		if o.class.IsChannel() && !o.group.bare {
			continue // joined to its TSG below
		}
		o.group.handle = o.handle
		if o.group.bare {
			o.group.channels = []nvidia.Handle{o.handle}
		}
		s.card.add(s, o.group)
	}
	var all []nvidia.ChannelRef
	for _, h := range slices.Sorted(maps.Keys(c.objects)) {
		o := c.objects[h]
		if !o.class.IsChannel() || o.group == nil {
			continue
		}
		if p := c.objects[o.parent]; !o.group.bare && p != nil && p.group != nil {
			o.group = p.group
			o.group.channels = append(o.group.channels, o.handle)
		}
		all = append(all, nvidia.ChannelRef{Client: c.handle, Channel: o.handle})
	}
	if !s.card.gov.Frozen(s.tenant) {
		if _, err := s.card.control.disable(false, all); err != nil {
			s.log.Warn("thaw after recovery", "tenant", s.tenant, "err", err)
		}
	}
}

// entries returns the shortest journal with the session's state.
func (s *Session) entries() []entry {
	var out []entry
	for _, h := range s.held {
		out = append(out, entryHeld(h))
	}
	return append(out, s.ledger.entries()...)
}

// entries returns the shortest journal with the ledger's state.
func (l *ledger) entries() []entry {
	var out []entry
	first := map[*memory][2]nvidia.Handle{}
	for _, h := range slices.Sorted(maps.Keys(l.clients)) {
		c := l.clients[h]
		out = append(out, entryClient(c))
	}
	for _, h := range slices.Sorted(maps.Keys(l.clients)) {
		c := l.clients[h]
		for _, oh := range c.order() {
			o := c.objects[oh]
			if src, ok := first[o.mem]; ok && o.mem != nil {
				out = append(out, entryDup(nvidia.Dup{Dst: h, Parent: o.parent, Object: oh, SrcClient: src[0], SrcObject: src[1]}))
				continue
			}
			if o.mem != nil {
				first[o.mem] = [2]nvidia.Handle{h, oh}
			}
			out = append(out, entryObject(c, o))
		}
	}
	return append(out, l.rangeEntries(first)...)
}

// rangeEntries lists mappings, exports and managed ranges. Memory whose object
// was freed is carried by a stand-in object that is freed again after them.
func (l *ledger) rangeEntries(first map[*memory][2]nvidia.Handle) []entry {
	var out []entry
	standIn := &client{handle: standInClient}
	source := func(m *memory) [2]nvidia.Handle {
		src, ok := first[m]
		if !ok {
			if len(out) == 0 || out[0].op != opClient {
				out = append([]entry{entryClient(standIn)}, out...)
			}
			src = [2]nvidia.Handle{standInClient, nvidia.Handle(len(first) + 2)}
			first[m] = src
			out = append(out, entryObject(standIn, &object{handle: src[1], mem: m}))
		}
		return src
	}
	for k, x := range l.external {
		for gpu, list := range x.mapped {
			for _, m := range list {
				src := source(m)
				out = append(out, entryMap(k, nvidia.UVMMapExternal{Length: x.length, Client: src[0], Memory: src[1]}, gpu))
			}
		}
	}
	for id, list := range l.exported {
		for _, m := range list {
			src := source(m)
			out = append(out, entryExport(id, src[0], src[1]))
		}
	}
	if len(out) > 0 && out[0].op == opClient {
		out = append(out, entryFree(standInClient, standInClient))
	}
	managed := maps.Clone(l.mapped)
	for _, p := range l.pending {
		managed[p.pid] += p.bytes
	}
	for pid, n := range managed {
		out = append(out, entryManaged(pid, n))
	}
	return out
}

// standInClient is a handle the driver never gives out: its client handles
// start at 0xc1d00000.
const standInClient nvidia.Handle = 1

// order lists a client's objects parents first.
func (c *client) order() []nvidia.Handle {
	var out []nvidia.Handle
	done := map[nvidia.Handle]bool{}
	var visit func(h nvidia.Handle, depth int)
	visit = func(h nvidia.Handle, depth int) {
		o := c.objects[h]
		if o == nil || done[h] || depth > len(c.objects) {
			return
		}
		visit(o.parent, depth+1)
		if !done[h] {
			done[h] = true
			out = append(out, h)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(c.objects)) {
		visit(h, 0)
	}
	return out
}
