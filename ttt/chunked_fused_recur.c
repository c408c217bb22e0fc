/* The recurrent form of the chunked layer without gradients (fastweight.md 4.1): one chunk after
 * the other, but all its matrices in one Newton-Schulz, momentum and step in one pass each.
 */
#include "nn/ops_check.h"
#include "ttt/chunked_fused.h"

#define COLUMN_OFFSET 1e-5f

/* A run of chunks, each value chunk after chunk: [C,G,n,.]. `keys` and `queries` are phi of k and
 * q where W0 and W2 stay as they are. */
typedef struct Run {
    int64_t chunks, n;
    bool turned; /* copies of the caller's tokens in another order */
    Tensor q, k, v, rate, momentum,
        y; /* rate [C,G,n], or [C,G,n,3] where all weights are written */
    Tensor keys, queries;
    /* of one chunk */
    Tensor ac, t, e, p, d, raised, u;
} Run;

static Tensor value_of(Var *v) {
    return v ? v->value : tensor_none();
}

/* Chunk i of x [C,...], as [a,b,c,d]. */
static Tensor chunk_of(Tensor x, int64_t i, int64_t a, int64_t b, int64_t c, int64_t d) {
    if (tensor_is_none(x)) return x;
    char *data = (char *)x.data + (size_t)(i * a * b * c * d) * dtype_size(x.dtype);
    return tensor_4d(data, x.dtype, a, b, c, d);
}

/* Whether tokens lie chunk after chunk as they come. */
static bool lies_right(const Fused *f, const Run *r) {
    return f->groups == 1 || (r->chunks == 1 && r->n == f->tokens);
}

/* Tokens from `first` on of x [G,N,w] as [C,G,n,w]. */
static Status arrange(const Fused *f, const Run *r, Tensor x, int64_t w, int64_t first,
                      Tensor *out) {
    *out = x;
    if (tensor_is_none(x)) return STATUS_OK;
    if (!r->turned) {
        *out = tensor_4d((char *)x.data + (size_t)(first * w) * dtype_size(x.dtype), x.dtype,
                         r->chunks, f->groups, r->n, w);
        return STATUS_OK;
    }
    TRY(fused_take(f, x.dtype, r->chunks, f->groups, r->n, w, out));
    return f->d->k->split_heads(f->d,
                                grad_set(tensor_view4(*out, 1, r->chunks, f->groups, r->n * w)),
                                tensor_view3(x, 1, f->groups, f->tokens * w), first * w);
}

static void give(const Fused *f, const Run *r, Tensor *x) {
    if (r->turned && !tensor_is_none(*x)) tape_give(f->t, *x);
    *x = tensor_none();
}

/* eta0, eta1, eta2 of each token side by side. */
static Status pack_rates(const Fused *f, Tensor *out) {
    const int64_t rows = f->groups * f->tokens;
    TRY(fused_take(f, DTYPE_F32, 1, f->groups, f->tokens, 3, out));
    const Tensor packed = tensor_view3(*out, 1, rows, 3);
    Tensor ones = tensor_none();
    for (int j = 0; j < 3; j++) {
        Tensor rate = value_of(f->in->rate[j]);
        if (tensor_is_none(rate) && tensor_is_none(ones)) {
            TRY(tape_take(f->t, DTYPE_F32, 1, &rows, &ones));
            TRY(f->d->k->fill(f->d, ones, 1));
        }
        if (tensor_is_none(rate)) rate = ones;
        TRY(f->d->k->merge_heads(f->d, grad_set(packed), tensor_view4(rate, 1, 1, rows, 1), j));
    }
    if (!tensor_is_none(ones)) tape_give(f->t, ones);
    return STATUS_OK;
}

static Status arrange_rates(const Fused *f, Run *r, int64_t first) {
    Tensor packed;
    if (!f->gates) return arrange(f, r, value_of(f->in->rate[1]), 1, first, &r->rate);
    TRY(pack_rates(f, &packed));
    Run copied = *r;
    copied.turned = true; /* so that it is this run's to give back */
    TRY(arrange(f, &copied, packed, 3, first, &r->rate));
    tape_give(f->t, packed);
    return STATUS_OK;
}

/* phi of all tokens at once, where it never changes. */
static Status all_features(const Fused *f, Run *r) {
    const int64_t samples = r->chunks * f->batch;
    Tensor rate = r->rate;
    const Tensor k = tensor_view4(r->k, samples, f->heads, r->n, f->dk);
    const Tensor q = tensor_view4(r->q, samples, f->heads, r->n, f->dk);
    if (!tensor_is_none(rate)) rate = tensor_view3(rate, samples, f->heads, r->n);
    TRY(fused_features(f, k, rate, &r->keys));
    if (r->keys.data != r->k.data) give(f, r, &r->k);
    TRY(fused_features(f, q, tensor_none(), &r->queries));
    if (r->queries.data != r->q.data) give(f, r, &r->q);
    return STATUS_OK;
}

static Status run_open(const Fused *f, Run *r, int64_t first) {
    const int64_t g = f->groups, h = f->hidden, m = f->written * g;
    r->turned = !lies_right(f, r);
    TRY(arrange(f, r, f->in->q->value, f->dk, first, &r->q));
    TRY(arrange(f, r, f->in->k->value, f->dk, first, &r->k));
    TRY(arrange(f, r, f->in->v->value, f->dv, first, &r->v));
    TRY(arrange(f, r, value_of(f->in->momentum), 1, first, &r->momentum));
    TRY(arrange_rates(f, r, first));
    if (!f->gates) TRY(all_features(f, r));
    if (f->gates) {
        TRY(fused_take(f, f->act, g, 1, r->n, 2 * h, &r->ac));
        TRY(fused_take(f, f->act, g, 1, r->n, h, &r->t));
        TRY(fused_take(f, f->act, 3, g, r->n, h, &r->e));
        TRY(fused_take(f, f->act, f->batch, f->heads, r->n, h, &r->p));
    }
    const bool moving = !tensor_is_none(r->momentum), muon = !f->rule->no_muon;
    TRY(fused_take(f, f->steps, m, 1, h, f->dv, &r->d));
    if (moving) TRY(fused_take(f, f->steps, m, 1, h, f->dv, &r->raised));
    if (muon) TRY(fused_take(f, f->steps, m, 1, h, f->dv, &r->u));
    return STATUS_OK;
}

static void run_close(const Fused *f, Run *r) {
    const Tensor own[] = {r->ac, r->t, r->e, r->p, r->d, r->raised, r->u};
    if (!f->gates && r->keys.data != r->k.data) tape_give(f->t, r->keys);
    if (!f->gates && r->queries.data != r->q.data) tape_give(f->t, r->queries);
    for (int i = 0; i < 7; i++)
        if (!tensor_is_none(own[i])) tape_give(f->t, own[i]);
    if (f->gates) tape_give(f->t, r->rate);
    if (!f->gates) give(f, r, &r->rate);
    give(f, r, &r->q);
    give(f, r, &r->k);
    give(f, r, &r->v);
    give(f, r, &r->momentum);
}

/* ---- one chunk ---- */

/* D of chunk i, all matrices, at the weights now. */
static Status directions(const Fused *f, const Run *r, int64_t i) {
    const int64_t g = f->groups, n = r->n, h = f->hidden;
    const Kernels *k = f->d->k;
    const Tensor values = chunk_of(r->v, i, 1, g, n, f->dv);
    if (!f->gates)
        return k->matmul(f->d, grad_set(tensor_view4(r->d, 1, g, h, f->dv)),
                         chunk_of(r->keys, i, 1, g, n, h), true, values, false, 1);
    const Tensor keys = chunk_of(r->k, i, f->batch, f->heads, n, f->dk);
    TRY(k->matmul(f->d, grad_set(tensor_view4(r->ac, f->batch, f->heads, n, 2 * h)), keys, false,
                  f->w02, false, 1));
    TRY(k->matmul(f->d, grad_set(tensor_view4(r->t, f->batch, f->heads, n, h)),
                  tensor_view4(values, f->batch, f->heads, n, f->dv), false, f->w1, true, 1));
    const Tensor rate = tensor_view3(chunk_of(r->rate, i, 1, g, n, 3), g, n, 3);
    TRY(k->lact_write(f->d, r->e, r->ac, r->t, rate)); /* rows of every group: heads are none */
    TRY(k->matmul(f->d, grad_set(chunk_of(r->d, 0, 2, g, f->dk, h)),
                  tensor_view4(keys, 1, g, n, f->dk), true, chunk_of(r->e, 0, 2, g, n, h), false,
                  1));
    return k->matmul(f->d, grad_set(chunk_of(r->d, 2, 1, g, h, f->dv)),
                     chunk_of(r->e, 2, 1, g, n, h), true, values, false, 1);
}

/* The steps of chunk i from D: momentum, Newton-Schulz. */
static Status raise(Fused *f, const Run *r, int64_t i, Tensor *u) {
    const int64_t each = f->hidden * f->dv, m = f->written * f->groups;
    *u = r->d;
    if (!tensor_is_none(r->momentum)) {
        const Tensor mean =
            tensor_view3(chunk_of(r->momentum, i, 1, f->groups, r->n, 1), f->groups, 1, r->n);
        TRY(f->d->k->state_scan(f->d, tensor_view3(r->raised, m, 1, each),
                                tensor_view2(f->own_update, m, each),
                                tensor_view3(r->d, m, 1, each), mean, f->update, 1, false));
        f->update = tensor_view2(f->own_update, m, each);
        *u = r->raised;
    }
    if (f->rule->no_muon) return STATUS_OK;
    TRY(f->d->k->newton_schulz(f->d, tensor_view3(r->u, m, f->hidden, f->dv), tensor_none(),
                               tensor_view3(*u, m, f->hidden, f->dv), f->rule->newton_schulz));
    *u = r->u;
    return STATUS_OK;
}

static Tensor matrices(Tensor w) {
    return tensor_view3(w, w.shape[0] * w.shape[1], w.shape[2], w.shape[3]);
}

/* Operands of memory for all samples, from the first step on. */
static Status own_operands(Fused *f) {
    if (f->w1.data != f->own_w1.data || f->w1.shape[0] != f->batch) {
        if (!tensor_is_none(f->own_w1)) tape_give(f->t, f->own_w1);
        TRY(tape_take(f->t, f->act, 4, f->own[1].shape, &f->own_w1));
        f->w1 = f->own_w1;
    }
    if (!f->gates || f->w02.shape[0] == f->batch) return STATUS_OK;
    tape_give(f->t, f->own_w02);
    TRY(fused_take(f, f->act, f->batch, f->heads, f->dk, 2 * f->hidden, &f->own_w02));
    f->w02 = f->own_w02;
    return STATUS_OK;
}

static Status step(Fused *f, Tensor u) {
    static const int order[] = {0, 2, 1};
    ChunkStep part[WEIGHT_PARTS];
    TRY(own_operands(f));
    for (int i = 0; i < f->written; i++) {
        const int j = f->gates ? order[i] : 1;
        part[i] = (ChunkStep){.w = matrices(f->own[j]),
                              .y = matrices(j == 1 ? f->w1 : f->w02),
                              .at = j == 2 ? f->hidden : 0,
                              .before = matrices(f->weight[j]),
                              .kept = f->kept[j]};
        const Tensor own = chunk_of(u, i, f->groups, part[i].w.shape[1], part[i].w.shape[2], 1);
        part[i].u = tensor_view3(own, own.shape[0], own.shape[1], own.shape[2]);
    }
    TRY(f->d->k->chunk_step(f->d, f->written, part, f->rule->ascend ? -1 : 1,
                            f->rule->no_weight_norm ? 0 : COLUMN_OFFSET));
    for (int j = 0; j < 3; j++)
        if (!tensor_is_none(f->own[j])) f->weight[j] = f->own[j];
    return STATUS_OK;
}

/* What the queries of chunk i read, at the weights now. */
static Status read(const Fused *f, const Run *r, int64_t i) {
    Tensor p = r->p;
    if (f->gates)
        TRY(f->d->k->gate_product(f->d, p, chunk_of(r->q, i, f->batch, f->heads, r->n, f->dk),
                                  f->w02, tensor_none()));
    else
        p = chunk_of(r->queries, i, f->batch, f->heads, r->n, f->hidden);
    return f->d->k->matmul(f->d, grad_set(chunk_of(r->y, i, f->batch, f->heads, r->n, f->dv)), p,
                           false, f->w1, false, 1);
}

static Status run_chunk(Fused *f, const Run *r, int64_t i) {
    Tensor u;
    if (!f->rule->inclusive) TRY(read(f, r, i));
    for (int64_t k = 0; k < f->rule->steps; k++) {
        if (f->gates || k == 0) TRY(directions(f, r, i));
        TRY(raise(f, r, i, &u));
        TRY(step(f, u));
    }
    return f->rule->inclusive ? read(f, r, i) : STATUS_OK;
}

Status fused_recur(Fused *f, int64_t first, int64_t chunks, int64_t n, Tensor y) {
    Run r = {.chunks = chunks, .n = n};
    TRY(run_open(f, &r, first));
    TRY(fused_w1(f));
    if (r.turned)
        TRY(fused_take(f, f->act, chunks, f->groups, n, f->dv, &r.y));
    else
        TRY(arrange(f, &r, y, f->dv, first, &r.y));
    for (int64_t i = 0; i < chunks; i++) TRY(run_chunk(f, &r, i));
    run_close(f, &r);
    if (!r.turned) return STATUS_OK;
    TRY(f->d->k->merge_heads(f->d, grad_set(tensor_view3(y, 1, f->groups, f->tokens * f->dv)),
                             tensor_view4(r.y, 1, chunks, f->groups, n * f->dv), first * f->dv));
    tape_give(f->t, r.y);
    return STATUS_OK;
}
