package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/sys"
)

// Record is one trapped call as it happened: its registers, what was read of
// the tenant's memory, which files its descriptors led to, what the driver's
// answer wrote back, and how the call ended. A list of records can be replayed
// against an engine without the program and without the card.
type Record struct {
	Process int      `json:"p"` // by order of appearance
	NR      int      `json:"nr"`
	Args    []string `json:"a"` // hexadecimal registers
	Reads   []Piece  `json:"r,omitempty"`
	Files   []Opened `json:"f,omitempty"`
	Writes  []Piece  `json:"w,omitempty"`
	End     string   `json:"end"` // "continue", or the result as "value" or "errno N"
}

// Piece is a part of the tenant's memory.
type Piece struct {
	At   string `json:"at"` // hexadecimal address
	Len  int    `json:"n"`
	Data string `json:"d"` // hexadecimal, trailing zeros left off
}

// Opened is what a descriptor number led to.
type Opened struct {
	FD    int      `json:"fd"`
	Kind  FileKind `json:"k"`
	Minor int      `json:"m,omitempty"`
	Errno int      `json:"e,omitempty"`
}

// Recorder writes the calls of a session as compressed JSON lines.
type Recorder struct {
	mu    sync.Mutex
	zip   *gzip.Writer
	enc   *json.Encoder
	procs map[int]int
	err   error
}

// NewRecorder records to w; Close ends it.
func NewRecorder(w io.Writer) *Recorder {
	z := gzip.NewWriter(w)
	return &Recorder{zip: z, enc: json.NewEncoder(z), procs: map[int]int{}}
}

// Close flushes the recording and returns the first error that writing met.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.err, r.zip.Close())
}

// begin starts the record of one call. What it returns takes the place of the
// caller, and the function ends the record.
func (r *Recorder) begin(c caller, n sys.Notification) (caller, func(answer)) {
	rec := &Record{NR: n.NR}
	for _, a := range n.Args {
		rec.Args = append(rec.Args, hexWord(a))
	}
	w := &recording{caller: c, rec: rec}
	return w, func(a answer) {
		switch {
		case a.cont:
			rec.End = "continue"
		case a.errno != 0:
			rec.End = fmt.Sprintf("errno %d", int(a.errno))
		default:
			rec.End = "value"
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		p, ok := r.procs[c.process()]
		if !ok {
			p = len(r.procs)
			r.procs[c.process()] = p
		}
		rec.Process = p
		r.err = errors.Join(r.err, r.enc.Encode(rec))
	}
}

// recording is a caller whose every access is noted.
type recording struct {
	caller
	rec *Record
}

func (w *recording) read(addr uint64, b []byte) error {
	err := w.caller.read(addr, b)
	if err == nil {
		w.rec.Reads = append(w.rec.Reads, piece(addr, b))
	}
	return err
}

func (w *recording) write(addr uint64, b []byte) error {
	w.rec.Writes = append(w.rec.Writes, piece(addr, b))
	return w.caller.write(addr, b)
}

func (w *recording) open(fd int) (File, error) {
	f, err := w.caller.open(fd)
	o := Opened{FD: fd, Kind: f.Kind, Minor: f.Minor}
	if err != nil {
		var e unix.Errno
		if errors.As(err, &e) {
			o.Errno = int(e)
		}
	}
	w.rec.Files = append(w.rec.Files, o)
	return f, err
}

func hexWord(v uint64) string { return fmt.Sprintf("%x", v) }

func piece(addr uint64, b []byte) Piece {
	return Piece{At: hexWord(addr), Len: len(b), Data: hex.EncodeToString(bytes.TrimRight(b, "\x00"))}
}

// Bytes returns the piece's content.
func (p Piece) Bytes() ([]byte, error) {
	if p.Len < 0 || p.Len > arenaBytes {
		return nil, fmt.Errorf("recorded piece of %d bytes: want 0 to %d", p.Len, arenaBytes)
	}
	head, err := hex.DecodeString(p.Data)
	if err != nil {
		return nil, fmt.Errorf("recorded piece: %w", err)
	}
	if len(head) > p.Len {
		return nil, fmt.Errorf("recorded piece: %d bytes of data for a length of %d", len(head), p.Len)
	}
	out := make([]byte, p.Len)
	copy(out, head)
	return out, nil
}

// ReadRecords reads a recording.
func ReadRecords(r io.Reader) ([]Record, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	defer z.Close()
	var out []Record
	for dec := json.NewDecoder(z); ; {
		var rec Record
		switch err := dec.Decode(&rec); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("recording, call %d: %w", len(out)+1, err)
		}
		out = append(out, rec)
	}
}
