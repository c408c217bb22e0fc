#include "op_case.h"

/* Shapes are flat counts p[0]; batched slots take p[0] rows of p[1]. */

static void zero_body(Run *r) {
    Tensor y = output(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, zero, y);
    if (r->reference) expected(r, y);
}

static void fill_body(Run *r) {
    const float value = 0.3f;
    Tensor y = output(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, fill, y, value);
    double *e = r->reference ? expected(r, y) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++) e[i] = (double)value;
}

/* p[1]: alpha in tenths; p[2]: 1: y is F32, 2: y is the other dtype. */
static void copy_body(Run *r) {
    const float alpha = (float)r->p[1] / 10.0f;
    const DType other = r->act == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
    Tensor x = input(r, "x", r->act, SHAPE(r->p[0]), 1.0);
    Grad y = gradient(r, "y", r->p[2] == 2 ? other : r->act, SHAPE(r->p[0]));
    CALL(r, copy, y, x, alpha);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++) e[i] = (double)alpha * values(r, x)[i];
}

/* p[2]: 1: a is broadcast over the leading dimension, 2: y is a, 3: y is b. */
static void add_body(Run *r) {
    const int64_t rows = r->p[0], n = r->p[1], mode = r->p[2];
    Tensor a = mode == 2 ? in_place(r, "y = a", r->act, SHAPE(rows, n), 1.0)
                         : input(r, "a", r->act, SHAPE(mode == 1 ? 1 : rows, n), 1.0);
    Tensor b = mode == 3 ? in_place(r, "y = b", r->act, SHAPE(rows, n), 1.0)
                         : input(r, "b", r->act, SHAPE(rows, n), 1.0);
    Tensor y = mode == 2 ? a : mode == 3 ? b : output(r, "y", r->act, SHAPE(rows, n));
    CALL(r, add, y, a, b, -0.75f);
    if (!r->reference) return;
    double *e = expected(r, y);
    for (int64_t i = 0; i < rows * n; i++)
        e[i] = values(r, a)[mode == 1 ? i % n : i] - 0.75 * values(r, b)[i];
}

static void mul_body(Run *r) {
    Tensor a = input(r, "a", r->act, SHAPE(r->p[0]), 1.0);
    Tensor b = input(r, "b", r->act, SHAPE(r->p[0]), 1.0);
    Grad y = gradient(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, mul, y, a, b);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++) e[i] = values(r, a)[i] * values(r, b)[i];
}

/* p[1]: function; p[2]: spread of x. */
static void unary_body(Run *r) {
    const UnaryKind f = (UnaryKind)r->p[1];
    Tensor x = input(r, "x", r->act, SHAPE(r->p[0]), (double)r->p[2]);
    Grad y = gradient(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, unary, y, f, x);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++) e[i] = unary_reference(f, values(r, x)[i]);
}

/* Away from 0, where the function has a pole, and 0 and below, where it is defined to be 0. */
static double pole_value(int64_t i, void *user) {
    const double u = random_uniform(user);
    return i % 7 == 3 ? 0.0 : i % 7 == 5 ? -u : 0.05 + 4.0 * u;
}

/* p[1]: function. */
static void rsqrt_body(Run *r) {
    const UnaryKind f = (UnaryKind)r->p[1];
    Tensor x = input_of(r, "x", r->act, SHAPE(r->p[0]), pole_value, r);
    Grad y = gradient(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, unary, y, f, x);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++) e[i] = unary_reference(f, values(r, x)[i]);
}

static void unary_mul_body(Run *r) {
    const UnaryKind f = (UnaryKind)r->p[1];
    Tensor x = input(r, "x", r->act, SHAPE(r->p[0]), (double)r->p[2]);
    Tensor dy = input(r, "dy", r->act, SHAPE(r->p[0]), 1.0);
    Grad y = gradient(r, "y", r->act, SHAPE(r->p[0]));
    CALL(r, unary_mul, y, f, x, dy);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < r->p[0]; i++)
        e[i] = unary_reference(f, values(r, x)[i]) * values(r, dy)[i];
}

static void sum_batch_body(Run *r) {
    const int64_t rows = r->p[0], n = r->p[1];
    Tensor x = input(r, "x", DTYPE_F32, SHAPE(rows, n), 1.0);
    Grad y = gradient(r, "y", DTYPE_F32, SHAPE(1, n));
    CALL(r, sum_batch, y, x, 0.5f);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < rows * n; i++) e[i % n] += 0.5 * values(r, x)[i];
}

/* p[2]: bit 1 without scale, bit 2 y is x. */
static void residual_body(Run *r) {
    const int64_t rows = r->p[0], n = r->p[1];
    const bool scaled = !(r->p[2] & 1), alias = r->p[2] & 2;
    Tensor x = alias ? in_place(r, "y = x", r->act, SHAPE(rows, n), 1.0)
                     : input(r, "x", r->act, SHAPE(rows, n), 1.0);
    Tensor branch = input(r, "branch", r->act, SHAPE(rows, n), 1.0);
    Tensor scale = scaled ? input(r, "scale", DTYPE_F32, SHAPE(rows), 1.0) : tensor_none();
    Tensor y = alias ? x : output(r, "y", r->act, SHAPE(rows, n));
    CALL(r, residual, y, x, branch, scale);
    if (!r->reference) return;
    double *e = expected(r, y);
    for (int64_t i = 0; i < rows * n; i++)
        e[i] = values(r, x)[i] + (scaled ? values(r, scale)[i / n] : 1.0) * values(r, branch)[i];
}

static void scale_rows_body(Run *r) {
    const int64_t rows = r->p[0], n = r->p[1];
    const bool scaled = !(r->p[2] & 1);
    Tensor x = input(r, "x", r->act, SHAPE(rows, n), 1.0);
    Tensor scale = scaled ? input(r, "scale", DTYPE_F32, SHAPE(rows), 1.0) : tensor_none();
    Grad y = gradient(r, "y", r->act, SHAPE(rows, n));
    CALL(r, scale_rows, y, x, scale);
    double *e = r->reference ? expected(r, y.t) : NULL;
    for (int64_t i = 0; e && i < rows * n; i++)
        e[i] = (scaled ? values(r, scale)[i / n] : 1.0) * values(r, x)[i];
}

#define BOTH (IN_BOTH | ANY_THREADS)
#define F32  (IN_F32 | ANY_THREADS)

const OpCase cases_elementwise[] = {
    {"zero", zero_body, {1}, BOTH, 0},
    {"zero", zero_body, {3001}, BOTH, 0},
    {"fill", fill_body, {1}, IN_BOTH, 0},
    {"fill", fill_body, {1033}, IN_BOTH, 0},
    {"copy", copy_body, {1, 10}, BOTH, 0},
    {"copy", copy_body, {20011, 10}, BOTH, 0},
    {"copy", copy_body, {1023, -3}, BOTH, 0},
    {"copy", copy_body, {20011, 10, 2}, BOTH, 0},
    {"copy", copy_body, {17, 7, 2}, BOTH, 0},
    {"add", add_body, {1, 1}, BOTH, 0},
    {"add", add_body, {3, 333}, BOTH, 0},
    {"add", add_body, {9, 2100, 1}, BOTH, 0},
    {"add", add_body, {2, 77, 2}, BOTH, 0},
    {"add", add_body, {5, 1025, 3}, BOTH, 0},
    {"mul", mul_body, {1}, BOTH, 0},
    {"mul", mul_body, {20011}, BOTH, 0},
    {"unary", unary_body, {1, UNARY_SILU, 1}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_SILU, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_SILU, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_DSILU, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_DSILU, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_D2SILU, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_D2SILU, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_GELU, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_GELU, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_DGELU, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_DGELU, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_SIGMOID, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_SIGMOID, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_DSIGMOID, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_DSIGMOID, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_SOFTPLUS, 3}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_SOFTPLUS, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_D2GELU, 2}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_GELU_TANH, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_GELU_TANH, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_DGELU_TANH, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_DGELU_TANH, 20}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_D2GELU_TANH, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_D2GELU_TANH, 20}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_D2SIGMOID, 3}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_TANH, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_TANH, 60}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_DTANH, 2}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_D2TANH, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_RELU, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_STEP, 2}, BOTH, 0},
    {"unary", unary_body, {1003, UNARY_SIGN, 2}, BOTH, 0},
    {"unary", unary_body, {20011, UNARY_EXP, 3}, BOTH, 0},
    {"unary", rsqrt_body, {1003, UNARY_RSQRT}, BOTH, 0},
    {"unary", rsqrt_body, {1003, UNARY_DRSQRT}, BOTH, 0},
    {"unary", rsqrt_body, {1003, UNARY_LOG}, BOTH, 0},
    {"unary", rsqrt_body, {1003, UNARY_DLOG}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_D2GELU_TANH, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_D2TANH, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {1, UNARY_DSILU, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_SIGMOID, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_DSIGMOID, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {20011, UNARY_DSILU, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_D2SILU, 2}, BOTH, 0},
    {"unary_mul", unary_mul_body, {777, UNARY_DGELU, 2}, BOTH, 0},
    {"sum_batch", sum_batch_body, {1, 1}, F32, 0},
    {"sum_batch", sum_batch_body, {1, 19}, F32, 0},
    {"sum_batch", sum_batch_body, {37, 2051}, F32, 0},
    {"residual", residual_body, {1, 1}, BOTH, 0},
    {"residual", residual_body, {3, 7001}, BOTH, 0},
    {"residual", residual_body, {3, 1030, 1}, BOTH, 0},
    {"residual", residual_body, {3, 1030, 2}, BOTH, 0},
    {"scale_rows", scale_rows_body, {1, 1}, BOTH, 0},
    {"scale_rows", scale_rows_body, {5, 4099}, BOTH, 0},
    {"scale_rows", scale_rows_body, {5, 333, 1}, BOTH, 0},
    {"unary", unary_body, {32 * 196 * 768, UNARY_GELU, 2}, IN_BOTH | ONLY_BENCH, 0},
    {"unary", unary_body, {196 * 768, UNARY_GELU, 2}, IN_BOTH | ONLY_BENCH, 0},
    {"unary_mul", unary_mul_body, {32 * 196 * 768, UNARY_DGELU, 2}, IN_BOTH | ONLY_BENCH, 0},
    {"residual", residual_body, {32, 196 * 192}, IN_BOTH | ONLY_BENCH, 0},
    {0},
};
