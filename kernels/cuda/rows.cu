/* Over the last dimension: root-mean-square norm, softmax, inner products of rows (lact_nvs.md
 * 3.2, 3.3, 5). A warp per row, packs of 16 bytes where width and addresses allow; a row is read
 * again from cache.
 */
#include "kernels/cuda/chain.cuh"

#define WARPS 8
#define PARTS 128 /* most blocks that sum the gradient of a weight */

static dim3 row_block() {
    return dim3(32, WARPS);
}
static unsigned row_grid(int64_t rows) {
    return (unsigned)ceil_div(rows, WARPS);
}
static __device__ __forceinline__ int64_t row_of_warp() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.y;
}

/* Whether rows of T may be read in packs: width and both addresses; b may be NULL. */
template <typename T> static bool in_packs(int64_t width, const void *a, const void *b) {
    return width % (int64_t)(16 / sizeof(T)) == 0 && is_aligned(a, 16) && is_aligned(b, 16);
}

/* Sum of a b over the row's warp, the same value in each lane. */
template <typename T, int V>
static __device__ __forceinline__ float row_product(const T *a, const T *b, int64_t width) {
    float sum = 0, u[V], v[V];
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(u, a + c);
        pack_load<T, V>(v, b + c);
#pragma unroll
        for (int i = 0; i < V; i++) sum += u[i] * v[i];
    }
    return warp_sum(sum);
}

/* ---- root-mean-square norm ------------------------------------------------------------------ */

template <typename T, int V>
__global__ void __launch_bounds__(32 * WARPS)
    rmsnorm_kernel(T *y, float *rstd, const T *x, const float *w, int64_t rows, int64_t width,
                   float eps) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= rows) return;
    const T *in = x + row * width;
    const float rate = rsqrtf(row_product<T, V>(in, in, width) / width + eps);
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        float v[V], wv[V];
        pack_load<T, V>(v, in + c);
        line_load<V>(wv, w + c);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = v[i] * rate * wv[i];
        pack_store<T, V>(y + row * width + c, v);
    }
    if (rstd && threadIdx.x == 0) rstd[row] = rate;
}

/* Rows of at most PACKS packs a lane: read once, all of it under way at once. */
template <typename T, int V, int PACKS>
__global__ void __launch_bounds__(32 * WARPS)
    rmsnorm_held_kernel(T *y, float *rstd, const T *x, const float *w, int64_t rows, int64_t width,
                        float eps) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= rows) return;
    float v[PACKS][V], sum = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        if (c < width) pack_load<T, V>(v[k], x + row * width + c);
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        if ((k * 32 + (int)threadIdx.x) * V >= width) continue;
#pragma unroll
        for (int i = 0; i < V; i++) sum += v[k][i] * v[k][i];
    }
    const float rate = rsqrtf(warp_sum(sum) / width + eps);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * 32 + threadIdx.x) * V;
        if (c >= width) continue;
        float wv[V];
        line_load<V>(wv, w + c);
#pragma unroll
        for (int i = 0; i < V; i++) v[k][i] = v[k][i] * rate * wv[i];
        pack_store<T, V>(y + row * width + c, v[k]);
    }
    if (rstd && threadIdx.x == 0) rstd[row] = rate;
}

template <typename T, int V>
static void (*rmsnorm_kernel_for(int64_t width))(T *, float *, const T *, const float *, int64_t,
                                                 int64_t, float) {
    if (width <= 3 * 32 * V) return rmsnorm_held_kernel<T, V, 3>;
    return rmsnorm_kernel<T, V>;
}

extern "C" Status rmsnorm_cuda(Device *d, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("rmsnorm", y.dtype);
    WITH_ACT("rmsnorm", x.dtype, T, const int V = 16 / sizeof(T);
             const bool packs = in_packs<T>(width, y.data, x.data) && is_aligned(w.data, 16);
             chain_launch(d, rows <= CHAIN_ROWS, row_grid(rows), row_block(), 0,
                          packs ? rmsnorm_kernel_for<T, V>(width) : rmsnorm_kernel<T, 1>,
                          (T *)y.data, (float *)rstd.data, (const T *)x.data, (const float *)w.data,
                          rows, width, eps));
    return launched("rmsnorm");
}

/* A warp takes every gridDim.x * WARPS-th row, at most PACKS packs a lane, and sums dw of its
 * columns on the way: partial[blockIdx.x][width]. All of it is read once. */
template <typename T, int V, int PACKS>
__global__ void __launch_bounds__(32 * WARPS, 2)
    rmsnorm_backward_kernel(T *dx, bool add, float *partial, T *y, const T *dy, const T *x,
                            const float *w, const float *rstd, int64_t rows, int width) {
    __shared__ float sums[WARPS][32 * V];
    float dw[PACKS][V] = {};
    for (int64_t row = row_of_warp(); row < rows; row += (int64_t)gridDim.x * WARPS) {
        float u[PACKS][V], v[PACKS][V], sum = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * 32 + threadIdx.x) * V;
            if (c >= width) continue;
            pack_load<T, V>(v[k], x + row * width + c);
            pack_load<T, V>(u[k], dy + row * width + c);
        }
        const float rate = rstd[row];
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * 32 + threadIdx.x) * V;
            if (c >= width) continue;
            float wv[V];
            line_load<V>(wv, w + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw[k][i] = fmaf(u[k][i] * v[k][i], rate, dw[k][i]);
                u[k][i] *= wv[i];
                sum = fmaf(u[k][i], v[k][i], sum);
            }
        }
        const float slope = rate * rate * rate * warp_sum(sum) / width;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * 32 + threadIdx.x) * V;
            if (!dx || c >= width) continue;
#pragma unroll
            for (int i = 0; i < V; i++) u[k][i] = rate * u[k][i] - slope * v[k][i];
            pack_put<T, V>(dx + row * width + c, u[k], add);
        }
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * 32 + threadIdx.x) * V;
            if (!y || c >= width) continue;
            float wv[V];
            line_load<V>(wv, w + c);
#pragma unroll
            for (int i = 0; i < V; i++) v[k][i] = v[k][i] * rate * wv[i];
            pack_store<T, V>(y + row * width + c, v[k]);
        }
    }
    if (!partial) return;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < V; i++) sums[threadIdx.y][threadIdx.x * V + i] = dw[k][i];
        __syncthreads();
        for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * V; i += 32 * WARPS) {
            const int c = k * 32 * V + i;
            if (c >= width) continue;
            float total = 0;
            for (int warp = 0; warp < WARPS; warp++) total += sums[warp][i];
            partial[(int64_t)blockIdx.x * width + c] = total;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    rmsnorm_dx_kernel(T *dx, bool add, const T *dy, const T *x, const float *w, const float *rstd,
                      int64_t rows, int64_t width) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    const int64_t base = row * width;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < width; c += 32)
        sum += to_float(x[base + c]) * to_float(dy[base + c]) * w[c];
    const float rate = rstd[row], slope = rate * rate * rate * warp_sum(sum) / width;
    for (int64_t c = threadIdx.x; c < width; c += 32) {
        float out[1] = {rate * to_float(dy[base + c]) * w[c] - slope * to_float(x[base + c])};
        pack_put<T, 1>(dx + base + c, out, add);
    }
}

/* partial[blockIdx.y][width] over the rows blockIdx.y * WARPS + y, and every gridDim.y * WARPS. */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    rmsnorm_dw_kernel(float *partial, const T *dy, const T *x, const float *rstd, int64_t rows,
                      int64_t width) {
    __shared__ float sums[WARPS][32];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float dw = 0;
    if (c < width) {
        for (int64_t row = (int64_t)blockIdx.y * WARPS + threadIdx.y; row < rows;
             row += (int64_t)gridDim.y * WARPS)
            dw += to_float(dy[row * width + c]) * to_float(x[row * width + c]) * rstd[row];
    }
    sums[threadIdx.y][threadIdx.x] = dw;
    __syncthreads();
    if (threadIdx.y > 0 || c >= width) return;
    float sum = 0;
    for (int warp = 0; warp < WARPS; warp++) sum += sums[warp][threadIdx.x];
    partial[(int64_t)blockIdx.y * width + c] = sum;
}

template <typename T>
static void rmsnorm_backward_launch(Device *d, Grad dx, float *partial, unsigned parts, Tensor dy,
                                    Tensor x, Tensor w, Tensor rstd) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    const T *gradient = (const T *)dy.data, *in = (const T *)x.data;
    const float *rate = (const float *)rstd.data;
    if (dx.t.data)
        rmsnorm_dx_kernel<T><<<row_grid(rows), row_block(), 0, stream_of(d)>>>(
            (T *)dx.t.data, dx.add, gradient, in, (const float *)w.data, rate, rows, width);
    if (partial)
        rmsnorm_dw_kernel<T>
            <<<dim3((unsigned)ceil_div(width, 32), parts), row_block(), 0, stream_of(d)>>>(
                partial, gradient, in, rate, rows, width);
}

/* Packs of a lane that the kernel which reads everything once would need; 0 where it cannot. */
static int once_packs(Tensor x, Tensor dy, Tensor w, Grad dx) {
    const int64_t width = tensor_last(x), pack = 16 / (int64_t)dtype_size(x.dtype);
    const bool packed = width % pack == 0 && is_aligned(x.data, 16) && is_aligned(dy.data, 16) &&
                        is_aligned(w.data, 16) && is_aligned(dx.t.data, 16);
    const int64_t packs = ceil_div(width, 32 * pack);
    return packed && packs <= 3 ? (int)packs : 0;
}

template <typename T>
static void rmsnorm_backward_once(Device *d, Grad dx, float *partial, unsigned grid, int packs,
                                  Tensor y, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    const int V = 16 / sizeof(T), width = (int)tensor_last(x);
    const int64_t rows = tensor_rows(x);
    T *to = (T *)dx.t.data, *again = (T *)y.data;
    const T *gradient = (const T *)dy.data, *in = (const T *)x.data;
    const float *weight = (const float *)w.data, *rate = (const float *)rstd.data;
    if (packs == 1)
        rmsnorm_backward_kernel<T, V, 1><<<grid, row_block(), 0, stream_of(d)>>>(
            to, dx.add, partial, again, gradient, in, weight, rate, rows, width);
    else
        rmsnorm_backward_kernel<T, V, 3><<<grid, row_block(), 0, stream_of(d)>>>(
            to, dx.add, partial, again, gradient, in, weight, rate, rows, width);
}

/* y = w x r */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    rmsnorm_again_kernel(T *y, const T *x, const float *w, const float *rstd, int64_t rows,
                         int64_t width) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    for (int64_t c = threadIdx.x; c < width; c += 32)
        from_float(y + row * width + c, to_float(x[row * width + c]) * rstd[row] * w[c]);
}

extern "C" Status rmsnorm_backward_cuda(Device *d, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x,
                                        Tensor w, Tensor rstd) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), wanted = ceil_div(rows, WARPS);
    if (tensor_count(x) == 0 || (!dx.t.data && !dw.t.data && !y.data)) return STATUS_OK;
    if (dy.dtype != x.dtype || (y.data && y.dtype != x.dtype) ||
        (dx.t.data && dx.t.dtype != x.dtype))
        return refuse_dtype("rmsnorm_backward", dy.dtype);
    const int packs = is_aligned(y.data, 16) ? once_packs(x, dy, w, dx) : 0;
    const int64_t most = packs ? 2 * backend_of(d)->sm_count : PARTS;
    const unsigned parts = (unsigned)(wanted < most ? wanted : most);
    float *partial = NULL;
    if (dw.t.data) TRY(scratch_take(d, sizeof(float) * width * parts, (void **)&partial));
    WITH_ACT("rmsnorm_backward", x.dtype, T,
             if (packs) rmsnorm_backward_once<T>(d, dx, partial, parts, packs, y, dy, x, w, rstd);
             else rmsnorm_backward_launch<T>(d, dx, partial, parts, dy, x, w, rstd);
             if (!packs && y.data)
                 rmsnorm_again_kernel<T><<<row_grid(rows), row_block(), 0, stream_of(d)>>>(
                     (T *)y.data, (const T *)x.data, (const float *)w.data,
                     (const float *)rstd.data, rows, width));
    Status status = launched("rmsnorm_backward");
    if (status == STATUS_OK) status = reduce_partials(d, dw, partial, parts, width, 1.0f);
    scratch_done(d);
    return status;
}

/* ---- softmax -------------------------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(32 * WARPS)
    softmax_kernel(T *y, const T *x, int64_t rows, int64_t width, float scale) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    const T *in = x + row * width;
    float top = -INFINITY, sum = 0, v[V];
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) top = fmaxf(top, scale * v[i]);
    }
    top = warp_max(top);
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) sum += expf(scale * v[i] - top);
    }
    const float share = 1.0f / warp_sum(sum);
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        pack_load<T, V>(v, in + c);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] = expf(scale * v[i] - top) * share;
        pack_store<T, V>(y + row * width + c, v);
    }
}

extern "C" Status softmax_cuda(Device *d, Tensor y, Tensor x, float scale) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype) return refuse_dtype("softmax", y.dtype);
    const cudaStream_t stream = stream_of(d);
    WITH_ACT("softmax", x.dtype, T, const int V = 16 / sizeof(T);
             if (in_packs<T>(width, y.data, x.data)) softmax_kernel<T, V>
             <<<row_grid(rows), row_block(), 0, stream>>>((T *)y.data, (const T *)x.data, rows,
                                                          width, scale);
             else softmax_kernel<T, 1><<<row_grid(rows), row_block(), 0, stream>>>(
                 (T *)y.data, (const T *)x.data, rows, width, scale));
    return launched("softmax");
}

template <typename T, int V>
__global__ void __launch_bounds__(32 * WARPS)
    softmax_backward_kernel(T *dx, bool add, const T *dy, const T *y, int64_t rows, int64_t width,
                            float scale) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    const int64_t base = row * width;
    const float mean = row_product<T, V>(dy + base, y + base, width);
    for (int64_t c = threadIdx.x * V; c < width; c += 32 * V) {
        float g[V], p[V];
        pack_load<T, V>(g, dy + base + c);
        pack_load<T, V>(p, y + base + c);
#pragma unroll
        for (int i = 0; i < V; i++) g[i] = scale * p[i] * (g[i] - mean);
        pack_put<T, V>(dx + base + c, g, add);
    }
}

extern "C" Status softmax_backward_cuda(Device *d, Grad dx, Tensor dy, Tensor y, float scale) {
    const int64_t rows = tensor_rows(y), width = tensor_last(y);
    if (tensor_is_none(dx.t) || tensor_count(y) == 0) return STATUS_OK;
    if (dy.dtype != y.dtype || dx.t.dtype != y.dtype)
        return refuse_dtype("softmax_backward", dy.dtype);
    const cudaStream_t stream = stream_of(d);
    WITH_ACT(
        "softmax_backward", y.dtype, T, const int V = 16 / sizeof(T);
        if (in_packs<T>(width, dx.t.data, y.data) && is_aligned(dy.data, 16))
            softmax_backward_kernel<T, V><<<row_grid(rows), row_block(), 0, stream>>>(
                (T *)dx.t.data, dx.add, (const T *)dy.data, (const T *)y.data, rows, width, scale);
        else softmax_backward_kernel<T, 1><<<row_grid(rows), row_block(), 0, stream>>>(
            (T *)dx.t.data, dx.add, (const T *)dy.data, (const T *)y.data, rows, width, scale));
    return launched("softmax_backward");
}

/* ---- inner products of rows ----------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(32 * WARPS)
    row_dot_kernel(float *s, bool add, const T *x, const T *y, int64_t rows, int64_t width) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    const float dot = row_product<T, V>(x + row * width, y + row * width, width);
    if (threadIdx.x == 0) s[row] = add ? s[row] + dot : dot;
}

extern "C" Status row_dot_cuda(Device *d, Grad s, Tensor x, Tensor y) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x);
    if (tensor_is_none(s.t) || tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype || s.t.dtype != DTYPE_F32) return refuse_dtype("row_dot", y.dtype);
    const cudaStream_t stream = stream_of(d);
    WITH_ACT("row_dot", x.dtype, T, const int V = 16 / sizeof(T);
             if (in_packs<T>(width, x.data, y.data))
                 row_dot_kernel<T, V><<<row_grid(rows), row_block(), 0, stream>>>(
                     (float *)s.t.data, s.add, (const T *)x.data, (const T *)y.data, rows, width);
             else row_dot_kernel<T, 1><<<row_grid(rows), row_block(), 0, stream>>>(
                 (float *)s.t.data, s.add, (const T *)x.data, (const T *)y.data, rows, width));
    return launched("row_dot");
}
