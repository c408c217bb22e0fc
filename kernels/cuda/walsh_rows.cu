/* Rows of the Walsh matrix in an order of their own: a warp counts the rows in front of one and
 * writes it.
 */
#include "kernels/cuda/common.cuh"

#define WARPS 8

/* V values at to: those of row t from column j on, whose last bits are those of the index. */
template <typename T, int V>
static __device__ __forceinline__ void store_values(T *to, int t, int j, int shift, float value) {
    const int mask = (1 << shift) - 1;
    const bool odd = __popc(t & j & mask) & 1, same = t >> shift == j >> shift;
    float v[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        const bool minus = odd != ((__popc(t & i & mask) & 1) != 0);
        v[i] = !same ? 0.0f : minus ? -value : value;
    }
    pack_store<T, V>(to + j, v);
}

/* Runs are of 2^shift rows, a multiple of V; n is one, too. */
template <typename T, int V>
__global__ void __launch_bounds__(32 * WARPS)
    walsh_rows_kernel(T *w, const float *energy, int64_t rows, int n, int shift, float value) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const int t = (int)(row % n), lane = threadIdx.x;
    const int64_t first = row - t;
    /* energies are not negative, so their bits are in the same order, and total */
    const uint32_t *own = (const uint32_t *)energy + first;
    const uint32_t mine = own[t];
    int place = 0;
#pragma unroll 4
    for (int s = lane; s < n; s += 32) place += own[s] > mine || (own[s] == mine && s < t) ? 1 : 0;
#pragma unroll
    for (int by = 16; by; by /= 2) place += __shfl_xor_sync(0xffffffffu, place, by);
    T *to = w + (first + place) * n;
    for (int j = lane * V; j < n; j += 32 * V) store_values<T, V>(to, t, j, shift, value);
}

extern "C" Status walsh_rows_cuda(Device *d, Tensor w, Tensor energy) {
    const int n = (int)w.shape[1], run = (int)walsh_run(n);
    const int64_t rows = w.shape[0] * n;
    const float value = (float)(1.0 / sqrt((double)run));
    const dim3 block(32, WARPS);
    const unsigned grid = (unsigned)ceil_div(rows, WARPS);
    int shift = 0;
    while (1 << shift < run) shift++;
    WITH_ACT("walsh_rows", w.dtype, T, {
        const int V = 16 / sizeof(T);
        T *to = (T *)w.data;
        const float *from = (const float *)energy.data;
        if (run % V == 0 && is_aligned(to, 16))
            walsh_rows_kernel<T, V>
                <<<grid, block, 0, stream_of(d)>>>(to, from, rows, n, shift, value);
        else
            walsh_rows_kernel<T, 1>
                <<<grid, block, 0, stream_of(d)>>>(to, from, rows, n, shift, value);
    });
    return launched("walsh_rows");
}
