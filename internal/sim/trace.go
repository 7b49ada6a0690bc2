package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-gpu/penstock/internal/alloc"
	"github.com/penstock-gpu/penstock/internal/gpu"
)

// Pod is one row of a trace: a request and when it came, started and went, in seconds of the trace's own clock.
type Pod struct {
	alloc.Request
	Created, Scheduled, Deleted int64
}

// FieldError says where a trace is wrong and what was expected there.
type FieldError struct {
	File  string
	Line  int
	Field string
	Value string
	Want  string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s:%d: field %q is %q: expected %s", e.File, e.Line, e.Field, e.Value, e.Want)
}

// table reads a CSV file with a header row, one record at a time, columns by name.
type table struct {
	file   string
	csv    *csv.Reader
	column map[string]int
	record []string
	line   int
	err    error // the first bad field of the present record
}

// openTable reads the header and demands the given columns.
func openTable(file string, r io.Reader, columns ...string) (*table, error) {
	t := &table{file: file, csv: csv.NewReader(r), column: map[string]int{}}
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("file is empty")
		}
		return nil, fmt.Errorf("%s:1: %w: expected a header with the columns %s", file, err, strings.Join(columns, ", "))
	}
	for i, name := range header {
		t.column[strings.TrimPrefix(name, "\ufeff")] = i
	}
	for _, want := range columns {
		if _, ok := t.column[want]; !ok {
			return nil, fmt.Errorf("%s:1: column %q is missing: expected the columns %s", file, want, strings.Join(columns, ", "))
		}
	}
	return t, nil
}

// next reads a record; io.EOF at the end.
func (t *table) next() error {
	rec, err := t.csv.Read()
	if err != nil {
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			return fmt.Errorf("%s:%d: %w: expected %d comma-separated fields", t.file, bad.Line, bad.Err, len(t.column))
		}
		return err
	}
	t.record, t.err = rec, nil
	t.line, _ = t.csv.FieldPos(0)
	return nil
}

func (t *table) text(field string) string {
	if i, ok := t.column[field]; ok {
		return t.record[i]
	}
	return ""
}

func (t *table) fail(field, want string) {
	if t.err == nil {
		t.err = &FieldError{t.file, t.line, field, t.text(field), want}
	}
}

// whole reads a whole number within bounds.
func (t *table) whole(field string, low, high int64) int64 {
	v, err := strconv.ParseInt(t.text(field), 10, 64)
	if err != nil || v < low || v > high {
		t.fail(field, fmt.Sprintf("a whole number from %d to %d", low, high))
	}
	return v
}

// seconds reads a time; empty is 0. Some traces write whole seconds as "12.0".
func (t *table) seconds(field string) int64 {
	s := strings.TrimSuffix(t.text(field), ".0")
	if s == "" {
		return 0
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		t.fail(field, "whole seconds, 0 or more, or empty")
	}
	return v
}

// Limits of what a trace may say; beyond them a field is an error rather than an overflow.
const (
	maxMilliCPU  = 100_000_000
	maxMemoryMiB = 1 << 40 >> 10
	minPodCPU    = 100 // a CPU request of 0 counts as 100m, as kube-scheduler counts it
)

// ReadNodes reads machines in the openb layout: sn, cpu_milli, memory_mib, gpu, model. The optional columns leaf,
// spine, pool, gpu_memory_mib extend it to our own.
func ReadNodes(file string, r io.Reader) ([]gpu.Machine, error) {
	t, err := openTable(file, r, "sn", "cpu_milli", "memory_mib", "gpu", "model")
	if err != nil {
		return nil, err
	}
	var out []gpu.Machine
	for {
		if err := t.next(); err == io.EOF {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		m := gpu.Machine{Name: strings.Clone(t.text("sn")), Pool: gpu.Pool(strings.Clone(t.text("pool"))),
			CPU:      gpu.Milli(t.whole("cpu_milli", 0, maxMilliCPU)),
			Memory:   gpu.Bytes(t.whole("memory_mib", 0, maxMemoryMiB)) * gpu.MiB,
			Position: gpu.Position{Leaf: strings.Clone(t.text("leaf")), Spine: strings.Clone(t.text("spine"))}}
		if m.Name == "" {
			t.fail("sn", "a name")
		}
		memory := gpu.Bytes(0)
		if t.text("gpu_memory_mib") != "" {
			memory = gpu.Bytes(t.whole("gpu_memory_mib", 0, maxMemoryMiB)) * gpu.MiB
		}
		model := gpu.Model(strings.Clone(t.text("model")))
		for i := range t.whole("gpu", 0, alloc.MaxCards) {
			m.Devices = append(m.Devices, gpu.Device{Index: int(i), Model: model, Memory: memory})
		}
		if t.err != nil {
			return nil, t.err
		}
		out = append(out, m)
	}
}

// ReadPods yields the pods of a trace in the openb layout one at a time, in the file's order; memory does not grow
// with the length of the file. The first error ends the sequence. Columns: name, cpu_milli, memory_mib, num_gpu,
// gpu_milli; optional gpu_spec, creation_time, scheduled_time, deletion_time, qos, tenant, priority,
// gpu_memory_mib.
func ReadPods(file string, r io.Reader) iter.Seq2[Pod, error] {
	return func(yield func(Pod, error) bool) {
		t, err := openTable(file, r, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
		if err != nil {
			yield(Pod{}, err)
			return
		}
		models := map[string][]gpu.Model{"": nil}
		for {
			if err := t.next(); err == io.EOF {
				return
			} else if err != nil {
				yield(Pod{}, err)
				return
			}
			p := t.pod(models)
			if t.err != nil {
				yield(Pod{}, t.err)
				return
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

// pod reads the present record.
func (t *table) pod(models map[string][]gpu.Model) Pod {
	p := Pod{Created: t.seconds("creation_time"), Scheduled: t.seconds("scheduled_time"), Deleted: t.seconds("deletion_time")}
	p.ID, p.Tenant = strings.Clone(t.text("name")), strings.Clone(t.text("tenant"))
	if p.ID == "" {
		t.fail("name", "a name")
	}
	p.CPU = gpu.Milli(t.whole("cpu_milli", 0, maxMilliCPU))
	if p.CPU == 0 {
		p.CPU = minPodCPU
	}
	p.Memory = gpu.Bytes(t.whole("memory_mib", 0, maxMemoryMiB)) * gpu.MiB
	p.Count = int(t.whole("num_gpu", 0, alloc.MaxCards))
	if p.Count > 0 {
		p.Share.Compute = gpu.Milli(t.whole("gpu_milli", 1, int64(gpu.Card)))
	} else if t.text("gpu_milli") != "0" && t.text("gpu_milli") != "" {
		t.fail("gpu_milli", "0, since num_gpu is 0")
	}
	if p.Count > 0 && t.text("gpu_memory_mib") != "" {
		p.Share.Memory = gpu.Bytes(t.whole("gpu_memory_mib", 0, maxMemoryMiB)) * gpu.MiB
	}
	if t.text("priority") != "" {
		p.Priority = int32(t.whole("priority", -1<<31, 1<<31-1))
	}
	if q := t.text("qos"); q == "BE" {
		p.Class = alloc.Offline
	}
	spec := t.text("gpu_spec")
	list, ok := models[spec]
	if !ok {
		for _, m := range strings.Split(spec, "|") {
			if m == "" {
				t.fail("gpu_spec", "models separated by |, or empty")
			}
			list = append(list, gpu.Model(strings.Clone(m)))
		}
		models[strings.Clone(spec)] = list
	}
	p.Models = list
	return p
}

// LoadNodes reads a file of machines.
func LoadNodes(path string) ([]gpu.Machine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadNodes(path, f)
}

// LoadPods reads a whole file of pods.
func LoadPods(path string) ([]Pod, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Pod
	for p, err := range ReadPods(path, f) {
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
