package nvidia

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Table holds the rows of one driver line. It is read-only once Lookup has returned it.
type Table struct {
	Line string // "580"

	escapes  map[uint8]Escape
	controls map[uint32]ControlRow
	classes  map[Class]ClassRow
	uvm      map[uint32]UVMRow
}

// line is one driver line: its parent's table and what changed. first is the oldest release that the headers
// were read from; older ones are not served.
type line struct {
	name  string
	first version
	delta func(*Table)
}

// lines are the driver lines from the oldest to the newest. Each one is its predecessor plus its delta.
func lines() []line {
	return []line{
		{"550", version{550, 54, 14}, func(*Table) {}},
		{"570", version{570, 86, 15}, func(t *Table) {
			controls570(t)
			classes570(t)
			uvm570(t)
			t.resizeEscape(EscExportDmabuf, 2608, 2600)
		}},
		{"575", version{575, 51, 2}, controls575},
		{"580", version{580, 65, 6}, func(t *Table) {
			controls580(t)
			classes580(t)
			uvm580(t)
			t.resizeEscape(EscMapMemoryDma, 64, 56)
		}},
		{"590", version{590, 44, 1}, func(t *Table) {
			controls590(t)
			classes590(t)
			uvm590(t)
		}},
		{"595", version{595, 44, 2}, func(t *Table) {
			controls595(t)
			classes595(t)
			uvm595(t)
		}},
	}
}

// build returns the table of the last of ls, a prefix of lines.
func build(ls []line) *Table {
	t := &Table{
		escapes:  map[uint8]Escape{},
		controls: map[uint32]ControlRow{},
		classes:  map[Class]ClassRow{},
		uvm:      map[uint32]UVMRow{},
	}
	for _, e := range escapes() {
		t.escapes[e.Nr] = e
	}
	t.addControls(clientControls()...)
	t.addControls(deviceControls()...)
	t.addControls(subdeviceControls()...)
	t.addControls(objectControls()...)
	t.addControls(refusedControls()...)
	t.addClasses(classes()...)
	t.addClasses(refusedClasses()...)
	t.addUVM(uvmRows()...)
	for _, l := range ls {
		l.delta(t)
		t.Line = l.name
	}
	return t
}

// Lookup returns the table for a driver version such as "580.159.04", the first line of
// /proc/driver/nvidia/version. It serves every release of a known line from the first one known; anything else
// is an UnknownVersionError.
func Lookup(driver string) (*Table, error) {
	v, ok := parseVersion(driver)
	all := lines()
	if ok {
		for i, l := range all {
			if l.first[0] == v[0] && !v.less(l.first) {
				return build(all[:i+1]), nil
			}
		}
	}
	return nil, unknownVersion(driver)
}

// Nearest returns the table of the newest line that is not newer than the version, or of the oldest line there
// is. It is what a flag that overrides Lookup's refusal means.
func Nearest(driver string) *Table {
	all := lines()
	n := 1
	if v, ok := parseVersion(driver); ok {
		for i, l := range all {
			if !v.less(l.first) {
				n = i + 1
			}
		}
	}
	return build(all[:n])
}

// Lines returns the names of the driver lines known, oldest first.
func Lines() []string {
	var names []string
	for _, l := range lines() {
		names = append(names, l.name)
	}
	return names
}

// UnknownVersionError says that a driver version has no table.
type UnknownVersionError struct {
	Version string
	Known   []string // "550 (from 550.54.14)"
}

func unknownVersion(driver string) *UnknownVersionError {
	e := &UnknownVersionError{Version: driver}
	for _, l := range lines() {
		e.Known = append(e.Known, fmt.Sprintf("%s (from %s)", l.name, l.first))
	}
	return e
}

func (e *UnknownVersionError) Error() string {
	return fmt.Sprintf("NVIDIA driver %q is not known; known lines: %s", e.Version, strings.Join(e.Known, ", "))
}

// version is a driver version: line, minor and patch. A release such as 580.142 has no patch number.
type version [3]int

func parseVersion(s string) (version, bool) {
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return version{}, false
	}
	var v version
	for i, p := range parts {
		if p == "" || len(p) > 4 || strings.Trim(p, "0123456789") != "" {
			return version{}, false
		}
		v[i], _ = strconv.Atoi(p) // digits only, checked above
	}
	return v, true
}

func (v version) less(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

func (v version) String() string { return fmt.Sprintf("%d.%02d.%02d", v[0], v[1], v[2]) }

// Escape returns the row of an ioctl number whose size is one the driver takes; refused numbers answer for any
// size.
func (t *Table) Escape(nr uint8, size uint32) (Escape, bool) {
	e, ok := t.escapes[nr]
	return e, ok && (e.Verdict == Refuse || e.Fits(size))
}

// EscapeNr returns the row of an ioctl number whatever its size.
func (t *Table) EscapeNr(nr uint8) (Escape, bool) {
	e, ok := t.escapes[nr]
	return e, ok
}

// Parts of control numbers that RM forwards to the GPU's firmware unread, so that no header names them.
const (
	gssLegacyMask       = 0x8000 // RM_GSS_LEGACY_MASK of rmapi_deprecated.h
	gssLegacyPrivileged = 0xc000
	binAPIClass         = 0x2081 // NV2081_BINAPI
)

// Control returns the row of a control command. Commands that RM passes to the firmware as bytes have no row
// of their own: they can hold no pointer, and the privileged half of them is refused.
func (t *Table) Control(cmd uint32) (ControlRow, bool) {
	if r, ok := t.controls[cmd]; ok {
		return r, true
	}
	switch {
	case cmd&gssLegacyPrivileged == gssLegacyPrivileged:
		return refuse("firmware command", cmd, StatusInsufficientPermissions), true
	case cmd&gssLegacyMask != 0, cmd>>16 == binAPIClass:
		return ControlRow{Name: "firmware command", Cmd: cmd, MaxSize: maxList, Verdict: Plain}, true
	}
	return ControlRow{}, false
}

// Class returns the row of a class of RM_ALLOC.
func (t *Table) Class(c Class) (ClassRow, bool) {
	r, ok := t.classes[c]
	return r, ok
}

// UVM returns the row of a command of /dev/nvidia-uvm.
func (t *Table) UVM(cmd uint32) (UVMRow, bool) {
	r, ok := t.uvm[cmd]
	return r, ok
}

// Escapes returns all rows of the ioctls, by number.
func (t *Table) Escapes() []Escape { return byKey(t.escapes) }

// Controls returns all rows of the controls, by number.
func (t *Table) Controls() []ControlRow { return byKey(t.controls) }

// Classes returns all rows of the classes, by number.
func (t *Table) Classes() []ClassRow { return byKey(t.classes) }

// UVMs returns all rows of the UVM commands, by number.
func (t *Table) UVMs() []UVMRow { return byKey(t.uvm) }

func byKey[K interface{ ~uint8 | ~uint32 }, V any](m map[K]V) []V {
	rows := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		rows = append(rows, m[k])
	}
	return rows
}
