package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden page")

func sample(t *testing.T) Result {
	t.Helper()
	r, err := readResult(filepath.Join("testdata", "sample.json"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPage(t *testing.T) {
	r := sample(t)
	r.Headline = headline(r.Rows)
	got := markdown(r)
	path := filepath.Join("testdata", "sample.md")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("page (-want +got), accept with -update:\n%s", d)
	}
}

func TestHeadline(t *testing.T) {
	h := headline(sample(t).Rows)
	want := Headline{
		// errors: -0.2 -0.1 of caps; -0.9 -1.1 and -0.5 -2.5 of pairs; -0.3 of idle fixed
		MeanAbsErrorPoints:  pointer(0.8),
		MaxErrorPoints:      pointer(2.5),
		SumOfSoloPercent:    pointer(97.5), // (98 + 97) / 2
		MinSumOfSoloPercent: pointer(97),
		LoneBurstPercent:    pointer(99.3),
		P99DeltaMs:          pointer(0.23), // not native's 2.25
		TrainingKeptPercent: pointer(97.3),
		OverQuotaBytes:      pointer(0),
		DeviceOverBytes:     pointer(0),
		AllocPairRatio:      pointer(1.7),
		CallsPer10kLaunches: pointer(0),
		Kills:               pointer(50),
		WorstStallMs:        pointer(210),
		LedgerLeftBytes:     pointer(0),
		FailedCases:         1,
	}
	if d := cmp.Diff(want, h); d != "" {
		t.Errorf("headline (-want +got):\n%s", d)
	}
}

// What was not measured must not look like a perfect figure.
func TestNothingMeasuredIsNull(t *testing.T) {
	data, err := json.Marshal(headline([]Row{{Section: secCaps, Counted: true, Error: "failed"}}))
	if err != nil {
		t.Fatal(err)
	}
	if s := string(data); !strings.Contains(s, `"meanAbsErrorPoints":null`) || !strings.Contains(s, `"failedCases":1`) {
		t.Error(s)
	}
}

func TestWriteAndMerge(t *testing.T) {
	dir := t.TempDir()
	r := sample(t)
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	back, err := readResult(filepath.Join(dir, "h200-isolation.json"))
	if err != nil {
		t.Fatal(err)
	}
	later := back
	later.Command = "isolation -sections caps"
	later.Rows = []Row{
		{Section: secSolo, Case: "alone", Tenants: []TenantRow{{Workload: k400us, Rate: 1}}},
		{Section: secCaps, Case: "30%", Counted: true, Tenants: []TenantRow{{Workload: k400us, Asked: 30, Got: 30}}},
	}
	m, err := merge([]Result{back, later})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, row := range m.Rows {
		count[row.Section]++
		if row.Section == secCaps && row.Run != 2 {
			t.Errorf("an old row stays: %+v", row)
		}
	}
	if count[secSolo] != 3 || count[secCaps] != 1 || count[secPairs] != 3 {
		t.Errorf("rows by section: %v", count)
	}
	later.Commit = "another"
	if _, err := merge([]Result{back, later}); err == nil {
		t.Error("results of two commits were merged")
	}
	if _, err := merge(nil); err == nil {
		t.Error("nothing was merged")
	}
}

func TestName(t *testing.T) {
	for card, want := range map[string]string{
		"NVIDIA H200":             "h200-isolation",
		"emulated":                "emulated-isolation",
		"NVIDIA A100-SXM4-80GB":   "a100-sxm4-80gb-isolation",
		"":                        "unknown-isolation",
		"NVIDIA GeForce RTX 4090": "geforce-rtx-4090-isolation",
	} {
		if got := (Result{Card: card}).name(); got != want {
			t.Errorf("%q: %q, want %q", card, got, want)
		}
	}
}

func TestParseMiB(t *testing.T) {
	if v, err := parseMiB("1024\n"); err != nil || v != 1<<30 {
		t.Errorf("%v %v", v, err)
	}
	if _, err := parseMiB("[N/A]\n"); err == nil {
		t.Error("no figure was read as one")
	}
}
