/* Rows of the Walsh matrix in an order of their own: a warp counts the rows in front of one and
 * writes it.
 */
#include "kernels/cuda/common.cuh"

#define WARPS 8

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    walsh_rows_kernel(T *w, const float *energy, int64_t rows, int n, int run, float value) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const int t = (int)(row % n), lane = threadIdx.x;
    const int64_t first = row - t;
    /* energies are not negative, so their bits are in the same order, and total */
    const uint32_t *own = (const uint32_t *)energy + first;
    const uint32_t mine = own[t];
    int place = 0;
    for (int s = lane; s < n; s += 32) place += own[s] > mine || (own[s] == mine && s < t) ? 1 : 0;
#pragma unroll
    for (int by = 16; by; by /= 2) place += __shfl_xor_sync(0xffffffffu, place, by);
    T *to = w + (first + place) * n;
    for (int j = lane; j < n; j += 32) {
        const float signed_value = __popc(t & j & (run - 1)) % 2 ? -value : value;
        from_float(to + j, t / run == j / run ? signed_value : 0.0f);
    }
}

extern "C" Status walsh_rows_cuda(Device *d, Tensor w, Tensor energy) {
    const int n = (int)w.shape[1], run = (int)walsh_run(n);
    const int64_t rows = w.shape[0] * n;
    const float value = (float)(1.0 / sqrt((double)run));
    WITH_ACT("walsh_rows", w.dtype, T,
             walsh_rows_kernel<T>
             <<<(unsigned)ceil_div(rows, WARPS), dim3(32, WARPS), 0, stream_of(d)>>>(
                 (T *)w.data, (const float *)energy.data, rows, n, run, value));
    return launched("walsh_rows");
}
