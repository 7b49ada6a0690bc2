package alloc

import "fmt"

// Code is why a machine or a card was refused. The set is closed: adapters translate codes, they never parse text.
type Code uint8

// Reasons, in the order in which they are checked: the first that holds is reported.
const (
	Fits Code = iota
	WrongPool
	WrongTier
	WrongModel
	NoRDMAPort
	LackCPU
	LackHostMemory
	NoCards
	CardUnhealthy
	CardBusy // an untouched card was asked for, or the card's tenant tolerates no neighbour
	LackCompute
	LackMemory
	LackCodec
	LackRender
	LackMIG
	TooFewCards // some cards would do, but fewer than asked for
	QuotaExceeded
	GangIncomplete
	codeCount
)

var codeNames = [codeCount]string{"fits", "wrong-pool", "wrong-tier", "wrong-model", "no-rdma-port", "lack-cpu",
	"lack-host-memory", "no-cards", "card-unhealthy", "card-busy", "lack-compute", "lack-memory", "lack-codec",
	"lack-render", "lack-mig", "too-few-cards", "quota-exceeded", "gang-incomplete"}

// String names the code; the names are stable and appear in events, metrics and reports.
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", c)
}

// Reason is one refusal, with the amounts that decided it where there are any. Want and Have are in the unit of
// the resource: bytes for memory, thousandths for compute, CPU, codec and rendering, cards for counts.
type Reason struct {
	Node   int   `json:"node"`
	Device int   `json:"device"` // -1 where the machine as a whole was refused
	Code   Code  `json:"code"`
	Want   int64 `json:"want"`
	Have   int64 `json:"have"`
}

// String prints the reason in one line.
func (r Reason) String() string {
	where := fmt.Sprintf("machine %d", r.Node)
	if r.Device >= 0 {
		where += fmt.Sprintf(" card %d", r.Device)
	}
	if r.Want == 0 && r.Have == 0 {
		return where + ": " + r.Code.String()
	}
	return fmt.Sprintf("%s: %v: wants %d, has %d", where, r.Code, r.Want, r.Have)
}
