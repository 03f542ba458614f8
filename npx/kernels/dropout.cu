// Dropout of n values (dropout.py): 16 adjacent values per thread, for which one value of the Philox counter suffices.
// Built with: T = float half_t bf16_t
#include "device.cuh"

extern "C" __global__ void dropout(
    const T* x, T* y, i64 n,
    unsigned threshold, float scale, u64 seed, u64 step, u64 call, const u64* device_counter
) {
    i64 start = 16 * (blockIdx.x * (i64)blockDim.x + threadIdx.x);
    int count = (int)min(n - start, (i64)16);  // negative beyond the end, where nothing is loaded or stored

    float v[16];
    load<16>(x + start, count, v);
    drop16(v, start, Dropout{threshold, scale, seed, step, call, device_counter});
    store<16>(y + start, count, v);
}
