// One Adam update of flat arrays (adam.py): eight adjacent values per thread.
// Built with: LOW = float half_t bf16_t
#include "device.cuh"

extern "C" __global__ void adam(
    float* p, const float* g, float* m, float* v, LOW* low, i64 n,
    float scale, float rate1, float rate2, float step_size, float eps, float decay
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
        float gradient = scale * gv[i];
        mv[i] += rate1 * (gradient - mv[i]);
        vv[i] += rate2 * (gradient * gradient - vv[i]);
        pv[i] = decay * pv[i] - step_size * mv[i] / (sqrtf(vv[i]) + eps);
    }
    store<8>(p + start, count, pv);
    store<8>(m + start, count, mv);
    store<8>(v + start, count, vv);
    if (low) store<8>(low + start, count, pv);
}
