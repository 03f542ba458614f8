// Attention and its gradient, with scores that never leave the chip: the CUDA version of attention.py, which has the
// formulas.
//
// A block of threads computes one head of one sentence for a tile of TILE positions, 16 per warp. It iterates over the
// tiles of the other side (keys for queries, queries for keys), which pass through shared memory, so any length works.
// The softmax is computed online (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018) and never
// stored: the gradient recomputes it from each row's log-sum-exp (Dao et al., "FlashAttention", 2022).
//
// For packed queries or keys (npx/kernels/packing.py), `starts` gives the rows of each sentence. n_queries and n_keys
// are the lengths of the longest sentence; they locate a row in lse and a score in dropout's random sequence as if
// the arrays were padded.
//
//     T        float, half_t or bf16_t; sums are float32
//     DK, DV   sizes of a head's keys and values, rounded up to a multiple of 16; zeros fill the rest
//     TILE     16, 32, 48 or 64
//     VEC      values per access to the strided arrays: up to 16 bytes, as far as pointers, strides and sizes allow
//     ONE_TILE 1 if all queries fit in one tile, all keys fit in one tile, and a tile has no more positions than DK and
//              DV; the gradient then needs five matmuls instead of seven
//
// Shared memory: the gradient has four tiles (TILE, DK or DV). attention.py chooses TILE so that they fit in the
// 48 KB that a block may use on every GPU. Heads of size 64 in float16 or bfloat16 take 19 KB at TILE 32 and 37 KB at
// TILE 64; an SM has 64 KB on sm_75 and 228 KB on sm_90. Registers: the results (16, DK) and (16, DV) of a warp and two
// tiles of scores (16, TILE) take DK / 2 + DV / 2 + TILE registers per thread, at most 160 of 255. The other operands
// stay in shared memory and are read again for each matmul, because they would not fit in registers.
//
// Built with: T = half_t bf16_t, DK = 16, DV = 32, TILE = 16 48, VEC = 1, ONE_TILE = 0
// Built with: T = half_t bf16_t, DK = 64, DV = 64, TILE = 32 64, VEC = 8, ONE_TILE = 0 1
// Built with: T = half_t bf16_t, DK = 32, DV = 32, TILE = 32, VEC = 8, ONE_TILE = 1
// Built with: T = half_t bf16_t, DK = 128, DV = 128, TILE = 32, VEC = 8, ONE_TILE = 0 1
// Built with: T = float, DK = 64, DV = 64, TILE = 32, VEC = 4, ONE_TILE = 0 1
// Built with: T = float, DK = 128, DV = 128, TILE = 16, VEC = 4, ONE_TILE = 0 1
#include "device.cuh"

#define THREADS (2 * TILE)      // one warp per 16 positions
#define FRAGMENTS (TILE / 8)    // 16 x 8 fragments in a warp's rows of scores
#define GROUPS (TILE / 16 + 1)  // groups of 16 random words that TILE adjacent positions can touch

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

static_assert(!ONE_TILE || (TILE <= DK && TILE <= DV), "scores overwrite the tiles of keys and values");

// Rows are padded by 16 bytes, so that 8 adjacent rows begin in 8 different groups of 4 banks.
template <int D> struct alignas(16) Tile { T row[TILE][D + VECTOR<T>]; };
template <int N> struct alignas(N * sizeof(T)) Values { T at[N]; };  // one memory access
struct KeepMask { unsigned short groups[TILE * GROUPS]; };  // the dropout mask of a tile of scores, in 16-bit groups

// A warp's results are rows of 16 x 8 fragments. A lane holds four values of each fragment, in mma's layout: two
// adjacent ones in row lane / 4 and two in row lane / 4 + 8. The next two functions return the row and the column,
// within the tile, of the lane's value i, which is value i % 4 of fragment i / 4.
__device__ int row_of(int i) { return threadIdx.x / 32 * 16 + i % 4 / 2 * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// Reductions over the four adjacent lanes that hold a row.
__device__ float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
__device__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// Start loading a tile: `rows` rows of d values at x, `stride` values apart; zeros fill the rest.
template <int D> __device__ void load_tile(Tile<D>& tile, const T* x, i64 stride, int rows, int d) {
    const int across = D / VEC;
    for (int i = threadIdx.x; i < TILE * across; i += THREADS) {
        int row = i / across, column = i % across * VEC;
        bool valid = row < rows && column < d;
        copy_async<VEC * sizeof(T)>(tile.row[row] + column, valid ? x + row * stride + column : x, valid);
    }
}

// Store c in the warp's 16 rows of x, with the upper 8 rows scaled by `upper` and the lower 8 by `lower`. The values
// pass through the same rows of `stage`, a tile that nothing else uses any more: a lane holds pairs of values, and
// writing such small parts of a row would take twice as many memory transactions.
template <int D>
__device__ void store_rows(
    Tile<D>& stage, T* x, i64 stride, const float (&c)[D / 8][4], float upper, float lower, int rows, int d) {
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        float factor = i % 4 < 2 ? upper : lower;
        Values<2> pair = {{from_float<T>(c[i / 4][i % 4] * factor), from_float<T>(c[i / 4][i % 4 + 1] * factor)}};
        *(Values<2>*)(stage.row[row_of(i)] + column_of(i)) = pair;
    }
    __syncwarp();
    const int across = D / VEC, first = threadIdx.x / 32 * 16;
    for (int i = threadIdx.x % 32; i < 16 * across; i += 32) {
        int row = first + i / across, column = i % across * VEC;
        if (row < rows && column < d)
            *(Values<VEC>*)(x + row * stride + column) = *(const Values<VEC>*)(stage.row[row] + column);
    }
}

// Matmuls within a warp. c (16, TILE) += a b^T, where a is the warp's rows of a tile and b another tile.
template <int D, class S = T>
__device__ void multiply_transposed(float (&c)[FRAGMENTS][4], const Tile<D>& a, const Tile<D>& b) {
    const int lane = threadIdx.x % 32;
    if constexpr (TENSOR_CORES && sizeof(S) == 2) {
#pragma unroll
        for (int k = 0; k < D; k += 16) {
            unsigned left[4], right[4];
            ldmatrix_x4(left, a.row[threadIdx.x / 32 * 16 + lane % 16] + k + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < TILE; n += 16) {
                ldmatrix_x4(right, b.row[n + lane / 16 * 8 + lane % 8] + k + lane / 8 % 2 * 8);
                mma_m16n8k16<S>(c[n / 8], left, right);
                mma_m16n8k16<S>(c[n / 8 + 1], left, right + 2);
            }
        }
    } else {
#pragma unroll 1
        for (int k = 0; k < D; k += 4) {
            auto upper = *(const Values<4>*)(a.row[row_of(0)] + k), lower = *(const Values<4>*)(a.row[row_of(2)] + k);
#pragma unroll
            for (int i = 0; i < 4 * FRAGMENTS; i += i % 2 ? 3 : 1) {  // values 0 and 1; 2 and 3 are 8 rows below
                Values<4> right = *(const Values<4>*)(b.row[column_of(i)] + k);
                for (int j = 0; j < 4; j++) {
                    c[i / 4][i % 4] += to_float(upper.at[j]) * to_float(right.at[j]);
                    c[i / 4][i % 4 + 2] += to_float(lower.at[j]) * to_float(right.at[j]);
                }
            }
        }
    }
}

// c (16, D) += a b, where a (16, TILE) are the scores in the warp's registers and b is a tile. The result of one
// matmul already has the lane layout that the next one requires of its left operand.
template <int D, class S = T>
__device__ void multiply(float (&c)[D / 8][4], const float (&a)[FRAGMENTS][4], const Tile<D>& b) {
    const int lane = threadIdx.x % 32;
    if constexpr (TENSOR_CORES && sizeof(S) == 2) {
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            const float *first = a[k / 8], *second = a[k / 8 + 1];
            unsigned right[4], left[4] = {pack2<S>(first[0], first[1]), pack2<S>(first[2], first[3]),
                                          pack2<S>(second[0], second[1]), pack2<S>(second[2], second[3])};
#pragma unroll
            for (int n = 0; n < D; n += 16) {
                ldmatrix_x4_trans(right, b.row[k + lane % 16] + n + lane / 16 * 8);
                mma_m16n8k16<S>(c[n / 8], left, right);
                mma_m16n8k16<S>(c[n / 8 + 1], left, right + 2);
            }
        }
    } else {
#pragma unroll 1
        for (int lane = 0; lane < 4; lane++) {  // the four lanes that share a row of a
#pragma unroll
            for (int i = 0; i < 4 * FRAGMENTS; i += i % 2 ? 3 : 1) {
                float upper = __shfl_sync(ALL_LANES, a[i / 4][i % 4], lane, 4);
                float lower = __shfl_sync(ALL_LANES, a[i / 4][i % 4 + 2], lane, 4);
                const T* row = b.row[i / 4 * 8 + lane * 2 + i % 2];
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    Values<2> right = *(const Values<2>*)(row + column_of(4 * n));
                    for (int j = 0; j < 2; j++) {
                        c[n][j] += upper * to_float(right.at[j]);
                        c[n][j + 2] += lower * to_float(right.at[j]);
                    }
                }
            }
        }
    }
}

// c (16, D) += the warp's rows of a^T b, where a (TILE, TILE) is a tile of scores and b another tile.
template <int D, class S = T>
__device__ void multiply_left_transposed(float (&c)[D / 8][4], const Tile<TILE>& a, const Tile<D>& b) {
    const int lane = threadIdx.x % 32;
    if constexpr (TENSOR_CORES && sizeof(S) == 2) {
#pragma unroll
        for (int k = 0; k < TILE; k += 16) {
            unsigned left[4], right[4];
            ldmatrix_x4_trans(left, a.row[k + lane / 16 * 8 + lane % 8] + threadIdx.x / 32 * 16 + lane / 8 % 2 * 8);
#pragma unroll
            for (int n = 0; n < D; n += 16) {
                ldmatrix_x4_trans(right, b.row[k + lane % 16] + n + lane / 16 * 8);
                mma_m16n8k16<S>(c[n / 8], left, right);
                mma_m16n8k16<S>(c[n / 8 + 1], left, right + 2);
            }
        }
    } else {
#pragma unroll 1
        for (int k = 0; k < TILE; k++) {
            float upper = to_float(a.row[k][row_of(0)]), lower = to_float(a.row[k][row_of(2)]);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                Values<2> right = *(const Values<2>*)(b.row[k] + column_of(4 * n));
                for (int j = 0; j < 2; j++) {
                    c[n][j] += upper * to_float(right.at[j]);
                    c[n][j + 2] += lower * to_float(right.at[j]);
                }
            }
        }
    }
}

// Store the warp's rows of scores in a tile, rounded to the dtype of the matmuls.
__device__ void store_scores(Tile<TILE>& tile, const float (&scores)[FRAGMENTS][4]) {
#pragma unroll
    for (int i = 0; i < 4 * FRAGMENTS; i += 2) {
        Values<2> pair = {{from_float<T>(scores[i / 4][i % 4]), from_float<T>(scores[i / 4][i % 4 + 1])}};
        *(Values<2>*)(tile.row[row_of(i)] + column_of(i)) = pair;
    }
}

// The masks and the bias of one head of one sentence (npx/kernels/attention_spec.py). A query q may attend to a key k
// below `keys` if k <= q + `ahead` and the bias of the pair is not -inf.
struct ScoreSpec {
    const float* bias;  // may be null
    i64 query_stride, key_stride;
    int keys, ahead;

    __device__ bool is_allowed(int query, int key) const {
        return key < keys && key <= query + ahead && (!bias || bias_of(query, key) != -INFINITY);
    }
    __device__ float bias_of(int query, int key) const {
        return bias ? bias[query * query_stride + key * key_stride] : 0;
    }
};

// Return a bit mask of the lane's scores, in which bit i is set if value i is allowed. Rows of the tile are queries and
// columns keys or, if `transposed`, vice versa; `query` and `key` are the first query and the first key of the tile.
template <bool transposed>
__device__ unsigned allowed_bits(const ScoreSpec& spec, int query, int key, int n_queries) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 4 * FRAGMENTS; i++) {
        int q = query + (transposed ? column_of(i) : row_of(i)), k = key + (transposed ? row_of(i) : column_of(i));
        bits |= (unsigned)(q < n_queries && spec.is_allowed(q, k)) << i;
    }
    return bits;
}

// Generate the dropout mask of `rows` queries with n_keys keys each. `position` is the index of the tile's first score
// in the flat (B, H, T, S) array. If all keys are in the tile, its scores are one run of positions; otherwise each
// row is a run of its own.
__device__ void generate_mask(KeepMask& keep, const Dropout& dropout, i64 position, int n_keys, int rows) {
    const bool one_run = n_keys <= TILE;
    const int groups = one_run ? (position % 16 + min(rows, TILE) * n_keys + 15) / 16 : TILE * GROUPS;
    for (int i = threadIdx.x; i < groups; i += THREADS) {
        u64 group = one_run ? position / 16 + i : (position + (i64)(i / GROUPS) * n_keys) / 16 + i % GROUPS;
        Random64 random = random64(dropout, group);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 16; j++) bits |= (unsigned)(bits16(random, j) >= dropout.threshold) << j;
        keep.groups[i] = bits;
    }
}

__device__ bool is_kept(const KeepMask& keep, i64 position, int n_keys, int query, int key) {
    unsigned row = (unsigned)position + (unsigned)query * n_keys;
    unsigned bit = key + (n_keys <= TILE ? (unsigned)position % 16 + query * n_keys : query * GROUPS * 16 + row % 16);
    return keep.groups[bit / 16] >> bit % 16 & 1;
}

// The first position, the head and the sentence of a block. Adjacent blocks share a sentence, so its rows are cached.
struct BlockIndex { int first, head, batch; };
__device__ BlockIndex block_index(int length, int heads) {
    const int tiles = (length + TILE - 1) / TILE, rest = blockIdx.x / tiles;
    return BlockIndex{(int)(blockIdx.x % tiles) * TILE, rest % heads, rest / heads};
}

// The rows of a sentence in q and y, or in k and v: `count` rows starting at row `first` of the array's entry `batch`.
struct Rows { i64 batch, first; int count; };
__device__ Rows rows_of(const i64* starts, int batch, int n) {
    if (!starts) return Rows{batch, 0, n};
    return Rows{0, starts[batch], (int)(starts[batch + 1] - starts[batch])};
}

__device__ int key_limit(const i64* lengths, int batch, int n_keys) {
    return lengths ? (int)min(lengths[batch], (i64)n_keys) : n_keys;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(
    const T* q, const T* k, const T* v, T* y, float* lse,
    const i64* q_starts, const i64* k_starts, const i64* lengths, const float* bias,
    i64 q_batch, i64 q_position, i64 q_head,
    i64 k_batch, i64 k_position, i64 k_head,
    i64 v_batch, i64 v_position, i64 v_head,
    i64 bias_batch, i64 bias_head, i64 bias_query, i64 bias_key,
    int causal, int heads, int n_queries, int n_keys, int d_k, int d_v,
    unsigned threshold, float keep_scale, u64 seed, u64 step, u64 call, const u64* device_counter) {
    __shared__ Tile<DK> q_tile, k_tile;
    __shared__ Tile<DV> v_tile;
    __shared__ KeepMask keep;
    const BlockIndex at = block_index(n_queries, heads);
    const Rows q_rows = rows_of(q_starts, at.batch, n_queries), kv_rows = rows_of(k_starts, at.batch, n_keys);
    const Dropout dropout = {threshold, keep_scale, seed, step, call, device_counter};  // threshold 0 means no dropout
    const i64 row = ((i64)at.batch * heads + at.head) * n_queries + at.first;  // in (B, H, T)
    const int queries = q_rows.count - at.first;
    if (queries <= 0) return;
    const float scale = LOG2E / sqrtf((float)d_k);  // exp(x) = exp2(LOG2E x), one instruction
    q += q_rows.batch * q_batch + at.head * q_head + (q_rows.first + at.first) * q_position;
    k += kv_rows.batch * k_batch + at.head * k_head + kv_rows.first * k_position;
    v += kv_rows.batch * v_batch + at.head * v_head + kv_rows.first * v_position;
    if (bias) bias += at.batch * bias_batch + at.head * bias_head;
    const ScoreSpec spec = {bias, bias_query, bias_key, key_limit(lengths, at.batch, kv_rows.count),
                           causal ? kv_rows.count - q_rows.count : n_keys};

    load_tile(q_tile, q, q_position, queries, d_k);
    float result[DV / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, total[2] = {};
    for (int first = 0; first < kv_rows.count; first += TILE) {
        const int keys = kv_rows.count - first;
        const i64 position = row * n_keys + first;
        unsigned bits = allowed_bits<false>(spec, at.first, first, q_rows.count);
        // After the barrier no thread needs the previous keys. If no bit is set, no thread needs this tile either. The
        // first tile, the only one of a short sentence, is loaded without this check, which saves a wait for memory.
        if (first > 0 && !__syncthreads_or(bits != 0)) continue;
        load_tile(k_tile, k + first * k_position, k_position, keys, d_k);
        load_tile(v_tile, v + first * v_position, v_position, keys, d_v);
        if (dropout.threshold) generate_mask(keep, dropout, position, n_keys, queries);
        wait_for_copies();
        __syncthreads();
        if (!__any_sync(ALL_LANES, bits)) continue;

        float p[FRAGMENTS][4] = {}, new_peak[2] = {peak[0], peak[1]}, base[2], rescale[2];
        multiply_transposed(p, q_tile, k_tile);
#pragma unroll
        for (int i = 0; i < 4 * FRAGMENTS; i++) {
            float& score = p[i / 4][i % 4];
            bool allowed = bits >> i & 1;
            float bias = allowed ? LOG2E * spec.bias_of(at.first + row_of(i), first + column_of(i)) : 0;
            score = allowed ? score * scale + bias : -INFINITY;
            new_peak[i % 4 / 2] = fmaxf(new_peak[i % 4 / 2], score);
        }
        for (int half = 0; half < 2; half++) {
            new_peak[half] = row_max(new_peak[half]);
            base[half] = new_peak[half] == -INFINITY ? 0 : new_peak[half];
            rescale[half] = exp2f(peak[half] - base[half]);  // the sums so far were relative to a lower peak
            total[half] *= rescale[half];
            peak[half] = new_peak[half];
        }
#pragma unroll
        for (int i = 0; i < 4 * FRAGMENTS; i++) {
            float& weight = p[i / 4][i % 4];
            weight = exp2f(weight - base[i % 4 / 2]);
            total[i % 4 / 2] += weight;
            if (dropout.threshold && !is_kept(keep, position, n_keys, row_of(i), column_of(i))) weight = 0;
        }
#pragma unroll
        for (int i = 0; i < DV / 2; i++) result[i / 4][i % 4] *= rescale[i % 4 / 2];
        multiply(result, p, v_tile);
    }

    float factors[2];
    for (int half = 0; half < 2; half++) {
        int query = row_of(2 * half);
        total[half] = row_sum(total[half]);
        factors[half] = total[half] == 0 ? 0 : dropout.scale / total[half];
        if (threadIdx.x % 4 == 0 && query < queries) lse[row + query] = (peak[half] + log2f(total[half])) * LN2;
    }
    const i64 y_position = (i64)heads * d_v;
    y += (q_rows.batch * n_queries + q_rows.first + at.first) * y_position + at.head * d_v;
    __syncthreads();  // all threads are done with the values
    store_rows<DV>(v_tile, y, y_position, result, factors[0], factors[1], queries, d_v);
}

// Compute delta = sum_j g_j y_j for each row of a tile, and load the log-sum-exp in base 2. delta equals the sum over
// the row of p times its gradient. Four adjacent lanes share a row.
__device__ void load_sums(
    float* delta, float* peak, const T* g, const T* y, i64 stride, const float* lse, int rows, int d) {
    for (int row = threadIdx.x / 4; row < TILE; row += THREADS / 4) {
        float sum = 0;
        for (int i = threadIdx.x % 4; row < rows && i < DV / VECTOR<T>; i += 4) {  // the same split for every VEC
#pragma unroll
            for (int column = i * VECTOR<T>; column < (i + 1) * VECTOR<T>; column += VEC) {
                if (column >= d) break;
                auto left = *(const Values<VEC>*)(g + row * stride + column);
                auto right = *(const Values<VEC>*)(y + row * stride + column);
                for (int j = 0; j < VEC; j++) sum += to_float(left.at[j]) * to_float(right.at[j]);
            }
        }
        sum = row_sum(sum);
        if (threadIdx.x % 4 == 0) {
            delta[row] = sum;
            peak[row] = row < rows ? lse[row] * LOG2E : 0;
        }
    }
}

// Compute the weights after dropout, p, and the gradient of the scores q k^T / sqrt(d_k), gs, for the lane's scores
// that `bits` allows; the others get zeros. Rows are queries and columns are keys or, if `transposed`, vice versa;
// first_query and first_key are the first query and the first key of the tile.
template <bool transposed>
__device__ void weights_and_gradient(
    float (&p)[FRAGMENTS][4], float (&gs)[FRAGMENTS][4], const Tile<DK>& q_tile, const Tile<DK>& k_tile,
    const Tile<DV>& g_tile, const Tile<DV>& v_tile, const float* delta, const float* peak, const ScoreSpec& spec,
    unsigned bits, int first_query, int first_key, const KeepMask& keep, const Dropout& dropout, i64 position,
    int n_keys, float scale) {
    multiply_transposed(p, transposed ? k_tile : q_tile, transposed ? q_tile : k_tile);
    multiply_transposed(gs, transposed ? v_tile : g_tile, transposed ? g_tile : v_tile);
#pragma unroll
    for (int i = 0; i < 4 * FRAGMENTS; i++) {
        int query = transposed ? column_of(i) : row_of(i), key = transposed ? row_of(i) : column_of(i);
        float &weight = p[i / 4][i % 4], &gradient = gs[i / 4][i % 4];
        bool allowed = bits >> i & 1;
        float bias = allowed ? LOG2E * spec.bias_of(first_query + query, first_key + key) : 0;
        weight = allowed ? exp2f(weight * (scale * LOG2E) + bias - peak[query]) : 0;
        float factor = dropout.threshold && !is_kept(keep, position, n_keys, query, key) ? 0 : dropout.scale;
        gradient = weight * (gradient * factor - delta[query]);
        weight *= factor;
    }
}

// Store the gradients of the scores that `bits` allows, with queries as rows. `scores` points to the tile's first
// score; each row has n_keys scores.
__device__ void store_allowed(float* scores, const float (&gs)[FRAGMENTS][4], unsigned bits, int n_keys) {
#pragma unroll
    for (int i = 0; i < 4 * FRAGMENTS; i++)
        if (bits >> i & 1) scores[(i64)row_of(i) * n_keys + column_of(i)] = gs[i / 4][i % 4];
}

// Block i computes the gradient of the queries of tile i, then the gradients of the keys and values of tile i. For the
// latter it recomputes the scores and their gradient, or, if one tile holds the sentence, keeps them in shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) attention_backward(
    const T* g, const T* q, const T* k, const T* v, const T* y, const float* lse, float* gscores,
    T* gq, T* gk, T* gv,
    const i64* q_starts, const i64* k_starts, const i64* lengths, const float* bias,
    i64 q_batch, i64 q_position, i64 q_head,
    i64 k_batch, i64 k_position, i64 k_head,
    i64 v_batch, i64 v_position, i64 v_head,
    i64 gq_batch, i64 gq_position, i64 gq_head,
    i64 gk_batch, i64 gk_position, i64 gk_head,
    i64 gv_batch, i64 gv_position, i64 gv_head,
    i64 bias_batch, i64 bias_head, i64 bias_query, i64 bias_key,
    int causal, int heads, int n_queries, int n_keys, int d_k, int d_v,
    unsigned threshold, float keep_scale, u64 seed, u64 step, u64 call, const u64* device_counter) {
    __shared__ Tile<DK> q_tile, k_tile;
    __shared__ Tile<DV> g_tile, v_tile;
    __shared__ KeepMask keep;
    __shared__ float delta[TILE], peak[TILE];
    const int longest = max(n_queries, n_keys);
    const BlockIndex at = block_index(longest, heads);
    const Rows q_rows = rows_of(q_starts, at.batch, n_queries), kv_rows = rows_of(k_starts, at.batch, n_keys);
    const Dropout dropout = {threshold, keep_scale, seed, step, call, device_counter};  // threshold 0 means no dropout
    const i64 row0 = ((i64)at.batch * heads + at.head) * n_queries;  // in (B, H, T)
    const i64 y_position = (i64)heads * d_v;
    const i64 y_first = (q_rows.batch * n_queries + q_rows.first) * y_position + at.head * d_v;
    const float scale = 1 / sqrtf((float)d_k);
    q += q_rows.batch * q_batch + at.head * q_head + q_rows.first * q_position;
    k += kv_rows.batch * k_batch + at.head * k_head + kv_rows.first * k_position;
    v += kv_rows.batch * v_batch + at.head * v_head + kv_rows.first * v_position;
    gq += q_rows.batch * gq_batch + at.head * gq_head + q_rows.first * gq_position;
    gk += kv_rows.batch * gk_batch + at.head * gk_head + kv_rows.first * gk_position;
    gv += kv_rows.batch * gv_batch + at.head * gv_head + kv_rows.first * gv_position;
    g += y_first;
    y += y_first;
    lse += row0;
    if (bias) bias += at.batch * bias_batch + at.head * bias_head;
    const ScoreSpec spec = {bias, bias_query, bias_key, key_limit(lengths, at.batch, kv_rows.count),
                           causal ? kv_rows.count - q_rows.count : n_keys};

    if constexpr (ONE_TILE) {
        const i64 position = row0 * n_keys;
        load_tile(q_tile, q, q_position, q_rows.count, d_k);
        load_tile(k_tile, k, k_position, kv_rows.count, d_k);
        load_tile(g_tile, g, y_position, q_rows.count, d_v);
        load_tile(v_tile, v, v_position, kv_rows.count, d_v);
        load_sums(delta, peak, g, y, y_position, lse, q_rows.count, d_v);
        if (dropout.threshold) generate_mask(keep, dropout, position, n_keys, q_rows.count);
        unsigned bits = allowed_bits<false>(spec, 0, 0, q_rows.count);
        wait_for_copies();
        __syncthreads();

        float p[FRAGMENTS][4] = {}, gs[FRAGMENTS][4] = {};
        if (__any_sync(ALL_LANES, bits))
            weights_and_gradient<false>(p, gs, q_tile, k_tile, g_tile, v_tile, delta, peak, spec, bits, 0, 0,
                                        keep, dropout, position, n_keys, scale);
        if (gscores) store_allowed(gscores + position, gs, bits, n_keys);
        Tile<TILE>&p_tile = reinterpret_cast<Tile<TILE>&>(v_tile), &gs_tile = reinterpret_cast<Tile<TILE>&>(k_tile);
        __syncthreads();  // all threads are done with the values, which are overwritten
        store_scores(p_tile, p);
        float result_q[DK / 8][4] = {}, result_k[DK / 8][4] = {}, result_v[DV / 8][4] = {};
        multiply(result_q, gs, k_tile);
        __syncthreads();  // all threads are done with the keys, which are overwritten
        store_rows<DK>(k_tile, gq, gq_position, result_q, scale, scale, q_rows.count, d_k);
        __syncthreads();
        store_scores(gs_tile, gs);
        multiply_left_transposed(result_v, p_tile, g_tile);
        __syncthreads();  // all threads are done with g and have stored gs
        store_rows<DV>(g_tile, gv, gv_position, result_v, 1, 1, kv_rows.count, d_v);
        multiply_left_transposed(result_k, gs_tile, q_tile);
        __syncthreads();  // all threads are done with the queries
        store_rows<DK>(q_tile, gk, gk_position, result_k, scale, scale, kv_rows.count, d_k);
        return;
    }

    if (at.first < q_rows.count) {
        const int first = at.first, queries = q_rows.count - first;
        load_tile(q_tile, q + first * q_position, q_position, queries, d_k);
        const T *g_from = g + first * y_position, *y_from = y + first * y_position;
        load_tile(g_tile, g_from, y_position, queries, d_v);
        load_sums(delta, peak, g_from, y_from, y_position, lse + first, queries, d_v);
        float result[DK / 8][4] = {};
        for (int other = 0; other < kv_rows.count; other += TILE) {
            const int keys = kv_rows.count - other;
            const i64 position = (row0 + first) * n_keys + other;
            unsigned bits = allowed_bits<false>(spec, first, other, q_rows.count);
            if (other > 0 && !__syncthreads_or(bits != 0)) continue;
            load_tile(k_tile, k + other * k_position, k_position, keys, d_k);
            load_tile(v_tile, v + other * v_position, v_position, keys, d_v);
            if (dropout.threshold) generate_mask(keep, dropout, position, n_keys, queries);
            wait_for_copies();
            __syncthreads();
            if (!__any_sync(ALL_LANES, bits)) continue;

            float p[FRAGMENTS][4] = {}, gs[FRAGMENTS][4] = {};
            weights_and_gradient<false>(p, gs, q_tile, k_tile, g_tile, v_tile, delta, peak, spec, bits, first, other,
                                        keep, dropout, position, n_keys, scale);
            if (gscores) store_allowed(gscores + position, gs, bits, n_keys);
            multiply(result, gs, k_tile);
        }
        __syncthreads();  // all threads are done with the keys
        store_rows<DK>(k_tile, gq + first * gq_position, gq_position, result, scale, scale, queries, d_k);
    }

    if (at.first < kv_rows.count) {
        const int first = at.first, keys = kv_rows.count - first;
        __syncthreads();  // all threads are done with the first half
        load_tile(k_tile, k + first * k_position, k_position, keys, d_k);
        load_tile(v_tile, v + first * v_position, v_position, keys, d_v);
        float result_k[DK / 8][4] = {}, result_v[DV / 8][4] = {};
        for (int other = 0; other < q_rows.count; other += TILE) {
            const int queries = q_rows.count - other;
            const i64 position = (row0 + other) * n_keys + first;
            unsigned bits = allowed_bits<true>(spec, other, first, q_rows.count);
            if (other > 0 && !__syncthreads_or(bits != 0)) continue;
            load_tile(q_tile, q + other * q_position, q_position, queries, d_k);
            const T *g_from = g + other * y_position, *y_from = y + other * y_position;
            load_tile(g_tile, g_from, y_position, queries, d_v);
            load_sums(delta, peak, g_from, y_from, y_position, lse + other, queries, d_v);
            if (dropout.threshold) generate_mask(keep, dropout, position, n_keys, queries);
            wait_for_copies();
            __syncthreads();
            if (!__any_sync(ALL_LANES, bits)) continue;

            float p[FRAGMENTS][4] = {}, gs[FRAGMENTS][4] = {};  // transposed: rows are keys, columns queries
            weights_and_gradient<true>(p, gs, q_tile, k_tile, g_tile, v_tile, delta, peak, spec, bits, other, first,
                                       keep, dropout, position, n_keys, scale);
            multiply(result_v, p, g_tile);
            multiply(result_k, gs, q_tile);
        }
        __syncthreads();  // all threads are done with queries and g
        store_rows<DK>(q_tile, gk + first * gk_position, gk_position, result_k, scale, scale, keys, d_k);
        store_rows<DV>(g_tile, gv + first * gv_position, gv_position, result_v, 1, 1, keys, d_v);
    }
}
