// common.h: what every worker of bench/isolation shares: checked CUDA calls, the wall clock,
// arguments, and the line protocol with the bench.
//
// A worker warms up, prints "READY", and then obeys lines on its standard input:
//
//	GO <t0> <seconds>	work from a little before t0 (seconds since the epoch, CLOCK_REALTIME)
//				until a little after t0+seconds, count what finished in between,
//				and print one line of JSON
//	QUIT, or end of file	leave with status 0
//
// A failure prints "ERROR <what>: <why>" and leaves with status 1.

#pragma once

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Work starts this long before the window and goes on this long after it, so that every tenant is
// busy, at full clocks, for the whole of everybody's window.
static const double kRamp = 0.4;
static const double kTail = 0.1;

static void die(const char *what, const char *why) {
  printf("ERROR %s: %s\n", what, why);
  fflush(stdout);
  _exit(1);
}

static void checkCuda(cudaError_t err, const char *what) {
  if (err != cudaSuccess) die(what, cudaGetErrorName(err));
}
#define CHECK(call) checkCuda((call), #call)

static double now(void) {
  struct timespec ts;
  if (clock_gettime(CLOCK_REALTIME, &ts) != 0) die("clock_gettime", strerror(errno));
  return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

// sleepUntil sleeps to within 0.1 ms of t and spins the rest.
static void sleepUntil(double t) {
  for (double left = t - now(); left > 0; left = t - now()) {
    if (left > 2e-4) usleep((useconds_t)((left - 1e-4) * 1e6));
  }
}

struct Window {
  double t0, t1;
};

// nextWindow waits for the next order. False means: leave.
static bool nextWindow(Window *w) {
  char line[256];
  while (fgets(line, sizeof line, stdin) != NULL) {
    double t0, seconds;
    if (sscanf(line, "GO %lf %lf", &t0, &seconds) == 2) {
      if (seconds <= 0 || seconds > 3600) die("GO", "seconds out of range");
      w->t0 = t0;
      w->t1 = t0 + seconds;
      return true;
    }
    if (strncmp(line, "QUIT", 4) == 0) return false;
    if (line[0] != '\n') die("order not understood", line);
  }
  return false;
}

static void ready(void) {
  printf("READY\n");
  fflush(stdout);
}

// Arguments are --name value pairs.
static const char *argText(int argc, char **argv, const char *name, const char *otherwise) {
  for (int i = 1; i + 1 < argc; i++) {
    if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0) return argv[i + 1];
  }
  return otherwise;
}

static double argNumber(int argc, char **argv, const char *name, double otherwise) {
  const char *text = argText(argc, argv, name, NULL);
  if (text == NULL) return otherwise;
  char *end = NULL;
  double v = strtod(text, &end);
  if (end == text || *end != '\0' || v < 0) die(name, "not a number >= 0");
  return v;
}
