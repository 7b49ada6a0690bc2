package simcmd

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the scripts in testdata run the command tree as the program "simulator"; run as "sim" itself, the test
// binary is that program.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"simulator": func() {
		c := New()
		c.SilenceErrors = true
		if err := c.ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true})
}
