package nvidia

import (
	"encoding/binary"
	"fmt"
)

// ShortError says that a struct was given fewer bytes than its layout has.
type ShortError struct {
	What string
	Have int
	Want int
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("%s: %d bytes, want at least %d", e.What, e.Have, e.Want)
}

// need reports whether b holds at least n bytes of the struct named what.
func need(b []byte, n int, what string) error {
	if len(b) < n {
		return &ShortError{What: what, Have: len(b), Want: n}
	}
	return nil
}

var le = binary.LittleEndian

// Reads and writes at an offset. Callers have checked the bounds with need.
func u8(b []byte, off int) uint8            { return b[off] }
func u32(b []byte, off int) uint32          { return le.Uint32(b[off:]) }
func u64(b []byte, off int) uint64          { return le.Uint64(b[off:]) }
func i32(b []byte, off int) int32           { return int32(le.Uint32(b[off:])) }
func handle(b []byte, off int) Handle       { return Handle(u32(b, off)) }
func put32(b []byte, off int, v uint32)     { le.PutUint32(b[off:], v) }
func put64(b []byte, off int, v uint64)     { le.PutUint64(b[off:], v) }
func putHandle(b []byte, off int, h Handle) { put32(b, off, uint32(h)) }

// U32At reads the 32-bit word at a byte offset that comes from a table row.
func U32At(b []byte, off uint32) (uint32, error) {
	if uint64(off)+4 > uint64(len(b)) {
		return 0, &ShortError{What: "u32 field", Have: len(b), Want: int(off) + 4}
	}
	return le.Uint32(b[off:]), nil
}

// PutU32At writes the 32-bit word at a byte offset that comes from a table row.
func PutU32At(b []byte, off, v uint32) error {
	if uint64(off)+4 > uint64(len(b)) {
		return &ShortError{What: "u32 field", Have: len(b), Want: int(off) + 4}
	}
	le.PutUint32(b[off:], v)
	return nil
}

// U64At reads the 64-bit word at a byte offset that comes from a table row.
func U64At(b []byte, off uint32) (uint64, error) {
	if uint64(off)+8 > uint64(len(b)) {
		return 0, &ShortError{What: "u64 field", Have: len(b), Want: int(off) + 8}
	}
	return le.Uint64(b[off:]), nil
}

// PutU64At writes the 64-bit word at a byte offset that comes from a table row.
func PutU64At(b []byte, off uint32, v uint64) error {
	if uint64(off)+8 > uint64(len(b)) {
		return &ShortError{What: "u64 field", Have: len(b), Want: int(off) + 8}
	}
	le.PutUint64(b[off:], v)
	return nil
}

// CountError says that a count inside a struct exceeds what the struct can hold.
type CountError struct {
	What  string
	Count uint64
	Max   uint64
}

func (e *CountError) Error() string {
	return fmt.Sprintf("%s: count %d, at most %d", e.What, e.Count, e.Max)
}

// CommandError says that a decoder was given the parameters of another command.
type CommandError struct{ Cmd uint32 }

func (e *CommandError) Error() string {
	return fmt.Sprintf("command %#x has no such parameters", e.Cmd)
}
