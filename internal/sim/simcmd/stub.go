package simcmd

import "github.com/spf13/cobra"

func tidalCmd() *cobra.Command    { return &cobra.Command{Use: "tidal"} }
func generateCmd() *cobra.Command { return &cobra.Command{Use: "generate"} }
