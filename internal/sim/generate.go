package sim

import (
	"bufio"
	"fmt"
	"io"
	"math/rand"
)

// GenerateConfig sizes a synthetic cluster and trace.
type GenerateConfig struct {
	Nodes, Pods int
	Hours       float64 // over which the pods arrive
	Seed        int64
}

// nodeKinds are the machines of a mixed cluster and their weights; sizes are typical of public traces, not copies.
var nodeKinds = []struct {
	weight        float64
	cpu, mem, gpu int
	model         string
}{
	{45, 96000, 393216, 8, "A100"}, {30, 96000, 524288, 2, "T4"}, {10, 64000, 262144, 2, "P100"},
	{8, 128000, 1048576, 8, "H100"}, {7, 32000, 131072, 4, "V100"},
}

// podKinds are shapes of requests: milli of one card, or whole cards; CPU in thousandths.
var podKinds = []struct {
	weight            float64
	cpu, count, milli int
	minutes           float64 // mean
}{
	{14, 8000, 0, 0, 120}, {13, 3000, 1, 800, 200}, {9, 8000, 1, 500, 90}, {7, 4000, 1, 300, 60}, {5, 4000, 1, 200, 45},
	{30, 11000, 1, 1000, 150}, {14, 6000, 1, 1000, 60}, {3, 22000, 2, 1000, 240}, {2, 44000, 4, 1000, 300}, {3, 88000, 8, 1000, 360},
}

// GenerateNodes writes a cluster in the layout ReadNodes reads.
func GenerateNodes(w io.Writer, cfg GenerateConfig) error {
	rng := rand.New(rand.NewSource(cfg.Seed))
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "sn,cpu_milli,memory_mib,gpu,model")
	for i := range cfg.Nodes {
		k := nodeKinds[draw(rng, len(nodeKinds), func(i int) float64 { return nodeKinds[i].weight })]
		fmt.Fprintf(b, "node-%05d,%d,%d,%d,%s\n", i, k.cpu, k.mem, k.gpu, k.model)
	}
	return b.Flush()
}

// GeneratePods writes a trace in the layout ReadPods reads, ordered by creation_time, one row at a time.
func GeneratePods(w io.Writer, cfg GenerateConfig) error {
	rng := rand.New(rand.NewSource(cfg.Seed + 1))
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,scheduled_time,deletion_time,tenant")
	gap, at := cfg.Hours*3600/float64(max(1, cfg.Pods)), 0.0
	for i := range cfg.Pods {
		k := podKinds[draw(rng, len(podKinds), func(i int) float64 { return podKinds[i].weight })]
		at += rng.ExpFloat64() * gap
		run := 30 + rng.ExpFloat64()*k.minutes*60
		spec, qos := "", "LS"
		if k.count > 0 && rng.Float64() < 0.1 {
			spec = "A100|H100"
		}
		if rng.Float64() < 0.4 {
			qos = "BE"
		}
		fmt.Fprintf(b, "pod-%07d,%d,%d,%d,%d,%s,%s,%d,%d,%d,team-%d\n", i, k.cpu, k.cpu*2, k.count, k.milli, spec, qos,
			int64(at), int64(at), int64(at+run), rng.Intn(5))
	}
	return b.Flush()
}

// GenerateHosts writes hosts of a fabric in the layout ReadTopology reads: leaves of 8 hosts, spines of 16 leaves.
func GenerateHosts(w io.Writer, cfg GenerateConfig) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "ip,DSW,PSW,ASW")
	for i := range cfg.Nodes {
		fmt.Fprintf(b, "host-%05d,D0,P%d,S%d\n", i, i/128, i/8)
	}
	return b.Flush()
}

// draw picks an index by weight.
func draw(rng *rand.Rand, n int, weight func(int) float64) int {
	sum := 0.0
	for i := range n {
		sum += weight(i)
	}
	x := rng.Float64() * sum
	for i := range n {
		if x -= weight(i); x < 0 {
			return i
		}
	}
	return n - 1
}
