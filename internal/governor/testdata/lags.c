// lags measures the constants of governor.Hardware on a card: how long freezing
// and thawing take, when they bite, and whether the length of a freeze tells a
// busy tenant from an idle one. Needs root (or CAP_SYS_ADMIN) and an otherwise
// unused NVIDIA card. Build: gcc -O2 -rdynamic lags.c -o lags -ldl -lpthread
//
// Two processes, A and B, each run one kernel that fills the card and counts in
// host memory until told to stop. A's handles and B's are seen by interposing
// ioctl; A then makes all calls, on its own file.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
	volatile uint64_t count;    // advanced by the kernel
	volatile uint32_t stop;     // tells the kernel to end
	char pad[4096 - 12];
	volatile uint64_t last, first; // ns: last change seen, first change after `armed`
	volatile int armed, ready, want, running; // want: 1 = busy
	int nchan;
	struct { uint32_t client, chan, parent, engine; } chan[64];
	uint32_t subClient, subHandle; int ctl;
	uint32_t grClient, grTSG;
	char pad2[4096];
} __attribute__((aligned(4096))) Side;
static Side *sides, *me;

static uint64_t ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }

int ioctl(int fd, unsigned long req, ...) {
	va_list ap; va_start(ap, req); char *p = va_arg(ap, char *); va_end(ap);
	int r = syscall(SYS_ioctl, fd, req, p);
	if (r == 0 && me && ((req & 0xff) == 0x2b) && ((req >> 8) & 0xff) == 'F') {
		uint32_t size = (req >> 16) & 0x3fff, *w = (uint32_t *)p;
		uint32_t status = size == 48 ? w[10] : w[7], cls = w[3];
		char *parm = *(char **)(p + 16);
		if (status == 0 && (cls & 0xff) == 0x6f && cls >= 0xc36f && parm && me->nchan < 64) {
			int i = me->nchan++;
			me->chan[i].client = w[0]; me->chan[i].parent = w[1]; me->chan[i].chan = w[2];
			me->chan[i].engine = *(uint32_t *)(parm + 128);
		}
		if (status == 0 && cls == 0x2080 && !me->subHandle) { me->subClient = w[0]; me->subHandle = w[2]; me->ctl = fd; }
		if (status == 0 && cls == 0xa06c && parm && *(uint32_t *)(parm + 12) == 1) { me->grClient = w[0]; me->grTSG = w[2]; }
	}
	return r;
}

static uint32_t control(uint32_t client, uint32_t obj, uint32_t cmd, void *params, uint32_t size) {
	struct { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; } c = {client, obj, cmd, 0, (uint64_t)params, size, 0};
	if (syscall(SYS_ioctl, me->ctl, 0xC020462Aul, &c)) return 0xffff;
	return c.status;
}

static int grOnly;
static uint32_t gate(Side *s, int disable) {
	struct { uint8_t disable, p[3]; uint32_t num; uint8_t only, rewind, q[6]; uint64_t ev; uint32_t client[64], chan[64]; } d = {0};
	d.disable = disable;
	for (int i = 0; i < s->nchan; i++) {
		if (grOnly && s->chan[i].parent != s->grTSG) continue;
		d.client[d.num] = s->chan[i].client; d.chan[d.num] = s->chan[i].chan; d.num++;
	}
	return control(me->subClient, me->subHandle, 0x2080110b, &d, 536);
}

static void *watch(void *arg) {
	uint64_t seen[2] = {0, 0};
	for (;;) for (int i = 0; i < 2; i++) {
		Side *s = &sides[i]; uint64_t c = s->count;
		if (c != seen[i]) { uint64_t t = ns(); seen[i] = c; s->last = t; if (s->armed) { s->first = t; s->armed = 0; } }
	}
}

// Thread 0 counts in host memory every few microseconds (more often would clog the
// bus that the driver's own messages take: calls then last 30 ms) and passes the
// stop flag on to the others in device memory.
static const char *ptx = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .u32 halt;\n.visible .entry spin(.param .u64 a){\n"
	".reg .pred %p<4>; .reg .u32 %r<4>; .reg .u64 %d<6>;\n ld.param.u64 %d1,[a]; mov.u64 %d2,0; mov.u64 %d4,halt; mov.u32 %r1,%ctaid.x; mov.u32 %r2,%tid.x; or.b32 %r1,%r1,%r2; setp.eq.u32 %p1,%r1,0;\n"
	"L: add.u64 %d2,%d2,1; and.b64 %d3,%d2,63; setp.ne.u64 %p2,%d3,0; @%p2 bra L;\n"
	" @!%p1 bra M; st.volatile.global.u64 [%d1],%d2; and.b64 %d3,%d2,4095; setp.ne.u64 %p2,%d3,0; @%p2 bra M; ld.volatile.global.u32 %r3,[%d1+8]; st.volatile.global.u32 [%d4],%r3;\n"
	"M: and.b64 %d3,%d2,4095; setp.ne.u64 %p2,%d3,0; @%p2 bra L; ld.volatile.global.u32 %r3,[%d4]; setp.eq.u32 %p3,%r3,0; @%p3 bra L; ret; }\n";

static void *cu; static void *sym(const char *n) { void *f = dlsym(cu, n); if (!f) { fprintf(stderr, "no %s\n", n); exit(2); } return f; }
#define CALL(n, ...) do { int r_ = ((int (*)())sym(n))(__VA_ARGS__); if (r_) { fprintf(stderr, "%s: %d\n", n, r_); exit(2); } } while (0)
static void *fn; static uint64_t dev, halt;
static void setup(Side *s) {
	me = s; cu = dlopen("libcuda.so.1", RTLD_NOW); if (!cu) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
	int d; void *ctx, *mod;
	CALL("cuInit", 0); CALL("cuDeviceGet", &d, 0); CALL("cuCtxCreate_v2", &ctx, 0, d); CALL("cuModuleLoadData", &mod, ptx);
	CALL("cuModuleGetFunction", &fn, mod, "spin"); size_t n_; CALL("cuModuleGetGlobal_v2", &halt, &n_, mod, "halt"); CALL("cuMemHostRegister_v2", (void *)s, (size_t)4096, 2); CALL("cuMemHostGetDevicePointer_v2", &dev, (void *)s, 0);
}
static void busy(Side *s, int on) { // on the side's own process
	if (on && !s->running) {
		s->stop = 0; void *args[] = {&dev};
		CALL("cuMemsetD32_v2", halt, 0, (size_t)1); CALL("cuLaunchKernel", fn, 132 * 4, 1, 1, 256, 1, 1, 0, (void *)0, args, (void **)0); s->running = 1;
	} else if (!on && s->running) { s->stop = 1; CALL("cuCtxSynchronize"); s->running = 0; }
}
static void ask(int on) { sides[1].want = on; while (sides[1].running != on) usleep(500); usleep(20000); }
static void slice(Side *s, uint64_t us) { uint32_t r = control(s->grClient, s->grTSG, 0xa06c0103, &us, 8); if (r) printf("slice: %x\n", r); }

static int cmp(const void *a, const void *b) { double x = *(double *)a - *(double *)b; return (x > 0) - (x < 0); }
static void show(const char *name, double *v, int n) {
	qsort(v, n, sizeof *v, cmp); double m = 0; for (int i = 0; i < n; i++) m += v[i];
	printf("%-44s mean %7.1f  min %7.1f p5 %7.1f p50 %7.1f p95 %7.1f max %7.1f us\n", name, m / n, v[0], v[n / 20], v[n / 2], v[n * 95 / 100], v[n - 1]);
}
#define N 200
static void pair(const char *name, Side *s, Side *other) { // freeze and thaw s
	double fd[N], fl[N], td[N], tl[N], gap[N]; char b[99];
	for (int i = 0; i < N; i++) {
		usleep(3000 + rand() % 3000);
		uint64_t t0 = ns(); if (gate(s, 1)) printf("freeze failed\n"); uint64_t t1 = ns(); usleep(4000);
		fd[i] = (t1 - t0) / 1e3; fl[i] = s->last > t0 ? (s->last - t0) / 1e3 : 0;
		s->armed = 1; t0 = ns(); gate(s, 0); t1 = ns(); usleep(4000);
		td[i] = (t1 - t0) / 1e3; tl[i] = s->armed ? 0 : ((double)s->first - t0) / 1e3; s->armed = 0;
	}
	snprintf(b, 99, "%s: freeze call", name); show(b, fd, N); snprintf(b, 99, "%s: freeze lag", name); show(b, fl, N);
	snprintf(b, 99, "%s: thaw call", name); show(b, td, N); snprintf(b, 99, "%s: thaw lag", name); show(b, tl, N);
}
static void over(const char *name, Side *a, Side *b) { // A runs, B frozen; thaw B, freeze A; and back
	double td[N], fd[N], stop[N], start[N], gap[N]; char l[99];
	gate(b, 1);
	for (int i = 0; i < N; i++) {
		usleep(8000 + rand() % 2000); b->armed = 1;
		uint64_t t0 = ns(); gate(b, 0); uint64_t t1 = ns(); gate(a, 1); uint64_t t2 = ns(); usleep(6000);
		td[i] = (t1 - t0) / 1e3; fd[i] = (t2 - t1) / 1e3; stop[i] = ((double)a->last - t1) / 1e3; start[i] = ((double)b->first - t0) / 1e3; gap[i] = ((double)b->first - (double)a->last) / 1e3;
		Side *x = a; a = b; b = x;
	}
	gate(b, 0); gate(a, 0);
	snprintf(l, 99, "%s: thaw call", name); show(l, td, N); snprintf(l, 99, "%s: freeze call", name); show(l, fd, N);
	snprintf(l, 99, "%s: stop after freeze start", name); show(l, stop, N); snprintf(l, 99, "%s: start after thaw start", name); show(l, start, N); snprintf(l, 99, "%s: gap", name); show(l, gap, N);
}
int main(void) {
	setvbuf(stdout, 0, _IOLBF, 0);
	sides = mmap(0, 2 * sizeof(Side), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t kid = fork();
	if (!kid) {
		Side *s = &sides[1]; setup(s); slice(s, 50000); s->ready = 1;
		while (s->want >= 0) { busy(s, s->want); usleep(500); }
		return 0;
	}
	while (!sides[1].ready) { usleep(1000); if (waitpid(kid, 0, WNOHANG) == kid) return 2; }
	Side *A = &sides[0], *B = &sides[1]; setup(A); slice(A, 50000);
	{ uint64_t z = 0; busy(A, 1); usleep(50000); z = A->count; usleep(20000); printf("counts a ms: %.0f of 64\n", (A->count - z) / 64 / 20.0); busy(A, 0); }
	printf("channels %d and %d; subdevice %x of %x; TSG %x\n", A->nchan, B->nchan, A->subHandle, A->subClient, A->grTSG);
	pthread_t th; pthread_create(&th, 0, watch, 0);
	for (grOnly = 0; grOnly < 2; grOnly++) {
		printf("-- %s channels\n", grOnly ? "graphics" : "all");
		busy(A, 1); pair("busy, alone", A, B);
		ask(1); over("handover, both busy", A, B); ask(0);
		pair("idle B, A running", B, A);
		busy(A, 0); pair("idle B, card idle", B, A);
	}
	B->want = -1; waitpid(kid, 0, 0); return 0;
}
