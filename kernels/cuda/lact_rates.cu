/* Rates of the LaCT layer's tokens (lact_nvs.md 3.3, 5.5). With as few rates as a layer of one head
 * has, their weights stay in registers while rows go by; the gradients of rows and weights come
 * from one reading.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/norm.cuh"

#define WARPS      8
#define THREADS    (32 * WARPS)
#define RATE_PARTS 96   /* most blocks that sum a rate's weights */
#define RATES      4    /* that one block sums */
#define BACK       384  /* threads of a block that makes both gradients */
#define BACK_ROWS  128  /* whose slopes it has in shared memory */
#define BACK_WIDTH 2048 /* of a row, at most */

static dim3 row_block() {
    return dim3(32, WARPS);
}
static unsigned row_grid(int64_t rows) {
    return (unsigned)ceil_div(rows, WARPS);
}
static __device__ __forceinline__ int64_t row_of_warp() {
    return (int64_t)blockIdx.x * WARPS + threadIdx.y;
}

/* ---- rates ---------------------------------------------------------------------------------- */

/* log(1 + e^x), full precision: the rate is as small as e^x and its logarithm counts. */
static __device__ __forceinline__ float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* A warp takes a row of x, and four rates at a time. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    token_rates_kernel(float *eta, const T *x, const float *w, const float *b, float shift,
                       int64_t rows, int width, int rates) {
    const int64_t row = row_of_warp();
    chain_wait();
    if (row >= rows) return;
    const T *in = x + row * width;
    for (int j = 0; j < rates; j += RATES) {
        float sum[RATES] = {};
        for (int c = threadIdx.x * V; c < width; c += 32 * V) {
            float v[V];
            pack_load<T, V>(v, in + c);
#pragma unroll
            for (int k = 0; k < RATES; k++) {
                if (j + k >= rates) continue;
                float line[V];
                line_load<V>(line, w + (int64_t)(j + k) * width + c);
#pragma unroll
                for (int i = 0; i < V; i++) sum[k] = fmaf(v[i], line[i], sum[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < RATES; k++) {
            const float z = warp_sum(sum[k]);
            if (j + k < rates && threadIdx.x == k)
                eta[row * rates + j + k] = softplus(z + (b[j + k] + shift));
        }
    }
}

/* Many rows of at most PACKS packs a lane, a warp for each in turn; COUNT rates. */
template <typename T, int V, int PACKS, int COUNT>
__global__ void __launch_bounds__(THREADS)
    token_rates_many_kernel(float *eta, const T *x, const float *w, const float *b, float shift,
                            int64_t rows, int width) {
    const int lane = threadIdx.x;
    float line[COUNT][PACKS][V] = {};
    uint4 next[PACKS] = {};
    int64_t row = row_of_warp();
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * 32 + lane) * V;
        if (c >= width) break;
#pragma unroll
        for (int k = 0; k < COUNT; k++) floats_load<V>(line[k][p], w + (int64_t)k * width + c);
        if (row < rows) next[p] = *reinterpret_cast<const uint4 *>(x + row * width + c);
    }
    const float mine = lane < COUNT ? b[lane] + shift : 0.0f;
    const int64_t step = (int64_t)gridDim.x * WARPS;
    for (; row < rows; row += step) {
        uint4 now[PACKS];
        float sum[COUNT] = {};
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int c = (p * 32 + lane) * V;
            now[p] = next[p];
            if (c < width && row + step < rows)
                next[p] = *reinterpret_cast<const uint4 *>(x + (row + step) * width + c);
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
            for (int i = 0; i < V; i++)
#pragma unroll
                for (int k = 0; k < COUNT; k++)
                    sum[k] = fmaf(raw_value<T>(now[p], i), line[k][p][i], sum[k]);
        float z = 0;
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const float total = warp_sum(sum[k]);
            if (lane == k) z = total;
        }
        if (lane < COUNT) eta[row * COUNT + lane] = softplus(z + mine);
    }
}

/* Whether it was done. */
template <typename T>
static bool token_rates_many(Device *d, Tensor eta, Tensor x, Tensor w, Tensor b, float shift) {
    const int V = 16 / sizeof(T);
    const int64_t rows = tensor_rows(x), width = tensor_last(x), most = 2 * backend_of(d)->sm_count;
    const bool fits = rows > CHAIN_ROWS && tensor_last(eta) == 3 && width % V == 0 &&
                      width <= 32 * V * 3 && is_aligned(x.data, 16) && is_aligned(w.data, 16);
    const int64_t want = ceil_div(rows, WARPS);
    if (!fits) return false;
    token_rates_many_kernel<T, V, 3, 3>
        <<<(unsigned)(want < most ? want : most), row_block(), 0, stream_of(d)>>>(
            (float *)eta.data, (const T *)x.data, (const float *)w.data, (const float *)b.data,
            shift, rows, (int)width);
    return true;
}

extern "C" Status token_rates_cuda(Device *d, Tensor eta, Tensor x, Tensor w, Tensor b,
                                   float shift) {
    const int64_t rows = tensor_rows(x);
    const int width = (int)tensor_last(x), rates = (int)tensor_last(eta);
    if (tensor_count(eta) == 0) return STATUS_OK;
    bool done = false;
    WITH_ACT("token_rates", x.dtype, T, done = token_rates_many<T>(d, eta, x, w, b, shift));
    if (done) return launched("token_rates");
    WITH_ACT("token_rates", x.dtype, T, const int V = 16 / sizeof(T);
             const bool packs = width % V == 0 && is_aligned(x.data, 16) && is_aligned(w.data, 16);
             chain_launch(d, rows <= CHAIN_ROWS, row_grid(rows), row_block(), 0,
                          packs ? token_rates_kernel<T, V> : token_rates_kernel<T, 1>,
                          (float *)eta.data, (const T *)x.data, (const float *)w.data,
                          (const float *)b.data, shift, rows, width, rates));
    return launched("token_rates");
}

/* Rates and their gradients; dz of one. */
typedef struct RateSlopes {
    const float *eta, *deta;
} RateSlopes;
static __device__ __forceinline__ float rate_slope(const RateSlopes &s, int64_t i) {
    return -expm1f(-s.eta[i]) * s.deta[i];
}

template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    rates_dx_kernel(T *dx, bool add, RateSlopes z, const float *w, int64_t rows, int width,
                    int rates) {
    const int64_t row = row_of_warp();
    if (row >= rows) return;
    for (int c = threadIdx.x * V; c < width; c += 32 * V) {
        float sum[V] = {};
        for (int j = 0; j < rates; j++) {
            const float factor = rate_slope(z, row * rates + j);
            float line[V];
            line_load<V>(line, w + (int64_t)j * width + c);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] = fmaf(factor, line[i], sum[i]);
        }
        pack_put<T, V>(dx + row * width + c, sum, add);
    }
}

/* partial[blockIdx.y][J][C+1]: sums of dz' [x|1] over its rows; blockIdx.z takes RATES of the J.
 * Threads x: columns, y: rows. */
template <typename T, int V>
__global__ void __launch_bounds__(THREADS)
    rates_dw_kernel(float *partial, RateSlopes z, const T *x, int64_t rows, int width, int rates) {
    __shared__ float sums[WARPS][32][V];
    const int c = (blockIdx.x * 32 + threadIdx.x) * V, first = blockIdx.z * RATES;
    float sum[RATES][V] = {}, ones[RATES] = {};
    const int mine = first + threadIdx.x; /* the lane works out one of the row's factors */
#pragma unroll 4
    for (int64_t r = (int64_t)blockIdx.y * WARPS + threadIdx.y; r < rows;
         r += (int64_t)gridDim.y * WARPS) {
        float v[V] = {};
        if (c < width) pack_load<T, V>(v, x + r * width + c);
        const float own =
            threadIdx.x < RATES && mine < rates ? rate_slope(z, r * rates + mine) : 0.0f;
#pragma unroll
        for (int k = 0; k < RATES; k++) {
            const float factor = __shfl_sync(0xffffffffu, own, k);
            ones[k] += factor;
#pragma unroll
            for (int i = 0; i < V; i++) sum[k][i] = fmaf(factor, v[i], sum[k][i]);
        }
    }
    float *to = partial + (int64_t)blockIdx.y * rates * (width + 1);
#pragma unroll
    for (int k = 0; k < RATES; k++) {
        const int j = first + k;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < V; i++) sums[threadIdx.y][threadIdx.x][i] = sum[k][i];
        __syncthreads();
        for (int i = threadIdx.y; i < V; i += WARPS) {
            float total = 0;
            for (int y = 0; y < WARPS; y++) total += sums[y][threadIdx.x][i];
            if (j < rates && c + i < width) to[(int64_t)j * width + c + i] = total;
        }
        __syncthreads();
        if (threadIdx.x == 0) sums[threadIdx.y][0][0] = ones[k];
        __syncthreads();
        if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0 && j < rates) {
            float total = 0;
            for (int y = 0; y < WARPS; y++) total += sums[y][0][0];
            to[(int64_t)rates * width + j] = total;
        }
    }
}

/* Both gradients; a thread has V columns of every blockDim.y-th row, and the slopes of BACK_ROWS
 * rows lie in shared memory. partial[block] as above. */
template <typename T, int V>
__global__ void __launch_bounds__(BACK)
    rates_both_kernel(T *__restrict__ dx, bool add, float *partial, RateSlopes z,
                      const T *__restrict__ x, const float *w, int rows, int width, int rates) {
    __shared__ float4 slopes[BACK_ROWS];
    extern __shared__ float sums[]; /* [RATES][width + 1] */
    const int c = threadIdx.x * V, thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int threads = blockDim.x * blockDim.y;
    float line[RATES][V] = {}, sum[RATES][V] = {}, ones[RATES] = {};
#pragma unroll
    for (int k = 0; k < RATES; k++)
        if (k < rates && c < width) floats_load<V>(line[k], w + (int64_t)k * width + c);
    for (int first = blockIdx.x * BACK_ROWS; first < rows; first += gridDim.x * BACK_ROWS) {
        const int count = min(BACK_ROWS, rows - first);
        __syncthreads();
        for (int i = thread; i < BACK_ROWS * RATES; i += threads) {
            const int r = i / RATES, k = i % RATES;
            reinterpret_cast<float *>(slopes)[i] =
                r < count && k < rates ? rate_slope(z, (int64_t)(first + r) * rates + k) : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (int r = threadIdx.y; r < count; r += blockDim.y) {
            const float4 four = slopes[r];
            const float factor[RATES] = {four.x, four.y, four.z, four.w};
            float v[V] = {}, out[V] = {};
            const int64_t at = (int64_t)(first + r) * width + c;
            if (c < width) pack_load<T, V>(v, x + at);
#pragma unroll
            for (int k = 0; k < RATES; k++) {
                ones[k] += factor[k];
#pragma unroll
                for (int i = 0; i < V; i++) {
                    out[i] = fmaf(factor[k], line[k][i], out[i]);
                    sum[k][i] = fmaf(factor[k], v[i], sum[k][i]);
                }
            }
            if (c < width) pack_put<T, V>(dx + at, out, add);
        }
    }
    const int pitch = width + 1;
    for (int y = 0; y < (int)blockDim.y; y++) {
        __syncthreads();
        if ((int)threadIdx.y != y) continue;
#pragma unroll
        for (int k = 0; k < RATES; k++) {
#pragma unroll
            for (int i = 0; i < V; i++)
                if (c < width)
                    sums[k * pitch + c + i] = sum[k][i] + (y ? sums[k * pitch + c + i] : 0);
            if (c == 0) sums[k * pitch + width] = ones[k] + (y ? sums[k * pitch + width] : 0);
        }
    }
    __syncthreads();
    float *to = partial + (int64_t)blockIdx.x * rates * pitch;
    for (int i = thread; i < rates * pitch; i += threads) {
        const int k = i / pitch, column = i % pitch;
        to[column < width ? k * width + column : rates * width + k] = sums[i];
    }
}

/* Whether one reading makes both gradients. */
static bool rates_both_fit(Device *d, Grad dx, bool sums, Tensor x, Tensor w) {
    const int64_t width = tensor_last(x), rows = tensor_rows(x), V = 16 / dtype_size(x.dtype);
    return dx.t.data && sums && w.shape[0] <= RATES && width % V == 0 && width <= BACK_WIDTH &&
           width <= BACK * V && rows < INT32_MAX && is_aligned(x.data, 16) &&
           is_aligned(dx.t.data, 16) && is_aligned(w.data, 16) && backend_of(d)->sm_count > 0;
}

static unsigned rates_both_grid(Device *d, int64_t rows) {
    const int64_t want = ceil_div(rows, BACK_ROWS), most = backend_of(d)->sm_count;
    return (unsigned)(want < most ? want : most);
}

template <typename T>
static void rates_both_launch(Device *d, Grad dx, float *partial, RateSlopes z, Tensor x,
                              Tensor w) {
    const int V = 16 / sizeof(T), width = (int)tensor_last(x), rates = (int)w.shape[0];
    const unsigned across = (unsigned)(32 * ceil_div(width, 32 * V));
    const dim3 block(across, BACK / across);
    rates_both_kernel<T, V>
        <<<rates_both_grid(d, tensor_rows(x)), block, sizeof(float) * RATES *(width + 1),
           stream_of(d)>>>((T *)dx.t.data, dx.add, partial, z, (const T *)x.data,
                           (const float *)w.data, (int)tensor_rows(x), width, rates);
}

template <typename T>
static void rates_backward_launch(Device *d, Grad dx, float *partial, unsigned parts, RateSlopes z,
                                  Tensor x, Tensor w) {
    const int64_t rows = tensor_rows(x), V = 16 / (int64_t)sizeof(T);
    const int width = (int)tensor_last(x), rates = (int)w.shape[0];
    const bool packed = width % V == 0 && is_aligned(x.data, 16) && is_aligned(dx.t.data, 16) &&
                        is_aligned(w.data, 16);
    const cudaStream_t stream = stream_of(d);
    T *to = (T *)dx.t.data;
    const T *from = (const T *)x.data;
    const float *weight = (const float *)w.data;
    const int across = packed ? 32 * (int)V : 32;
    const dim3 grid((unsigned)ceil_div(width, across), parts, (unsigned)ceil_div(rates, RATES));
    if (to && packed)
        rates_dx_kernel<T, 16 / sizeof(T)>
            <<<row_grid(rows), row_block(), 0, stream>>>(to, dx.add, z, weight, rows, width, rates);
    else if (to)
        rates_dx_kernel<T, 1>
            <<<row_grid(rows), row_block(), 0, stream>>>(to, dx.add, z, weight, rows, width, rates);
    if (partial && packed)
        rates_dw_kernel<T, 16 / sizeof(T)>
            <<<grid, row_block(), 0, stream>>>(partial, z, from, rows, width, rates);
    else if (partial)
        rates_dw_kernel<T, 1>
            <<<grid, row_block(), 0, stream>>>(partial, z, from, rows, width, rates);
}

static Status rates_backward(Device *d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta,
                             Tensor x, Tensor w) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), rates = tensor_last(eta);
    const int64_t sums = rates * (width + 1), want = ceil_div(rows, WARPS);
    const bool both = rates_both_fit(d, dx, dw.t.data || db.t.data, x, w);
    const int64_t parts = both ? rates_both_grid(d, rows) : want < RATE_PARTS ? want : RATE_PARTS;
    float *partial = NULL;
    if (dw.t.data || db.t.data)
        TRY(scratch_take(d, sizeof(float) * parts * sums, (void **)&partial));
    const RateSlopes z = {(const float *)eta.data, (const float *)deta.data};
    WITH_ACT("token_rates_backward", x.dtype, T,
             if (both) rates_both_launch<T>(d, dx, partial, z, x, w);
             else rates_backward_launch<T>(d, dx, partial, (unsigned)parts, z, x, w));
    TRY(launched("token_rates_backward"));
    if (!partial) return STATUS_OK;
    return reduce_partials_two(d, dw, db, partial, partial + rates * width, parts, sums);
}

extern "C" Status token_rates_backward_cuda(Device *d, Grad dx, Grad dw, Grad db, Tensor deta,
                                            Tensor eta, Tensor x, Tensor w) {
    if (tensor_count(eta) == 0 || (!dx.t.data && !dw.t.data && !db.t.data)) return STATUS_OK;
    if (dx.t.data && dx.t.dtype != x.dtype) return refuse_dtype("token_rates_backward", x.dtype);
    const Status status = rates_backward(d, dx, dw, db, deta, eta, x, w);
    scratch_done(d);
    return status;
}
