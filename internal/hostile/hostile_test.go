package hostile

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
)

func TestMain(m *testing.M) {
	if IsTenant(os.Args) {
		os.Exit(Tenant(os.Args))
	}
	os.Exit(m.Run())
}

// testRace is how long a race is tried in the tests; `penstock hostile` takes longer.
const testRace = 150 * time.Millisecond

// needCard skips where an emulated card cannot be mounted.
func needCard(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	s, err := fusedev.Mount(dir, card.H200())
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAttacks tries every attack; it fails when one succeeds.
func TestAttacks(t *testing.T) {
	needCard(t)
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			if !a.alone {
				t.Parallel()
			}
			s := a.setup
			s.race = testRace
			r := try(t.Context(), a, s)
			switch r.Verdict {
			case Succeeded, Broken:
				t.Errorf("%s: %s", r.Verdict, r.Detail)
			case Skipped:
				t.Skip(r.Detail)
			default:
				t.Log(r.Line())
			}
		})
	}
}
