package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOwnSocket(t *testing.T) {
	env := func(v string) func(string) string {
		return func(k string) string {
			if k == "XDG_RUNTIME_DIR" {
				return v
			}
			return ""
		}
	}
	for _, c := range []struct {
		uid       int
		xdg, want string
	}{
		{0, "/run/user/0", SystemSocket},
		{1000, "/run/user/1000", "/run/user/1000/penstock/agent.sock"},
		{1000, "", filepath.Join(os.TempDir(), "penstock-1000", "agent.sock")},
	} {
		if got := OwnSocket(c.uid, env(c.xdg)); got != c.want {
			t.Errorf("user %d, %q: %s, want %s", c.uid, c.xdg, got, c.want)
		}
	}
	a, b := EmulatedSocket(SystemSocket, "/a"), EmulatedSocket(SystemSocket, "/b")
	if a == b || filepath.Dir(filepath.Dir(a)) != "/run" {
		t.Errorf("emulated cards at %s and %s", a, b)
	}
}

// A directory in which somebody else could put a socket is not used.
func TestUntrustedDirectories(t *testing.T) {
	base := t.TempDir()
	path := func(name string) string { return filepath.Join(base, name, "agent.sock") }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(base, "open"), 0o700))
	must(os.Chmod(filepath.Join(base, "open"), 0o777))
	must(os.Symlink(base, filepath.Join(base, "link")))
	must(os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	cases := map[string]string{"open": "writable by others", "link": "is no directory", "file": "is no directory"}
	if os.Geteuid() == 0 {
		must(os.Mkdir(filepath.Join(base, "foreign"), 0o700))
		must(os.Chown(filepath.Join(base, "foreign"), 65534, 65534))
		cases["foreign"] = "belongs to user 65534"
	}
	for name, want := range cases {
		if err := prepareDir(path(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	must(prepareDir(path("new")))
	must(prepareDir(path("new")))
	if st, err := os.Stat(filepath.Join(base, "new")); err != nil || st.Mode().Perm()&0o022 != 0 {
		t.Errorf("%v, %v", st, err)
	}
}
