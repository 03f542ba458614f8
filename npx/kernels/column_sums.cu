// Sums over the rows of a float32 matrix: the second phase of the sums in layer_norm.py and linear.py. Their order
// depends only on the number of rows, so they are deterministic. The loads that a warp issues one after another take
// all the time, so a block has as many warps as CUDA allows.
// Built with: T = float half_t bf16_t, WARPS = 32
#include "device.cuh"

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
