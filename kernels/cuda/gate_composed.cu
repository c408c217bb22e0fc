/* Gated products of all sizes (fastweight.md 4.1): a product into scratch, a pass over it, and the
 * product of what comes of it.
 */
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/gemm.cuh"

/* ---- the gate -------------------------------------------------------------------------------- */

#define PASS_THREADS 256
#define AT_ONCE      ((int64_t)1 << 30) /* bytes of products in scratch */

template <typename T, int V>
__global__ void __launch_bounds__(PASS_THREADS)
    gate_pass_kernel(T *p, const T *ab, const float *rate, int64_t rows, int width) {
    const int64_t i = ((int64_t)blockIdx.x * PASS_THREADS + threadIdx.x) * V;
    if (i >= rows * width) return;
    const int64_t row = i / width, from = i + row * width;
    const float eta = rate ? rate[row] : 1.0f;
    float a[V], c[V];
    pack_load<T, V>(a, ab + from);
    pack_load<T, V>(c, ab + from + width);
#pragma unroll
    for (int k = 0; k < V; k++) a[k] = eta * a[k] * logistic(a[k]) * c[k];
    pack_store<T, V>(p + i, a);
}

static Tensor rows_from(Tensor x, int64_t at, int64_t a, int64_t b, int64_t c, int64_t d) {
    char *data = (char *)x.data + at * (int64_t)dtype_size(x.dtype);
    return tensor_4d(data, x.dtype, a, b, c, d);
}

/* All rows of p from their products. */
static Status gate_pass(Device *d, Tensor p, Tensor ab, const float *rate) {
    const int64_t rows = tensor_rows(p), h = tensor_last(p);
    const bool packed = h * (int64_t)dtype_size(p.dtype) % 16 == 0 && is_aligned(p.data, 16);
    WITH_ACT("gate_product", p.dtype, T, constexpr int V = 16 / sizeof(T);
             const unsigned blocks = (unsigned)ceil_div(rows * h, PASS_THREADS * (packed ? V : 1));
             T *to = (T *)p.data; const T *in = (const T *)ab.data;
             if (packed) gate_pass_kernel<T, V>
             <<<blocks, PASS_THREADS, 0, stream_of(d)>>>(to, in, rate, rows, (int)h);
             else gate_pass_kernel<T, 1>
             <<<blocks, PASS_THREADS, 0, stream_of(d)>>>(to, in, rate, rows, (int)h));
    return launched("gate_product");
}

/* Groups [g, g + n) of all; n is 1 or all there are. */
static Status gate_groups(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate, int64_t g,
                          int64_t n) {
    const int64_t tokens = x.shape[2], e = x.shape[3], h = p.shape[3], rows = n * tokens;
    const int64_t heads = w.shape[0] * w.shape[1];
    const bool all = n > 1;
    Tensor ab;
    const int64_t shape[] = {all ? x.shape[0] : 1, all ? x.shape[1] : 1, tokens, 2 * h};
    TRY(arena_tensor(&d->scratch, x.dtype, 4, shape, &ab));
    const Tensor from = rows_from(x, g * tokens * e, shape[0], shape[1], tokens, e);
    const Tensor own = all ? w : rows_from(w, g % heads * e * 2 * h, 1, 1, e, 2 * h);
    TRY(matmul_cuda(d, grad_set(ab), from, false, own, false,
                    1.0f)); /* empties scratch: see below */
    const float *eta = (const float *)rate.data;
    if (eta) eta += g * tokens;
    return gate_pass(d, rows_from(p, g * tokens * h, 1, 1, rows, h), ab, eta);
}

Status gate_product_composed(Device *d, Tensor p, Tensor x, Tensor w, Tensor rate) {
    const int64_t groups = x.shape[0] * x.shape[1], matrices = w.shape[0];
    const int64_t bytes = 2 * tensor_rows(p) * p.shape[3] * (int64_t)dtype_size(p.dtype);
    const bool whole = bytes <= AT_ONCE && (matrices == 1 || matrices == x.shape[0]);
    const int64_t n = whole ? groups : 1;
    for (int64_t i = 0; i < groups; i += n) TRY(gate_groups(d, p, x, w, rate, i, n));
    return STATUS_OK;
}

/* ---- with what reads p, or is written from it: one group after the other -------------------- */

typedef struct Between {
    Tensor ab, p; /* of one group */
} Between;

static Status between_take(Device *d, Tensor x, Tensor w, Between *b) {
    const int64_t tokens = x.shape[2], h = w.shape[3] / 2;
    const int64_t wide[] = {1, 1, tokens, 2 * h}, narrow[] = {1, 1, tokens, h};
    TRY(arena_tensor(&d->scratch, x.dtype, 4, wide, &b->ab));
    return arena_tensor(&d->scratch, x.dtype, 4, narrow, &b->p);
}

/* p of group g. */
static Status between_fill(Device *d, const Between *b, Tensor x, Tensor w, Tensor rate,
                           int64_t g) {
    const int64_t tokens = x.shape[2], e = x.shape[3], wide = w.shape[3];
    const int64_t heads = w.shape[0] * w.shape[1];
    const Tensor from = rows_from(x, g * tokens * e, 1, 1, tokens, e);
    const Tensor own = rows_from(w, g % heads * e * wide, 1, 1, e, wide);
    const float *eta = (const float *)rate.data;
    if (eta) eta += g * tokens;
    if (gate_fits(d, b->p, from, own))
        return gate_launch(d, b->p, from, own, tensor_1d((void *)eta, DTYPE_F32, tokens));
    const GemmCall call = gemm_call(tokens, wide, e, from.data, false, own.data, false, b->ab.data,
                                    x.dtype, x.dtype, false);
    TRY(gemm_run(d, &call));
    return gate_pass(d, b->p, b->ab, eta);
}

Status gate_read_composed(Device *d, Tensor y, Tensor x, Tensor w, Tensor s) {
    const int64_t chunks = s.shape[1], h = s.shape[2], o = s.shape[3], tokens = x.shape[2];
    Between b;
    TRY(between_take(d, x, w, &b));
    for (int64_t g = 0; g < s.shape[0]; g++) {
        const Tensor state = rows_from(s, g * chunks * h * o, 1, chunks, h, o);
        const Tensor to = rows_from(y, g * tokens * o, 1, 1, tokens, o);
        GemmCall call = gemm_call(tokens / chunks, o, h, b.p.data, false, state.data, false,
                                  to.data, x.dtype, y.dtype, false);
        call.batch = chunks;
        call.step_a = call.m * h, call.step_b = h * o, call.step_c = call.m * o;
        TRY(between_fill(d, &b, x, w, tensor_none(), g));
        TRY(gemm_run(d, &call));
    }
    return STATUS_OK;
}

Status gate_write_composed(Device *d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate) {
    const int64_t chunks = y.shape[1], h = y.shape[2], o = y.shape[3], tokens = x.shape[2];
    Between b;
    TRY(between_take(d, x, w, &b));
    for (int64_t g = 0; g < y.shape[0]; g++) {
        const Tensor values = rows_from(v, g * tokens * o, 1, 1, tokens, o);
        const Tensor to = rows_from(y, g * chunks * h * o, 1, chunks, h, o);
        GemmCall call = gemm_call(h, o, tokens / chunks, b.p.data, true, values.data, false,
                                  to.data, x.dtype, y.dtype, false);
        call.batch = chunks;
        call.step_a = call.k * h, call.step_b = call.k * o, call.step_c = h * o;
        TRY(between_fill(d, &b, x, w, rate, g));
        TRY(gemm_run(d, &call));
    }
    return STATUS_OK;
}
