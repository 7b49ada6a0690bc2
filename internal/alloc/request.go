package alloc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-gpu/penstock/internal/gpu"
)

// MaxCards is the largest number of cards one machine may have here.
const MaxCards = 16

// Share is what one request takes of one card. Compute of a whole card (gpu.Card) means the card is not shared:
// it must be untouched, and all its memory goes with it.
type Share struct {
	Memory  gpu.Bytes
	Compute gpu.Milli
	Codec   gpu.Milli // of the card's encoders and decoders
	Render  gpu.Milli // of the card's graphics time
}

// Whole reports whether the share is a whole card.
func (s Share) Whole() bool { return s.Compute >= gpu.Card }

// Mode is how a request tolerates neighbours on its card.
type Mode uint8

// Modes of co-location.
const (
	Shared      Mode = iota // side by side, each within its share
	Exclusive               // alone on the card even when its share is small
	Preemptive              // may take from lower priorities; lower priorities may be taken from
	TimeSharing             // by turns: several tenants on a card that none shares at the same moment
	Tidal                   // uses what another pool leaves by time and load
	RenderMix               // seeks cards whose tenants render less than they compute, or the reverse
	CodecMix                // seeks cards whose tenants leave the codecs idle, or the reverse
	modeCount
)

var modeNames = [modeCount]string{"shared", "exclusive", "preemptive", "time-sharing", "tidal", "rendering-mix", "codec-mix"}

// String names the mode as users write it.
func (m Mode) String() string {
	if m < modeCount {
		return modeNames[m]
	}
	return fmt.Sprintf("mode(%d)", m)
}

// Class says how a request behaves beside others; interference is judged by pairs of classes.
type Class uint8

// Classes of work.
const (
	Online   Class = iota // answers people; has a latency budget
	Offline               // batch and training; may wait or be moved
	Notebook              // idle most of the time, bursts
	classCount
)

// String names the class.
func (c Class) String() string {
	names := [classCount]string{"online", "offline", "notebook"}
	if c < classCount {
		return names[c]
	}
	return fmt.Sprintf("class(%d)", c)
}

// Request asks for cards on one machine. The zero value of every field is "no wish".
type Request struct {
	ID       string
	Tenant   string
	CPU      gpu.Milli // thousandths of a core
	Memory   gpu.Bytes // of the host
	Count    int       // cards; 0 asks for CPU and host memory only
	Share    Share     // taken of each card
	Shares   []Share   // one per card where they differ (cGPU's "3,1"); overrides Share, sets Count
	MIG      string    // a MIG profile name instead of a share; one instance, Count 1
	Models   []gpu.Model
	Pool     gpu.Pool
	Tier     gpu.Tier
	Priority int32
	Mode     Mode
	Class    Class
	// RDMA demands, when not gpu.NoRDMA, a port of that kind on the machine.
	RDMA gpu.RDMA
}

// Validate reports every impossible field: its name, its value and what was expected.
func (r *Request) Validate() error {
	var errs []error
	bad := func(field string, got any, want string) {
		errs = append(errs, fmt.Errorf("request %q: %s is %v: expected %s", r.ID, field, got, want))
	}
	if r.CPU < 0 {
		bad("cpu", r.CPU, "0 or more")
	}
	if r.Memory < 0 {
		bad("memory", r.Memory, "0 or more")
	}
	if r.Count < 0 || r.Count > MaxCards {
		bad("count", r.Count, fmt.Sprintf("0 to %d cards", MaxCards))
	}
	if len(r.Shares) > MaxCards || len(r.Shares) > 0 && r.Count != 0 && r.Count != len(r.Shares) {
		bad("shares", len(r.Shares), fmt.Sprintf("one per card, at most %d", MaxCards))
	}
	if r.Mode >= modeCount {
		bad("mode", r.Mode, strings.Join(modeNames[:], ", "))
	}
	if r.Class >= classCount {
		bad("class", r.Class, "online, offline, notebook")
	}
	if r.MIG != "" && (r.cards() != 1 || r.share(0) != (Share{}) || r.Mode != Shared) {
		bad("mig", r.MIG, "count 1, no share and mode shared beside a MIG profile")
	}
	for i := range r.cards() {
		s := r.share(i)
		if s.Compute < 0 || s.Compute > gpu.Card || s.Codec < 0 || s.Codec > gpu.Card || s.Render < 0 || s.Render > gpu.Card || s.Memory < 0 {
			bad(fmt.Sprintf("share of card %d", i), fmt.Sprintf("%+v", s), "0m to 1000m each and memory of 0 or more")
		} else if r.MIG == "" && s == (Share{}) {
			bad(fmt.Sprintf("share of card %d", i), "empty", "some memory, compute, codec or rendering")
		}
	}
	return errors.Join(errs...)
}

// cards is how many cards the request takes.
func (r *Request) cards() int {
	if len(r.Shares) > 0 {
		return len(r.Shares)
	}
	return r.Count
}

// share is what the request takes of its i-th card.
func (r *Request) share(i int) Share {
	if len(r.Shares) > 0 {
		return r.Shares[i]
	}
	return r.Share
}

// Compute is the compute the request takes in all, in thousandths of a card.
func (r *Request) Compute() (sum int64) {
	for i := range r.cards() {
		sum += int64(r.share(i).Compute)
	}
	return sum
}

// Kind is the coarse shape of a request, by which drops are reported and fairness is judged.
type Kind uint8

// Kinds: no card, a part of one, one whole, and more by their number.
const (
	KindCPU Kind = iota
	KindShare
	KindOne
	KindTwo
	KindThreeFour
	KindFiveUp
	KindCount
)

// String names the kind as reports print it.
func (k Kind) String() string {
	return [...]string{"cpu", "share", "1", "2", "3-4", "5-8"}[k]
}

// Kind classifies the request.
func (r *Request) Kind() Kind {
	switch n := r.cards(); {
	case n == 0:
		return KindCPU
	case n == 1 && !r.share(0).Whole():
		return KindShare
	case n == 1:
		return KindOne
	case n == 2:
		return KindTwo
	case n <= 4:
		return KindThreeFour
	}
	return KindFiveUp
}

// shape is the comparable part of a request: two requests of one shape get the same scores everywhere.
type shape struct {
	cpu    gpu.Milli
	memory gpu.Bytes
	count  int
	share  Share
	rest   string // per-card shares, models, MIG profile; empty for plain requests
	pool   gpu.Pool
	tier   gpu.Tier
	mode   Mode
	class  Class
	rdma   gpu.RDMA
}

func (r *Request) shape() shape {
	s := shape{cpu: r.CPU, memory: r.Memory, count: r.cards(), share: r.Share, pool: r.Pool, tier: r.Tier,
		mode: r.Mode, class: r.Class, rdma: r.RDMA}
	switch {
	case len(r.Shares) > 0 || r.MIG != "":
		s.rest = fmt.Sprint(r.Models, r.MIG, r.Shares)
	case len(r.Models) == 1:
		s.rest = string(r.Models[0])
	case len(r.Models) > 1:
		s.rest = fmt.Sprint(r.Models)
	}
	return s
}
