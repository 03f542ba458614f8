// Deterministic float32 sums, whose order depends only on the number of summands: the second phase of sums over rows
// (layer_norm.py, linear.py), and the sums over chunks and rows in cross_entropy.py.
// Built with: T = float half_t bf16_t
#include "device.cuh"

#define WARPS 32  // of `column_sums`, whose time is that of the loads that a warp issues one after another

// Write the sums over each column of x (rows, columns) to `first` for the first `width` columns and to `second` for the
// others, or add them if `add`. A block of WARPS warps computes 32 columns.
extern "C" __global__ void column_sums(
    const float* x, T* first, T* second, int rows, int columns, int width, int add
) {
    __shared__ float parts[WARPS][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < columns)
        for (int row = warp; row < rows; row += WARPS) sum += x[row * (i64)columns + column];
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < columns) {
        for (int other = 1; other < WARPS; other++) sum += parts[other][lane];
        T* target = column < width ? first + column : second + (column - width);
        *target = from_float<T>(add ? to_float(*target) + sum : sum);
    }
}

// total += factor[0] part, n values each.
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
    float mine = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) mine += x[i];
    mine = block_sum(mine, scratch);
    if (threadIdx.x == 0) sum[0] = from_float<T>(mine);
}
