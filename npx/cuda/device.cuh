// Code shared by the kernels: storage types, conversions, vector loads, reductions, random bits, tensor-core matmuls.
//
// Every .cu file includes only this header. NVRTC compiles it for a GPU and g++, with cuda_names.h, for the emulator.
// All PTX is in this file, next to equivalent C++ code.
//
// A kernel is written for a storage type T (float, half_t or bf16_t, #defined before the file) and computes in float:
//     float v = to_float(x[i]);   y[i] = from_float<T>(v);
#pragma once
#ifndef __CUDACC__
#include "cuda_names.h"
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

const unsigned ALL_LANES = 0xffffffffu;  // the mask of a complete warp
typedef unsigned long long u64;
typedef long long i64;

// Storage types and conversions (round to nearest, ties to even)

struct half_t { unsigned short bits; };  // IEEE binary16
struct bf16_t { unsigned short bits; };  // the upper half of a float

#ifndef __CUDACC__
namespace emulator {
NAME(half_t, "float16");
NAME(bf16_t, "bfloat16");
}
#endif

__device__ __forceinline__ float to_float(float x) { return x; }

__device__ __forceinline__ float to_float(bf16_t x) { return __uint_as_float((unsigned)x.bits << 16); }

__device__ __forceinline__ float to_float(half_t x) {
#ifdef __CUDACC__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    unsigned sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return __uint_as_float(sign | __float_as_uint(fraction * 0x1p-24f));
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define CONVERTS_BF16 1  // the GPU has an instruction for this conversion
#else
#define CONVERTS_BF16 0
#endif

__device__ __forceinline__ bf16_t to_bf16(float x) {
    bf16_t y;
#if CONVERTS_BF16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) y.bits = bits >> 16 | 0x40;  // NaN stays NaN
    else y.bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
    return y;
}

__device__ __forceinline__ half_t to_half(float x) {
    half_t y;
#ifdef __CUDACC__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) y.bits = sign | 0x7e00u;                              // NaN
    else if (size >= 0x477ff000u) y.bits = sign | 0x7c00u;                        // rounds to infinity
    else if (size < 0x38800000u)                                                  // subnormal: in units of 2^-24
        y.bits = sign | (unsigned)(int)rintf(__uint_as_float(size) * 0x1p24f);
    else y.bits = sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;  // a carry moves into the exponent
#endif
    return y;
}

template <class S> struct Storage;
template <> struct Storage<float> { static __device__ __forceinline__ float from(float x) { return x; } };
template <> struct Storage<half_t> { static __device__ __forceinline__ half_t from(float x) { return to_half(x); } };
template <> struct Storage<bf16_t> { static __device__ __forceinline__ bf16_t from(float x) { return to_bf16(x); } };

template <class S> __device__ __forceinline__ S from_float(float x) { return Storage<S>::from(x); }

// Pack two 16-bit values into a register, the first in the lower half
template <class S> __device__ __forceinline__ unsigned pack2(float low, float high) {
    return from_float<S>(low).bits | (unsigned)from_float<S>(high).bits << 16;
}
#if CONVERTS_BF16
template <> __device__ __forceinline__ unsigned pack2<bf16_t>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <> __device__ __forceinline__ unsigned pack2<half_t>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// Accesses to 16 bytes (VECTOR<T> values) at once; addresses must be multiples of 16

template <class S> constexpr int VECTOR = 16 / sizeof(S);

template <class S> union Vector {
    uint4 all;
    S each[VECTOR<S>];
};

template <class S> __device__ __forceinline__ void load_vector(const S* p, float* v) {
    uint4 all = *reinterpret_cast<const uint4*>(p);
    const unsigned words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < VECTOR<S>; i++) {
        if constexpr (sizeof(S) == 4) v[i] = __uint_as_float(words[i]);
        else {
            S x;
            x.bits = (unsigned short)(words[i / 2] >> 16 * (i % 2));
            v[i] = to_float(x);
        }
    }
}

template <class S> __device__ __forceinline__ void store_vector(S* p, const float* v) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(S) == 4) words[i] = __float_as_uint(v[i]);
        else words[i] = pack2<S>(v[2 * i], v[2 * i + 1]);
    }
    uint4 all;
    all.x = words[0], all.y = words[1], all.z = words[2], all.w = words[3];
    *reinterpret_cast<uint4*>(p) = all;
}

// Dynamic shared memory (`shared=` bytes of the launch), aligned to 16 bytes

template <class S> __device__ __forceinline__ S* dynamic_shared() {
#ifdef __CUDACC__
    extern __shared__ __align__(16) unsigned char npx_dynamic_shared[];
    return reinterpret_cast<S*>(npx_dynamic_shared);
#else
    return reinterpret_cast<S*>(emulator::dynamic_shared());
#endif
}

// Reductions over the 32 lanes of a warp, with the result in every lane; all lanes must take part

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

// Reductions over a block that consists of complete warps, with the result in every thread. `scratch` is shared memory
// of 32 floats. It can be reused immediately, because the first barrier waits for the readers of the previous use.

__device__ __forceinline__ float block_sum(float x, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    return warp_max(lane < warps ? scratch[lane] : -INFINITY);
}

// Random bits: Philox-4x64-10 (Salmon et al., 2011), identical to npx.random.bits16

struct Random64 { u64 word[4]; };  // 16 words of 16 bits, lowest first

// Words 16 * position to 16 * position + 15 of the sequence of the key (seed, step, call). As in NumPy, the counter is
// incremented before use.
__device__ __forceinline__ Random64 random64(u64 seed, u64 step, u64 call, u64 position) {
    u64 c0 = position + 1, c1 = c0 == 0, c2 = call, c3 = 0;
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u64 high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), low0 = 0xD2E7470EE14C6C93ull * c0;
        u64 high1 = __umul64hi(0xCA5A826395121157ull, c2), low1 = 0xCA5A826395121157ull * c2;
        c0 = high1 ^ c1 ^ seed, c1 = low1, c2 = high0 ^ c3 ^ step, c3 = low0;
        seed += 0x9E3779B97F4A7C15ull, step += 0xBB67AE8584CAA73Bull;
    }
    return Random64{{c0, c1, c2, c3}};
}

// Word `i` (0 to 15) of a group
__device__ __forceinline__ unsigned bits16(const Random64& r, int i) { return r.word[i / 4] >> 16 * (i % 4) & 0xffff; }

// Tensor-core matmuls m16n8k16 of 16-bit types (TENSOR_CORES: sm_80 and above). With group = lane / 4 and
// t = lane % 4, a lane holds the following elements, two 16-bit values per register, the first in the lower half:
//     A (16, 16):  a[0] row group, columns 2t, 2t+1;  a[1] row group + 8;  a[2], a[3] the same rows, columns + 8
//     B (16, 8):   b[0] rows 2t, 2t+1 of column group;  b[1] rows + 8
//     C (16, 8):   c[0], c[1] row group, columns 2t, 2t+1;  c[2], c[3] row group + 8

#ifndef TENSOR_CORES
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
#define TENSOR_CORES 1
#else
#define TENSOR_CORES 0
#endif
#endif

#ifdef __CUDACC__

// c += A B, computed by the warp for S = half_t or bf16_t; without TENSOR_CORES it is declared but not defined
template <class S> __device__ __forceinline__ void mma_m16n8k16(float* c, const unsigned* a, const unsigned* b);

#if TENSOR_CORES
#define MMA(TYPE)                                                                                                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                                    \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

template <> __device__ __forceinline__ void mma_m16n8k16<half_t>(float* c, const unsigned* a, const unsigned* b) { MMA("f16"); }
template <> __device__ __forceinline__ void mma_m16n8k16<bf16_t>(float* c, const unsigned* a, const unsigned* b) { MMA("bf16"); }
#endif

// Load four 8 x 8 matrices of 16-bit values from shared memory. Lane i passes the address of row i % 8 of matrix i / 8,
// a multiple of 16 bytes, and receives in r[m] the elements (group, 2t) and (group, 2t + 1) of matrix m.
__device__ __forceinline__ void ldmatrix_x4(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

// Load transposed matrices in the same way: r[m] receives the elements (2t, group) and (2t + 1, group)
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}

#else
namespace emulator {

struct Fragments { float a[4][2], b[2][2]; };

template <class S> UNCHECKED static void mma(float* c, const unsigned* a, const unsigned* b, const char* file, int line) {
    Fragments fragments;
    for (int i = 0; i < 12; i++) {
        S x;
        x.bits = (unsigned short)((i < 8 ? a[i / 2] : b[i / 2 - 4]) >> 16 * (i % 2));
        (i < 8 ? fragments.a[i / 2] : fragments.b[i / 2 - 4])[i % 2] = to_float(x);
    }
    const LaneValue* values = exchange(ALL_LANES, fragments, file, line);
    int group = current->lane / 4, t = current->lane % 4;
    for (int k = 0; k < 16; k++) {
        int upper = k / 8, holder = k % 8 / 2;
        const Fragments* row = (const Fragments*)(values + group * 4 + holder);
        for (int i = 0; i < 4; i++) {
            const Fragments* column = (const Fragments*)(values + (2 * t + i % 2) * 4 + holder);
            c[i] += row->a[2 * upper + i / 2][k % 2] * column->b[upper][k % 2];
        }
    }
}

UNCHECKED static void ldmatrix(bool transposed, unsigned* r, const void* row, const char* file, int line) {
    const LaneValue* values = exchange(ALL_LANES, row, file, line);
    int group = current->lane / 4, t = current->lane % 4;
    for (int i = 0; i < 8; i++) {
        int matrix = i / 2, from = transposed ? 2 * t + i % 2 : group, column = transposed ? group : 2 * t + i % 2;
        const unsigned short* p = value_of<const unsigned short*>(values, 8 * matrix + from) + column;
        if ((uintptr_t)(p - column) % 16 || !is_shared(p))
            fail(0, "loads a matrix (%s:%d) with a row that is not in shared memory or not aligned to 16 bytes", file, line);
        check_access(p, 2, false, 0);
        r[matrix] = i % 2 ? r[matrix] | (unsigned)*p << 16 : *p;
    }
}

}  // namespace emulator

template <class S>
inline void mma_m16n8k16(float* c, const unsigned* a, const unsigned* b, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::mma<S>(c, a, b, file, line);
}
inline void ldmatrix_x4(unsigned* r, const void* row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::ldmatrix(false, r, row, file, line);
}
inline void ldmatrix_x4_trans(unsigned* r, const void* row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::ldmatrix(true, r, row, file, line);
}
#endif

// Copy BYTES bytes (2, 4, 8 or 16; both addresses are multiples of BYTES) from global to shared memory, or write zeros
// if `valid` is false. From sm_80 on the copy is asynchronous and needs no registers. `wait_for_copies` waits for the
// copies of the calling thread only, so a barrier must follow it.

template <int BYTES> struct alignas(BYTES) Bytes { unsigned words[BYTES / 4]; };
template <> struct alignas(2) Bytes<2> { unsigned short word; };

#ifdef __CUDACC__
template <int BYTES> __device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (BYTES >= 4) {
        unsigned shared = (unsigned)__cvta_generic_to_shared(to), count = valid ? BYTES : 0;
        if constexpr (BYTES == 16)  // bypasses the L1 cache
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared), "l"(from), "r"(count) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                         : : "r"(shared), "l"(from), "n"(BYTES), "r"(count) : "memory");
        return;
    }
#endif
    Bytes<BYTES> bytes = {};
    if (valid) bytes = *(const Bytes<BYTES>*)from;
    *(Bytes<BYTES>*)to = bytes;
}

__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

#else
namespace emulator {

// Copies are delayed until the kernel waits for them, so that a read that comes too early sees wrong values.
struct Copy { void* to; const void* from; int bytes; };
const int MAX_COPIES = 512;
static Copy copies[MAX_THREADS][MAX_COPIES];

UNCHECKED static void start_copy(void* to, const void* from, int bytes) {
    if (current->copies == MAX_COPIES) fail(0, "has more than %d copies in flight; call wait_for_copies", MAX_COPIES);
    copies[current->linear][current->copies++] = Copy{to, from, bytes};
}

}  // namespace emulator

template <int BYTES> inline void copy_async(void* to, const void* from, bool valid) {
    emulator::start_copy(to, valid ? from : 0, BYTES);
}

template <int BYTES> inline void copy_now(void* to, const void* from) {
    Bytes<BYTES> bytes = {};
    if (from) bytes = *(const Bytes<BYTES>*)from;
    *(Bytes<BYTES>*)to = bytes;
}

inline void wait_for_copies() {
    emulator::Thread* thread = emulator::current;
    int n = thread->copies;
    thread->copies = 0;
    for (int i = 0; i < n; i++) {
        emulator::Copy copy = emulator::copies[thread->linear][i];
        if (copy.bytes == 16) copy_now<16>(copy.to, copy.from);
        else if (copy.bytes == 8) copy_now<8>(copy.to, copy.from);
        else if (copy.bytes == 4) copy_now<4>(copy.to, copy.from);
        else copy_now<2>(copy.to, copy.from);
    }
}
#endif

// Load or store N adjacent values, of which the first `count` exist; the others read as 0. Accesses 16 bytes at a time
// if all values exist and the address is aligned, else one value at a time. N is a multiple of VECTOR.

template <int N, class S> __device__ __forceinline__ void load(const S* p, int count, float* v) {
    if (count >= N && reinterpret_cast<u64>(p) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += VECTOR<S>) load_vector(p + i, v + i);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = i < count ? to_float(p[i]) : 0.0f;
    }
}

template <int N, class S> __device__ __forceinline__ void store(S* p, int count, const float* v) {
    if (count >= N && reinterpret_cast<u64>(p) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += VECTOR<S>) store_vector(p + i, v + i);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < count) p[i] = from_float<S>(v[i]);
    }
}

// Dropout: values whose random word is below `threshold` become 0, the others are multiplied by `scale`

struct Dropout {
    unsigned threshold;
    float scale;
    u64 seed, step, call;
    const u64* device_counter;  // added to step and call unless null; the arguments of a CUDA graph are constant
};

__device__ __forceinline__ Random64 random64(const Dropout& dropout, u64 position) {
    const u64* counter = dropout.device_counter;
    u64 step = dropout.step + (counter ? counter[0] : 0), call = dropout.call + (counter ? counter[1] : 0);
    return random64(dropout.seed, step, call, position);
}

// Apply dropout to 16 adjacent values, the first of which has index `position` in its array.
__device__ __forceinline__ void drop16(float* v, u64 position, const Dropout& dropout) {
    Random64 r = random64(dropout, position / 16);
    int shift = position % 16;
    if (shift) {  // the last words of one counter value, then the first words of the next
        Random64 next = random64(dropout, position / 16 + 1);
        u64 w[8];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = r.word[i], w[i + 4] = next.word[i];
#pragma unroll
        for (int i = 0; i < 6; i++) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; i++) w[i] = shift & 4 ? w[i + 1] : w[i];
        int bits = 16 * (shift & 3);
#pragma unroll
        for (int i = 0; i < 4; i++) r.word[i] = bits ? w[i] >> bits | w[i + 1] << (64 - bits) : w[i];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = bits16(r, i) < dropout.threshold ? 0.0f : v[i] * dropout.scale;
}

// exp(x) for x <= 0 with one multiplication and one exp2 instruction; the error is 1e-7 |x|
__device__ __forceinline__ float quick_exp(float x) { return exp2f(x * 1.44269504f); }
