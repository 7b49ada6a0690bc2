package fusedev

import (
	"context"
	"encoding/json"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

type unixStat = syscall.Stat_t

// uvmSize is the apparent size of nvidia-uvm: it is mapped at offsets equal to addresses, so it reaches to the
// end of the user address space.
const uvmSize = 1 << 48

// root is the directory.
type root struct {
	fs.Inode
	s *Server
}

var _ = (fs.NodeOnAdder)((*root)(nil))

// OnAdd makes the files.
func (r *root) OnAdd(ctx context.Context) {
	reg := func(name string, node fs.InodeEmbedder, ino uint64) {
		child := r.NewPersistentInode(ctx, node, fs.StableAttr{Mode: syscall.S_IFREG, Ino: ino})
		r.AddChild(name, child, true)
	}
	reg(rm.DeviceName(card.KindCtl), &device{s: r.s, kind: card.KindCtl}, 2)
	reg(rm.DeviceName(card.KindGPU), &device{s: r.s, kind: card.KindGPU}, 3)
	reg(rm.DeviceName(card.KindUVM), &device{s: r.s, kind: card.KindUVM}, 4)
	reg(VersionFile, &text{get: func() []byte { return []byte(r.s.Card.Config().Version + "\n") }}, 5)
	reg(MarkerFile, &text{get: func() []byte { return []byte(r.s.Card.Config().Name + "\n") }}, 6)
	reg(StatsFile, &text{get: r.s.stats}, 7)
}

func (s *Server) stats() []byte {
	s.clock.sync()
	b, err := json.Marshal(s.Card.Stats())
	if err != nil {
		return nil // a struct of numbers always encodes
	}
	return append(b, '\n')
}

// text is a file whose content is made when it is opened.
type text struct {
	fs.Inode
	get func() []byte
}

var (
	_ = (fs.NodeOpener)((*text)(nil))
	_ = (fs.NodeGetattrer)((*text)(nil))
)

// Open implements fs.NodeOpener.
func (t *text) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return &content{t.get()}, fuse.FOPEN_DIRECT_IO, 0
}

// Getattr implements fs.NodeGetattrer.
func (t *text) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o444
	return 0
}

type content struct{ b []byte }

var _ = (fs.FileReader)((*content)(nil))

// Read implements fs.FileReader.
func (c *content) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if off < 0 || off >= int64(len(c.b)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(c.b[off:min(int64(len(c.b)), off+int64(len(dest)))]), 0
}

// device is one device file.
type device struct {
	fs.Inode
	s    *Server
	kind card.Kind
}

var (
	_ = (fs.NodeOpener)((*device)(nil))
	_ = (fs.NodeGetattrer)((*device)(nil))
	_ = (fs.NodeSetattrer)((*device)(nil))
)

// Open implements fs.NodeOpener: each open is a file of the card.
func (d *device) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return &handle{s: d.s, id: d.s.Card.Open(d.kind), kind: d.kind}, 0, 0
}

// Getattr implements fs.NodeGetattrer.
func (d *device) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o666
	if d.kind == card.KindUVM {
		out.Size = uvmSize
	}
	return 0
}

// Setattr implements fs.NodeSetattrer: writes through a mapping set times, which nobody reads.
func (d *device) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return d.Getattr(ctx, f, out)
}

// handle is one open file of the card. The kernel releases it at the last close of the last duplicate.
type handle struct {
	s    *Server
	id   card.FileID
	kind card.Kind
}

var (
	_ = (fs.FileReleaser)((*handle)(nil))
	_ = (fs.FileIoctler)((*handle)(nil))
	_ = (fs.FileReader)((*handle)(nil))
	_ = (fs.FileWriter)((*handle)(nil))
)

// Release implements fs.FileReleaser.
func (h *handle) Release(context.Context) syscall.Errno {
	h.s.clock.sync()
	h.s.Card.CloseFile(h.id)
	h.s.clock.changed()
	return 0
}

// Read implements fs.FileReader: pages of a mapping begin as zeros; reading a device file is an error.
func (h *handle) Read(_ context.Context, dest []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	if h.kind != card.KindUVM {
		return nil, syscall.EINVAL
	}
	clear(dest)
	return fuse.ReadResultData(dest), 0
}

// Write implements fs.FileWriter: the kernel writes mapped pages back, and nobody reads them again.
func (h *handle) Write(_ context.Context, data []byte, _ int64) (uint32, syscall.Errno) {
	if h.kind != card.KindUVM {
		return 0, syscall.EINVAL
	}
	return uint32(len(data)), 0
}
