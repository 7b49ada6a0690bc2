package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// lineKind is what a line on a worker's standard output means.
type lineKind int

const (
	noise    lineKind = iota // a warning of some framework: kept for error texts only
	isReady                  // READY
	isTick                   // TICK <time> <units>
	isAnswer                 // one JSON object: the window's figures
	isError                  // ERROR <text>
)

// line is one line of a worker.
type line struct {
	kind   lineKind
	text   string // noise and isError
	tick   tick
	answer answer
}

// tick is a sign of progress.
type tick struct {
	at    time.Time
	units float64
}

// answer is what a worker prints after a window; a field that a mode does not
// have is zero. The fields of all modes are here because there is one line
// format.
type answer struct {
	Mode     string  `json:"mode"`
	Units    float64 `json:"units"`    // finished inside the window
	Launches float64 `json:"launches"` // made since GO
	Seconds  float64 `json:"seconds"`

	P50    float64 `json:"p50"` // milliseconds
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
	Missed float64 `json:"missed"` // beats skipped because the answer before was late

	Had      float64 `json:"had"`  // bytes held at the end
	Peak     float64 `json:"peak"` // most bytes held at once
	Refusals float64 `json:"refusals"`

	MedianUs float64 `json:"medianUs"` // one cudaMalloc+cudaFree pair
	P99Us    float64 `json:"p99Us"`

	ItersPerMicrosecond  float64 `json:"itersPerMicrosecond"`
	SMs                  int     `json:"sms"`
	OverheadMicroseconds float64 `json:"overheadMicroseconds"`
	Card                 string  `json:"card"`
}

// rate is finished units a second.
func (a answer) rate() float64 {
	if a.Seconds <= 0 {
		return 0
	}
	return a.Units / a.Seconds
}

// parseLine never fails: a line that is not of the protocol is noise, one that
// looks like it and is damaged is an error line.
func parseLine(s string) line {
	s = strings.TrimRight(s, "\r\n")
	switch {
	case s == "READY":
		return line{kind: isReady}
	case strings.HasPrefix(s, "ERROR "):
		return line{kind: isError, text: strings.TrimPrefix(s, "ERROR ")}
	case strings.HasPrefix(s, "TICK "):
		t, err := parseTick(s)
		if err != nil {
			return line{kind: isError, text: err.Error()}
		}
		return line{kind: isTick, tick: t}
	case strings.HasPrefix(s, `{"mode":`):
		var a answer
		if err := json.Unmarshal([]byte(s), &a); err != nil {
			return line{kind: isError, text: fmt.Sprintf("answer %.80q: %v", s, err)}
		}
		return line{kind: isAnswer, answer: a}
	}
	return line{kind: noise, text: s}
}

func parseTick(s string) (tick, error) {
	f := strings.Fields(s)
	if len(f) != 3 {
		return tick{}, fmt.Errorf("tick %.80q: want a time and a count", s)
	}
	at, err := strconv.ParseFloat(f[1], 64)
	if err != nil {
		return tick{}, fmt.Errorf("tick %.80q: %w", s, err)
	}
	units, err := strconv.ParseFloat(f[2], 64)
	if err != nil {
		return tick{}, fmt.Errorf("tick %.80q: %w", s, err)
	}
	return tick{at: time.UnixMicro(int64(at * 1e6)), units: units}, nil
}

// order is the line that opens a window.
func order(start time.Time, seconds float64) string {
	return fmt.Sprintf("GO %d.%06d %.6f\n", start.Unix(), start.Nanosecond()/1000, seconds)
}
