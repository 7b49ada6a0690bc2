package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// store keeps promises and card baselines as files, for the next worker.
// Nothing is synced: what a power cut loses, it loses together with the
// tenants.
type store struct{ dir string }

func openStore(dir string) (store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return store{}, fmt.Errorf("state directory: %w", err)
	}
	return store{dir}, nil
}

func (s store) grant(id string) string { return filepath.Join(s.dir, id+".json") }

// Put writes a promise, whole or not at all.
func (s store) Put(p Promise) error { return s.write(s.grant(p.ID), p) }

// Remove forgets a promise and what the engine wrote about it.
func (s store) Remove(id string) error {
	return errors.Join(remove(s.grant(id)), remove(filepath.Join(s.dir, id+".journal")))
}

// Load reads all promises, oldest first. Files that are none are skipped and
// reported.
func (s store) Load() ([]Promise, error) {
	names, err := filepath.Glob(s.grant("t-*"))
	if err != nil {
		return nil, fmt.Errorf("read the state directory: %w", err)
	}
	var all []Promise
	var bad []error
	for _, name := range names {
		var p Promise
		b, err := os.ReadFile(name)
		if err == nil {
			err = decodeStrict(b, &p)
		}
		if err == nil && p.ID != strings.TrimSuffix(filepath.Base(name), ".json") {
			err = fmt.Errorf("it is about grant %q", p.ID)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("grant file %s: %w", name, err))
			continue
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Promise) int { return a.Since.Compare(b.Since) })
	return all, errors.Join(bad...)
}

// PutBaselines and Baselines keep what each card (by UUID) had in use while it
// had no tenant.
func (s store) PutBaselines(m map[string]int64) error {
	return s.write(filepath.Join(s.dir, "baselines.json"), m)
}

func (s store) Baselines() map[string]int64 {
	m := map[string]int64{}
	if b, err := os.ReadFile(filepath.Join(s.dir, "baselines.json")); err == nil {
		_ = json.Unmarshal(b, &m) // a torn file means: not known
	}
	return m
}

func (s store) write(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}
