/* Switches, shapes and the two forms of the chunked layer; the recurrent form (fastweight.md 4.1).
 */
#include "ttt/chunked.h"

#include <string.h>

#include "core/memory.h"
#include "nn/ops_check.h"
#include "ttt/chunked_fused.h"
#include "ttt/chunked_parts.h"
#include "ttt/newton_schulz.h"

#define COLUMN_OFFSET 1e-5f

Status chunked_variant(int variant, ChunkedRule *out) {
    if (variant < 0 || variant > 6)
        return status_set(STATUS_USAGE, "variant %d: expected 0 to 6", variant);
    *out = (ChunkedRule){.static_gates = variant >= 1,
                         .no_weight_norm = variant >= 2,
                         .linear = variant >= 3,
                         .no_muon = variant >= 6,
                         .steps = 1,
                         .newton_schulz = newton_schulz_fixed(NEWTON_SCHULZ_STEPS, false)};
    return STATUS_OK;
}

bool chunked_has_parallel(const ChunkedRule *r) {
    return (r->static_gates || r->linear) && r->no_weight_norm && r->steps == 1;
}

void chunked_pair_weights(const double *alpha, int64_t chunks, bool inclusive, double *out) {
    for (int64_t i = 0; i < chunks; i++)
        for (int64_t j = 0; j < chunks; j++) {
            double sum = 0, product = 1;
            for (int64_t l = j; l < (inclusive ? i + 1 : i); l++) {
                product *= l > j ? alpha[l] : 1;
                sum += product;
            }
            out[i * chunks + j] = sum;
        }
}

/* ---- shapes ---- */

static bool is_scalar_per_token(const Var *v, const int64_t *q) {
    return !v || (v->value.dtype == DTYPE_F32 && v->value.rank == 3 && v->value.shape[0] == q[0] &&
                  v->value.shape[1] == q[1] && v->value.shape[2] == q[2]);
}

static bool is_weight(const Var *v, const int64_t *q, int64_t rows, int64_t columns) {
    if (!v || v->value.dtype != DTYPE_F32 || v->value.rank != 4) return false;
    const int64_t *s = v->value.shape;
    return (s[0] == 1 || s[0] == q[0]) && s[1] == q[1] && s[2] == rows && s[3] == columns;
}

static Status check_weights(const ChunkedRule *r, const ChunkedTokens *in) {
    const int64_t *q = in->q->value.shape, dv = in->v->value.shape[3];
    if (!in->weight[1] || in->weight[1]->value.rank != 4)
        return status_set(STATUS_USAGE, "chunked layer: W1 must be F32 [B or 1,H,dh,dv]");
    const int64_t hidden = r->linear ? q[3] : in->weight[1]->value.shape[2];
    for (int j = 0; j < 3; j++) {
        if (r->linear && j != 1) continue;
        const int64_t rows = j == 1 ? hidden : q[3], columns = j == 1 ? dv : hidden;
        if (!is_weight(in->weight[j], q, rows, columns) ||
            (in->update[j] && !is_weight(in->update[j], q, rows, columns)) ||
            (in->initial[j] && !is_weight(in->initial[j], q, rows, columns)))
            return status_set(STATUS_USAGE,
                              "chunked layer: W%d and what belongs to it must be F32 "
                              "[%lld or 1,%lld,%lld,%lld]",
                              j, (long long)q[0], (long long)q[1], (long long)rows,
                              (long long)columns);
    }
    return STATUS_OK;
}

static Status check(const ChunkedRule *r, ChunkedForm form, const ChunkedTokens *in) {
    const Tensor q = in->q->value, k = in->k->value, v = in->v->value;
    if (q.rank != 4 || v.rank != 4 || !tensor_same_shape(q, k) || q.dtype != k.dtype ||
        q.dtype != v.dtype || !op_is_act(q.dtype) || v.shape[0] != q.shape[0] ||
        v.shape[1] != q.shape[1] || v.shape[2] != q.shape[2])
        return status_set(STATUS_USAGE, "chunked layer: expected q and k [B,H,N,dk] and v "
                                        "[B,H,N,dv] of one dtype");
    for (int j = 0; j < 3; j++)
        if (!is_scalar_per_token(in->rate[j], q.shape))
            return status_set(STATUS_USAGE, "chunked layer: rates must be F32 [B,H,N]");
    if (!is_scalar_per_token(in->momentum, q.shape))
        return status_set(STATUS_USAGE, "chunked layer: momentum must be F32 [B,H,N]");
    if (r->steps < 1) return status_set(STATUS_USAGE, "chunked layer: steps must be at least 1");
    if (form == CHUNKED_PARALLEL && !chunked_has_parallel(r))
        return status_set(STATUS_USAGE,
                          "chunked layer: no parallel form where a chunk's gradient depends on the "
                          "weights (W0 and W2 written, weight norm, several steps)");
    return check_weights(r, in);
}

/* ---- parts ---- */

Var *chunked_operand(const ChunkedRun *r, Var *x) {
    Var *y = op_cast(r->t, x, r->act);
    return y == x ? x : scope_keep(r->s, y);
}

static Var *product(const ChunkedRun *r, Var *a, bool ta, Var *b, bool tb, DType out) {
    return scope_keep(
        r->s, op_matmul(r->t, chunked_operand(r, a), ta, chunked_operand(r, b), tb, 1, out));
}

static Var *times(const ChunkedRun *r, Var *a, Var *b) {
    return scope_keep(r->s, op_mul(r->t, a, b));
}

/* x's rows times a factor per token. */
static Var *rated(const ChunkedRun *r, Var *x, Var *rate) {
    return rate ? scope_keep(r->s, op_scale_tokens(r->t, x, rate)) : x;
}

Var *chunked_phi(const ChunkedRun *r, Var *x, Var *w0, Var *w2) {
    if (r->rule->linear) return x;
    Var *a = product(r, x, false, w0, false, r->act), *b = product(r, x, false, w2, false, r->act);
    return times(r, scope_keep(r->s, op_silu(r->t, a)), b);
}

/* |w|_col, [.,H,1,columns], with its gradient. */
static Var *column_norms(const ChunkedRun *r, Var *w) {
    if (tape_poison(r->t)) return tape_poison(r->t);
    const int64_t rows = w->value.shape[2];
    Var *ones = scope_constant(r->s, 4, (int64_t[]){1, 1, 1, rows}, 1);
    Var *square = scope_keep(r->s, op_mul(r->t, w, w));
    Var *sum = scope_keep(r->s, op_matmul(r->t, ones, false, square, false, 1, DTYPE_F32));
    return times(r, sum, scope_keep(r->s, op_rsqrt(r->t, sum)));
}

Var *chunked_weight_norm(const ChunkedRun *r, Var *w, Var *initial) {
    Tape *t = r->t;
    if (tape_poison(t)) return tape_poison(t);
    scope_keep(r->s, w);
    const int64_t *s = w->value.shape;
    Var *unit = scope_keep(r->s, op_normalise(t, w, s[0] * s[1], s[2], s[3], COLUMN_OFFSET));
    Var *norms = column_norms(r, initial);
    if (tape_poison(t)) return tape_poison(t);
    if (norms->value.shape[0] != s[0]) {
        Var *zero = scope_constant(r->s, 4, (int64_t[]){s[0], s[1], 1, s[3]}, 0);
        norms = scope_keep(r->s, op_add(t, norms, zero, 1));
    }
    Var *ones = scope_constant(r->s, 4, (int64_t[]){1, 1, s[2], 1}, 1);
    Var *all = scope_keep(r->s, op_matmul(t, ones, false, norms, false, 1, DTYPE_F32));
    return op_mul(t, unit, all);
}

/* ---- one step ---- */

/* Tokens of one chunk, [B,H,n,.]. */
typedef struct ChunkedPart {
    Var *q, *k, *v, *rate[3], *momentum; /* momentum [B*H,1,1]: the chunk's factor */
} ChunkedPart;

/* The descent directions D0, D1, D2 at the weights `w` (4.1). */
static void directions(const ChunkedRun *r, const ChunkedPart *p, Var *const w[3], Var *d[3]) {
    Tape *t = r->t;
    d[0] = d[2] = NULL;
    if (r->rule->linear) {
        d[1] = product(r, rated(r, p->k, p->rate[1]), true, p->v, false, DTYPE_F32);
        return;
    }
    Var *z0 = product(r, p->k, false, w[0], false, r->act);
    Var *z2 = product(r, p->k, false, w[2], false, r->act);
    Var *a = scope_keep(r->s, op_silu(t, z0));
    Var *h = times(r, a, z2);
    d[1] = product(r, rated(r, h, p->rate[1]), true, p->v, false, DTYPE_F32);
    if (r->rule->static_gates) return;
    Var *dh = product(r, p->v, false, w[1], true, r->act);
    d[2] = product(r, rated(r, p->k, p->rate[2]), true, times(r, dh, a), false, DTYPE_F32);
    Var *slope = scope_keep(r->s, op_silu_grad(t, z0));
    Var *e = times(r, times(r, dh, z2), slope);
    d[0] = product(r, rated(r, p->k, p->rate[0]), true, e, false, DTYPE_F32);
}

/* P = D + m P. */
static Var *with_momentum(const ChunkedRun *r, const ChunkedPart *p, Var *d, Var *before) {
    Tape *t = r->t;
    if (!p->momentum || !before || tape_poison(t)) return d;
    const int64_t groups = r->batch * r->heads, size = tensor_count(d->value) / groups;
    Var *flat = op_view(t, before, 2, (int64_t[]){groups, size});
    Var *kept = scope_keep(r->s, op_scale_tokens(t, flat, p->momentum));
    if (tape_poison(t)) return tape_poison(t);
    Var *shaped = op_view(t, kept, 4, d->value.shape);
    return scope_keep(r->s, op_add(t, d, shaped, 1));
}

/* Moves the weights; what they were ends with the scope, but for those the caller owns. */
static void step(const ChunkedRun *r, const ChunkedPart *p, ChunkedNow *now) {
    Tape *t = r->t;
    Var *d[3];
    const ChunkedNow before = *now;
    directions(r, p, before.weight, d);
    for (int j = 0; j < 3 && !tape_poison(t); j++) {
        if (!d[j]) continue;
        Var *u = with_momentum(r, p, d[j], before.update[j]);
        if (p->momentum) now->update[j] = u;
        Var *moved = u;
        if (!r->rule->no_muon)
            moved = scope_keep(r->s, op_newton_schulz(t, u, r->rule->newton_schulz, DTYPE_F32));
        Var *w = op_add(t, before.weight[j], moved, r->rule->ascend ? -1 : 1);
        now->weight[j] = r->rule->no_weight_norm ? w : chunked_weight_norm(r, w, r->initial[j]);
    }
}

/* ---- chunk after chunk ---- */

static Var *run_of(const ChunkedRun *r, Var *x, int64_t first, int64_t n) {
    if (!x || tape_poison(r->t) || x->value.shape[1] == n) return x;
    return scope_keep(r->s, op_slice_tokens(r->t, x, first, n));
}

static Var *headed(const ChunkedRun *r, Var *x) {
    if (!x || tape_poison(r->t)) return x;
    const int64_t *s = x->value.shape;
    return op_view(r->t, x, 4, (int64_t[]){r->batch, r->heads, s[1], s[2]});
}

static ChunkedPart part_of(const ChunkedRun *r, int64_t first, int64_t n) {
    ChunkedPart p = {.q = headed(r, run_of(r, r->q, first, n)),
                     .k = headed(r, run_of(r, r->k, first, n)),
                     .v = headed(r, run_of(r, r->v, first, n))};
    for (int j = 0; j < 3; j++) p.rate[j] = headed(r, run_of(r, r->rate[j], first, n));
    if (!r->momentum) return p;
    Var *mean = scope_constant(r->s, 3, (int64_t[]){1, 1, n}, 1.0f / (float)n);
    p.momentum = scope_keep(
        r->s, op_matmul(r->t, mean, false, run_of(r, r->momentum, first, n), false, 1, DTYPE_F32));
    return p;
}

static Var *read(const ChunkedRun *r, const ChunkedPart *p, Var *const w[3]) {
    Var *phi = chunked_phi(r, p->q, w[0], w[2]);
    Var *y =
        op_matmul(r->t, chunked_operand(r, phi), false, chunked_operand(r, w[1]), false, 1, r->act);
    if (tape_poison(r->t)) return tape_poison(r->t);
    const int64_t *s = y->value.shape;
    return op_view(r->t, y, 3, (int64_t[]){s[0] * s[1], s[2], s[3]});
}

/* v, which may be a view of what the layer owns, is used up. */
static void drop(Tape *t, Var *v) {
    tape_drop(t, v->base ? v->base : v);
}

static Var *append(Tape *t, Var *all, Var *y) {
    if (!all || tape_poison(t)) return tape_poison(t) ? tape_poison(t) : y;
    Var *longer = op_concat_tokens(t, all, y);
    drop(t, all);
    drop(t, y);
    return longer;
}

/* Values of `now` that live on must not end with the scope. */
static void keep_state(const ChunkedRun *r, const ChunkedNow *before, const ChunkedNow *now,
                       bool owned) {
    for (int j = 0; j < 3 && !tape_poison(r->t); j++) {
        if (now->update[j]) scope_release(r->s, now->update[j]);
        if (!owned) continue;
        if (before->weight[j] != now->weight[j]) tape_drop(r->t, before->weight[j]);
        if (before->update[j] && before->update[j] != now->update[j])
            tape_drop(r->t, before->update[j]);
    }
}

Var *chunked_recur(const ChunkedRun *r, int64_t first, Var *all, ChunkedNow *now) {
    Tape *t = r->t;
    const ChunkedRule *rule = r->rule;
    const int64_t size = rule->chunk > 0 && rule->chunk < r->tokens ? rule->chunk : r->tokens;
    bool owned = first > 0;
    for (int64_t at = first; at < r->tokens && !tape_poison(t); at += size) {
        const ChunkedNow before = *now;
        const int64_t n = r->tokens - at < size ? r->tokens - at : size;
        const ChunkedPart p = part_of(r, at, n);
        Var *y = rule->inclusive ? NULL : read(r, &p, now->weight);
        for (int64_t i = 0; i < rule->steps; i++) {
            const ChunkedNow middle = *now;
            step(r, &p, now);
            for (int j = 0; i > 0 && j < 3; j++)
                if (middle.weight[j] != now->weight[j]) scope_keep(r->s, middle.weight[j]);
        }
        if (rule->inclusive) y = read(r, &p, now->weight);
        all = append(t, all, y);
        keep_state(r, &before, now, owned);
        scope_end(r->s);
        owned = true;
    }
    return tape_poison(t) ? tape_poison(t) : all;
}

/* ---- entry ---- */

static Var *rows_of(Tape *t, Var *x) {
    if (!x) return NULL;
    const int64_t *s = x->value.shape, last = x->value.rank == 4 ? s[3] : 1;
    return op_view(t, x, 3, (int64_t[]){s[0] * s[1], s[2], last});
}

static ChunkedRun run_new(const ChunkedRule *rule, Scope *s, const ChunkedTokens *in) {
    Tape *t = s->t;
    const int64_t *q = in->q->value.shape;
    ChunkedRun r = {.rule = rule,
                    .t = t,
                    .s = s,
                    .act = in->q->value.dtype,
                    .batch = q[0],
                    .heads = q[1],
                    .tokens = q[2],
                    .q = rows_of(t, in->q),
                    .k = rows_of(t, in->k),
                    .v = rows_of(t, in->v),
                    .momentum = rows_of(t, in->momentum)};
    for (int j = 0; j < 3; j++) {
        r.rate[j] = rows_of(t, in->rate[j]);
        Var *like = in->initial[j] ? in->initial[j] : in->weight[j];
        r.initial[j] = like && rule->detach_norm ? op_detach(t, like) : like;
    }
    return r;
}

static void finish(const ChunkedRun *r, const ChunkedTokens *in, const ChunkedNow *now,
                   ChunkedState *end) {
    for (int j = 0; j < 3; j++) {
        const bool written = now->weight[j] != in->weight[j];
        const bool updated = now->update[j] && now->update[j] != in->update[j];
        if (end) {
            end->weight[j] = written ? now->weight[j] : NULL;
            end->update[j] = updated ? now->update[j] : NULL;
        } else if (!tape_poison(r->t)) {
            if (written) tape_drop(r->t, now->weight[j]);
            if (updated) tape_drop(r->t, now->update[j]);
        }
    }
}

Var *chunked_forward(const ChunkedRule *rule, ChunkedForm form, Tape *t, const ChunkedTokens *in,
                     ChunkedState *end) {
    Var *tokens[] = {in->q, in->k, in->v};
    if (end) *end = (ChunkedState){0};
    if (!op_ready(t, "chunked layer", 3, tokens)) return tape_poison(t);
    Scope *scope = NULL;
    Status s = check(rule, form, in);
    if (s == STATUS_OK && chunked_fused_fits(rule, t, in))
        return chunked_fused(rule, form, t, in, end);
    if (s == STATUS_OK) s = scope_new(t, &scope);
    if (s != STATUS_OK) return tape_fail(t, s);
    const ChunkedRun r = run_new(rule, scope, in);
    ChunkedNow now;
    memcpy(now.weight, in->weight, sizeof now.weight);
    memcpy(now.update, in->update, sizeof now.update);
    Var *y = form == CHUNKED_PARALLEL ? chunked_scan(&r, &now) : chunked_recur(&r, 0, NULL, &now);
    finish(&r, in, &now, end);
    scope_end(scope);
    mem_free(scope);
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *q = in->q->value.shape;
    return op_view(t, y, 4, (int64_t[]){q[0], q[1], q[2], in->v->value.shape[3]});
}
