package simcmd

import (
	"context"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "sim" {
		c := New()
		c.SetArgs(os.Args[2:])
		if err := c.ExecuteContext(context.Background()); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
