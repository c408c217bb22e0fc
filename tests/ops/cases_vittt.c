/* The fused GLU branch of ViTTT against the equations of vittt.md 2.1 and 3.1, written out naively.
 */
#include "cases_vittt.h"

/* What all Grad modes and devices of a case have in common: inputs are drawn before the gradients
 * are declared, so they are the same. Large cases take seconds, so it is worked out once. */
typedef struct Known {
    const OpCase *item;
    DType act;
    double *values;
} Known;

/* False: `count` zeros that the caller has to fill. */
static bool known(const Run *r, Known *k, int64_t count) {
    if (k->item == r->item && k->act == r->act) return true;
    mem_free(k->values);
    *k = (Known){r->item, r->act, zeros(count)};
    return false;
}

/* ---- GLU branch: one (sample, head) ---- */

typedef struct Head {
    const double *q, *k, *v; /* of token 0; `packed` from token to token */
    const double *w1, *w2;
    double *z1, *z2; /* [tokens][d] */
    double *g1, *g2; /* [d][d], with -c */
    double *n1, *n2; /* [d] */
    double *u1, *u2; /* trained weights */
} Head;

static void head_open(Head *h, const Sizes *z) {
    const int64_t rows = z->tokens * z->d, square = z->d * z->d;
    h->z1 = zeros(2 * rows + 4 * square + 2 * z->d);
    h->z2 = h->z1 + rows;
    h->g1 = h->z2 + rows;
    h->g2 = h->g1 + square;
    h->u1 = h->g2 + square;
    h->u2 = h->u1 + square;
    h->n1 = h->u2 + square;
    h->n2 = h->n1 + z->d;
}

static void head_place(Head *h, const Sizes *z, const double *qkv, const double *w1,
                       const double *w2, int64_t b, int64_t head) {
    h->q = qkv + b * z->tokens * z->packed + head * z->d;
    h->k = h->q + z->width;
    h->v = h->k + z->width;
    h->w1 = w1 + head * z->d * z->d;
    h->w2 = w2 + head * z->d * z->d;
}

/* y[d] = x[d] W. */
static void row_times(double *y, const double *x, const double *w, int64_t d) {
    for (int64_t j = 0; j < d; j++) {
        y[j] = 0.0;
        for (int64_t i = 0; i < d; i++) y[j] += x[i] * w[i * d + j];
    }
}

static void head_gradients(Head *h, const Sizes *z) {
    const int64_t d = z->d;
    for (int64_t i = 0; i < d * d; i++) h->g1[i] = h->g2[i] = 0.0;
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *k = h->k + n * z->packed, *v = h->v + n * z->packed;
        double *z1 = h->z1 + n * d, *z2 = h->z2 + n * d;
        row_times(z1, k, h->w1, d);
        row_times(z2, k, h->w2, d);
        for (int64_t j = 0; j < d; j++) {
            const double e = -z->c * v[j];
            const double p1 = e * unary_reference(UNARY_SILU, z2[j]);
            const double p2 = e * z1[j] * unary_reference(UNARY_DSILU, z2[j]);
            for (int64_t i = 0; i < d; i++) {
                h->g1[i * d + j] += k[i] * p1;
                h->g2[i * d + j] += k[i] * p2;
            }
        }
    }
}

static void head_train(Head *h, const Sizes *z) {
    const int64_t d = z->d;
    for (int64_t j = 0; j < d; j++) {
        h->n1[j] = h->n2[j] = 0.0;
        for (int64_t i = 0; i < d; i++) {
            h->n1[j] += h->g1[i * d + j] * h->g1[i * d + j];
            h->n2[j] += h->g2[i * d + j] * h->g2[i * d + j];
        }
        h->n1[j] = sqrt(h->n1[j]);
        h->n2[j] = sqrt(h->n2[j]);
        for (int64_t i = 0; i < d; i++) {
            h->u1[i * d + j] = h->w1[i * d + j] - h->g1[i * d + j] / (h->n1[j] + 1.0);
            h->u2[i * d + j] = h->w2[i * d + j] - h->g2[i * d + j] / (h->n2[j] + 1.0);
        }
    }
}

static void glu_reference(Run *r, const Sizes *z, Tensor cat, Tensor g, Tensor qkv, Tensor w1,
                          Tensor w2) {
    const int64_t d = z->d, square = d * d;
    double *e = expected(r, cat), *eg = expected(r, g);
    for (int64_t i = 0; i < z->s.batch * z->tokens * z->cat; i++) e[i] = values(r, cat)[i];
    Head h;
    head_open(&h, z);
    double *y = zeros(2 * d);
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        const int64_t b = unit / z->s.heads, head = unit % z->s.heads;
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), b, head);
        head_gradients(&h, z);
        head_train(&h, z);
        for (int64_t i = 0; eg && i < square; i++) {
            eg[unit * 2 * square + i] = h.g1[i];
            eg[unit * 2 * square + square + i] = h.g2[i];
        }
        for (int64_t n = 0; n < z->tokens; n++) {
            row_times(y, h.q + n * z->packed, h.u1, d);
            row_times(y + d, h.q + n * z->packed, h.u2, d);
            for (int64_t j = 0; j < d; j++)
                e[(b * z->tokens + n) * z->cat + head * d + j] =
                    y[j] * unary_reference(UNARY_SILU, y[d + j]);
        }
    }
    mem_free(y);
    mem_free(h.z1);
}

/* Tensor cores round the operands of the inner products in BF16 runs, the CPU does not. */
static bool glu_coarse(const Run *r) {
    return r->act == DTYPE_BF16 && r->device->kind == DEVICE_CUDA;
}

static void glu_body(Run *r) {
    const Sizes z = sizes(r);
    r->coarse = glu_coarse(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w1 = input(r, "w1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor w2 = input(r, "w2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor cat = in_place(r, "cat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Tensor g = r->p[5] & 1
                   ? tensor_none()
                   : output(r, "g", DTYPE_F32, 4, (int64_t[]){s.batch, s.heads, 2, z.d * z.d});
    r->flops = 12.0 * (double)(s.batch * z.tokens * z.width * z.d);
    CALL(r, vittt_glu, s, cat, g, qkv, w1, w2);
    if (r->reference) glu_reference(r, &z, cat, g, qkv, w1, w2);
}

static Kept kept_glu(Run *r, const Sizes *z, Tensor qkv, Tensor w1, Tensor w2) {
    static Known cache;
    const int64_t square = z->d * z->d;
    const bool done = known(r, &cache, z->s.batch * z->s.heads * 2 * square);
    Head h;
    if (done) return (Kept){cache.values};
    head_open(&h, z);
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), unit / z->s.heads,
                   unit % z->s.heads);
        head_gradients(&h, z);
        for (int64_t i = 0; i < square; i++) {
            cache.values[unit * 2 * square + i] = h.g1[i];
            cache.values[unit * 2 * square + square + i] = h.g2[i];
        }
    }
    mem_free(h.z1);
    return (Kept){cache.values};
}

/* dW' for one head and dQ of every token; dq as in qkv, or NULL. */
static void read_backward(const Head *h, const Sizes *z, const double *dout, double *dq,
                          double *du1, double *du2) {
    const int64_t d = z->d;
    double *y = zeros(2 * d);
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *q = h->q + n * z->packed, *g = dout + n * z->cat;
        row_times(y, q, h->u1, d);
        row_times(y + d, q, h->u2, d);
        for (int64_t j = 0; j < d; j++) {
            const double dy1 = g[j] * unary_reference(UNARY_SILU, y[d + j]);
            const double dy2 = g[j] * y[j] * unary_reference(UNARY_DSILU, y[d + j]);
            for (int64_t i = 0; i < d; i++) {
                du1[i * d + j] += q[i] * dy1;
                du2[i * d + j] += q[i] * dy2;
                dq[n * z->packed + i] += dy1 * h->u1[i * d + j] + dy2 * h->u2[i * d + j];
            }
        }
    }
    mem_free(y);
}

static void write_backward(const Head *h, const Sizes *z, const double *dg1, const double *dg2,
                           double *dk, double *dv, double *dw1, double *dw2) {
    const int64_t d = z->d;
    double *dp = zeros(2 * d);
    for (int64_t n = 0; n < z->tokens; n++) {
        const double *k = h->k + n * z->packed, *v = h->v + n * z->packed;
        row_times(dp, k, dg1, d);
        row_times(dp + d, k, dg2, d);
        for (int64_t j = 0; j < d; j++) {
            const double z1 = h->z1[n * d + j], z2 = h->z2[n * d + j], e = -z->c * v[j];
            const double a = unary_reference(UNARY_SILU, z2), s = unary_reference(UNARY_DSILU, z2);
            const double bend = unary_reference(UNARY_D2SILU, z2);
            const double dz1 = dp[d + j] * e * s;
            const double dz2 = dp[j] * e * s + dp[d + j] * e * z1 * bend;
            dv[n * z->packed + j] = -z->c * (dp[j] * a + dp[d + j] * z1 * s);
            for (int64_t i = 0; i < d; i++) {
                dk[n * z->packed + i] += e * a * dg1[i * d + j] + e * z1 * s * dg2[i * d + j] +
                                         dz1 * h->w1[i * d + j] + dz2 * h->w2[i * d + j];
                dw1[i * d + j] += k[i] * dz1;
                dw2[i * d + j] += k[i] * dz2;
            }
        }
    }
    mem_free(dp);
}

/* Into e, and e1, e2, which start as zeros. */
static void glu_backward_all(Run *r, const Sizes *z, double *e, double *e1, double *e2, Tensor dqkv,
                             Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    const int64_t d = z->d, square = d * d;
    for (int64_t i = 0; i < z->s.batch * z->tokens * z->packed; i++)
        e[i] = i % z->packed < 3 * z->width ? 0.0 : values(r, dqkv)[i];
    Head h;
    head_open(&h, z);
    double *du = zeros(4 * square), *dg = du + 2 * square;
    for (int64_t unit = 0; unit < z->s.batch * z->s.heads; unit++) {
        const int64_t b = unit / z->s.heads, head = unit % z->s.heads;
        double *to = e + b * z->tokens * z->packed + head * d;
        head_place(&h, z, values(r, qkv), values(r, w1), values(r, w2), b, head);
        head_gradients(&h, z); /* for z1, z2; the kept gradients are those that the kernel got */
        for (int64_t i = 0; i < square; i++) {
            h.g1[i] = values(r, g)[unit * 2 * square + i];
            h.g2[i] = values(r, g)[unit * 2 * square + square + i];
            du[i] = du[square + i] = 0.0;
        }
        head_train(&h, z);
        read_backward(&h, z, values(r, dcat) + b * z->tokens * z->cat + head * d, to, du,
                      du + square);
        soft_backward(dg, h.g1, h.n1, du, d, d);
        soft_backward(dg + square, h.g2, h.n2, du + square, d, d);
        write_backward(&h, z, dg, dg + square, to + z->width, to + 2 * z->width, du, du + square);
        for (int64_t i = 0; i < square; i++) e1[head * square + i] += du[i];
        for (int64_t i = 0; i < square; i++) e2[head * square + i] += du[square + i];
    }
    mem_free(du);
    mem_free(h.z1);
}

static void glu_backward_reference(Run *r, const Sizes *z, Tensor dqkv, Grad dw1, Grad dw2,
                                   Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    static Known cache;
    const int64_t packed = z->s.batch * z->tokens * z->packed, weights = z->s.heads * z->d * z->d;
    const bool done = known(r, &cache, packed + 2 * weights);
    double *e1 = cache.values + packed, *e2 = e1 + weights;
    if (!done) glu_backward_all(r, z, cache.values, e1, e2, dqkv, dcat, qkv, g, w1, w2);
    memcpy(expected(r, dqkv), cache.values, (size_t)packed * sizeof *e1);
    if (dw1.t.data) memcpy(expected(r, dw1.t), e1, (size_t)weights * sizeof *e1);
    if (dw2.t.data) memcpy(expected(r, dw2.t), e2, (size_t)weights * sizeof *e2);
}

static void glu_backward_body(Run *r) {
    const Sizes z = sizes(r);
    r->coarse = glu_coarse(r);
    const VitttShape s = z.s;
    Tensor qkv = packed_input(r, &z);
    Tensor w1 = input(r, "w1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor w2 = input(r, "w2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d), 0.5);
    Tensor dcat = input(r, "dcat", r->act, SHAPE(s.batch, z.tokens, z.cat), 1.0);
    Kept kept = kept_glu(r, &z, qkv, w1, w2);
    Tensor g =
        input_of(r, "g", DTYPE_F32, SHAPE(s.batch, s.heads, 2, z.d * z.d), kept_value, &kept);
    Tensor dqkv = in_place(r, "dqkv", r->act, SHAPE(s.batch, z.tokens, z.packed), 1.0);
    Grad dw1 = gradient(r, "dw1", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d));
    Grad dw2 = gradient(r, "dw2", DTYPE_F32, SHAPE(1, s.heads, z.d, z.d));
    r->flops = 32.0 * (double)(s.batch * z.tokens * z.width * z.d);
    CALL(r, vittt_glu_backward, s, dqkv, dw1, dw2, dcat, qkv, g, w1, w2);
    if (r->reference) glu_backward_reference(r, &z, dqkv, dw1, dw2, dcat, qkv, g, w1, w2);
}

/* For the tensor-core kernels, heads of 64: one short chunk, whole chunks, a short last chunk, more
 * samples than blocks. Few tokens average less of what rounding the weights costs. */
#define HEADS_64(slot, body)                                                                       \
    {slot, body, {1, 3, 5, 2, 64}, BOTH, 1.5}, {slot, body, {1, 17, 1, 1, 64}, BOTH, 1.5},         \
        {slot, body, {2, 16, 16, 2, 64}, BOTH, 0}, {slot, body, {2, 14, 14, 3, 64}, BOTH, 0},      \
        {slot, body, {2, 7, 7, 2, 64, 3}, BOTH, 0}, {slot, body, {12, 17, 1, 24, 64}, BOTH, 1.5},  \
    {                                                                                              \
        slot, body, {12, 13, 5, 24, 64}, BOTH, 1.5                                                 \
    }
/* Heads of 32 come in pairs. */
#define HEADS_32(slot, body)                                                                       \
    {slot, body, {1, 3, 5, 3, 32}, BOTH, 1.5}, {slot, body, {2, 16, 16, 2, 32}, BOTH, 0},          \
        {slot, body, {2, 5, 5, 1, 32}, BOTH, 1.5}, {slot, body, {2, 7, 7, 2, 32, 3}, BOTH, 0},     \
        {slot, body, {12, 17, 1, 47, 32}, BOTH, 1.5}, {                                            \
        slot, body, {23, 13, 5, 23, 32}, BOTH, 1.5                                                 \
    }

const OpCase cases_vittt[] = {
    SHAPES("vittt_glu", glu_body),
    SHAPES("vittt_glu_backward", glu_backward_body),
    HEADS_64("vittt_glu", glu_body),
    HEADS_64("vittt_glu_backward", glu_backward_body),
    HEADS_32("vittt_glu", glu_body),
    HEADS_32("vittt_glu_backward", glu_backward_body),
    BENCH("vittt_glu", glu_body),
    BENCH("vittt_glu_backward", glu_backward_body),
    {0},
};
