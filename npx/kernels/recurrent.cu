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
    i64 at = k / size * 4 * size + k % size;
    z += at;
    a += at;
    T i = sigmoid(z[0] + a[0]), f = sigmoid(z[size] + a[size]), o = sigmoid(z[2 * size] + a[2 * size]);
    T u = tanhf(z[3 * size] + a[3 * size]);
    T state = f * c[k] + i * u;
    a[0] = i;
    a[size] = f;
    a[2 * size] = o;
    a[3 * size] = u;
    new_c[k] = state;
    new_h[k] = o * tanhf(state);
}

// `a` holds the gates on entry and their gradients on return; gh = gz_(t+1) w^T; gc becomes the gradient of c_(t-1).
extern "C" __global__ void lstm_grad(
    const T* g, const T* gh, const T* c, const T* new_c, T* a, T* gc, i64 n, int size
) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    a += k / size * 4 * size + k % size;
    T i = a[0], f = a[size], o = a[2 * size], u = a[3 * size];
    T h = g[k] + gh[k], tanh_c = tanhf(new_c[k]);
    T state = gc[k] + h * o * (1 - tanh_c * tanh_c);
    a[0] = state * u * i * (1 - i);
    a[size] = state * c[k] * f * (1 - f);
    a[2 * size] = h * tanh_c * o * (1 - o);
    a[3 * size] = state * i * (1 - u * u);
    gc[k] = state * f;
}

// `a` holds h_(t-1) w on entry and the gates r, s, u on return.
extern "C" __global__ void gru(const T* z, const T* b, const T* h, T* a, T* q, T* new_h, i64 n, int size) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    i64 at = k / size * 3 * size + k % size;
    z += at;
    a += at;
    T r = sigmoid(z[0] + a[0]), s = sigmoid(z[size] + a[size]), inner = a[2 * size] + b[k % size];
    T u = tanhf(z[2 * size] + r * inner);
    a[0] = r;
    a[size] = s;
    a[2 * size] = u;
    q[k] = inner;
    new_h[k] = s * h[k] + (1 - s) * u;
}

// On entry, `a` holds the gates, and gh the gradient of h_t without g. On return, `a` holds the gradients of the gates,
// and gh the part of the gradient of h_(t-1) that does not pass through w.
extern "C" __global__ void gru_grad(
    const T* g, const T* h, const T* q, T* a, T* ga, T* gh, i64 n, int size
) {
    i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    if (k >= n) return;
    i64 at = k / size * 3 * size + k % size;
    a += at;
    ga += at;
    T r = a[0], s = a[size], u = a[2 * size], total = g[k] + gh[k];
    T gu = total * (1 - s) * (1 - u * u);
    a[0] = ga[0] = gu * q[k] * r * (1 - r);
    a[size] = ga[size] = total * (h[k] - u) * s * (1 - s);
    a[2 * size] = gu;
    ga[2 * size] = gu * r;
    gh[k] = total * s;
}
