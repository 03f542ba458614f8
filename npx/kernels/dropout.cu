// Dropout of n values (dropout.py): 16 neighbouring ones a thread, which is what one value of the counter decides about.
// Built with: T = float half_t bf16_t
#include "device.cuh"

extern "C" __global__ void dropout(
    const T* x, T* y, i64 n,
    unsigned threshold, float scale, u64 seed, u64 step, u64 call, const u64* moment
) {
    i64 start = 16 * (blockIdx.x * (i64)blockDim.x + threadIdx.x);
    int count = (int)min(n - start, (i64)16);  // below 0 beyond the end, where nothing is loaded or stored

    float v[16];
    load<16>(x + start, count, v);
    drop16(v, start, Draw{threshold, scale, seed, step, call, moment});
    store<16>(y + start, count, v);
}
