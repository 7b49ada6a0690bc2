package kernel

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// corpusDir holds the recordings; its README says where they come from.
const corpusDir = "testdata/corpus"

// corpusLimit is the memory limit, in bytes, under which they were made.
const corpusLimit = 20 << 30

// corpusDriver is the driver that they were made with.
const corpusDriver = "580.159.04"

// maxRecording bounds a recording's compressed size, in bytes.
const maxRecording = 40 << 10

func corpus(tb testing.TB) map[string][]Record {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join(corpusDir, "*.rec"))
	if err != nil || len(paths) == 0 {
		tb.Fatalf("no recordings in %s: %v", corpusDir, err)
	}
	out := map[string][]Record{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			tb.Fatal(err)
		}
		recs, err := ReadRecords(bytes.NewReader(b))
		if err != nil {
			tb.Fatalf("%s: %v", p, err)
		}
		out[strings.TrimSuffix(filepath.Base(p), ".rec")] = recs
	}
	return out
}

// TestCorpusIsScrubbed: what is committed is small and says nothing about the
// run or the card it was made on.
func TestCorpusIsScrubbed(t *testing.T) {
	paths, _ := filepath.Glob(filepath.Join(corpusDir, "*.rec"))
	for _, p := range paths {
		if st, err := os.Stat(p); err != nil || st.Size() > maxRecording {
			t.Errorf("%s: %v, %v, want at most %d bytes", p, st.Size(), err, maxRecording)
		}
	}
	for name, recs := range corpus(t) {
		if id := cardUUID(recs); id != nil && !bytes.Equal(id, fixedUUID[:]) {
			t.Errorf("%s: names its card %x", name, id)
		}
		stray := func(v, _ uint64) {
			if v >= randomFrom && v < randomTo && v>>40 != stableFrom>>40 {
				t.Errorf("%s: address %#x was not moved", name, v)
			}
		}
		for i := range recs {
			if err := noteAddresses(&recs[i], stray); err != nil {
				t.Errorf("%s, call %d: %v", name, i, err)
			}
		}
	}
}

// TestCorpusCoverage: the corpus keeps exercising what it was recorded for.
func TestCorpusCoverage(t *testing.T) {
	mmaps := 0
	for name, recs := range corpus(t) {
		if len(recs) < 50 {
			t.Errorf("%s: only %d calls", name, len(recs))
		}
		for _, r := range recs {
			if r.NR == unix.SYS_MMAP {
				mmaps++
			}
		}
	}
	if mmaps == 0 {
		t.Error("no managed memory in the corpus")
	}
}
