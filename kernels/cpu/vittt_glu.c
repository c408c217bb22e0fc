/* The GLU branch of ViTTT in one pass per sample and head (vittt.md 2.1 and 3.1).
 *
 * Tokens are taken in blocks that stay in the first-level cache. Matrices that belong together lie
 * side by side, [W1|W2], so that one product serves both; d is padded to `w` columns of zeros. All
 * in F32: the inner update is lost in BF16 (vittt.md 9).
 */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/vittt.h"
#include "kernels/cpu/vmath.h"

/* Most tokens of a block; a multiple of the six rows of a register tile. */
#define TOKENS 48

/* Sizes of one call, and where a (sample, head) finds its rows. */
typedef struct Glu {
    int64_t tokens, block, d, w, packed, cat, width;
    float c;
} Glu;

static Glu glu_sizes(VitttShape s) {
    Glu z = {.tokens = s.height * s.width,
             .d = s.head_dim,
             .w = panel_width(s.head_dim),
             .packed = vittt_packed(s),
             .cat = vittt_width(s) + s.head_dim,
             .width = vittt_width(s),
             .c = vittt_factor(s)};
    const int64_t blocks = div_up(z.tokens, TOKENS);
    z.block = div_up(div_up(z.tokens, blocks), 6) * 6;
    return z;
}

/* Rows of w floats, `stride` apart: inside an act tensor or in a thread's memory. */
typedef struct Rows {
    float *data;
    int64_t stride;
} Rows;

/* Whether rows of an act tensor can be used where they are: F32, and no padding. */
static bool in_tensor(const Tensor *t, const Glu *z) {
    return t->dtype == DTYPE_F32 && z->d == z->w;
}

/* n rows of d values, `row` elements apart, as F32: in place, or copied and padded with zeros. */
static Rows rows_read(const Tensor *t, int64_t at, int64_t row, int64_t n, const Glu *z,
                      float *buffer) {
    if (in_tensor(t, z)) return (Rows){(float *)t->data + at, row};
    for (int64_t i = 0; i < n; i++) {
        float *o = buffer + i * z->w;
        const float *in = values_read(t, at + i * row, z->d, o);
        for (int64_t c = 0; in != o && c < z->d; c++) o[c] = in[c];
        for (int64_t c = z->d; c < z->w; c++) o[c] = 0.0f;
    }
    return (Rows){buffer, z->w};
}

/* Where to compute rows that go to an act tensor, and the store that follows. */
static Rows rows_target(const Tensor *t, int64_t at, int64_t row, const Glu *z, float *buffer) {
    if (in_tensor(t, z)) return (Rows){(float *)t->data + at, row};
    return (Rows){buffer, z->w};
}

static void rows_write(const Tensor *t, int64_t at, int64_t row, Rows in, int64_t n, const Glu *z) {
    if (in_tensor(t, z)) return;
    const Grad to = grad_set(*t);
    for (int64_t i = 0; i < n; i++) values_write(&to, at + i * row, z->d, in.data + i * in.stride);
}

/* [W1|W2], each d x d, into rows of 2w floats padded with zeros. */
static void pack_pair(float *out, const float *first, const float *second, const Glu *z) {
    for (int64_t i = 0; i < z->d; i++) {
        float *o = out + i * 2 * z->w;
        memset(o, 0, (size_t)(2 * z->w) * sizeof *o);
        memcpy(o, first + i * z->d, (size_t)z->d * sizeof *o);
        memcpy(o + z->w, second + i * z->d, (size_t)z->d * sizeof *o);
    }
}

static void unpack_pair(float *first, float *second, const float *in, const Glu *z) {
    for (int64_t i = 0; i < z->d; i++) {
        memcpy(first + i * z->d, in + i * 2 * z->w, (size_t)z->d * sizeof *in);
        memcpy(second + i * z->d, in + i * 2 * z->w + z->w, (size_t)z->d * sizeof *in);
    }
}

/* out[2w][w]: the transpose of each half of in[d][2w], one below the other; padding rows are zero.
 */
static void stack_transposed(float *out, const float *in, const Glu *z) {
    memset(out, 0, (size_t)(2 * z->w * z->w) * sizeof *out);
    for (int64_t i = 0; i < z->d; i++) {
        for (int64_t j = 0; j < 2 * z->w; j++) out[j * z->w + i] = in[i * 2 * z->w + j];
    }
}

/* Norms of the columns of g[d][2w]. */
static void column_norms(float *norms, const float *g, const Glu *z) {
    memset(norms, 0, (size_t)(2 * z->w) * sizeof *norms);
    for (int64_t i = 0; i < z->d; i++) {
        const float *row = g + i * 2 * z->w;
#pragma omp simd
        for (int64_t j = 0; j < 2 * z->w; j++) norms[j] += row[j] * row[j];
    }
    for (int64_t j = 0; j < 2 * z->w; j++) norms[j] = sqrtf(norms[j]);
}

/* W' = W - G/(n+1) in place. */
static void write_weights(float *weights, const float *g, const float *norms, const Glu *z) {
    for (int64_t i = 0; i < z->d; i++) {
        float *row = weights + i * 2 * z->w;
        const float *gradient = g + i * 2 * z->w;
#pragma omp simd
        for (int64_t j = 0; j < 2 * z->w; j++) row[j] -= gradient[j] / (norms[j] + 1.0f);
    }
}

/* z = [Z1|Z2] becomes [V silu(Z2) | V Z1 silu'(Z2)]: the right sides of G1 and G2 without -c. */
static void write_side(float *pair, Rows v, int64_t n, int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        float *restrict z1 = pair + i * 2 * w, *restrict z2 = z1 + w;
        const float *restrict value = v.data + i * v.stride;
#pragma omp simd
        for (int64_t j = 0; j < w; j++) {
            const float s = sigma_value(z2[j]), gate = z2[j];
            z2[j] = value[j] * z1[j] * (s * (1.0f + gate * (1.0f - s)));
            z1[j] = value[j] * (gate * s);
        }
    }
}

/* o = Y1 silu(Y2). */
static void read_side(Rows o, const float *pair, int64_t n, int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        const float *restrict y1 = pair + i * 2 * w, *restrict y2 = y1 + w;
        float *restrict out = o.data + i * o.stride;
#pragma omp simd
        for (int64_t j = 0; j < w; j++) out[j] = y1[j] * silu_value(y2[j]);
    }
}

/* Floats that one thread needs in the forward. */
static int64_t forward_floats(const Glu *z) {
    return z->block * 4 * z->w + 2 * z->d * 2 * z->w + 2 * z->w;
}

static void forward_head(const Glu *z, float *scratch, const Tensor *cat, float *g_kept,
                         const Tensor *qkv, int64_t sample, int64_t head, const float *w1,
                         const float *w2) {
    const int64_t w = z->w, d = z->d;
    float *rows = scratch, *values = rows + z->block * w, *pair = values + z->block * w;
    float *weights = pair + z->block * 2 * w, *g = weights + d * 2 * w, *norms = g + d * 2 * w;
    const int64_t q_at = sample * z->tokens * z->packed + head * d, k_at = q_at + z->width;
    pack_pair(weights, w1, w2, z);
    for (int64_t t = 0; t < z->tokens; t += z->block) {
        const int64_t n = min_i64(z->block, z->tokens - t), at = k_at + t * z->packed;
        const Rows k = rows_read(qkv, at, z->packed, n, z, rows);
        const Rows v = rows_read(qkv, at + z->width, z->packed, n, z, values);
        panel_product(pair, 2 * w, k.data, k.stride, 1, weights, 2 * w, n, 2 * w, d, false);
        write_side(pair, v, n, w);
        panel_product(g, 2 * w, k.data, 1, k.stride, pair, 2 * w, d, 2 * w, n, t > 0);
    }
    for (int64_t i = 0; i < d * 2 * w; i++) g[i] *= -z->c;
    if (g_kept) unpack_pair(g_kept, g_kept + d * d, g, z);
    column_norms(norms, g, z);
    write_weights(weights, g, norms, z);
    for (int64_t t = 0; t < z->tokens; t += z->block) {
        const int64_t n = min_i64(z->block, z->tokens - t);
        const int64_t at = (sample * z->tokens + t) * z->cat + head * d;
        const Rows q = rows_read(qkv, q_at + t * z->packed, z->packed, n, z, rows);
        const Rows o = rows_target(cat, at, z->cat, z, values);
        panel_product(pair, 2 * w, q.data, q.stride, 1, weights, 2 * w, n, 2 * w, d, false);
        read_side(o, pair, n, w);
        rows_write(cat, at, z->cat, o, n, z);
    }
}

static Status glu_forward(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w1,
                          Tensor w2) {
    const Glu z = glu_sizes(s);
    const int64_t square = z.d * z.d, per_thread = forward_floats(&z);
    float *scratch;
    TRY(scratch_floats(d, omp_get_max_threads() * per_thread, &scratch));
#pragma omp parallel for schedule(static) if (s.batch * z.tokens * z.width >= PARALLEL_MIN / 4)
    for (int64_t unit = 0; unit < s.batch * s.heads; unit++) {
        const int64_t head = unit % s.heads;
        forward_head(&z, scratch + omp_get_thread_num() * per_thread, &cat,
                     g.data ? (float *)g.data + unit * 2 * square : NULL, &qkv, unit / s.heads,
                     head, (const float *)w1.data + head * square,
                     (const float *)w2.data + head * square);
    }
    return STATUS_OK;
}

Status vittt_glu_cpu(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w1,
                     Tensor w2) {
    if (!act_dtype(qkv.dtype) || !act_dtype(cat.dtype)) return refuse_dtype("vittt_glu", qkv.dtype);
    return scratch_done(d, glu_forward(d, s, cat, g, qkv, w1, w2));
}

/* ---- backward (vittt.md 3.1) ---- */

/* [Y1|Y2] and dO become [dY1|dY2] in place. */
static void read_side_backward(float *pair, Rows dout, int64_t n, int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        float *restrict y1 = pair + i * 2 * w, *restrict y2 = y1 + w;
        const float *restrict g = dout.data + i * dout.stride;
#pragma omp simd
        for (int64_t j = 0; j < w; j++) {
            const float s = sigma_value(y2[j]), gate = y2[j];
            y2[j] = g[j] * y1[j] * (s * (1.0f + gate * (1.0f - s)));
            y1[j] = g[j] * (gate * s);
        }
    }
}

/* From [Z1|Z2] and [dP1|dP2]: all = [P1|P2|dZ1|dZ2] with P1 = E A, P2 = E Z1 D, and v becomes dV.
 */
static void write_side_backward(float *all, Rows dv, Rows v, const float *pair, const float *dpair,
                                int64_t n, int64_t w, float c) {
    for (int64_t i = 0; i < n; i++) {
        const float *restrict z1 = pair + i * 2 * w, *restrict z2 = z1 + w;
        const float *restrict dp1 = dpair + i * 2 * w, *restrict dp2 = dp1 + w;
        float *restrict out = all + i * 4 * w, *restrict dvalue = dv.data + i * dv.stride;
        const float *value = v.data + i * v.stride;
#pragma omp simd
        for (int64_t j = 0; j < w; j++) {
            const float x = z2[j], s = sigma_value(x), rest = 1.0f - s, e = -c * value[j];
            const float a = x * s, slope = s * (1.0f + x * rest);
            const float bend = s * rest * (2.0f + x * (1.0f - 2.0f * s));
            out[j] = e * a;
            out[w + j] = e * z1[j] * slope;
            out[2 * w + j] = dp2[j] * e * slope;
            out[3 * w + j] = e * (dp1[j] * slope + dp2[j] * z1[j] * bend);
            dvalue[j] = -c * (dp1[j] * a + dp2[j] * z1[j] * slope);
        }
    }
}

/* dG from dW' in place of it: dGhat = -dW', then the soft norm's backward by column. */
static void norm_backward(float *dg, const float *dweights, const float *g, const float *norms,
                          float *t, const Glu *z) {
    const int64_t w2 = 2 * z->w;
    memset(t, 0, (size_t)w2 * sizeof *t);
    for (int64_t i = 0; i < z->d; i++) {
#pragma omp simd
        for (int64_t j = 0; j < w2; j++) t[j] -= g[i * w2 + j] * dweights[i * w2 + j];
    }
    for (int64_t j = 0; j < w2; j++) {
        const float r = 1.0f / (norms[j] + 1.0f);
        t[j] = norms[j] > 0.0f ? r * r * t[j] / norms[j] : 0.0f;
    }
    for (int64_t i = 0; i < z->d; i++) {
#pragma omp simd
        for (int64_t j = 0; j < w2; j++)
            dg[i * w2 + j] = -dweights[i * w2 + j] / (norms[j] + 1.0f) - t[j] * g[i * w2 + j];
    }
}

/* One thread's memory in the backward. */
typedef struct Work {
    float *rows, *values, *pair, *dpair, *all;    /* blocks of tokens */
    float *weights, *trained, *g, *dg, *dweights; /* d x 2w */
    float *read_back, *write_back, *norms, *t;    /* 2w x w, 4w x w, 2w, 2w */
} Work;

static int64_t backward_floats(const Glu *z) {
    return z->block * 10 * z->w + 5 * z->d * 2 * z->w + 6 * z->w * z->w + 4 * z->w;
}

static Work work_split(float *scratch, const Glu *z) {
    const int64_t line = z->block * z->w, square = z->d * 2 * z->w;
    Work k;
    k.rows = scratch;
    k.values = k.rows + line;
    k.pair = k.values + line;
    k.dpair = k.pair + 2 * line;
    k.all = k.dpair + 2 * line;
    k.weights = k.all + 4 * line;
    k.trained = k.weights + square;
    k.g = k.trained + square;
    k.dg = k.g + square;
    k.dweights = k.dg + square;
    k.read_back = k.dweights + square;
    k.write_back = k.read_back + 2 * z->w * z->w;
    k.norms = k.write_back + 4 * z->w * z->w;
    k.t = k.norms + 2 * z->w;
    return k;
}

/* The queries' side: dQ, and dW' into k->dweights. */
static void backward_read(const Glu *z, const Work *k, const Tensor *dqkv, const Tensor *dcat,
                          const Tensor *qkv, int64_t sample, int64_t head) {
    const int64_t w = z->w, d = z->d, q_at = sample * z->tokens * z->packed + head * d;
    for (int64_t t = 0; t < z->tokens; t += z->block) {
        const int64_t n = min_i64(z->block, z->tokens - t), at = q_at + t * z->packed;
        const int64_t out = (sample * z->tokens + t) * z->cat + head * d;
        const Rows q = rows_read(qkv, at, z->packed, n, z, k->rows);
        const Rows dout = rows_read(dcat, out, z->cat, n, z, k->values);
        const Rows dq = rows_target(dqkv, at, z->packed, z, k->values);
        panel_product(k->pair, 2 * w, q.data, q.stride, 1, k->trained, 2 * w, n, 2 * w, d, false);
        read_side_backward(k->pair, dout, n, w);
        panel_product(k->dweights, 2 * w, q.data, 1, q.stride, k->pair, 2 * w, d, 2 * w, n, t > 0);
        panel_product(dq.data, dq.stride, k->pair, 2 * w, 1, k->read_back, w, n, w, 2 * w, false);
        rows_write(dqkv, at, z->packed, dq, n, z);
    }
}

/* The keys' and values' side: dK, dV; adds K'[dZ1|dZ2] to k->dweights. */
static void backward_write(const Glu *z, const Work *k, const Tensor *dqkv, const Tensor *qkv,
                           int64_t sample, int64_t head) {
    const int64_t w = z->w, d = z->d;
    const int64_t k_at = sample * z->tokens * z->packed + z->width + head * d;
    for (int64_t t = 0; t < z->tokens; t += z->block) {
        const int64_t n = min_i64(z->block, z->tokens - t), at = k_at + t * z->packed;
        const Rows keys = rows_read(qkv, at, z->packed, n, z, k->rows);
        const Rows v = rows_read(qkv, at + z->width, z->packed, n, z, k->values);
        const Rows dv = rows_target(dqkv, at + z->width, z->packed, z, k->values);
        const Rows dk = rows_target(dqkv, at, z->packed, z, k->values);
        const float *a = keys.data;
        panel_product(k->pair, 2 * w, a, keys.stride, 1, k->weights, 2 * w, n, 2 * w, d, false);
        panel_product(k->dpair, 2 * w, a, keys.stride, 1, k->dg, 2 * w, n, 2 * w, d, false);
        write_side_backward(k->all, dv, v, k->pair, k->dpair, n, w, z->c);
        rows_write(dqkv, at + z->width, z->packed, dv, n, z);
        panel_product(k->dweights, 2 * w, a, 1, keys.stride, k->all + 2 * w, 4 * w, d, 2 * w, n,
                      true);
        panel_product(dk.data, dk.stride, k->all, 4 * w, 1, k->write_back, w, n, w, 4 * w, false);
        rows_write(dqkv, at, z->packed, dk, n, z);
    }
}

/* One sample and head; adds to dw[2][d][d]. */
static void backward_head(const Glu *z, float *scratch, float *dw, const Tensor *dqkv,
                          const Tensor *dcat, const Tensor *qkv, const float *g, int64_t sample,
                          int64_t head, const float *w1, const float *w2) {
    const Work k = work_split(scratch, z);
    const int64_t square = z->d * z->d;
    pack_pair(k.weights, w1, w2, z);
    pack_pair(k.g, g, g + square, z);
    memcpy(k.trained, k.weights, (size_t)(z->d * 2 * z->w) * sizeof(float));
    column_norms(k.norms, k.g, z);
    write_weights(k.trained, k.g, k.norms, z);
    stack_transposed(k.read_back, k.trained, z);
    backward_read(z, &k, dqkv, dcat, qkv, sample, head);
    norm_backward(k.dg, k.dweights, k.g, k.norms, k.t, z);
    stack_transposed(k.write_back, k.dg, z);
    stack_transposed(k.write_back + 2 * z->w * z->w, k.weights, z);
    backward_write(z, &k, dqkv, qkv, sample, head);
    for (int64_t i = 0; i < z->d; i++) {
        for (int64_t j = 0; j < z->d; j++) {
            dw[i * z->d + j] += k.dweights[i * 2 * z->w + j];
            dw[square + i * z->d + j] += k.dweights[i * 2 * z->w + z->w + j];
        }
    }
}

static Status glu_backward(Device *d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2, Tensor dcat,
                           Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    const Glu z = glu_sizes(s);
    const int64_t square = z.d * z.d, per_thread = backward_floats(&z);
    const int64_t parts = min_i64(s.batch, VITTT_PARTS), stride = s.heads * 2 * square;
    float *scratch, *partial; /* partial[parts][heads][2][d][d] */
    TRY(scratch_floats(d, omp_get_max_threads() * per_thread, &scratch));
    TRY(scratch_floats(d, parts * stride, &partial));
#pragma omp parallel for schedule(static) if (s.batch * z.tokens * z.width >= PARALLEL_MIN / 4)
    for (int64_t unit = 0; unit < parts * s.heads; unit++) {
        const int64_t part = unit / s.heads, head = unit % s.heads;
        float *dw = partial + unit * 2 * square;
        memset(dw, 0, (size_t)(2 * square) * sizeof *dw);
        for (int64_t b = s.batch * part / parts; b < s.batch * (part + 1) / parts; b++)
            backward_head(&z, scratch + omp_get_thread_num() * per_thread, dw, &dqkv, &dcat, &qkv,
                          (const float *)g.data + (b * s.heads + head) * 2 * square, b, head,
                          (const float *)w1.data + head * square,
                          (const float *)w2.data + head * square);
    }
    for (int64_t head = 0; head < s.heads; head++) {
        const float *dw = partial + head * 2 * square;
        Grad first = dw1, second = dw2;
        if (dw1.t.data) {
            first.t.data = (float *)dw1.t.data + head * square;
            row_parts_sum(first, dw, parts, stride, square);
        }
        if (dw2.t.data) {
            second.t.data = (float *)dw2.t.data + head * square;
            row_parts_sum(second, dw + square, parts, stride, square);
        }
    }
    return STATUS_OK;
}

Status vittt_glu_backward_cpu(Device *d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2, Tensor dcat,
                              Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    if (!act_dtype(qkv.dtype) || !act_dtype(dqkv.dtype) || !act_dtype(dcat.dtype))
        return refuse_dtype("vittt_glu_backward", qkv.dtype);
    return scratch_done(d, glu_backward(d, s, dqkv, dw1, dw2, dcat, qkv, g, w1, w2));
}
