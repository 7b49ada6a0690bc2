package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Result is the file of a run. A headline figure is null when no case of this
// run measured it. docs/bench/README.md defines every field.
type Result struct {
	Card    string  `json:"card"`
	Driver  string  `json:"driver"`
	Commit  string  `json:"commit"`
	Command string  `json:"command"`
	Date    string  `json:"date"`
	Quick   bool    `json:"quick,omitempty"`
	Window  float64 `json:"windowSeconds"`

	Headline

	Rows []Row `json:"rows"`
}

// Headline is what the rows come to.
type Headline struct {
	MeanAbsErrorPoints  *float64 `json:"meanAbsErrorPoints"`
	MaxErrorPoints      *float64 `json:"maxErrorPoints"`
	SumOfSoloPercent    *float64 `json:"sumOfSoloPercent"`
	MinSumOfSoloPercent *float64 `json:"minSumOfSoloPercent"`
	LoneBurstPercent    *float64 `json:"loneBurstPercent"`
	P99DeltaMs          *float64 `json:"p99DeltaMs"`
	TrainingKeptPercent *float64 `json:"trainingKeptPercent"`
	OverQuotaBytes      *float64 `json:"overQuotaBytes"`
	DeviceOverBytes     *float64 `json:"deviceOverBytes"`
	AllocPairRatio      *float64 `json:"allocPairRatio"`
	CallsPer10kLaunches *float64 `json:"callsPer10kLaunches"`
	Kills               *float64 `json:"kills"`
	WorstStallMs        *float64 `json:"worstStallMs"`
	LedgerLeftBytes     *float64 `json:"ledgerLeftBytes"`
	FailedCases         int      `json:"failedCases"`
}

// Row is one case.
type Row struct {
	Section   string      `json:"section"`
	Case      string      `json:"case"`
	Workloads []string    `json:"workloads"`
	Policy    string      `json:"policy"`
	Counted   bool        `json:"counted"` // enters the headline error
	Tenants   []TenantRow `json:"tenants,omitempty"`
	Sum       float64     `json:"sum"` // percent of solo, all tenants

	Latency *LatencyRow `json:"latency,omitempty"`
	Memory  *MemoryRow  `json:"memory,omitempty"`
	Calls   *CallsRow   `json:"calls,omitempty"`
	Kill    *KillRow    `json:"kill,omitempty"`

	Error string `json:"error,omitempty"`
	Run   int    `json:"run,omitempty"` // of merged files: which one, from 1
}

// TenantRow is one tenant of a case. Asked, got and error are percent of the
// card and points.
type TenantRow struct {
	Workload string  `json:"workload"`
	Asked    float64 `json:"asked"`
	Got      float64 `json:"got"`
	Error    float64 `json:"error"`
	Rate     float64 `json:"rate"` // finished units a second
	Idle     bool    `json:"idle,omitempty"`
}

// LatencyRow is the latency tenant's answers in milliseconds.
type LatencyRow struct {
	P50          float64 `json:"p50"`
	P99          float64 `json:"p99"`
	Max          float64 `json:"max"`
	Missed       float64 `json:"missed"`       // beats skipped because the answer before was late
	DeltaMs      float64 `json:"deltaMs"`      // p99 above alone
	TrainingKept float64 `json:"trainingKept"` // percent of what the bursts leave
}

// MemoryRow is one path of allocation against a quota, in bytes.
type MemoryRow struct {
	Path      string  `json:"path"`
	Processes int     `json:"processes"`
	Quota     float64 `json:"quota"`
	Peak      float64 `json:"peak"`      // most that the programs held
	Over      float64 `json:"over"`      // of it beyond the quota
	Device    float64 `json:"device"`    // rise of the card's own figure; 0: not read
	Refusals  float64 `json:"refusals"`  // allocations refused
	Refused   bool    `json:"refused"`   // every process ended refused, not at the bench's ceiling
	Measured  bool    `json:"measured"`  // the card's figure could be read
	DeviceOff float64 `json:"deviceOff"` // rise beyond the quota
}

// CallsRow is what supervision costs.
type CallsRow struct {
	BareUs       float64 `json:"bareUs,omitempty"` // median of an allocation pair
	SupervisedUs float64 `json:"supervisedUs,omitempty"`
	Ratio        float64 `json:"ratio,omitempty"`
	Launches     float64 `json:"launches,omitempty"`
	Calls        float64 `json:"calls"` // seen by the agent while they were launched
	Per10k       float64 `json:"per10k"`
}

// KillRow is what kill -9 did to the others.
type KillRow struct {
	Tenants    int     `json:"tenants"` // killed
	Workers    int     `json:"workers"` // of the agent
	Holders    int     `json:"holders"`
	WorstMs    float64 `json:"worstMs"`    // longest stand-still of a survivor after a kill
	MedianMs   float64 `json:"medianMs"`   // of the stand-stills
	Harmed     int     `json:"harmed"`     // survivors that ended or stood still for over a second
	LedgerLeft float64 `json:"ledgerLeft"` // bytes still charged or promised at the end
	DeviceLeft float64 `json:"deviceLeft"` // rise of the card's own figure at the end
}

// headline sums up rows.
func headline(rows []Row) Headline {
	var h Headline
	var errs, sums []float64
	for _, r := range rows {
		if r.Error != "" {
			h.FailedCases++
			continue
		}
		if r.Counted {
			asked := 0.0
			for _, t := range r.Tenants {
				asked += t.Asked
				if !t.Idle {
					errs = append(errs, t.Error)
				}
			}
			if len(r.Tenants) > 1 && asked > 99.5 && !anyIdle(r.Tenants) {
				sums = append(sums, r.Sum)
			}
		}
		h.addSpecial(r)
	}
	if len(errs) > 0 {
		h.MeanAbsErrorPoints = pointer(round(meanAbs(errs), 3))
		h.MaxErrorPoints = pointer(round(maxAbs(errs), 3))
	}
	if len(sums) > 0 {
		h.SumOfSoloPercent = pointer(round(mean(sums), 2))
		h.MinSumOfSoloPercent = pointer(round(slices.Min(sums), 2))
	}
	return h
}

// addSpecial takes what a row of a special section says; the worst counts.
func (h *Headline) addSpecial(r Row) {
	if r.Section == secIdle && r.Policy == "burst" {
		for _, t := range r.Tenants {
			if !t.Idle {
				least(&h.LoneBurstPercent, t.Got)
			}
		}
	}
	if l := r.Latency; l != nil && strings.HasPrefix(r.Case, casePenstock) {
		most(&h.P99DeltaMs, l.DeltaMs)
		least(&h.TrainingKeptPercent, l.TrainingKept)
	}
	if m := r.Memory; m != nil {
		most(&h.OverQuotaBytes, m.Over)
		if m.Measured {
			most(&h.DeviceOverBytes, m.DeviceOff)
		}
	}
	if c := r.Calls; c != nil {
		if c.Ratio > 0 {
			most(&h.AllocPairRatio, c.Ratio)
		}
		if c.Launches > 0 {
			most(&h.CallsPer10kLaunches, c.Per10k)
		}
	}
	if k := r.Kill; k != nil {
		add(&h.Kills, float64(k.Tenants+k.Workers+k.Holders))
		most(&h.WorstStallMs, k.WorstMs)
		most(&h.LedgerLeftBytes, k.LedgerLeft)
	}
}

func pointer(v float64) *float64 { return &v }

func most(p **float64, v float64) {
	if *p == nil || v > **p {
		*p = &v
	}
}

func least(p **float64, v float64) {
	if *p == nil || v < **p {
		*p = &v
	}
}

func add(p **float64, v float64) {
	if *p != nil {
		v += **p
	}
	*p = &v
}

func anyIdle(ts []TenantRow) bool {
	return slices.ContainsFunc(ts, func(t TenantRow) bool { return t.Idle })
}

// name is the stem of the files: h200-isolation, emulated-isolation.
func (r Result) name() string {
	card := strings.ToLower(strings.TrimPrefix(r.Card, "NVIDIA "))
	slug := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, card)
	if slug = strings.Trim(slug, "-"); slug == "" {
		slug = "unknown"
	}
	return slug + "-isolation"
}

// write puts the JSON file and the page into dir, each whole or not at all.
func (r Result) write(dir string) error {
	r.Headline = headline(r.Rows)
	if r.Rows == nil {
		r.Rows = []Row{}
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	base := filepath.Join(dir, r.name())
	if err := replace(base+".json", append(data, '\n')); err != nil {
		return err
	}
	return replace(base+".md", []byte(markdown(r)))
}

func replace(path string, data []byte) error {
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// readResult reads a file that write made.
func readResult(path string) (Result, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Result{}, err
	}
	var r Result
	if err := json.Unmarshal(data, &r); err != nil {
		return Result{}, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// merge joins results of several calls on one card. A section that two of them
// have is taken from the later one, except solo: every row stays judged by the
// solo of its own run, so all are kept.
func merge(parts []Result) (Result, error) {
	if len(parts) == 0 {
		return Result{}, fmt.Errorf("nothing to merge")
	}
	out := parts[len(parts)-1]
	out.Rows = nil
	last := map[string]int{}
	var commands []string
	for i, p := range parts {
		if p.Card != out.Card || p.Driver != out.Driver || p.Commit != out.Commit {
			return Result{}, fmt.Errorf("part %d is of %s, driver %s, commit %s; the last is of %s, %s, %s",
				i+1, p.Card, p.Driver, p.Commit, out.Card, out.Driver, out.Commit)
		}
		commands = append(commands, p.Command)
		for _, r := range p.Rows {
			last[r.Section] = i
		}
	}
	for i, p := range parts {
		for _, r := range p.Rows {
			if r.Section == secSolo || last[r.Section] == i {
				r.Run = i + 1
				out.Rows = append(out.Rows, r)
			}
		}
	}
	out.Command = strings.Join(commands, " && ")
	return out, nil
}
