package nvidia

// Constructors of rows, so that a table reads as one row a line.

func plain(name string, cmd, size uint32) ControlRow {
	return ControlRow{Name: name, Cmd: cmd, Size: size, Verdict: Plain}
}

func deep(name string, cmd, size uint32, ptrs ...Ptr) ControlRow {
	return ControlRow{Name: name, Cmd: cmd, Size: size, Verdict: Deep, Ptrs: ptrs}
}

func judge(name string, cmd, size uint32) ControlRow {
	return ControlRow{Name: name, Cmd: cmd, Size: size, Verdict: Judge}
}

func refuse(name string, cmd uint32, s Status) ControlRow {
	return ControlRow{Name: name, Cmd: cmd, MaxSize: MaxParamsSize, Verdict: Refuse, Refusal: s}
}

func (r ControlRow) withFD(off uint32, kind FDKind) ControlRow {
	r.FDs = append(r.FDs, FD{Offset: off, Kind: kind})
	return r
}

func (r ControlRow) withClients(offs ...uint32) ControlRow {
	r.Clients = offs
	return r
}

func (r ControlRow) withPtr(p Ptr) ControlRow {
	r.Ptrs = append(r.Ptrs, p)
	return r
}

// bufOut is a pointer to bytes that the driver fills in, with their count in the word at size.
func bufOut(off, size uint32) Ptr {
	return Ptr{Offset: off, Count: At(size), ElemSize: 1, MaxBytes: maxList, Dir: Out}
}

// list is a pointer at 8 to elements of a size that the driver reads and fills in, with their count at 0: the
// shape of the info and class-list calls.
func list(elem uint32) Ptr { return listAt(8, 0, elem, InOut) }

func listAt(off, count, elem uint32, d Dir) Ptr {
	return Ptr{Offset: off, Count: At(count), ElemSize: elem, MaxBytes: maxList, Dir: d}
}

// handles is a pointer to handles that the driver only reads.
func handles(off, count uint32) Ptr { return listAt(off, count, 4, In) }

func (p Ptr) ofClients() Ptr {
	p.Clients = true
	return p
}

// matrixOut is a pointer to one word for each pair of the GPUs that the word at count counts.
func matrixOut(off, count uint32) Ptr {
	return Ptr{Offset: off, Count: AtSquared(count), ElemSize: 4, MaxBytes: maxList, Dir: Out}
}

// unused is a pointer that the driver never follows.
func unused(off uint32) Ptr { return Ptr{Offset: off} }

// class is a class whose params hold no pointer. sizes lists what the params may be.
func class(kind ClassKind, name string, c Class, sizes ...uint32) ClassRow {
	return ClassRow{Name: name, Class: c, Kind: kind, Sizes: sizes, Verdict: Plain}
}

func (r ClassRow) as(v Verdict) ClassRow {
	r.Verdict = v
	return r
}

func (r ClassRow) vram() ClassRow {
	r.VRAM = true
	return r
}

func (r ClassRow) withFD(off uint32, kind FDKind) ClassRow {
	r.FDs = append(r.FDs, FD{Offset: off, Kind: kind})
	return r
}

func (r ClassRow) withClients(offs ...uint32) ClassRow {
	r.Clients = offs
	return r
}

func refuseClass(name string, c Class, s Status) ClassRow {
	return ClassRow{Name: name, Class: c, Sizes: []uint32{0}, Verdict: Refuse, Refusal: s}
}

func uvm(v Verdict, name string, cmd, size uint32, status int) UVMRow {
	return UVMRow{Name: name, Cmd: cmd, Size: size, Verdict: v, StatusOffset: status}
}

func (r UVMRow) withFD(off uint32, kind FDKind) UVMRow {
	r.FDs = append(r.FDs, FD{Offset: off, Kind: kind})
	return r
}

func (r UVMRow) withClients(offs ...uint32) UVMRow {
	r.Clients = offs
	return r
}

func refuseUVM(name string, cmd, size uint32, status int) UVMRow {
	return UVMRow{Name: name, Cmd: cmd, Size: size, Verdict: Refuse, StatusOffset: status, Refusal: StatusNotSupported}
}
