package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// workerEnv makes this test binary a worker instead: what it says decides how
// the worker behaves.
const workerEnv = "ISOLATION_TEST_WORKER"

func TestMain(m *testing.M) {
	if how := os.Getenv(workerEnv); how != "" {
		pretend(how)
		return
	}
	os.Exit(m.Run())
}

// pretend speaks the workers' protocol. It finishes 10 units a second for each
// percent of its share.
func pretend(how string) {
	switch how {
	case "broken":
		fmt.Fprintln(os.Stderr, "libcuda.so.1: not found")
		os.Exit(3)
	case "refused":
		fmt.Println("ERROR cudaSetDevice(0): cudaErrorNoDevice")
		os.Exit(1)
	case "silent":
		time.Sleep(time.Hour)
	}
	fmt.Println("a framework says hello")
	fmt.Println("READY")
	share, err := strconv.ParseFloat(os.Getenv("SHARE"), 64)
	if err != nil {
		share = 100
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var at, seconds float64
		if n, _ := fmt.Sscanf(in.Text(), "GO %f %f", &at, &seconds); n != 2 {
			return
		}
		fmt.Println("TICK 1.5 3")
		fmt.Printf(`{"mode":"kernel","units":%f,"launches":9,"seconds":%f}`+"\n", 10*share*seconds, seconds)
	}
}

// fakePenstock answers the command line under test well enough for the bench.
const fakePenstock = `#!/bin/sh
verb=$1; shift
case $verb in
agent) exec cat ;;
top) echo '{"pid":0,"holder":0,"cards":[{"name":"fake","driver":"1.2.3"}],"tenants":[]}' ;;
run)
	while [ "$1" != -- ]; do
		case $1 in
		--compute) SHARE=${2%\%} ;;
		--weight) SHARE=$2 ;;
		--policy) [ "$2" = burst ] && burst=1 ;;
		esac
		shift
	done
	shift
	[ -n "$burst" ] && SHARE=100
	export SHARE
	exec "$@" ;;
esac
`

func fakes(t *testing.T) (penstock string) {
	t.Helper()
	t.Setenv(workerEnv, "works")
	penstock = filepath.Join(t.TempDir(), "penstock")
	if err := os.WriteFile(penstock, []byte(fakePenstock), 0o755); err != nil {
		t.Fatal(err)
	}
	return penstock
}

func TestWholeRun(t *testing.T) {
	penstock, out := fakes(t), t.TempDir()
	args := []string{"-penstock", penstock, "-emulated", t.TempDir(), "-out", out, "-seconds", "0.1",
		"-sections", "solo,caps,pairs,idle,native"}
	if err := run(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	r, err := readResult(filepath.Join(out, "emulated-isolation.json"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Card != "emulated" || r.Driver != "1.2.3" || r.FailedCases != 0 {
		t.Errorf("result %+v", r)
	}
	if r.MeanAbsErrorPoints == nil || *r.MeanAbsErrorPoints != 0 || *r.SumOfSoloPercent != 100 || *r.LoneBurstPercent != 100 {
		t.Errorf("headline %+v", r.Headline)
	}
	page, err := os.ReadFile(filepath.Join(out, "emulated-isolation.md"))
	if err != nil || !strings.Contains(string(page), "# Isolation on emulated") {
		t.Errorf("page: %v", err)
	}
}

// A case that cannot run is a row with an error; the others go on, and the
// program says so at the end.
func TestFailingCasesAreRows(t *testing.T) {
	for how, want := range map[string]string{
		"broken":  "libcuda.so.1: not found",
		"refused": "cudaErrorNoDevice",
	} {
		t.Run(how, func(t *testing.T) {
			penstock, out := fakes(t), t.TempDir()
			t.Setenv(workerEnv, how)
			args := []string{"-penstock", penstock, "-emulated", t.TempDir(), "-out", out, "-sections", "solo,three"}
			err := run(context.Background(), args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), "cases failed") {
				t.Fatalf("run: %v", err)
			}
			r, err := readResult(filepath.Join(out, "emulated-isolation.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Rows {
				if !strings.Contains(row.Error, want) {
					t.Errorf("row %s %s: error %q, want %q", row.Section, row.Case, row.Error, want)
				}
			}
			if len(r.Rows) < 2 {
				t.Errorf("%d rows", len(r.Rows))
			}
		})
	}
}

// An end from outside leaves the files and no process.
func TestEndedEarly(t *testing.T) {
	penstock, out := fakes(t), t.TempDir()
	t.Setenv(workerEnv, "silent")
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := run(ctx, []string{"-penstock", penstock, "-emulated", t.TempDir(), "-out", out}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "ended early") {
		t.Errorf("run: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the end took %v", took)
	}
	if _, err := readResult(filepath.Join(out, "emulated-isolation.json")); err != nil {
		t.Error(err)
	}
}

func TestBudget(t *testing.T) {
	penstock, out := fakes(t), t.TempDir()
	args := []string{"-penstock", penstock, "-emulated", t.TempDir(), "-out", out, "-sections", "solo,three", "-budget", "1ns"}
	if err := run(context.Background(), args, io.Discard); err == nil {
		t.Error("skipped cases must not look like success")
	}
	r, err := readResult(filepath.Join(out, "emulated-isolation.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if !strings.Contains(row.Error, "skipped") {
			t.Errorf("row %+v", row)
		}
	}
}

func TestAwaitTimesOut(t *testing.T) {
	w, err := launch("slow", []string{"sh", "-c", "echo warning >&2; sleep 60"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.kill()
	if _, err := w.await(context.Background(), isReady, 300*time.Millisecond); err == nil || !strings.Contains(err.Error(), "nothing for 300ms: warning") {
		t.Errorf("await: %v", err)
	}
}

// A tenant that leaves processes behind must not keep the bench waiting.
func TestKillTakesTheGroup(t *testing.T) {
	w, err := launch("parent", []string{"sh", "-c", "sleep 300 & echo READY; wait"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.await(context.Background(), isReady, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	w.kill()
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("kill took %v", took)
	}
}
