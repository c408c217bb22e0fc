/* Writing of few tokens: Newton-Schulz in the span of the tokens that write.
 *
 * A head's inner gradients G = k' Y (G0 and G2; Y the rows of slot lact_write's e) and G1' = v' Y
 * have no more rank than there are tokens, n. With x = r q for the tokens x (k or v), r [n,n] and q
 * [n,e] of orthonormal rows, G = q' H with H = r' Y [n,h], and f, which changes singular values
 * alone, gives f(G) = q' f(H), on n instead of e rows. Of its slope D = dU, q D passes through f at
 * H; what stands upright on q changes G'G to second order only, and passes through g of f(X) = X
 * g(X'X). With F = f(H) and dH the gradient of H from q D that makes
 *     dY = r dH,    dx = r^-T [ N q + F D' ],    N = sum (H dH' - F D' q'),
 * sums over G0 and G2 for k: no derivative of the factorisation is needed (docs/performance_nvs.md,
 * "Newton-Schulz in the span of the tokens").
 *
 * In BF16 r^-T is sound only where rows of H, F and N are graded as columns of r are: tokens of a
 * picture are alike, and in their own order they are not. So they are mixed by a Walsh matrix W
 * first, whose rows are sorted by their energy |(W x)_i|^2: W x = r~ q, r = W' r~, r^-1 = r~^-1 W.
 */
#include "nn/ops_lact_parts.h"

enum { AC, T, W02, W1, H, NORMS, Q, R, INV, KEPT };
_Static_assert(KEPT <= NODE_SAVED, "what writing keeps");

static Status take3(Tape *t, DType dtype, int64_t a, int64_t b, int64_t c, Tensor *out) {
    return tape_take(t, dtype, 3, (int64_t[]){a, b, c}, out);
}

/* Matrices [count * each, r, c] of x as rank 3. */
static Tensor part3(Tensor x, int64_t first, int64_t count, int64_t each, int64_t r, int64_t c) {
    return tensor_view3(part4(x, first, count, each, r, c), count * each, r, c);
}

/* ---- the basis ---------------------------------------------------------------------------- */

/* w [G,n,n]: rows of the Walsh matrix by the energy that they give the tokens x; `mixed` [G,n,e] =
 * w x. */
static Status mix_tokens(Tape *t, Tensor w, Tensor mixed, Tensor x) {
    Device *d = tape_device(t);
    Tensor energy;
    TRY(tape_take(t, DTYPE_F32, 2, x.shape, &energy));
    TRY(d->k->walsh_energy(d, energy, x));
    TRY(d->k->walsh_rows(d, w, energy));
    tape_give(t, energy);
    return d->k->matmul(d, grad_set(mixed), w, false, x, false, 1);
}

/* q, r and inv of keys and values, which lie one behind the other. */
static Status basis_of(Tape *t, const WriteSizes *s, const WriteOperands *o, Tensor kept[KEPT]) {
    Device *d = tape_device(t);
    const int64_t groups = 2 * s->batch * s->heads, n = s->tokens;
    const Tensor x = tensor_view3(o->tokens, groups, n, s->e);
    Tensor w, mixed, r, inv;
    TRY(take3(t, s->act, groups, n, s->e, &kept[Q]));
    TRY(take3(t, s->act, groups, n, n, &kept[R]));
    TRY(take3(t, s->act, groups, n, n, &kept[INV]));
    TRY(take3(t, s->act, groups, n, n, &w));
    TRY(take3(t, s->act, groups, n, s->e, &mixed));
    TRY(mix_tokens(t, w, mixed, x));
    TRY(take3(t, s->act, groups, n, n, &r));
    TRY(take3(t, s->act, groups, n, n, &inv));
    TRY(d->k->token_basis(d, kept[Q], r, inv, mixed));
    tape_give(t, mixed);
    TRY(d->k->matmul(d, grad_set(kept[R]), w, true, r, false, 1));
    TRY(d->k->matmul(d, grad_set(kept[INV]), inv, false, w, false, 1));
    const Tensor mine[] = {w, r, inv};
    for (int i = 0; i < 3; i++) tape_give(t, mine[i]);
    return STATUS_OK;
}

/* y [3,.,n,.] = op(a) x for what belongs to the keys, G0 and G2, and to the values, G1. */
static Status apply_square(Device *d, const WriteSizes *s, Tensor y, Tensor a, bool ta, Tensor x) {
    const int64_t each = s->batch * s->heads, n = s->tokens;
    TRY(d->k->matmul(d, grad_set(part4(y, 0, 2, each, n, s->h)), part4(a, 0, 1, each, n, n), ta,
                     part4(x, 0, 2, each, n, s->h), false, 1));
    return d->k->matmul(d, grad_set(part4(y, 2, 1, each, n, s->h)), part4(a, 1, 1, each, n, n), ta,
                        part4(x, 2, 1, each, n, s->h), false, 1);
}

/* ---- forward ------------------------------------------------------------------------------ */

/* U of the gates = q' f, of back = f' q. */
static Status steps_of(Device *d, const WriteSizes *s, Tensor q, Tensor f, Tensor first,
                       Tensor last) {
    const int64_t each = s->batch * s->heads, n = s->tokens;
    TRY(d->k->matmul(d, grad_set(first), part4(q, 0, 1, each, n, s->e), true,
                     part4(f, 0, 2, each, n, s->h), false, 1));
    return d->k->matmul(d, grad_set(last), part4(f, 2, 1, each, n, s->h), true,
                        part4(q, 1, 1, each, n, s->e), false, 1);
}

static Status span_forward(Tape *t, const WriteSizes *s, Var *const *in, float offset,
                           NewtonSchulz steps, Tensor gates, Tensor back, Tensor kept[KEPT]) {
    Device *d = tape_device(t);
    const int64_t each = s->batch * s->heads, n = s->tokens;
    WriteOperands o;
    Tensor e, f, first, last;
    lact_parts_of(s, gates, back, &first, &last);
    TRY(lact_write_products(t, s, in, offset, &o, kept, &e));
    TRY(basis_of(t, s, &o, kept));
    tape_give(t, o.tokens);
    TRY(take4(t, s->act, 3, each, n, s->h, &kept[H]));
    TRY(apply_square(d, s, kept[H], kept[R], true, e));
    tape_give(t, e);
    TRY(take4(t, s->act, 3, each, n, s->h, &f));
    TRY(tape_take(t, DTYPE_F32, 1, (int64_t[]){3 * each}, &kept[NORMS]));
    TRY(d->k->newton_schulz(d, part3(f, 0, 3, each, n, s->h), kept[NORMS],
                            part3(kept[H], 0, 3, each, n, s->h), steps));
    TRY(steps_of(d, s, kept[Q], f, first, last));
    tape_give(t, f);
    return STATUS_OK;
}

/* ---- backward ----------------------------------------------------------------------------- */

/* y = q D of the gates, q D' of back. */
static Status project_slopes(Device *d, const WriteSizes *s, Tensor y, Tensor q, Tensor first,
                             Tensor last) {
    const int64_t each = s->batch * s->heads, n = s->tokens;
    TRY(d->k->matmul(d, grad_set(part4(y, 0, 2, each, n, s->h)), part4(q, 0, 1, each, n, s->e),
                     false, first, false, 1));
    return d->k->matmul(d, grad_set(part4(y, 2, 1, each, n, s->h)), part4(q, 1, 1, each, n, s->e),
                        false, last, true, 1);
}

/* x [2,.,n,e] = N q + F D' of keys and values. */
static Status span_slopes(Tape *t, const WriteSizes *s, Tensor x, Tensor q, Tensor h, Tensor dh,
                          Tensor f, Tensor first, Tensor last) {
    Device *d = tape_device(t);
    const int64_t each = s->batch * s->heads, n = s->tokens;
    const Tensor keys = part4(x, 0, 1, each, n, s->e), values = part4(x, 1, 1, each, n, s->e);
    /* one by one: as a sum over the two, F32 memory would be written and read in between */
    for (int64_t j = 0; j < 2; j++)
        TRY(d->k->matmul(d, j ? grad_add(keys) : grad_set(keys), part4(f, j, 1, each, n, s->h),
                         false, part4(first, j, 1, each, s->e, s->h), true, 1));
    TRY(d->k->matmul(d, grad_set(values), part4(f, 2, 1, each, n, s->h), false, last, false, 1));
    Tensor square;
    TRY(take4(t, s->act, 2, each, n, n, &square));
    /* of G2 and G1 into those of keys and values, then of G0 */
    TRY(d->k->matmul(d, grad_set(square), part4(h, 1, 2, each, n, s->h), false,
                     part4(dh, 1, 2, each, n, s->h), true, 1));
    TRY(d->k->matmul(d, grad_add(part4(square, 0, 1, each, n, n)), part4(h, 0, 1, each, n, s->h),
                     false, part4(dh, 0, 1, each, n, s->h), true, 1));
    const Tensor all = part4(x, 0, 2, each, n, s->e), basis = part4(q, 0, 2, each, n, s->e);
    TRY(d->k->matmul(d, grad_add(square), all, false, basis, true, -1));
    TRY(d->k->matmul(d, grad_add(all), square, false, basis, false, 1));
    tape_give(t, square);
    return STATUS_OK;
}

/* x = N q + F D', e = dY; first and last: the slopes of U. */
static Status slopes_through(Tape *t, Node *n, const WriteSizes *s, Tensor first, Tensor last,
                             Tensor *x, Tensor *e) {
    Device *d = tape_device(t);
    const int64_t each = s->batch * s->heads, tokens = s->tokens;
    const Tensor h = n->saved[H];
    Tensor dh, f;
    TRY(take4(t, s->act, 3, each, tokens, s->h, e));
    TRY(take4(t, s->act, 3, each, tokens, s->h, &dh));
    TRY(take4(t, s->act, 3, each, tokens, s->h, &f));
    TRY(project_slopes(d, s, *e, n->saved[Q], first, last));
    TRY(d->k->newton_schulz_backward(
        d, grad_set(part3(dh, 0, 3, each, tokens, s->h)), part3(f, 0, 3, each, tokens, s->h),
        part3(*e, 0, 3, each, tokens, s->h), part3(h, 0, 3, each, tokens, s->h), n->saved[NORMS],
        n->u.lact.steps));
    TRY(apply_square(d, s, *e, n->saved[R], false, dh));
    TRY(take4(t, s->act, 2, each, tokens, s->e, x));
    TRY(span_slopes(t, s, *x, n->saved[Q], h, dh, f, first, last));
    tape_give(t, dh);
    tape_give(t, f);
    return STATUS_OK;
}

static Status span_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const WriteSizes s = lact_write_sizes(n->in, false);
    const int64_t each = s.batch * s.heads;
    WriteOperands o = {.w02 = n->saved[W02], .w1 = n->saved[W1]};
    Tensor gates, back = tensor_none(), dgates, dback, first, last, x, e, dac, dt;
    TRY(tape_grad_of(t, n->out, &gates));
    if (n->more[0]) TRY(tape_grad_of(t, n->more[0], &back));
    TRY(lact_as_operands(t, &s, gates, &dgates));
    TRY(lact_as_operands(t, &s, back, &dback));
    lact_parts_of(&s, dgates, dback, &first, &last);
    TRY(slopes_through(t, n, &s, first, last, &x, &e));
    if (dgates.data != gates.data) tape_give(t, dgates);
    if (dback.data != back.data) tape_give(t, dback);
    TRY(lact_take_tokens(t, &s, n->in[0]->value, n->u.lact.offset, &o));
    TRY(lact_slopes_of_products(t, n, &s, &o, e, &dac, &dt));
    TRY(d->k->matmul(d, grad_set(part4(o.tokens, 0, 2, each, s.tokens, s.e)),
                     part4(n->saved[INV], 0, 2, each, s.tokens, s.tokens), true, x, false, 1));
    TRY(lact_slopes_of_tokens(t, n, &s, &o, dac, dt, n->u.lact.offset));
    const Tensor mine[] = {o.tokens, x, e, dac, dt};
    for (int i = 0; i < 5; i++) tape_give(t, mine[i]);
    return STATUS_OK;
}

/* ---- the node ----------------------------------------------------------------------------- */

static LactGradients steps_as(Var *v) {
    return (LactGradients){v, v};
}

LactGradients op_lact_steps(Tape *t, Var *packed, Var *rates, Var *const w[3], float offset,
                            NewtonSchulz steps, DType out_type) {
    Var *in[] = {packed, rates, w[0], w[1], w[2]};
    if (!op_ready(t, "lact_steps", 5, in)) return steps_as(tape_poison(t));
    if (!lact_write_fits(in, tape_recording(t)) || packed->value.shape[1] > w[0]->value.shape[1] ||
        steps.steps < 0 || steps.steps > NEWTON_SCHULZ_MOST ||
        (out_type != DTYPE_F32 && out_type != packed->value.dtype))
        return steps_as(op_refuse(t, "lact_steps", 5, in,
                                  "[B, n, 2d] with n <= e, F32 [B, n, 3H], F32 w0 and w2 [H, e, "
                                  "h], w1 [H, h, e]"));
    const WriteSizes s = lact_write_sizes(in, false);
    const bool joined = s.e == s.h;
    LactGradients u = {0};
    u.gates =
        tape_output(t, out_type, 4, (int64_t[]){(joined ? 3 : 2) * s.batch, s.heads, s.e, s.h});
    if (!joined) u.back = tape_output(t, out_type, 4, (int64_t[]){s.batch, s.heads, s.h, s.e});
    if (tape_poison(t)) return steps_as(tape_poison(t));
    Tensor kept[KEPT] = {{0}};
    Status status =
        span_forward(t, &s, in, offset, steps, op_value(u.gates), op_value(u.back), kept);
    Node *n =
        status == STATUS_OK ? tape_record(t, "lact_steps", span_backward, u.gates, 5, in) : NULL;
    if (n) {
        n->u.lact.steps = steps;
        n->u.lact.offset = offset;
        if (u.back) tape_record_more(n, u.back);
    }
    for (int i = 0; i < KEPT; i++) {
        if (n) n->saved[i] = kept[i];
        if (!n && status == STATUS_OK) tape_give(t, kept[i]);
    }
    return op_done(t, "lact_steps", status, u.gates) == u.gates ? u : steps_as(tape_poison(t));
}
