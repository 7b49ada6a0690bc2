// Command isolation measures how exactly penstock shares one card.
//
// It starts worker programs as tenants, opens one measuring window over all of
// them, and judges each by the work it finished in the window, as a percentage
// of what the same program finished alone, without penstock, in the same run.
// docs/bench/README.md says how to reproduce the tables and defines every
// column.
//
//	config      flags → config
//	protocol    what workers print and obey
//	worker      one child process in its own process group
//	measure     several workers, one window
//	penstock    the command line under test: agent, run, top
//	workload    which program stands for which name
//	sections    the cases, in files sec_*.go
//	result      rows, headline figures, files
//	report      result → Markdown (pure)
package main
