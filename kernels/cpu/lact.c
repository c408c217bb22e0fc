/* Between the products of the LaCT layer: what the inner gradients are products of, and the gate of
 * the reading tokens (lact_nvs.md 4, 5.1, 5.4).
 */
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* Sizes of e[parts,B*H,n,h], and the rates of its rows. */
typedef struct Writers {
    int64_t rows, width, heads, tokens;
    const float *eta;
} Writers;

static Writers writers_of(Tensor ac, Tensor eta) {
    return (Writers){tensor_rows(ac), ac.shape[3] / 2, ac.shape[1], ac.shape[2], eta.data};
}

/* Where the rates of row (b, head, i) begin in [B,n,3H]; those of W1 and W2 follow H and 2H behind.
 */
static int64_t rate_place(const Writers *s, int64_t row) {
    const int64_t token = row % s->tokens, head = row / s->tokens % s->heads;
    const int64_t sample = row / s->tokens / s->heads;
    return (sample * s->tokens + token) * 3 * s->heads + head;
}

/* Chunk [c, c + n) of a row of each operand. */
typedef struct Part {
    float a_buffer[CHUNK], c_buffer[CHUNK], t_buffer[CHUNK];
    const float *a, *c, *t;
} Part;

static void part_read(Part *p, const Writers *s, const Tensor *ac, const Tensor *t, int64_t row,
                      int64_t at, int64_t n) {
    p->a = values_read(ac, row * 2 * s->width + at, n, p->a_buffer);
    p->c = values_read(ac, row * 2 * s->width + s->width + at, n, p->c_buffer);
    p->t = t->data ? values_read(t, row * s->width + at, n, p->t_buffer) : NULL;
}

static void write_row(const Grad *e, const Tensor *ac, const Tensor *t, const Writers *s,
                      int64_t row) {
    const int64_t rate = rate_place(s, row), each = s->rows * s->width;
    const float eta0 = s->eta[rate], eta1 = s->eta[rate + s->heads];
    const float eta2 = s->eta[rate + 2 * s->heads];
    Part p;
    float out[CHUNK];
    for (int64_t at = 0; at < s->width; at += CHUNK) {
        const int64_t n = min_i64(CHUNK, s->width - at), to = row * s->width + at;
        part_read(&p, s, ac, t, row, at, n);
        if (p.t) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = eta0 * p.t[i] * p.c[i] * dsilu_value(p.a[i]);
            values_write(e, to, n, out);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = eta2 * p.t[i] * silu_value(p.a[i]);
            values_write(e, each + to, n, out);
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++) out[i] = eta1 * silu_value(p.a[i]) * p.c[i];
        values_write(e, (p.t ? 2 * each : 0) + to, n, out);
    }
}

Status lact_write_cpu(Device *d, Tensor e, Tensor ac, Tensor t, Tensor eta) {
    (void)d;
    if (!act_dtype(ac.dtype) || e.dtype != ac.dtype || (t.data && t.dtype != ac.dtype))
        return refuse_dtype("lact_write", e.dtype);
    const Writers s = writers_of(ac, eta);
    const Grad to = grad_set(e);
#pragma omp parallel for schedule(static) if (s.rows * s.width >= PARALLEL_MIN)
    for (int64_t row = 0; row < s.rows; row++) write_row(&to, &ac, &t, &s, row);
    return STATUS_OK;
}

/* Outputs of a row's chunk; the e are those of gates 0 and 2 and of W1. */
typedef struct Slopes {
    float da[CHUNK], dc[CHUNK], dt[CHUNK], e0[CHUNK], e2[CHUNK], p1[CHUNK];
} Slopes;

/* Adds to sums of the rates' gradients; g0, g2, g1 are the gradients of the three e. */
static void slopes_full(Slopes *y, const Part *p, int64_t n, const float *eta, const float *g0,
                        const float *g2, const float *g1, float *sums) {
    float d0[CHUNK], d1[CHUNK], d2[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float a = p->a[i], c = p->c[i], t = p->t[i];
        const float s = silu_value(a), slope = dsilu_value(a);
        const float de0 = eta[0] * g0[i], de2 = eta[2] * g2[i], dp = eta[1] * g1[i];
        d0[i] = t * c * slope;
        d2[i] = t * s;
        d1[i] = s * c;
        y->dt[i] = de2 * s + de0 * c * slope;
        y->dc[i] = dp * s + de0 * t * slope;
        y->da[i] = (dp * c + de2 * t) * slope + de0 * t * c * d2silu_value(a);
    }
    sums[0] += vec_dot(d0, g0, n);
    sums[1] += vec_dot(d1, g1, n);
    sums[2] += vec_dot(d2, g2, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y->e0[i] = eta[0] * d0[i];
        y->e2[i] = eta[2] * d2[i];
        y->p1[i] = eta[1] * d1[i];
    }
}

/* Only W1 is written. */
static void slopes_last(Slopes *y, const Part *p, int64_t n, const float *eta, const float *g1,
                        float *sums) {
    float d1[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float a = p->a[i], c = p->c[i], s = silu_value(a), dp = eta[1] * g1[i];
        d1[i] = s * c;
        y->p1[i] = eta[1] * d1[i];
        y->dc[i] = dp * s;
        y->da[i] = dp * c * dsilu_value(a);
    }
    sums[1] += vec_dot(d1, g1, n);
}

static void write_row_backward(const Grad *dac, const Grad *dt, const Grad *deta, const Grad *e,
                               const Tensor *ac, const Tensor *t, const Writers *s, int64_t row) {
    const int64_t rate = rate_place(s, row), each = s->rows * s->width, width = s->width;
    const float eta[3] = {s->eta[rate], s->eta[rate + s->heads], s->eta[rate + 2 * s->heads]};
    float sums[3] = {0}, b0[CHUNK], b1[CHUNK], b2[CHUNK];
    Part p;
    Slopes y;
    for (int64_t at = 0; at < width; at += CHUNK) {
        const int64_t n = min_i64(CHUNK, width - at), to = row * width + at;
        part_read(&p, s, ac, t, row, at, n);
        const float *g1 = values_read(&e->t, (p.t ? 2 * each : 0) + to, n, b1);
        if (p.t) {
            const float *g0 = values_read(&e->t, to, n, b0);
            slopes_full(&y, &p, n, eta, g0, values_read(&e->t, each + to, n, b2), g1, sums);
            values_write(e, to, n, y.e0);
            values_write(e, each + to, n, y.e2);
            values_write(dt, to, n, y.dt);
        } else {
            slopes_last(&y, &p, n, eta, g1, sums);
        }
        values_write(e, (p.t ? 2 * each : 0) + to, n, y.p1);
        values_write(dac, 2 * row * width + at, n, y.da);
        values_write(dac, 2 * row * width + width + at, n, y.dc);
    }
    for (int j = 0; deta->t.data && j < 3; j++) {
        float *out = (float *)deta->t.data + rate + j * s->heads;
        *out = deta->add ? *out + sums[j] : sums[j];
    }
}

Status lact_write_backward_cpu(Device *d, Tensor dac, Tensor dt, Grad deta, Tensor e, Tensor ac,
                               Tensor t, Tensor eta) {
    (void)d;
    if (!act_dtype(ac.dtype) || e.dtype != ac.dtype || dac.dtype != ac.dtype ||
        (t.data && (t.dtype != ac.dtype || dt.dtype != ac.dtype)))
        return refuse_dtype("lact_write_backward", e.dtype);
    const Writers s = writers_of(ac, eta);
    const Grad to_ac = grad_set(dac), to_t = grad_set(dt), to_e = grad_set(e);
#pragma omp parallel for schedule(static) if (s.rows * s.width >= PARALLEL_MIN)
    for (int64_t row = 0; row < s.rows; row++)
        write_row_backward(&to_ac, &to_t, &deta, &to_e, &ac, &t, &s, row);
    return STATUS_OK;
}

/* ---- the gate of reading tokens ---- */

Status lact_gate_cpu(Device *d, Tensor p, Tensor ab) {
    (void)d;
    if (!act_dtype(ab.dtype) || p.dtype != ab.dtype) return refuse_dtype("lact_gate", ab.dtype);
    const int64_t width = tensor_last(p), rows = tensor_rows(p);
    const Grad to = grad_set(p);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        float a_buffer[CHUNK], b_buffer[CHUNK], p_buffer[CHUNK];
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), from = 2 * row * width + c;
            const float *a = values_read(&ab, from, n, a_buffer);
            const float *b = values_read(&ab, from + width, n, b_buffer);
            float *out = values_target(&to, row * width + c, p_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = silu_value(a[i]) * b[i];
            values_write(&to, row * width + c, n, out);
        }
    }
    return STATUS_OK;
}

Status lact_gate_backward_cpu(Device *d, Tensor dab, Tensor p, Tensor dp, Tensor ab) {
    (void)d;
    if (!act_dtype(ab.dtype) || p.dtype != ab.dtype || dp.dtype != ab.dtype ||
        dab.dtype != ab.dtype)
        return refuse_dtype("lact_gate_backward", ab.dtype);
    const int64_t width = tensor_last(p), rows = tensor_rows(p);
    const Grad to = grad_set(dab), again = grad_set(p);
#pragma omp parallel for schedule(static) if (rows * width >= PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        float a_buffer[CHUNK], b_buffer[CHUNK], g_buffer[CHUNK], da[CHUNK], db[CHUNK], v[CHUNK];
        for (int64_t c = 0; c < width; c += CHUNK) {
            const int64_t n = min_i64(CHUNK, width - c), from = 2 * row * width + c;
            const float *a = values_read(&ab, from, n, a_buffer);
            const float *b = values_read(&ab, from + width, n, b_buffer);
            const float *g = values_read(&dp, row * width + c, n, g_buffer);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                const float s = silu_value(a[i]);
                v[i] = s * b[i];
                da[i] = g[i] * b[i] * dsilu_value(a[i]);
                db[i] = g[i] * s;
            }
            values_write(&to, from, n, da);
            values_write(&to, from + width, n, db);
            values_write(&again, row * width + c, n, v);
        }
    }
    return STATUS_OK;
}
