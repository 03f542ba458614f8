// Rows of a table, and the gradients that come back to them (embedding.py).
// Built with: T = float half_t bf16_t, ID = int i64 unsigned
#include "device.cuh"

#define WIDTH 16  // what one value of the random numbers' counter decides about
#define AHEAD 2  // rows that a warp asks for at once: the sum of a frequent id waits for memory, little else

// y[i] = dropout(scale table[ids[i]] + added[i % length]): a warp for each row. `added` null: nothing. A threshold of 0
// drops nothing.
extern "C" __global__ void embedding(
    const T* table, const ID* ids, const T* added, T* y, i64 n, int d, int length, float scale,
    unsigned threshold, float kept, u64 seed, u64 step, u64 call, const u64* moment
) {
    i64 row = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    const T* source = table + ids[row] * (i64)d;
    for (int column = threadIdx.x % 32 * WIDTH; column < d; column += 32 * WIDTH) {
        float v[WIDTH], more[WIDTH] = {};
        load<WIDTH>(source + column, d - column, v);
        if (added) load<WIDTH>(added + row % length * d + column, d - column, more);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) v[i] = v[i] * scale + more[i];
        if (threshold) drop16(v, row * d + column, Draw{threshold, kept, seed, step, call, moment});
        store<WIDTH>(y + row * d + column, d - column, v);
    }
}

// gtable[v] = scale times the sum of g, but for what was dropped, over the positions where ids == v, or total[v] += it if
// gtable is null.
// `order`: the positions, sorted by id, equal ids in their own order. Block (j, c) stands at the j-th of them; where a
// run of equal ids begins it sums the run for columns 512 c to 512 c + 511, its 8 warps taking turns at the positions.
// A row without a position is left alone.
extern "C" __global__ void embedding_grad(
    const T* g, const ID* ids, const i64* order, T* gtable, float* total, i64 n, int d, float scale,
    unsigned threshold, float kept, u64 seed, u64 step, u64 call, const u64* moment
) {
    i64 first = blockIdx.x, id = ids[order[first]];
    if (first > 0 && ids[order[first - 1]] == id) return;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = (blockIdx.y * 32 + lane) * WIDTH;
    float sums[WIDTH] = {};
    bool more = true;
    for (i64 j = first + warp; more; j += 8 * AHEAD) {
        i64 position[AHEAD];
        bool ours[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) position[k] = j + 8 * k < n ? order[j + 8 * k] : -1;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) ours[k] = position[k] >= 0 && ids[position[k]] == id;
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            float v[WIDTH];
            load<WIDTH>(g + position[k] * d + column, ours[k] ? d - column : 0, v);
            if (threshold && ours[k]) drop16(v, position[k] * d + column, Draw{threshold, kept, seed, step, call, moment});
#pragma unroll
            for (int i = 0; i < WIDTH; i++) sums[i] += v[i];
        }
        more = ours[AHEAD - 1];
    }
    __shared__ float parts[8][32 * WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) parts[warp][lane * WIDTH + i] = sums[i];
    __syncthreads();
    for (int place = threadIdx.x; place < 32 * WIDTH; place += blockDim.x) {
        column = blockIdx.y * 32 * WIDTH + place;
        if (column >= d) return;
        float sum = 0;
        for (int other = 0; other < 8; other++) sum += parts[other][place];
        if (gtable) gtable[id * d + column] = from_float<T>(scale * sum);
        else total[id * d + column] += scale * sum;
    }
}
