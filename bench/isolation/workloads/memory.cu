// memory: the memory workloads of bench/isolation.
//
//	memory --mode pairs  --mib 4 --count 2000	median time of a cudaMalloc+cudaFree pair
//	memory --mode take   --path P --procs N --ceiling-mib C --chunk-mib K
//		N processes of one tenant allocate at once along one path until they are refused at every
//		size down to 2 MiB, or hold `ceiling` together; then they keep it all to the window's end
//	memory --mode churn  --procs N --ceiling-mib C	allocate and free at random for the whole window
//
// Paths: malloc, async, vmm, managed, array. The ceiling bounds what a leak could take of the card.
//
// Build: nvcc -O3 -arch=sm_90 -o memory memory.cu -lcuda

#include "common.h"

#include <cuda.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <signal.h>
#include <vector>

typedef unsigned long long u64;

static const u64 kMiB = 1ull << 20;
static const int kMaxProcs = 16;

static void checkDriver(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  const char *name = NULL;
  if (cuGetErrorName(r, &name) != CUDA_SUCCESS || name == NULL) name = "unknown CUresult";
  die(what, name);
}
#define CHECK_DRIVER(call) checkDriver((call), #call)

// Shared is what the processes of one tenant agree through; made before the fork, so before any CUDA
// call. held counts bytes after the driver gave them and before they are given back: it never exceeds
// what the tenant really has.
struct Shared {
  volatile int ready;
  volatile int go;
  volatile int full;  // processes that can take no more
  volatile u64 held;
  volatile u64 peak;
  volatile u64 refusals;
  double t0, t1;
};

static void addHeld(Shared *s, u64 bytes) {
  u64 held = __sync_add_and_fetch(&s->held, bytes);
  for (u64 old = s->peak; held > old; old = s->peak)
    if (__sync_bool_compare_and_swap(&s->peak, old, held)) break;
}

static void subHeld(Shared *s, u64 bytes) { __sync_sub_and_fetch(&s->held, bytes); }

// ---- paths: 1 = had it, 0 = refused; anything but "out of memory" is an error ----

static int verdict(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return 1;
  cudaError_t last = cudaGetLastError();  // clears it
  (void)last;
  if (err == cudaErrorMemoryAllocation) return 0;
  die(what, cudaGetErrorName(err));
  return 0;
}

static int takeMalloc(u64 bytes, void **p) {
  if (!verdict(cudaMalloc(p, bytes), "cudaMalloc")) return 0;
  CHECK(cudaMemset(*p, 1, bytes));
  CHECK(cudaDeviceSynchronize());
  return 1;
}

static int takeAsync(u64 bytes, cudaStream_t stream) {
  void *p = NULL;
  if (!verdict(cudaMallocAsync(&p, bytes, stream), "cudaMallocAsync")) return 0;
  CHECK(cudaMemsetAsync(p, 1, bytes, stream));
  CHECK(cudaStreamSynchronize(stream));
  return 1;
}

static int takeManaged(u64 bytes) {
  void *p = NULL;
  cudaError_t err = cudaMallocManaged(&p, bytes, cudaMemAttachGlobal);
  if (err == cudaErrorUnknown) {  // what CUDA makes of an mmap that fails for want of memory
    (void)cudaGetLastError();
    return 0;
  }
  if (!verdict(err, "cudaMallocManaged")) return 0;
  CHECK(cudaMemset(p, 1, bytes));  // on the device, so that the pages live there
  CHECK(cudaDeviceSynchronize());
  return 1;
}

static int takeArray(u64 bytes) {
  const u64 row = 4096 * sizeof(float4);
  cudaArray_t array = NULL;
  cudaChannelFormatDesc desc = cudaCreateChannelDesc<float4>();
  return verdict(cudaMallocArray(&array, &desc, 4096, (size_t)(bytes / row), 0), "cudaMallocArray");
}

static int takeVMM(u64 bytes) {
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  CUmemGenericAllocationHandle handle;
  CUresult r = cuMemCreate(&handle, (size_t)bytes, &prop, 0);
  if (r == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  checkDriver(r, "cuMemCreate");
  CUdeviceptr at = 0;
  CHECK_DRIVER(cuMemAddressReserve(&at, (size_t)bytes, 0, 0, 0));
  CHECK_DRIVER(cuMemMap(at, (size_t)bytes, 0, handle, 0));
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK_DRIVER(cuMemSetAccess(at, (size_t)bytes, &access, 1));
  CHECK_DRIVER(cuMemsetD8(at, 1, (size_t)bytes));
  CHECK(cudaDeviceSynchronize());
  return 1;
}

static int take(const char *path, u64 bytes, cudaStream_t stream) {
  void *p = NULL;
  if (strcmp(path, "malloc") == 0) return takeMalloc(bytes, &p);
  if (strcmp(path, "async") == 0) return takeAsync(bytes, stream);
  if (strcmp(path, "vmm") == 0) return takeVMM(bytes);
  if (strcmp(path, "managed") == 0) return takeManaged(bytes);
  if (strcmp(path, "array") == 0) return takeArray(bytes);
  die("--path", "unknown");
  return 0;
}

// ---- one process of the tenant ----

struct Plan {
  const char *mode, *path;
  u64 ceiling, chunk;
  int procs;
};

static void takeAll(Shared *s, const Plan &plan, cudaStream_t stream) {
  for (u64 size = plan.chunk; size >= 2 * kMiB;) {
    if (s->held + size > plan.ceiling) {
      if (s->held >= plan.ceiling) break;
      size /= 2;
      continue;
    }
    if (take(plan.path, size, stream)) {
      addHeld(s, size);
      continue;
    }
    __sync_add_and_fetch(&s->refusals, 1);
    size /= 2;
  }
  __sync_add_and_fetch(&s->full, 1);
  while (now() < s->t1) usleep(1000);
}

static void churn(Shared *s, const Plan &plan, unsigned seed) {
  struct Block {
    void *p;
    u64 bytes;
  };
  std::vector<Block> mine;
  while (now() < s->t1) {
    bool give = !mine.empty() && rand_r(&seed) % 3 == 0;
    if (!give) {
      u64 bytes = (u64)(2 << (rand_r(&seed) % 7)) * kMiB;  // 2 to 128 MiB
      Block b = {NULL, bytes};
      if (s->held + bytes <= plan.ceiling && takeMalloc(bytes, &b.p)) {
        addHeld(s, bytes);
        mine.push_back(b);
        continue;
      }
      __sync_add_and_fetch(&s->refusals, 1);
    }
    if (mine.empty()) continue;
    size_t i = (size_t)rand_r(&seed) % mine.size();
    subHeld(s, mine[i].bytes);
    CHECK(cudaFree(mine[i].p));
    mine[i] = mine.back();
    mine.pop_back();
  }
}

static void child(Shared *s, const Plan &plan, int index) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) die("prctl", strerror(errno));
  CHECK(cudaSetDevice(0));
  CHECK(cudaFree(0));  // makes the context
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  __sync_add_and_fetch(&s->ready, 1);
  while (!s->go) usleep(500);
  sleepUntil(s->t0);
  if (strcmp(plan.mode, "churn") == 0) churn(s, plan, 17u + (unsigned)index);
  else takeAll(s, plan, stream);
  fflush(stdout);
  _exit(0);
}

// ---- the parent, which never touches CUDA ----

static void reap(int n) {
  for (int i = 0; i < n; i++) {
    int status = 0;
    if (waitpid(-1, &status, 0) < 0) die("waitpid", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) die("process", "ended early");
  }
}

static void awaitReady(Shared *s, int procs) {
  while (s->ready < procs) {
    int status = 0;
    if (waitpid(-1, &status, WNOHANG) > 0) die("process", "ended before it was ready");
    usleep(1000);
  }
}

static int runTake(const Plan &plan) {
  void *m = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) die("mmap", strerror(errno));
  Shared *s = (Shared *)m;  // zeroed by the kernel
  for (int i = 0; i < plan.procs; i++) {
    pid_t pid = fork();
    if (pid < 0) die("fork", strerror(errno));
    if (pid == 0) child(s, plan, i);
  }
  awaitReady(s, plan.procs);
  ready();
  Window win;
  if (!nextWindow(&win)) return 0;  // the children die with us
  s->t0 = win.t0;
  s->t1 = win.t1;
  __sync_synchronize();
  s->go = 1;
  reap(plan.procs);
  printf("{\"mode\":\"%s\",\"seconds\":%.6f,\"had\":%llu,\"peak\":%llu,\"refusals\":%llu,\"full\":%d}\n",
         plan.mode, win.t1 - win.t0, (u64)s->held, (u64)s->peak, (u64)s->refusals, (int)s->full);
  fflush(stdout);
  while (nextWindow(&win)) die("GO", "this mode runs once");
  return 0;
}

static int runPairs(u64 bytes, int count) {
  CHECK(cudaSetDevice(0));
  void *p = NULL;
  for (int i = 0; i < 50; i++) {
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaFree(p));
  }
  ready();
  Window win;
  while (nextWindow(&win)) {
    sleepUntil(win.t0);
    std::vector<double> us;
    for (int i = 0; i < count; i++) {
      double from = now();
      CHECK(cudaMalloc(&p, bytes));
      CHECK(cudaFree(p));
      us.push_back((now() - from) * 1e6);
    }
    std::sort(us.begin(), us.end());
    printf("{\"mode\":\"pairs\",\"units\":%d,\"seconds\":%.6f,\"medianUs\":%.3f,\"p99Us\":%.3f}\n", count,
           now() - win.t0, us[us.size() / 2], us[(us.size() * 99) / 100]);
    fflush(stdout);
  }
  return 0;
}

int main(int argc, char **argv) {
  Plan plan;
  plan.mode = argText(argc, argv, "mode", "");
  plan.path = argText(argc, argv, "path", "malloc");
  plan.procs = (int)argNumber(argc, argv, "procs", 1);
  plan.ceiling = (u64)argNumber(argc, argv, "ceiling-mib", 5120) * kMiB;
  plan.chunk = (u64)argNumber(argc, argv, "chunk-mib", 256) * kMiB;
  if (plan.procs < 1 || plan.procs > kMaxProcs) die("--procs", "must be 1 to 16");
  if (plan.chunk < 2 * kMiB) die("--chunk-mib", "must be 2 or more");
  if (strcmp(plan.mode, "take") == 0 || strcmp(plan.mode, "churn") == 0) return runTake(plan);
  if (strcmp(plan.mode, "pairs") == 0) {
    int count = (int)argNumber(argc, argv, "count", 2000);
    if (count < 1) die("--count", "must be 1 or more");
    return runPairs((u64)argNumber(argc, argv, "mib", 4) * kMiB, count);
  }
  die("--mode", "unknown");
  return 1;
}
