/* The position encoding with the layer norm that follows it, on whole rows of the map (Hopper).
 * What does not fit here is put together from the other kernels.
 */
#include "kernels/cuda/dwconv_norm.cuh"
#include "kernels/cuda/rowtaps.cuh"

#define NORM_THREADS 384 /* two blocks on a multiprocessor */

#if HAVE_SM90A

/* Columns x0 .. x1-1 of one row of outputs; t is at column max(x0 - 1, 0), `out` at x0. */
template <typename T>
static __device__ __forceinline__ void row_apply(T *out, ThreeRows t, const RowCut &c, int x0,
                                                 int x1, const float (&w)[9][PAIR],
                                                 const float (&bias)[PAIR]) {
    float here[PAIR], next[PAIR], fresh[PAIR], now[3][PAIR];
    pair_move(here, bias);
    pair_move(next, bias);
    if (x0 > 0) {
        column_next<T>(now, t);
        column_apply<0>(here, w, now);
    }
    column_next<T>(now, t);
    column_apply<1>(here, w, now);
    column_apply<0>(next, w, now);
#pragma unroll 4
    for (int left = x1 - x0 - 1; left > 0; left--) {
        column_next<T>(now, t);
        pair_move(fresh, bias);
        column_apply<2>(here, w, now);
        column_apply<1>(next, w, now);
        column_apply<0>(fresh, w, now);
        pack_store<T, PAIR>(out, here);
        out += c.channels;
        pair_move(here, next);
        pair_move(next, fresh);
    }
    if (x1 < c.width) {
        column_next<T>(now, t);
        column_apply<2>(here, w, now);
    }
    pack_store<T, PAIR>(out, here);
}

/* A warp takes a pixel of the row `out`: its copy to `sum`, its norm to y. Pixel 0 is row `first`
 * of sum, y and stats. */
template <typename T, int PACKS>
static __device__ __forceinline__ void pixels_norm(T *sum, T *y, float *stats, const T *out,
                                                   int64_t first, const RowCut &c,
                                                   const NormArgs &n) {
    const int V = 16 / sizeof(T), me = threadIdx.y * blockDim.x + threadIdx.x, lane = me % 32;
    for (int x = me / 32; x < c.width; x += blockDim.x * blockDim.y / 32) {
        const int64_t at = (first + x) * c.channels;
        uint4 raw[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int ch = (p * 32 + lane) * V;
            raw[p] = make_uint4(0, 0, 0, 0);
            if (ch >= c.channels) continue;
            raw[p] = *reinterpret_cast<const uint4 *>(out + x * c.channels + ch);
            *reinterpret_cast<uint4 *>(sum + at + ch) = raw[p];
        }
        row_norm<T, PACKS>(y ? y + at : NULL, stats ? stats + 2 * (first + x) : NULL, raw, n, lane);
    }
}

#endif /* HAVE_SM90A */

/* Shared memory: the ring, the row in work, zeros, barriers. */
template <typename T, int PACKS>
__global__ void __launch_bounds__(NORM_THREADS, 2)
    dwconv3_norm_kernel(T *sum, T *y, float *stats, const T *x, RowCut c, int slots, ConvArgs g,
                        NormArgs n) {
#if HAVE_SM90A
    extern __shared__ __align__(128) char rows[];
    const int pitch = c.channels * (int)sizeof(T);
    T *out = (T *)(rows + slots * c.row_bytes);
    char *zeros = rows + (slots + 1) * c.row_bytes;
    const RowRing ring = {shared_address(rows), shared_address(zeros) + pitch, slots};
    const int channel = threadIdx.x * PAIR, across = (c.width + blockDim.y - 1) / blockDim.y;
    const int x0 = threadIdx.y * across, x1 = min(c.width, x0 + across);
    const bool active = channel < c.channels && x0 < x1;
    /* in the last warp, which has the fewest pixels */
    const bool feeder = threadIdx.x == blockDim.x - 32 && threadIdx.y == blockDim.y - 1;
    float w[9][PAIR], bias[PAIR];
    if (active) conv_taps<PAIR>(w, bias, g, 0, channel);
    zeros_init(zeros, pitch);
    if (feeder) ring_init(ring);
    __syncthreads();
    RowFeed feed = feed_init(x, c, 1);
    if (feeder) feed_rows(feed, ring, c, slots);
    RowReader at = {};
    for (int unit = blockIdx.x; unit < c.units; unit += gridDim.x) {
        const RowUnit u = row_unit(c, unit, 1);
        reader_unit(at, u);
        for (int row = u.begin; row < u.end; row++) {
            reader_wait(at, ring, min(row + 2, u.bottom));
            reader_move(at, ring, row);
            if (active)
                row_apply<T>(out + x0 * c.channels + channel,
                             three_rows(at, ring, c, shared_address(zeros), row, pitch,
                                        max(x0 - 1, 0), channel * (int)sizeof(T)),
                             c, x0, x1, w, bias);
            __syncthreads();
            if (feeder)
                feed_rows(feed, ring, c,
                          row + 1 == u.end ? u.bottom - max(row - 1, u.top) : row > u.top);
            pixels_norm<T, PACKS>(sum, y, stats, out,
                                  ((int64_t)u.sample * c.height + row) * c.width, c, n);
            __syncthreads();
        }
    }
#endif
}

template <typename T, int PACKS>
static Status norm_launch(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x,
                          const ConvArgs &g, const NormArgs &n, dim3 block, int slots) {
    const int pitch = (int)(x.shape[3] * (int64_t)sizeof(T));
    const int bytes = (slots + 1) * (int)x.shape[2] * pitch + pitch + 8 * slots;
    int resident = 1;
    CUDA_TRY(cudaFuncSetAttribute(dwconv3_norm_kernel<T, PACKS>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "dwconv3_norm");
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, dwconv3_norm_kernel<T, PACKS>,
                                                           (int)(block.x * block.y), bytes),
             "dwconv3_norm");
    const int64_t blocks = (int64_t)(resident > 0 ? resident : 1) * backend_of(d)->sm_count;
    const RowCut c = row_cut(x, blocks);
    dwconv3_norm_kernel<T, PACKS>
        <<<(unsigned)(c.units < blocks ? c.units : blocks), block, bytes, stream_of(d)>>>(
            (T *)sum.data, (T *)y.data, (float *)stats.data, (const T *)x.data, c, slots, g, n);
    return launched("dwconv3_norm");
}

extern "C" Status dwconv3_norm_cuda(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x,
                                    Tensor w, Tensor bias, Tensor gain, Tensor shift, float eps) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (sum.dtype != x.dtype || (y.data && y.dtype != x.dtype))
        return refuse_dtype("dwconv3_norm", sum.dtype);
    const int lanes = row_lanes(d, x), packs = row_packs(x.shape[3], x.dtype == DTYPE_F32 ? 4 : 8);
    const bool aligned = is_aligned(sum.data, 16) && is_aligned(y.data, 16) &&
                         is_aligned(gain.data, 16) && is_aligned(shift.data, 16) &&
                         is_aligned(stats.data, 8);
    ConvArgs g = {};
    g.w = (const float *)w.data;
    g.bias = (const float *)bias.data;
    g.add_input = true;
    const NormArgs n = norm_args(gain, shift, x.shape[3], eps);
    if (lanes && packs && aligned && dwconv3_norm_keeps(x))
        return dwconv3_norm_keep(d, sum, y, stats, x, g, n);
    /* With 768 channels two kernels are faster than this one (0.106, 0.109 ms on an H200). */
    const int slots =
        lanes > 0 && lanes < NORM_THREADS ? ring_slots(d, x, 2 * NORM_THREADS / lanes, 1, 3) : 0;
    if (!slots || !packs || !aligned) {
        TRY(dwconv3_cuda(d, grad_set(sum), x, w, bias, TAPS_CORRELATE, true));
        return layernorm_cuda(d, y, stats, sum, gain, shift, eps);
    }
    WITH_ACT(
        "dwconv3_norm", x.dtype, T,
        WITH_PACKS(packs, T, PACKS,
                   return norm_launch<T, PACKS>(d, sum, y, stats, x, g, n, dim3(lanes), slots)));
    return STATUS_OK;
}
