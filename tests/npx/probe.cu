// Minimal kernels for each feature of device.cuh, for the tests of the emulator and as examples.
// Built with: T = float half_t bf16_t
#include "device.cuh"

// y = x in another type and back; n values
extern "C" __global__ void probe_convert(const float* x, T* low, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    low[i] = from_float<T>(x[i]);
    y[i] = to_float(low[i]);
}

// sums[row], peaks[row] over the columns of x (rows, columns): one block per row
extern "C" __global__ void probe_reduce(const T* x, float* sums, float* peaks, int columns) {
    __shared__ float scratch[32];
    const T* row = x + (size_t)blockIdx.x * columns;
    float sum = 0, peak = -INFINITY;
    for (int j = threadIdx.x; j < columns; j += blockDim.x) {
        float v = to_float(row[j]);
        sum += v, peak = fmaxf(peak, v);
    }
    sum = block_sum(sum, scratch);
    peak = block_max(peak, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum, peaks[blockIdx.x] = peak;
}

// words[i] = random word i of the key, 16 per thread
extern "C" __global__ void probe_random(unsigned short* words, u64 seed, u64 step, u64 call, u64 first, int n) {
    int position = blockIdx.x * blockDim.x + threadIdx.x;
    Random64 r = random64(seed, step, call, first + position);
    for (int i = 0; i < 16; i++)
        if (position * 16 + i < n) words[position * 16 + i] = bits16(r, i);
}

// y = 2 x, 16 bytes at a time, through dynamic shared memory; n a multiple of VECTOR<T>
extern "C" __global__ void probe_vector(const T* x, T* y, int n) {
    T* buffer = dynamic_shared<T>();
    int i = threadIdx.x * VECTOR<T>;
    float v[VECTOR<T>];
    if (i < n) {
        load_vector(x + i, v);
        for (int k = 0; k < VECTOR<T>; k++) v[k] *= 2;
        store_vector(buffer + i, v);
    }
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += blockDim.x) y[j] = buffer[j];
}

#if TENSOR_CORES
// c (16, 8) = a (16, 16) b (16, 8) by one warp
template <class S> __device__ void multiply(const S* a, const S* b, float* c) {
    S *sa = dynamic_shared<S>(), *sb = sa + 16 * 16;
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) sa[i] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i] = b[i];
    __syncwarp();
    unsigned left[4], right[4];
    float sum[4] = {0, 0, 0, 0};
    ldmatrix_x4(left, sa + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(right, sb + lane % 16 * 8);  // two matrices, given twice
    mma_m16n8k16<S>(sum, left, right);
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
extern "C" __global__ void probe_mma_half(const half_t* a, const half_t* b, float* c) { multiply(a, b, c); }
extern "C" __global__ void probe_mma_bf16(const bf16_t* a, const bf16_t* b, float* c) { multiply(a, b, c); }
#endif
