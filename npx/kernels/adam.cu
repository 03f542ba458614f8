// One Adam update of flat arrays (adam.py): eight adjacent values per thread.
// Built with: LOW = float half_t bf16_t
#include "device.cuh"

extern "C" __global__ void adam(
    float* p, const float* g, float* m, float* v, LOW* p_compute, i64 n,
    float grad_scale, float one_minus_beta1, float one_minus_beta2, float step_size, float eps, float decay_factor
) {
    i64 start = 8 * (blockIdx.x * (i64)blockDim.x + threadIdx.x);
    int count = (int)min(n - start, (i64)8);

    float pv[8], gv[8], mv[8], vv[8];
    load<8>(p + start, count, pv);
    load<8>(g + start, count, gv);
    load<8>(m + start, count, mv);
    load<8>(v + start, count, vv);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float gradient = grad_scale * gv[i];
        mv[i] += one_minus_beta1 * (gradient - mv[i]);
        vv[i] += one_minus_beta2 * (gradient * gradient - vv[i]);
        pv[i] = decay_factor * pv[i] - step_size * mv[i] / (sqrtf(vv[i]) + eps);
    }
    store<8>(p + start, count, pv);
    store<8>(m + start, count, mv);
    store<8>(v + start, count, vv);
    if (p_compute) store<8>(p_compute + start, count, pv);
}
