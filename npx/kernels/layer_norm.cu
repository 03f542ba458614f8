// Layer norm of residual + dropout(x), and its gradient (layer_norm.py, dropout_residual_norm.py). The residual may be
// null; a threshold of 0 means no dropout.
//
// WARPS warps share a row. A lane holds CHUNKS chunks of 16 adjacent values in registers, so each row is read once and
// one value of the Philox counter suffices per chunk. A block computes ROWS rows at a time: several if each row has its
// own warp, otherwise one.
// Built with: T = float half_t bf16_t, WARPS = 1, ROWS = 8, CHUNKS = 1 2
// Built with: T = float half_t bf16_t, WARPS = 2 8, ROWS = 1, CHUNKS = 2
#include "device.cuh"

#define WIDTH 16
#define LANES (32 * WARPS)

struct RowPosition {
    int sub, lane;  // row within the block, thread within the row
    __device__ RowPosition() : sub(threadIdx.x / LANES), lane(threadIdx.x % LANES) {}
    __device__ int column(int chunk) const { return (lane + chunk * LANES) * WIDTH; }
};

// The sum of x over all lanes of a row.
__device__ inline float row_sum(float x) {
    if constexpr (WARPS == 1) return warp_sum(x);
    __shared__ float scratch[32];
    return block_sum(x, scratch);
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS) layer_norm(
    const T* x, const T* residual, const T* gamma, const T* beta, T* y, T* xhat, float* rstd,
    int rows, int d, float eps,
    unsigned threshold, float scale, u64 seed, u64 step, u64 call, const u64* device_counter
) {
    RowPosition at;
    i64 row = blockIdx.x * (i64)ROWS + at.sub;
    if (row >= rows) return;

    float z[CHUNKS][WIDTH], sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int column = at.column(c), count = d - column;
        i64 start = row * d + column;
        load<WIDTH>(x + start, count, z[c]);
        if (threshold && count > 0) drop16(z[c], start, Dropout{threshold, scale, seed, step, call, device_counter});
        if (residual) {
            float r[WIDTH];
            load<WIDTH>(residual + start, count, r);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) z[c][i] += r[i];
        }
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum += z[c][i];  // zeros beyond the end of the row
    }
    float mean = row_sum(sum) / d, squares = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int count = d - at.column(c);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            z[c][i] = i < count ? z[c][i] - mean : 0;
            squares += z[c][i] * z[c][i];
        }
    }
    float inverse = 1 / sqrtf(row_sum(squares) / d + eps);
    if (at.lane == 0) rstd[row] = inverse;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int column = at.column(c), count = d - column;
        float a[WIDTH], b[WIDTH];
        load<WIDTH>(gamma + column, count, a);
        load<WIDTH>(beta + column, count, b);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            z[c][i] *= inverse;
            b[i] += a[i] * z[c][i];
        }
        store<WIDTH>(xhat + row * d + column, count, z[c]);
        store<WIDTH>(y + row * d + column, count, b);
    }
}

// With h = g gamma: gz = rstd (h - mean(h) - xhat mean(h xhat)), and gx = dropout(gz) unless gx is null. Row blockIdx.x
// of `partial` (gridDim.x, 2, d) receives the sums over this block's rows for the gradients of gamma and beta.
extern "C" __global__ void __launch_bounds__(LANES * ROWS, 1 + 1 / CHUNKS) layer_norm_grad(
    const T* g, const T* gamma, const T* xhat, const float* rstd, T* gz, T* gx, float* partial,
    int rows, int d,
    unsigned threshold, float scale, u64 seed, u64 step, u64 call, const u64* device_counter
) {
    RowPosition at;
    float ggamma[CHUNKS][WIDTH], gbeta[CHUNKS][WIDTH];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) ggamma[c][i] = gbeta[c][i] = 0;

    for (i64 row = blockIdx.x * (i64)ROWS + at.sub; row < rows; row += (i64)gridDim.x * ROWS) {
        float h[CHUNKS][WIDTH], xh[CHUNKS][WIDTH], sum = 0, product_sum = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int column = at.column(c), count = d - column;
            float a[WIDTH];
            load<WIDTH>(g + row * d + column, count, h[c]);
            load<WIDTH>(xhat + row * d + column, count, xh[c]);
            load<WIDTH>(gamma + column, count, a);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {  // zeros beyond the end of the row
                ggamma[c][i] += h[c][i] * xh[c][i];
                gbeta[c][i] += h[c][i];
                h[c][i] *= a[i];
                sum += h[c][i];
                product_sum += h[c][i] * xh[c][i];
            }
        }
        float mean = row_sum(sum) / d, mean_product = row_sum(product_sum) / d, inverse = rstd[row];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            int column = at.column(c), count = d - column;
            i64 start = row * d + column;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) h[c][i] = inverse * (h[c][i] - mean - xh[c][i] * mean_product);
            store<WIDTH>(gz + start, count, h[c]);
            if (gx && count > 0) {
                drop16(h[c], start, Dropout{threshold, scale, seed, step, call, device_counter});
                store<WIDTH>(gx + start, count, h[c]);
            }
        }
    }

    partial += blockIdx.x * 2LL * d;
#if ROWS == 1
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        store<WIDTH>(partial + at.column(c), d - at.column(c), ggamma[c]);
        store<WIDTH>(partial + d + at.column(c), d - at.column(c), gbeta[c]);
    }
#else
    // The warps add their sums one after another, in a deterministic order.
    __shared__ float sums[2][CHUNKS * WIDTH][LANES];
    for (int turn = 0; turn < ROWS; turn++) {
        if (at.sub == turn) {
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int i = 0; i < WIDTH; i++) {
                    float *gamma_sum = &sums[0][c * WIDTH + i][at.lane], *beta_sum = &sums[1][c * WIDTH + i][at.lane];
                    *gamma_sum = ggamma[c][i] + (turn ? *gamma_sum : 0);
                    *beta_sum = gbeta[c][i] + (turn ? *beta_sum : 0);
                }
        }
        __syncthreads();
    }
    for (int column = threadIdx.x; column < d; column += blockDim.x) {
        int chunk = column / WIDTH, i = chunk / LANES * WIDTH + column % WIDTH;
        partial[column] = sums[0][i][chunk % LANES];
        partial[d + column] = sums[1][i][chunk % LANES];
    }
#endif
}
