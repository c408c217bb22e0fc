/* 3x3 convolutions with padding 1: columns of the map and a product of matrices, or (conv3_mma.cu)
 * tensor cores on tiles of the map.
 */
#include "kernels/cuda/places.cuh"

#define THREADS 256

/* ---- columns -------------------------------------------------------------------------------- */

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) unfold_kernel(T *y, const T *x, Places p) {
    const int line = 9 * p.channels, packs = line / V;
    const int i = blockIdx.x * THREADS + threadIdx.x, place = i / packs, first = i % packs * V;
    if (place >= p.rows * p.columns) return;
    const int row = place / p.columns * p.stride - 1, column = place % p.columns * p.stride - 1;
    const int64_t image = (int64_t)p.height * p.width * p.channels;
    for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
        Pack<T, V> out;
#pragma unroll
        for (int k = 0; k < V; k++) {
            const int c = (first + k) / 9, t = (first + k) % 9;
            const int h = row + t / 3, w = column + t % 3;
            const bool inside = h >= 0 && h < p.height && w >= 0 && w < p.width;
            if (inside)
                out.v[k] = x[b * image + (int64_t)((h * p.width + w) * p.channels + c)];
            else
                from_float(&out.v[k], 0.0f);
        }
        *reinterpret_cast<Pack<T, V> *>(y + (b * p.rows * p.columns + place) * line + first) = out;
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) fold_kernel(Grad dx, const T *dy, Places p) {
    const int i = blockIdx.x * THREADS + threadIdx.x, q = i / p.channels, c = i % p.channels;
    if (q >= p.height * p.width) return;
    int from[9];
#pragma unroll
    for (int t = 0; t < 9; t++) from[t] = looking(p, q / p.width, q % p.width, t);
    for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y) {
        const T *sample = dy + b * p.rows * p.columns * 9 * p.channels;
        float sum[1] = {};
#pragma unroll
        for (int t = 0; t < 9; t++)
            if (from[t] >= 0)
                sum[0] += to_float(sample[(int64_t)from[t] * 9 * p.channels + 9 * c + t]);
        pack_put<T, 1>((T *)dx.t.data + b * p.height * p.width * p.channels + i, sum, dx.add);
    }
}

static void unfold(Device *d, Tensor y, Tensor x, const Places &p) {
    const bool packs = 9 * p.channels % 8 == 0 && is_aligned(y.data, 32);
    const int64_t each = (int64_t)p.rows * p.columns * 9 * p.channels / (packs ? 8 : 1);
    const dim3 grid((unsigned)ceil_div(each, THREADS), over_batch(p));
    if (x.dtype == DTYPE_F32 && packs)
        unfold_kernel<float, 8>
            <<<grid, THREADS, 0, stream_of(d)>>>((float *)y.data, (const float *)x.data, p);
    else if (x.dtype == DTYPE_F32)
        unfold_kernel<float, 1>
            <<<grid, THREADS, 0, stream_of(d)>>>((float *)y.data, (const float *)x.data, p);
    else if (packs)
        unfold_kernel<bf16, 8>
            <<<grid, THREADS, 0, stream_of(d)>>>((bf16 *)y.data, (const bf16 *)x.data, p);
    else
        unfold_kernel<bf16, 1>
            <<<grid, THREADS, 0, stream_of(d)>>>((bf16 *)y.data, (const bf16 *)x.data, p);
}

static void fold(Device *d, Grad dx, Tensor dy, const Places &p) {
    const dim3 grid((unsigned)ceil_div((int64_t)p.height * p.width * p.channels, THREADS),
                    over_batch(p));
    if (dy.dtype == DTYPE_F32)
        fold_kernel<float><<<grid, THREADS, 0, stream_of(d)>>>(dx, (const float *)dy.data, p);
    else
        fold_kernel<bf16><<<grid, THREADS, 0, stream_of(d)>>>(dx, (const bf16 *)dy.data, p);
}

/* ---- the convolution: columns of some samples at a time, and a product ------------------------
 */

/* Columns of so many bytes: one product reads what the other kernel left in the second-level cache.
 */
#define COLUMN_BYTES ((int64_t)32 << 20)

static int64_t part_of(const Places &p, DType dtype) {
    const int64_t each = (int64_t)p.rows * p.columns * 9 * p.channels * (int64_t)dtype_size(dtype);
    const int64_t part = each < COLUMN_BYTES ? COLUMN_BYTES / each : 1;
    return part < p.batch ? part : p.batch;
}

static Tensor rows_of(Tensor t) {
    return tensor_view2(t, tensor_rows(t), tensor_last(t));
}

/* Kernels that a part calls empty the scratch: its columns are taken again before each, at the same
 * place, and keep what they hold. */
static Status take_columns(Device *d, const Places &p, DType dtype, Tensor *out) {
    const int64_t shape[] = {p.batch * p.rows * p.columns, 9 * (int64_t)p.channels};
    return arena_tensor(&d->scratch, dtype, 2, shape, out);
}

static Status conv3(Device *d, Tensor y, Tensor x, Tensor w, int64_t stride) {
    const int64_t part = part_of(places_of(x, stride), x.dtype), batch = x.shape[0];
    const Tensor matrix = tensor_view2(w, w.shape[0], 9 * w.shape[1]);
    for (int64_t at = 0; at < batch; at += part) {
        const int64_t count = part < batch - at ? part : batch - at;
        const Tensor some = tensor_part(x, at, count);
        Tensor columns;
        TRY(take_columns(d, places_of(some, stride), x.dtype, &columns));
        unfold(d, columns, some, places_of(some, stride));
        TRY(launched("conv3"));
        TRY(linear_cuda(d, rows_of(tensor_part(y, at, count)), tensor_none(), columns, matrix,
                        tensor_none(), ACT_NONE));
    }
    return STATUS_OK;
}

extern "C" Status conv3_cuda(Device *d, Tensor y, Tensor x, Tensor w, int64_t stride) {
    if (tensor_count(x) == 0) return STATUS_OK;
    if (y.dtype != x.dtype || w.dtype != x.dtype) return refuse_dtype("conv3", y.dtype);
    if (x.dtype != DTYPE_F32 && x.dtype != DTYPE_BF16) return refuse_dtype("conv3", x.dtype);
    const Places p = places_of(x, stride);
    TRY(fits_sample("conv3", p));
    if (conv3_mma_fits(d, &p, w.shape[0], x.dtype))
        return conv3_mma(d, grad_set(y), x, w, p, false);
    const Status s = conv3(d, y, x, w, stride);
    scratch_done(d);
    return s;
}

/* Of some samples: dw from the columns of x, then the columns' own gradient in their place. */
static Status part_backward(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor matrix,
                            const Places &p) {
    Tensor columns;
    TRY(take_columns(d, p, x.dtype, &columns));
    if (dw.t.data) {
        unfold(d, columns, x, p);
        TRY(launched("conv3_backward"));
        TRY(linear_dw_cuda(d, dw, grad_none(), rows_of(dy), columns));
        scratch_done(d);
    }
    if (!dx.t.data) return STATUS_OK;
    if (dw.t.data) TRY(take_columns(d, p, x.dtype, &columns));
    TRY(linear_dx_cuda(d, grad_set(columns), grad_none(), rows_of(dy), matrix, tensor_none(),
                       ACT_NONE));
    fold(d, dx, columns, p);
    return launched("conv3_backward");
}

static Status backward(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w, int64_t stride) {
    const int64_t part = part_of(places_of(x, stride), x.dtype), batch = x.shape[0];
    const Tensor matrix = tensor_view2(w, w.shape[0], 9 * w.shape[1]);
    if (dw.t.data) dw.t = tensor_view2(dw.t, w.shape[0], 9 * w.shape[1]);
    for (int64_t at = 0; at < batch; at += part) {
        const int64_t count = part < batch - at ? part : batch - at;
        const Tensor some = tensor_part(x, at, count);
        Grad to = dx;
        if (dx.t.data) to.t = tensor_part(dx.t, at, count);
        scratch_done(d);
        TRY(part_backward(d, to, dw, tensor_part(dy, at, count), some, matrix,
                          places_of(some, stride)));
        dw.add = true;
    }
    return STATUS_OK;
}

extern "C" Status conv3_backward_cuda(Device *d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w,
                                      int64_t stride) {
    if (tensor_count(x) == 0 || (!dx.t.data && !dw.t.data)) return STATUS_OK;
    if (dy.dtype != x.dtype || w.dtype != x.dtype) return refuse_dtype("conv3_backward", dy.dtype);
    if (x.dtype != DTYPE_F32 && x.dtype != DTYPE_BF16)
        return refuse_dtype("conv3_backward", x.dtype);
    const Places p = places_of(x, stride);
    TRY(fits_sample("conv3_backward", p));
    if (conv3_mma_fits(d, &p, w.shape[0], x.dtype)) {
        if (dx.t.data) TRY(conv3_mma(d, dx, dy, w, p, true));
        return dw.t.data ? conv3_mma_dw(d, dw, dy, x, p) : STATUS_OK;
    }
    const Status s = backward(d, dx, dw, dy, x, w, stride);
    scratch_done(d);
    return s;
}
