package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// release is set by the linker: -ldflags "-X main.release=v1.2.3".
var release string

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and the drivers it knows",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "penstock %s %s/%s %s\ndrivers: %s\n",
				version(), runtime.GOOS, runtime.GOARCH, runtime.Version(), strings.Join(nvidia.Lines(), ", "))
			return err
		},
	}
}

// version names the release and, where the build knows it, the commit.
func version() string {
	v, commit, dirty := release, "", ""
	info, ok := debug.ReadBuildInfo()
	if ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				commit = " " + s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+changes"
			}
		}
	}
	if v == "" {
		v = "(devel)"
	}
	return v + commit + dirty
}
