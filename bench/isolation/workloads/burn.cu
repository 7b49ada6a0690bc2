// burn: the compute and copy workloads of bench/isolation, one mode a run.
//
//	burn --mode calibrate					one JSON line: how long the fixed work takes
//	burn --mode kernel     --iters N --waves W --chunk C --depth D
//	burn --mode graph      --iters N --chunk 20 --depth D	CUDA graphs of `chunk` kernels
//	burn --mode persistent --iters N --units U		one block an SM, U units a launch
//	burn --mode coop       --iters N --rounds R --depth D	grid.sync() between R rounds
//	burn --mode copy       --mib 64 --depth D		both directions at once, two streams
//	burn --mode latency    --iters N --waves W --period-ms 2
//
// --ticks MS prints "TICK <time> <units>" about that often while a window runs.
//
// The work is a fixed number of FMAs (--iters, from calibrate), never a fixed time: a time-bound spin
// finishes on schedule however little of the card it had, and would hide every error.
//
// Build: nvcc -O3 -arch=sm_90 -o burn burn.cu -lcuda

#include "common.h"

#include <cooperative_groups.h>

#include <algorithm>
#include <vector>

static const int kThreads = 1024;
static const int kBlocksPerSM = 2;  // 2 × 1024 threads fill an SM
static const int kMaxDepth = 64;

// ---- kernels ----

// spend does 16 × iters dependent FMAs in four chains. The result is returned so that none is dropped.
__device__ static float spend(int iters) {
  float a = (float)threadIdx.x * 1e-6f, b = a + 0.1f, c = a + 0.2f, d = a + 0.3f;
  const float m = 0.999f, k = 1e-4f;
  for (int i = 0; i < iters; i++) {
    a = fmaf(a, m, k); b = fmaf(b, m, k); c = fmaf(c, m, k); d = fmaf(d, m, k);
    a = fmaf(a, m, k); b = fmaf(b, m, k); c = fmaf(c, m, k); d = fmaf(d, m, k);
    a = fmaf(a, m, k); b = fmaf(b, m, k); c = fmaf(c, m, k); d = fmaf(d, m, k);
    a = fmaf(a, m, k); b = fmaf(b, m, k); c = fmaf(c, m, k); d = fmaf(d, m, k);
  }
  return a + b + c + d;
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSM) workKernel(float *sink, int iters) {
  float v = spend(iters);
  if (v == 123456.0f) *sink = v;  // never true
}

// persistentKernel counts its finished units, a block at a time, in memory the host reads while it runs.
__global__ void __launch_bounds__(kThreads, 1)
    persistentKernel(float *sink, volatile unsigned long long *counters, int iters, int units) {
  unsigned long long done = 0;
  if (threadIdx.x == 0) done = counters[blockIdx.x];
  for (int u = 0; u < units; u++) {
    float v = spend(iters);
    if (v == 123456.0f) *sink = v;
    __syncthreads();
    if (threadIdx.x == 0) {
      done++;
      counters[blockIdx.x] = done;
      __threadfence_system();
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1) coopKernel(float *sink, int iters, int rounds) {
  cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (int r = 0; r < rounds; r++) {
    float v = spend(iters);
    if (v == 123456.0f) *sink = v;
    grid.sync();
  }
}

// ---- one worker ----

struct Worker {
  cudaStream_t stream;
  float *sink;
  int sms;
  int iters, waves, chunk, depth, units, rounds;
  double tickSeconds;
};

struct Outcome {
  unsigned long long units;     // finished inside the window
  unsigned long long launches;  // made since GO, in and around the window
};

static void launchWork(const Worker &w) {
  int iters = std::max(1, w.iters / w.waves);
  float *sink = w.sink;
  void *args[] = {&sink, &iters};
  dim3 grid((unsigned)(w.sms * kBlocksPerSM * w.waves)), block(kThreads);
  CHECK(cudaLaunchKernel((const void *)workKernel, grid, block, args, 0, w.stream));
}

static void launchCoop(const Worker &w) {
  int iters = w.iters, rounds = w.rounds;
  float *sink = w.sink;
  void *args[] = {&sink, &iters, &rounds};
  dim3 grid((unsigned)w.sms), block(kThreads);
  CHECK(cudaLaunchCooperativeKernel((const void *)coopKernel, grid, block, args, 0, w.stream));
}

static void launchPersistent(const Worker &w, volatile unsigned long long *counters) {
  int iters = w.iters, units = w.units;
  float *sink = w.sink;
  void *args[] = {&sink, &counters, &iters, &units};
  dim3 grid((unsigned)w.sms), block(kThreads);
  CHECK(cudaLaunchKernel((const void *)persistentKernel, grid, block, args, 0, w.stream));
}

struct Ticker {
  double every, next;
  void tick(double t, unsigned long long units) {
    if (every <= 0 || t < next) return;
    printf("TICK %.6f %llu\n", t, units);
    fflush(stdout);
    next = t + every;
  }
};

// pump keeps `depth` chunks in flight and counts those that finish inside the window. submit enqueues
// one chunk and returns the stream on which its end can be recorded.
template <typename Submit>
static Outcome pump(const Worker &w, const Window &win, int launchesPerChunk, Submit submit) {
  std::vector<cudaEvent_t> ev(w.depth);
  for (size_t i = 0; i < ev.size(); i++)
    CHECK(cudaEventCreateWithFlags(&ev[i], cudaEventDisableTiming));
  Outcome out = {0, 0};
  Ticker ticker = {w.tickSeconds, 0};
  unsigned long long all = 0;
  long long head = 0, tail = 0;
  sleepUntil(win.t0 - kRamp);
  for (;;) {
    while (head - tail < (long long)ev.size() && now() < win.t1 + kTail) {
      cudaStream_t s = submit();
      CHECK(cudaEventRecord(ev[head % (long long)ev.size()], s));
      out.launches += (unsigned long long)launchesPerChunk;
      head++;
    }
    if (head == tail) break;
    CHECK(cudaEventSynchronize(ev[tail % (long long)ev.size()]));
    tail++;
    double t = now();
    all += (unsigned long long)w.chunk;
    if (t >= win.t0 && t < win.t1) out.units += (unsigned long long)w.chunk;
    ticker.tick(t, all);
  }
  for (size_t i = 0; i < ev.size(); i++) CHECK(cudaEventDestroy(ev[i]));
  return out;
}

static void report(const char *mode, const Window &win, const Outcome &out) {
  printf("{\"mode\":\"%s\",\"units\":%llu,\"launches\":%llu,\"seconds\":%.6f}\n", mode, out.units,
         out.launches, win.t1 - win.t0);
  fflush(stdout);
}

// ---- modes ----

static void runKernel(const Worker &w) {
  for (int i = 0; i < 3 * w.chunk; i++) launchWork(w);
  CHECK(cudaStreamSynchronize(w.stream));
  ready();
  Window win;
  while (nextWindow(&win)) {
    Outcome out = pump(w, win, w.chunk, [&]() {
      for (int i = 0; i < w.chunk; i++) launchWork(w);
      return w.stream;
    });
    report("kernel", win, out);
  }
}

static void runGraph(const Worker &w) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  launchWork(w);  // loads the module outside the capture
  CHECK(cudaStreamSynchronize(w.stream));
  CHECK(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < w.chunk; i++) launchWork(w);
  CHECK(cudaStreamEndCapture(w.stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(exec, w.stream));
  CHECK(cudaStreamSynchronize(w.stream));
  ready();
  Window win;
  while (nextWindow(&win)) {
    Outcome out = pump(w, win, 1, [&]() {
      CHECK(cudaGraphLaunch(exec, w.stream));
      return w.stream;
    });
    report("graph", win, out);
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
}

static void runCoop(const Worker &w) {
  int supported = 0;
  CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
  if (!supported) die("coop", "the device has no cooperative launch");
  for (int i = 0; i < 3; i++) launchCoop(w);
  CHECK(cudaStreamSynchronize(w.stream));
  ready();
  Window win;
  while (nextWindow(&win)) {
    Outcome out = pump(w, win, 1, [&]() {
      launchCoop(w);
      return w.stream;
    });
    report("coop", win, out);
  }
}

static unsigned long long total(volatile unsigned long long *counters, int n) {
  unsigned long long sum = 0;
  for (int i = 0; i < n; i++) sum += counters[i];
  return sum;
}

// watchPersistent reads the counters at the two ends of the window while launches keep coming.
static Outcome watchPersistent(const Worker &w, const Window &win, volatile unsigned long long *host,
                               volatile unsigned long long *dev) {
  cudaEvent_t ev[2];
  for (int i = 0; i < 2; i++) CHECK(cudaEventCreateWithFlags(&ev[i], cudaEventDisableTiming));
  Outcome out = {0, 0};
  Ticker ticker = {w.tickSeconds, 0};
  unsigned long long first = 0;
  bool opened = false, closed = false;
  long long head = 0, tail = 0;
  sleepUntil(win.t0 - kRamp);
  for (;;) {
    double t = now();
    unsigned long long sum = total(host, w.sms);
    if (!opened && t >= win.t0) {
      first = sum;
      opened = true;
    }
    if (!closed && t >= win.t1) {
      out.units = sum - first;
      closed = true;
    }
    ticker.tick(t, sum);
    while (head - tail < 2 && t < win.t1 + kTail) {
      launchPersistent(w, dev);
      CHECK(cudaEventRecord(ev[head % 2], w.stream));
      out.launches++;
      head++;
    }
    if (head == tail) break;
    cudaError_t q = cudaEventQuery(ev[tail % 2]);
    if (q == cudaSuccess) {
      tail++;
      continue;
    }
    if (q != cudaErrorNotReady) checkCuda(q, "cudaEventQuery");
    usleep(100);
  }
  for (int i = 0; i < 2; i++) CHECK(cudaEventDestroy(ev[i]));
  return out;
}

static void runPersistent(const Worker &w) {
  unsigned long long *host = NULL, *dev = NULL;
  CHECK(cudaHostAlloc((void **)&host, sizeof(*host) * (size_t)w.sms, cudaHostAllocMapped));
  memset(host, 0, sizeof(*host) * (size_t)w.sms);
  CHECK(cudaHostGetDevicePointer((void **)&dev, host, 0));
  launchPersistent(w, dev);
  CHECK(cudaStreamSynchronize(w.stream));
  ready();
  Window win;
  while (nextWindow(&win)) report("persistent", win, watchPersistent(w, win, host, dev));
  CHECK(cudaFreeHost(host));
}

// runCopy moves blocks in both directions at once. One unit is one block there and one block back; a
// third stream joins the two, so that neither direction ever waits for the other.
static void runCopy(const Worker &w, size_t bytes) {
  void *hostUp = NULL, *hostDown = NULL, *devUp = NULL, *devDown = NULL;
  CHECK(cudaHostAlloc(&hostUp, bytes, cudaHostAllocDefault));
  CHECK(cudaHostAlloc(&hostDown, bytes, cudaHostAllocDefault));
  memset(hostUp, 0x5a, bytes);
  CHECK(cudaMalloc(&devUp, bytes));
  CHECK(cudaMalloc(&devDown, bytes));
  CHECK(cudaMemset(devDown, 0xa5, bytes));
  cudaStream_t up, down;
  CHECK(cudaStreamCreateWithFlags(&up, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&down, cudaStreamNonBlocking));
  cudaEvent_t upDone, downDone;
  CHECK(cudaEventCreateWithFlags(&upDone, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&downDone, cudaEventDisableTiming));
  auto submit = [&]() {
    CHECK(cudaMemcpyAsync(devUp, hostUp, bytes, cudaMemcpyHostToDevice, up));
    CHECK(cudaEventRecord(upDone, up));
    CHECK(cudaMemcpyAsync(hostDown, devDown, bytes, cudaMemcpyDeviceToHost, down));
    CHECK(cudaEventRecord(downDone, down));
    CHECK(cudaStreamWaitEvent(w.stream, upDone, 0));
    CHECK(cudaStreamWaitEvent(w.stream, downDone, 0));
    return w.stream;
  };
  for (int i = 0; i < 3; i++) submit();
  CHECK(cudaDeviceSynchronize());
  ready();
  Window win;
  while (nextWindow(&win)) {
    Outcome out = pump(w, win, 2, submit);
    report("copy", win, out);
  }
}

static double percentile(const std::vector<double> &sorted, double p) {
  if (sorted.empty()) return 0;
  size_t rank = (size_t)(p / 100.0 * (double)sorted.size());  // nearest rank, 0-based
  return sorted[std::min(rank, sorted.size() - 1)];
}

// runLatency submits one kernel a period and measures submit → finished. A late answer never makes a
// burst of catch-up submissions: missed beats are counted and skipped.
static void runLatency(const Worker &w, double period) {
  for (int i = 0; i < 20; i++) launchWork(w);
  CHECK(cudaStreamSynchronize(w.stream));
  ready();
  Window win;
  while (nextWindow(&win)) {
    std::vector<double> ms;
    unsigned long long missed = 0, launches = 0;
    Ticker ticker = {w.tickSeconds, 0};
    double next = win.t0 - kRamp;
    while (next < win.t1) {
      sleepUntil(next);
      double from = now();
      launchWork(w);
      CHECK(cudaStreamSynchronize(w.stream));
      double to = now();
      launches++;
      if (next >= win.t0) ms.push_back((to - from) * 1e3);
      ticker.tick(to, launches);
      for (next += period; next < to; next += period)
        if (next >= win.t0 && next < win.t1) missed++;
    }
    std::sort(ms.begin(), ms.end());
    printf("{\"mode\":\"latency\",\"units\":%zu,\"launches\":%llu,\"seconds\":%.6f,\"p50\":%.4f,"
           "\"p99\":%.4f,\"max\":%.4f,\"missed\":%llu}\n",
           ms.size(), launches, win.t1 - win.t0, percentile(ms, 50), percentile(ms, 99),
           ms.empty() ? 0.0 : ms.back(), missed);
    fflush(stdout);
  }
}

// timeWork is the median duration, in microseconds, of one kernel of `iters`.
static double timeWork(Worker w, int iters) {
  w.iters = iters;
  w.waves = 1;
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<double> us;
  for (int i = 0; i < 25; i++) {
    CHECK(cudaEventRecord(from, w.stream));
    launchWork(w);
    CHECK(cudaEventRecord(to, w.stream));
    CHECK(cudaEventSynchronize(to));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, from, to));
    us.push_back((double)ms * 1e3);
  }
  CHECK(cudaEventDestroy(from));
  CHECK(cudaEventDestroy(to));
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

static void runCalibrate(Worker w) {
  w.waves = 1;
  w.iters = 30000;
  for (double until = now() + 1.0; now() < until;) {  // bring the clocks up
    for (int i = 0; i < 8; i++) launchWork(w);
    CHECK(cudaStreamSynchronize(w.stream));
  }
  const int few = 1000, many = 21000;
  double a = timeWork(w, few), b = timeWork(w, many);
  double slope = (b - a) / (double)(many - few);
  if (!(slope > 0)) die("calibrate", "more work took no longer");
  cudaDeviceProp prop;
  CHECK(cudaGetDeviceProperties(&prop, 0));
  printf("{\"mode\":\"calibrate\",\"itersPerMicrosecond\":%.6f,\"overheadMicroseconds\":%.3f,"
         "\"sms\":%d,\"card\":\"%s\"}\n",
         1.0 / slope, a - slope * (double)few, w.sms, prop.name);
  fflush(stdout);
}

static Worker newWorker(int argc, char **argv) {
  Worker w;
  w.iters = (int)argNumber(argc, argv, "iters", 1000);
  w.waves = (int)argNumber(argc, argv, "waves", 1);
  w.chunk = (int)argNumber(argc, argv, "chunk", 1);
  w.depth = (int)argNumber(argc, argv, "depth", 4);
  w.units = (int)argNumber(argc, argv, "units", 500);
  w.rounds = (int)argNumber(argc, argv, "rounds", 10);
  w.tickSeconds = argNumber(argc, argv, "ticks", 0) / 1e3;
  if (w.iters < 1 || w.waves < 1 || w.chunk < 1 || w.units < 1 || w.rounds < 1)
    die("arguments", "iters, waves, chunk, units and rounds must be 1 or more");
  if (w.depth < 1 || w.depth > kMaxDepth) die("--depth", "must be 1 to 64");
  CHECK(cudaSetDeviceFlags(cudaDeviceScheduleSpin));
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceGetAttribute(&w.sms, cudaDevAttrMultiProcessorCount, 0));
  // Under an MPS percentage the attribute shrinks, and with it would the work.
  w.sms = (int)argNumber(argc, argv, "sms", w.sms);
  CHECK(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc((void **)&w.sink, 256));
  return w;
}

int main(int argc, char **argv) {
  const char *mode = argText(argc, argv, "mode", "");
  Worker w = newWorker(argc, argv);
  if (strcmp(mode, "calibrate") == 0) runCalibrate(w);
  else if (strcmp(mode, "kernel") == 0) runKernel(w);
  else if (strcmp(mode, "graph") == 0) runGraph(w);
  else if (strcmp(mode, "persistent") == 0) runPersistent(w);
  else if (strcmp(mode, "coop") == 0) runCoop(w);
  else if (strcmp(mode, "copy") == 0)
    runCopy(w, (size_t)argNumber(argc, argv, "mib", 64) << 20);
  else if (strcmp(mode, "latency") == 0)
    runLatency(w, argNumber(argc, argv, "period-ms", 2) / 1e3);
  else die("--mode", "unknown");
  return 0;
}
