package card

// Sizes of the many-object forms: EXPORT_OBJECTS_TO_FD {fd 0, device 4, maxObjects 8, metadata 10, objects[512]
// 76, num 2124, index 2126} and IMPORT_OBJECTS_FROM_FD {fd 0, parent 4, objects[128] 8, types[128] 520, num
// 648, index 650} (ctrl0000unix.h).
const (
	sizeExportObject  = 24
	sizeExportObjects = 2128
	sizeImportObjects = 652
	maxExported       = 512
	maxImported       = 128
)

// exportControl attaches objects to a descriptor of the caller. EXPORT_OBJECT_TO_FD is {type 0, device 4,
// parent 8, object 12, fd 16, flags 20}.
func exportControl(k *call, cmd uint32, ptr uint64, size uint32) uint32 {
	want := uint32(sizeExportObject)
	if cmd == ctlExportObjects {
		want = sizeExportObjects
	}
	if size != want {
		return stInvalidParams
	}
	p := make([]byte, size)
	if k.who.Mem.ReadAt(p, ptr) != nil {
		return stInvalidAddress
	}
	var fd int32
	var handles []uint32
	base := 0
	if cmd == ctlExportObject {
		fd, handles = int32(u32(p, 16)), []uint32{u32(p, 12)}
	} else {
		n := int(le.Uint16(p[2124:]))
		base = int(le.Uint16(p[2126:]))
		if n > maxExported || base+n > maxExported {
			return stInvalidArg
		}
		fd = int32(u32(p, 0))
		for i := range n {
			handles = append(handles, u32(p, 76+4*i))
		}
	}
	id, ok := k.who.file(fd)
	if !ok {
		return stInvalidArg
	}
	return k.withObject(0, func(cl *client, _ *object) uint32 { return k.c.attach(id, cl, handles, base) })
}

// attach keeps a reference to each object in the file, from slot base on.
func (c *Card) attach(id FileID, cl *client, handles []uint32, base int) uint32 {
	f := c.files[id]
	if f == nil || f.kind != KindCtl {
		return stInvalidArg
	}
	if base != len(f.exports) {
		return stInvalidState
	}
	var add []export
	for _, h := range handles {
		o := cl.objects[h]
		if o == nil || o.mem == nil || o.tsg != nil {
			return stNotFound
		}
		add = append(add, export{class: o.class, mem: o.mem})
	}
	for _, e := range add {
		c.hold(e.mem)
	}
	f.exports = append(f.exports, add...)
	return stOK
}

// importObject is IMPORT_OBJECT_FROM_FD: fd 0, type 4, device 8, parent 12, object 16.
func importObject(k *call, cl *client, _ *object, p []byte) uint32 {
	f := k.c.files[k.named]
	if f == nil || len(f.exports) != 1 {
		return stNotFound
	}
	h, st := k.c.importOne(cl, f.exports[0], u32(p, 12), u32(p, 16))
	if st == stOK {
		put32(p, 16, h)
	}
	return st
}

// importObjects makes an object for each slot asked for; none stays when one fails.
func importObjects(k *call, cl *client, _ *object, p []byte) uint32 {
	f, n, base := k.c.files[k.named], int(le.Uint16(p[648:])), int(le.Uint16(p[650:]))
	if f == nil {
		return stNotFound
	}
	if n > maxImported || base+n > len(f.exports) {
		return stInvalidArg
	}
	var made []*object
	for i := range n {
		h, st := k.c.importOne(cl, f.exports[base+i], u32(p, 4), u32(p, 8+4*i))
		if st != stOK {
			for _, o := range made {
				k.c.freeObject(o)
			}
			return st
		}
		made = append(made, cl.objects[h])
		put32(p, 8+4*i, h)
		p[520+i] = 1 // NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_VIDMEM
	}
	return stOK
}

func (c *Card) importOne(cl *client, e export, parentHandle, want uint32) (uint32, uint32) {
	parent := cl.objects[parentHandle]
	if parent == nil {
		return 0, stInvalidParent
	}
	o, st := cl.insert(parent, want, e.class)
	if st != stOK {
		return 0, st
	}
	o.mem = c.hold(e.mem)
	return o.handle, stOK
}
