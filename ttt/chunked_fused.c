/* The chunked layer without gradients (fastweight.md 4.1, 4.4): what it keeps, and its parallel
 * form: gates inside the products, whose results are written or read on chip, momentum and the sum
 * of the updates as one pass each, which reads every chunk's values once and leaves operands of the
 * next products.
 */
#include "ttt/chunked_fused.h"

#include "nn/ops_check.h"

Status fused_take(const Fused *f, DType dtype, int64_t a, int64_t b, int64_t c, int64_t d,
                  Tensor *out) {
    return tape_take(f->t, dtype, 4, (int64_t[]){a, b, c, d}, out);
}

Status fused_features(const Fused *f, Tensor x, Tensor rate, Tensor *out) {
    *out = x;
    if (f->rule->linear && tensor_is_none(rate)) return STATUS_OK;
    const int64_t *s = x.shape;
    TRY(fused_take(f, f->act, s[0], s[1], s[2], f->hidden, out));
    if (!f->rule->linear) return f->d->k->gate_product(f->d, *out, x, f->w02, rate);
    const int64_t rows = tensor_rows(x);
    rate = tensor_view(rate, 1, &rows);
    return f->d->k->scale_rows(f->d, grad_set(op_rows(*out)), op_rows(x), rate);
}

/* ---- what it begins with ---- */

static Tensor value_of(Var *v) {
    return v ? v->value : tensor_none();
}

/* Matrices of a weight as [O,R,C]. */
static Tensor matrices(Tensor w) {
    return tensor_view3(w, w.shape[0] * w.shape[1], w.shape[2], w.shape[3]);
}

Status fused_w1(Fused *f) {
    const Tensor w = f->weight[1];
    if (!tensor_is_none(f->own_w1)) tape_give(f->t, f->own_w1);
    f->own_w1 = tensor_none();
    f->w1 = w;
    if (f->act == DTYPE_F32) return STATUS_OK;
    TRY(tape_take(f->t, f->act, 4, w.shape, &f->own_w1));
    f->w1 = f->own_w1;
    return f->d->k->copy(f->d, grad_set(f->w1), w, 1);
}

/* [W0|W2] as they come: a few rows at a time, which are as good as matrices here. */
static Status take_gates(Fused *f) {
    enum { ROWS = 32 };
    if (f->rule->linear) return STATUS_OK;
    const Tensor w0 = f->weight[0], w2 = f->weight[2];
    TRY(fused_take(f, f->act, w0.shape[0], w0.shape[1], f->dk, 2 * f->hidden, &f->w02));
    f->own_w02 = f->w02;
    const int64_t all = w0.shape[0] * w0.shape[1] * f->dk, rows = all % ROWS == 0 ? ROWS : 1;
    const Tensor y = tensor_view3(f->w02, all / rows, rows, 2 * f->hidden);
    const WeightStep parts[] = {
        {.y = y, .w = tensor_view3(w0, all / rows, rows, f->hidden)},
        {.y = y, .at = f->hidden, .w = tensor_view3(w2, all / rows, rows, f->hidden)}};
    return f->d->k->weight_step(f->d, 2, parts, 1, 0);
}

/* Column norms that written weights keep. */
static Status take_norms(Fused *f) {
    if (f->rule->no_weight_norm) return STATUS_OK;
    for (int j = 0; j < 3; j++) {
        if (j != 1 && !f->gates) continue;
        const Tensor like =
            matrices(value_of(f->in->initial[j] ? f->in->initial[j] : f->in->weight[j]));
        TRY(tape_take(f->t, DTYPE_F32, 2, (int64_t[]){like.shape[0], like.shape[2]}, &f->kept[j]));
        TRY(f->d->k->softnorm(f->d, tensor_none(), f->kept[j], like, tensor_none(), 1));
    }
    return STATUS_OK;
}

/* P of all matrices as one [written G,1,E], if the caller has one. */
static Status take_updates(Fused *f) {
    if (!f->in->momentum) return STATUS_OK;
    const int64_t each = f->hidden * f->dv;
    const int64_t shape[] = {f->written * f->groups, each};
    TRY(tape_take(f->t, DTYPE_F32, 2, shape, &f->own_update));
    if (!f->gates) {
        f->update = value_of(f->in->update[1]);
        if (!tensor_is_none(f->update))
            f->update = tensor_view2(f->update, f->update.shape[0] * f->heads, each);
        return STATUS_OK;
    }
    static const int order[] = {0, 2, 1};
    bool any = false;
    for (int i = 0; i < 3; i++) any = any || f->in->update[i];
    if (!any) return STATUS_OK;
    for (int i = 0; i < 3; i++) { /* repeated over samples where need be: states of one chunk */
        const Tensor from = value_of(f->in->update[order[i]]);
        Tensor to = f->own_update;
        to.data = (float *)to.data + i * f->groups * each;
        to = tensor_3d(to.data, DTYPE_F32, f->groups, 1, each);
        if (tensor_is_none(from)) {
            TRY(f->d->k->zero(f->d, to));
            continue;
        }
        for (int64_t b = 0; b < f->batch; b++) {
            const int64_t size = f->heads * each, sample = from.shape[0] > 1 ? b : 0;
            const Tensor a = tensor_1d((float *)from.data + sample * size, DTYPE_F32, size);
            TRY(f->d->k->copy(
                f->d, grad_set(tensor_1d((float *)to.data + b * size, DTYPE_F32, size)), a, 1));
        }
    }
    f->update = f->own_update;
    return STATUS_OK;
}

static Status fused_open(Fused *f) {
    for (int j = 0; j < 3; j++) {
        if (f->rule->linear && j != 1) continue;
        f->weight[j] = f->in->weight[j]->value;
        if (j != 1 && !f->gates) continue;
        const int64_t *s = f->weight[j].shape;
        TRY(fused_take(f, DTYPE_F32, f->batch, s[1], s[2], s[3], &f->own[j]));
    }
    TRY(take_gates(f));
    TRY(take_norms(f));
    return take_updates(f);
}

/* ---- the parallel form ---- */

/* The first n tokens of every group of x [G,N,w]; x itself where that is all. */
static Status first_tokens(const Fused *f, Var *x, int64_t n, Tensor *out) {
    *out = value_of(x);
    if (!x || n == f->tokens) return STATUS_OK;
    const int64_t w = x->value.rank == 4 ? x->value.shape[3] : 1;
    TRY(fused_take(f, x->value.dtype, f->batch, f->heads, n, w, out));
    return f->d->k->split_heads(f->d, grad_set(tensor_view4(*out, f->groups, 1, 1, n * w)),
                                tensor_view3(x->value, f->groups, 1, f->tokens * w), 0);
}

static void give_copy(const Fused *f, Tensor x, const void *original) {
    if (!tensor_is_none(x) && x.data != original) tape_give(f->t, x);
}

/* D of all chunks [G,C,h,dv]. */
static Status all_gradients(const Fused *f, int64_t chunks, int64_t n, Tensor *d) {
    const int64_t all = chunks * n, g = f->groups;
    Tensor k, v, rate, keys;
    TRY(first_tokens(f, f->in->k, all, &k));
    TRY(first_tokens(f, f->in->v, all, &v));
    TRY(first_tokens(f, f->in->rate[1], all, &rate));
    keys = k;
    if (f->rule->linear) TRY(fused_features(f, k, rate, &keys));
    TRY(fused_take(f, f->steps, g, chunks, f->hidden, f->dv, d));
    if (f->rule->linear)
        TRY(f->d->k->matmul(f->d, grad_set(*d), tensor_view4(keys, g, chunks, n, f->hidden), true,
                            tensor_view4(v, g, chunks, n, f->dv), false, 1));
    else
        TRY(f->d->k->gate_write(f->d, *d, k, v, f->w02, rate));
    give_copy(f, keys, k.data);
    give_copy(f, k, f->in->k->value.data);
    give_copy(f, v, f->in->v->value.data);
    give_copy(f, rate, value_of(f->in->rate[1]).data);
    return STATUS_OK;
}

/* Steps U of all chunks from D, which ends here. */
static Status all_steps(Fused *f, int64_t chunks, int64_t n, Tensor d, Tensor *u) {
    const int64_t g = f->groups, each = f->hidden * f->dv;
    *u = d;
    if (f->in->momentum) {
        Tensor m, p;
        TRY(first_tokens(f, f->in->momentum, chunks * n, &m));
        TRY(fused_take(f, f->steps, g, chunks, f->hidden, f->dv, &p));
        TRY(f->d->k->state_scan(
            f->d, tensor_view3(p, g, chunks, each), f->ends ? tensor_none() : f->own_update,
            tensor_view3(d, g, chunks, each), tensor_view3(m, g, chunks, n), f->update, 1, false));
        f->update = f->own_update;
        give_copy(f, m, f->in->momentum->value.data);
        tape_give(f->t, d);
        *u = p;
    }
    if (f->rule->no_muon) return STATUS_OK;
    const Tensor p = *u;
    TRY(fused_take(f, f->steps, g, chunks, f->hidden, f->dv, u));
    TRY(f->d->k->newton_schulz(f->d, tensor_view3(*u, g * chunks, f->hidden, f->dv), tensor_none(),
                               tensor_view3(p, g * chunks, f->hidden, f->dv),
                               f->rule->newton_schulz));
    tape_give(f->t, p);
    return STATUS_OK;
}

/* What every chunk reads, [G,C,h,dv], from the steps, which end here. */
static Status all_weights(Fused *f, int64_t chunks, Tensor u, Tensor *w) {
    const int64_t g = f->groups, each = f->hidden * f->dv;
    const Tensor start = tensor_view2(f->weight[1], f->weight[1].shape[0] * f->heads, each);
    TRY(fused_take(f, f->act, g, chunks, f->hidden, f->dv, w));
    TRY(f->d->k->state_scan(f->d, tensor_view3(*w, g, chunks, each),
                            f->ends ? tensor_none() : tensor_view2(f->own[1], g, each),
                            tensor_view3(u, g, chunks, each), tensor_none(), start,
                            f->rule->ascend ? -1 : 1, !f->rule->inclusive));
    f->weight[1] = f->own[1];
    tape_give(f->t, u);
    return STATUS_OK;
}

static Status fused_scan(Fused *f, int64_t chunks, int64_t n, Tensor y) {
    const int64_t all = chunks * n, g = f->groups;
    Tensor d, u, w, q, out = y;
    TRY(all_gradients(f, chunks, n, &d));
    TRY(all_steps(f, chunks, n, d, &u));
    TRY(all_weights(f, chunks, u, &w));
    TRY(first_tokens(f, f->in->q, all, &q));
    if (all != f->tokens) TRY(fused_take(f, f->act, 1, g, all, f->dv, &out));
    if (f->rule->linear)
        TRY(f->d->k->matmul(f->d, grad_set(tensor_view4(out, g, chunks, n, f->dv)),
                            tensor_view4(q, g, chunks, n, f->hidden), false, w, false, 1));
    else
        TRY(f->d->k->gate_read(f->d, tensor_view4(out, f->batch, f->heads, all, f->dv), q, f->w02,
                               w));
    give_copy(f, q, f->in->q->value.data);
    tape_give(f->t, w);
    if (all == f->tokens) return STATUS_OK;
    TRY(f->d->k->merge_heads(f->d, grad_set(tensor_view3(y, g, 1, f->tokens * f->dv)),
                             tensor_view4(out, g, 1, 1, all * f->dv), 0));
    tape_give(f->t, out);
    return STATUS_OK;
}

/* ---- entry ---- */

bool chunked_fused_fits(const ChunkedRule *rule, const Tape *t, const ChunkedTokens *in) {
    const int64_t *q = in->q->value.shape, dv = in->v->value.shape[3];
    const bool gates = !rule->static_gates && !rule->linear;
    return !tape_recording(t) && !rule->composed &&
           (!gates || (q[3] == dv && in->weight[1]->value.shape[2] == dv));
}

static Var *as_result(const Fused *f, Tensor x) {
    Var *v = tape_output(f->t, x.dtype, x.rank, x.shape);
    if (!tape_poison(f->t)) {
        tape_give(f->t, v->value);
        v->value = x;
    }
    return v;
}

/* The state as Vars, or its memory back. */
static void finish(Fused *f, ChunkedState *end) {
    static const int place[] = {0, 2, 1}; /* of P_j among all */
    const int64_t each = f->hidden * f->dv;
    for (int j = 0; j < 3; j++) {
        if (!tensor_is_none(f->kept[j])) tape_give(f->t, f->kept[j]);
        if (tensor_is_none(f->own[j])) continue;
        if (end)
            end->weight[j] = as_result(f, f->own[j]);
        else
            tape_give(f->t, f->own[j]);
        if (!end || tensor_is_none(f->own_update)) continue;
        const int64_t *s = f->own[j].shape;
        Var *p = tape_output(f->t, DTYPE_F32, 4, s);
        if (tape_poison(f->t)) return;
        const int64_t first = f->gates ? place[j] * f->groups * each : 0;
        const Tensor from =
            tensor_4d((float *)f->own_update.data + first, DTYPE_F32, s[0], s[1], s[2], s[3]);
        const Status status = f->d->k->copy(f->d, grad_set(p->value), from, 1);
        if (status != STATUS_OK) tape_fail(f->t, status);
        end->update[j] = p;
    }
    const Tensor rest[] = {f->own_update, f->own_w02, f->own_w1};
    for (int i = 0; i < 3; i++)
        if (!tensor_is_none(rest[i])) tape_give(f->t, rest[i]);
}

Var *chunked_fused(const ChunkedRule *rule, ChunkedForm form, Tape *t, const ChunkedTokens *in,
                   ChunkedState *end) {
    const int64_t *q = in->q->value.shape;
    const bool gates = !rule->static_gates && !rule->linear, bf16 = rule->newton_schulz.bf16;
    const DType act = in->q->value.dtype;
    Fused f = {.rule = rule,
               .t = t,
               .d = tape_device(t),
               .in = in,
               .act = act,
               .steps = act == DTYPE_BF16 && bf16 && !rule->no_muon ? act : DTYPE_F32,
               .batch = q[0],
               .heads = q[1],
               .groups = q[0] * q[1],
               .tokens = q[2],
               .dk = q[3],
               .dv = in->v->value.shape[3],
               .hidden = in->weight[1]->value.shape[2],
               .gates = gates,
               .written = gates ? 3 : 1};
    Var *y = tape_output(t, act, 4, (int64_t[]){q[0], q[1], q[2], f.dv});
    if (tape_poison(t)) return y;
    const Tensor rows = tensor_view3(y->value, f.groups, f.tokens, f.dv);
    const int64_t n = rule->chunk > 0 && rule->chunk < f.tokens ? rule->chunk : f.tokens;
    const int64_t chunks = f.tokens / n, rest = f.tokens - chunks * n;
    f.ends = !end && rest == 0;
    Status s = fused_open(&f);
    if (s == STATUS_OK)
        s = form == CHUNKED_PARALLEL ? fused_scan(&f, chunks, n, rows)
                                     : fused_recur(&f, 0, chunks, n, rows);
    if (s == STATUS_OK && rest > 0) s = fused_recur(&f, chunks * n, 1, rest, rows);
    if (s == STATUS_OK) finish(&f, end);
    return op_done(t, "chunked layer", s, y);
}
