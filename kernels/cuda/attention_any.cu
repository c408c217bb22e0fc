/* Attention within windows (lact_nvs.md 3.2, 5.5) in F32 arithmetic, for any width of a head up to
 * 256; the fast case is attention_mma.cu.
 *
 * A block has ROWS rows (queries, or keys in the backward) of one window and head, four for each
 * warp, and goes through the others in tiles of 32, one for each lane.
 */
#include "kernels/cuda/attention.cuh"

#define WARPS 8
#define ROWS  32 /* of a block: four a warp */
#define OWN   4
#define TILE  32

/* ---- tiles in shared memory: [32][width + 1] floats ------------------------------------------ */

/* Rows first.. of a matrix whose row i begins at at(i); zeros past `count`. */
template <typename T>
static __device__ __forceinline__ void row_get(float *to, const T *from, bool real, int width) {
    for (int c = threadIdx.x; c < width; c += 32) to[c] = real ? to_float(from[c]) : 0.0f;
}

/* What a score has to say of both norms' weights stands with the block's own rows. */
typedef enum Norm { NORM_NONE, NORM_RATE, NORM_WEIGHTS } Norm;

static __device__ __forceinline__ float both_weights(const AttentionArgs &a, int c) {
    return a.q_w ? a.q_w[c] * a.k_w[c] : 1.0f;
}

/* Multiplies the warp's row by its rate, and by the weights; returns the rate. */
static __device__ __forceinline__ float row_norm(const AttentionArgs &a, float *x, Norm norm) {
    float squares = 0;
    for (int c = threadIdx.x; c < a.width; c += 32) squares += x[c] * x[c];
    const float rate = 1.0f / sqrtf(warp_sum(squares) / a.width + a.eps);
    for (int c = threadIdx.x; c < a.width; c += 32)
        x[c] *= norm == NORM_WEIGHTS ? rate * both_weights(a, c) : rate;
    return rate;
}

/* 32 rows of one third; rates (optional) [32]. */
template <typename T>
static __device__ void tile_get(const AttentionArgs &a, float *tile, float *rates, int64_t window,
                                int head, int third, int first, Norm norm) {
    for (int r = threadIdx.y; r < TILE; r += WARPS) {
        const int token = first + r;
        const bool real = token < a.tokens;
        float *row = tile + r * (a.width + 1);
        row_get(row, (const T *)a.packed + packed_at(a, window, third, head, real ? token : 0),
                real, a.width);
        float rate = 1;
        if (a.q_w && norm != NORM_NONE) rate = row_norm(a, row, norm);
        if (rates && threadIdx.x == 0) rates[r] = rate;
    }
}

/* 32 rows of [W,l,d]. */
template <typename T>
static __device__ void tile_get_plain(const AttentionArgs &a, float *tile, const void *from,
                                      int64_t window, int head, int first) {
    for (int r = threadIdx.y; r < TILE; r += WARPS) {
        const int token = first + r;
        const bool real = token < a.tokens;
        row_get(tile + r * (a.width + 1),
                (const T *)from + plain_at(a, window, head, real ? token : 0), real, a.width);
    }
}

/* out[i] = own row i of `rows` times row `lane` of `tile`. */
static __device__ __forceinline__ void dots(float (&out)[OWN], const float *rows, const float *tile,
                                            int width) {
    const float *mine = rows + threadIdx.y * OWN * (width + 1);
    const float *other = tile + threadIdx.x * (width + 1);
#pragma unroll
    for (int i = 0; i < OWN; i++) out[i] = 0;
    for (int c = 0; c < width; c++) {
        const float x = other[c];
#pragma unroll
        for (int i = 0; i < OWN; i++) out[i] = fmaf(mine[i * (width + 1) + c], x, out[i]);
    }
}

/* sum[i][n] += factor[i] of lane j times channel lane + 32 n of row j. */
template <int PARTS>
static __device__ __forceinline__ void gather(float (&sum)[OWN][PARTS], const float (&factor)[OWN],
                                              const float *tile, int width) {
    for (int j = 0; j < TILE; j++) {
        const float *row = tile + j * (width + 1);
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int c = threadIdx.x + 32 * n;
            const float x = c < width ? row[c] : 0.0f;
#pragma unroll
            for (int i = 0; i < OWN; i++)
                sum[i][n] = fmaf(__shfl_sync(0xffffffffu, factor[i], j), x, sum[i][n]);
        }
    }
}

/* Which window, head and rows a block has. */
typedef struct Place {
    int64_t window;
    int head, first;
} Place;

static __device__ __forceinline__ Place place_of(const AttentionArgs &a) {
    const int blocks = (a.tokens + ROWS - 1) / ROWS;
    const int64_t pair = blockIdx.x / blocks;
    return {pair / a.heads, (int)(pair % a.heads), (int)(blockIdx.x % blocks) * ROWS};
}

/* ---- forward --------------------------------------------------------------------------------- */

template <typename T, int PARTS>
__global__ void __launch_bounds__(32 * WARPS) attention_kernel(AttentionArgs a) {
    extern __shared__ float shared[];
    const int size = TILE * (a.width + 1);
    float *q = shared, *k = q + size, *v = k + size;
    const Place at = place_of(a);
    float sum[OWN][PARTS] = {}, top[OWN], total[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        top[i] = -INFINITY;
        total[i] = 0;
    }
    tile_get<T>(a, q, NULL, at.window, at.head, 0, at.first, NORM_WEIGHTS);
    for (int first = 0; first < a.tokens; first += TILE) {
        __syncthreads();
        tile_get<T>(a, k, NULL, at.window, at.head, 1, first, NORM_RATE);
        tile_get<T>(a, v, NULL, at.window, at.head, 2, first, NORM_NONE);
        __syncthreads();
        float s[OWN];
        dots(s, q, k, a.width);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            s[i] = first + (int)threadIdx.x < a.tokens ? s[i] * a.scale : -INFINITY;
            const float now = fmaxf(top[i], warp_max(s[i])), shrink = expf(top[i] - now);
            s[i] = expf(s[i] - now);
            total[i] = total[i] * shrink + warp_sum(s[i]);
            top[i] = now;
#pragma unroll
            for (int n = 0; n < PARTS; n++) sum[i][n] *= shrink;
        }
        gather<PARTS>(sum, s, v, a.width);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int token = at.first + threadIdx.y * OWN + i;
        if (token >= a.tokens) break;
        T *to = (T *)a.to + plain_at(a, at.window, at.head, token);
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int c = threadIdx.x + 32 * n;
            if (c < a.width) from_float(&to[c], sum[i][n] / total[i]);
        }
        if (a.lse && threadIdx.x == 0)
            a.lse[(at.window * a.heads + at.head) * a.tokens + token] = top[i] + logf(total[i]);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* delta[row] = sum over a head of dout o; a warp for each row and head. */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS) attention_delta_kernel(AttentionArgs a, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (i >= n) return;
    const int64_t pair = i / a.tokens;
    const int64_t from = plain_at(a, pair / a.heads, (int)(pair % a.heads), (int)(i % a.tokens));
    const T *g = (const T *)a.dout + from, *o = (const T *)a.o + from;
    float sum = 0;
    for (int c = threadIdx.x; c < a.width; c += 32) sum += to_float(g[c]) * to_float(o[c]);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) a.delta[i] = sum;
}

/* Writes the gradient of a row of q or k (third) from g: that of the row times its rate, without
 * the factors scale and both weights. */
template <typename T, int PARTS>
static __device__ __forceinline__ void row_put(const AttentionArgs &a, const float (&g)[PARTS],
                                               const Place &at, int third, int token) {
    const int64_t place = packed_at(a, at.window, third, at.head, token);
    const T *raw = (const T *)a.packed + place;
    T *to = (T *)a.to + place;
    float x[PARTS], slope[PARTS], squares = 0, mean = 0;
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const int c = threadIdx.x + 32 * n;
        const bool real = c < a.width;
        x[n] = real ? to_float(raw[c]) : 0.0f;
        slope[n] = real ? g[n] * a.scale * both_weights(a, c) : 0.0f;
        squares += x[n] * x[n];
        mean += x[n] * slope[n];
    }
    float rate = 1, pull = 0;
    if (a.q_w) {
        rate = 1.0f / sqrtf(warp_sum(squares) / a.width + a.eps);
        pull = warp_sum(mean) / a.width * rate * rate * rate;
    }
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const int c = threadIdx.x + 32 * n;
        if (c < a.width) from_float(&to[c], rate * slope[n] - x[n] * pull);
    }
}

/* Own rows are keys: dk and dv. */
template <typename T, int PARTS>
__global__ void __launch_bounds__(32 * WARPS) attention_dkv_kernel(AttentionArgs a) {
    extern __shared__ float shared[];
    const int size = TILE * (a.width + 1);
    float *k = shared, *v = k + size, *q = v + size, *g = q + size;
    const Place at = place_of(a);
    const int64_t row0 = (at.window * a.heads + at.head) * a.tokens;
    float dk[OWN][PARTS] = {}, dv[OWN][PARTS] = {};
    tile_get<T>(a, k, NULL, at.window, at.head, 1, at.first, NORM_WEIGHTS);
    tile_get<T>(a, v, NULL, at.window, at.head, 2, at.first, NORM_NONE);
    for (int first = 0; first < a.tokens; first += TILE) {
        __syncthreads();
        tile_get<T>(a, q, NULL, at.window, at.head, 0, first, NORM_RATE);
        tile_get_plain<T>(a, g, a.dout, at.window, at.head, first);
        __syncthreads();
        const int token = first + threadIdx.x;
        const bool real = token < a.tokens;
        const float shift = real ? a.lse[row0 + token] : INFINITY;
        const float delta = real ? a.delta[row0 + token] : 0.0f;
        float p[OWN], ds[OWN];
        dots(p, k, q, a.width);
        dots(ds, v, g, a.width);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            p[i] = expf(p[i] * a.scale - shift);
            ds[i] = p[i] * (ds[i] - delta);
        }
        gather<PARTS>(dv, p, g, a.width);
        gather<PARTS>(dk, ds, q, a.width);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int token = at.first + threadIdx.y * OWN + i;
        if (token >= a.tokens) break;
        row_put<T, PARTS>(a, dk[i], at, 1, token);
        T *to = (T *)a.to + packed_at(a, at.window, 2, at.head, token);
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int c = threadIdx.x + 32 * n;
            if (c < a.width) from_float(&to[c], dv[i][n]);
        }
    }
}

/* Own rows are queries: dq, and this block's part of the weights' gradients. */
template <typename T, int PARTS>
__global__ void __launch_bounds__(32 * WARPS) attention_dq_kernel(AttentionArgs a) {
    extern __shared__ float shared[];
    __shared__ float rates[ROWS];
    const int size = TILE * (a.width + 1);
    float *q = shared, *g = q + size, *k = g + size, *v = k + size;
    const Place at = place_of(a);
    const int64_t row0 = (at.window * a.heads + at.head) * a.tokens;
    float dq[OWN][PARTS] = {}, shift[OWN], delta[OWN];
    tile_get<T>(a, q, rates, at.window, at.head, 0, at.first, NORM_WEIGHTS);
    tile_get_plain<T>(a, g, a.dout, at.window, at.head, at.first);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int token = at.first + threadIdx.y * OWN + i;
        shift[i] = token < a.tokens ? a.lse[row0 + token] : INFINITY;
        delta[i] = token < a.tokens ? a.delta[row0 + token] : 0.0f;
    }
    for (int first = 0; first < a.tokens; first += TILE) {
        __syncthreads();
        tile_get<T>(a, k, NULL, at.window, at.head, 1, first, NORM_RATE);
        tile_get<T>(a, v, NULL, at.window, at.head, 2, first, NORM_NONE);
        __syncthreads();
        float p[OWN], ds[OWN];
        dots(p, q, k, a.width);
        dots(ds, g, v, a.width);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const bool real = first + (int)threadIdx.x < a.tokens;
            ds[i] = real ? expf(p[i] * a.scale - shift[i]) * (ds[i] - delta[i]) : 0.0f;
        }
        gather<PARTS>(dq, ds, k, a.width);
    }
    float weight[PARTS] = {};
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int token = at.first + threadIdx.y * OWN + i;
        if (token >= a.tokens) break;
        row_put<T, PARTS>(a, dq[i], at, 0, token);
        const T *raw = (const T *)a.packed + packed_at(a, at.window, 0, at.head, token);
#pragma unroll
        for (int n = 0; n < PARTS; n++) {
            const int c = threadIdx.x + 32 * n;
            if (c < a.width)
                weight[n] += dq[i][n] * to_float(raw[c]) * rates[threadIdx.y * OWN + i];
        }
    }
    if (!a.weights) return;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
        const int c = threadIdx.x + 32 * n;
        if (c < a.width) shared[threadIdx.y * a.width + c] = weight[n];
    }
    __syncthreads();
    for (int c = threadIdx.y * 32 + threadIdx.x; c < a.width; c += 32 * WARPS) {
        float all = 0;
        for (int w = 0; w < WARPS; w++) all += shared[w * a.width + c];
        a.weights[(int64_t)blockIdx.x * a.width + c] = all;
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Shared memory of `tiles` tiles. */
static size_t shared_of(const AttentionArgs &a, int tiles) {
    return sizeof(float) * tiles * TILE * (a.width + 1);
}

template <typename Kernel>
static Status launch(Device *d, Kernel kernel, const AttentionArgs &a, int64_t windows, int tiles) {
    const size_t bytes = shared_of(a, tiles);
    const int64_t blocks = windows * a.heads * ceil_div(a.tokens, ROWS);
    if (bytes > 48 * 1024)
        CUDA_TRY(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            "attention: shared memory");
    kernel<<<(unsigned)blocks, dim3(32, WARPS), bytes, stream_of(d)>>>(a);
    return launched("attention");
}

/* Channels of a head in parts of 32. */
#define WITH_PARTS(width, PARTS, ...)                                                              \
    do {                                                                                           \
        if ((width) <= 64) {                                                                       \
            enum { PARTS = 2 };                                                                    \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            enum { PARTS = ATTENTION_WIDTH / 32 };                                                 \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

Status attention_any(Device *d, const AttentionArgs &a, int64_t windows, DType dtype) {
    WITH_ACT("attention", dtype, T,
             WITH_PARTS(a.width, PARTS, TRY(launch(d, attention_kernel<T, PARTS>, a, windows, 3))));
    return STATUS_OK;
}

int64_t attention_any_parts(int64_t windows, int64_t heads, int64_t tokens) {
    return windows * heads * ceil_div(tokens, ROWS);
}

size_t attention_any_shared(int64_t width) {
    return sizeof(float) * 4 * TILE * (width + 1);
}

template <typename T>
static Status backward_any(Device *d, const AttentionArgs &a, int64_t windows) {
    const int64_t rows = windows * a.heads * a.tokens;
    attention_delta_kernel<T>
        <<<(unsigned)ceil_div(rows, WARPS), dim3(32, WARPS), 0, stream_of(d)>>>(a, rows);
    TRY(launched("attention_backward"));
    WITH_PARTS(a.width, PARTS, TRY(launch(d, attention_dkv_kernel<T, PARTS>, a, windows, 4));
               TRY(launch(d, attention_dq_kernel<T, PARTS>, a, windows, 4)));
    return STATUS_OK;
}

Status attention_any_backward(Device *d, const AttentionArgs &a, int64_t windows, DType dtype) {
    WITH_ACT("attention_backward", dtype, T, TRY(backward_any<T>(d, a, windows)));
    return STATUS_OK;
}
