/* The parallel form of the chunked layer (fastweight.md 4.4): all chunks' gradients in one batched
 * product, momentum and the sum of the updates as scans over the chunks, Newton-Schulz batched.
 */
#include "nn/ops_check.h"
#include "ttt/chunked_parts.h"

/* Sizes of the whole chunks. */
typedef struct Blocks {
    int64_t groups, chunks, size, hidden, columns;
} Blocks;

/* The first chunks * size tokens of x [B*H,N,.]. */
static Var *whole(const ChunkedRun *r, const Blocks *b, Var *x) {
    if (!x || tape_poison(r->t) || b->chunks * b->size == r->tokens) return x;
    return scope_keep(r->s, op_slice_tokens(r->t, x, 0, b->chunks * b->size));
}

/* x [.., C*n, w] as [B*H, C, n, w]. */
static Var *blocked(const ChunkedRun *r, const Blocks *b, Var *x) {
    if (tape_poison(r->t)) return tape_poison(r->t);
    return op_view(r->t, x, 4, (int64_t[]){b->groups, b->chunks, b->size, tensor_last(x->value)});
}

/* phi of all whole chunks' tokens. */
static Var *features(const ChunkedRun *r, const Blocks *b, Var *x, const ChunkedNow *now) {
    Var *all = whole(r, b, x);
    if (tape_poison(r->t)) return tape_poison(r->t);
    const int64_t shape[] = {r->batch, r->heads, b->chunks * b->size, tensor_last(x->value)};
    return blocked(r, b,
                   chunked_phi(r, op_view(r->t, all, 4, shape), now->weight[0], now->weight[2]));
}

/* Matrices of chunks as rows of a sequence: [B*H, C, h*w]. */
static Var *as_rows(const ChunkedRun *r, const Blocks *b, Var *x) {
    if (tape_poison(r->t)) return tape_poison(r->t);
    return op_view(r->t, x, 3, (int64_t[]){b->groups, b->chunks, b->hidden * b->columns});
}
static Var *as_matrices(const ChunkedRun *r, const Blocks *b, Var *x) {
    if (tape_poison(r->t)) return tape_poison(r->t);
    return op_view(r->t, x, 4, (int64_t[]){b->groups, b->chunks, b->hidden, b->columns});
}

/* A state [B or 1,H,h,w] for every head: [B*H, h*w]. */
static Var *as_start(const ChunkedRun *r, const Blocks *b, Var *w) {
    Tape *t = r->t;
    if (!w || tape_poison(t)) return w;
    Var *all = w;
    if (w->value.shape[0] != r->batch) {
        const int64_t shape[] = {r->batch, r->heads, b->hidden, b->columns};
        all = scope_keep(r->s, op_add(t, w, scope_constant(r->s, 4, shape, 0), 1));
    }
    if (tape_poison(t)) return tape_poison(t);
    return op_view(t, all, 2, (int64_t[]){b->groups, b->hidden * b->columns});
}

/* P_i = D_i + m_i P_{i-1}. */
static Var *momentum(const ChunkedRun *r, const Blocks *b, Var *d, Var *start) {
    Tape *t = r->t;
    if (!r->momentum || tape_poison(t)) return d;
    Var *m = whole(r, b, r->momentum);
    if (tape_poison(t)) return tape_poison(t);
    Var *rows = op_view(t, m, 3, (int64_t[]){b->groups, b->chunks, b->size});
    Var *share = scope_constant(r->s, 3, (int64_t[]){1, b->size, 1}, 1.0f / (float)b->size);
    Var *mean = scope_keep(r->s, op_matmul(t, rows, false, share, false, 1, DTYPE_F32));
    Var *log = scope_keep(r->s, op_log(t, mean));
    return scope_keep(r->s, op_decay_scan(t, d, log, as_start(r, b, start)));
}

/* Of the scan `x` [B*H,C,h*w], the state behind the last chunk as [B,H,h,w]. */
static Var *last_state(const ChunkedRun *r, const Blocks *b, Var *x) {
    Var *last = op_slice_tokens(r->t, x, b->chunks - 1, 1);
    if (tape_poison(r->t)) return tape_poison(r->t);
    return op_view(r->t, last, 4, (int64_t[]){r->batch, r->heads, b->hidden, b->columns});
}

/* What each chunk reads: the sums up to it, or one chunk less. */
static Var *read_weights(const ChunkedRun *r, const Blocks *b, Var *sums, Var *start) {
    Tape *t = r->t;
    if (r->rule->inclusive || tape_poison(t)) return sums;
    Var *first = op_view(t, start, 3, (int64_t[]){b->groups, 1, b->hidden * b->columns});
    if (b->chunks == 1) return first;
    Var *before = scope_keep(r->s, op_slice_tokens(t, sums, 0, b->chunks - 1));
    return scope_keep(r->s, op_concat_tokens(t, first, before));
}

static Var *scan(const ChunkedRun *r, const Blocks *b, ChunkedNow *now) {
    Tape *t = r->t;
    Var *keys = features(r, b, r->k, now), *rate = whole(r, b, r->rate[1]);
    if (rate) keys = scope_keep(r->s, op_scale_tokens(t, keys, rate));
    Var *values = blocked(r, b, whole(r, b, r->v));
    Var *d = scope_keep(r->s, op_matmul(t, keys, true, values, false, 1, DTYPE_F32));
    Var *p = momentum(r, b, as_rows(r, b, d), now->update[1]);
    Var *u = p;
    if (!r->rule->no_muon)
        u = as_rows(r, b,
                    scope_keep(r->s, op_newton_schulz(t, as_matrices(r, b, p),
                                                      r->rule->newton_schulz, DTYPE_F32)));
    if (r->rule->ascend) u = scope_keep(r->s, op_scale(t, u, -1));
    Var *start = as_start(r, b, now->weight[1]);
    Var *sums = scope_keep(r->s, op_decay_scan(t, u, NULL, start));
    Var *weights = as_matrices(r, b, read_weights(r, b, sums, start));
    Var *queries = features(r, b, r->q, now);
    Var *y = op_matmul(t, queries, false, chunked_operand(r, weights), false, 1, r->act);
    if (r->momentum) now->update[1] = last_state(r, b, p);
    now->weight[1] = last_state(r, b, sums);
    if (tape_poison(t)) return tape_poison(t);
    return op_view(t, y, 3, (int64_t[]){b->groups, b->chunks * b->size, b->columns});
}

Var *chunked_scan(const ChunkedRun *r, ChunkedNow *now) {
    const int64_t size = r->rule->chunk > 0 ? r->rule->chunk : r->tokens;
    const int64_t *w = now->weight[1]->value.shape;
    const Blocks b = {.groups = r->batch * r->heads,
                      .chunks = r->tokens / size,
                      .size = size,
                      .hidden = w[2],
                      .columns = w[3]};
    if (b.chunks == 0) return chunked_recur(r, 0, NULL, now);
    Var *y = scan(r, &b, now);
    scope_end(r->s);
    const int64_t done = b.chunks * b.size;
    return done == r->tokens ? y : chunked_recur(r, done, y, now);
}
