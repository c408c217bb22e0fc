/* Layer norms folded into the products behind them, for passes without gradients: with rates rstd
 * of the rows of x, layernorm(x) w' + b = rstd x folded' + offset, so that the normed rows are
 * neither written nor read.
 */
#include "nn/ops.h"
#include "nn/ops_check.h"

Status norm_fold(Device *d, NormFold *f, const Var *w, const Var *b, const Var *gain,
                 const Var *shift) {
    const Tensor v = w->value;
    if (v.rank != 2 || !op_is_act(v.dtype) || tensor_count(gain->value) != v.shape[1] ||
        tensor_count(shift->value) != v.shape[1] || (b && tensor_count(b->value) != v.shape[0]))
        return status_set(STATUS_INTERNAL, "norm_fold: %s and its norm do not fit",
                          w->name ? w->name : "a weight");
    if (tensor_is_none(f->w)) {
        TRY(arena_tensor(&d->weights, v.dtype, 2, v.shape, &f->w));
        TRY(arena_tensor(&d->weights, DTYPE_F32, 1, v.shape, &f->offset));
    }
    return d->k->norm_fold(d, f->w, f->offset, v, op_value(b), gain->value, shift->value);
}

bool norm_folds(Tape *t, const NormFold *f, int64_t rows) {
    return !tape_recording(t) && !tensor_is_none(f->w) && f->w.dtype == DTYPE_BF16 &&
           device_folds_norms(tape_device(t), rows, f->w.shape[0], f->w.shape[1]);
}

static Var *stats_output(Tape *t, const Var *x) {
    return tape_output(t, DTYPE_F32, 2, (int64_t[]){tensor_rows(x->value), 2});
}

/* What the ops here ask for besides their inputs' shapes. */
static bool unrecorded(Tape *t, const Var *x) {
    return !tape_recording(t) && op_is_act(x->value.dtype);
}

Var *op_cpe_stats(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b, float eps,
                  Var **stats) {
    Var *in[] = {x, w, b};
    *stats = tape_poison(t);
    if (!op_ready(t, "cpe_stats", 3, in)) return *stats = tape_poison(t);
    const Tensor v = x->value;
    const int64_t channels = tensor_last(v), map[] = {v.shape[0], height, width, channels};
    if (!unrecorded(t, x) || v.rank != 3 || v.shape[1] != height * width ||
        tensor_count(w->value) != 9 * channels || tensor_count(b->value) != channels)
        return *stats = op_refuse(t, "cpe_stats", 3, in,
                                  "x [B, H*W, C], w F32 [C, 1, 3, 3], b F32 [C], no recording");
    Var *sum = op_output_like(t, v.dtype, x);
    *stats = stats_output(t, x);
    if (tape_poison(t)) return *stats = tape_poison(t);
    const Status s = op_kernels(t)->dwconv3_norm(
        tape_device(t), tensor_view(sum->value, 4, map), tensor_none(), (*stats)->value,
        tensor_view(v, 4, map), tensor_view3(w->value, 1, channels, 9), b->value, tensor_none(),
        tensor_none(), eps);
    sum = op_done(t, "cpe_stats", s, sum);
    if (tape_poison(t)) *stats = sum;
    return sum;
}

Var *op_linear_residual_stats(Tape *t, Var *x, Var *w, Var *b, Var *residual, float eps,
                              Var **stats) {
    Var *in[] = {x, w, b, residual};
    *stats = tape_poison(t);
    if (!op_ready(t, "linear_residual_stats", 4, in)) return *stats = tape_poison(t);
    const Tensor v = x->value, u = w->value, r = residual->value;
    if (!unrecorded(t, x) || u.rank != 2 || tensor_last(v) != u.shape[1] || v.dtype != u.dtype ||
        tensor_count(b->value) != u.shape[0] || tensor_last(r) != u.shape[0] ||
        tensor_rows(r) != tensor_rows(v) || r.dtype != v.dtype)
        return *stats = op_refuse(t, "linear_residual_stats", 4, in,
                                  "x [..., I], w [O, I], b F32 [O], residual [..., O], no "
                                  "recording");
    Var *y = op_output_like(t, v.dtype, residual);
    *stats = stats_output(t, residual);
    if (tape_poison(t)) return *stats = tape_poison(t);
    const Status s =
        op_kernels(t)->linear_residual_stats(tape_device(t), op_rows(y->value), (*stats)->value,
                                             op_rows(v), u, b->value, op_rows(r), eps);
    y = op_done(t, "linear_residual_stats", s, y);
    if (tape_poison(t)) *stats = y;
    return y;
}

/* Rows of x and their statistics fit the folded weights. */
static bool folded_fits(Tape *t, const Var *x, const Var *stats, const NormFold *f) {
    return unrecorded(t, x) && !tensor_is_none(f->w) && tensor_last(x->value) == f->w.shape[1] &&
           x->value.dtype == f->w.dtype && tensor_rows(stats->value) == tensor_rows(x->value);
}

#define FOLDED_EXPECTED "x [..., I], stats F32 [rows, 2], weights folded for I, no recording"

Var *op_linear_folded(Tape *t, Var *x, Var *stats, const NormFold *f) {
    Var *in[] = {x, stats};
    if (!op_ready(t, "linear_folded", 2, in)) return tape_poison(t);
    if (!folded_fits(t, x, stats, f)) return op_refuse(t, "linear_folded", 2, in, FOLDED_EXPECTED);
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < x->value.rank; i++) shape[i] = x->value.shape[i];
    shape[x->value.rank - 1] = f->w.shape[0];
    Var *y = tape_output(t, x->value.dtype, x->value.rank, shape);
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->linear_rated(tape_device(t), op_rows(y->value), stats->value,
                                                 op_rows(x->value), f->w, f->offset, ACT_NONE);
    return op_done(t, "linear_folded", s, y);
}

Var *op_mlp_folded(Tape *t, Var *x, Var *stats, const NormFold *f, Var *w2, Var *b2, float eps,
                   Var **out) {
    Var *in[] = {x, stats, w2, b2};
    if (!op_ready(t, "mlp_folded", 4, in)) return tape_poison(t);
    const Tensor v = w2->value;
    if (!folded_fits(t, x, stats, f) || v.rank != 2 || v.shape[1] != f->w.shape[0] ||
        v.shape[0] != f->w.shape[1] || v.dtype != f->w.dtype ||
        tensor_count(b2->value) != v.shape[0])
        return op_refuse(t, "mlp_folded", 4, in, FOLDED_EXPECTED ", w2 [I, H], b2 F32 [I]");
    Device *d = tape_device(t);
    Tensor hidden;
    Var *y = op_output_like(t, x->value.dtype, x);
    if (out) *out = stats_output(t, x);
    if (tape_poison(t)) return y;
    const int64_t shape[] = {tensor_rows(x->value), v.shape[1]};
    Status s = tape_take(t, x->value.dtype, 2, shape, &hidden);
    if (s == STATUS_OK)
        s = d->k->linear_rated(d, hidden, stats->value, op_rows(x->value), f->w, f->offset,
                               ACT_GELU);
    if (s == STATUS_OK && out)
        s = d->k->linear_residual_stats(d, op_rows(y->value), (*out)->value, hidden, v, b2->value,
                                        op_rows(x->value), eps);
    else if (s == STATUS_OK)
        s = d->k->linear_residual(d, op_rows(y->value), hidden, v, b2->value, op_rows(x->value),
                                  tensor_none());
    if (s == STATUS_OK) tape_give(t, hidden);
    return op_done(t, "mlp_folded", s, y);
}

Var *op_norm_mean_tokens(Tape *t, Var *x, Var *stats, Var *gain, Var *shift) {
    Var *in[] = {x, stats, gain, shift};
    if (!op_ready(t, "norm_mean_tokens", 4, in)) return tape_poison(t);
    const Tensor v = x->value;
    if (!unrecorded(t, x) || v.rank != 3 || tensor_count(stats->value) != 2 * tensor_rows(v) ||
        tensor_count(gain->value) != v.shape[2] || tensor_count(shift->value) != v.shape[2])
        return op_refuse(t, "norm_mean_tokens", 4, in,
                         "x [B, N, C], stats F32 [B*N, 2], gain and shift F32 [C], no recording");
    Var *y = tape_output(t, DTYPE_F32, 2, (int64_t[]){v.shape[0], v.shape[2]});
    if (tape_poison(t)) return y;
    const Status s = op_kernels(t)->norm_mean_tokens(tape_device(t), y->value, v, stats->value,
                                                     gain->value, shift->value);
    return op_done(t, "norm_mean_tokens", s, y);
}
