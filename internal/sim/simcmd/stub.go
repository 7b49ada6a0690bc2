package simcmd

import "github.com/spf13/cobra"

func generateCmd() *cobra.Command { return &cobra.Command{Use: "generate"} }
