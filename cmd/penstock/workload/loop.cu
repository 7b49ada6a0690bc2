// A loop of short kernels for penstock demo: runs for the seconds given and prints what it finished.
// Built by `nvcc -O2 loop.cu -o loop`; nothing is linked but the CUDA runtime.
#include <chrono>
#include <cstdio>
#include <cstdlib>

// A fixed amount of arithmetic, so that finished kernels are finished work, however long they waited.
__global__ void work(float *out, int rounds) {
    float x = threadIdx.x * 1e-3f, y = blockIdx.x * 1e-3f;
    for (int i = 0; i < rounds; i++) {
        x = fmaf(x, 0.999f, y);
        y = fmaf(y, 0.998f, x);
    }
    if (x == 12345.0f) out[0] = y;
}

static void check(cudaError_t e) {
    if (e != cudaSuccess) {
        fprintf(stderr, "loop: %s\n", cudaGetErrorString(e));
        exit(1);
    }
}

int main(int argc, char **argv) {
    typedef std::chrono::steady_clock clock;
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    const int batch = 8;
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0));
    float *out;
    check(cudaMalloc(&out, sizeof *out));
    cudaEvent_t done[2];
    for (int i = 0; i < 2; i++) check(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
    int blocks = prop.multiProcessorCount * 2;
    work<<<blocks, 256>>>(out, 20000);
    check(cudaDeviceSynchronize());
    long finished = 0;
    int filled = 0;
    clock::time_point begin = clock::now();
    double elapsed = 0;
    for (int slot = 0; elapsed < seconds; slot ^= 1) {
        if (filled == 2) {
            check(cudaEventSynchronize(done[slot]));
            finished += batch;
        } else {
            filled++;
        }
        for (int i = 0; i < batch; i++) work<<<blocks, 256>>>(out, 20000);
        check(cudaEventRecord(done[slot]));
        elapsed = std::chrono::duration<double>(clock::now() - begin).count();
    }
    printf("{\"finished\":%ld,\"elapsedNs\":%lld}\n", finished, (long long)(elapsed * 1e9));
    return 0;
}
