/* Between the products of the LaCT layer: what the inner gradients are products of, and the gate of
 * the reading tokens (lact_nvs.md 4, 5.1, 5.4). Bound by memory: every operand is read once, all of
 * a thread's loads are issued before the first is used.
 */
#include "kernels/cuda/chain.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)

/* sigma, silu and silu' at once. */
typedef struct Silu {
    float sigma, value, slope;
} Silu;

static __device__ __forceinline__ Silu silu_of(float x) {
    Silu s;
    s.sigma = logistic(x);
    s.value = x * s.sigma;
    s.slope = s.sigma * fmaf(x, 1.0f - s.sigma, 1.0f);
    return s;
}

static __device__ __forceinline__ float silu_bend(float x, float sigma) {
    return sigma * (1.0f - sigma) * fmaf(x, 1.0f - 2.0f * sigma, 2.0f);
}

/* Sizes of e[parts,B*H,n,h], and the rates of its rows. */
typedef struct Writers {
    int64_t rows;
    int width, heads, tokens;
    const float *eta;
} Writers;

static Writers writers_of(Tensor ac, Tensor eta) {
    Writers s = {};
    s.rows = tensor_rows(ac);
    s.width = (int)(ac.shape[3] / 2), s.heads = (int)ac.shape[1], s.tokens = (int)ac.shape[2];
    s.eta = (const float *)eta.data;
    return s;
}

/* Where the rates of row (b, head, i) begin in [B,n,3H]; the others follow H and 2H behind. */
static __device__ __forceinline__ int64_t rate_place(const Writers &s, int64_t row) {
    const int64_t token = row % s.tokens, rest = row / s.tokens;
    const int64_t head = rest % s.heads, sample = rest / s.heads;
    return (sample * s.tokens + token) * 3 * s.heads + head;
}

/* A warp takes a row, here and below. */
static __device__ __forceinline__ int64_t row_of_warp() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.y;
}

template <typename T, int V, bool GATES>
__global__ void __launch_bounds__(THREADS)
    lact_write_kernel(T *e, const T *ac, const T *t, Writers s) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= s.rows) return;
    const int64_t each = s.rows * s.width, rate = rate_place(s, row);
    const float eta0 = s.eta[rate], eta1 = s.eta[rate + s.heads], eta2 = s.eta[rate + 2 * s.heads];
    for (int at = threadIdx.x * V; at < s.width; at += 32 * V) {
        const int64_t to = row * s.width + at, pair = row * 2 * s.width + at;
        float a[V], c[V], v[V], e0[V], e2[V];
        pack_load<T, V>(a, ac + pair);
        pack_load<T, V>(c, ac + pair + s.width);
        if (GATES) pack_load<T, V>(v, t + to);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const Silu f = silu_of(a[k]);
            if (GATES) {
                e0[k] = eta0 * v[k] * c[k] * f.slope;
                e2[k] = eta2 * v[k] * f.value;
            }
            a[k] = eta1 * f.value * c[k];
        }
        if (GATES) {
            pack_store<T, V>(e + to, e0);
            pack_store<T, V>(e + each + to, e2);
        }
        pack_store<T, V>(e + (GATES ? 2 * each : 0) + to, a);
    }
}

template <typename T, int V, bool GATES>
__global__ void __launch_bounds__(THREADS)
    lact_write_backward_kernel(T *dac, T *dt, float *deta, bool add, T *e, const T *ac, const T *t,
                               Writers s) {
    const int64_t row = row_of_warp();
    if (row >= s.rows) return;
    const int64_t each = s.rows * s.width, rate = rate_place(s, row);
    const float eta0 = s.eta[rate], eta1 = s.eta[rate + s.heads], eta2 = s.eta[rate + 2 * s.heads];
    float sum0 = 0, sum1 = 0, sum2 = 0;
    for (int at = threadIdx.x * V; at < s.width; at += 32 * V) {
        const int64_t to = row * s.width + at, pair = row * 2 * s.width + at;
        T *last = e + (GATES ? 2 * each : 0) + to;
        float a[V], c[V], v[V], g0[V], g2[V], g1[V];
        pack_load<T, V>(a, ac + pair);
        pack_load<T, V>(c, ac + pair + s.width);
        pack_load<T, V>(g1, last);
        if (GATES) {
            pack_load<T, V>(v, t + to);
            pack_load<T, V>(g0, e + to);
            pack_load<T, V>(g2, e + each + to);
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            const Silu f = silu_of(a[k]);
            const float p = f.value * c[k], dp = eta1 * g1[k];
            sum1 = fmaf(p, g1[k], sum1);
            g1[k] = eta1 * p;
            float da = dp * c[k] * f.slope, dc = dp * f.value;
            if (GATES) {
                const float de0 = eta0 * g0[k], de2 = eta2 * g2[k], slope_c = c[k] * f.slope;
                const float e0 = v[k] * slope_c, e2 = v[k] * f.value;
                sum0 = fmaf(e0, g0[k], sum0);
                sum2 = fmaf(e2, g2[k], sum2);
                g0[k] = eta0 * e0;
                g2[k] = eta2 * e2;
                da += de2 * v[k] * f.slope + de0 * v[k] * c[k] * silu_bend(a[k], f.sigma);
                dc += de0 * v[k] * f.slope;
                v[k] = de2 * f.value + de0 * slope_c;
            }
            a[k] = da;
            c[k] = dc;
        }
        pack_store<T, V>(dac + pair, a);
        pack_store<T, V>(dac + pair + s.width, c);
        pack_store<T, V>(last, g1);
        if (GATES) {
            pack_store<T, V>(dt + to, v);
            pack_store<T, V>(e + to, g0);
            pack_store<T, V>(e + each + to, g2);
        }
    }
    sum0 = warp_sum(sum0), sum1 = warp_sum(sum1), sum2 = warp_sum(sum2);
    if (!deta || threadIdx.x >= 3) return;
    const float sum = threadIdx.x == 0 ? sum0 : threadIdx.x == 1 ? sum1 : sum2;
    float *out = deta + rate + (int64_t)threadIdx.x * s.heads;
    *out = add ? *out + sum : sum;
}

/* Whether rows of `width` at these addresses can be read in packs. */
static bool in_packs(int64_t width, size_t size, const void *const *at, int count) {
    if (width * (int64_t)size % 16 != 0) return false;
    for (int i = 0; i < count; i++)
        if (!is_aligned(at[i], 16)) return false;
    return true;
}

template <typename T, int V>
static void write_launch(Device *d, Tensor e, Tensor ac, Tensor t, const Writers &s) {
    const unsigned grid = (unsigned)ceil_div(s.rows, WARPS);
    const dim3 block(32, WARPS);
    T *to = (T *)e.data;
    const T *from = (const T *)ac.data, *values = (const T *)t.data;
    chain_launch(d, s.rows <= CHAIN_ROWS, grid, block, 0,
                 values ? lact_write_kernel<T, V, true> : lact_write_kernel<T, V, false>, to, from,
                 values, s);
}

extern "C" Status lact_write_cuda(Device *d, Tensor e, Tensor ac, Tensor t, Tensor eta) {
    if (tensor_count(ac) == 0) return STATUS_OK;
    if (e.dtype != ac.dtype || (t.data && t.dtype != ac.dtype))
        return refuse_dtype("lact_write", e.dtype);
    const Writers s = writers_of(ac, eta);
    const void *const at[] = {e.data, ac.data, t.data};
    const bool packed = in_packs(s.width, dtype_size(ac.dtype), at, 3);
    WITH_ACT("lact_write", ac.dtype, T, if (packed) write_launch<T, 16 / sizeof(T)>(d, e, ac, t, s);
             else write_launch<T, 1>(d, e, ac, t, s));
    return launched("lact_write");
}

template <typename T, int V>
static void write_backward_launch(Device *d, Tensor dac, Tensor dt, Grad deta, Tensor e, Tensor ac,
                                  Tensor t, const Writers &s) {
    const unsigned grid = (unsigned)ceil_div(s.rows, WARPS);
    const dim3 block(32, WARPS);
    T *to_ac = (T *)dac.data, *to_t = (T *)dt.data, *to_e = (T *)e.data;
    const T *from = (const T *)ac.data, *values = (const T *)t.data;
    float *rates = (float *)deta.t.data;
    if (values)
        lact_write_backward_kernel<T, V, true>
            <<<grid, block, 0, stream_of(d)>>>(to_ac, to_t, rates, deta.add, to_e, from, values, s);
    else
        lact_write_backward_kernel<T, V, false>
            <<<grid, block, 0, stream_of(d)>>>(to_ac, to_t, rates, deta.add, to_e, from, values, s);
}

extern "C" Status lact_write_backward_cuda(Device *d, Tensor dac, Tensor dt, Grad deta, Tensor e,
                                           Tensor ac, Tensor t, Tensor eta) {
    if (tensor_count(ac) == 0) return STATUS_OK;
    if (e.dtype != ac.dtype || dac.dtype != ac.dtype ||
        (t.data && (t.dtype != ac.dtype || dt.dtype != ac.dtype)))
        return refuse_dtype("lact_write_backward", e.dtype);
    const Writers s = writers_of(ac, eta);
    const void *const at[] = {dac.data, dt.data, e.data, ac.data, t.data};
    const bool packed = in_packs(s.width, dtype_size(ac.dtype), at, 5);
    WITH_ACT("lact_write_backward", ac.dtype, T,
             if (packed) write_backward_launch<T, 16 / sizeof(T)>(d, dac, dt, deta, e, ac, t, s);
             else write_backward_launch<T, 1>(d, dac, dt, deta, e, ac, t, s));
    return launched("lact_write_backward");
}

/* ---- the gate of reading tokens ------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    lact_gate_kernel(T *p, const T *ab, int64_t rows, int width) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= rows) return;
    for (int at = threadIdx.x * V; at < width; at += 32 * V) {
        float a[V], b[V];
        pack_load<T, V>(a, ab + row * 2 * width + at);
        pack_load<T, V>(b, ab + row * 2 * width + width + at);
#pragma unroll
        for (int k = 0; k < V; k++) a[k] = a[k] * logistic(a[k]) * b[k];
        pack_store<T, V>(p + row * width + at, a);
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    lact_gate_backward_kernel(T *dab, T *p, const T *dp, const T *ab, int64_t rows, int width) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    for (int at = threadIdx.x * V; at < width; at += 32 * V) {
        const int64_t pair = row * 2 * width + at;
        float a[V], b[V], g[V];
        pack_load<T, V>(a, ab + pair);
        pack_load<T, V>(b, ab + pair + width);
        pack_load<T, V>(g, dp + row * width + at);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const Silu f = silu_of(a[k]);
            const float da = g[k] * b[k] * f.slope, db = g[k] * f.value;
            g[k] = f.value * b[k];
            a[k] = da;
            b[k] = db;
        }
        pack_store<T, V>(dab + pair, a);
        pack_store<T, V>(dab + pair + width, b);
        pack_store<T, V>(p + row * width + at, g);
    }
}

extern "C" Status lact_gate_cuda(Device *d, Tensor p, Tensor ab) {
    const int64_t rows = tensor_rows(p), width = tensor_last(p);
    if (tensor_count(p) == 0) return STATUS_OK;
    if (p.dtype != ab.dtype) return refuse_dtype("lact_gate", p.dtype);
    const void *const at[] = {p.data, ab.data};
    const bool packed = in_packs(width, dtype_size(p.dtype), at, 2);
    const unsigned grid = (unsigned)ceil_div(rows, WARPS);
    const dim3 block(32, WARPS);
    WITH_ACT("lact_gate", p.dtype, T,
             chain_launch(d, rows <= CHAIN_ROWS, grid, block, 0,
                          packed ? lact_gate_kernel<T, 16 / sizeof(T)> : lact_gate_kernel<T, 1>,
                          (T *)p.data, (const T *)ab.data, rows, (int)width));
    return launched("lact_gate");
}

extern "C" Status lact_gate_backward_cuda(Device *d, Tensor dab, Tensor p, Tensor dp, Tensor ab) {
    const int64_t rows = tensor_rows(p), width = tensor_last(p);
    if (tensor_count(p) == 0) return STATUS_OK;
    if (p.dtype != ab.dtype || dp.dtype != ab.dtype || dab.dtype != ab.dtype)
        return refuse_dtype("lact_gate_backward", p.dtype);
    const void *const at[] = {dab.data, p.data, dp.data, ab.data};
    const bool packed = in_packs(width, dtype_size(p.dtype), at, 4);
    const unsigned grid = (unsigned)ceil_div(rows, WARPS);
    const dim3 block(32, WARPS);
    WITH_ACT("lact_gate_backward", p.dtype, T,
             if (packed) lact_gate_backward_kernel<T, 16 / sizeof(T)>
             <<<grid, block, 0, stream_of(d)>>>((T *)dab.data, (T *)p.data, (const T *)dp.data,
                                                (const T *)ab.data, rows, (int)width);
             else lact_gate_backward_kernel<T, 1>
             <<<grid, block, 0, stream_of(d)>>>((T *)dab.data, (T *)p.data, (const T *)dp.data,
                                                (const T *)ab.data, rows, (int)width));
    return launched("lact_gate_backward");
}
