/* Products that the backend cannot do in one call: BF16 through F32 copies, bias and GELU in a
 * loop. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vmath.h"

/* A dense F32 copy of `batch` BF16 matrices of `rows` x `columns`. */
static Status widen(Device *d, const void *data, int64_t batch, int64_t rows, int64_t columns,
                    int64_t ld, int64_t stride, float **out) {
    TRY(scratch_floats(d, batch * rows * columns, out));
    float *to = *out;
    const uint16_t *from = data;
#pragma omp parallel for schedule(static) if (batch * rows * columns >= PARALLEL_MIN)
    for (int64_t r = 0; r < batch * rows; r++) {
        const uint16_t *x = from + r / rows * stride + r % rows * ld;
        float *y = to + r * columns;
#pragma omp simd
        for (int64_t i = 0; i < columns; i++) y[i] = bf16_value(x[i]);
    }
    return STATUS_OK;
}

/* Adds the bias, applies GELU and stores rows of sums, in place or elsewhere. */
static void finish(const Gemm *g, const Tensor *sums, int64_t ld, int64_t stride) {
    const Grad to = {{.data = g->c, .dtype = g->out}, g->add};
    const bool rough = g->out == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (g->batch * g->m * g->n >= PARALLEL_MIN)
    for (int64_t r = 0; r < g->batch * g->m; r++) {
        float x_buffer[CHUNK], y_buffer[CHUNK];
        const int64_t from = r / g->m * stride + r % g->m * ld;
        const int64_t at = r / g->m * g->stride_c + r % g->m * g->ldc;
        for (int64_t c = 0; c < g->n; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, g->n - c);
            const float *x = values_read(sums, from + c, n, x_buffer);
            float *y = values_target(&to, at + c, y_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) y[i] = g->bias ? x[i] + g->bias[c + i] : x[i];
            if (g->gelu && rough) {
#pragma omp simd
                for (int64_t i = 0; i < n; i++) y[i] = gelu_rough(y[i]);
            } else if (g->gelu) {
#pragma omp simd
                for (int64_t i = 0; i < n; i++) y[i] = gelu_value(y[i]);
            }
            values_write(&to, at + c, n, y);
        }
    }
}

/* The product in F32: BF16 operands are copied, a BF16 result goes through scratch. */
static Status run_wide(Device *d, const Gemm *g) {
    Gemm wide = *g;
    float *a, *b, *c;
    const int64_t a_rows = g->ta ? g->k : g->m, a_columns = g->ta ? g->m : g->k;
    const int64_t b_rows = g->tb ? g->n : g->k, b_columns = g->tb ? g->k : g->n;
    TRY(widen(d, g->a, g->stride_a ? g->batch : 1, a_rows, a_columns, g->lda, g->stride_a, &a));
    TRY(widen(d, g->b, g->stride_b ? g->batch : 1, b_rows, b_columns, g->ldb, g->stride_b, &b));
    wide.in = wide.out = DTYPE_F32;
    wide.a = a;
    wide.b = b;
    wide.lda = a_columns;
    wide.ldb = b_columns;
    wide.stride_a = g->stride_a ? a_rows * a_columns : 0;
    wide.stride_b = g->stride_b ? b_rows * b_columns : 0;
    if (g->out == DTYPE_F32) return gemm_run(d, &wide);
    TRY(scratch_floats(d, g->batch * g->m * g->n, &c));
    wide.c = c;
    wide.ldc = g->n;
    wide.stride_c = g->m * g->n;
    wide.add = wide.gelu = false;
    wide.bias = NULL;
    TRY(gemm_backend_run(d, &wide));
    const Tensor sums = {.data = c, .dtype = DTYPE_F32};
    finish(g, &sums, g->n, g->m * g->n);
    return STATUS_OK;
}

Status gemm_run(Device *d, const Gemm *g) {
    if (!act_dtype(g->in) || !act_dtype(g->out) || (g->in == DTYPE_F32 && g->out != DTYPE_F32))
        return status_set(STATUS_INTERNAL, "matrix product %s -> %s is not offered on the CPU",
                          dtype_name(g->in), dtype_name(g->out));
    const GemmAbilities can = gemm_abilities(d);
    if (g->in == DTYPE_BF16 && !can.bf16) return run_wide(d, g);
    const bool own_gelu = g->gelu && (!can.gelu || g->out == DTYPE_BF16);
    const bool own_bias = g->bias && !can.bias;
    if (!own_gelu && !own_bias) return gemm_backend_run(d, g);
    Gemm plain = *g, rest = *g;
    plain.gelu = false;
    if (own_bias) {
        plain.bias = NULL;
    } else {
        rest.bias = NULL;
    }
    TRY(gemm_backend_run(d, &plain));
    const Tensor sums = {.data = g->c, .dtype = g->out};
    finish(&rest, &sums, g->ldc, g->stride_c);
    return STATUS_OK;
}
