package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Verdict is how an attack ended.
type Verdict string

// The verdicts.
const (
	Refused       Verdict = "refused"        // the calls it needs were refused, and nothing changed
	WithoutEffect Verdict = "without effect" // calls went through, and nothing changed
	Succeeded     Verdict = "SUCCEEDED"
	Skipped       Verdict = "skipped" // this machine cannot try it
	Broken        Verdict = "BROKEN"  // it could not be tried: a fault of the suite or of the engine
)

// Result is what came of one attack.
type Result struct {
	Name    string
	Verdict Verdict
	Detail  string
	Tries   int
	Seconds float64
}

// Options say what to run.
type Options struct {
	// Match selects attacks by a part of their name; empty: all.
	Match string
	// Race is how long each race is tried; 0 for the default.
	Race time.Duration
	// Log gets what the engine says; nil: nothing does.
	Log *slog.Logger
	// Each is called after every attack.
	Each func(Result)
}

// Names lists the attacks in the order they run.
func Names() []string {
	var out []string
	for _, a := range attacks() {
		out = append(out, a.name)
	}
	return out
}

// defaultRace is some thousand tries: a try takes two processes and a file system on the way.
const defaultRace = 700 * time.Millisecond

// How many attacks run at once: those that are about time, and the others.
const (
	besideTimed = 2
	beside      = 4
)

// brokenAgain is how often an attack that could not be tried is tried anew.
const brokenAgain = 2

// Run tries every attack, a few at once.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if o.Race == 0 {
		o.Race = defaultRace
	}
	var out []Result
	var mu sync.Mutex
	one := func(a attack) {
		s := a.setup
		s.race, s.log = o.Race, o.Log
		r := try(ctx, a, s)
		for range brokenAgain {
			// The attack did not come about (a process was too slow, a pipe ended
			// with its process): that says nothing, so it is tried anew.
			if r.Verdict != Broken || ctx.Err() != nil {
				break
			}
			r = try(ctx, a, s)
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, r)
		if o.Each != nil {
			o.Each(r)
		}
	}
	for _, timed := range []bool{true, false} {
		slots := make(chan struct{}, map[bool]int{true: besideTimed, false: beside}[timed])
		var g sync.WaitGroup
		for _, a := range attacks() {
			if a.timed != timed || o.Match != "" && !strings.Contains(a.name, o.Match) || ctx.Err() != nil {
				continue
			}
			slots <- struct{}{}
			g.Go(func() { one(a); <-slots })
		}
		g.Wait()
	}
	return out, ctx.Err()
}

// attackLimit ends an attack that hangs.
const attackLimit = 20 * time.Second

// detailEnded says that the supervisor, or the attack itself, ended the tenant.
const detailEnded = "the tenant was ended"

// try runs one attack on a card of its own.
func try(ctx context.Context, a attack, s setup) Result {
	start := time.Now()
	r := Result{Name: a.name}
	defer func() { r.Seconds = time.Since(start).Seconds() }()
	sc, err := build(ctx, s)
	if err != nil {
		r.Verdict, r.Detail = Broken, err.Error()
		return r
	}
	m, err := sc.attack(ctx, a)
	err = errors.Join(err, sc.close())
	if m.Done != nil {
		r.Tries = m.Done.Tries
	}
	switch {
	case len(sc.finds) > 0:
		r.Verdict, r.Detail = Succeeded, strings.Join(sc.finds, "; ")
	case err != nil:
		r.Verdict, r.Detail = Broken, err.Error()
	case m.Error != "":
		r.Verdict, r.Detail = Broken, m.Error
	case m.Skip != "":
		r.Verdict, r.Detail = Skipped, m.Skip
	case a.harmless && m.Done.Detail == detailEnded:
		r.Verdict, r.Detail = Broken, "a tenant that did nothing wrong was ended"
	case m.Done.Refused >= m.Done.Tries && m.Done.Tries > 0:
		r.Verdict = Refused
	default:
		r.Verdict = WithoutEffect
	}
	if r.Detail == "" {
		r.Detail = strings.TrimPrefix(m.Done.Detail+"; "+sc.measured, "; ")
	}
	r.Seconds = time.Since(start).Seconds()
	return r
}

// attack starts the attacker and follows it to the judgement.
func (sc *scene) attack(ctx context.Context, a attack) (message, error) {
	var err error
	if sc.attackerChild, err = sc.tenant(a.name, sc.setup.attacker, int64(sc.quota), !sc.unsupervised); err != nil {
		return message{}, err
	}
	hints := Hints{Dir: sc.dir, Quota: sc.quota, Race: sc.race, Victim: sc.handles}
	sc.watchCard()
	if err := sendMessage(sc.attackerChild.wire, message{Hints: &hints}); err != nil {
		return message{}, err
	}
	limit, cancel := context.WithTimeout(ctx, attackLimit)
	defer cancel()
	m, err := sc.converse(limit)
	if errors.Is(err, errPeerGone) && ctx.Err() == nil && limit.Err() == nil {
		// The attacker is dead: what it achieved until then counts.
		m, err = message{Done: &Outcome{Detail: detailEnded}}, nil
	}
	return m, errors.Join(err, sc.judge())
}

// Count returns how many attacks could be tried, had an effect, and could not be tried for a fault.
func Count(list []Result) (tried, succeeded, broken int) {
	for _, r := range list {
		switch r.Verdict {
		case Skipped:
			continue
		case Succeeded:
			succeeded++
		case Broken:
			broken++
		}
		tried++
	}
	return tried, succeeded, broken
}

// Line is a result as one line of text.
func (r Result) Line() string {
	s := fmt.Sprintf("%-44s %-14s", r.Name, r.Verdict)
	if r.Tries > 0 {
		s += fmt.Sprintf(" %d tries;", r.Tries)
	}
	return strings.TrimRight(s+" "+strings.ReplaceAll(r.Detail, "\n", " | "), " ")
}

// Summary is the last line of the output.
func Summary(list []Result) string {
	tried, succeeded, _ := Count(list)
	return fmt.Sprintf("hostile: %d tried, %d succeeded", tried, succeeded)
}

// WriteJSON writes the results as one object.
func WriteJSON(w io.Writer, list []Result) error {
	tried, succeeded, broken := Count(list)
	return json.NewEncoder(w).Encode(struct {
		Tried, Succeeded, Broken int
		Attacks                  []Result
	}{tried, succeeded, broken, list})
}

// ErrNoRealCard says that the attacks on a real card are not here: the judge asks the emulated card itself.
var ErrNoRealCard = errors.New("the suite judges by an emulated card's own books; a real card has none that can be trusted for it yet")

// Check is an error unless every attack was tried and none succeeded.
func Check(list []Result) error {
	tried, succeeded, broken := Count(list)
	switch {
	case succeeded > 0:
		return fmt.Errorf("%d of %d attacks succeeded", succeeded, tried)
	case broken > 0:
		return fmt.Errorf("%d of %d attacks could not be tried", broken, tried)
	}
	return nil
}
