// Embedding lookup and its gradient (embedding.py).
// Built with: T = float half_t bf16_t, ID = int i64 unsigned
#include "device.cuh"

#define WIDTH 16  // array values per value of the Philox counter
#define AHEAD 2  // rows that a warp loads at once: the sum of a frequent id is bound by memory latency

// y[i] = dropout(scale table[ids[i]] + positions[i % length]), one warp per row. `positions` may be null; a threshold
// of 0 means no dropout.
extern "C" __global__ void embedding(
    const T* table, const ID* ids, const T* positions, T* y, i64 n, int d, int length, float scale,
    unsigned threshold, float keep_scale, u64 seed, u64 step, u64 call, const u64* device_counter
) {
    i64 row = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    const T* source = table + ids[row] * (i64)d;
    for (int column = threadIdx.x % 32 * WIDTH; column < d; column += 32 * WIDTH) {
        float v[WIDTH], offset[WIDTH] = {};
        load<WIDTH>(source + column, d - column, v);
        if (positions) load<WIDTH>(positions + row % length * d + column, d - column, offset);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) v[i] = v[i] * scale + offset[i];
        if (threshold) drop16(v, row * d + column, Dropout{threshold, keep_scale, seed, step, call, device_counter});
        store<WIDTH>(y + row * d + column, d - column, v);
    }
}

// gtable[v] = scale times the sum of dropout's gradient over the positions where ids == v; if gtable is null, the sum
// is added to total[v]. `order` lists the positions sorted by id, equal ids in their original order. Block (j, c)
// starts at the j-th position of this list: if a run of equal ids begins there, it sums the run for columns 512 c to
// 512 c + 511, with the positions distributed over its 8 warps. Rows without a position are not written.
extern "C" __global__ void embedding_grad(
    const T* g, const ID* ids, const i64* order, T* gtable, float* total, i64 n, int d, float scale,
    unsigned threshold, float keep_scale, u64 seed, u64 step, u64 call, const u64* device_counter
) {
    i64 first = blockIdx.x, id = ids[order[first]];
    if (first > 0 && ids[order[first - 1]] == id) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = (blockIdx.y * 32 + lane) * WIDTH;
    float sums[WIDTH] = {};
    bool in_run = true;
    for (i64 j = first + warp; in_run; j += 8 * AHEAD) {
        i64 position[AHEAD];
        bool same_id[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) position[k] = j + 8 * k < n ? order[j + 8 * k] : -1;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) same_id[k] = position[k] >= 0 && ids[position[k]] == id;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            float v[WIDTH];
            load<WIDTH>(g + position[k] * d + column, same_id[k] ? d - column : 0, v);
            if (threshold && same_id[k])
                drop16(v, position[k] * d + column, Dropout{threshold, keep_scale, seed, step, call, device_counter});
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sums[i] += v[i];
        }
        in_run = same_id[AHEAD - 1];
    }
    __shared__ float parts[8][32 * WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) parts[warp][lane * WIDTH + i] = sums[i];
    __syncthreads();
    for (int offset = threadIdx.x; offset < 32 * WIDTH; offset += blockDim.x) {
        column = blockIdx.y * 32 * WIDTH + offset;
        if (column >= d) return;
        float sum = 0;
        for (int other = 0; other < 8; other++) sum += parts[other][offset];
        if (gtable) gtable[id * d + column] = from_float<T>(scale * sum);
        else total[id * d + column] += scale * sum;
    }
}
