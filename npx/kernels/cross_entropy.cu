// Label-smoothed cross entropy of rows of logits (cross_entropy.py), one block per row.
// Built with: T = float half_t bf16_t, ID = int i64 unsigned
#include "device.cuh"

#define WIDTH 8
#define LOWEST -3.402823466e38f  // instead of -inf, so that differences stay finite

// losses[row] = logsumexp(z) - on z_target - off sum z and, unless gz is null, gz = softmax(z) - q. gz may be z; rows
// of both are `stride` values apart. q is `off`, plus `on` at the target, and 0 at padding if `excludes_padding`. A row
// whose target is padding gets zeros. The first pass computes the maximum and the sum of exponentials online; if
// `keep_row`, it also keeps the row in dynamic shared memory for the second pass.
extern "C" __global__ void cross_entropy(
    const T* z, const ID* targets, T* gz, float* losses, int classes, i64 stride,
    float on, float off, i64 pad_id, int excludes_padding, int keep_row
) {
    i64 row = blockIdx.x, target = targets[row];
    z += row * stride;
    if (gz) gz += row * stride;

    if (target == pad_id) {
        const float zeros[WIDTH] = {};
        for (int start = threadIdx.x * WIDTH; gz && start < classes; start += blockDim.x * WIDTH)
            store<WIDTH>(gz + start, classes - start, zeros);
        if (threadIdx.x == 0) losses[row] = 0;
        return;
    }

    T* row_copy = dynamic_shared<T>();  // each thread reads only what it wrote
    const int excluded = excludes_padding ? (int)pad_id : -1;  // its logit may be -inf, so it must not enter the sum
    float peak = LOWEST, total = 0, sum = 0;
    for (int start = threadIdx.x * WIDTH; start < classes; start += blockDim.x * WIDTH) {
        float v[WIDTH], top = peak;
        load<WIDTH>(z + start, classes - start, v);
        if (keep_row) store<WIDTH>(row_copy + start, classes - start, v);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (start + i != excluded) sum += v[i];
            if (start + i >= classes) v[i] = -INFINITY;
            top = fmaxf(top, v[i]);
        }
        total *= quick_exp(peak - top);
        peak = top;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) total += quick_exp(v[i] - peak);
    }
    float target_term = 0;  // only the first thread uses it; it is read before gz overwrites z
    if (threadIdx.x == 0) target_term = on * to_float(z[target]);
    __shared__ float scratch[32];
    float top = block_max(peak, scratch);
    total = block_sum(total * quick_exp(peak - top), scratch);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) losses[row] = logf(total) + top - (target_term + (off != 0 ? off * sum : 0));
    if (!gz) return;

    float inverse = 1 / total;
    const T* row_source = keep_row ? row_copy : z;
    for (int start = threadIdx.x * WIDTH; start < classes; start += blockDim.x * WIDTH) {
        float v[WIDTH];
        load<WIDTH>(row_source + start, classes - start, v);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            float q = start + i == excluded ? 0 : off;
            if (start + i == target) q += on;
            v[i] = quick_exp(v[i] - top) * inverse - q;
        }
        store<WIDTH>(gz + start, classes - start, v);
    }
}
