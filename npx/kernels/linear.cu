// The passes around the matmuls of linear.py: bias and ReLU after the forward matmul; the ReLU's mask and the sums over
// rows before the backward matmuls.
// Built with: T = float half_t bf16_t
#include "device.cuh"

#define WIDTH 8

// Compute y + b, then max(0, y) if `relu`, in place in row blockIdx.x of y (gridDim.x, columns). 8 columns per thread.
extern "C" __global__ void bias_relu(T* y, const T* b, int columns, int relu) {
    int column = WIDTH * (blockIdx.y * blockDim.x + threadIdx.x), count = columns - column;
    if (count <= 0) return;
    y += blockIdx.x * (i64)columns + column;
    float v[WIDTH], bias[WIDTH] = {};
    load<WIDTH>(y, count, v);
    if (b) load<WIDTH>(b + column, count, bias);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        v[i] += bias[i];
        if (relu) v[i] = v[i] < 0 ? 0 : v[i];  // NaN stays NaN
    }
    store<WIDTH>(y, count, v);
}

// Write masked = g where y > 0, else 0; if y is null, masked equals g and is not written. Unless `partial` is null,
// write the sums of masked over each slice of rows to partial (gridDim.y, columns). A block of 8 warps computes 256
// columns of one slice: 8 adjacent columns per lane, with the rows distributed over the warps.
extern "C" __global__ void relu_grad(
    const T* g, const T* y, T* masked, float* partial, int rows, int columns, int slice
) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = (blockIdx.x * 32 + lane) * WIDTH;
    int first = blockIdx.y * slice, count = columns - column;
    float sums[WIDTH] = {};
    for (int row = first + warp; row < min(first + slice, rows); row += 8) {
        i64 start = row * (i64)columns + column;
        float v[WIDTH], output[WIDTH];
        load<WIDTH>(g + start, count, v);
        if (y) {
            load<WIDTH>(y + start, count, output);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) v[i] = output[i] > 0 ? v[i] : 0;
            store<WIDTH>(masked + start, count, v);
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sums[i] += v[i];
    }
    if (!partial) return;

    __shared__ float parts[8][32 * WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) parts[warp][lane * WIDTH + i] = sums[i];
    __syncthreads();
    column = blockIdx.x * 32 * WIDTH + threadIdx.x;  // 256 threads, 256 columns
    if (column >= columns) return;
    float sum = 0;
    for (int other = 0; other < 8; other++) sum += parts[other][threadIdx.x];
    partial[blockIdx.y * (i64)columns + column] = sum;
}
