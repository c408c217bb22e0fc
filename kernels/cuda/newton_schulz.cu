/* Newton-Schulz: norms, turning and what else is not a product. Matrices are worked on with at most
 * as many rows as columns, a part of the batch at a time so that scratch stays within a limit.
 */
#include "kernels/cuda/newton_schulz.cuh"
#include "kernels/cuda/newton_schulz_pair.cuh"

#define THREADS 256
#define SLICE   8192 /* elements of a block's part of an inner product */
#define SLICES  64   /* most parts of one matrix */
#define SCRATCH ((int64_t)3 << 30)
#define MOST    16384 /* matrices at a time */

/* The matrices of one round as they come: [n, rows, columns]. */
typedef struct Round {
    Device *d;
    int64_t n, rows, columns;
} Round;

static int64_t elements(const Round *m) {
    return m->rows * m->columns;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Elements at a time: 4 where matrices and pointers allow it. */
static int width_of(int64_t count, const void *a, const void *b, const void *c) {
    const bool packed =
        count % 4 == 0 && is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16);
    return packed ? 4 : 1;
}

static dim3 flat_grid(int64_t count, int width, int64_t n) {
    return dim3((unsigned)smaller(ceil_div(count, (int64_t)THREADS * width), 256), (unsigned)n);
}

/* ---- inner products ------------------------------------------------------------------------- */

static __device__ float block_total(float x) {
    __shared__ float sums[THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) total += sums[i];
    return total;
}

/* partial[matrix][slice] of <x, y>; copy (optional) = x, rounded. */
template <typename TX, typename TY, int V>
__global__ void __launch_bounds__(THREADS) slices_kernel(float *partial, const TX *x, const TY *y,
                                                         bf16 *copy, int64_t count, int64_t slice) {
    const int64_t base = blockIdx.y * count, first = blockIdx.x * slice;
    const int64_t end = min(first + slice, count);
    float sum = 0;
    for (int64_t i = first + threadIdx.x * V; i < end; i += THREADS * V) {
        float a[V], b[V];
        pack_load<TX, V>(a, x + base + i);
        pack_load<TY, V>(b, y + base + i);
#pragma unroll
        for (int j = 0; j < V; j++) sum += a[j] * b[j];
        if (copy) pack_store<bf16, V>(copy + base + i, a);
    }
    const float total = block_total(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

__global__ void total_kernel(float *out, const float *partial, int slices, int64_t n, bool root) {
    const int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= n) return;
    float sum = 0;
    for (int i = 0; i < slices; i++) sum += partial[g * slices + i];
    out[g] = root ? sqrtf(sum) : sum;
}

/* out[g] = <x_g, y_g>, or its root; copy as in slices_kernel. */
static Status inner_products(const Round *m, float *out, Tensor x, Tensor y, bf16 *copy,
                             bool root) {
    const int64_t count = elements(m);
    const int slices = (int)smaller(ceil_div(count, SLICE), SLICES);
    const int64_t slice = ceil_div(ceil_div(count, slices), 4) * 4;
    const dim3 grid((unsigned)slices, (unsigned)m->n);
    float *partial;
    TRY(scratch_take(m->d, sizeof(float) * slices * m->n, (void **)&partial));
    const int V = width_of(count, x.data, y.data, copy);
    WITH_ACT("newton_schulz", x.dtype, TX, WITH_ACT("newton_schulz", y.dtype, TY, {
                 const TX *a = (const TX *)x.data;
                 const TY *b = (const TY *)y.data;
                 if (V == 4)
                     slices_kernel<TX, TY, 4>
                         <<<grid, THREADS, 0, stream_of(m->d)>>>(partial, a, b, copy, count, slice);
                 else
                     slices_kernel<TX, TY, 1>
                         <<<grid, THREADS, 0, stream_of(m->d)>>>(partial, a, b, copy, count, slice);
             }));
    TRY(launched("newton_schulz"));
    total_kernel<<<(unsigned)ceil_div(m->n, 128), 128, 0, stream_of(m->d)>>>(out, partial, slices,
                                                                             m->n, root);
    return launched("newton_schulz");
}

/* ---- scaling, turning, rounding ------------------------------------------------------------- */

static __device__ __forceinline__ float rate_of(const float *norms) {
    return norms ? 1.0f / (norms[blockIdx.y] + NORM_OFFSET) : 1.0f;
}

template <typename TY, typename TX, int V>
__global__ void __launch_bounds__(THREADS)
    place_kernel(TY *y, const TX *x, const float *norms, int64_t count) {
    const float rate = rate_of(norms);
    const int64_t base = blockIdx.y * count, step = (int64_t)gridDim.x * THREADS * V;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V; i < count; i += step) {
        float v[V];
        pack_load<TX, V>(v, x + base + i);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] *= rate;
        pack_store<TY, V>(y + base + i, v);
    }
}

/* y[columns, rows] = x[rows, columns]' by tiles of 32 x 32; threads 32 x 8. */
template <typename TY, typename TX>
__global__ void __launch_bounds__(THREADS)
    turn_kernel(TY *y, const TX *x, const float *norms, int rows, int columns) {
    __shared__ float tile[32][33];
    const float rate = rate_of(norms);
    const int across = (columns + 31) / 32, down = (rows + 31) / 32;
    const int64_t base = (int64_t)blockIdx.y * rows * columns;
    for (int t = blockIdx.x; t < across * down; t += gridDim.x) {
        const int i0 = t / across * 32, j0 = t % across * 32;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            const int i = i0 + k + threadIdx.y, j = j0 + threadIdx.x;
            if (i < rows && j < columns)
                tile[k + threadIdx.y][threadIdx.x] =
                    rate * to_float(x[base + (int64_t)i * columns + j]);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 32; k += 8) {
            const int j = j0 + k + threadIdx.y, i = i0 + threadIdx.x;
            if (i < rows && j < columns)
                from_float(y + base + (int64_t)j * rows + i, tile[threadIdx.x][k + threadIdx.y]);
        }
    }
}

/* y = x, over norms + offset when there are norms; `turned`: x[n, rows, columns] becomes
 * y[n, columns, rows]. */
static Status place(Device *d, Tensor y, Tensor x, const float *norms, bool turned) {
    const int64_t n = x.shape[0], rows = x.shape[1], columns = x.shape[2], count = rows * columns;
    const int V = width_of(count, x.data, y.data, NULL);
    WITH_ACT("newton_schulz", y.dtype, TY, WITH_ACT("newton_schulz", x.dtype, TX, {
                 TY *to = (TY *)y.data;
                 const TX *from = (const TX *)x.data;
                 if (turned) {
                     const int64_t tiles = ceil_div(rows, 32) * ceil_div(columns, 32);
                     const dim3 grid((unsigned)smaller(tiles, 1024), (unsigned)n), block(32, 8);
                     turn_kernel<TY, TX><<<grid, block, 0, stream_of(d)>>>(to, from, norms,
                                                                           (int)rows, (int)columns);
                 } else if (V == 4) {
                     place_kernel<TY, TX, 4><<<flat_grid(count, 4, n), THREADS, 0, stream_of(d)>>>(
                         to, from, norms, count);
                 } else {
                     place_kernel<TY, TX, 1><<<flat_grid(count, 1, n), THREADS, 0, stream_of(d)>>>(
                         to, from, norms, count);
                 }
             }));
    return launched("newton_schulz");
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    polynomial_kernel(T *y, const float *p, const T *s, int64_t count, float b) {
    const int64_t base = blockIdx.y * count, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step)
        from_float(y + base + i, p[base + i] + b * to_float(s[base + i]));
}

Status polynomial_add(const Iteration *it, void *y, const float *p, const void *s, float b) {
    WITH_ACT("newton_schulz", it->type, T,
             polynomial_kernel<T>
             <<<flat_grid(it->r * it->r, 1, it->n), THREADS, 0, stream_of(it->d)>>>(
                 (T *)y, p, (const T *)s, it->r * it->r, b));
    return launched("newton_schulz");
}

/* dg (+)= rate dx - rate^2 dot/norm g; nothing comes of a matrix that vanished. */
template <typename TD, typename TX, typename TG, int V>
__global__ void __launch_bounds__(THREADS)
    slope_kernel(TD *dg, bool add, const TX *dx, const TG *g, const float *norms, const float *dots,
                 int parts, int64_t count) {
    const int lane = threadIdx.x % 32;
    float dot = 0;
    for (int i = lane; i < parts; i += 32) dot += dots[blockIdx.y * parts + i];
    dot = warp_sum(dot);
    const float norm = norms[blockIdx.y],
                rate = norm < NORM_VANISHED ? 0.0f : 1.0f / (norm + NORM_OFFSET);
    const float back = rate > 0 ? rate * rate * dot / norm : 0.0f;
    const int64_t base = blockIdx.y * count, step = (int64_t)gridDim.x * THREADS * V;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V; i < count; i += step) {
        float v[V], x[V];
        pack_load<TX, V>(v, dx + base + i);
        pack_load<TG, V>(x, g + base + i);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = rate * v[j] - back * x[j];
        pack_put<TD, V>(dg + base + i, v, add);
    }
}

template <typename TD, typename TX, typename TG>
static Status slope(const Round *m, Grad dg, const TX *dx, const TG *g, const float *norms,
                    const Slope *o) {
    const int64_t count = elements(m);
    const int V = width_of(count, dx, g, dg.t.data);
    const dim3 grid = flat_grid(count, V, m->n);
    TD *to = (TD *)dg.t.data;
    if (V == 4)
        slope_kernel<TD, TX, TG, 4><<<grid, THREADS, 0, stream_of(m->d)>>>(
            to, dg.add, dx, g, norms, o->dots, o->parts, count);
    else
        slope_kernel<TD, TX, TG, 1><<<grid, THREADS, 0, stream_of(m->d)>>>(
            to, dg.add, dx, g, norms, o->dots, o->parts, count);
    return launched("newton_schulz_backward");
}

/* dx: F32, or BF16 as dg. */
static Status norm_backward(const Round *m, Grad dg, Tensor dx, Tensor g, Slope *o) {
    if (o->is_whole) return STATUS_OK;
    if (!o->dots) {
        o->parts = 1;
        TRY(scratch_take(m->d, sizeof(float) * m->n, (void **)&o->dots));
        TRY(inner_products(m, o->dots, g, tensor_of(dx.data, dx.dtype, 3, g.shape), NULL, false));
    }
    WITH_ACT("newton_schulz_backward", g.dtype, TG, {
        const TG *from = (const TG *)g.data;
        if (dx.dtype == DTYPE_BF16)
            return slope<bf16, bf16, TG>(m, dg, (const bf16 *)dx.data, from, o->norms, o);
        WITH_ACT("newton_schulz_backward", dg.t.dtype, TD, {
            return slope<TD, float, TG>(m, dg, (const float *)dx.data, from, o->norms, o);
        });
    });
    return STATUS_OK;
}

/* ---- the slots ------------------------------------------------------------------------------ */

/* Matrices [first, first + n) of x [G, rows, columns]. */
static Tensor part_of(Tensor x, int64_t first, int64_t n) {
    if (tensor_is_none(x)) return x;
    const int64_t shape[] = {n, x.shape[1], x.shape[2]};
    char *at = (char *)x.data + (size_t)(first * x.shape[1] * x.shape[2]) * dtype_size(x.dtype);
    return tensor_of(at, x.dtype, 3, shape);
}

static Status take(Device *d, DType type, int64_t n, int64_t rows, int64_t columns, Tensor *out) {
    const int64_t shape[] = {n, rows, columns};
    return arena_tensor(&d->scratch, type, 3, shape, out);
}

static Iteration iteration_of(const Round *m, const NewtonSchulz *s) {
    Iteration it = {};
    it.d = m->d, it.n = m->n, it.s = s;
    it.r = smaller(m->rows, m->columns);
    it.c = m->rows + m->columns - it.r;
    it.type = s->bf16 ? DTYPE_BF16 : DTYPE_F32;
    return it;
}

/* How many matrices at a time, each taking `words` times its count of elements of 4 bytes. */
static int64_t round_size(Tensor g, int64_t words) {
    const int64_t bytes = 4 * words * g.shape[1] * g.shape[2];
    const int64_t most = smaller(SCRATCH / bytes, MOST);
    return smaller(g.shape[0], most > 1 ? most : 1);
}

__global__ void rates_kernel(float *rates, const float *norms, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rates[i] = 1.0f / (norms[i] + NORM_OFFSET);
}

/* X of an iteration from g, and the norms unless they are `known`: F32 and divided by the norms, or
 * for a chain BF16, undivided; then BF16 matrices that lie right are taken as they are, and of
 * others the F32 values are kept beside. */
static Status start(const Round *m, Iteration *it, Tensor g, float *norms, bool known, Tensor *x) {
    const bool tall = m->rows > m->columns, chain = chain_fits(it);
    const bool as_is = chain && !tall && g.dtype == DTYPE_BF16 && is_aligned(g.data, 16);
    const bool copied = chain && !tall && !as_is && !known;
    const bool joined = chain && !known && is_aligned(g.data, 16);
    float *rates = NULL;
    *x = g;
    if (!as_is) TRY(take(m->d, chain ? DTYPE_BF16 : DTYPE_F32, m->n, it->r, it->c, x));
    if (chain) TRY(scratch_take(m->d, sizeof(float) * m->n, (void **)&rates));
    if (joined)
        TRY(norms_find(it, norms, rates, g, copied ? x->data : NULL));
    else if (!known)
        TRY(inner_products(m, norms, g, g, copied ? (bf16 *)x->data : NULL, true));
    if (!as_is && !copied) TRY(place(m->d, *x, g, chain ? NULL : norms, tall));
    if (!chain) return STATUS_OK;
    Tensor carry = g;
    if (g.dtype == DTYPE_F32 && (tall || !is_aligned(g.data, 8))) {
        TRY(take(m->d, DTYPE_F32, m->n, it->r, it->c, &carry));
        TRY(place(m->d, carry, g, NULL, tall));
    }
    if (g.dtype == DTYPE_F32) it->carry = (const float *)carry.data;
    if (!joined)
        rates_kernel<<<(unsigned)ceil_div(m->n, 128), 128, 0, stream_of(m->d)>>>(rates, norms,
                                                                                 m->n);
    it->rates = rates;
    return launched("newton_schulz");
}

/* Where an iteration leaves u: in u itself if it can. */
static Status result_take(const Round *m, const Iteration *it, Tensor u, Tensor *result) {
    const bool tall = m->rows > m->columns;
    const DType type = it->rates ? u.dtype : DTYPE_F32;
    *result = u;
    if (tensor_is_none(u)) return STATUS_OK;
    if (!tall && type == u.dtype && is_aligned(u.data, 16)) return STATUS_OK;
    return take(m->d, type, m->n, it->r, it->c, result);
}

static Status result_place(const Round *m, Tensor u, Tensor result) {
    if (result.data == u.data) return STATUS_OK;
    return place(m->d, u, result, NULL, m->rows > m->columns);
}

static Status forward_round(const Round *m, Tensor u, float *norms, Tensor g,
                            const NewtonSchulz *s) {
    Iteration it = iteration_of(m, s);
    if (s->steps == 0) {
        TRY(inner_products(m, norms, g, g, NULL, true));
        return place(m->d, u, g, norms, false);
    }
    Tensor x, result;
    TRY(start(m, &it, g, norms, false, &x));
    TRY(result_take(m, &it, u, &result));
    if (it.rates)
        TRY(iterate_chain(&it, result.data, result.dtype, x.data));
    else
        TRY(iterate_blas(&it, (float *)result.data, (float *)x.data));
    return result_place(m, u, result);
}

extern "C" Status newton_schulz_cuda(Device *d, Tensor u, Tensor norms, Tensor g, NewtonSchulz s) {
    const int64_t size = round_size(g, 7);
    Status status = STATUS_OK;
    if (pair_fits(d, u, g, &s)) {
        status = pair_run(d, u, norms, g, &s);
        scratch_done(d);
        return status;
    }
    for (int64_t i = 0; i < g.shape[0] && status == STATUS_OK; i += size) {
        const Round m = {d, smaller(size, g.shape[0] - i), g.shape[1], g.shape[2]};
        float *kept = tensor_is_none(norms) ? NULL : (float *)norms.data + i;
        if (!kept) status = scratch_take(d, sizeof(float) * m.n, (void **)&kept);
        if (status == STATUS_OK)
            status = forward_round(&m, part_of(u, i, m.n), kept, part_of(g, i, m.n), &s);
        scratch_done(d);
    }
    return status;
}

static Status backward_round(const Round *m, Grad dg, Tensor u, Tensor du, Tensor g, float *norms,
                             const NewtonSchulz *s) {
    Iteration it = iteration_of(m, s);
    Slope o = {};
    const bool tall = m->rows > m->columns;
    Tensor x, dx = du, dx0, turned, result;
    const bool narrow = s->steps > 0 && chain_fits(&it) && dg.t.dtype == DTYPE_BF16;
    o.type = narrow ? DTYPE_BF16 : DTYPE_F32; /* of the gradient before the norm's */
    o.norms = norms;
    TRY(take(m->d, o.type, m->n, it.r, it.c, &dx0));
    if (s->steps == 0) {
        TRY(place(m->d, dx0, du, NULL, false));
        if (!tensor_is_none(u)) TRY(place(m->d, u, g, norms, false));
        return norm_backward(m, dg, dx0, g, &o);
    }
    TRY(start(m, &it, g, norms, true, &x));
    if (!it.rates || tall || du.dtype != DTYPE_BF16 || !is_aligned(du.data, 16)) {
        TRY(take(m->d, it.rates ? DTYPE_BF16 : DTYPE_F32, m->n, it.r, it.c, &dx));
        TRY(place(m->d, dx, du, NULL, tall));
    }
    TRY(result_take(m, &it, u, &result));
    o.dx0 = dx0.data;
    o.u = result;
    if (narrow && !tall && !dg.add && is_aligned(dg.t.data, 16)) o.dg = dg.t.data;
    if (it.rates)
        TRY(iterate_chain_backward(&it, &o, dx.data, x.data));
    else
        TRY(iterate_blas_backward(&it, (float *)dx0.data, (float *)result.data, (float *)dx.data,
                                  (float *)x.data));
    TRY(result_place(m, u, result));
    if (!tall) return norm_backward(m, dg, dx0, g, &o);
    TRY(take(m->d, o.type, m->n, it.c, it.r, &turned));
    TRY(place(m->d, turned, dx0, NULL, true));
    return norm_backward(m, dg, turned, g, &o);
}

extern "C" Status newton_schulz_backward_cuda(Device *d, Grad dg, Tensor u, Tensor du, Tensor g,
                                              Tensor norms, NewtonSchulz s) {
    const bool wanted = !tensor_is_none(u);
    if (tensor_is_none(dg.t))
        return wanted ? newton_schulz_cuda(d, u, tensor_none(), g, s) : STATUS_OK;
    /* BF16: two X, T, A, B and one H, Q, half a word each, and what both ways need besides */
    const int64_t size = round_size(g, (s.bf16 ? 11 : 10 + s.steps) + wanted);
    Status status = STATUS_OK;
    for (int64_t i = 0; i < g.shape[0] && status == STATUS_OK; i += size) {
        const Round m = {d, smaller(size, g.shape[0] - i), g.shape[1], g.shape[2]};
        const Grad part = {part_of(dg.t, i, m.n), dg.add};
        status = backward_round(&m, part, part_of(u, i, m.n), part_of(du, i, m.n),
                                part_of(g, i, m.n), (float *)norms.data + i, &s);
        scratch_done(d);
    }
    return status;
}
