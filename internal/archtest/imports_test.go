package archtest

import (
	"go/build"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/penstock-gpu/penstock/"

// rule says what a package tree may import beside the standard library.
type rule struct {
	tree string
	own  []string // trees of this module
	libs []string // path prefixes of other modules
}

// rules list every package tree under internal and cmd: a new one must state
// its place here.
var rules = []rule{
	{"internal/gpu", nil, nil},
	{"internal/alloc", []string{"internal/gpu"}, nil},
	{"internal/governor", nil, nil},
	{"internal/abi", nil, nil},
	{"internal/sys", nil, []string{"golang.org/x/sys"}},
	{"internal/engine/kernel", []string{"internal/abi/nvidia", "internal/governor", "internal/sys"}, []string{"golang.org/x/sys", "golang.org/x/net/bpf"}},
	{"internal/emu", []string{"internal/abi/nvidia", "internal/sys", "internal/governor"}, []string{"golang.org/x/sys", "github.com/hanwen/go-fuse"}},
	{"internal/agent", []string{"internal/engine", "internal/governor", "internal/sys", "internal/abi/nvidia"}, []string{"golang.org/x/sys"}},
	{"internal/hostile", []string{"internal/emu", "internal/abi/nvidia", "internal/sys", "internal/engine", "internal/governor"}, []string{"golang.org/x/sys"}},
	{"internal/sim", []string{"internal/alloc", "internal/gpu"}, []string{"github.com/spf13/cobra"}},
	{"internal/archtest", nil, nil},
	{"cmd/penstock", []string{"internal"}, []string{"github.com/spf13/cobra", "golang.org/x/sys", "golang.org/x/term"}},
	{"bench", []string{"internal"}, []string{"golang.org/x/sys"}},
}

// pure packages take no clock, context, environment or logger, and no I/O.
var pure = map[string][]string{
	"internal/gpu":        {"os", "context", "log", "log/slog", "net", "syscall"},
	"internal/alloc":      {"os", "context", "log", "log/slog", "net", "syscall"},
	"internal/governor":   {"os", "context", "log", "log/slog", "net", "syscall"},
	"internal/abi/nvidia": {"os", "context", "log", "log/slog", "net", "syscall", "time"},
}

func packages(t *testing.T) map[string]*build.Package {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*build.Package{}
	for _, top := range []string{"internal", "cmd", "bench"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() || d.Name() == "testdata" {
				return err
			}
			p, err := build.ImportDir(path, 0)
			if err != nil {
				return nil // no Go files for this system
			}
			rel, err := filepath.Rel(root, path)
			out[filepath.ToSlash(rel)] = p
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 5 {
		t.Fatalf("found only %d packages under %s", len(out), root)
	}
	return out
}

func within(path string, trees []string) bool {
	for _, tree := range trees {
		if path == tree || strings.HasPrefix(path, tree+"/") {
			return true
		}
	}
	return false
}

func ruleOf(dir string) *rule {
	for i := range rules {
		if within(dir, []string{rules[i].tree}) {
			return &rules[i]
		}
	}
	return nil
}

func TestImportRules(t *testing.T) {
	for dir, p := range packages(t) {
		r := ruleOf(dir)
		if r == nil {
			t.Errorf("%s has no import rule: add it to the table", dir)
			continue
		}
		for _, imp := range p.Imports {
			own, ours := strings.CutPrefix(imp, module)
			switch {
			case ours && !within(own, append(r.own, r.tree)):
				t.Errorf("%s imports %s, which its rule does not allow", dir, own)
			case !ours && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") && !within(imp, r.libs):
				t.Errorf("%s imports %s, which its rule does not allow", dir, imp)
			case imp == "unsafe" && dir != "internal/sys":
				t.Errorf("%s imports unsafe: its only home is internal/sys", dir)
			}
		}
	}
}

func TestPurePackages(t *testing.T) {
	pkgs := packages(t)
	for dir, banned := range pure {
		p := pkgs[dir]
		if p == nil {
			t.Errorf("no package %s", dir)
			continue
		}
		for _, imp := range p.Imports {
			if within(imp, banned) {
				t.Errorf("%s imports %s: the package is pure", dir, imp)
			}
		}
	}
}
