/* Depthwise branch of the ViTTT mixer for any size and alignment: a thread per (sample, channel),
 * the formulas of vittt.md 2.2 and 3.2 one by one. */
#include "kernels/cuda/dwc.cuh"

#define THREADS 128

/* One channel's map: element (y, x) is p[(y*width + x) * pitch]. */
template <typename T> struct Channel {
    T *p;
    int64_t pitch;
};

template <typename T>
static __device__ __forceinline__ float channel_at(const Channel<T> &m, const DwcArgs &a, int y,
                                                   int x) {
    const bool inside = y >= 0 && y < a.height && x >= 0 && x < a.width;
    return inside ? to_float(m.p[((int64_t)y * a.width + x) * m.pitch]) : 0.0f;
}

/* g[t] = scale sum_p in[p+t] out[p] */
template <typename T>
static __device__ void channel_taps(float (&g)[9], float scale, const Channel<const T> &in,
                                    const Channel<const T> &out, const DwcArgs &a) {
    for (int t = 0; t < 9; t++) {
        float sum = 0;
        for (int y = 0; y < a.height; y++)
            for (int x = 0; x < a.width; x++)
                sum += channel_at(in, a, y + t / 3 - 1, x + t % 3 - 1) * channel_at(out, a, y, x);
        g[t] = scale * sum;
    }
}

/* out[p] = scale sum_t w[t] in[p+t], or in[p-t] */
template <typename T>
static __device__ void channel_apply(const Channel<T> &out, float scale, const float (&w)[9],
                                     const Channel<const T> &in, bool adjoint, const DwcArgs &a) {
    const int sign = adjoint ? -1 : 1;
    for (int y = 0; y < a.height; y++)
        for (int x = 0; x < a.width; x++) {
            float sum = 0;
            for (int t = 0; t < 9; t++)
                sum += w[t] * channel_at(in, a, y + sign * (t / 3 - 1), x + sign * (t % 3 - 1));
            from_float(out.p + ((int64_t)y * a.width + x) * out.pitch, scale * sum);
        }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    dwc_any_kernel(T *cat, float *g_out, const T *qkv, const float *w3, DwcArgs a, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, b = i / a.channels;
    const int ch = (int)(i % a.channels);
    if (i >= count) return;
    const int64_t row = b * a.height * a.width;
    const T *first = qkv + row * a.pitch + a.first + ch;
    const Channel<const T> q = {first, a.pitch}, k = {first + a.channels, a.pitch},
                           v = {first + 2 * a.channels, a.pitch};
    const Channel<T> out = {cat + row * a.cat_pitch + a.cat_first + ch, a.cat_pitch};
    float g[9];
    channel_taps(g, -a.c, k, v, a);
    if (g_out)
        for (int t = 0; t < 9; t++) g_out[i * 9 + t] = g[t];
    dwc_inner_step(g, w3 + ch * 9);
    channel_apply(out, 1.0f, g, q, false, a);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    dwc_any_backward_kernel(T *dqkv, float *dw3_partial, const T *dcat, const T *qkv,
                            const float *g_in, const float *w3, DwcArgs a, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, b = i / a.channels;
    const int ch = (int)(i % a.channels);
    if (i >= count) return;
    const int64_t row = b * a.height * a.width, at = row * a.pitch + a.first + ch;
    const Channel<const T> q = {qkv + at, a.pitch}, k = {qkv + at + a.channels, a.pitch},
                           v = {qkv + at + 2 * a.channels, a.pitch};
    const Channel<const T> dout = {dcat + row * a.cat_pitch + a.cat_first + ch, a.cat_pitch};
    const Channel<T> dq = {dqkv + at, a.pitch}, dk = {dqkv + at + a.channels, a.pitch},
                     dv = {dqkv + at + 2 * a.channels, a.pitch};
    float g[9], dw[9];
    for (int t = 0; t < 9; t++) g[t] = g_in[i * 9 + t];
    channel_taps(dw, 1.0f, q, dout, a);
    if (dw3_partial)
        for (int t = 0; t < 9; t++) dw3_partial[i * 9 + t] = dw[t];
    dwc_inner_backward(dw, g);
    dwc_inner_step(g, w3 + ch * 9);
    channel_apply(dq, 1.0f, g, dout, true, a);
    channel_apply(dk, -a.c, dw, v, true, a);
    channel_apply(dv, -a.c, dw, k, false, a);
}

template <typename T>
Status dwc_any_forward(Device *d, VitttShape s, const DwcArgs &a, T *cat, float *g, const T *qkv,
                       const float *w3) {
    const int64_t count = s.batch * s.head_dim;
    dwc_any_kernel<T><<<(unsigned)ceil_div(count, THREADS), THREADS, 0, stream_of(d)>>>(
        cat, g, qkv, w3, a, count);
    return launched("vittt_dwc");
}

template <typename T>
Status dwc_any_backward(Device *d, VitttShape s, const DwcArgs &a, T *dqkv, float *dw3_partial,
                        const T *dcat, const T *qkv, const float *g, const float *w3) {
    const int64_t count = s.batch * s.head_dim;
    dwc_any_backward_kernel<T><<<(unsigned)ceil_div(count, THREADS), THREADS, 0, stream_of(d)>>>(
        dqkv, dw3_partial, dcat, qkv, g, w3, a, count);
    return launched("vittt_dwc_backward");
}

template Status dwc_any_forward<float>(Device *, VitttShape, const DwcArgs &, float *, float *,
                                       const float *, const float *);
template Status dwc_any_forward<bf16>(Device *, VitttShape, const DwcArgs &, bf16 *, float *,
                                      const bf16 *, const float *);
template Status dwc_any_backward<float>(Device *, VitttShape, const DwcArgs &, float *, float *,
                                        const float *, const float *, const float *, const float *);
template Status dwc_any_backward<bf16>(Device *, VitttShape, const DwcArgs &, bf16 *, float *,
                                       const bf16 *, const bf16 *, const float *, const float *);
