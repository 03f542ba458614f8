// Softmax over rows of n values, and its gradient (softmax.py), one block per row.
// Built with: T = float half_t bf16_t
#include "device.cuh"

#define WIDTH 8
#define LOWEST -3.402823466e38f  // instead of -inf, so that differences stay finite

// y = exp(x) / sum exp(x) over the positions where the mask is nonzero; zeros for a fully masked row. Rows are numbered
// over three leading axes of lengths (gridDim.x / (n1 n2), n1, n2); the mask's element (a, b, c, i) is at
// a s0 + b s1 + c s2 + i s3. A null mask allows every position.
extern "C" __global__ void softmax(
    const T* x, const bool* mask, T* y, int n, int n1, int n2,
    i64 s0, i64 s1, i64 s2, i64 s3
) {
    i64 row = blockIdx.x;
    x += row * n;
    y += row * n;
    if (mask) mask += row / n2 / n1 * s0 + row / n2 % n1 * s1 + row % n2 * s2;

    float peak = LOWEST, total = 0;
    for (int start = threadIdx.x * WIDTH; start < n; start += blockDim.x * WIDTH) {
        float v[WIDTH], top = peak;
        load<WIDTH>(x + start, n - start, v);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (start + i >= n || (mask && !mask[(start + i) * s3])) v[i] = -INFINITY;
            top = fmaxf(top, v[i]);
        }
        total *= quick_exp(peak - top);
        peak = top;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) total += quick_exp(v[i] - peak);
    }
    __shared__ float scratch[32];
    float top = block_max(peak, scratch);
    total = block_sum(total * quick_exp(peak - top), scratch);
    float inverse = total == 0 ? 0 : 1 / total;

    for (int start = threadIdx.x * WIDTH; start < n; start += blockDim.x * WIDTH) {
        float v[WIDTH];
        load<WIDTH>(x + start, n - start, v);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            v[i] = start + i >= n || (mask && !mask[(start + i) * s3]) ? 0 : quick_exp(v[i] - top) * inverse;
        store<WIDTH>(y + start, n - start, v);
    }
}

// gx = y (g - sum g y)
extern "C" __global__ void softmax_grad(const T* g, const T* y, T* gx, int n) {
    i64 row = blockIdx.x;
    g += row * n;
    y += row * n;
    gx += row * n;
    float sum = 0, gv[WIDTH], yv[WIDTH];
    for (int start = threadIdx.x * WIDTH; start < n; start += blockDim.x * WIDTH) {
        load<WIDTH>(g + start, n - start, gv);
        load<WIDTH>(y + start, n - start, yv);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum += gv[i] * yv[i];
    }
    __shared__ float scratch[32];
    sum = block_sum(sum, scratch);
    for (int start = threadIdx.x * WIDTH; start < n; start += blockDim.x * WIDTH) {
        load<WIDTH>(g + start, n - start, gv);
        load<WIDTH>(y + start, n - start, yv);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) gv[i] = yv[i] * (gv[i] - sum);
        store<WIDTH>(gx + start, n - start, gv);
    }
}
