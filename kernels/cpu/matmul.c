/* Matrix products and linear layers on top of gemm.h. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/vmath.h"

/* Elements between successive matrices along leading dimension i of 2 (0 where the tensor has 1).
 */
typedef struct Leading {
    int64_t count[2], stride[2], matrix;
} Leading;

static Leading leading(Tensor t) {
    Leading l = {{1, 1}, {0, 0}, t.shape[t.rank - 1] * t.shape[t.rank - 2]};
    int64_t stride = l.matrix;
    for (int i = t.rank - 3, j = 1; i >= 0; i--, j--) {
        l.count[j] = t.shape[i];
        l.stride[j] = t.shape[i] > 1 ? stride : 0;
        stride *= t.shape[i];
    }
    return l;
}

/* Makes (outer, inner) one dimension where all three tensors allow it. */
static void merge_leading(Leading *a, Leading *b, Leading *c) {
    Leading *all[3] = {a, b, c};
    const int64_t outer = max_i64(max_i64(a->count[0], b->count[0]), c->count[0]);
    const int64_t inner = max_i64(max_i64(a->count[1], b->count[1]), c->count[1]);
    for (int i = 0; i < 3; i++) {
        const bool full = all[i]->count[0] == outer && all[i]->count[1] == inner;
        const bool single = all[i]->count[0] == 1 && all[i]->count[1] == 1;
        if (!full && !single) return;
    }
    for (int i = 0; i < 3; i++) {
        const int64_t count = all[i]->count[0] * all[i]->count[1];
        *all[i] = (Leading){{1, count}, {0, count > 1 ? all[i]->matrix : 0}, all[i]->matrix};
    }
}

static Status matmul(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha) {
    Leading la = leading(a), lb = leading(b), lc = leading(c.t);
    merge_leading(&la, &lb, &lc);
    const int64_t outer = max_i64(la.count[0], lb.count[0]);
    const int64_t inner = max_i64(la.count[1], lb.count[1]);
    /* Where C has 1 and the operands more, the products of that dimension are summed one by one. */
    const bool sum_outer = lc.count[0] == 1 && outer > 1, sum_inner = lc.count[1] == 1 && inner > 1;
    const int64_t steps = sum_inner ? inner : 1;
    Gemm g = {.batch = sum_inner ? 1 : inner,
              .m = c.t.shape[c.t.rank - 2],
              .n = c.t.shape[c.t.rank - 1],
              .k = a.shape[a.rank - (ta ? 2 : 1)],
              .in = a.dtype,
              .out = c.t.dtype,
              .ta = ta,
              .tb = tb,
              .lda = a.shape[a.rank - 1],
              .ldb = b.shape[b.rank - 1],
              .ldc = c.t.shape[c.t.rank - 1],
              .stride_a = la.stride[1],
              .stride_b = lb.stride[1],
              .stride_c = lc.stride[1],
              .alpha = alpha};
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < steps; i++) {
            g.a = element(&a, o * la.stride[0] + (sum_inner ? i * la.stride[1] : 0));
            g.b = element(&b, o * lb.stride[0] + (sum_inner ? i * lb.stride[1] : 0));
            g.c = element(&c.t, o * lc.stride[0]);
            g.add = c.add || (sum_outer && o > 0) || i > 0;
            TRY(gemm_run(d, &g));
        }
    }
    return STATUS_OK;
}

Status matmul_cpu(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha) {
    if (!c.t.data) return STATUS_OK;
    if (a.dtype != b.dtype) return refuse_dtype("matmul (operands differ)", b.dtype);
    return scratch_done(d, matmul(d, c, a, ta, b, tb, alpha));
}

/* c[M,N] = op(a) op(b) for plain matrices. */
static Gemm plain_gemm(Tensor c, Tensor a, bool ta, Tensor b, bool tb) {
    const int64_t a_rows = tensor_rows(a), a_columns = tensor_last(a);
    return (Gemm){.batch = 1,
                  .m = ta ? a_columns : a_rows,
                  .n = tensor_last(c),
                  .k = ta ? a_rows : a_columns,
                  .a = a.data,
                  .b = b.data,
                  .in = a.dtype,
                  .out = c.dtype,
                  .ta = ta,
                  .tb = tb,
                  .lda = a_columns,
                  .ldb = tensor_last(b),
                  .ldc = tensor_last(c),
                  .c = c.data,
                  .alpha = 1.0f};
}

/* Rows of a product that is worked on further right away: about 1 MiB of F32, so that it is still
 * in the second-level cache. A fixed number, whatever the threads. */
static int64_t hot_rows(int64_t width) {
    return max_i64(64, (1 << 18) / width / 64 * 64);
}

/* Rows [begin, begin + n) of a matrix. */
static Tensor rows_of(Tensor t, int64_t begin, int64_t n) {
    if (!t.data) return t;
    const int64_t width = tensor_last(t);
    return tensor_2d(element(&t, begin * width), t.dtype, n, width);
}

static Status linear(Device *d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias,
                     Activation act) {
    const bool keep = pre.data != NULL;
    const int64_t rows = tensor_rows(x), step = keep ? hot_rows(tensor_last(y)) : rows;
    for (int64_t r = 0; r < rows; r += step) {
        const int64_t n = min_i64(step, rows - r);
        const Tensor to = rows_of(keep ? pre : y, r, n);
        Gemm g = plain_gemm(to, rows_of(x, r, n), false, w, true);
        g.bias = bias.data;
        g.gelu = act == ACT_GELU && !keep;
        TRY(gemm_run(d, &g));
        if (!keep) continue;
        const Grad out = grad_set(rows_of(y, r, n));
        TRY(act == ACT_GELU ? unary_cpu(d, out, UNARY_GELU, to) : copy_cpu(d, out, to, 1.0f));
    }
    return STATUS_OK;
}

Status linear_cpu(Device *d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias,
                  Activation act) {
    if (x.dtype != w.dtype) return refuse_dtype("linear (weights differ from x)", w.dtype);
    return scratch_done(d, linear(d, y, pre, x, w, bias, act));
}

/* y = residual + factor product for rows [first, first + n) of all, `per` rows a factor. */
static void join_rows(Tensor y, Tensor residual, const float *product, Tensor scale, int64_t first,
                      int64_t n, int64_t per) {
    const int64_t width = tensor_last(y);
    const Grad to = grad_set(y);
#pragma omp parallel for schedule(static) if (n * width >= PARALLEL_MIN)
    for (int64_t r = first; r < first + n; r++) {
        float in_buffer[CHUNK], out_buffer[CHUNK];
        const float factor = scale.data ? ((const float *)scale.data)[r / per] : 1.0f;
        const float *p = product + (r - first) * width;
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t count = min_i64(CHUNK, width - c);
            const float *in = values_read(&residual, r * width + c, count, in_buffer);
            float *out = values_target(&to, r * width + c, out_buffer);
#pragma omp simd
            for (int64_t i = 0; i < count; i++) out[i] = in[i] + factor * p[c + i];
            values_write(&to, r * width + c, count, out);
        }
    }
}

static Status linear_residual(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor residual,
                              Tensor scale) {
    const int64_t rows = tensor_rows(x), width = tensor_last(y);
    const int64_t step = min_i64(rows, hot_rows(width));
    const int64_t per = scale.data ? rows / tensor_count(scale) : rows;
    float *product;
    TRY(scratch_floats(d, step * width, &product));
    for (int64_t r = 0; r < rows; r += step) {
        const int64_t n = min_i64(step, rows - r);
        Gemm g =
            plain_gemm(tensor_2d(product, DTYPE_F32, n, width), rows_of(x, r, n), false, w, true);
        g.bias = bias.data;
        TRY(gemm_run(d, &g));
        join_rows(y, residual, product, scale, r, n, per);
    }
    return STATUS_OK;
}

Status linear_residual_cpu(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor residual,
                           Tensor scale) {
    if (x.dtype != w.dtype || y.dtype != residual.dtype || !act_dtype(y.dtype))
        return refuse_dtype("linear_residual (operands differ)", w.dtype);
    return scratch_done(d, linear_residual(d, y, x, w, bias, residual, scale));
}

/* y[O] (+)= sum of the rows of x[M,O]. */
static Status rows_sum(Device *d, Grad y, Tensor x) {
    const int64_t width = tensor_last(x), rows = tensor_rows(x);
    const RowParts parts = row_parts(rows);
    float *partial;
    TRY(scratch_floats(d, parts.count * width, &partial));
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t p = 0; p < parts.count; p++) {
        float buffer[CHUNK], *sum = partial + p * width;
        memset(sum, 0, (size_t)width * sizeof *sum);
        for (int64_t r = row_part_begin(parts, p); r < row_part_begin(parts, p + 1); r++) {
            for (int64_t c = 0; c < width; c += CHUNK) {
                const int64_t n = min_i64(CHUNK, width - c);
                const float *in = values_read(&x, r * width + c, n, buffer);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) sum[c + i] += in[i];
            }
        }
    }
    row_parts_sum(y, partial, parts.count, width, width);
    return STATUS_OK;
}

static Status linear_dx(Device *d, Grad dx, Tensor dy, Tensor w, Tensor pre, Activation act) {
    if (act == ACT_NONE) {
        Gemm g = plain_gemm(dx.t, dy, false, w, false);
        g.add = dx.add;
        return gemm_run(d, &g);
    }
    /* The product in F32, so that it is rounded once, after the factor gelu'(pre). */
    const bool direct = !dx.add && dx.t.dtype == DTYPE_F32;
    const int64_t rows = tensor_rows(dx.t), width = tensor_last(dx.t);
    const int64_t step = min_i64(rows, hot_rows(width));
    float *buffer = NULL;
    if (!direct) TRY(scratch_floats(d, step * width, &buffer));
    for (int64_t r = 0; r < rows; r += step) {
        const int64_t n = min_i64(step, rows - r);
        const Grad out = {rows_of(dx.t, r, n), dx.add};
        const Tensor product = direct ? out.t : tensor_2d(buffer, DTYPE_F32, n, width);
        const Gemm g = plain_gemm(product, rows_of(dy, r, n), false, w, false);
        TRY(gemm_run(d, &g));
        TRY(unary_mul_cpu(d, out, UNARY_DGELU, rows_of(pre, r, n), product));
    }
    return STATUS_OK;
}

Status linear_dx_cpu(Device *d, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre,
                     Activation act) {
    if (!dx.t.data) return STATUS_OK;
    if (dy.dtype != w.dtype) return refuse_dtype("linear_dx (weights differ from dy)", w.dtype);
    if (sums.t.data && dx.add)
        return status_set(STATUS_INTERNAL, "linear_dx: sums of a gradient that adds up");
    TRY(scratch_done(d, linear_dx(d, dx, dy, w, pre, act)));
    return sums.t.data ? scratch_done(d, rows_sum(d, sums, dx.t)) : STATUS_OK;
}

static Status linear_dw(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x) {
    if (dw.t.data) {
        Gemm g = plain_gemm(dw.t, dy, true, x, false);
        g.add = dw.add;
        TRY(gemm_run(d, &g));
    }
    return dbias.t.data ? rows_sum(d, dbias, dy) : STATUS_OK;
}

Status linear_dw_cpu(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x) {
    if (dy.dtype != x.dtype || !act_dtype(x.dtype))
        return refuse_dtype("linear_dw (dy, x)", x.dtype);
    return scratch_done(d, linear_dw(d, dw, dbias, dy, x));
}
