/* The LaCT layer's writing and reading as one node each (lact_nvs.md 4, 5.1, 5.4). What the
 * elementwise slots can compute again from the products is not kept: keys, values and queries, and
 * all that the inner gradients and the read are products of.
 */
#include "nn/ops_lact_parts.h"

/* ---- products --------------------------------------------------------------------------- */

/* op(a) with weights that all samples share; of one head, all samples as one matrix. */
static Status apply_shared(Device *d, Grad c, Tensor a, Tensor w, bool transposed) {
    if (a.shape[1] == 1) {
        c.t = op_rows(c.t);
        a = op_rows(a);
        w = op_rows(w);
    }
    return d->k->matmul(d, c, a, false, w, transposed, 1);
}

/* c [1,H,.,.] = sum over samples of a' b. */
static Status sum_shared(Device *d, Grad c, Tensor a, Tensor b) {
    if (a.shape[1] == 1) {
        c.t = op_rows(c.t);
        a = op_rows(a);
        b = op_rows(b);
    }
    return d->k->matmul(d, c, a, true, b, false, 1);
}

/* ---- writing ---------------------------------------------------------------------------- */

Status lact_take_tokens(Tape *t, const WriteSizes *s, Tensor packed, float offset,
                        WriteOperands *o) {
    Device *d = tape_device(t);
    const int64_t each = s->batch * s->heads * s->tokens * s->e;
    TRY(take4(t, s->act, 2 * s->batch, s->heads, s->tokens, s->e, &o->tokens));
    char *values_at = (char *)o->tokens.data + (size_t)each * dtype_size(s->act);
    o->k = tensor_4d(o->tokens.data, s->act, s->batch, s->heads, s->tokens, s->e);
    o->v = tensor_4d(values_at, s->act, s->batch, s->heads, s->tokens, s->e);
    const int64_t values = packed.shape[2] - s->heads * s->e; /* the last channels */
    TRY(d->k->silu_heads(d, o->k, packed, values - s->heads * s->e, offset));
    return d->k->silu_heads(d, o->v, packed, values, 0);
}

static Status take_weights(Tape *t, const WriteSizes *s, Var *const *w, WriteOperands *o) {
    TRY(take4(t, s->act, 1, s->heads, s->e, 2 * s->h, &o->w02));
    o->w1 = tensor_none();
    if (!s->gates) return op_lay_side_by_side(t, o->w02, w[0]->value, w[2]->value, o->w1, o->w1);
    TRY(take4(t, s->act, 1, s->heads, s->h, s->e, &o->w1));
    return op_lay_side_by_side(t, o->w02, w[0]->value, w[2]->value,
                               tensor_view(o->w1, 3, w[1]->value.shape), w[1]->value);
}

/* G from e: gates [.., BH,e,h] = k' e, back [1,BH,h,e] = e' v. */
static Status inner_gradients(Device *d, const WriteSizes *s, const WriteOperands *o, Tensor e,
                              Tensor gates, Tensor back) {
    const int64_t each = s->batch * s->heads, last = write_parts(s) - 1;
    const Tensor k = part4(o->k, 0, 1, each, s->tokens, s->e);
    const Tensor v = part4(o->v, 0, 1, each, s->tokens, s->e);
    if (s->gates)
        TRY(d->k->matmul(d, grad_set(gates), k, true, part4(e, 0, 2, each, s->tokens, s->h), false,
                         1));
    return d->k->matmul(d, grad_set(back), part4(e, last, 1, each, s->tokens, s->h), true, v, false,
                        1);
}

void lact_parts_of(const WriteSizes *s, Tensor gates, Tensor back, Tensor *first, Tensor *last) {
    const int64_t each = s->batch * s->heads;
    *first = s->gates ? part4(gates, 0, 2, each, s->e, s->h) : tensor_none();
    *last = tensor_is_none(back) ? part4(gates, 2, 1, each, s->h, s->e)
                                 : part4(back, 0, 1, each, s->h, s->e);
}

Status lact_write_products(Tape *t, const WriteSizes *s, Var *const *in, float offset,
                           WriteOperands *o, Tensor kept[4], Tensor *e) {
    Device *d = tape_device(t);
    TRY(lact_take_tokens(t, s, in[0]->value, offset, o));
    TRY(take_weights(t, s, in + 2, o));
    TRY(take4(t, s->act, s->batch, s->heads, s->tokens, 2 * s->h, &kept[0]));
    TRY(apply_shared(d, grad_set(kept[0]), o->k, o->w02, false));
    if (s->gates) {
        TRY(take4(t, s->act, s->batch, s->heads, s->tokens, s->h, &kept[1]));
        TRY(apply_shared(d, grad_set(kept[1]), o->v, o->w1, true));
    }
    TRY(take4(t, s->act, write_parts(s), s->batch * s->heads, s->tokens, s->h, e));
    TRY(d->k->lact_write(d, *e, kept[0], kept[1], in[1]->value));
    kept[2] = o->w02;
    kept[3] = o->w1;
    return STATUS_OK;
}

/* saved: ac, t, w02, w1 */
static Status write_forward(Tape *t, const WriteSizes *s, Var *const *in, float offset,
                            Tensor gates, Tensor back, Tensor saved[4]) {
    WriteOperands o;
    Tensor e, first, last;
    TRY(lact_write_products(t, s, in, offset, &o, saved, &e));
    lact_parts_of(s, gates, back, &first, &last);
    TRY(inner_gradients(tape_device(t), s, &o, e, first, last));
    tape_give(t, o.tokens);
    tape_give(t, e);
    return STATUS_OK;
}

Status lact_as_operands(Tape *t, const WriteSizes *s, Tensor g, Tensor *out) {
    Device *d = tape_device(t);
    *out = g;
    if (tensor_is_none(g) || g.dtype == s->act) return STATUS_OK;
    TRY(tape_take(t, s->act, g.rank, g.shape, out));
    return d->k->copy(d, grad_set(*out), g, 1);
}

/* e = the gradients of e: k dG0, k dG2, v dG1'. */
static Status slopes_of_e(Device *d, const WriteSizes *s, const WriteOperands *o, Tensor e,
                          Tensor dgates, Tensor dback) {
    const int64_t each = s->batch * s->heads, last = write_parts(s) - 1;
    const Tensor k = part4(o->k, 0, 1, each, s->tokens, s->e);
    const Tensor v = part4(o->v, 0, 1, each, s->tokens, s->e);
    if (s->gates)
        TRY(d->k->matmul(d, grad_set(part4(e, 0, 2, each, s->tokens, s->h)), k, false, dgates,
                         false, 1));
    return d->k->matmul(d, grad_set(part4(e, last, 1, each, s->tokens, s->h)), v, false, dback,
                        true, 1);
}

/* dk, into k, and dv, into v, through G: both have been used up. */
static Status slopes_by_gradients(Device *d, const WriteSizes *s, const WriteOperands *o, Tensor e,
                                  Tensor dgates, Tensor dback) {
    const int64_t each = s->batch * s->heads, last = write_parts(s) - 1;
    const Tensor k = part4(o->k, 0, 1, each, s->tokens, s->e);
    const Tensor v = part4(o->v, 0, 1, each, s->tokens, s->e);
    TRY(d->k->matmul(d, grad_set(v), part4(e, last, 1, each, s->tokens, s->h), false, dback, false,
                     1));
    /* one by one: as a sum over the two, F32 memory would be written and read in between */
    for (int64_t j = 0; s->gates && j < 2; j++)
        TRY(d->k->matmul(d, j ? grad_add(k) : grad_set(k), part4(e, j, 1, each, s->tokens, s->h),
                         false, part4(dgates, j, 1, each, s->e, s->h), true, 1));
    return STATUS_OK;
}

/* dw0 and dw2 from k' dac, dw1 from dt' v. */
static Status slopes_of_weights(Tape *t, Node *n, const WriteSizes *s, const WriteOperands *o,
                                Tensor dac, Tensor dt) {
    Device *d = tape_device(t);
    const int64_t rows = s->heads * s->e;
    const Grad dw0 = tape_grad(t, n->in[2]), dw2 = tape_grad(t, n->in[4]);
    if (!tensor_is_none(dw0.t) || !tensor_is_none(dw2.t)) {
        Tensor both;
        const int64_t one[] = {1, 1, rows, s->h};
        TRY(take4(t, DTYPE_F32, 1, s->heads, s->e, 2 * s->h, &both));
        TRY(sum_shared(d, grad_set(both), o->k, dac));
        const Tensor packed = tensor_view3(both, 1, rows, 2 * s->h);
        if (!tensor_is_none(dw0.t)) TRY(d->k->split_heads(d, op_view_grad(dw0, 4, one), packed, 0));
        if (!tensor_is_none(dw2.t))
            TRY(d->k->split_heads(d, op_view_grad(dw2, 4, one), packed, s->h));
        tape_give(t, both);
    }
    if (!s->gates) return STATUS_OK;
    const Grad dw1 = op_view_grad(tape_grad(t, n->in[3]), 4, (int64_t[]){1, s->heads, s->h, s->e});
    return tensor_is_none(dw1.t) ? STATUS_OK : sum_shared(d, dw1, dt, o->v);
}

Status lact_slopes_of_products(Tape *t, Node *n, const WriteSizes *s, const WriteOperands *o,
                               Tensor e, Tensor *dac, Tensor *dt) {
    Device *d = tape_device(t);
    *dt = tensor_none();
    TRY(take4(t, s->act, s->batch, s->heads, s->tokens, 2 * s->h, dac));
    if (s->gates) TRY(take4(t, s->act, s->batch, s->heads, s->tokens, s->h, dt));
    TRY(d->k->lact_write_backward(d, *dac, *dt, tape_grad(t, n->in[1]), e, n->saved[0], n->saved[1],
                                  n->in[1]->value));
    return slopes_of_weights(t, n, s, o, *dac, *dt);
}

Status lact_slopes_of_tokens(Tape *t, Node *n, const WriteSizes *s, const WriteOperands *o,
                             Tensor dac, Tensor dt, float offset) {
    Device *d = tape_device(t);
    const Grad dk = s->gates ? grad_add(o->k) : grad_set(o->k);
    TRY(apply_shared(d, dk, dac, o->w02, true));
    if (s->gates) TRY(apply_shared(d, grad_add(o->v), dt, o->w1, false));
    const Tensor packed = n->in[0]->value;
    const Grad dpacked = tape_grad(t, n->in[0]);
    TRY(d->k->silu_heads_backward(d, dpacked, tensor_none(), o->k, packed, 0, offset));
    return d->k->silu_heads_backward(d, dpacked, tensor_none(), o->v, packed, s->heads * s->e, 0);
}

WriteSizes lact_write_sizes(Var *const *in, bool only_w1) {
    const int64_t *p = in[0]->value.shape, *w = in[2]->value.shape;
    return (WriteSizes){p[0], w[0], p[1], w[1], w[2], in[0]->value.dtype, !only_w1};
}

static Status write_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const WriteSizes s = lact_write_sizes(n->in, n->i[0]);
    const int64_t each = s.batch * s.heads;
    WriteOperands o = {.w02 = n->saved[2], .w1 = n->saved[3]};
    Tensor gates, back = tensor_none(), dgates, dback, first, last, e, dac, dt;
    TRY(tape_grad_of(t, n->out, &gates));
    if (n->more[0]) TRY(tape_grad_of(t, n->more[0], &back));
    if (!s.gates) {
        back = gates;
        gates = tensor_none();
    }
    TRY(lact_as_operands(t, &s, gates, &dgates));
    TRY(lact_as_operands(t, &s, back, &dback));
    lact_parts_of(&s, dgates, dback, &first, &last);
    TRY(lact_take_tokens(t, &s, n->in[0]->value, n->u.f[0], &o));
    TRY(take4(t, s.act, write_parts(&s), each, s.tokens, s.h, &e));
    TRY(slopes_of_e(d, &s, &o, e, first, last));
    TRY(lact_slopes_of_products(t, n, &s, &o, e, &dac, &dt));
    TRY(slopes_by_gradients(d, &s, &o, e, first, last));
    TRY(lact_slopes_of_tokens(t, n, &s, &o, dac, dt, n->u.f[0]));
    const Tensor mine[] = {o.tokens, e, dac, dt};
    for (int i = 0; i < 4; i++) tape_give(t, mine[i]);
    if (dgates.data != gates.data) tape_give(t, dgates);
    if (dback.data != back.data) tape_give(t, dback);
    return STATUS_OK;
}

static bool weights_fit(Var *const *w) {
    const Tensor a = w[0]->value, b = w[1]->value;
    for (int j = 0; j < 3; j++)
        if (w[j]->value.rank != 3 || w[j]->value.dtype != DTYPE_F32) return false;
    return tensor_same_shape(a, w[2]->value) && b.shape[0] == a.shape[0] &&
           b.shape[1] == a.shape[2] && b.shape[2] == a.shape[1];
}

bool lact_write_fits(Var *const *in, bool exact) {
    const Tensor p = in[0]->value, r = in[1]->value;
    const int64_t heads = in[2]->value.shape[0], e = in[2]->value.shape[1];
    return weights_fit(in + 2) && p.rank == 3 && op_is_act(p.dtype) &&
           (exact ? p.shape[2] == 2 * heads * e : p.shape[2] >= 2 * heads * e) && r.rank == 3 &&
           r.dtype == DTYPE_F32 && r.shape[0] == p.shape[0] && r.shape[1] == p.shape[1] &&
           r.shape[2] == 3 * heads;
}

static LactGradients gradients_of(Var *v) {
    return (LactGradients){v, v};
}

LactGradients op_lact_write(Tape *t, Var *packed, Var *rates, Var *const w[3], float offset,
                            bool only_w1, DType out_type) {
    Var *in[] = {packed, rates, w[0], w[1], w[2]};
    if (!op_ready(t, "lact_write", 5, in)) return gradients_of(tape_poison(t));
    if (!lact_write_fits(in, tape_recording(t)) ||
        (out_type != DTYPE_F32 && out_type != packed->value.dtype))
        return gradients_of(op_refuse(t, "lact_write", 5, in,
                                      "[B, n, 2d], F32 [B, n, 3H], F32 w0 and w2 [H, e, h], w1 "
                                      "[H, h, e]"));
    const WriteSizes s = lact_write_sizes(in, only_w1);
    const bool joined = s.gates && s.e == s.h;
    LactGradients g = {0};
    if (s.gates)
        g.gates =
            tape_output(t, out_type, 4, (int64_t[]){(joined ? 3 : 2) * s.batch, s.heads, s.e, s.h});
    if (!joined) g.back = tape_output(t, out_type, 4, (int64_t[]){s.batch, s.heads, s.h, s.e});
    if (tape_poison(t)) return gradients_of(tape_poison(t));
    Var *out = g.gates ? g.gates : g.back;
    Tensor saved[NODE_SAVED] = {{0}};
    Status status = write_forward(t, &s, in, offset, op_value(g.gates), op_value(g.back), saved);
    Node *n = status == STATUS_OK ? tape_record(t, "lact_write", write_backward, out, 5, in) : NULL;
    if (n) {
        n->u.f[0] = offset;
        n->i[0] = only_w1;
        if (g.gates && g.back) tape_record_more(n, g.back);
    }
    for (int i = 0; i < NODE_SAVED; i++) {
        if (n) n->saved[i] = saved[i];
        if (!n && status == STATUS_OK) tape_give(t, saved[i]);
    }
    return op_done(t, "lact_write", status, out) == out ? g : gradients_of(tape_poison(t));
}

/* ---- reading ---------------------------------------------------------------------------- */

/* Room for the queries of packed [B,m,d]; e from W1'. */
static Status take_queries(Tape *t, Tensor packed, Tensor back, Tensor *q) {
    const int64_t heads = back.shape[1], e = back.shape[3];
    return take4(t, packed.dtype, packed.shape[0], heads, packed.shape[1], e, q);
}

/* saved: ab */
static Status read_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *packed = n->in[0], *gates = n->in[1], *back = n->in[2];
    const Tensor go = n->out->grad, ab = n->saved[0];
    Tensor p, dab, q;
    TRY(take4(t, ab.dtype, ab.shape[0], ab.shape[1], ab.shape[2], ab.shape[3] / 2, &p));
    TRY(tape_take(t, ab.dtype, 4, ab.shape, &dab));
    TRY(d->k->matmul(d, grad_set(p), go, false, back->value, true, 1));
    TRY(d->k->lact_gate_backward(d, dab, p, p, ab));
    TRY(d->k->matmul(d, tape_grad(t, back), p, true, go, false, 1));
    tape_give(t, p);
    const Grad dpacked = tape_grad(t, packed);
    TRY(take_queries(t, packed->value, back->value, &q));
    if (tensor_is_none(dpacked.t)) {
        TRY(d->k->silu_heads(d, q, packed->value, 0, n->u.f[0]));
    } else { /* dq becomes q in the same pass */
        TRY(d->k->matmul(d, grad_set(q), dab, false, gates->value, true, 1));
        TRY(d->k->silu_heads_backward(d, dpacked, q, q, packed->value, 0, n->u.f[0]));
    }
    TRY(d->k->matmul(d, tape_grad(t, gates), q, true, dab, false, 1));
    tape_give(t, dab);
    tape_give(t, q);
    return STATUS_OK;
}

/* Without gradients, packed may have other channels behind the queries. */
static bool read_fits(Tensor packed, Tensor gates, Tensor back, bool exact) {
    const int64_t wanted = back.rank == 4 ? back.shape[1] * back.shape[3] : 0;
    return packed.rank == 3 && op_is_act(packed.dtype) && gates.rank == 4 && back.rank == 4 &&
           gates.dtype == packed.dtype && back.dtype == packed.dtype &&
           (gates.shape[0] == 1 || gates.shape[0] == packed.shape[0]) &&
           (back.shape[0] == 1 || back.shape[0] == packed.shape[0]) &&
           gates.shape[1] == back.shape[1] && gates.shape[2] == back.shape[3] &&
           gates.shape[3] == 2 * back.shape[2] &&
           (exact ? packed.shape[2] == wanted : packed.shape[2] >= wanted);
}

static Status read_forward(Tape *t, Tensor o, Tensor ab, Tensor packed, LactWeights w,
                           float offset) {
    Device *d = tape_device(t);
    Tensor q, p;
    TRY(take_queries(t, packed, w.back->value, &q));
    TRY(d->k->silu_heads(d, q, packed, 0, offset));
    TRY(d->k->matmul(d, grad_set(ab), q, false, w.gates->value, false, 1));
    tape_give(t, q);
    TRY(take4(t, ab.dtype, ab.shape[0], ab.shape[1], ab.shape[2], ab.shape[3] / 2, &p));
    TRY(d->k->lact_gate(d, p, ab));
    TRY(d->k->matmul(d, grad_set(o), p, false, w.back->value, false, 1));
    tape_give(t, p);
    return STATUS_OK;
}

Var *op_lact_read(Tape *t, Var *packed, LactWeights w, float offset) {
    Var *in[] = {packed, w.gates, w.back};
    if (!op_ready(t, "lact_read", 3, in)) return tape_poison(t);
    const Tensor x = packed->value, gates = w.gates->value, back = w.back->value;
    if (!read_fits(x, gates, back, tape_recording(t)))
        return op_refuse(t, "lact_read", 3, in,
                         "[B, m, d], [B or 1, H, e, 2h], [B or 1, H, h, e] of one dtype");
    Tensor ab;
    Var *o = tape_output(t, x.dtype, 4,
                         (int64_t[]){x.shape[0], back.shape[1], x.shape[1], back.shape[3]});
    if (tape_poison(t)) return o;
    Status s = take4(t, x.dtype, x.shape[0], back.shape[1], x.shape[1], gates.shape[3], &ab);
    if (s == STATUS_OK) s = read_forward(t, o->value, ab, x, w, offset);
    Node *n = s == STATUS_OK ? tape_record(t, "lact_read", read_backward, o, 3, in) : NULL;
    if (n) {
        n->saved[0] = ab;
        n->u.f[0] = offset;
    } else if (s == STATUS_OK) {
        tape_give(t, ab);
    }
    return op_done(t, "lact_read", s, o);
}
