// Package simcmd is the command tree of "penstock sim": flags in, package sim's runs, tables or JSON lines out.
package simcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/internal/sim"
	"github.com/spf13/cobra"
)

// New builds the command "sim" with all it can do.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Run the scheduler on traces, without a cluster",
		Long: `Run penstock's decision core on traces under a virtual clock.

Traces are CSV files in the layout of the public openb trace; "penstock sim generate" makes some, so that nothing
needs to be downloaded. Every run repeats exactly for the same seed.`,
		SilenceUsage: true,
	}
	cmd.AddCommand(inflateCmd(), trainCmd(), boundCmd(), scaleCmd(), replayCmd(), tidalCmd(), topologyCmd(), generateCmd())
	return cmd
}

// output is where results go, shared by all commands.
type output struct {
	json bool
	html string
}

func (o *output) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON object a line instead of tables")
	cmd.Flags().StringVar(&o.html, "html", "", "write a self-contained HTML report with plots to this file")
}

// lines prints each value as a line of JSON.
func lines[T any](w io.Writer, values ...T) error {
	e := json.NewEncoder(w)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// report writes the HTML report when one was asked for.
func (o *output) report(r *sim.Report) error {
	if o.html == "" {
		return nil
	}
	f, err := os.Create(o.html)
	if err != nil {
		return err
	}
	if err := r.Write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// parseSeeds reads "42-51", "1,2,3" or a mix.
func parseSeeds(s string) ([]int64, error) {
	var out []int64
	for _, part := range strings.Split(s, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, errA := strconv.ParseInt(low, 10, 64)
		b, errB := strconv.ParseInt(high, 10, 64)
		if errA != nil || errB != nil || b < a || b-a > 1_000_000 {
			return nil, fmt.Errorf("--seeds: %q is no list of seeds: expected numbers and ranges, such as 42-51 or 1,2,7-9", s)
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out, nil
}

// bar draws progress on a terminal and is silent elsewhere.
type bar struct {
	w     io.Writer
	start time.Time
	last  time.Time
}

func newBar(cmd *cobra.Command) *bar {
	b := &bar{start: time.Now()}
	if f, ok := cmd.ErrOrStderr().(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			b.w = f
		}
	}
	return b
}

func (b *bar) step(done, total int) {
	if b.w == nil || total == 0 || done < total && time.Since(b.last) < 100*time.Millisecond {
		return
	}
	b.last = time.Now()
	const width = 40
	n := done * width / total
	left := time.Duration(float64(time.Since(b.start)) / float64(max(1, done)) * float64(total-done)).Round(time.Second)
	fmt.Fprintf(b.w, "\r[%s%s] %d/%d, %v left ", strings.Repeat("=", n), strings.Repeat(" ", width-n), done, total, left)
	if done == total {
		fmt.Fprintf(b.w, "\r\033[K")
	}
}

// workload is the pair of files most commands read.
type workload struct{ nodes, pods string }

func (w *workload) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.nodes, "nodes", "", "CSV file of machines: sn, cpu_milli, memory_mib, gpu, model")
	cmd.Flags().StringVar(&w.pods, "pods", "", "CSV file of pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, …")
	_ = cmd.MarkFlagRequired("nodes")
	_ = cmd.MarkFlagRequired("pods")
}
