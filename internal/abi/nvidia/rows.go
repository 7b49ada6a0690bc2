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

func (r ControlRow) withPtr(p Ptr) ControlRow {
	r.Ptrs = append(r.Ptrs, p)
	return r
}

// bufOut is a pointer to bytes that the driver fills in, with their count in the word at size.
func bufOut(off, size uint32) Ptr {
	return Ptr{Offset: off, Count: At(size), ElemSize: 1, MaxBytes: maxList, Dir: Out}
}

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
