// Sums over chunks and rows of logits (cross_entropy.py), which are deterministic and computed in float32.
// Built with: T = float half_t bf16_t
#include "device.cuh"

// Compute total += factor[0] * part for n values.
extern "C" __global__ void accumulate(float* total, const float* factor, const T* part, i64 n) {
    i64 start = 8 * (blockIdx.x * (i64)blockDim.x + threadIdx.x);
    int count = (int)min(n - start, (i64)8);
    float sum[8], v[8];
    load<8>(total + start, count, sum);
    load<8>(part + start, count, v);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += factor[0] * v[i];
    store<8>(total + start, count, sum);
}

// sum[0] = the sum of the n values x, computed by one block.
extern "C" __global__ void total(const float* x, T* sum, int n) {
    __shared__ float scratch[32];
    float thread_sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) thread_sum += x[i];
    float block_total = block_sum(thread_sum, scratch);
    if (threadIdx.x == 0) sum[0] = from_float<T>(block_total);
}
