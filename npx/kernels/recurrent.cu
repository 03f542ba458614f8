// The gates of one step of an LSTM or a GRU, and their gradients (recurrent.py), one thread per element of the state.
// n = B H elements; rows of `a` and z have the columns of 4 (LSTM) or 3 (GRU) gates, H each. The matmuls before and
// after a step are calls to cuBLAS.
// Built with: T = float
#include "device.cuh"

__device__ inline T sigmoid(T x) { return (1 + tanhf(x / 2)) / 2; }

// `a` holds h_(t-1) w on entry and the gates i, f, o, u on return.
extern "C" __global__ void lstm(const T* z, const T* c, T* a, T* new_h, T* new_c, i64 n, int size) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    i64 first = k / size * 4 * size + k % size;
    z += first;
    a += first;
    T i = sigmoid(z[0] + a[0]), f = sigmoid(z[size] + a[size]), o = sigmoid(z[2 * size] + a[2 * size]);
    T u = tanhf(z[3 * size] + a[3 * size]);
    T c_t = f * c[k] + i * u;
    a[0] = i;
    a[size] = f;
    a[2 * size] = o;
    a[3 * size] = u;
    new_c[k] = c_t;
    new_h[k] = o * tanhf(c_t);
}

// `a` holds the gates on entry and their gradients on return; gh = gz_(t+1) w^T; gc becomes the gradient of c_(t-1).
extern "C" __global__ void lstm_grad(
    const T* g, const T* gh, const T* c, const T* new_c, T* a, T* gc, i64 n, int size
) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    a += k / size * 4 * size + k % size;
    T i = a[0], f = a[size], o = a[2 * size], u = a[3 * size];
    T gh_t = g[k] + gh[k], tanh_c = tanhf(new_c[k]);
    T gc_t = gc[k] + gh_t * o * (1 - tanh_c * tanh_c);
    a[0] = gc_t * u * i * (1 - i);
    a[size] = gc_t * c[k] * f * (1 - f);
    a[2 * size] = gh_t * tanh_c * o * (1 - o);
    a[3 * size] = gc_t * i * (1 - u * u);
    gc[k] = gc_t * f;
}

// `a` holds h_(t-1) w on entry and the gates r, s, u on return.
extern "C" __global__ void gru(const T* z, const T* b, const T* h, T* a, T* q, T* new_h, i64 n, int size) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    i64 first = k / size * 3 * size + k % size;
    z += first;
    a += first;
    T r = sigmoid(z[0] + a[0]), s = sigmoid(z[size] + a[size]), q_t = a[2 * size] + b[k % size];
    T u = tanhf(z[2 * size] + r * q_t);
    a[0] = r;
    a[size] = s;
    a[2 * size] = u;
    q[k] = q_t;
    new_h[k] = s * h[k] + (1 - s) * u;
}

// On entry, `a` holds the gates, and gh the gradient of h_t without g. On return, `a` holds the gradients of the gates,
// and gh the part of the gradient of h_(t-1) that does not pass through w.
extern "C" __global__ void gru_grad(
    const T* g, const T* h, const T* q, T* a, T* ga, T* gh, i64 n, int size
) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    i64 first = k / size * 3 * size + k % size;
    a += first;
    ga += first;
    T r = a[0], s = a[size], u = a[2 * size], gh_t = g[k] + gh[k];
    T gu = gh_t * (1 - s) * (1 - u * u);
    a[0] = ga[0] = gu * q[k] * r * (1 - r);
    a[size] = ga[size] = gh_t * (h[k] - u) * s * (1 - s);
    a[2 * size] = gu;
    ga[2 * size] = gu * r;
    gh[k] = gh_t * s;
}
