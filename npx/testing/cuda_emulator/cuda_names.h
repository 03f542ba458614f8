// CUDA's keywords and built-in functions, implemented in C++ on the emulator (emulator.h), so that g++ can compile a
// .cu file. Included only by device.cuh.
#pragma once
#include "emulator_entry.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("npx_shared")))
#define __align__(N) __attribute__((aligned(N)))

typedef uint3 dim3;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };

// Thread indices, barriers, warp operations

namespace emulator {
#define INDEX __attribute__((const)) UNCHECKED static  // constant during a thread's life
INDEX uint3 thread_index() { return current->index; }
INDEX uint3 block_index() { return the_block; }
INDEX uint3 grid_size() { return the_grid; }
INDEX uint3 block_size() { return the_block_size; }
}
#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_size())
#define gridDim (emulator::grid_size())

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { emulator::block_barrier(file, line); }
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return emulator::block_or(predicate != 0, file, line);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::warp_barrier(mask, file, line);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

#define SHUFFLE(NAME, OTHER)                                                                      \
    template <class V> inline V NAME(unsigned mask, V value, int by, int width = 32,              \
                                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {\
        int lane = emulator::current->lane, first = lane / width * width, other = OTHER;          \
        auto* values = emulator::exchange(mask, value, file, line);                               \
        if (other < 0 || other > 31 || !(mask >> other & 1)) other = lane;                        \
        return emulator::value_of<V>(values, other);                                              \
    }
SHUFFLE(__shfl_sync, first + (by & (width - 1)))
SHUFFLE(__shfl_xor_sync, (lane ^ by) < first + width ? lane ^ by : lane)
SHUFFLE(__shfl_down_sync, lane + by < first + width ? lane + by : lane)
SHUFFLE(__shfl_up_sync, lane - by >= first ? lane - by : lane)

inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    auto* values = emulator::exchange(mask, predicate, file, line);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && emulator::value_of<int>(values, lane)) bits |= 1u << lane;
    return bits;
}
inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}

#define ATOMIC(NAME, RESULT)                                                                      \
    template <class V> UNCHECKED static V NAME(V* p, V value) {                                   \
        emulator::check_access(p, sizeof(V), true, __builtin_return_address(0), true);            \
        V old = *p;                                                                               \
        *p = RESULT;                                                                              \
        return old;                                                                               \
    }
ATOMIC(atomicAdd, old + value)
ATOMIC(atomicMax, old > value ? old : value)
ATOMIC(atomicMin, old < value ? old : value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicExch, value)
template <class V> UNCHECKED static V atomicCAS(V* p, V expected, V value) {
    emulator::check_access(p, sizeof(V), true, __builtin_return_address(0), true);
    V old = *p;
    if (old == expected) *p = value;
    return old;
}

inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
template <class V> inline V __ldg(const V* p) { return *p; }
template <class V> inline V min(V a, V b) { return b < a ? b : a; }
template <class V> inline V max(V a, V b) { return a < b ? b : a; }
