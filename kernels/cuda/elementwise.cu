/* Elementwise kernels: each thread handles one pack of up to 16 bytes; the last elements and
 * unaligned views take the same code with packs of one element. */
#include "kernels/cuda/gelu_pair.cuh"
#include "kernels/cuda/unary.cuh"

#define THREADS 256

/* s(1-s) without the cancellation of 1-s. */
static __device__ __forceinline__ float logistic_slope(float x) {
    const float e = exponential2(fabsf(x) * -1.4426950408889634f), s = reciprocal(1.0f + e);
    return e * s * s;
}

/* F32 takes the library's erf; BF16 a form that is exact to 1.5e-7 and keeps up with memory. */
template <typename T> static __device__ __forceinline__ float gelu_value(UnaryKind f, float x) {
    if (sizeof(T) < sizeof(float)) return f == UNARY_GELU ? gelu_quick(x) : gelu_slope_quick(x);
    const float area = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    return f == UNARY_GELU ? x * area : area + x * 0.39894228040143268f * expf(-0.5f * x * x);
}

template <typename T> static __device__ __forceinline__ float unary_value(UnaryKind f, float x) {
    if (f > UNARY_SOFTPLUS) return graph_function(f, x);
    if (f == UNARY_GELU || f == UNARY_DGELU) return gelu_value<T>(f, x);
    if (f == UNARY_SOFTPLUS) return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    if (f == UNARY_DSIGMOID) return logistic_slope(x);
    const float s = logistic(x);
    if (f == UNARY_SIGMOID) return s;
    if (f == UNARY_SILU) return x * s;
    if (f == UNARY_DSILU) return s * (1.0f + x * (1.0f - s));
    return s * (1.0f - s) * (2.0f + x * (1.0f - 2.0f * s));
}

/* What one launch of map_kernel computes. */
typedef enum MapKind {
    MAP_COPY,      /* alpha a */
    MAP_ADD,       /* a + alpha b */
    MAP_MUL,       /* a b */
    MAP_UNARY,     /* f(a) */
    MAP_UNARY_MUL, /* b f(a) */
    MAP_RESIDUAL,  /* a + scale[row] b */
    MAP_SCALE      /* scale[row] a */
} MapKind;

typedef struct MapArgs {
    const float *scale; /* [rows] or NULL: 1 */
    int64_t inner;      /* elements per row */
    int64_t a_step;     /* elements from one row of a to the next: inner, or 0 to broadcast */
    float alpha;
    UnaryKind f;
    bool put_add;
} MapArgs;

template <MapKind KIND, typename T>
static __device__ __forceinline__ float map_value(const MapArgs &g, float scale, float a, float b) {
    if (KIND == MAP_COPY) return g.alpha * a;
    if (KIND == MAP_ADD) return a + g.alpha * b;
    if (KIND == MAP_MUL) return a * b;
    if (KIND == MAP_UNARY) return unary_value<T>(g.f, a);
    if (KIND == MAP_UNARY_MUL) return b * unary_value<T>(g.f, a);
    if (KIND == MAP_RESIDUAL) return a + scale * b;
    return scale * a;
}

template <MapKind KIND, typename Ty, typename Ta, typename Tb, int V>
__global__ void __launch_bounds__(THREADS)
    map_kernel(Ty *y, const Ta *a, const Tb *b, int64_t rows, MapArgs g) {
    const bool has_b =
        KIND == MAP_ADD || KIND == MAP_MUL || KIND == MAP_UNARY_MUL || KIND == MAP_RESIDUAL;
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= g.inner) return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64_t at = row * g.inner + i;
        float va[V], vb[V] = {}, out[V];
        pack_load<Ta, V>(va, a + row * g.a_step + i);
        if (has_b) pack_load<Tb, V>(vb, b + at);
        const float scale =
            (KIND == MAP_RESIDUAL || KIND == MAP_SCALE) && g.scale ? g.scale[row] : 1.0f;
#pragma unroll
        for (int v = 0; v < V; v++) out[v] = map_value<KIND, Ta>(g, scale, va[v], vb[v]);
        pack_put<Ty, V>(y + at, out, g.put_add);
    }
}

template <MapKind KIND, typename Ty, typename Ta, typename Tb>
static Status map_launch(Device *d, const char *name, Tensor y, Tensor a, Tensor b, int64_t rows,
                         MapArgs g) {
    const int V = 16 / (sizeof(Ty) > sizeof(Ta) ? sizeof(Ty) : sizeof(Ta));
    const bool packed = g.inner % V == 0 && is_aligned(y.data, V * sizeof(Ty)) &&
                        is_aligned(a.data, V * sizeof(Ta)) && is_aligned(b.data, V * sizeof(Tb));
    const int64_t threads = packed ? g.inner / V : g.inner;
    if (threads == 0 || rows == 0) return STATUS_OK;
    const dim3 grid((unsigned)ceil_div(threads, THREADS), (unsigned)(rows < 65535 ? rows : 65535));
    if (packed)
        map_kernel<KIND, Ty, Ta, Tb, V><<<grid, THREADS, 0, stream_of(d)>>>(
            (Ty *)y.data, (const Ta *)a.data, (const Tb *)b.data, rows, g);
    else
        map_kernel<KIND, Ty, Ta, Tb, 1><<<grid, THREADS, 0, stream_of(d)>>>(
            (Ty *)y.data, (const Ta *)a.data, (const Tb *)b.data, rows, g);
    return launched(name);
}

/* Element by element: one row. */
static MapArgs map_flat(Tensor y, bool add) {
    const int64_t n = tensor_count(y);
    MapArgs g = {};
    g.inner = g.a_step = n;
    g.alpha = 1.0f;
    g.put_add = add;
    return g;
}

extern "C" Status zero_cuda(Device *d, Tensor y) {
    CUDA_TRY(cudaMemsetAsync(y.data, 0, tensor_bytes(y), stream_of(d)), "zero");
    return STATUS_OK;
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) fill_kernel(T *y, int64_t packs, float value) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float out[V];
#pragma unroll
    for (int v = 0; v < V; v++) out[v] = value;
    if (i < packs) pack_store<T, V>(y + i * V, out);
}

template <typename T, int V> static void fill_launch(Device *d, T *y, int64_t n, float value) {
    fill_kernel<T, V>
        <<<(unsigned)ceil_div(n / V, THREADS), THREADS, 0, stream_of(d)>>>(y, n / V, value);
}

extern "C" Status fill_cuda(Device *d, Tensor y, float value) {
    const int64_t n = tensor_count(y);
    if (n == 0) return STATUS_OK;
    WITH_ACT("fill", y.dtype, T, const int V = 16 / sizeof(T);
             if (n % V == 0 && is_aligned(y.data, 16)) fill_launch<T, V>(d, (T *)y.data, n, value);
             else fill_launch<T, 1>(d, (T *)y.data, n, value));
    return launched("fill");
}

/* The runtime's own copy falls to half its speed above some 500 MB (H200: 2.1 of 4.1 TB/s at 1 GB
 * each way). */
#define COPY_LARGE ((int64_t)256 << 20)

/* Four packs of 16 bytes per thread under way. */
__global__ void __launch_bounds__(THREADS) copy_kernel(uint4 *y, const uint4 *x, int64_t packs) {
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    uint4 v[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i * THREADS < packs) v[i] = x[first + i * THREADS];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i * THREADS < packs) y[first + i * THREADS] = v[i];
}

extern "C" Status copy_cuda(Device *d, Grad y, Tensor x, float alpha) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    if (x.dtype == y.t.dtype && alpha == 1.0f && !y.add) {
        const int64_t bytes = (int64_t)tensor_bytes(x), packs = bytes / 16;
        if (bytes > COPY_LARGE && bytes % 16 == 0 && is_aligned(x.data, 16) &&
            is_aligned(y.t.data, 16)) {
            copy_kernel<<<(unsigned)ceil_div(packs, 4 * THREADS), THREADS, 0, stream_of(d)>>>(
                (uint4 *)y.t.data, (const uint4 *)x.data, packs);
            return launched("copy");
        }
        CUDA_TRY(cudaMemcpyAsync(y.t.data, x.data, tensor_bytes(x), cudaMemcpyDeviceToDevice,
                                 stream_of(d)),
                 "copy");
        return STATUS_OK;
    }
    MapArgs g = map_flat(y.t, y.add);
    g.alpha = alpha;
    WITH_ACT("copy", y.t.dtype, Ty,
             WITH_ACT("copy", x.dtype, Tx,
                      return map_launch<MAP_COPY, Ty, Tx, Tx>(d, "copy", y.t, x, x, 1, g)));
}

extern "C" Status add_cuda(Device *d, Tensor y, Tensor a, Tensor b, float alpha) {
    const int64_t n = tensor_count(y), na = tensor_count(a);
    MapArgs g = map_flat(y, false);
    int64_t rows = 1;
    if (na != n && na > 0) { /* a repeats over the leading dimension */
        rows = n / na;
        g.inner = na;
        g.a_step = 0;
    }
    g.alpha = alpha;
    if (a.dtype != b.dtype) return refuse_dtype("add", b.dtype);
    WITH_ACT("add", y.dtype, Ty,
             WITH_ACT("add", a.dtype, Ta,
                      return map_launch<MAP_ADD, Ty, Ta, Ta>(d, "add", y, a, b, rows, g)));
}

extern "C" Status mul_cuda(Device *d, Grad y, Tensor a, Tensor b) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    const MapArgs g = map_flat(y.t, y.add);
    if (a.dtype != b.dtype) return refuse_dtype("mul", b.dtype);
    WITH_ACT("mul", y.t.dtype, Ty,
             WITH_ACT("mul", a.dtype, Ta,
                      return map_launch<MAP_MUL, Ty, Ta, Ta>(d, "mul", y.t, a, b, 1, g)));
}

/* GELU of BF16, PACKS packs of 8 a thread, all of them under way at once. */
template <int PACKS>
__global__ void __launch_bounds__(THREADS) gelu_kernel(uint4 *y, const uint4 *x, int64_t packs) {
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PACKS) + threadIdx.x;
    uint4 v[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++)
        if (first + i * THREADS < packs) v[i] = x[first + i * THREADS];
#pragma unroll
    for (int i = 0; i < PACKS; i++)
        if (first + i * THREADS < packs)
            y[first + i * THREADS] = make_uint4(gelu_pair(v[i].x), gelu_pair(v[i].y),
                                                gelu_pair(v[i].z), gelu_pair(v[i].w));
}

/* The GELU of the fused products (gelu_pair.cuh), which a frugal tape computes once more. */
static bool is_gelu(Grad y, UnaryKind f, Tensor x) {
    return f == UNARY_GELU && x.dtype == DTYPE_BF16 && !y.add && tensor_count(x) % 8 == 0 &&
           is_aligned(y.t.data, 16) && is_aligned(x.data, 16) && tensor_count(x) > 0;
}
static Status gelu(Device *d, Tensor y, Tensor x) {
    enum { PACKS = 2 };
    const int64_t packs = tensor_count(x) / 8;
    gelu_kernel<PACKS><<<(unsigned)ceil_div(packs, THREADS * PACKS), THREADS, 0, stream_of(d)>>>(
        (uint4 *)y.data, (const uint4 *)x.data, packs);
    return launched("unary");
}

extern "C" Status unary_cuda(Device *d, Grad y, UnaryKind f, Tensor x) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    if (is_gelu(y, f, x) && x.dtype == y.t.dtype) return gelu(d, y.t, x);
    MapArgs g = map_flat(y.t, y.add);
    g.f = f;
    if (x.dtype != y.t.dtype) return refuse_dtype("unary", x.dtype);
    WITH_ACT("unary", x.dtype, T,
             return map_launch<MAP_UNARY, T, T, T>(d, "unary", y.t, x, x, 1, g));
}

extern "C" Status unary_mul_cuda(Device *d, Grad y, UnaryKind f, Tensor x, Tensor dy) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    MapArgs g = map_flat(y.t, y.add);
    g.f = f;
    if (x.dtype != y.t.dtype || dy.dtype != x.dtype) return refuse_dtype("unary_mul", dy.dtype);
    WITH_ACT("unary_mul", x.dtype, T,
             return map_launch<MAP_UNARY_MUL, T, T, T>(d, "unary_mul", y.t, x, dy, 1, g));
}

/* Rows of the leading dimension, each with a factor of its own. */
static MapArgs map_rows(Tensor y, Tensor scale, bool add, int64_t *rows) {
    MapArgs g = map_flat(y, add);
    *rows = y.rank > 0 ? y.shape[0] : 1;
    g.inner = g.a_step = *rows > 0 ? g.inner / *rows : 0;
    g.scale = (const float *)scale.data;
    return g;
}

extern "C" Status residual_cuda(Device *d, Tensor y, Tensor x, Tensor branch, Tensor scale) {
    int64_t rows;
    const MapArgs g = map_rows(y, scale, false, &rows);
    if (x.dtype != y.dtype || branch.dtype != y.dtype)
        return refuse_dtype("residual", branch.dtype);
    WITH_ACT("residual", y.dtype, T,
             return map_launch<MAP_RESIDUAL, T, T, T>(d, "residual", y, x, branch, rows, g));
}

extern "C" Status scale_rows_cuda(Device *d, Grad y, Tensor x, Tensor scale) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    int64_t rows;
    const MapArgs g = map_rows(y.t, scale, y.add, &rows);
    if (x.dtype != y.t.dtype) return refuse_dtype("scale_rows", x.dtype);
    WITH_ACT("scale_rows", x.dtype, T,
             return map_launch<MAP_SCALE, T, T, T>(d, "scale_rows", y.t, x, x, rows, g));
}

/* ---- sums over the leading dimension -------------------------------------------------------- */

template <typename Ty, typename Tx>
__global__ void __launch_bounds__(THREADS)
    sum_batch_kernel(Ty *y, const Tx *x, int64_t batch, int64_t inner, float alpha, bool add) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= inner) return;
    float sum = 0;
#pragma unroll 4
    for (int64_t b = 0; b < batch; b++) sum += to_float(x[b * inner + i]);
    sum *= alpha;
    from_float(y + i, add ? to_float(y[i]) + sum : sum);
}

extern "C" Status sum_batch_cuda(Device *d, Grad y, Tensor x, float alpha) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    const int64_t inner = tensor_count(y.t), batch = inner > 0 ? tensor_count(x) / inner : 0;
    if (inner == 0) return STATUS_OK;
    const unsigned grid = (unsigned)ceil_div(inner, THREADS);
    WITH_ACT("sum_batch", y.t.dtype, Ty,
             WITH_ACT("sum_batch", x.dtype, Tx,
                      sum_batch_kernel<Ty, Tx><<<grid, THREADS, 0, stream_of(d)>>>(
                          (Ty *)y.t.data, (const Tx *)x.data, batch, inner, alpha, y.add)));
    return launched("sum_batch");
}

#define PARTIAL_LANES 16

typedef struct PartialSum {
    float *out; /* NULL: nothing to do */
    const float *partial;
    int64_t n;
    bool add;
} PartialSum;

/* Block: 32 columns by PARTIAL_LANES lanes over the parts, which are joined in order; grid y: which
 * sum. A lane has eight loads under way. */
__global__ void __launch_bounds__(32 * PARTIAL_LANES)
    reduce_partials_kernel(PartialSum one, PartialSum two, int64_t parts, int64_t stride,
                           float alpha) {
    __shared__ float sums[PARTIAL_LANES][32];
    PartialSum g = one;
    if (blockIdx.y) g = two;
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (i < g.n) {
#pragma unroll 8
        for (int64_t p = threadIdx.y; p < parts; p += PARTIAL_LANES)
            sum += g.partial[p * stride + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || i >= g.n) return;
    sum = 0;
    for (int lane = 0; lane < PARTIAL_LANES; lane++) sum += sums[lane][threadIdx.x];
    sum *= alpha;
    g.out[i] = g.add ? g.out[i] + sum : sum;
}

static PartialSum partial_sum(Grad out, const float *partial) {
    PartialSum g = {};
    if (tensor_is_none(out.t)) return g;
    g.out = (float *)out.t.data;
    g.partial = partial;
    g.n = tensor_count(out.t);
    g.add = out.add;
    return g;
}

static Status reduce_launch(Device *d, PartialSum one, PartialSum two, int64_t parts,
                            int64_t stride, float alpha) {
    const int64_t n = one.n > two.n ? one.n : two.n;
    if (n == 0) return STATUS_OK;
    const dim3 grid((unsigned)ceil_div(n, 32), two.n > 0 ? 2 : 1), block(32, PARTIAL_LANES);
    reduce_partials_kernel<<<grid, block, 0, stream_of(d)>>>(one, two, parts, stride, alpha);
    return launched("reduce_partials");
}

Status reduce_partials(Device *d, Grad out, const float *partial, int64_t parts, int64_t stride,
                       float alpha) {
    const PartialSum none = {};
    return reduce_launch(d, partial_sum(out, partial), none, parts, stride, alpha);
}

Status reduce_partials_two(Device *d, Grad a, Grad b, const float *partial_a,
                           const float *partial_b, int64_t parts, int64_t stride) {
    return reduce_launch(d, partial_sum(a, partial_a), partial_sum(b, partial_b), parts, stride,
                         1.0f);
}
