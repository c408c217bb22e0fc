/* Rotary positions in packed projections: 16 bytes per thread where the sizes allow it. */
#include "kernels/cuda/common.cuh"

#define THREADS 256

typedef struct RopeArgs {
    const float *table;
    int64_t batch;
    unsigned tokens, packed, width; /* channels of a row; of queries */
    float sign;
    bool add;
} RopeArgs;

/* V channels from c on, V even unless they lie behind the keys. */
template <typename T, int V>
static __device__ __forceinline__ void rope_pack(T *y, const T *x, const RopeArgs &g,
                                                 unsigned token, unsigned c) {
    float v[V];
    pack_load<T, V>(v, x + c);
    if (c < 2 * g.width) {
        const unsigned at = c < g.width ? c : c - g.width;
        float turn[V];
        line_load<V>(turn, g.table + (size_t)token * g.width + at);
#pragma unroll
        for (int i = 0; i + 1 < V; i += 2) {
            const float cosine = turn[i], sine = g.sign * turn[i + 1], u = v[i], w = v[i + 1];
            v[i] = u * cosine - w * sine;
            v[i + 1] = w * cosine + u * sine;
        }
    }
    pack_put<T, V>(y + c, v, g.add);
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) rope_kernel(T *y, const T *x, RopeArgs g) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, packs = g.packed / V;
    const unsigned token = i / packs, c = i % packs * V;
    if (token >= g.tokens) return;
    for (int64_t b = blockIdx.y; b < g.batch; b += gridDim.y) {
        const int64_t at = (b * g.tokens + token) * g.packed;
        rope_pack<T, V>(y + at, x + at, g, token, c);
    }
}

/* Any size: a pair of queries or keys, or one other channel, per thread. */
template <typename T>
__global__ void __launch_bounds__(THREADS) rope_any_kernel(T *y, const T *x, RopeArgs g) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, units = g.packed - g.width;
    const unsigned token = i / units, unit = i % units;
    if (token >= g.tokens) return;
    for (int64_t b = blockIdx.y; b < g.batch; b += gridDim.y) {
        const int64_t at = (b * g.tokens + token) * g.packed;
        const unsigned c = unit < g.width ? 2 * unit : g.width + unit;
        if (unit >= g.width) {
            float v[1] = {to_float(x[at + c])};
            pack_put<T, 1>(y + at + c, v, g.add);
            continue;
        }
        const float *turn = g.table + (size_t)token * g.width + c % g.width;
        const float u = to_float(x[at + c]), w = to_float(x[at + c + 1]);
        const float cosine = turn[0], sine = g.sign * turn[1];
        float first[1] = {u * cosine - w * sine}, second[1] = {w * cosine + u * sine};
        pack_put<T, 1>(y + at + c, first, g.add);
        pack_put<T, 1>(y + at + c + 1, second, g.add);
    }
}

template <typename T> static void rope_launch(Device *d, Tensor y, Tensor x, const RopeArgs &g) {
    constexpr int V = 16 / sizeof(T);
    const bool fast = g.packed % V == 0 && g.width % V == 0 && is_aligned(x.data, 16) &&
                      is_aligned(y.data, 16) && is_aligned(g.table, 16);
    const int64_t each = (int64_t)g.tokens * (fast ? g.packed / V : g.packed - g.width);
    const dim3 grid((unsigned)ceil_div(each, THREADS),
                    (unsigned)(g.batch < 65535 ? g.batch : 65535));
    if (fast)
        rope_kernel<T, V><<<grid, THREADS, 0, stream_of(d)>>>((T *)y.data, (const T *)x.data, g);
    else
        rope_any_kernel<T><<<grid, THREADS, 0, stream_of(d)>>>((T *)y.data, (const T *)x.data, g);
}

extern "C" Status rope_cuda(Device *d, Grad y, Tensor x, Tensor table, bool back) {
    if (!y.t.data || tensor_count(x) == 0) return STATUS_OK;
    if (y.t.dtype != x.dtype) return refuse_dtype("rope", y.t.dtype);
    const int64_t tokens = table.shape[0], packed = tensor_last(x);
    if (tokens * packed >= (int64_t)1 << 31)
        return status_set(STATUS_INTERNAL, "rope on CUDA: %lld tokens of %lld channels",
                          (long long)tokens, (long long)packed);
    const RopeArgs g = {(const float *)table.data,
                        tensor_rows(x) / tokens,
                        (unsigned)tokens,
                        (unsigned)packed,
                        (unsigned)(2 * table.shape[1]),
                        back ? -1.0f : 1.0f,
                        y.add};
    WITH_ACT("rope", x.dtype, T, rope_launch<T>(d, y.t, x, g));
    return launched("rope");
}
