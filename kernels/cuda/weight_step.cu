/* The step of the fast weights and their weight norm (lact_nvs.md 4, 5.2).
 *
 * A block takes 32 columns of a matrix, a thread V of them in the rows of its lane.
 * Columns of at most HELD rows per lane stay in registers between the norm and its use; longer ones
 * are read again.
 */
#include "kernels/cuda/mma.cuh"

#define COLUMNS 32
#define THREADS 256
#define WARPS   (THREADS / 32)

typedef struct Matrices {
    int64_t outer, pitch, at; /* y and dy have rows of `pitch`, of which [at, at + columns) */
    int rows, columns, period;
} Matrices;

/* Threads of a block: columns in packs of V, then lanes over the rows. */
template <int V> static dim3 step_block() {
    return dim3(COLUMNS / V, THREADS / (COLUMNS / V));
}

/* Sum of a value per column over the block, the same in every thread of a column. */
template <int V>
static __device__ __forceinline__ void column_sums(float (&v)[V], float (*shared)[COLUMNS]) {
    const int thread = threadIdx.y * (COLUMNS / V) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
        for (int step = COLUMNS / V; step < 32; step *= 2)
            v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
    }
    __syncthreads();
    if (thread % 32 < COLUMNS / V) {
#pragma unroll
        for (int i = 0; i < V; i++) shared[thread / 32][threadIdx.x * V + i] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++) {
        v[i] = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) v[i] += shared[warp][threadIdx.x * V + i];
    }
}

/* M = W + sign U of V columns of a row; start receives W. */
template <int V, typename U>
static __device__ __forceinline__ void moved_load(float (&m)[V], float (&start)[V], const U *u,
                                                  const float *w, float sign) {
    pack_load<U, V>(m, u);
    pack_load<float, V>(start, w);
#pragma unroll
    for (int i = 0; i < V; i++) m[i] = fmaf(sign, m[i], start[i]);
}

template <int V>
static __device__ __forceinline__ void add_squares(float (&sum)[V], const float (&v)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = fmaf(v[i], v[i], sum[i]);
}

/* Factors of the columns from the sums of their squares. */
template <int V>
static __device__ __forceinline__ void column_factors(float (&scale)[V], float *stats,
                                                      const float (&moved)[V],
                                                      const float (&start)[V], float offset) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float norm = sqrtf(moved[i]), wanted = sqrtf(start[i]), product = norm * wanted;
        scale[i] = wanted / (norm + offset);
        if (!stats || threadIdx.y > 0) continue;
        stats[2 * i] = scale[i];
        stats[2 * i + 1] = product > 0 ? 1.0f / product : 0.0f;
    }
}

template <typename T, typename U, int V, int HELD>
__global__ void __launch_bounds__(THREADS, HELD ? 2 : 4)
    weight_step_kernel(T *y, float *stats, const U *u, const float *w, Matrices s, float sign,
                       float offset) {
    __shared__ float shared[WARPS][COLUMNS];
    const int c = blockIdx.x * COLUMNS + threadIdx.x * V;
    constexpr int lanes = THREADS / (COLUMNS / V);
    for (int64_t o = blockIdx.y; o < s.outer; o += gridDim.y) {
        const U *step = u + o * s.rows * s.columns + c;
        const float *begin = w + o % s.period * s.rows * s.columns + c;
        float held[HELD ? HELD : 1][V], start[V], scale[V], moved[V] = {}, kept[V] = {};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int r = threadIdx.y + k * lanes;
            if (c >= s.columns || r >= s.rows) continue;
            moved_load<V, U>(held[k], start, step + (int64_t)r * s.columns,
                             begin + (int64_t)r * s.columns, sign);
            add_squares<V>(moved, held[k]);
            add_squares<V>(kept, start);
        }
        for (int r = threadIdx.y; !HELD && offset > 0 && c < s.columns && r < s.rows; r += lanes) {
            moved_load<V, U>(held[0], start, step + (int64_t)r * s.columns,
                             begin + (int64_t)r * s.columns, sign);
            add_squares<V>(moved, held[0]);
            add_squares<V>(kept, start);
        }
#pragma unroll
        for (int i = 0; i < V; i++) scale[i] = 1.0f;
        if (offset > 0) {
            column_sums<V>(moved, shared);
            column_sums<V>(kept, shared);
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
            moved_load<V, U>(held[0], start, step + (int64_t)r * s.columns,
                             begin + (int64_t)r * s.columns, sign);
#pragma unroll
            for (int i = 0; i < V; i++) held[0][i] *= scale[i];
            pack_store<T, V>(out + r * s.pitch, held[0]);
        }
    }
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
    weight_step_backward_held_kernel(U *du, bool add, const bf16 *dy, const bf16 *y,
                                     const float *stats, Matrices s, float sign) {
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
        column_sums<4>(pull, shared);
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
    weight_step_backward_kernel(U *du, bool add, const T *dy, const T *y, const float *stats,
                                Matrices s, float sign) {
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
        column_sums<V>(pull, shared);
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

#define HELD_ROWS 24 /* of a lane: columns of 768 */

static Matrices matrices_of(Tensor y, int64_t at, int64_t columns, int64_t period) {
    Matrices s = {};
    s.outer = y.shape[0], s.pitch = y.shape[2], s.at = at;
    s.rows = (int)y.shape[1], s.columns = (int)columns, s.period = (int)period;
    return s;
}

static dim3 step_grid(const Matrices &s) {
    return dim3((unsigned)ceil_div(s.columns, COLUMNS),
                (unsigned)(s.outer < 65535 ? s.outer : 65535));
}

/* Whether four columns may be one access. */
static bool in_fours(const Matrices &s, const void *y, const void *a, const void *b) {
    return s.columns % 4 == 0 && s.pitch % 4 == 0 && s.at % 4 == 0 && is_aligned(y, 16) &&
           is_aligned(a, 16) && is_aligned(b, 16);
}

static bool is_held(const Matrices &s) {
    return s.rows <= HELD_ROWS * (THREADS / (COLUMNS / 4));
}

template <typename T, typename U>
static void step_launch(Device *d, Tensor y, Tensor stats, Tensor u, Tensor w, const Matrices &s,
                        float sign, float offset) {
    T *to = (T *)y.data;
    float *kept = (float *)stats.data;
    const U *step = (const U *)u.data;
    const float *begin = (const float *)w.data;
    const dim3 grid = step_grid(s);
    const cudaStream_t stream = stream_of(d);
    const bool fours = in_fours(s, y.data, u.data, w.data);
    if (fours && is_held(s) && offset > 0)
        weight_step_kernel<T, U, 4, HELD_ROWS>
            <<<grid, step_block<4>(), 0, stream>>>(to, kept, step, begin, s, sign, offset);
    else if (fours)
        weight_step_kernel<T, U, 4, 0>
            <<<grid, step_block<4>(), 0, stream>>>(to, kept, step, begin, s, sign, offset);
    else
        weight_step_kernel<T, U, 1, 0>
            <<<grid, step_block<1>(), 0, stream>>>(to, kept, step, begin, s, sign, offset);
}

extern "C" Status weight_step_cuda(Device *d, Tensor y, int64_t at, Tensor stats, Tensor u,
                                   Tensor w, float sign, float offset) {
    if (tensor_count(u) == 0) return STATUS_OK;
    const Matrices s = matrices_of(y, at, u.shape[2], w.shape[0]);
    WITH_ACT(
        "weight_step", y.dtype, T,
        WITH_ACT("weight_step", u.dtype, U, step_launch<T, U>(d, y, stats, u, w, s, sign, offset)));
    return launched("weight_step");
}

template <typename T, typename U>
static void step_backward_launch(Device *d, U *du, bool add, Tensor dy, Tensor y, Tensor stats,
                                 const Matrices &s, float sign) {
    const T *g = (const T *)dy.data, *v = (const T *)y.data;
    const float *kept = (const float *)stats.data;
    const dim3 grid = step_grid(s);
    const cudaStream_t stream = stream_of(d);
    const bool fours = in_fours(s, dy.data, kept ? v : NULL, du);
    if (fours)
        weight_step_backward_kernel<T, U, 4>
            <<<grid, step_block<4>(), 0, stream>>>(du, add, g, v, kept, s, sign);
    else
        weight_step_backward_kernel<T, U, 1>
            <<<grid, step_block<1>(), 0, stream>>>(du, add, g, v, kept, s, sign);
}

/* Whether the kernel with shared memory ran. */
template <typename U>
static Status step_backward_held(Device *d, U *du, bool add, Tensor dy, Tensor y, Tensor stats,
                                 const Matrices &s, float sign, bool *ran) {
    const size_t bytes = 2 * sizeof(bf16) * COLUMNS * s.rows;
    *ran = stats.data && dy.dtype == DTYPE_BF16 && in_fours(s, dy.data, y.data, du) &&
           s.columns % 8 == 0 && s.pitch % 8 == 0 && s.at % 8 == 0 &&
           bytes + 4096 <= backend_of(d)->smem_limit;
    if (!*ran) return STATUS_OK;
    CUDA_TRY(cudaFuncSetAttribute(weight_step_backward_held_kernel<U>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
             "weight_step_backward");
    weight_step_backward_held_kernel<U><<<step_grid(s), step_block<4>(), bytes, stream_of(d)>>>(
        du, add, (const bf16 *)dy.data, (const bf16 *)y.data, (const float *)stats.data, s, sign);
    return STATUS_OK;
}

template <typename U>
static Status slopes_run(Device *d, Grad du, Tensor dy, Tensor y, Tensor stats, const Matrices &s,
                         float sign) {
    U *to = (U *)du.t.data;
    bool held;
    TRY(step_backward_held<U>(d, to, du.add, dy, y, stats, s, sign, &held));
    if (held) return STATUS_OK;
    WITH_ACT("weight_step_backward", dy.dtype, T,
             (step_backward_launch<T, U>(d, to, du.add, dy, y, stats, s, sign)));
    return STATUS_OK;
}

/* dw is sign times what du gets summed, so du, or memory in its place, is computed first. */
static Status step_backward(Device *d, Grad du, Grad dw, Tensor dy, int64_t at, Tensor y,
                            Tensor stats, float sign) {
    const Tensor like = du.t.data ? du.t : dw.t;
    const int64_t columns = like.shape[2], period = dw.t.data ? dw.t.shape[0] : dy.shape[0];
    const Matrices s = matrices_of(dy, at, columns, period);
    const int64_t matrix = s.rows * columns;
    const bool apart = dw.t.data && (!du.t.data || du.add);
    Grad steps = du;
    if (apart) {
        void *memory;
        TRY(scratch_take(d, sizeof(float) * s.outer * matrix, &memory));
        steps = grad_set(tensor_1d(memory, DTYPE_F32, s.outer * matrix));
    }
    WITH_ACT("weight_step_backward", steps.t.dtype, U,
             TRY(slopes_run<U>(d, steps, dy, y, stats, s, sign)));
    TRY(launched("weight_step_backward"));
    if (!dw.t.data) return STATUS_OK;
    const Tensor all = tensor_2d(steps.t.data, steps.t.dtype, s.outer / period, period * matrix);
    dw.t = tensor_2d(dw.t.data, DTYPE_F32, 1, period * matrix);
    TRY(sum_batch_cuda(d, dw, all, sign));
    if (!apart || !du.t.data) return STATUS_OK;
    du.t = tensor_view2(du.t, s.outer / period, period * matrix);
    return copy_cuda(d, du, all, 1.0f);
}

extern "C" Status weight_step_backward_cuda(Device *d, Grad du, Grad dw, Tensor dy, int64_t at,
                                            Tensor y, Tensor stats, float sign) {
    if ((!du.t.data && !dw.t.data) || tensor_count(dy) == 0) return STATUS_OK;
    if (stats.data && y.dtype != dy.dtype) return refuse_dtype("weight_step_backward", dy.dtype);
    const Status status = step_backward(d, du, dw, dy, at, y, stats, sign);
    scratch_done(d);
    return status;
}
