/* Depthwise branch of the ViTTT mixer (vittt.md 2.2, 3.2): a block per sample and group of
 * channels. The per-sample kernel w' lives in shared memory only. */
#include "kernels/cuda/stencil.cuh"

typedef struct DwcArgs {
    int64_t pitch, cat_pitch; /* channels per token of qkv and cat */
    int64_t first, cat_first; /* where q2 and the branch's output begin */
    int channels, height, width;
    float c; /* 1/(3N) */
} DwcArgs;

static DwcArgs dwc_args(VitttShape s) {
    const int64_t wide = s.heads * s.head_dim;
    DwcArgs a = {};
    a.pitch = 3 * wide + 3 * s.head_dim;
    a.cat_pitch = wide + s.head_dim;
    a.first = 3 * wide;
    a.cat_first = wide;
    a.channels = (int)s.head_dim;
    a.height = (int)s.height;
    a.width = (int)s.width;
    a.c = 1.0f / (3.0f * (float)(s.height * s.width));
    return a;
}

template <typename T> struct DwcMaps { Map<T> q, k, v, cat; };

/* The sample's maps at the thread's channels, in qkv-like and cat-like memory. */
template <typename T>
static __device__ __forceinline__ DwcMaps<T> dwc_maps(const DwcArgs &a, T *qkv, T *cat, int ch) {
    const int64_t row = (int64_t)blockIdx.x * a.height * a.width;
    T *first = qkv + row * a.pitch + a.first + ch;
    DwcMaps<T> m;
    m.q = map_of<T>(first, a.pitch, a.height, a.width);
    m.k = map_of<T>(first + a.channels, a.pitch, a.height, a.width);
    m.v = map_of<T>(first + 2 * a.channels, a.pitch, a.height, a.width);
    m.cat = map_of<T>(cat + row * a.cat_pitch + a.cat_first + ch, a.cat_pitch, a.height, a.width);
    return m;
}

/* sum over the sample of in[p+t] out[p] into shared[(t*V+v)*lanes + lane]. */
template <typename T, int V>
static __device__ __forceinline__ void sample_taps(float *shared, const Map<const T> &in,
                                                   const Map<const T> &out, bool active) {
    float g[9][V] = {}, total[V] = {};
    for (int y0 = threadIdx.y * STRIP_ROWS; active && y0 < in.height; y0 += blockDim.y * STRIP_ROWS)
        strip_taps<T, V>(g, total, in, out, y0);
    rows_join<9 * V>(shared, *reinterpret_cast<float(*)[9 * V]>(&g[0]));
}

/* The thread's taps, times `scale`, reversed for the adjoint. */
template <int V>
static __device__ __forceinline__ void taps_load(float (&w)[9][V], const float *shared, float scale,
                                                 bool reverse) {
#pragma unroll
    for (int t = 0; t < 9; t++)
#pragma unroll
        for (int v = 0; v < V; v++)
            w[t][v] = scale * shared[((reverse ? 8 - t : t) * V + v) * blockDim.x + threadIdx.x];
}

template <typename T, int V>
__global__ void __launch_bounds__(256)
    vittt_dwc_kernel(T *cat, float *g_out, const T *qkv, const float *w3, DwcArgs a) {
    extern __shared__ float taps[];
    const int ch = ((int)blockIdx.y * (int)blockDim.x + (int)threadIdx.x) * V;
    const bool active = ch < a.channels;
    const DwcMaps<const T> in = dwc_maps<const T>(a, qkv, cat, ch);
    const DwcMaps<T> out = dwc_maps<T>(a, (T *)NULL, cat, ch);
    sample_taps<T, V>(taps, in.k, in.v, active);
    for (int v = threadIdx.y; active && v < V; v += blockDim.y) {
        float g[9], square = 0;
        for (int t = 0; t < 9; t++) {
            g[t] = -a.c * taps[(t * V + v) * blockDim.x + threadIdx.x];
            square += g[t] * g[t];
        }
        const float r = 1.0f / (sqrtf(square) + 1.0f);
        for (int t = 0; t < 9; t++) {
            taps[(t * V + v) * blockDim.x + threadIdx.x] = w3[(ch + v) * 9 + t] - r * g[t];
            if (g_out) g_out[((int64_t)blockIdx.x * a.channels + ch + v) * 9 + t] = g[t];
        }
    }
    __syncthreads();
    if (!active) return;
    float w[9][V], none[V] = {};
    taps_load<V>(w, taps, 1.0f, false);
    for (int y0 = threadIdx.y * STRIP_ROWS; y0 < a.height; y0 += blockDim.y * STRIP_ROWS)
        strip_apply<T, V>(out.cat, false, in.q, y0, w, none);
}

/* From the taps' gradient in `dw` (shared) and the raw inner gradient: w' and dg in shared memory;
 * the sample's term of dw3 goes to `dw3_part`. */
template <int V>
static __device__ __forceinline__ void dwc_inner_backward(float *w, float *dg, float *dw3_part,
                                                          const float *g_in, const float *w3,
                                                          int ch) {
    const int lanes = blockDim.x;
    for (int v = threadIdx.y; v < V; v += blockDim.y) {
        float g[9], square = 0, t_sum = 0;
        for (int t = 0; t < 9; t++) {
            g[t] = g_in[v * 9 + t];
            square += g[t] * g[t];
            t_sum -= g[t] * dg[(t * V + v) * lanes + threadIdx.x];
        }
        const float n = sqrtf(square), r = 1.0f / (n + 1.0f);
        const float back = n > 0 ? r * r * t_sum / n : 0.0f;
        for (int t = 0; t < 9; t++) {
            const int at = (t * V + v) * lanes + threadIdx.x;
            if (dw3_part) dw3_part[v * 9 + t] = dg[at];
            w[at] = w3[(ch + v) * 9 + t] - r * g[t];
            dg[at] = -r * dg[at] - back * g[t];
        }
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(256)
    vittt_dwc_backward_kernel(T *dqkv, float *dw3_partial, const T *dcat, const T *qkv,
                              const float *g, const float *w3, DwcArgs a) {
    extern __shared__ float taps[];
    float *dg = taps, *w = taps + 9 * V * blockDim.x;
    const int ch = ((int)blockIdx.y * (int)blockDim.x + (int)threadIdx.x) * V;
    const bool active = ch < a.channels;
    const DwcMaps<const T> in = dwc_maps<const T>(a, qkv, dcat, ch);
    const DwcMaps<T> out = dwc_maps<T>(a, dqkv, (T *)NULL, ch);
    sample_taps<T, V>(dg, in.q, in.cat, active);
    const int64_t place = ((int64_t)blockIdx.x * a.channels + ch) * 9;
    if (active)
        dwc_inner_backward<V>(w, dg, dw3_partial ? dw3_partial + place : NULL, g + place, w3, ch);
    __syncthreads();
    if (!active) return;
    const int strips = (a.height + STRIP_ROWS - 1) / STRIP_ROWS;
    const float none[V] = {};
    float taps_now[9][V];
    for (int item = threadIdx.y; item < 3 * strips; item += blockDim.y) {
        const int which = item / strips, y0 = item % strips * STRIP_ROWS;
        const Map<T> to = which == 0 ? out.q : which == 1 ? out.k : out.v;
        const Map<const T> from = which == 0 ? in.cat : which == 1 ? in.v : in.k;
        taps_load<V>(taps_now, which == 0 ? w : dg, which == 0 ? 1.0f : -a.c, which != 2);
        strip_apply<T, V>(to, false, from, y0, taps_now, none);
    }
}

static bool dwc_packed(const DwcArgs *a, const void *p, const void *q) {
    return a->channels % 4 == 0 && a->cat_first % 4 == 0 && is_aligned(p, 16) && is_aligned(q, 16);
}

template <typename T, int V>
static void dwc_forward_launch(Device *d, int64_t batch, Tensor cat, Tensor g, Tensor qkv,
                               Tensor w3, const DwcArgs &a) {
    const dim3 block = stencil_block(ceil_div(a.channels, V));
    const dim3 grid((unsigned)batch, (unsigned)ceil_div(a.channels, (int64_t)block.x * V));
    const size_t bytes = sizeof(float) * 9 * V * block.x;
    vittt_dwc_kernel<T, V><<<grid, block, bytes, stream_of(d)>>>(
        (T *)cat.data, (float *)g.data, (const T *)qkv.data, (const float *)w3.data, a);
}

template <typename T, int V>
static void dwc_backward_launch(Device *d, int64_t batch, Tensor dqkv, float *partial, Tensor dcat,
                                Tensor qkv, Tensor g, Tensor w3, const DwcArgs &a) {
    const dim3 block = stencil_block(ceil_div(a.channels, V));
    const dim3 grid((unsigned)batch, (unsigned)ceil_div(a.channels, (int64_t)block.x * V));
    const size_t bytes = sizeof(float) * 18 * V * block.x;
    vittt_dwc_backward_kernel<T, V><<<grid, block, bytes, stream_of(d)>>>(
        (T *)dqkv.data, partial, (const T *)dcat.data, (const T *)qkv.data, (const float *)g.data,
        (const float *)w3.data, a);
}

extern "C" Status vittt_dwc_cuda(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv,
                                 Tensor w3) {
    const DwcArgs a = dwc_args(s);
    if (cat.dtype != qkv.dtype) return refuse_dtype("vittt_dwc", cat.dtype);
    const bool packed = dwc_packed(&a, cat.data, qkv.data);
    WITH_ACT("vittt_dwc", qkv.dtype, T,
             if (packed) dwc_forward_launch<T, 4>(d, s.batch, cat, g, qkv, w3, a);
             else dwc_forward_launch<T, 1>(d, s.batch, cat, g, qkv, w3, a));
    return launched("vittt_dwc");
}

extern "C" Status vittt_dwc_backward_cuda(Device *d, VitttShape s, Tensor dqkv, Grad dw3,
                                          Tensor dcat, Tensor qkv, Tensor g, Tensor w3) {
    const DwcArgs a = dwc_args(s);
    if (dqkv.dtype != qkv.dtype || dcat.dtype != qkv.dtype)
        return refuse_dtype("vittt_dwc_backward", dcat.dtype);
    float *partial = NULL;
    if (!tensor_is_none(dw3.t))
        TRY(scratch_take(d, sizeof(float) * s.batch * s.head_dim * 9, (void **)&partial));
    const bool packed = dwc_packed(&a, dcat.data, qkv.data) && is_aligned(dqkv.data, 16);
    WITH_ACT("vittt_dwc_backward", qkv.dtype, T,
             if (packed) dwc_backward_launch<T, 4>(d, s.batch, dqkv, partial, dcat, qkv, g, w3, a);
             else dwc_backward_launch<T, 1>(d, s.batch, dqkv, partial, dcat, qkv, g, w3, a));
    Status status = launched("vittt_dwc_backward");
    if (status == STATUS_OK)
        status = reduce_partials(d, dw3, partial, s.batch, s.head_dim * 9, 1.0f);
    scratch_done(d);
    return status;
}
