package nvidia

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func tables(t *testing.T) []*Table {
	t.Helper()
	var ts []*Table
	for i := range lines() {
		ts = append(ts, build(lines()[:i+1]))
	}
	return ts
}

// golden is one row of testdata/sizes.txt: what the headers say for each line.
type golden struct {
	kind   string
	number uint32
	name   string
	sizes  map[string]string
}

func readGolden(t *testing.T) []golden {
	t.Helper()
	f, err := os.Open("testdata/sizes.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var (
		rows   []golden
		header []string
	)
	for s := bufio.NewScanner(f); s.Scan(); {
		cols := strings.Fields(s.Text())
		switch {
		case strings.HasPrefix(s.Text(), "#"):
		case header == nil:
			header = cols
		default:
			n, err := strconv.ParseUint(cols[1], 0, 32)
			if err != nil || len(cols) != len(header) {
				t.Fatalf("bad golden row %q", s.Text())
			}
			g := golden{cols[0], uint32(n), cols[2], map[string]string{}}
			for i, l := range header[3:] {
				g.sizes[l] = cols[3+i]
			}
			rows = append(rows, g)
		}
	}
	return rows
}

func joinSizes(sizes []uint32) string {
	s := make([]string, len(sizes))
	for i, n := range sizes {
		s[i] = strconv.FormatUint(uint64(n), 10)
	}
	return strings.Join(s, ",")
}

func TestGoldenSizes(t *testing.T) {
	rows := readGolden(t)
	if len(rows) < 500 {
		t.Fatalf("only %d golden rows", len(rows))
	}
	for _, tab := range tables(t) {
		seen := map[string]bool{}
		for _, g := range rows {
			seen[fmt.Sprint(g.kind, g.number)] = true
			want, got, have := g.sizes[tab.Line], "", false
			switch g.kind {
			case "control":
				r, ok := tab.controls[g.number]
				got, have = fmt.Sprint(r.Size), ok && r.Verdict != Refuse
			case "class":
				r, ok := tab.Class(Class(g.number))
				got, have = joinSizes(r.Sizes), ok && r.Verdict != Refuse
			case "escape":
				r, ok := tab.EscapeNr(uint8(g.number))
				got, have = joinSizes(r.Sizes), ok && r.Sizes != nil
			case "uvm":
				r, ok := tab.UVM(g.number)
				got, have = fmt.Sprintf("%d@%d", r.Size, r.StatusOffset), ok
			}
			if have && got != want {
				t.Errorf("%s %s %#x %s: row says %s, headers say %s", tab.Line, g.kind, g.number, g.name, got, want)
			}
		}
		for _, r := range tab.Controls() {
			// One control is unnamed in the headers; its size was seen on the wire.
			if r.Verdict != Refuse && !seen[fmt.Sprint("control", r.Cmd)] && r.Cmd != 0x80028b {
				t.Errorf("%s: control %#x %s has no golden size", tab.Line, r.Cmd, r.Name)
			}
		}
		for _, r := range tab.Classes() {
			if r.Class == 0x73 || r.Class == 0x9072 { // display classes, kept for headless EGL's queries
				continue
			}
			if r.Verdict != Refuse && !seen[fmt.Sprint("class", uint32(r.Class))] {
				t.Errorf("%s: class %#x %s has no golden size", tab.Line, r.Class, r.Name)
			}
		}
	}
}

// The places where a driver line differs, spelled out.
func TestLineDifferences(t *testing.T) {
	type want struct {
		dmabuf, mapDma, channel, fbInfo, schedule, vaspace, p2p, uvmFree uint32
	}
	for line, w := range map[string]want{
		"550": {2600, 56, 360, 444, 2, 48, 72, 24},
		"570": {2608, 56, 368, 460, 2, 48, 72, 24},
		"575": {2608, 56, 368, 460, 3, 48, 72, 24},
		"580": {2608, 64, 368, 1028, 3, 56, 72, 24},
		"590": {2608, 64, 368, 1028, 3, 56, 88, 16},
		"595": {2608, 64, 368, 1028, 3, 56, 88, 16},
	} {
		tab := Nearest(line + ".999")
		if tab.Line != line {
			t.Fatalf("Nearest(%s.999) is line %s", line, tab.Line)
		}
		dmabuf, _ := tab.EscapeNr(EscExportDmabuf)
		mapDma, _ := tab.EscapeNr(EscMapMemoryDma)
		channel, _ := tab.Class(ClassChannelHopper)
		fb, _ := tab.Control(CtrlFBGetInfoV2)
		sched, _ := tab.Control(CtrlTSGSchedule)
		vas, _ := tab.Class(ClassVASpace)
		p2p, _ := tab.Class(0x503b)
		free, _ := tab.UVM(UVMCmdFree)
		got := want{dmabuf.Sizes[0], mapDma.Sizes[0], channel.ParamsSize(), fb.Size, sched.Size, vas.ParamsSize(), p2p.ParamsSize(), free.Size}
		if got != w {
			t.Errorf("%s: got %+v, want %+v", line, got, w)
		}
	}
}

// pointersFit checks that pointers and fds lie inside a struct and that no two fields overlap.
func pointersFit(t *testing.T, what string, size uint32, ptrs []Ptr, fds []FD, clients []uint32) {
	t.Helper()
	type span struct{ off, end uint32 }
	var spans []span
	for _, p := range ptrs {
		spans = append(spans, span{p.Offset, p.Offset + 8})
		if p.Offset%8 != 0 {
			t.Errorf("%s: pointer at %d is not aligned", what, p.Offset)
		}
		if p.MaxBytes != 0 && (p.ElemSize == 0 || p.Dir == 0) {
			t.Errorf("%s: pointer at %d has no element size or direction", what, p.Offset)
		}
		if !p.Count.Const && p.MaxBytes != 0 && p.Count.Offset+4 > size {
			t.Errorf("%s: count at %d outside %d bytes", what, p.Count.Offset, size)
		}
		if p.MaxBytes > MaxParamsSize {
			t.Errorf("%s: pointer at %d may carry %d bytes", what, p.Offset, p.MaxBytes)
		}
	}
	for _, f := range fds {
		spans = append(spans, span{f.Offset, f.Offset + 4})
		if f.Kind == 0 {
			t.Errorf("%s: fd at %d has no kind", what, f.Offset)
		}
	}
	for _, c := range clients {
		spans = append(spans, span{c, c + 4})
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.off) - int(b.off) })
	for i, s := range spans {
		if s.end > size {
			t.Errorf("%s: field at %d outside %d bytes", what, s.off, size)
		}
		if i > 0 && spans[i-1].end > s.off {
			t.Errorf("%s: fields at %d and %d overlap", what, spans[i-1].off, s.off)
		}
	}
}

func TestRows(t *testing.T) {
	for _, tab := range tables(t) {
		for _, r := range tab.Escapes() {
			what := fmt.Sprintf("%s escape %#x %s", tab.Line, r.Nr, r.Name)
			if r.Verdict == Unknown || r.Name == "" {
				t.Errorf("%s: no verdict or name", what)
			}
			if r.Verdict == Deep && len(r.Ptrs)+len(r.FDs) == 0 || r.Verdict == Plain && len(r.Ptrs)+len(r.FDs) != 0 {
				t.Errorf("%s: verdict %s with %d pointers, %d fds", what, r.Verdict, len(r.Ptrs), len(r.FDs))
			}
			if len(r.Sizes) == 0 {
				if r.Verdict != Refuse && r.Unit == 0 {
					t.Errorf("%s: no size", what)
				}
				continue
			}
			pointersFit(t, what, r.Sizes[0], r.Ptrs, r.FDs, nil)
			off, ok := statusOffset(r.Nr, r.Sizes[0])
			if ok != (r.Status >= 0) || ok && off != r.Status {
				t.Errorf("%s: status at %d, statusOffset says %d %v", what, r.Status, off, ok)
			}
		}
		for _, r := range tab.Controls() {
			what := fmt.Sprintf("%s control %#x %s", tab.Line, r.Cmd, r.Name)
			if r.Verdict == Unknown || !strings.HasPrefix(r.Name, "NV") {
				t.Errorf("%s: no verdict or name", what)
			}
			if r.Verdict == Deep && len(r.Ptrs)+len(r.FDs) == 0 || r.Verdict == Plain && len(r.Ptrs)+len(r.FDs) != 0 {
				t.Errorf("%s: verdict %s with %d pointers, %d fds", what, r.Verdict, len(r.Ptrs), len(r.FDs))
			}
			if r.Size > MaxParamsSize {
				t.Errorf("%s: %d bytes", what, r.Size)
			}
			pointersFit(t, what, r.Size, r.Ptrs, r.FDs, r.Clients)
		}
		for _, r := range tab.Classes() {
			what := fmt.Sprintf("%s class %#x %s", tab.Line, r.Class, r.Name)
			if r.Verdict == Unknown || len(r.Sizes) == 0 {
				t.Errorf("%s: no verdict or sizes", what)
				continue
			}
			if r.Class.IsRootClient() != (r.Verdict == Caller) || r.Class.IsRootClient() != (r.Kind == KindClient) {
				t.Errorf("%s: verdict %s kind %s", what, r.Verdict, r.Kind)
			}
			if r.Class.IsChannel() != (r.Kind == KindChannel) || (r.VRAM && r.Verdict != Judge) {
				t.Errorf("%s: verdict %s kind %s", what, r.Verdict, r.Kind)
			}
			pointersFit(t, what, r.ParamsSize(), r.Ptrs, r.FDs, r.Clients)
		}
		for _, r := range tab.UVMs() {
			what := fmt.Sprintf("%s uvm %#x %s", tab.Line, r.Cmd, r.Name)
			if r.Verdict == Unknown || r.StatusOffset >= 0 && uint32(r.StatusOffset)+4 > r.Size {
				t.Errorf("%s: no verdict, or status at %d of %d", what, r.StatusOffset, r.Size)
			}
			pointersFit(t, what, r.Size, nil, r.FDs, r.Clients)
		}
	}
}

func TestNoDuplicateRows(t *testing.T) {
	var cmds []uint32
	for _, rows := range [][]ControlRow{clientControls(), deviceControls(), subdeviceControls(), objectControls(), refusedControls()} {
		for i, r := range rows {
			cmds = append(cmds, r.Cmd)
			if i > 0 && rows[i-1].Cmd >= r.Cmd {
				t.Errorf("control %#x %s is out of order", r.Cmd, r.Name)
			}
		}
	}
	noDuplicates(t, "control", cmds)
	var nrs, cs, us []uint32
	for _, e := range escapes() {
		nrs = append(nrs, uint32(e.Nr))
	}
	for _, c := range append(classes(), refusedClasses()...) {
		cs = append(cs, uint32(c.Class))
	}
	for _, u := range uvmRows() {
		us = append(us, u.Cmd)
	}
	noDuplicates(t, "escape", nrs)
	noDuplicates(t, "class", cs)
	noDuplicates(t, "uvm", us)
}

func noDuplicates(t *testing.T, what string, ns []uint32) {
	t.Helper()
	slices.Sort(ns)
	for i := 1; i < len(ns); i++ {
		if ns[i] == ns[i-1] {
			t.Errorf("%s %#x has two rows", what, ns[i])
		}
	}
}

// A delta changes rows its parent has, and adds rows it does not have unless it replaces them.
func TestDeltas(t *testing.T) {
	ls := lines()
	for i := 1; i < len(ls); i++ {
		parent, child := build(ls[:i]), build(ls[:i+1])
		for cmd, r := range child.controls {
			if r.Name == "" || r.Cmd != cmd {
				t.Errorf("%s resizes control %#x, which %s does not have", child.Line, cmd, parent.Line)
			}
		}
		for c, r := range child.classes {
			if r.Name == "" || r.Class != c {
				t.Errorf("%s resizes class %#x, which %s does not have", child.Line, c, parent.Line)
			}
		}
		if len(parent.controls) == 0 || child.Line != ls[i].name {
			t.Errorf("line %s is built wrongly", ls[i].name)
		}
	}
}

func TestForbidden(t *testing.T) {
	for _, tab := range tables(t) {
		for _, cmd := range []uint32{CtrlFifoDisableChannels, 0x2080111a, 0x20800122, 0x208001a9, 0x20800174, 0x20800602, 0x50800101, 0x2080c123} {
			if r, ok := tab.Control(cmd); !ok || r.Verdict != Refuse || r.Refusal != StatusInsufficientPermissions {
				t.Errorf("%s: control %#x is %+v %v", tab.Line, cmd, r, ok)
			}
		}
		for _, nr := range []uint8{EscAccessRegistry, EscI2CAccess, EscExportDmabuf, EscSetNumaStatus, EscAllocObject} {
			if e, ok := tab.Escape(nr, 1); !ok || e.Verdict != Refuse {
				t.Errorf("%s: escape %#x is %s %v", tab.Line, nr, e.Verdict, ok)
			}
		}
		for _, cmd := range []uint32{CtrlTSGSetTimeslice, CtrlTSGGetTimeslice, CtrlTSGPreempt, CtrlTSGSchedule, CtrlTSGSetInterleave, CtrlTSGMakeRealtime, CtrlChannelSchedule, CtrlFBGetInfo, CtrlFBGetInfoV2, CtrlGetPids, CtrlGetPidInfo} {
			if r, ok := tab.Control(cmd); !ok || r.Verdict != Judge {
				t.Errorf("%s: control %#x is %s %v", tab.Line, cmd, r.Verdict, ok)
			}
		}
		if _, ok := tab.Control(0x20807fff); ok {
			t.Errorf("%s knows a control that does not exist", tab.Line)
		}
		if r, ok := tab.Control(0x20810107); !ok || r.Verdict != Plain || !r.Fits(100) || r.Fits(MaxParamsSize+1) {
			t.Errorf("%s: firmware command is %+v %v", tab.Line, r, ok)
		}
		if _, ok := tab.Escape(EscFree, 17); ok {
			t.Errorf("%s takes an RM_FREE of 17 bytes", tab.Line)
		}
		if _, ok := tab.Escape(EscCardInfo, 2*SizeCardInfo); !ok {
			t.Errorf("%s refuses two cards", tab.Line)
		}
	}
}

func TestLookup(t *testing.T) {
	for v, want := range map[string]string{
		"550.54.14": "550", "550.163.01": "550", "570.86.15": "570", "570.211.01": "570", "575.64.05": "575",
		"580.65.06": "580", "580.142": "580", "580.159.04": "580", "590.48.01": "590", "595.71.05": "595",
		"550.54.13": "", "580.65.05": "", "560.35.03": "", "610.43.02": "", "535.183.01": "", "": "", "580": "", "580.x.1": "",
		"580.142.01.1": "", "580..1": "", "-580.1.1": "", "99999.1.1": "",
	} {
		tab, err := Lookup(v)
		var unknown *UnknownVersionError
		switch {
		case want == "" && !errors.As(err, &unknown):
			t.Errorf("Lookup(%q): %v, want UnknownVersionError", v, err)
		case want != "" && (err != nil || tab.Line != want):
			t.Errorf("Lookup(%q): %v %v, want line %s", v, tab, err, want)
		}
	}
	_, err := Lookup("610.43.02")
	const text = `NVIDIA driver "610.43.02" is not known; known lines: 550 (from 550.54.14), 570 (from 570.86.15), 575 (from 575.51.02), 580 (from 580.65.06), 590 (from 590.44.01), 595 (from 595.44.02)`
	if err == nil || err.Error() != text {
		t.Errorf("error text\n got %v\nwant %s", err, text)
	}
	for v, want := range map[string]string{"610.43.02": "595", "585.1": "580", "560.35.03": "550", "535.1": "550", "junk": "550"} {
		if got := Nearest(v).Line; got != want {
			t.Errorf("Nearest(%q) = %s, want %s", v, got, want)
		}
	}
}

func TestPtrBytes(t *testing.T) {
	b := make([]byte, 40)
	put32(b, 0, 5)
	put32(b, 4, 0xffffffff)
	for _, c := range []struct {
		p    Ptr
		want uint32
		ok   bool
	}{
		{Ptr{Offset: 8, Count: At(0), ElemSize: 8, MaxBytes: 64, Dir: In}, 40, true},
		{Ptr{Offset: 8, Count: At(4), ElemSize: 8, MaxBytes: 64, Dir: In}, 0, false},
		{Ptr{Offset: 8, Count: AtSquared(4), ElemSize: 4, MaxBytes: MaxParamsSize, Dir: In}, 0, false},
		{Ptr{Offset: 8, Count: AtSquared(0), ElemSize: 4, MaxBytes: 100, Dir: In}, 100, true},
		{Ptr{Offset: 8, Count: AtSquared(0), ElemSize: 4, MaxBytes: 99, Dir: In}, 0, false},
		{Ptr{Offset: 8, Count: Fixed(1), ElemSize: 16, MaxBytes: 16, Dir: Out}, 16, true},
		{Ptr{Offset: 8, Count: At(38), ElemSize: 1, MaxBytes: 64, Dir: In}, 0, false},
		{Ptr{Offset: 8}, 0, true},
	} {
		got, err := c.p.Bytes(b)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%+v: %d, %v", c.p, got, err)
		}
	}
}
