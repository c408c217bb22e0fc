/* States of chunks and the steps between them (fastweight.md 4.1, 4.4): bound by memory, every
 * value read once. */
#include "kernels/cuda/chain.cuh"

#define THREADS 256

/* ---- states --------------------------------------------------------------------------------- */

#define SCAN_THREADS 128

typedef struct Scan {
    int64_t width; /* elements of a state */
    int chunks, starts, factors;
    float alpha;
    bool before;
    const float *f, *start; /* f[factors][chunks] */
    float *last;
} Scan;

/* The mean of a chunk's values: a block each. */
__global__ void __launch_bounds__(THREADS) factor_kernel(float *f, const float *m, int n) {
    __shared__ float sums[THREADS / 32];
    chain_wait();
    const float *x = m + (int64_t)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < THREADS / 32; i++) sum += sums[i];
    f[blockIdx.x] = sum / (float)n;
}

/* V values as they lie in memory. */
template <typename T, int V> struct __align__(V * sizeof(T)) Packed {
    T v[V];
};
template <typename T, int V>
static __device__ __forceinline__ void packed_load(Packed<T, V> &to, const T *from) {
    if (sizeof to == 16)
        *reinterpret_cast<uint4 *>(to.v) = *reinterpret_cast<const uint4 *>(from);
    else if (sizeof to == 8)
        *reinterpret_cast<uint2 *>(to.v) = *reinterpret_cast<const uint2 *>(from);
    else
        to.v[0] = from[0];
}

/* A thread takes V elements of a group through all chunks, with 128 bytes (of single values: eight)
 * on their way. Nine blocks a multiprocessor hold four states of 384 x 384 in BF16 at once. */
template <typename TY, typename TX, int V>
__global__ void __launch_bounds__(SCAN_THREADS, sizeof(TX) + sizeof(TY) == 4 ? 9 : 6)
    scan_kernel(TY *y, const TX *x, Scan s) {
    constexpr int AHEAD = V == 1 ? 8 : 128 / (V * (int)sizeof(TX));
    const int64_t at = ((int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x) * V;
    if (at >= s.width) return;
    const int64_t group = blockIdx.y;
    chain_wait();
    const float *f = s.f ? s.f + group % s.factors * s.chunks : NULL;
    const TX *from = x + group * s.chunks * s.width + at;
    TY *to = y ? y + group * s.chunks * s.width + at : NULL;
    float state[V] = {};
    if (s.start) pack_load<float, V>(state, s.start + group % s.starts * s.width + at);
    for (int c0 = 0; c0 < s.chunks; c0 += AHEAD) {
        Packed<TX, V> ahead[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (c0 + k < s.chunks) packed_load<TX, V>(ahead[k], from + (c0 + k) * s.width);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (c0 + k >= s.chunks) break;
            if (to && s.before) pack_store<TY, V>(to + (c0 + k) * s.width, state);
            const float keep = f ? f[c0 + k] : 1.0f;
#pragma unroll
            for (int i = 0; i < V; i++)
                state[i] = fmaf(s.alpha, to_float(ahead[k].v[i]), keep * state[i]);
            if (to && !s.before) pack_store<TY, V>(to + (c0 + k) * s.width, state);
        }
    }
    if (s.last) pack_store<float, V>(s.last + group * s.width + at, state);
}

static Status scan_factors(Device *d, Tensor m, Scan *s) {
    float *f;
    if (tensor_is_none(m)) return STATUS_OK;
    s->factors = (int)m.shape[0];
    TRY(scratch_take(d, sizeof(float) * m.shape[0] * m.shape[1], (void **)&f));
    chain_launch(d, true, dim3((unsigned)(m.shape[0] * m.shape[1])), dim3(THREADS), 0,
                 factor_kernel, f, (const float *)m.data, (int)m.shape[2]);
    s->f = f;
    return launched("state_scan");
}

static Status scan_run(Device *d, Tensor y, Tensor x, const Scan &s) {
    const int64_t groups = x.shape[0];
    const bool packed = s.width % 4 == 0 && is_aligned(y.data, 16) && is_aligned(x.data, 16) &&
                        is_aligned(s.start, 16) && is_aligned(s.last, 16);
    const int64_t per = SCAN_THREADS * (packed ? 4 : 1);
    const dim3 grid((unsigned)ceil_div(s.width, per), (unsigned)groups);
    if (groups > 65535) return status_set(STATUS_INTERNAL, "state_scan: too many groups");
    const DType out = tensor_is_none(y) ? DTYPE_F32 : y.dtype;
    WITH_ACT("state_scan", out, TY,
             WITH_ACT("state_scan", x.dtype, TX,
                      chain_launch(d, true, grid, dim3(SCAN_THREADS), 0,
                                   packed ? scan_kernel<TY, TX, 4> : scan_kernel<TY, TX, 1>,
                                   (TY *)y.data, (const TX *)x.data, s)));
    return launched("state_scan");
}

extern "C" Status state_scan_cuda(Device *d, Tensor y, Tensor last, Tensor x, Tensor m,
                                  Tensor start, float alpha, bool before) {
    if (tensor_count(x) == 0) return STATUS_OK;
    Scan s = {};
    s.width = x.shape[2], s.chunks = (int)x.shape[1];
    s.alpha = alpha, s.before = before;
    s.last = (float *)last.data;
    s.start = (const float *)start.data;
    s.starts = tensor_is_none(start) ? 1 : (int)start.shape[0];
    Status status = scan_factors(d, m, &s);
    if (status == STATUS_OK) status = scan_run(d, y, x, s);
    scratch_done(d);
    return status;
}

/* ---- steps ---------------------------------------------------------------------------------- */

#define COLUMNS 32
#define LANES   (THREADS / (COLUMNS / 4)) /* rows of a block at a time, four columns a thread */
#define HELD    12                        /* rows of a thread kept in registers: 384 */

typedef struct StepPart {
    float *w;
    void *y;
    const void *u;
    const float *before, *kept;
    int at;
    int64_t pitch;
} StepPart;

typedef struct StepParts {
    StepPart part[WEIGHT_PARTS];
    int rows, columns, befores, kepts;
    float sign, offset;
} StepParts;

/* Sums over the block's rows of each thread's V columns, the same value in all that share them. */
template <int V>
static __device__ __forceinline__ void column_sums(float (&sum)[V], float (*shared)[COLUMNS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int across = COLUMNS / V;
#pragma unroll
    for (int i = 0; i < V; i++)
#pragma unroll
        for (int mask = across; mask < 32; mask <<= 1)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
    if (lane < across)
#pragma unroll
        for (int i = 0; i < V; i++) shared[warp][lane * V + i] = sum[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++) {
        sum[i] = 0;
        for (int k = 0; k < THREADS / 32; k++) sum[i] += shared[k][lane % across * V + i];
    }
}

template <typename U, int V>
static __device__ __forceinline__ void moved_load(float (&m)[V], const float *before, const U *u,
                                                  float sign) {
    float step[V];
    pack_load<float, V>(m, before);
    pack_load<U, V>(step, u);
#pragma unroll
    for (int i = 0; i < V; i++) m[i] = fmaf(sign, step[i], m[i]);
}

template <int V>
static __device__ __forceinline__ void squares_add(float (&sum)[V], const float (&m)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] = fmaf(m[i], m[i], sum[i]);
}

template <typename T, int V>
static __device__ __forceinline__ void step_store(float *w, T *y, float (&m)[V],
                                                  const float (&scale)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) m[i] *= scale[i];
    pack_store<float, V>(w, m);
    pack_store<T, V>(y, m);
}

/* 32 columns of a matrix: a warp is 32 / (COLUMNS / V) rows of them. Up to ROWS rows a thread stay
 * in registers; of larger matrices all are read twice (ROWS 0). */
template <typename T, typename U, int V, int ROWS>
__global__ void __launch_bounds__(THREADS) step_kernel(StepParts s) {
    __shared__ float shared[THREADS / 32][COLUMNS];
    constexpr int across = COLUMNS / V, lanes = THREADS / across;
    const StepPart p = s.part[blockIdx.z];
    const int64_t o = blockIdx.y, size = (int64_t)s.rows * s.columns;
    const int c = blockIdx.x * COLUMNS + threadIdx.x % across * V, r0 = threadIdx.x / across;
    const bool real = c < s.columns;
    const float *before = p.before + o % s.befores * size + c;
    const U *u = (const U *)p.u + o * size + c;
    float *w = p.w + o * size + c;
    T *y = (T *)p.y + o * s.rows * p.pitch + p.at + c;
    float held[ROWS ? ROWS : 1][V], sum[V] = {}, scale[V];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int r = r0 + k * lanes;
        if (!real || r >= s.rows) continue;
        const int64_t at = (int64_t)r * s.columns;
        moved_load<U, V>(held[k], before + at, u + at, s.sign);
        squares_add<V>(sum, held[k]);
    }
    for (int r = r0; ROWS == 0 && s.offset > 0 && real && r < s.rows; r += lanes) {
        const int64_t at = (int64_t)r * s.columns;
        moved_load<U, V>(held[0], before + at, u + at, s.sign);
        squares_add<V>(sum, held[0]);
    }
    if (s.offset > 0) column_sums<V>(sum, shared);
    if (!real) return;
#pragma unroll
    for (int i = 0; i < V; i++)
        scale[i] = s.offset > 0
                       ? p.kept[o % s.kepts * s.columns + c + i] / (sqrtf(sum[i]) + s.offset)
                       : 1.0f;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int r = r0 + k * lanes;
        if (r >= s.rows) continue;
        step_store<T, V>(w + (int64_t)r * s.columns, y + r * p.pitch, held[k], scale);
    }
    for (int r = r0; ROWS == 0 && r < s.rows; r += lanes) {
        const int64_t at = (int64_t)r * s.columns;
        moved_load<U, V>(held[0], before + at, u + at, s.sign);
        step_store<T, V>(w + at, y + r * p.pitch, held[0], scale);
    }
}

template <typename T, typename U>
static void step_launch(Device *d, const StepParts &s, const dim3 grid, bool fours) {
    if (fours && s.rows <= HELD * LANES)
        step_kernel<T, U, 4, HELD><<<grid, THREADS, 0, stream_of(d)>>>(s);
    else if (fours)
        step_kernel<T, U, 4, 0><<<grid, THREADS, 0, stream_of(d)>>>(s);
    else
        step_kernel<T, U, 1, 0><<<grid, THREADS, 0, stream_of(d)>>>(s);
}

extern "C" Status chunk_step_cuda(Device *d, int parts, const ChunkStep *part, float sign,
                                  float offset) {
    if (parts < 1 || tensor_count(part[0].w) == 0) return STATUS_OK;
    if (parts > WEIGHT_PARTS || part[0].w.shape[0] > 65535)
        return status_set(STATUS_INTERNAL, "chunk_step: too many parts or matrices");
    StepParts s = {};
    bool fours = part[0].w.shape[2] % 4 == 0;
    s.rows = (int)part[0].w.shape[1], s.columns = (int)part[0].w.shape[2];
    s.befores = (int)part[0].before.shape[0];
    s.kepts = tensor_is_none(part[0].kept) ? 1 : (int)part[0].kept.shape[0];
    s.sign = sign, s.offset = offset;
    for (int i = 0; i < parts; i++) {
        const ChunkStep *p = &part[i];
        s.part[i].w = (float *)p->w.data, s.part[i].y = p->y.data, s.part[i].u = p->u.data;
        s.part[i].before = (const float *)p->before.data;
        s.part[i].kept = (const float *)p->kept.data;
        s.part[i].at = (int)p->at, s.part[i].pitch = p->y.shape[2];
        fours = fours && p->at % 4 == 0 && p->y.shape[2] % 4 == 0 && is_aligned(p->w.data, 16) &&
                is_aligned(p->y.data, 16) && is_aligned(p->u.data, 16) &&
                is_aligned(p->before.data, 16);
    }
    const dim3 grid((unsigned)ceil_div(s.columns, COLUMNS), (unsigned)part[0].w.shape[0],
                    (unsigned)parts);
    WITH_ACT("chunk_step", part[0].y.dtype, T,
             WITH_ACT("chunk_step", part[0].u.dtype, U, (step_launch<T, U>(d, s, grid, fours))));
    return launched("chunk_step");
}
