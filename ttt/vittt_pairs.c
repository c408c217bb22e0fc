/* The token-pair (linear-attention) form of the fast-weight branches, vittt.md 2.4. */
#include "ttt/vittt_forms.h"

#include "core/memory.h"

/* A constant in step memory: the tape forgets it at its next reset. */
static Var *constant(Tape *t, const float *host, int rank, const int64_t *shape, const char *name) {
    Tensor value;
    Status s = tape_take(t, DTYPE_F32, rank, shape, &value);
    if (s == STATUS_OK) s = device_push(tape_device(t), value, host);
    return s == STATUS_OK ? tape_input(t, value, name) : tape_fail(t, s);
}

static Var *ones(Tape *t, int64_t rows, int64_t columns) {
    float *host;
    Status s = mem_alloc((void **)&host, rows * columns, sizeof *host, "a block of ones");
    if (s != STATUS_OK) return tape_fail(t, s);
    for (int64_t i = 0; i < rows * columns; i++) {
        host[i] = 1;
    }
    Var *v = constant(t, host, 4, (int64_t[]){1, 1, rows, columns}, "ones");
    mem_free(host);
    return v;
}

/* 1 - r per column, r = 1/(n+1), n the norm of G's column, repeated over `rows` rows: [B,h,rows,m].
 *
 * The soft norm gives G^ = G/(n+1), whose norm is n/(n+1) = 1 - r: r is one norm away. A norm
 * without a square root: x . softnorm(a x) = |x| - |x|/(a|x|+1), at most 1/a below |x|, here 1e-9
 * of a number in [0,1). */
static Var *soft_share(Tape *t, Var *g, int64_t rows) {
    const float sharp = 1 << 30;
    const int64_t *n = g->value.shape;
    Var *soft = op_softnorm(t, g, n[0] * n[1], n[2], n[3]);
    Var *scaled = op_scale(t, soft, sharp);
    Var *unit = op_softnorm(t, scaled, n[0] * n[1], n[2], n[3]);
    Var *products = op_mul(t, soft, unit);
    drop(t, soft);
    drop(t, scaled);
    drop(t, unit);
    Var *column_sums = ones(t, rows, n[2]);
    Var *share = op_matmul(t, column_sums, false, products, false, 1, DTYPE_F32);
    drop(t, products);
    return share;
}

Var *fast_read_pairs(Tape *t, Var *q, Var *k, Var *scores, Var *p, Var *w, FastStep s) {
    Var *update = op_matmul(t, scores, false, p, false, s.rate, DTYPE_F32); /* c (QK')P */
    if (!s.raw) {
        /* Only the norms need G; their pairwise form c^2 P'(KK')P is the same number at a higher
         * price. */
        Var *g = op_matmul(t, k, true, p, false, -s.rate, DTYPE_F32);
        Var *share = soft_share(t, g, q->value.shape[2]);
        Var *cut = op_mul(t, update, share);
        Var *softened = op_add(t, update, cut, -1);
        drop(t, g);
        drop(t, share);
        drop(t, cut);
        drop(t, update);
        update = softened;
    }
    Var *before = op_matmul(t, q, false, w, false, 1, DTYPE_F32);
    Var *y = op_add(t, before, update, s.ascend ? -1 : 1);
    drop(t, before);
    drop(t, update);
    return y;
}

/* x [B,N,d] -> [B,d,N,9]: the 3x3 neighbourhood of every pixel, zeros outside. Each channel is
 * repeated 9 times by a product with 0/1 rows, then shifted by one-hot kernels. */
static Var *neighbourhoods(Tape *t, Var *x, Var *repeat, Var *shifts, int64_t height,
                           int64_t width) {
    const int64_t batch = x->value.shape[0], d = x->value.shape[2];
    Var *wide = op_linear(t, x, repeat, NULL);
    Var *map = op_view(t, wide, 4, (int64_t[]){batch, height, width, 9 * d});
    Var *shifted = op_dwconv_apply(t, map, shifts);
    drop(t, wide);
    Var *tokens = op_view(t, shifted, 3, (int64_t[]){batch, height * width, 9 * d});
    Var *columns = op_split_heads(t, tokens, 0, d, 9);
    drop(t, shifted);
    return columns;
}

/* repeat [9d,d]: row 9c+tap picks channel c. shifts [1,9d,9]: channel 9c+tap is shifted by tap. */
static Status neighbourhood_constants(Tape *t, int64_t d, Var **repeat, Var **shifts) {
    float *host;
    TRY(mem_alloc((void **)&host, 9 * d * (d + 9), sizeof *host, "neighbourhood constants"));
    float *pick = host, *one_hot = host + 9 * d * d;
    for (int64_t row = 0; row < 9 * d; row++) {
        pick[row * d + row / 9] = 1;
        one_hot[row * 9 + row % 9] = 1;
    }
    *repeat = constant(t, pick, 2, (int64_t[]){9 * d, d}, "channel repetition");
    *shifts = constant(t, one_hot, 3, (int64_t[]){1, 9 * d, 9}, "shifts");
    mem_free(host);
    return tape_status(t);
}

Var *dwc_pairs(Tape *t, Var *q, Var *k, Var *v, Var *w3, int64_t height, int64_t width,
               FastStep s) {
    const int64_t d = v->value.shape[2];
    Var *repeat, *shifts;
    Status made = neighbourhood_constants(t, d, &repeat, &shifts);
    if (made != STATUS_OK) return tape_fail(t, made);
    Var *q9 = neighbourhoods(t, q, repeat, shifts, height, width);
    Var *k9 = k == q ? q9 : neighbourhoods(t, k, repeat, shifts, height, width);
    Var *values = op_split_heads(t, v, 0, d, 1);
    Var *taps = op_view(t, w3, 4, (int64_t[]){1, d, 9, 1});
    Var *scores = op_matmul(t, q9, false, k9, true, 1, DTYPE_F32);
    Var *y = fast_read_pairs(t, q9, k9, scores, values, taps, s);
    drop(t, scores);
    drop(t, values);
    if (k9 != q9) drop(t, k9);
    drop(t, q9);
    return y;
}
