/* Layer norm over the last dimension: a warp per row. Rows of up to 32 * PACKS packs stay in
 * registers between the mean, the variance and the result, so memory is touched once; longer or odd
 * rows are read again from cache.
 */
#include "kernels/cuda/common.cuh"

#define WARPS 8

/* V (4 or 8) floats at a 16-byte boundary. */
template <int V>
static __device__ __forceinline__ void floats_load(float (&out)[V], const float *p) {
#pragma unroll
    for (int q = 0; q < V; q += 4) {
        const float4 f = *reinterpret_cast<const float4 *>(p + q);
        out[q] = f.x, out[q + 1] = f.y, out[q + 2] = f.z, out[q + 3] = f.w;
    }
}

/* ---- layer norm, forward -------------------------------------------------------------------- */

template <typename T, int PACKS, int V>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_kernel(T *y, float *stats, const T *x, const float *w, const float *b, int64_t rows,
                     int width, float eps) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const int lane = threadIdx.x;
    const T *in = x + row * width;
    float v[PACKS][V];
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        if (c < width) pack_load<T, V>(v[p], in + c);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (c >= width) v[p][i] = 0;
            sum += v[p][i];
        }
    }
    const float mean = warp_sum(sum) / width;
    float square = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const bool inside = (p * 32 + lane) * V < width;
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[p][i] -= mean;
            if (inside) square += v[p][i] * v[p][i];
        }
    }
    const float rstd = rsqrtf(warp_sum(square) / width + eps);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        if (c >= width) break;
        float wv[V], bv[V], out[V];
        floats_load<V>(wv, w + c);
        floats_load<V>(bv, b + c);
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = v[p][i] * rstd * wv[i] + bv[i];
        pack_store<T, V>(y + row * width + c, out);
    }
    if (stats && lane == 0) {
        stats[2 * row] = mean;
        stats[2 * row + 1] = rstd;
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_any_kernel(T *y, float *stats, const T *x, const float *w, const float *b,
                         int64_t rows, int64_t width, float eps) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const T *in = x + row * width;
    float sum = 0, square = 0;
    for (int64_t c = threadIdx.x; c < width; c += 32) sum += to_float(in[c]);
    const float mean = warp_sum(sum) / width;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(in[c]) - mean;
        square += u * u;
    }
    const float rstd = rsqrtf(warp_sum(square) / width + eps);
    for (int64_t c = threadIdx.x; c < width; c += 32)
        from_float(y + row * width + c, (to_float(in[c]) - mean) * rstd * w[c] + b[c]);
    if (stats && threadIdx.x == 0) {
        stats[2 * row] = mean;
        stats[2 * row + 1] = rstd;
    }
}

/* Packs of V per lane that hold a row; 0: the row takes the general kernel. */
static int row_packs(int64_t width, int V) {
    if (width % V || width > 1024) return 0;
    const int packs = (int)ceil_div(width, 32 * V);
    return packs <= 4 ? packs : packs <= 6 ? 6 : 8;
}

template <typename T, int PACKS>
static void layernorm_launch(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                             float eps) {
    const int V = 16 / sizeof(T);
    const int64_t rows = tensor_rows(x);
    const dim3 block(32, WARPS);
    layernorm_kernel<T, PACKS, V><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
        (T *)y.data, (float *)stats.data, (const T *)x.data, (const float *)w.data,
        (const float *)b.data, rows, (int)tensor_last(x), eps);
}

template <typename T>
static void layernorm_any(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                          float eps) {
    const int64_t rows = tensor_rows(x);
    const dim3 block(32, WARPS);
    layernorm_any_kernel<T><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
        (T *)y.data, (float *)stats.data, (const T *)x.data, (const float *)w.data,
        (const float *)b.data, rows, tensor_last(x), eps);
}

template <typename T>
static void layernorm_pick(Device *d, bool aligned, Tensor y, Tensor stats, Tensor x, Tensor w,
                           Tensor b, float eps) {
    const bool f32 = sizeof(T) == sizeof(float);
    switch (aligned ? row_packs(tensor_last(x), 16 / sizeof(T)) : 0) {
    case 1:
        return layernorm_launch<T, 1>(d, y, stats, x, w, b, eps);
    case 2:
        return layernorm_launch<T, 2>(d, y, stats, x, w, b, eps);
    case 3:
        return layernorm_launch<T, 3>(d, y, stats, x, w, b, eps);
    case 4:
        return layernorm_launch<T, 4>(d, y, stats, x, w, b, eps);
    case 6:
        return layernorm_launch < T, f32 ? 6 : 4 > (d, y, stats, x, w, b, eps);
    case 8:
        return layernorm_launch < T, f32 ? 8 : 4 > (d, y, stats, x, w, b, eps);
    default:
        return layernorm_any<T>(d, y, stats, x, w, b, eps);
    }
}

extern "C" Status layernorm_cuda(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                                 float eps) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("layernorm", y.dtype);
    const bool aligned = is_aligned(x.data, 16) && is_aligned(y.data, 16) &&
                         is_aligned(w.data, 16) && is_aligned(b.data, 16);
    WITH_ACT("layernorm", x.dtype, T, layernorm_pick<T>(d, aligned, y, stats, x, w, b, eps));
    return launched("layernorm");
}

/* ---- layer norm, backward ------------------------------------------------------------------- */

/* A thread's 16 bytes of dy and x as they lie in memory: the next row's are under way while this
 * one is worked on. */
typedef struct RowPart {
    uint4 dy, x;
    float mean, rstd;
} RowPart;

/* Element i of 16 bytes of T. */
template <typename T> static __device__ __forceinline__ float raw_value(const uint4 &raw, int i) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    if (sizeof(T) == sizeof(float)) return __uint_as_float(words[i]);
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

template <typename T>
static __device__ __forceinline__ void
row_fetch(RowPart &r, const T *dy, const T *x, const float *stats, int64_t row, int width, int c) {
    if (c < width) {
        r.dy = *reinterpret_cast<const uint4 *>(dy + row * width + c);
        r.x = *reinterpret_cast<const uint4 *>(x + row * width + c);
    }
    const float2 s = *reinterpret_cast<const float2 *>(stats + 2 * row);
    r.mean = s.x;
    r.rstd = s.y;
}

/* Sums of (a, b) over the warps of a row, the same in every thread; `shared` has 2 x 8 pairs per
 * row of threads, used in turn, so that one barrier per call is enough. */
static __device__ __forceinline__ void row_sums(float &a, float &b, float2 *shared, int turn) {
    const int warps = blockDim.x / 32;
    a = warp_sum(a);
    b = warp_sum(b);
    if (warps == 1) return;
    float2 *at = shared + (threadIdx.y * 2 + turn) * 8;
    if (threadIdx.x % 32 == 0) at[threadIdx.x / 32] = make_float2(a, b);
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
    a = b = 0;
    for (int w = 0; w < warps; w++) {
        a += at[w].x;
        b += at[w].y;
    }
}

/* Block: threads x = columns (V each) of a row, y = rows. partial[block][2][width]: its rows
 * summed. */
template <typename T, int V>
__global__ void __launch_bounds__(384, 2)
    layernorm_backward_kernel(Grad dx, float *partial, const T *dy, const T *x, const float *w,
                              const float *stats, int64_t rows, int width) {
    extern __shared__ float sums[]; /* [2][width] */
    __shared__ float2 shared[16 * 12];
    const int c = threadIdx.x * V;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const float inverse = 1.0f / width;
    float dw[V] = {}, db[V] = {}, wv[V] = {};
    if (c < width) floats_load<V>(wv, w + c);
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    RowPart now, next = {};
    if (row < rows) row_fetch<T>(next, dy, x, stats, row, width, c);
    for (int turn = 0; row < rows; row += step, turn ^= 1) {
        now = next;
        if (row + step < rows) row_fetch<T>(next, dy, x, stats, row + step, width, c);
        uint4 old = {};
        T *to = (T *)dx.t.data + row * width + c;
        if (dx.add && c < width) old = *reinterpret_cast<const uint4 *>(to);
        float u[V], n[V], sum_u = 0, sum_un = 0; /* u = dy w, n = the normalised x */
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float g = raw_value<T>(now.dy, i);
            n[i] = (raw_value<T>(now.x, i) - now.mean) * now.rstd;
            dw[i] += g * n[i];
            db[i] += g;
            u[i] = g * wv[i];
            sum_u += u[i];
            sum_un += u[i] * n[i];
        }
        if (!dx.t.data) continue;
        row_sums(sum_u, sum_un, shared, turn);
        if (c >= width) continue;
        sum_u *= inverse;
        sum_un *= inverse;
#pragma unroll
        for (int i = 0; i < V; i++)
            u[i] =
                now.rstd * (u[i] - sum_u - n[i] * sum_un) + (dx.add ? raw_value<T>(old, i) : 0.0f);
        pack_store<T, V>(to, u);
    }
    if (!partial) return;
    for (int y = 0; y < (int)blockDim.y; y++) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            if ((int)threadIdx.y != y || c >= width) break;
            sums[c + i] = y ? sums[c + i] + dw[i] : dw[i];
            sums[width + c + i] = y ? sums[width + c + i] + db[i] : db[i];
        }
        __syncthreads();
    }
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < 2 * width;
         i += blockDim.x * blockDim.y)
        partial[(int64_t)blockIdx.x * 2 * width + i] = sums[i];
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_dx_any_kernel(Grad dx, const T *dy, const T *x, const float *w, const float *stats,
                            int64_t rows, int64_t width) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= rows) return;
    const float mean = stats[2 * row], rstd = stats[2 * row + 1];
    float sum_u = 0, sum_un = 0;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(dy[row * width + c]) * w[c];
        sum_u += u;
        sum_un += u * (to_float(x[row * width + c]) - mean) * rstd;
    }
    sum_u = warp_sum(sum_u) / width;
    sum_un = warp_sum(sum_un) / width;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        const float u = to_float(dy[row * width + c]) * w[c];
        const float n = (to_float(x[row * width + c]) - mean) * rstd;
        float out[1] = {rstd * (u - sum_u - n * sum_un)};
        pack_put<T, 1>((T *)dx.t.data + row * width + c, out, dx.add);
    }
}

/* partial[blockIdx.y][2][width] over the rows blockIdx.y, blockIdx.y + gridDim.y, ... */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_dw_any_kernel(float *partial, const T *dy, const T *x, const float *stats,
                            int64_t rows, int64_t width) {
    __shared__ float sums[2][WARPS][32];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float dw = 0, db = 0;
    if (c < width) {
        for (int64_t row = (int64_t)blockIdx.y * WARPS + threadIdx.y; row < rows;
             row += (int64_t)gridDim.y * WARPS) {
            const float g = to_float(dy[row * width + c]);
            dw += g * (to_float(x[row * width + c]) - stats[2 * row]) * stats[2 * row + 1];
            db += g;
        }
    }
    sums[0][threadIdx.y][threadIdx.x] = dw;
    sums[1][threadIdx.y][threadIdx.x] = db;
    __syncthreads();
    if (threadIdx.y > 1 || c >= width) return;
    float sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += sums[threadIdx.y][warp][threadIdx.x];
    partial[((int64_t)blockIdx.y * 2 + threadIdx.y) * width + c] = sum;
}

/* Warps for a row of 16-byte parts (at most 8), rows per block. */
template <typename T> static dim3 backward_block(int64_t width) {
    const int warps = (int)ceil_div(width * (int64_t)sizeof(T), 512);
    return dim3(32 * warps, warps > 12 ? 1 : 12 / warps);
}

template <typename T>
static void layernorm_backward_fast(Device *d, unsigned grid, Grad dx, float *partial, Tensor dy,
                                    Tensor x, Tensor w, Tensor stats) {
    const int width = (int)tensor_last(x);
    const size_t shared = 2 * sizeof(float) * width;
    layernorm_backward_kernel<T, 16 / sizeof(T)>
        <<<grid, backward_block<T>(width), shared, stream_of(d)>>>(
            dx, partial, (const T *)dy.data, (const T *)x.data, (const float *)w.data,
            (const float *)stats.data, tensor_rows(x), width);
}

template <typename T>
static void layernorm_backward_any(Device *d, unsigned parts, Grad dx, float *partial, Tensor dy,
                                   Tensor x, Tensor w, Tensor stats) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    const dim3 block(32, WARPS);
    if (dx.t.data)
        layernorm_dx_any_kernel<T><<<(unsigned)ceil_div(rows, WARPS), block, 0, stream_of(d)>>>(
            dx, (const T *)dy.data, (const T *)x.data, (const float *)w.data,
            (const float *)stats.data, rows, width);
    if (partial)
        layernorm_dw_any_kernel<T>
            <<<dim3((unsigned)ceil_div(width, 32), parts), block, 0, stream_of(d)>>>(
                partial, (const T *)dy.data, (const T *)x.data, (const float *)stats.data, rows,
                width);
}

extern "C" Status layernorm_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x,
                                          Tensor w, Tensor stats) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    const bool sums = dw.t.data || db.t.data;
    if (tensor_count(x) == 0 || (!sums && !dx.t.data)) return STATUS_OK;
    if (dy.dtype != x.dtype) return refuse_dtype("layernorm_backward", dy.dtype);
    const bool aligned = is_aligned(x.data, 16) && is_aligned(dy.data, 16) &&
                         is_aligned(w.data, 16) && is_aligned(dx.t.data, 16) &&
                         is_aligned(stats.data, 8);
    const bool fast = aligned && width * (int64_t)dtype_size(x.dtype) % 16 == 0 &&
                      width * (int64_t)dtype_size(x.dtype) <= 8 * 512;
    const int64_t most = 2 * backend_of(d)->sm_count, want = ceil_div(rows, WARPS);
    const unsigned grid = (unsigned)(want < most ? want : most);
    float *partial = NULL;
    if (sums) TRY(scratch_take(d, sizeof(float) * 2 * width * grid, (void **)&partial));
    WITH_ACT("layernorm_backward", x.dtype, T,
             if (fast) layernorm_backward_fast<T>(d, grid, dx, partial, dy, x, w, stats);
             else layernorm_backward_any<T>(d, grid, dx, partial, dy, x, w, stats));
    Status status = launched("layernorm_backward");
    if (status == STATUS_OK) status = reduce_partials(d, dw, partial, grid, 2 * width, 1.0f);
    if (status == STATUS_OK && sums)
        status = reduce_partials(d, db, partial + width, grid, 2 * width, 1.0f);
    scratch_done(d);
    return status;
}
