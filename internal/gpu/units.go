package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is an amount of memory in bytes.
type Bytes int64

// Binary multiples of Bytes.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// String prints the largest binary unit that divides b exactly, so that nothing is rounded away.
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{TiB, "Ti"}, {GiB, "Gi"}, {MiB, "Mi"}, {KiB, "Ki"}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// ParseBytes reads a non-negative integer with an optional suffix Ki, Mi, Gi or Ti.
// It fails on fractions, signs, unknown suffixes and values beyond 63 bits.
func ParseBytes(s string) (Bytes, error) {
	digits, unit := s, Bytes(1)
	for suffix, size := range map[string]Bytes{"Ki": KiB, "Mi": MiB, "Gi": GiB, "Ti": TiB} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = rest, size
		}
	}
	v, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || v > uint64(1<<63-1)/uint64(unit) {
		return 0, fmt.Errorf("%q is no size: expected a whole number with an optional Ki, Mi, Gi or Ti", s)
	}
	return Bytes(v) * unit, nil
}

// Milli is a thousandth of one card's compute (1000 = a whole card), or of one CPU core where a field says so.
type Milli int32

// Card is one whole card of compute.
const Card Milli = 1000

// String prints the amount with its unit, "250m".
func (m Milli) String() string { return strconv.Itoa(int(m)) + "m" }

// Percent is a share in whole hundredths; 100 is everything.
type Percent int32

// Milli converts a percentage of one card into Milli.
func (p Percent) Milli() Milli { return Milli(p) * 10 }

// String prints the amount with its unit, "25%".
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }
