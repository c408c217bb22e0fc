/* Layer norms folded into the products behind them: the weights, and what the fused products
 * (gemm_fused.cu) leave to do.
 */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_fused.cuh"

#define WARPS 4

/* ---- weights -------------------------------------------------------------------------------- */

/* The next BF16 number from x towards `sum` = 0, where sum has x in it: by how much that changes x;
 * 0 where x is 0. */
static __device__ __forceinline__ float last_digit(float x, float sum) {
    const bool larger = (x < 0) == (sum > 0); /* in magnitude */
    const float next = __uint_as_float(__float_as_uint(x) + (larger ? 0x10000u : ~0xffffu));
    return x == 0 ? 0 : next - x;
}

/* Moves elements of a row of BF16 numbers by one last digit each, from the front, until their sum
 * `left` is within half of one. Lanes go by turns of 32 columns; a lane's turn to move depends on
 * what the lanes before it would. */
static __device__ __forceinline__ void row_settle(bf16 *row, int width, float left) {
    const int lane = threadIdx.x;
    for (int c0 = 0; c0 < width && left != 0; c0 += 32) {
        const int c = c0 + lane;
        const float value = c < width ? to_float(row[c]) : 0, step = last_digit(value, left);
        float before = step; /* the sum over the lanes in front */
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, before, i);
            if (lane >= i) before += other;
        }
        before -= step;
        const float rest = left + before;
        const bool moves = step != 0 && (rest > 0) == (left > 0) && 2 * fabsf(rest) > fabsf(step);
        if (moves) from_float(row + c, value + step);
        left += warp_sum(moves ? step : 0.0f);
    }
}
static __device__ __forceinline__ void row_settle(float *, int, float) {}

/* A warp for each row of the weights. */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    norm_fold_kernel(T *folded, float *offset, const T *w, const float *bias, const float *gain,
                     const float *shift, int outputs, int width) {
    const int row = blockIdx.x * WARPS + threadIdx.y, lane = threadIdx.x;
    if (row >= outputs) return;
    const T *from = w + (int64_t)row * width;
    T *to = folded + (int64_t)row * width;
    float sum = 0, moved = 0, left = 0;
    for (int c = lane; c < width; c += 32) {
        const float v = to_float(from[c]);
        sum += v * gain[c];
        moved += v * shift[c];
    }
    const float mean = warp_sum(sum) / width;
    moved = warp_sum(moved);
    if (lane == 0) offset[row] = moved + (bias ? bias[row] : 0.0f);
    for (int c = lane; c < width; c += 32) {
        from_float(to + c, to_float(from[c]) * gain[c] - mean);
        left += to_float(to[c]);
    }
    row_settle(to, width, warp_sum(left));
}

extern "C" Status norm_fold_cuda(Device *d, Tensor folded, Tensor offset, Tensor w, Tensor bias,
                                 Tensor gain, Tensor shift) {
    if (tensor_count(w) == 0) return STATUS_OK;
    if (folded.dtype != w.dtype) return refuse_dtype("norm_fold", folded.dtype);
    const int outputs = (int)w.shape[0], width = (int)w.shape[1];
    const dim3 block(32, WARPS);
    WITH_ACT("norm_fold", w.dtype, T,
             norm_fold_kernel<T><<<(unsigned)ceil_div(outputs, WARPS), block, 0, stream_of(d)>>>(
                 (T *)folded.data, (float *)offset.data, (const T *)w.data,
                 (const float *)bias.data, (const float *)gain.data, (const float *)shift.data,
                 outputs, width));
    return launched("norm_fold");
}

/* ---- products ------------------------------------------------------------------------------- */

/* y = act(rstd y + bias) where the product came without them. */
template <typename T>
__global__ void __launch_bounds__(256) rate_rows_kernel(T *y, const float *stats, const float *bias,
                                                        bool gelu, int64_t rows, int64_t width) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * width; i += step) {
        const float v = fmaf(to_float(y[i]), stats[2 * (i / width) + 1], bias[i % width]);
        from_float(y + i, gelu ? gelu_quick(v) : v);
    }
}

static FusedCall fused_call(Tensor y, Tensor x, Tensor w, Tensor bias, FusedKind kind) {
    FusedCall f = {};
    f.m = tensor_rows(x), f.n = w.shape[0], f.k = w.shape[1];
    f.a = x.data, f.b = w.data, f.y = y.data;
    f.bias = (const float *)bias.data;
    f.kind = kind;
    return f;
}

extern "C" Status linear_rated_cuda(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w,
                                    Tensor bias, Activation act) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || y.dtype != x.dtype) return refuse_dtype("linear_rated", w.dtype);
    FusedCall f = fused_call(y, x, w, bias, act == ACT_GELU ? FUSED_GELU : FUSED_PLAIN);
    f.stats = (const float *)stats.data;
    if (x.dtype == DTYPE_BF16 && gemm_fused_fits(d, &f)) return gemm_fused(d, &f);
    const GemmCall g =
        gemm_call(f.m, f.n, f.k, x.data, false, w.data, true, y.data, x.dtype, y.dtype, false);
    const Status status = gemm_run(d, &g);
    scratch_done(d);
    TRY(status);
    const unsigned blocks = (unsigned)(8 * backend_of(d)->sm_count);
    WITH_ACT("linear_rated", y.dtype, T,
             rate_rows_kernel<T><<<blocks, 256, 0, stream_of(d)>>>((T *)y.data, f.stats, f.bias,
                                                                   act == ACT_GELU, f.m, f.n));
    return launched("linear_rated");
}

/* ---- statistics of a product's rows --------------------------------------------------------- */

/* Mean and 1/sqrt(variance + eps) of a row from the sums over its parts, put together as Chan,
 * Golub and LeVeque do ("Updating Formulae and a Pairwise Algorithm for Computing Sample
 * Variances", 1979). */
__global__ void __launch_bounds__(128)
    moments_join_kernel(float2 *stats, const float2 *moments, int rows, int parts, int width,
                        float eps) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float2 *part = moments + (int64_t)row * parts;
    float sum = 0, square = 0;
    for (int i = 0; i < parts; i++) sum += part[i].x;
    const float mean = sum / width;
    for (int i = 0; i < parts; i++) {
        const float count = min(GEMM_FUSED_PART, width - i * GEMM_FUSED_PART);
        const float own = part[i].x / count, off = own - mean;
        square += fmaxf(fmaf(-own, part[i].x, part[i].y), 0.0f) + count * off * off;
    }
    stats[row] = make_float2(mean, rsqrtf(square / width + eps));
}

static Status residual_stats_run(Device *d, Tensor stats, FusedCall *f, float eps) {
    const int64_t parts = gemm_fused_moments(f->n);
    TRY(scratch_take(d, 2 * sizeof(float) * f->m * parts, (void **)&f->moments));
    TRY(gemm_fused(d, f));
    moments_join_kernel<<<(unsigned)ceil_div(f->m, 128), 128, 0, stream_of(d)>>>(
        (float2 *)stats.data, (const float2 *)f->moments, (int)f->m, (int)parts, (int)f->n, eps);
    return launched("linear_residual_stats");
}

extern "C" Status linear_residual_stats_cuda(Device *d, Tensor y, Tensor stats, Tensor x, Tensor w,
                                             Tensor bias, Tensor residual, float eps) {
    if (tensor_count(y) == 0) return STATUS_OK;
    FusedCall f = fused_call(y, x, w, bias, FUSED_RESIDUAL);
    f.other = residual.data;
    if (x.dtype == DTYPE_BF16 && w.dtype == DTYPE_BF16 && y.dtype == DTYPE_BF16 &&
        residual.dtype == DTYPE_BF16 && is_aligned(stats.data, 8) && gemm_fused_fits(d, &f)) {
        const Status status = residual_stats_run(d, stats, &f, eps);
        scratch_done(d);
        return status;
    }
    TRY(linear_residual_cuda(d, y, x, w, bias, residual, tensor_none()));
    return layernorm_cuda(d, tensor_none(), stats, y, tensor_none(), tensor_none(), eps);
}
