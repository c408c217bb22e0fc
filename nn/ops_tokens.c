#include "nn/ops.h"
#include "nn/ops_check.h"

/* ---- heads ------------------------------------------------------------------------------ */

/* Several splits share one packed gradient, each with its own channels: the first to arrive clears
 * it all, then every one adds to its part. */
static Status split_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Grad g = tape_grad(t, n->in[0]);
    if (tensor_is_none(g.t)) return STATUS_OK;
    if (!g.add) TRY(d->k->zero(d, g.t));
    return d->k->merge_heads(d, grad_add(g.t), n->out->grad, n->i[0]);
}

Var *op_split_heads(Tape *t, Var *packed, int64_t offset, int64_t heads, int64_t head_dim) {
    if (!op_ready(t, "split_heads", 1, &packed)) return tape_poison(t);
    Tensor p = packed->value;
    if (p.rank != 3 || heads < 1 || head_dim < 1 || offset < 0 || offset > p.shape[2] ||
        heads * head_dim > p.shape[2] - offset)
        return op_refuse(t, "split_heads", 1, &packed,
                         "[B, N, P] with offset + heads * head_dim <= P");
    int64_t shape[] = {p.shape[0], heads, p.shape[1], head_dim};
    Var *y = tape_output(t, p.dtype, 4, shape);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->split_heads(tape_device(t), grad_set(y->value), p, offset);
    Node *n = s == STATUS_OK ? tape_record(t, "split_heads", split_backward, y, 1, &packed) : NULL;
    if (n) n->i[0] = offset;
    return op_done(t, "split_heads", s, y);
}

static Status merge_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    Var *a = n->in[0], *b = n->in[1];
    Grad da = tape_grad(t, a);
    if (!tensor_is_none(da.t)) TRY(d->k->split_heads(d, da, n->out->grad, 0));
    Grad db = tape_grad(t, b);
    if (tensor_is_none(db.t)) return STATUS_OK;
    return d->k->split_heads(d, db, n->out->grad, n->i[0]);
}

Var *op_merge_heads(Tape *t, Var *a, Var *b) {
    Var *in[] = {a, b};
    if (!op_ready(t, "merge_heads", b ? 2 : 1, in)) return tape_poison(t);
    Tensor va = a->value, vb = op_value(b);
    if (va.rank != 4 || (b && (vb.rank != 4 || vb.dtype != va.dtype || vb.shape[0] != va.shape[0] ||
                               vb.shape[2] != va.shape[2])))
        return op_refuse(t, "merge_heads", 2, in, "[B, heads, N, head_dim] with equal B and N");
    int64_t wide_a = va.shape[1] * va.shape[3], wide_b = b ? vb.shape[1] * vb.shape[3] : 0;
    int64_t shape[] = {va.shape[0], va.shape[2], wide_a + wide_b};
    Var *y = tape_output(t, va.dtype, 3, shape);
    if (tape_poison(t)) return y;
    Device *d = tape_device(t);
    Status s = d->k->merge_heads(d, grad_set(y->value), va, 0);
    if (s == STATUS_OK && b) s = d->k->merge_heads(d, grad_set(y->value), vb, wide_a);
    Node *n = s == STATUS_OK ? tape_record(t, "merge_heads", merge_backward, y, 2, in) : NULL;
    if (n) n->i[0] = wide_a;
    return op_done(t, "merge_heads", s, y);
}

/* ---- mean over tokens ------------------------------------------------------------------- */

static Status mean_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    return d->k->mean_tokens_backward(d, tape_grad(t, n->in[0]), n->out->grad);
}

Var *op_mean_tokens(Tape *t, Var *x) {
    if (!op_ready(t, "mean_tokens", 1, &x)) return tape_poison(t);
    if (x->value.rank != 3) return op_refuse(t, "mean_tokens", 1, &x, "[B, N, C]");
    int64_t shape[] = {x->value.shape[0], x->value.shape[2]};
    Var *y = tape_output(t, DTYPE_F32, 2, shape);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->mean_tokens(tape_device(t), y->value, x->value);
    if (s == STATUS_OK) tape_record(t, "mean_tokens", mean_backward, y, 1, &x);
    return op_done(t, "mean_tokens", s, y);
}

/* ---- images ----------------------------------------------------------------------------- */

static bool patch_fits(Tensor u8, int64_t patch) {
    return u8.rank == 4 && u8.shape[3] == 3 && u8.dtype == DTYPE_U8 && patch >= 0 &&
           (patch == 0 || (u8.shape[1] % patch == 0 && u8.shape[2] % patch == 0));
}

/* The map, or its patches. */
static Var *image_output(Tape *t, Tensor u8, int64_t patch) {
    if (patch == 0) return tape_output(t, tape_act(t), 4, u8.shape);
    const int64_t shape[] = {u8.shape[0], (u8.shape[1] / patch) * (u8.shape[2] / patch),
                             3 * patch * patch};
    return tape_output(t, tape_act(t), 3, shape);
}

#define IMAGE_EXPECTED "U8 [B, H, W, 3] with H and W multiples of the patch"

Var *op_image_normalise(Tape *t, Tensor u8, const float *mean, const float *std, int64_t patch) {
    if (tape_poison(t)) return tape_poison(t);
    Var *x = tape_input(t, u8, "image");
    if (!op_ready(t, "image_normalise", 1, &x)) return tape_poison(t);
    if (!patch_fits(u8, patch)) return op_refuse(t, "image_normalise", 1, &x, IMAGE_EXPECTED);
    Var *y = image_output(t, u8, patch);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->image_normalise(tape_device(t), y->value, u8, mean, std, patch);
    return op_done(t, "image_normalise", s, y);
}

Var *op_image_prepare(Tape *t, Tensor u8, Tensor samples, Tensor mix, const float *mean,
                      const float *std, int64_t patch) {
    if (tape_poison(t)) return tape_poison(t);
    Var *in[] = {tape_input(t, u8, "image"), tape_input(t, samples, "samples"),
                 tape_input(t, mix, "mix")};
    if (!op_ready(t, "image_prepare", 3, in)) return tape_poison(t);
    if (!patch_fits(u8, patch) || samples.rank != 2 || samples.dtype != DTYPE_I32 ||
        samples.shape[0] != u8.shape[0] || samples.shape[1] != 8 || mix.rank != 1 ||
        mix.dtype != DTYPE_F32 || mix.shape[0] != 8)
        return op_refuse(t, "image_prepare", 3, in, IMAGE_EXPECTED ", I32 [B, 8] and F32 [8]");
    Var *y = image_output(t, u8, patch);
    if (tape_poison(t)) return y;
    Status s =
        op_kernels(t)->image_prepare(tape_device(t), y->value, u8, samples, mix, mean, std, patch);
    return op_done(t, "image_prepare", s, y);
}

static Status patchify_backward(Tape *t, Node *n) {
    (void)t;
    (void)n;
    return status_set(STATUS_INTERNAL, "the gradient with respect to an image is not offered");
}

Var *op_patchify(Tape *t, Var *image, int64_t patch) {
    if (!op_ready(t, "patchify", 1, &image)) return tape_poison(t);
    Tensor v = image->value;
    if (v.rank != 4 || patch < 1 || v.shape[1] % patch != 0 || v.shape[2] % patch != 0)
        return op_refuse(t, "patchify", 1, &image,
                         "[B, H, W, C] with H and W multiples of the patch");
    int64_t shape[] = {v.shape[0], (v.shape[1] / patch) * (v.shape[2] / patch),
                       v.shape[3] * patch * patch};
    Var *y = tape_output(t, v.dtype, 3, shape);
    if (tape_poison(t)) return y;
    Status s = op_kernels(t)->patchify(tape_device(t), y->value, v, patch);
    if (s == STATUS_OK) tape_record(t, "patchify", patchify_backward, y, 1, &image);
    return op_done(t, "patchify", s, y);
}
