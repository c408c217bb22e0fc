/* Tokens of the LaCT layer: silu and heads of the packed projection (lact_nvs.md 3.3, 5.5).
 *
 * A warp takes a row. Of a row of at most PACKS packs per lane all values stay in registers between
 * the norm and its use; of a longer or unaligned one they are read again.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/norm.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)

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
