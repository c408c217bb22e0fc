/* Layer norm over the last dimension, and the soft norm of inner gradients.
 *
 * Layer norm: a warp per row. Rows of up to 32 * PACKS packs stay in registers between the mean,
 * the variance and the result, so memory is touched once; longer or odd rows are read again from
 * cache.
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

/* ---- layer norm, forward
 * ------------------------------------------------------------------------- */

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
    if (width % V || width > 32 * 8 * V) return 0;
    const int packs = (int)ceil_div(width, 32 * V);
    return packs <= 4 ? packs : 8;
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

extern "C" Status layernorm_cuda(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b,
                                 float eps) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("layernorm", y.dtype);
    const bool aligned = is_aligned(x.data, 16) && is_aligned(y.data, 16) &&
                         is_aligned(w.data, 16) && is_aligned(b.data, 16);
    const int packs = aligned ? row_packs(tensor_last(x), x.dtype == DTYPE_F32 ? 4 : 8) : 0;
    WITH_ACT(
        "layernorm", x.dtype, T, switch (packs) {
            case 1:
                layernorm_launch<T, 1>(d, y, stats, x, w, b, eps);
                break;
            case 2:
                layernorm_launch<T, 2>(d, y, stats, x, w, b, eps);
                break;
            case 3:
                layernorm_launch<T, 3>(d, y, stats, x, w, b, eps);
                break;
            case 4:
                layernorm_launch<T, 4>(d, y, stats, x, w, b, eps);
                break;
            case 8:
                layernorm_launch<T, 8>(d, y, stats, x, w, b, eps);
                break;
            default:
                layernorm_any<T>(d, y, stats, x, w, b, eps);
        });
    return launched("layernorm");
}

/* ---- layer norm, backward
 * ------------------------------------------------------------------------ */

/* dx of one row, and the row's terms of dw and db added to the lane's own columns. */
template <typename T, int PACKS, int V>
static __device__ __forceinline__ void
layernorm_row_backward(Grad dx, float (&dw)[PACKS][V], float (&db)[PACKS][V], const T *dy,
                       const T *x, const float *w, float mean, float rstd, int64_t row, int width) {
    const int lane = threadIdx.x;
    float u[PACKS][V], n[PACKS][V]; /* dy w and the normalised x */
    float sum_u = 0, sum_un = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        float wv[V] = {};
#pragma unroll
        for (int i = 0; i < V; i++) u[p][i] = n[p][i] = 0;
        if (c < width) {
            pack_load<T, V>(u[p], dy + row * width + c);
            pack_load<T, V>(n[p], x + row * width + c);
            floats_load<V>(wv, w + c);
        }
#pragma unroll
        for (int i = 0; i < V; i++) {
            n[p][i] = (n[p][i] - mean) * rstd;
            dw[p][i] += u[p][i] * n[p][i];
            db[p][i] += u[p][i];
            u[p][i] *= wv[i];
            sum_u += u[p][i];
            sum_un += u[p][i] * n[p][i];
        }
    }
    if (!dx.t.data) return;
    sum_u = warp_sum(sum_u) / width;
    sum_un = warp_sum(sum_un) / width;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        if (c >= width) break;
        float out[V];
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = rstd * (u[p][i] - sum_u - n[p][i] * sum_un);
        pack_put<T, V>((T *)dx.t.data + row * width + c, out, dx.add);
    }
}

/* partial[block][2][width]: the block's rows summed, warps joined in order. */
template <typename T, int PACKS, int V>
__global__ void __launch_bounds__(32 * WARPS)
    layernorm_backward_kernel(Grad dx, float *partial, const T *dy, const T *x, const float *w,
                              const float *stats, int64_t rows, int width) {
    extern __shared__ float sums[]; /* [2][width] */
    float dw[PACKS][V] = {}, db[PACKS][V] = {};
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y; row < rows;
         row += (int64_t)gridDim.x * WARPS)
        layernorm_row_backward<T, PACKS, V>(dx, dw, db, dy, x, w, stats[2 * row],
                                            stats[2 * row + 1], row, width);
    if (!partial) return;
    for (int warp = 0; warp < WARPS; warp++) {
        if ((int)threadIdx.y == warp) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                const int c = (p * 32 + threadIdx.x) * V;
                if (c >= width) break;
#pragma unroll
                for (int i = 0; i < V; i++) {
                    sums[c + i] = warp ? sums[c + i] + dw[p][i] : dw[p][i];
                    sums[width + c + i] = warp ? sums[width + c + i] + db[p][i] : db[p][i];
                }
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.y * 32 + threadIdx.x; c < 2 * width; c += 32 * WARPS)
        partial[(int64_t)blockIdx.x * 2 * width + c] = sums[c];
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

template <typename T, int PACKS>
static void layernorm_backward_launch(Device *d, unsigned grid, Grad dx, float *partial, Tensor dy,
                                      Tensor x, Tensor w, Tensor stats) {
    const int V = 16 / sizeof(T);
    const int width = (int)tensor_last(x);
    const dim3 block(32, WARPS);
    const size_t shared = 2 * sizeof(float) * width;
    layernorm_backward_kernel<T, PACKS, V><<<grid, block, shared, stream_of(d)>>>(
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
                         is_aligned(w.data, 16) && is_aligned(dx.t.data, 16);
    const int packs = aligned ? row_packs(width, x.dtype == DTYPE_F32 ? 4 : 8) : 0;
    const int64_t most = 2 * backend_of(d)->sm_count, want = ceil_div(rows, WARPS);
    const unsigned grid = (unsigned)(want < most ? want : most);
    float *partial = NULL;
    if (sums) TRY(scratch_take(d, sizeof(float) * 2 * width * grid, (void **)&partial));
    WITH_ACT(
        "layernorm_backward", x.dtype, T, switch (packs) {
            case 1:
                layernorm_backward_launch<T, 1>(d, grid, dx, partial, dy, x, w, stats);
                break;
            case 2:
                layernorm_backward_launch<T, 2>(d, grid, dx, partial, dy, x, w, stats);
                break;
            case 3:
                layernorm_backward_launch<T, 3>(d, grid, dx, partial, dy, x, w, stats);
                break;
            case 4:
                layernorm_backward_launch<T, 4>(d, grid, dx, partial, dy, x, w, stats);
                break;
            case 8:
                layernorm_backward_launch<T, 8>(d, grid, dx, partial, dy, x, w, stats);
                break;
            default:
                layernorm_backward_any<T>(d, grid, dx, partial, dy, x, w, stats);
        });
    Status status = launched("layernorm_backward");
    if (status == STATUS_OK) status = reduce_partials(d, dw, partial, grid, 2 * width, 1.0f);
    if (status == STATUS_OK && sums)
        status = reduce_partials(d, db, partial + width, grid, 2 * width, 1.0f);
    scratch_done(d);
    return status;
}
