/* Gradients of a depthwise 3x3 with respect to map, taps and bias from one reading, on whole rows
 * of the map (Hopper). What does not fit here is put together from the other kernels.
 *
 * Sums over a map come from the same kernel, in the same order, whether the map's gradient is
 * wanted, added or not: the bits of dw do not depend on what else a call asks for.
 */
#include "kernels/cuda/rowtaps.cuh"
#include "kernels/cuda/stencil.cuh"

#define BACK_THREADS 384 /* few, but with all the registers that they ask for */

/* What is left of the map's gradient. */
typedef enum BackMap { BACK_NOTHING, BACK_DX, BACK_SCALED } BackMap;

/* Where a row's results go: at a column, at the thread's channels. */
template <typename T> struct BackOut {
    T *dx, *scaled; /* scaled = scale * dx */
    float scale;
};

#if HAVE_SM90A

/* dw of the column `SIDE` - 1 to the right of x's, in the order of the reversed taps. */
template <int SIDE>
static __device__ __forceinline__ void column_taps(float (&g)[9][PAIR], const float (&x)[PAIR],
                                                   const float (&now)[3][PAIR]) {
#pragma unroll
    for (int r = 0; r < 3; r++)
#pragma unroll
        for (int v = 0; v < PAIR; v++) g[3 * r + SIDE][v] += x[v] * now[r][v];
}

/* Sums of a thread over all that it saw. */
typedef struct BackSums {
    float taps[9][PAIR]; /* in reverse order */
    float total[PAIR];   /* of dy */
} BackSums;

template <typename T, int MAP>
static __device__ __forceinline__ void back_put(BackOut<T> &to, float (&value)[PAIR],
                                                int channels) {
    if (MAP == BACK_NOTHING) return;
    pack_store<T, PAIR>(to.dx, value);
    to.dx += channels;
    if (MAP == BACK_SCALED) {
#pragma unroll
        for (int v = 0; v < PAIR; v++) {
            T rounded;
            from_float(&rounded, value[v]);
            value[v] = to.scale * to_float(rounded);
        }
        pack_store<T, PAIR>(to.scaled, value);
        to.scaled += channels;
    }
}

/* What moves along a row: accumulators of the columns before, at and behind the one that is read,
 * and x at them. */
typedef struct BackWalk {
    float here[PAIR], next[PAIR]; /* dx: to be finished by the next column, and by the one after */
    float x_here[PAIR], x_next[PAIR];
} BackWalk;

/* Reads a column of dy that is neither the first nor beyond the last of the thread's: its left
 * neighbour is finished. x_ahead: of the column behind. */
template <typename T, int MAP>
static __device__ __forceinline__ void back_column(BackSums &s, BackWalk &k, BackOut<T> &to,
                                                   ThreeRows &t, const float (&x_ahead)[PAIR],
                                                   int channels, const float (&w)[9][PAIR]) {
    float now[3][PAIR], fresh[PAIR];
    column_next<T>(now, t);
    pair_zero(fresh);
    column_apply<2>(k.here, w, now);
    column_apply<1>(k.next, w, now);
    column_apply<0>(fresh, w, now);
    column_taps<2>(s.taps, k.x_here, now);
    column_taps<1>(s.taps, k.x_next, now);
    column_taps<0>(s.taps, x_ahead, now);
#pragma unroll
    for (int v = 0; v < PAIR; v++) s.total[v] += now[1][v];
    back_put<T, MAP>(to, k.here, channels);
    pair_move(k.here, k.next);
    pair_move(k.next, fresh);
    pair_move(k.x_here, k.x_next);
    pair_move(k.x_next, x_ahead);
}

/* Columns x0 .. x1-1 of one row: with q a pixel of it and t a tap, dx[q] = sum_t w[t] dy[q-t] and
 * dw[t] += x[q] dy[q-t] look at the same nine values of dy. t is at column max(x0 - 1, 0), x and
 * `to` at x0. */
template <typename T, int MAP>
static __device__ __forceinline__ void row_backward(BackSums &s, BackOut<T> to, ThreeRows t,
                                                    Shared x, int pitch, const RowCut &c, int x0,
                                                    int x1, const float (&w)[9][PAIR]) {
    float now[3][PAIR], none[PAIR], ahead[PAIR];
    BackWalk k;
    pair_zero(none);
    pair_zero(k.here);
    pair_zero(k.next);
    pair_zero(k.x_next);
    pair_get<T>(k.x_here, x);
    if (x0 > 0) {
        column_next<T>(now, t);
        column_apply<0>(k.here, w, now);
        column_taps<0>(s.taps, k.x_here, now);
    }
    if (x1 - x0 > 1) pair_get<T>(k.x_next, x += pitch);
    column_next<T>(now, t);
    column_apply<1>(k.here, w, now);
    column_apply<0>(k.next, w, now);
    column_taps<1>(s.taps, k.x_here, now);
    column_taps<0>(s.taps, k.x_next, now);
#pragma unroll
    for (int v = 0; v < PAIR; v++) s.total[v] += now[1][v];
#pragma unroll 4
    for (int left = x1 - x0 - 2; left > 0; left--) {
        pair_get<T>(ahead, x += pitch);
        back_column<T, MAP>(s, k, to, t, ahead, c.channels, w);
    }
    if (x1 - x0 > 1) back_column<T, MAP>(s, k, to, t, none, c.channels, w);
    if (x1 < c.width) {
        column_next<T>(now, t);
        column_apply<2>(k.here, w, now);
        column_taps<2>(s.taps, k.x_here, now);
    }
    back_put<T, MAP>(to, k.here, c.channels);
}

#endif /* HAVE_SM90A */

/* Shared memory: the ring of dy, that of x and zeros, in whose place the joined sums come; then the
 * barriers, whose memory nothing else may use: with sums over them, a few were overwritten. */
static __host__ __device__ __forceinline__ int back_area(int rows, int pitch, int lanes) {
    const int joined = (int)sizeof(float) * 10 * PAIR * lanes;
    return rows + pitch > joined ? rows + pitch : joined;
}

template <typename T, int MAP>
__global__ void __launch_bounds__(BACK_THREADS, 1)
    dwconv3_backward_kernel(BackOut<T> out, const float *scale, const T *dy, const T *x, RowCut c,
                            int slots, ConvArgs g, TapsArgs part) {
#if HAVE_SM90A
    extern __shared__ __align__(128) char rows[];
    const int pitch = c.channels * (int)sizeof(T);
    const int x_slots = slots - 2, all = slots + x_slots; /* of x, no row around the one in work */
    char *zeros = rows + all * c.row_bytes;
    const int area = back_area(all * c.row_bytes, pitch, blockDim.x);
    const RowRing ring = {shared_address(rows), shared_address(rows) + area, slots};
    const RowRing x_ring = {ring.data + slots * c.row_bytes, ring.full + 8 * slots, x_slots};
    const int channel = threadIdx.x * PAIR, across = (c.width + blockDim.y - 1) / blockDim.y;
    const int x0 = threadIdx.y * across, x1 = min(c.width, x0 + across);
    const int first = x0 * c.channels + channel;
    const bool active = channel < c.channels && x0 < x1;
    const bool feeder = threadIdx.x == 0 && threadIdx.y == 0;
    float w[9][PAIR], none[PAIR];
    BackSums s = {};
    if (active) conv_taps<PAIR>(w, none, g, 0, channel);
    zeros_init(zeros, pitch);
    if (feeder) {
        ring_init(ring);
        ring_init(x_ring);
    }
    __syncthreads();
    RowFeed feed = feed_init(dy, c, 1), x_feed = feed_init(x, c, 0);
    if (feeder) {
        feed_rows(feed, ring, c, 2);
        feed_rows(x_feed, x_ring, c, x_slots);
        feed_rows(feed, ring, c, slots - 2);
    }
    RowReader at = {}, x_at = {};
    for (int unit = blockIdx.x; unit < c.units; unit += gridDim.x) {
        const RowUnit u = row_unit(c, unit, 1), x_unit = row_unit(c, unit, 0);
        const float factor = MAP == BACK_SCALED ? scale[u.sample] : 0.0f;
        reader_unit(at, u);
        reader_unit(x_at, x_unit);
        for (int row = u.begin; row < u.end; row++) {
            reader_wait(at, ring, min(row + 2, u.bottom));
            reader_move(at, ring, row);
            reader_wait(x_at, x_ring, row + 1);
            reader_move(x_at, x_ring, row);
            if (active) {
                const int64_t to =
                    ((int64_t)u.sample * c.height + row) * c.width * c.channels + first;
                const ThreeRows t = three_rows(at, ring, c, shared_address(zeros), row, pitch,
                                               max(x0 - 1, 0), channel * (int)sizeof(T));
                const Shared in = x_ring.data + x_at.slot * c.row_bytes + first * (int)sizeof(T);
                row_backward<T, MAP>(
                    s,
                    {MAP ? out.dx + to : NULL, MAP == BACK_SCALED ? out.scaled + to : NULL, factor},
                    t, in, pitch, c, x0, x1, w);
            }
            __syncthreads();
            if (feeder) {
                feed_rows(feed, ring, c,
                          row + 1 == u.end ? u.bottom - max(row - 1, u.top) : row > u.top);
                feed_rows(x_feed, x_ring, c, 1);
            }
        }
    }
    float sum[10 * PAIR]; /* taps in their own order, then the sum of dy */
#pragma unroll
    for (int i = 0; i < 10 * PAIR; i++)
        sum[i] = i < 9 * PAIR ? s.taps[8 - i / PAIR][i % PAIR] : s.total[i % PAIR];
    rows_join<10 * PAIR>((float *)rows, sum);
    taps_put<PAIR>((const float *)rows, channel, c.channels, part);
#endif
}

typedef struct BackCall {
    Tensor dx, scaled, scale, dy, x;
    ConvArgs g;
    TapsArgs part;
    dim3 block;
    int slots;
    unsigned parts;
} BackCall;

/* Blocks that a multiprocessor holds, the same for all forms: they cut the map alike. */
template <typename T> static Status backward_resident(const BackCall *b, int bytes, int *resident) {
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(resident,
                                                           dwconv3_backward_kernel<T, BACK_SCALED>,
                                                           (int)(b->block.x * b->block.y), bytes),
             "dwconv3_backward");
    if (*resident < 1) *resident = 1;
    return STATUS_OK;
}

template <typename T>
static Status backward_launch(Device *d, BackCall *b,
                              void (*kernel)(BackOut<T>, const float *, const T *, const T *,
                                             RowCut, int, ConvArgs, TapsArgs)) {
    const int pitch = (int)(b->x.shape[3] * (int64_t)sizeof(T)), all = 2 * b->slots - 2;
    const int rows = all * (int)b->x.shape[2] * pitch;
    const int bytes = back_area(rows, pitch, (int)b->block.x) + 8 * all;
    int resident;
    CUDA_TRY(cudaFuncSetAttribute(dwconv3_backward_kernel<T, BACK_SCALED>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "dwconv3_backward");
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "dwconv3_backward");
    TRY(backward_resident<T>(b, bytes, &resident));
    const int64_t blocks = (int64_t)resident * backend_of(d)->sm_count;
    const RowCut c = row_cut(b->x, blocks);
    b->parts = (unsigned)(c.units < blocks ? c.units : blocks);
    TRY(scratch_take(d, sizeof(float) * b->part.stride * b->parts, (void **)&b->part.partial));
    const BackOut<T> out = {(T *)b->dx.data, (T *)b->scaled.data, 0};
    kernel<<<b->parts, b->block, bytes, stream_of(d)>>>(out, (const float *)b->scale.data,
                                                        (const T *)b->dy.data, (const T *)b->x.data,
                                                        c, b->slots, b->g, b->part);
    return launched("dwconv3_backward");
}

template <typename T> static Status backward_pick(Device *d, BackCall *b) {
    if (!b->dx.data) return backward_launch<T>(d, b, dwconv3_backward_kernel<T, BACK_NOTHING>);
    if (!b->scaled.data) return backward_launch<T>(d, b, dwconv3_backward_kernel<T, BACK_DX>);
    return backward_launch<T>(d, b, dwconv3_backward_kernel<T, BACK_SCALED>);
}

static Status backward_run(Device *d, BackCall *b, Grad dw, Grad sum_dy) {
    const int64_t channels = b->x.shape[3];
    b->part.sums = true;
    b->part.stride = channels * 10;
    WITH_ACT("dwconv3_backward", b->x.dtype, T, TRY(backward_pick<T>(d, b)));
    return reduce_partials_two(d, dw, sum_dy, b->part.partial, b->part.partial + channels * 9,
                               b->parts, b->part.stride);
}

/* The map's gradient by itself. */
static Status backward_map(Device *d, Grad dx, Tensor dy, Tensor w, bool add_input, Tensor scaled,
                           Tensor scale) {
    TRY(dwconv3_cuda(d, dx, dy, w, tensor_none(), TAPS_TRANSPOSE, add_input));
    if (!scaled.data || !dx.t.data) return STATUS_OK;
    return scale_rows_cuda(d, grad_set(scaled), dx.t, scale);
}

extern "C" Status dwconv3_backward_cuda(Device *d, Grad dx, Grad dw, Grad sum_dy, Tensor dy,
                                        Tensor x, Tensor w, bool add_input, Tensor scaled,
                                        Tensor scale) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (dy.dtype != x.dtype || (dx.t.data && dx.t.dtype != x.dtype))
        return refuse_dtype("dwconv3_backward", dy.dtype);
    const size_t pair = PAIR * dtype_size(x.dtype);
    const bool sums = dw.t.data || sum_dy.t.data;
    const int lanes = row_lanes(d, x);
    const int rows = lanes ? ring_slots(d, x, BACK_THREADS / lanes, 0, 6) : 0;
    if (!sums || rows < 4 || !is_aligned(dy.data, 16)) {
        TRY(dwconv3_taps_cuda(d, dw, sum_dy, x, dy, 1.0f));
        return backward_map(d, dx, dy, w, add_input, scaled, scale);
    }
    const bool whole =
        dx.t.data && !dx.add && is_aligned(dx.t.data, pair) && is_aligned(scaled.data, pair);
    BackCall b = {tensor_none(), tensor_none(), scale, dy, x};
    if (whole) b.dx = dx.t, b.scaled = scaled;
    b.g.w = (const float *)w.data;
    b.g.transpose = true;
    b.g.add_input = add_input;
    b.block = dim3(lanes);
    b.slots = (rows + 2) / 2;
    const Status status = backward_run(d, &b, dw, sum_dy);
    scratch_done(d);
    if (status != STATUS_OK || whole) return status;
    return backward_map(d, dx, dy, w, add_input, scaled, scale);
}
