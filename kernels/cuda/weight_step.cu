/* The step of the fast weights and their weight norm (lact_nvs.md 4, 5.2).
 *
 * A block takes 32 columns of a matrix, a thread V of them in the rows of its lane.
 * Columns of at most HELD rows per lane stay in registers between the norm and its use; longer ones
 * are read again.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/weight_step.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)

/* Of a launch whose blockIdx.z says which part. */
template <typename Part, typename Parts>
static __device__ __forceinline__ Part part_of_block(const Parts &p) {
    return part_number<Part>(p, (int)blockIdx.z);
}

/* Threads of a block: columns in packs of V, then lanes over the rows. */
template <int V> static dim3 step_block(int threads = THREADS) {
    return dim3(COLUMNS / V, threads / (COLUMNS / V));
}

/* M = W + sign U of V columns of a row; start receives W. */
template <int V, typename U>
static __device__ __forceinline__ void moved_load(float (&m)[V], float (&start)[V], const U *u,
                                                  const float *w, float sign) {
    pack_load<float, V>(start, w);
    if (u) pack_load<U, V>(m, u);
#pragma unroll
    for (int i = 0; i < V; i++) m[i] = u ? fmaf(sign, m[i], start[i]) : start[i];
}

template <int V>
static __device__ __forceinline__ void add_squares(float (&sum)[V], const float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = fmaf(v[i], v[i], sum[i]);
}

template <typename T, typename U, int V, int HELD, int COUNT = WARPS>
__global__ void __launch_bounds__(32 * COUNT, COUNT > WARPS ? 1
                                              : HELD        ? 2
                                                            : 4)
    weight_step_kernel(StepParts parts, float sign, float offset) {
    chain_wait();
    const StepPart p = part_of_block<StepPart>(parts);
    const Matrices s = p.s;
    T *const y = (T *)p.y;
    float *const stats = p.stats;
    const U *const u = (const U *)p.u;
    __shared__ float shared[COUNT][COLUMNS];
    const int c = blockIdx.x * COLUMNS + threadIdx.x * V;
    constexpr int lanes = 32 * COUNT / (COLUMNS / V);
    for (int64_t o = blockIdx.y; o < s.outer; o += gridDim.y) {
        const U *step = u ? u + o * s.rows * s.columns + c : NULL;
        const float *begin = p.w + o % s.period * s.rows * s.columns + c;
        float held[HELD ? HELD : 1][V], start[V], scale[V], moved[V] = {}, kept[V] = {};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int r = threadIdx.y + k * lanes;
            if (c >= s.columns || r >= s.rows) continue;
            moved_load<V, U>(held[k], start, step ? step + (int64_t)r * s.columns : NULL,
                             begin + (int64_t)r * s.columns, sign);
            add_squares<V>(moved, held[k]);
            add_squares<V>(kept, start);
        }
        for (int r = threadIdx.y; !HELD && offset > 0 && c < s.columns && r < s.rows; r += lanes) {
            moved_load<V, U>(held[0], start, step ? step + (int64_t)r * s.columns : NULL,
                             begin + (int64_t)r * s.columns, sign);
            add_squares<V>(moved, held[0]);
            add_squares<V>(kept, start);
        }
#pragma unroll
        for (int i = 0; i < V; i++) scale[i] = 1.0f;
        if (offset > 0) {
            column_sums<V, COUNT>(moved, shared);
            column_sums<V, COUNT>(kept, shared);
            float *to = stats && c < s.columns ? stats + 2 * (o * s.columns + c) : NULL;
            column_factors<V>(scale, to, moved, kept, offset);
        }
        if (c >= s.columns) continue;
        T *out = y + o * s.rows * s.pitch + s.at + c;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int r = threadIdx.y + k * lanes;
            if (r >= s.rows) continue;
#pragma unroll
            for (int i = 0; i < V; i++) held[k][i] *= scale[i];
            pack_store<T, V>(out + r * s.pitch, held[k]);
        }
        for (int r = threadIdx.y; !HELD && r < s.rows; r += lanes) {
            moved_load<V, U>(held[0], start, step ? step + (int64_t)r * s.columns : NULL,
                             begin + (int64_t)r * s.columns, sign);
#pragma unroll
            for (int i = 0; i < V; i++) held[0][i] *= scale[i];
            pack_store<T, V>(out + r * s.pitch, held[0]);
        }
    }
}

/* M = W alone: a thread has four columns of a row. */
template <typename T>
__global__ void __launch_bounds__(THREADS) weight_lay_kernel(StepParts parts) {
    chain_wait();
    const StepPart p = part_of_block<StepPart>(parts);
    const Matrices s = p.s;
    const int packs = s.columns / 4, each = s.rows * packs;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, o = i / each;
    const int row = (int)(i % each) / packs, c = (int)(i % each) % packs * 4;
    if (o >= s.outer) return;
    float v[4];
    pack_load<float, 4>(v, p.w + (o % s.period * s.rows + row) * s.columns + c);
    pack_store<T, 4>((T *)p.y + (o * s.rows + row) * s.pitch + s.at + c, v);
}

/* dM of V columns of a row into g, of which y is what the norm's pull takes. */
template <int V, typename U>
static __device__ __forceinline__ void slope_put(U *du, bool add, float (&g)[V],
                                                 const float (&y)[V], const float (&scale)[V],
                                                 const float (&pull)[V], float sign) {
#pragma unroll
    for (int i = 0; i < V; i++) g[i] = sign * (scale[i] * g[i] - pull[i] * y[i]);
    pack_put<U, V>(du, g, add);
}

/* BF16 with a weight norm: a block's columns of dy and y wait in shared memory, all of them on
 * their way at once. */
template <typename U>
__global__ void __launch_bounds__(THREADS, 2)
    weight_step_backward_held_kernel(SlopeParts parts, float sign) {
    const SlopePart p = part_of_block<SlopePart>(parts);
    const Matrices s = p.s;
    U *const du = (U *)p.du;
    const bf16 *const dy = (const bf16 *)p.dy, *const y = (const bf16 *)p.y;
    const float *const stats = p.stats;
    const bool add = p.add;
    extern __shared__ __align__(16) bf16 tile[]; /* [2][rows][COLUMNS] */
    __shared__ float shared[WARPS][COLUMNS];
    const int first = blockIdx.x * COLUMNS, c = first + threadIdx.x * 4;
    const int thread = threadIdx.y * (COLUMNS / 4) + threadIdx.x, lanes = THREADS / (COLUMNS / 4);
    bf16 *const tile_y = tile + s.rows * COLUMNS;
    for (int64_t o = blockIdx.y; o < s.outer; o += gridDim.y) {
        const int64_t from = o * s.rows * s.pitch + s.at + first;
        const int part = thread % (COLUMNS / 8) * 8;
        for (int r = thread / (COLUMNS / 8); r < s.rows && first + part < s.columns;
             r += THREADS / (COLUMNS / 8)) {
            copy_chunk(shared_address(tile + r * COLUMNS + part), dy + from + r * s.pitch + part,
                       true);
            copy_chunk(shared_address(tile_y + r * COLUMNS + part), y + from + r * s.pitch + part,
                       true);
        }
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        float g[4], v[4], scale[4] = {}, pull[4] = {};
        for (int r = threadIdx.y; c < s.columns && r < s.rows; r += lanes) {
            pack_load<bf16, 4>(g, tile + r * COLUMNS + threadIdx.x * 4);
            pack_load<bf16, 4>(v, tile_y + r * COLUMNS + threadIdx.x * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) pull[i] = fmaf(g[i], v[i], pull[i]);
        }
        column_sums<4, WARPS>(pull, shared);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (c >= s.columns) continue;
            scale[i] = stats[2 * (o * s.columns + c + i)];
            pull[i] *= stats[2 * (o * s.columns + c + i) + 1];
        }
        U *to = du + o * s.rows * s.columns + c;
        for (int r = threadIdx.y; c < s.columns && r < s.rows; r += lanes) {
            pack_load<bf16, 4>(g, tile + r * COLUMNS + threadIdx.x * 4);
            pack_load<bf16, 4>(v, tile_y + r * COLUMNS + threadIdx.x * 4);
            slope_put<4, U>(to + (int64_t)r * s.columns, add, g, v, scale, pull, sign);
        }
        __syncthreads(); /* before the next matrix takes the tile */
    }
}

template <typename T, typename U, int V>
__global__ void __launch_bounds__(THREADS, 4)
    weight_step_backward_kernel(SlopeParts parts, float sign) {
    const SlopePart p = part_of_block<SlopePart>(parts);
    const Matrices s = p.s;
    U *const du = (U *)p.du;
    const T *const dy = (const T *)p.dy, *const y = (const T *)p.y;
    const float *const stats = p.stats;
    const bool add = p.add;
    __shared__ float shared[WARPS][COLUMNS];
    const int c = blockIdx.x * COLUMNS + threadIdx.x * V;
    constexpr int lanes = THREADS / (COLUMNS / V);
    for (int64_t o = blockIdx.y; o < s.outer; o += gridDim.y) {
        const int64_t from = o * s.rows * s.pitch + s.at + c;
        U *to = du + o * s.rows * s.columns + c;
        float g[V], v[V] = {}, scale[V], pull[V] = {};
        for (int r = threadIdx.y; stats && c < s.columns && r < s.rows; r += lanes) {
            pack_load<T, V>(g, dy + from + r * s.pitch);
            pack_load<T, V>(v, y + from + r * s.pitch);
#pragma unroll
            for (int i = 0; i < V; i++) pull[i] = fmaf(g[i], v[i], pull[i]);
        }
        column_sums<V, WARPS>(pull, shared);
        if (c >= s.columns) continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            scale[i] = stats ? stats[2 * (o * s.columns + c + i)] : 1.0f;
            pull[i] = stats ? pull[i] * stats[2 * (o * s.columns + c + i) + 1] : 0.0f;
        }
        for (int r = threadIdx.y; r < s.rows; r += lanes) {
            pack_load<T, V>(g, dy + from + r * s.pitch);
            if (stats) pack_load<T, V>(v, y + from + r * s.pitch);
            slope_put<V, U>(to + (int64_t)r * s.columns, add, g, v, scale, pull, sign);
        }
    }
}

/* ---- the slots ------------------------------------------------------------------------------ */

#define HELD_ROWS 24   /* of a lane: columns of 768 */
#define MANY      1024 /* threads where there are few matrices, */
#define FEW_ROWS  6    /* and the rows of a lane then */

static Matrices matrices_of(Tensor y, int64_t at, int64_t columns, int64_t period) {
    Matrices s = {};
    s.outer = y.shape[0], s.pitch = y.shape[2], s.at = at;
    s.rows = (int)y.shape[1], s.columns = (int)columns, s.period = (int)period;
    return s;
}

static dim3 step_grid(const Matrices &s, int parts) {
    return dim3((unsigned)ceil_div(s.columns, COLUMNS),
                (unsigned)(s.outer < 65535 ? s.outer : 65535), (unsigned)parts);
}

/* Whether four columns may be one access. */
static bool in_fours(const Matrices &s, const void *y, const void *a, const void *b) {
    return s.columns % 4 == 0 && s.pitch % 4 == 0 && s.at % 4 == 0 && is_aligned(y, 16) &&
           is_aligned(a, 16) && is_aligned(b, 16);
}

static bool is_held(const Matrices &s) {
    return s.rows <= HELD_ROWS * (THREADS / (COLUMNS / 4));
}

static bool same_size(const Matrices &a, const Matrices &b) {
    return a.outer == b.outer && a.rows == b.rows && a.columns == b.columns;
}

template <typename T> static void lay_launch(Device *d, const StepParts &p, int parts) {
    const Matrices s = p.part[0].s;
    const int64_t blocks = ceil_div(s.outer * s.rows * (s.columns / 4), THREADS);
    chain_launch(d, blocks <= CHAIN_ROWS, dim3((unsigned)blocks, 1, (unsigned)parts), THREADS, 0,
                 weight_lay_kernel<T>, p);
}

template <typename T, typename U>
static void step_launch(Device *d, const StepParts &p, int parts, float sign, float offset) {
    const Matrices s = p.part[0].s;
    const dim3 grid = step_grid(s, parts);
    const cudaStream_t stream = stream_of(d);
    bool fours = true, still = offset == 0;
    for (int i = 0; i < parts; i++) {
        fours = fours && in_fours(p.part[i].s, p.part[i].y, p.part[i].u, p.part[i].w);
        still = still && !p.part[i].u;
    }
    if (fours && still) return lay_launch<T>(d, p, parts);
    /* few matrices: more threads for each column */
    const bool few = (int64_t)grid.x * grid.y * parts < 2 * backend_of(d)->sm_count;
    if (fours && few && s.rows <= FEW_ROWS * MANY / (COLUMNS / 4) && offset > 0)
        chain_launch(d, true, grid, step_block<4>(MANY), 0,
                     weight_step_kernel<T, U, 4, FEW_ROWS, MANY / 32>, p, sign, offset);
    else if (sizeof(T) == sizeof(bf16) && sizeof(U) == sizeof(bf16) && offset > 0 &&
             weight_step_run_fits(d, p, parts))
        (void)weight_step_run(d, p, parts, sign, offset); /* launched() tells */
    else if (fours && is_held(s) && offset > 0)
        weight_step_kernel<T, U, 4, HELD_ROWS>
            <<<grid, step_block<4>(), 0, stream>>>(p, sign, offset);
    else if (fours)
        weight_step_kernel<T, U, 4, 0><<<grid, step_block<4>(), 0, stream>>>(p, sign, offset);
    else
        weight_step_kernel<T, U, 1, 0><<<grid, step_block<1>(), 0, stream>>>(p, sign, offset);
}

/* Parts [first, first + count), all of one size. */
static Status step_run(Device *d, const WeightStep *part, int count, float sign, float offset) {
    StepParts p = {};
    for (int i = 0; i < count; i++) {
        const WeightStep *q = &part[i];
        p.part[i].y = q->y.data, p.part[i].stats = (float *)q->stats.data;
        p.part[i].u = q->u.data, p.part[i].w = (const float *)q->w.data;
        p.part[i].s = matrices_of(q->y, q->at, q->w.shape[2], q->w.shape[0]);
    }
    const DType step = part[0].u.data ? part[0].u.dtype : DTYPE_F32;
    WITH_ACT("weight_step", part[0].y.dtype, T,
             WITH_ACT("weight_step", step, U, (step_launch<T, U>(d, p, count, sign, offset))));
    return launched("weight_step");
}

extern "C" Status weight_step_cuda(Device *d, int parts, const WeightStep *part, float sign,
                                   float offset) {
    for (int i = 0, n; i < parts; i += n) {
        const Matrices s = matrices_of(part[i].y, 0, part[i].w.shape[2], 1);
        for (n = 1; i + n < parts; n++)
            if (!same_size(s, matrices_of(part[i + n].y, 0, part[i + n].w.shape[2], 1))) break;
        if (s.outer > 0 && s.rows > 0 && s.columns > 0) TRY(step_run(d, part + i, n, sign, offset));
    }
    return STATUS_OK;
}

/* Whether the kernel with shared memory takes all parts. */
static bool slopes_held(Device *d, const SlopeParts &p, int parts, DType dtype, size_t bytes) {
    bool held = dtype == DTYPE_BF16 && bytes + 4096 <= backend_of(d)->smem_limit;
    for (int i = 0; i < parts; i++) {
        const SlopePart *q = &p.part[i];
        held = held && q->stats && in_fours(q->s, q->dy, q->y, q->du) && q->s.columns % 8 == 0 &&
               q->s.pitch % 8 == 0 && q->s.at % 8 == 0;
    }
    return held;
}

template <typename T, typename U>
static Status slopes_launch(Device *d, const SlopeParts &p, int parts, DType dtype, float sign) {
    const Matrices s = p.part[0].s;
    const dim3 grid = step_grid(s, parts);
    const cudaStream_t stream = stream_of(d);
    const size_t bytes = 2 * sizeof(bf16) * COLUMNS * s.rows;
    bool fours = true;
    for (int i = 0; i < parts; i++)
        fours = fours && in_fours(p.part[i].s, p.part[i].dy, p.part[i].stats ? p.part[i].y : NULL,
                                  p.part[i].du);
    if (slopes_held(d, p, parts, dtype, bytes)) {
        CUDA_TRY(cudaFuncSetAttribute(weight_step_backward_held_kernel<U>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                 "weight_step_backward");
        weight_step_backward_held_kernel<U><<<grid, step_block<4>(), bytes, stream>>>(p, sign);
    } else if (fours) {
        weight_step_backward_kernel<T, U, 4><<<grid, step_block<4>(), 0, stream>>>(p, sign);
    } else {
        weight_step_backward_kernel<T, U, 1><<<grid, step_block<1>(), 0, stream>>>(p, sign);
    }
    return STATUS_OK;
}

static SlopePart slope_part(const WeightSlope *q) {
    SlopePart p = {};
    p.du = q->du.t.data, p.add = q->du.add;
    p.dy = q->dy.data, p.y = q->y.data;
    p.stats = (const float *)q->stats.data;
    p.s = matrices_of(q->dy, q->at, q->du.t.shape[2], 1);
    return p;
}

/* The steps' slopes of parts of one size; du of each is set. */
static Status slopes_run(Device *d, const WeightSlope *part, int count, float sign) {
    SlopeParts p = {};
    for (int i = 0; i < count; i++) p.part[i] = slope_part(&part[i]);
    WITH_ACT("weight_step_backward", part[0].dy.dtype, T,
             WITH_ACT("weight_step_backward", part[0].du.t.dtype, U,
                      TRY((slopes_launch<T, U>(d, p, count, part[0].dy.dtype, sign)))));
    return launched("weight_step_backward");
}

/* dw is sign times what du gets summed, so du, or memory in its place, is computed first. */
static Status sum_steps(Device *d, const WeightSlope *part, Tensor steps, float sign) {
    const int64_t period = part->dw.t.shape[0];
    const int64_t rows = steps.shape[0] / period, columns = tensor_count(steps) / rows;
    Grad dw = part->dw;
    dw.t = tensor_2d(dw.t.data, DTYPE_F32, 1, columns);
    TRY(sum_batch_cuda(d, dw, tensor_view2(steps, rows, columns), sign));
    if (!part->du.t.data || steps.data == part->du.t.data) return STATUS_OK;
    return copy_cuda(d, part->du, steps, 1.0f);
}

/* All parts at once, where the kernel for many BF16 matrices takes them. */
static Status slopes_together(Device *d, int parts, const WeightSlope *part, float sign,
                              bool *done) {
    SlopeParts p = {};
    SlopeSums sums = {};
    *done = parts > 0;
    for (int i = 0; i < parts && *done; i++) {
        const WeightSlope *q = &part[i];
        *done = q->du.t.data && q->du.t.dtype == DTYPE_BF16 && q->dy.dtype == DTYPE_BF16;
        if (!*done) break;
        p.part[i] = slope_part(q);
        if (q->dw.t.data) p.part[i].s.period = (int)q->dw.t.shape[0];
        sums.dw[i] = q->dw;
        *done = same_size(p.part[0].s, p.part[i].s);
    }
    *done = *done && weight_slope_run_fits(d, p, parts);
    return *done ? weight_slope_run(d, p, sums, parts, sign) : STATUS_OK;
}

static Status step_backward(Device *d, int parts, const WeightSlope *part, float sign) {
    WeightSlope work[WEIGHT_PARTS];
    bool done;
    TRY(slopes_together(d, parts, part, sign, &done));
    if (done) return STATUS_OK;
    for (int i = 0; i < parts; i++) {
        const WeightSlope *q = &part[i];
        work[i] = *q;
        if (q->stats.data && q->y.dtype != q->dy.dtype)
            return refuse_dtype("weight_step_backward", q->dy.dtype);
        if (!q->dw.t.data || (q->du.t.data && !q->du.add)) continue;
        const int64_t shape[] = {q->dy.shape[0], q->dy.shape[1], q->dw.t.shape[2]};
        void *memory;
        TRY(scratch_take(d, sizeof(float) * shape[0] * shape[1] * shape[2], &memory));
        work[i].du = grad_set(tensor_of(memory, DTYPE_F32, 3, shape));
    }
    for (int i = 0, n; i < parts; i += n) {
        n = 1;
        if (!work[i].du.t.data || tensor_count(work[i].dy) == 0) continue;
        for (; i + n < parts && work[i + n].du.t.data; n++)
            if (!tensor_same_shape(work[i].du.t, work[i + n].du.t) ||
                work[i].du.t.dtype != work[i + n].du.t.dtype ||
                work[i].dy.dtype != work[i + n].dy.dtype)
                break;
        TRY(slopes_run(d, work + i, n, sign));
    }
    for (int i = 0; i < parts; i++)
        if (part[i].dw.t.data && tensor_count(part[i].dy) > 0)
            TRY(sum_steps(d, &part[i], work[i].du.t, sign));
    return STATUS_OK;
}

extern "C" Status weight_step_backward_cuda(Device *d, int parts, const WeightSlope *part,
                                            float sign) {
    const Status status = step_backward(d, parts, part, sign);
    scratch_done(d);
    return status;
}
