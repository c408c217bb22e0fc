/* Depthwise 3x3 on [B,H,W,C]: application (and its adjoint), and the gradient of the taps.
 *
 * A block copies a padded tile (stencil.cuh) with all of its loads in flight at once, then runs
 * strips over it; several blocks per multiprocessor take turns at loading and computing. Channels
 * that are no multiple of 16 bytes, unaligned views and maps of several hundred columns take plain
 * kernels (dwconv_any.cu).
 */
#include "kernels/cuda/dwconv.cuh"
#include "kernels/cuda/stencil.cuh"

#define TILE_LIMIT ((int64_t)36 << 10)

static bool conv_tiled(Cut *c, Tensor x, Tensor y) {
    const bool whole = x.shape[3] * (int64_t)dtype_size(x.dtype) % 16 == 0 &&
                       is_aligned(x.data, 16) && is_aligned(y.data, 16);
    return cut_map(c, x.shape[0], (int)x.shape[1], (int)x.shape[2], x.shape[3], TILE_LIMIT) &&
           whole;
}

/* ---- application ---------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(MAX_THREADS, 5)
    dwconv3_kernel(T *y, const T *x, Cut c, ConvArgs g) {
    extern __shared__ __align__(128) char tile[];
    const int64_t first = (int64_t)blockIdx.y * (PIXEL_BYTES / sizeof(T)), b = blockIdx.x / c.tiles;
    const int64_t base = b * c.height * c.width * c.channels + first, lane = threadIdx.x * STRIP_V;
    const int y0 = (int)(blockIdx.x % c.tiles) * c.rows, items = c.rows / STRIP_ROWS * c.parts;
    tile_fetch<T>(shared_address(tile), x + base, c.channels, c, y0, c.channels - first);
    copies_commit();
    const bool active = first + lane < c.channels;
    float w[9][STRIP_V], bias[STRIP_V];
    if (active) conv_taps<STRIP_V>(w, bias, g, b, first + lane);
    copies_wait<0>();
    __syncthreads();
    for (int item = threadIdx.y; active && item < items; item += blockDim.y) {
        const Strip s = strip_of(c, y0, item);
        if (s.y0 < c.height && s.x0 < s.x1)
            strip_apply<T>(y + base + lane, c.channels, g.put_add, tile, c, y0, s, w, bias);
    }
}

template <typename T>
static Status dwconv3_launch(Device *d, Tensor y, Tensor x, const Cut &c, const ConvArgs &g) {
    const dim3 grid((unsigned)(c.batch * c.tiles),
                    (unsigned)ceil_div(c.channels * (int64_t)sizeof(T), PIXEL_BYTES));
    dwconv3_kernel<T><<<grid, cut_block<T>(&c), c.tile_bytes, stream_of(d)>>>(
        (T *)y.data, (const T *)x.data, c, g);
    return launched("dwconv3");
}

extern "C" Status dwconv3_cuda(Device *d, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode,
                               bool add_input) {
    if (tensor_is_none(y.t) || tensor_count(x) == 0) return STATUS_OK;
    if (y.t.dtype != x.dtype) return refuse_dtype("dwconv3", x.dtype);
    ConvArgs g = {};
    g.w = (const float *)w.data;
    g.bias = (const float *)bias.data;
    g.w_step = w.shape[0] == 1 ? 0 : x.shape[3] * 9;
    g.transpose = mode == TAPS_TRANSPOSE;
    g.add_input = add_input;
    g.put_add = y.add;
    Cut c;
    if (!conv_tiled(&c, x, y.t)) return dwconv3_any(d, y.t, x, g);
    WITH_ACT("dwconv3", x.dtype, T, return dwconv3_launch<T>(d, y.t, x, c, g));
}

/* ---- gradient of the taps -------------------------------------------------------------------- */

/* partial[part][C*9 + C]: taps, then the sum of y. A part is a sample (`per_sample`) or every
 * gridDim.x-th tile of the batch. */
template <typename T>
__global__ void __launch_bounds__(MAX_THREADS, 3)
    dwconv3_taps_kernel(const T *x, const T *y, Cut c, TapsArgs g) {
    extern __shared__ __align__(128) char tile[];
    char *side = tile + c.tile_bytes;
    const int64_t first = (int64_t)blockIdx.y * (PIXEL_BYTES / sizeof(T));
    const int64_t ch = first + threadIdx.x * STRIP_V;
    const int64_t begin = g.per_sample ? (int64_t)blockIdx.x * c.tiles : blockIdx.x;
    const int64_t end = g.per_sample ? begin + c.tiles : c.batch * c.tiles;
    const int items = c.rows / STRIP_ROWS * c.parts;
    float sum[10][STRIP_V] = {};
    float(&taps)[9][STRIP_V] = *reinterpret_cast<float(*)[9][STRIP_V]>(&sum[0]);
    for (int64_t index = begin; index < end; index += g.per_sample ? 1 : gridDim.x) {
        const int64_t base = index / c.tiles * c.height * c.width * c.channels + first;
        const int y0 = (int)(index % c.tiles) * c.rows;
        tile_fetch<T>(shared_address(tile), x + base, c.channels, c, y0, c.channels - first);
        tile_fetch<T>(shared_address(side), y + base, c.channels, c, y0, c.channels - first);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        for (int item = threadIdx.y; ch < c.channels && item < items; item += blockDim.y) {
            const Strip s = strip_of(c, y0, item);
            if (s.y0 < c.height && s.x0 < s.x1) strip_taps<T>(taps, sum[9], tile, side, c, y0, s);
        }
        __syncthreads();
    }
    rows_join<10 * STRIP_V>((float *)tile, *reinterpret_cast<float(*)[10 * STRIP_V]>(&sum[0]));
    taps_put<STRIP_V>((const float *)tile, ch, c.channels, g);
}

template <typename T>
static Status taps_launch(Device *d, Tensor x, Tensor y, const Cut &c, TapsArgs &g,
                          unsigned *parts) {
    const dim3 block = cut_block<T>(&c);
    const int64_t across = ceil_div(c.channels * (int64_t)sizeof(T), PIXEL_BYTES);
    const int joined = (int)sizeof(float) * 10 * STRIP_V * (int)block.x;
    const int bytes = 2 * c.tile_bytes > joined ? 2 * c.tile_bytes : joined;
    CUDA_TRY(cudaFuncSetAttribute(dwconv3_taps_kernel<T>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "dwconv3_taps");
    int resident = 1; /* blocks that a multiprocessor holds: the grid fills the card once */
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, dwconv3_taps_kernel<T>,
                                                           (int)(block.x * block.y), bytes),
             "dwconv3_taps");
    const int64_t all = (int64_t)resident * backend_of(d)->sm_count, most = c.batch * c.tiles;
    const int64_t want = all > across ? all / across : 1;
    *parts = (unsigned)(g.per_sample ? c.batch : want < most ? want : most);
    TRY(scratch_take(d, sizeof(float) * g.stride * *parts, (void **)&g.partial));
    dwconv3_taps_kernel<T><<<dim3(*parts, (unsigned)across), block, bytes, stream_of(d)>>>(
        (const T *)x.data, (const T *)y.data, c, g);
    return launched("dwconv3_taps");
}

static Status taps_run(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha) {
    const int64_t batch = x.shape[0], channels = x.shape[3];
    TapsArgs a = {};
    unsigned parts = 0;
    a.per_sample = !tensor_is_none(g.t) && g.t.shape[0] == batch && batch > 1;
    a.sums = !a.per_sample && !tensor_is_none(sum_y.t);
    a.stride = channels * 9 + (a.sums ? channels : 0);
    Cut c;
    if (conv_tiled(&c, x, y)) {
        WITH_ACT("dwconv3_taps", x.dtype, T, TRY(taps_launch<T>(d, x, y, c, a, &parts)));
    } else {
        TRY(dwconv3_taps_any(d, x, y, &a, &parts));
    }
    /* samples lie one after the other: a single part */
    TRY(reduce_partials(d, g, a.partial, a.per_sample ? 1 : parts, a.stride, alpha));
    if (!a.sums) return STATUS_OK;
    return reduce_partials(d, sum_y, a.partial + channels * 9, parts, a.stride, 1.0f);
}

extern "C" Status dwconv3_taps_cuda(Device *d, Grad g, Grad sum_y, Tensor x, Tensor y,
                                    float alpha) {
    if ((tensor_is_none(g.t) && tensor_is_none(sum_y.t)) || tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("dwconv3_taps", y.dtype);
    const Status status = taps_run(d, g, sum_y, x, y, alpha);
    scratch_done(d);
    return status;
}
