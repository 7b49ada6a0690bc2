package agent

import (
	"time"

	"github.com/penstock-gpu/penstock/internal/governor"
)

// Status is the answer of GET /v1/status. Tenants of other users are counted
// and not listed, unless root asks.
type Status struct {
	Version   string         `json:"version"`
	PID       int            `json:"pid"`
	Holder    int            `json:"holder"` // process id of the holder
	UID       int            `json:"uid"`
	Socket    string         `json:"socket"`
	Since     time.Time      `json:"since"`
	AnyDriver bool           `json:"anyDriver,omitempty"` // calls may be misread: an override is on
	Cards     []CardStatus   `json:"cards"`
	Tenants   []TenantStatus `json:"tenants"`
	Others    int            `json:"others,omitempty"` // tenants that the asker may not see
}

// CardStatus is one card.
type CardStatus struct {
	Index    int    `json:"index"`
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Driver   string `json:"driver"`
	Emulated bool   `json:"emulated,omitempty"`
	Error    string `json:"error,omitempty"` // why it takes no tenants

	Policy  governor.Policy `json:"policy"`
	Cycle   time.Duration   `json:"cycleNs,omitempty"`
	Slots   bool            `json:"slots,omitempty"` // frozen and thawed in turns
	Tenants int             `json:"tenants"`

	Total    int64 `json:"totalBytes"`
	Used     int64 `json:"usedBytes"`     // the card's own figure
	Reserve  int64 `json:"reserveBytes"`  // never promised
	Promised int64 `json:"promisedBytes"` // sum of limits
	Free     int64 `json:"freeBytes"`     // can still be promised
	Charged  int64 `json:"chargedBytes"`  // sum of what tenants hold
	Baseline int64 `json:"baselineBytes"` // in use while no tenant was there
	Drift    int64 `json:"driftBytes"`    // used - baseline - charged
}

// TenantStatus is one tenant.
type TenantStatus struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	UID      uint32    `json:"uid"`
	PIDs     []int     `json:"pids"`
	Cards    []int     `json:"cards"`
	Since    time.Time `json:"since"`
	Level    string    `json:"level"`
	Attached bool      `json:"attached"`

	Policy   governor.Policy `json:"policy"`
	Weight   int             `json:"weight,omitempty"`
	Priority string          `json:"priority,omitempty"`
	// Asked is its share of the card while everybody works, in percent; null
	// where the driver schedules by itself. Got is the share of the last
	// seconds in which its work ran ("engine", where the card tells) or in which
	// it was allowed to run ("thawed"); null where neither is known.
	Asked     *float64 `json:"asked"`
	Hard      bool     `json:"hard"` // it gets no more than asked
	Got       *float64 `json:"got"`
	GotSource string   `json:"gotSource,omitempty"` // "engine" or "thawed"

	Limit    int64         `json:"limitBytes"` // 0: none
	Used     int64         `json:"usedBytes"`
	Managed  int64         `json:"managedBytes,omitempty"`
	Overhead int64         `json:"overheadBytes,omitempty"`
	Frozen   bool          `json:"frozen"`
	FrozenNs time.Duration `json:"frozenNs"`

	Calls            uint64            `json:"calls"`
	Proxied          uint64            `json:"proxied"`
	Continued        uint64            `json:"continued"`
	Refused          uint64            `json:"refused"`
	RefusedCalls     map[string]uint64 `json:"refusedCalls,omitempty"`
	Violation        string            `json:"violation,omitempty"`        // why the engine killed it
	UnknownContinued uint64            `json:"unknownContinued,omitempty"` // level compatible: calls nobody judged
}
