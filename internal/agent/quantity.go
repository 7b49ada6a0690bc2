package agent

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/internal/governor"
)

// Memory is an amount of device memory as a user asks for it: bytes, or a
// percentage of each card. The zero value asks for no limit.
type Memory struct {
	Bytes   int64
	Percent float64
}

// units are the suffixes of sizes: binary with i, decimal without, as in
// Kubernetes.
var units = []struct {
	suffix string
	size   float64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"K", 1e3}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"", 1},
}

// ParseMemory reads "20Gi", "1.5G", "1073741824" or "50%".
func ParseMemory(s string) (Memory, error) {
	bad := fmt.Errorf("memory %q: want a size such as 20Gi, 500Mi or 8G, or a percentage of the card such as 50%%", s)
	if num, ok := strings.CutSuffix(s, "%"); ok {
		p, err := number(num)
		if err != nil || p <= 0 || p > 100 {
			return Memory{}, bad
		}
		return Memory{Percent: p}, nil
	}
	for _, u := range units {
		num, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		v, err := number(num)
		if v *= u.size; err != nil || v < 1 || v >= math.MaxInt64/2 {
			return Memory{}, bad
		}
		return Memory{Bytes: int64(v)}, nil
	}
	return Memory{}, bad
}

// number reads plain decimal digits with at most one point.
func number(s string) (float64, error) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, 64)
}

// Of is the amount on a card of the given size.
func (m Memory) Of(total int64) int64 {
	if m.Percent > 0 {
		return int64(float64(total) * m.Percent / 100)
	}
	return m.Bytes
}

// IsZero reports that nothing was asked for.
func (m Memory) IsZero() bool { return m == Memory{} }

func (m Memory) String() string {
	switch {
	case m.Percent > 0:
		return strconv.FormatFloat(m.Percent, 'f', -1, 64) + "%"
	case m.Bytes > 0:
		return strconv.FormatInt(m.Bytes, 10)
	}
	return ""
}

// MarshalText is the form that ParseMemory reads back, empty for no limit.
func (m Memory) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (m *Memory) UnmarshalText(b []byte) (err error) {
	if len(b) == 0 {
		*m = Memory{}
		return nil
	}
	*m, err = ParseMemory(string(b))
	return err
}

// ParseCompute reads a share of a card: "30%", "12.5%" or "300m".
func ParseCompute(s string) (governor.Milli, error) {
	bad := fmt.Errorf("compute %q: want a share of the card such as 30%% or 300m (thousandths)", s)
	num, scale := s, 0.0
	if n, ok := strings.CutSuffix(s, "%"); ok {
		num, scale = n, 10
	} else if n, ok := strings.CutSuffix(s, "m"); ok {
		num, scale = n, 1
	}
	v, err := number(num)
	if v *= scale; err != nil || v < 1 || v > float64(governor.Card) || v != math.Trunc(v) {
		return 0, bad
	}
	return governor.Milli(v), nil
}

// Size prints bytes for people: the largest binary unit with one decimal.
func Size(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	v, unit := float64(n), "B"
	for _, u := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	s := strconv.FormatFloat(v, 'f', 1, 64)
	return sign + strings.TrimSuffix(s, ".0") + unit
}

// floorSize prints bytes so that the result, read back, is not more: what can
// be typed to get what is free.
func floorSize(n int64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return strconv.FormatInt(n>>30, 10) + "Gi"
	case n >= 1<<20:
		return strconv.FormatInt(n>>20, 10) + "Mi"
	}
	return strconv.FormatInt(max(n, 0), 10)
}
