/* Tokens of the LaCT layer: silu and heads of the packed projection, rates (lact_nvs.md 3.3, 5.5).
 *
 * A warp takes a row. Of a row of at most PACKS packs per lane all values stay in registers between
 * the norm and its use; of a longer or unaligned one they are read again.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/norm.cuh"

#define WARPS      8
#define THREADS    (32 * WARPS)
#define RATE_PARTS 96 /* most blocks that sum a rate's weights */
#define RATES      4  /* that one block sums */

static dim3 row_block() {
    return dim3(32, WARPS);
}
static unsigned row_grid(int64_t rows) {
    return (unsigned)ceil_div(rows, WARPS);
}
static __device__ __forceinline__ int64_t row_of_warp() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.y;
}

/* ---- heads of a packed projection ----------------------------------------------------------- */

/* Rows of y[B,nh,N,dh] and where each begins in packed[B,N,P]. */
typedef struct Heads {
    int64_t rows, pitch, at;
    int width, heads, tokens;
} Heads;

static Heads heads_of(Tensor y, Tensor packed, int64_t at) {
    Heads s = {};
    s.rows = tensor_rows(y), s.pitch = packed.shape[2], s.at = at;
    s.width = (int)y.shape[3], s.heads = (int)y.shape[1], s.tokens = (int)y.shape[2];
    return s;
}

static __device__ __forceinline__ int64_t head_begin(const Heads &s, int64_t row) {
    const int64_t token = row % s.tokens, rest = row / s.tokens;
    const int64_t head = rest % s.heads, sample = rest / s.heads;
    return (sample * s.tokens + token) * s.pitch + s.at + head * s.width;
}

static __device__ __forceinline__ float silu(float x) {
    return x * logistic(x);
}
static __device__ __forceinline__ float silu_slope(float x) {
    const float s = logistic(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
}

template <typename T, int V, int PACKS>
__global__ void __launch_bounds__(THREADS)
    silu_heads_kernel(T *y, const T *packed, Heads s, float offset) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= s.rows) return;
    const T *in = packed + head_begin(s, row);
    T *out = y + row * s.width;
    float v[PACKS][V], squares = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        if (c < s.width) pack_load<T, V>(v[k], in + c);
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        if ((k * 32 + (int)threadIdx.x) * V >= s.width) continue;
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[k][i] = silu(v[k][i]);
            squares += v[k][i] * v[k][i];
        }
    }
    const float rate = offset > 0 ? 1.0f / (sqrtf(warp_sum(squares)) + offset) : 1.0f;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        if (c >= s.width) continue;
#pragma unroll
        for (int i = 0; i < V; i++) v[k][i] *= rate;
        pack_store<T, V>(out + c, v[k]);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    silu_heads_any_kernel(T *y, const T *packed, Heads s, float offset) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= s.rows) return;
    const T *in = packed + head_begin(s, row);
    float squares = 0;
    for (int c = threadIdx.x; offset > 0 && c < s.width; c += 32) {
        const float v = silu(to_float(in[c]));
        squares += v * v;
    }
    const float rate = offset > 0 ? 1.0f / (sqrtf(warp_sum(squares)) + offset) : 1.0f;
    for (int c = threadIdx.x; c < s.width; c += 32)
        from_float(y + row * s.width + c, silu(to_float(in[c])) * rate);
}

/* ds = r dy - (r^2 t/|s|) s with r = 1/(|s| + offset), t = sum s dy. */
typedef struct UnitSlope {
    float rate, pull;
} UnitSlope;

static __device__ __forceinline__ UnitSlope unit_slope(float squares, float dot, float offset) {
    UnitSlope u = {1.0f, 0.0f};
    if (offset > 0) {
        const float norm = sqrtf(warp_sum(squares)), t = warp_sum(dot);
        u.rate = 1.0f / (norm + offset);
        u.pull = norm > 0 ? u.rate * u.rate * t / norm : 0.0f;
    }
    return u;
}

/* Operands stay packed and sigmas in registers, so that no exponential is taken twice. */
template <typename T, int V, int PACKS>
__global__ void __launch_bounds__(THREADS, PACKS > 3 ? 1 : 3)
    silu_heads_backward_kernel(T *dpacked, bool add, T *y, const T *dy, const T *packed, Heads s,
                               float offset) {
    const int64_t row = row_of_warp();
    if (row >= s.rows) return;
    const int64_t from = head_begin(s, row);
    uint4 x[PACKS], g[PACKS];
    float e[PACKS][V], squares = 0, dot = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        x[k] = g[k] = make_uint4(0, 0, 0, 0);
        if (c >= s.width) continue;
        x[k] = *reinterpret_cast<const uint4 *>(packed + from + c);
        g[k] = *reinterpret_cast<const uint4 *>(dy + row * s.width + c);
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            e[k][i] = logistic(raw_value<T>(x[k], i));
            const float v = raw_value<T>(x[k], i) * e[k][i];
            squares = fmaf(v, v, squares);
            dot = fmaf(v, raw_value<T>(g[k], i), dot);
        }
    }
    const UnitSlope u = unit_slope(squares, dot, offset);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        if (c >= s.width) continue;
        float dx[V], unit[V];
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float in = raw_value<T>(x[k], i), v = in * e[k][i];
            const float slope = e[k][i] * fmaf(in, 1.0f - e[k][i], 1.0f);
            dx[i] = (u.rate * raw_value<T>(g[k], i) - u.pull * v) * slope;
            unit[i] = v * u.rate;
        }
        pack_put<T, V>(dpacked + from + c, dx, add);
        if (y) pack_store<T, V>(y + row * s.width + c, unit);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    silu_heads_backward_any_kernel(T *dpacked, bool add, const T *dy, const T *packed, Heads s,
                                   float offset) {
    const int64_t row = row_of_warp();
    if (row >= s.rows) return;
    const int64_t from = head_begin(s, row);
    float squares = 0, dot = 0;
    for (int c = threadIdx.x; offset > 0 && c < s.width; c += 32) {
        const float v = silu(to_float(packed[from + c]));
        squares += v * v;
        dot += v * to_float(dy[row * s.width + c]);
    }
    const UnitSlope u = unit_slope(squares, dot, offset);
    for (int c = threadIdx.x; c < s.width; c += 32) {
        const float x = to_float(packed[from + c]), g = to_float(dy[row * s.width + c]);
        float out[1] = {(u.rate * g - u.pull * silu(x)) * silu_slope(x)};
        pack_put<T, 1>(dpacked + from + c, out, add);
    }
}

/* Packs a lane needs for a row; 0 where the row cannot be read in packs. */
static int packs_for(const Heads &s, size_t size, const void *a, const void *b, const void *c) {
    const int64_t V = 16 / (int64_t)size;
    const bool packed = s.width % V == 0 && s.pitch % V == 0 && s.at % V == 0 &&
                        is_aligned(a, 16) && is_aligned(b, 16) && is_aligned(c, 16);
    return packed ? (int)ceil_div(s.width, 32 * V) : 0;
}

template <typename T>
static void silu_heads_launch(Device *d, Tensor y, Tensor packed, const Heads &s, float offset) {
    const int V = 16 / sizeof(T), packs = packs_for(s, sizeof(T), y.data, packed.data, NULL);
    const unsigned grid = row_grid(s.rows);
    T *to = (T *)y.data;
    const T *from = (const T *)packed.data;
    void (*kernel)(T *, const T *, Heads, float) = silu_heads_any_kernel<T>;
    if (packs >= 1 && packs <= 6)
        kernel = packs <= 3 ? silu_heads_kernel<T, V, 3> : silu_heads_kernel<T, V, 6>;
    chain_launch(d, s.rows <= CHAIN_ROWS, grid, row_block(), 0, kernel, to, from, s, offset);
}

extern "C" Status silu_heads_cuda(Device *d, Tensor y, Tensor packed, int64_t at, float offset) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (packed.dtype != y.dtype) return refuse_dtype("silu_heads", packed.dtype);
    const Heads s = heads_of(y, packed, at);
    WITH_ACT("silu_heads", y.dtype, T, silu_heads_launch<T>(d, y, packed, s, offset));
    return launched("silu_heads");
}

/* Whether y was made, too. */
template <typename T>
static bool silu_heads_backward_launch(Device *d, Grad dpacked, Tensor y, Tensor dy, Tensor packed,
                                       const Heads &s, float offset) {
    const int V = 16 / sizeof(T);
    const int packs =
        is_aligned(y.data, 16) ? packs_for(s, sizeof(T), dpacked.t.data, dy.data, packed.data) : 0;
    const unsigned grid = row_grid(s.rows);
    T *to = (T *)dpacked.t.data, *again = (T *)y.data;
    const T *g = (const T *)dy.data, *from = (const T *)packed.data;
    if (packs >= 1 && packs <= 3)
        silu_heads_backward_kernel<T, V, 3>
            <<<grid, row_block(), 0, stream_of(d)>>>(to, dpacked.add, again, g, from, s, offset);
    else if (packs >= 1 && packs <= 6)
        silu_heads_backward_kernel<T, V, 6>
            <<<grid, row_block(), 0, stream_of(d)>>>(to, dpacked.add, again, g, from, s, offset);
    else
        silu_heads_backward_any_kernel<T>
            <<<grid, row_block(), 0, stream_of(d)>>>(to, dpacked.add, g, from, s, offset);
    return packs >= 1 && packs <= 6;
}

extern "C" Status silu_heads_backward_cuda(Device *d, Grad dpacked, Tensor y, Tensor dy,
                                           Tensor packed, int64_t at, float offset) {
    if (tensor_count(dy) == 0) return STATUS_OK;
    if (tensor_is_none(dpacked.t))
        return y.data ? silu_heads_cuda(d, y, packed, at, offset) : STATUS_OK;
    if (packed.dtype != dy.dtype || dpacked.t.dtype != dy.dtype)
        return refuse_dtype("silu_heads_backward", packed.dtype);
    const Heads s = heads_of(dy, packed, at);
    bool made = true;
    WITH_ACT("silu_heads_backward", dy.dtype, T,
             made = silu_heads_backward_launch<T>(d, dpacked, y, dy, packed, s, offset));
    TRY(launched("silu_heads_backward"));
    return y.data && !made ? silu_heads_cuda(d, y, packed, at, offset) : STATUS_OK;
}

/* ---- rates ---------------------------------------------------------------------------------- */

/* log(1 + e^x), full precision: the rate is as small as e^x and its logarithm counts. */
static __device__ __forceinline__ float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* A warp takes a row of x, and four rates at a time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    token_rates_kernel(float *eta, const T *x, const float *w, const float *b, float shift,
                       int64_t rows, int width, int rates) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= rows) return;
    const T *in = x + row * width;
    for (int j = 0; j < rates; j += RATES) {
        float sum[RATES] = {};
        for (int c = threadIdx.x * V; c < width; c += 32 * V) {
            float v[V];
            pack_load<T, V>(v, in + c);
#pragma unroll
            for (int k = 0; k < RATES; k++) {
                if (j + k >= rates) continue;
                float line[V];
                line_load<V>(line, w + (int64_t)(j + k) * width + c);
#pragma unroll
                for (int i = 0; i < V; i++) sum[k] = fmaf(v[i], line[i], sum[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < RATES; k++) {
            const float z = warp_sum(sum[k]);
            if (j + k < rates && threadIdx.x == k)
                eta[row * rates + j + k] = softplus(z + (b[j + k] + shift));
        }
    }
}

extern "C" Status token_rates_cuda(Device *d, Tensor eta, Tensor x, Tensor w, Tensor b,
                                   float shift) {
    const int64_t rows = tensor_rows(x);
    const int width = (int)tensor_last(x), rates = (int)tensor_last(eta);
    if (tensor_count(eta) == 0) return STATUS_OK;
    WITH_ACT("token_rates", x.dtype, T, const int V = 16 / sizeof(T);
             const bool packs = width % V == 0 && is_aligned(x.data, 16) && is_aligned(w.data, 16);
             chain_launch(d, rows <= CHAIN_ROWS, row_grid(rows), row_block(), 0,
                          packs ? token_rates_kernel<T, V> : token_rates_kernel<T, 1>,
                          (float *)eta.data, (const T *)x.data, (const float *)w.data,
                          (const float *)b.data, shift, rows, width, rates));
    return launched("token_rates");
}

/* Rates and their gradients; dz of one. */
typedef struct RateSlopes {
    const float *eta, *deta;
} RateSlopes;
static __device__ __forceinline__ float rate_slope(const RateSlopes &s, int64_t i) {
    return -expm1f(-s.eta[i]) * s.deta[i];
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    rates_dx_kernel(T *dx, bool add, RateSlopes z, const float *w, int64_t rows, int width,
                    int rates) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    for (int c = threadIdx.x * V; c < width; c += 32 * V) {
        float sum[V] = {};
        for (int j = 0; j < rates; j++) {
            const float factor = rate_slope(z, row * rates + j);
            float line[V];
            line_load<V>(line, w + (int64_t)j * width + c);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] = fmaf(factor, line[i], sum[i]);
        }
        pack_put<T, V>(dx + row * width + c, sum, add);
    }
}

/* partial[blockIdx.y][J][C+1]: sums of dz' [x|1] over its rows; blockIdx.z takes RATES of the J.
 * Threads x: columns, y: rows. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    rates_dw_kernel(float *partial, RateSlopes z, const T *x, int64_t rows, int width, int rates) {
    __shared__ float sums[WARPS][32][V];
    const int c = (blockIdx.x * 32 + threadIdx.x) * V, first = blockIdx.z * RATES;
    float sum[RATES][V] = {}, ones[RATES] = {};
    const int mine = first + threadIdx.x; /* the lane works out one of the row's factors */
#pragma unroll 4
    for (int64_t r = (int64_t)blockIdx.y * WARPS + threadIdx.y; r < rows;
         r += (int64_t)gridDim.y * WARPS) {
        float v[V] = {};
        if (c < width) pack_load<T, V>(v, x + r * width + c);
        const float own =
            threadIdx.x < RATES && mine < rates ? rate_slope(z, r * rates + mine) : 0.0f;
#pragma unroll
        for (int k = 0; k < RATES; k++) {
            const float factor = __shfl_sync(0xffffffffu, own, k);
            ones[k] += factor;
#pragma unroll
            for (int i = 0; i < V; i++) sum[k][i] = fmaf(factor, v[i], sum[k][i]);
        }
    }
    float *to = partial + (int64_t)blockIdx.y * rates * (width + 1);
#pragma unroll
    for (int k = 0; k < RATES; k++) {
        const int j = first + k;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < V; i++) sums[threadIdx.y][threadIdx.x][i] = sum[k][i];
        __syncthreads();
        for (int i = threadIdx.y; i < V; i += WARPS) {
            float total = 0;
            for (int y = 0; y < WARPS; y++) total += sums[y][threadIdx.x][i];
            if (j < rates && c + i < width) to[(int64_t)j * width + c + i] = total;
        }
        __syncthreads();
        if (threadIdx.x == 0) sums[threadIdx.y][0][0] = ones[k];
        __syncthreads();
        if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0 && j < rates) {
            float total = 0;
            for (int y = 0; y < WARPS; y++) total += sums[y][0][0];
            to[(int64_t)rates * width + j] = total;
        }
    }
}

template <typename T>
static void rates_backward_launch(Device *d, Grad dx, float *partial, unsigned parts, RateSlopes z,
                                  Tensor x, Tensor w) {
    const int64_t rows = tensor_rows(x), V = 16 / (int64_t)sizeof(T);
    const int width = (int)tensor_last(x), rates = (int)w.shape[0];
    const bool packed = width % V == 0 && is_aligned(x.data, 16) && is_aligned(dx.t.data, 16) &&
                        is_aligned(w.data, 16);
    const cudaStream_t stream = stream_of(d);
    T *to = (T *)dx.t.data;
    const T *from = (const T *)x.data;
    const float *weight = (const float *)w.data;
    const int across = packed ? 32 * (int)V : 32;
    const dim3 grid((unsigned)ceil_div(width, across), parts, (unsigned)ceil_div(rates, RATES));
    if (to && packed)
        rates_dx_kernel<T, 16 / sizeof(T)>
            <<<row_grid(rows), row_block(), 0, stream>>>(to, dx.add, z, weight, rows, width, rates);
    else if (to)
        rates_dx_kernel<T, 1>
            <<<row_grid(rows), row_block(), 0, stream>>>(to, dx.add, z, weight, rows, width, rates);
    if (partial && packed)
        rates_dw_kernel<T, 16 / sizeof(T)>
            <<<grid, row_block(), 0, stream>>>(partial, z, from, rows, width, rates);
    else if (partial)
        rates_dw_kernel<T, 1>
            <<<grid, row_block(), 0, stream>>>(partial, z, from, rows, width, rates);
}

static Status rates_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta,
                             Tensor x, Tensor w) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), rates = tensor_last(eta);
    const int64_t sums = rates * (width + 1), want = ceil_div(rows, WARPS);
    const int64_t parts = want < RATE_PARTS ? want : RATE_PARTS;
    float *partial = NULL;
    if (dw.t.data || db.t.data)
        TRY(scratch_take(d, sizeof(float) * parts * sums, (void **)&partial));
    const RateSlopes z = {(const float *)eta.data, (const float *)deta.data};
    WITH_ACT("token_rates_backward", x.dtype, T,
             rates_backward_launch<T>(d, dx, partial, (unsigned)parts, z, x, w));
    TRY(launched("token_rates_backward"));
    if (dw.t.data) TRY(reduce_partials(d, dw, partial, parts, sums, 1.0f));
    return db.t.data ? reduce_partials(d, db, partial + rates * width, parts, sums, 1.0f)
                     : STATUS_OK;
}

extern "C" Status token_rates_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor deta,
                                            Tensor eta, Tensor x, Tensor w) {
    if (tensor_count(eta) == 0 || (!dx.t.data && !dw.t.data && !db.t.data)) return STATUS_OK;
    if (dx.t.data && dx.t.dtype != x.dtype) return refuse_dtype("token_rates_backward", x.dtype);
    const Status status = rates_backward(d, dx, dw, db, deta, eta, x, w);
    scratch_done(d);
    return status;
}
