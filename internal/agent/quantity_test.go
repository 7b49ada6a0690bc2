package agent

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-gpu/penstock/internal/governor"
)

func TestParseMemory(t *testing.T) {
	for in, want := range map[string]Memory{
		"20Gi": {Bytes: 20 << 30}, "512Mi": {Bytes: 512 << 20}, "1.5Gi": {Bytes: 3 << 29}, "4Ki": {Bytes: 4096},
		"1Ti": {Bytes: 1 << 40}, "8G": {Bytes: 8e9}, "5M": {Bytes: 5e6}, "7K": {Bytes: 7000}, "123": {Bytes: 123},
		"50%": {Percent: 50}, "12.5%": {Percent: 12.5}, "100%": {Percent: 100},
	} {
		if got, err := ParseMemory(in); err != nil || got != want {
			t.Errorf("ParseMemory(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "0%", "101%", "-1Gi", "1e3", "Gi", "20GB", "20 Gi", "1..5G", "0x10", "9999999Ti", "%", "+5", "∞"} {
		if got, err := ParseMemory(in); err == nil {
			t.Errorf("ParseMemory(%q) = %+v, want an error", in, got)
		}
	}
}

func TestParseCompute(t *testing.T) {
	for in, want := range map[string]governor.Milli{"30%": 300, "12.5%": 125, "300m": 300, "1m": 1, "100%": 1000, "0.1%": 1} {
		if got, err := ParseCompute(in); err != nil || got != want {
			t.Errorf("ParseCompute(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "30", "0%", "101%", "1001m", "0.05%", "0.5m", "-5%", "m", "30 %"} {
		if got, err := ParseCompute(in); err == nil {
			t.Errorf("ParseCompute(%q) = %d, want an error", in, got)
		}
	}
}

// What Size and floorSize print can be typed again; floorSize never promises more than there is.
func TestFloorSizeIsNotMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<48).Draw(t, "n")
		m, err := ParseMemory(floorSize(n))
		if err != nil || m.Bytes > n || m.Bytes < n-1<<20 {
			t.Fatalf("floorSize(%d) = %s, read back as %d, %v", n, floorSize(n), m.Bytes, err)
		}
		if _, err := ParseMemory(Size(n)); err != nil && n >= 1024 {
			t.Fatalf("Size(%d) = %s: %v", n, Size(n), err)
		}
	})
}

func TestRequestRoundTrip(t *testing.T) {
	p := governor.Burst
	r := Request{Name: "x", Memory: Memory{Percent: 12.5}, Compute: 300, Policy: &p, Priority: "high", Level: "compatible", Cards: []string{"0"}}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Request
	if err := decodeStrict(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Memory != r.Memory || *back.Policy != p || back.Compute != r.Compute || back.Priority != "high" {
		t.Errorf("%s came back as %+v", b, back)
	}
	for _, bad := range []string{`{"memory":"20GB"}`, `{"nope":1}`, `{} {}`, `[]`, `{"policy":"best"}`, ``} {
		if err := decodeStrict([]byte(bad), &back); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}
