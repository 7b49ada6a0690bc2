package simcmd

import "github.com/spf13/cobra"

func tidalCmd() *cobra.Command    { return &cobra.Command{Use: "tidal"} }
func topologyCmd() *cobra.Command { return &cobra.Command{Use: "topology"} }
func generateCmd() *cobra.Command { return &cobra.Command{Use: "generate"} }
