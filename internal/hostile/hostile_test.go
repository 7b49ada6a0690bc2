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
	results, err := Run(t.Context(), Options{Race: testRace})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		t.Run(r.Name, func(t *testing.T) {
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
	if want := len(Names()); len(results) != want {
		t.Errorf("%d attacks were tried of %d", len(results), want)
	}
}
