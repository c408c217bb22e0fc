/* Ops: kernels with a recorded backward. Every op takes and returns Vars of one tape; shapes are
 * checked and named in the message. Kernel formulas: kernels/kernels.h.
 */
#ifndef TTV_NN_OPS_H
#define TTV_NN_OPS_H

#include "nn/tape.h"

/* ---- elementwise (ops_elementwise.c) ---------------------------------------------------- */
Var *op_add(Tape *t, Var *a, Var *b, float alpha); /* a + alpha b; a may have leading dimension 1 */
Var *op_mul(Tape *t, Var *a, Var *b);
Var *op_scale(Tape *t, Var *x, float alpha);
Var *op_cast(Tape *t, Var *x, DType dtype);
Var *op_silu(Tape *t, Var *x);
Var *op_silu_grad(Tape *t, Var *x); /* silu'(x), differentiable: for gradients of the inner loop */
Var *op_gelu(Tape *t, Var *x);
Var *op_sigmoid(Tape *t, Var *x);
Var *op_softplus(Tape *t, Var *x); /* log(1 + e^x) */
/* Functions that fast-weight learners choose from (ops_function.c). */
typedef enum Function {
    FUNCTION_IDENTITY,
    FUNCTION_RELU,
    FUNCTION_SILU,
    FUNCTION_GELU,
    FUNCTION_GELU_TANH,
    FUNCTION_TANH,
    FUNCTION_SIGMOID,
} Function;
/* f(x), the identity as x itself, and f'(x), which is differentiable too (relu'' is 0; NULL for the
 * identity, whose slope is 1 everywhere). */
Var *op_function(Tape *t, Var *x, Function f);
Var *op_function_grad(Tape *t, Var *x, Function f);
Var *op_exp(Tape *t, Var *x);
Var *op_log(Tape *t, Var *x);   /* x below 1e-30 counts as 1e-30, with gradient 0 */
Var *op_sign(Tape *t, Var *x);  /* -1, 0, 1; no gradient passes */
Var *op_rsqrt(Tape *t, Var *x); /* 1/sqrt(x), 0 with gradient 0 where x <= 0 */
/* x + scale[b] * branch; scale: F32 [B] device tensor or none. */
Var *op_residual(Tape *t, Var *x, Var *branch, Tensor scale);
/* The same memory under another shape. */
Var *op_view(Tape *t, Var *x, int rank, const int64_t *shape);
/* The same memory as a constant: no gradient reaches x through it. */
Var *op_detach(Tape *t, Var *x);

/* ---- products (ops_matmul.c) ------------------------------------------------------------ */
/* alpha op(a) op(b), batched, broadcast over leading dimensions of 1; output dtype that of a unless
 * F32 is asked for. */
Var *op_matmul(Tape *t, Var *a, bool ta, Var *b, bool tb, float alpha, DType out);
/* x [..., I] w [O, I]' + b [O] (b may be NULL). */
Var *op_linear(Tape *t, Var *x, Var *w, Var *b);
/* residual + scale[b] (x w' + b): op_residual of op_linear in one node; x has as many rows as
 * residual [B, ..., O], whose shape the result has; scale: F32 [B] device tensor or none. */
Var *op_linear_residual(Tape *t, Var *x, Var *w, Var *b, Var *residual, Tensor scale);
/* The same of op_mlp. */
Var *op_mlp_residual(Tape *t, Var *x, Var *w1, Var *b1, Var *w2, Var *b2, Var *residual,
                     Tensor scale);
/* gelu(x w1' + b1) w2' + b2, biases optional: one node, so that backends fuse bias, GELU and dGELU
 * into the products. */
Var *op_mlp(Tape *t, Var *x, Var *w1, Var *b1, Var *w2, Var *b2);
/* residual + scale[b] (gelu(s) w2' + b2), s = h + depthwise 3x3 of h, h = gelu(x w1' + b1) on maps
 * of height x width tokens; x [B,N,I], taps [H,1,3,3], bias [H]. b1, b2 optional. One node, equal
 * to op_linear, op_gelu, op_cpe, op_gelu, op_linear_residual. */
typedef struct LocalMlp {
    Var *w1, *b1, *taps, *bias, *w2, *b2;
} LocalMlp;
Var *op_local_mlp_residual(Tape *t, Var *x, int64_t height, int64_t width, const LocalMlp *p,
                           Var *residual, Tensor scale);

/* ---- normalisation (ops_norm.c) --------------------------------------------------------- */
Var *op_layernorm(Tape *t, Var *x, Var *w, Var *b, float eps); /* b may be NULL */
/* layernorm(x [..., I]; norm_w, norm_b) w' + b, w [O,I] -> [..., O]; norm_b and b may be NULL:
 * op_layernorm and op_linear as one node, so that the normed x need not be kept. */
Var *op_norm_linear(Tape *t, Var *x, Var *norm_w, Var *norm_b, float eps, Var *w, Var *b);
/* The same with rows [first, first + rows) of w, without biases. */
Var *op_norm_linear_rows(Tape *t, Var *x, Var *norm_w, float eps, Var *w, int64_t first,
                         int64_t rows);
/* layernorm(.; w) of the first `count` tokens of x [B,N,C]: op_layernorm of op_slice_tokens. */
Var *op_norm_tokens(Tape *t, Var *x, int64_t count, Var *w, float eps);
/* x + (gelu(n w1' + b1) w2' + b2), n = layernorm(x [..., I]; norm_w, norm_b); norm_b, b1, b2 may be
 * NULL: op_layernorm and op_mlp_residual as one node, likewise (ops_norm_mlp.c). */
Var *op_norm_mlp(Tape *t, Var *x, Var *norm_w, Var *norm_b, float eps, Var *w1, Var *b1, Var *w2,
                 Var *b2);
/* Soft norm over the middle of g [outer, reduce, inner]; the output has the shape of g. */
Var *op_softnorm(Tape *t, Var *g, int64_t outer, int64_t reduce, int64_t inner);
/* x / (|x| + offset), the norm over the middle of x [outer, reduce, inner]; x F32 or BF16. Unit
 * vectors: of the last dimension with inner 1, of columns with inner their number. */
Var *op_normalise(Tape *t, Var *x, int64_t outer, int64_t reduce, int64_t inner, float offset);
/* x / (|x| + offset) |like|, norms of the columns of x [..., r, c] and of like F32 [..., r, c],
 * whose leading dimensions repeat to those of x; `like` is a constant here: weights keep the
 * column norms that they started with (lact_nvs.md 4). */
Var *op_weight_norm(Tape *t, Var *x, Var *like, float offset);
/* w x / sqrt(mean(x^2) + eps) over the last dimension; w F32 [C]. */
Var *op_rmsnorm(Tape *t, Var *x, Var *w, float eps);
Var *op_softmax(Tape *t, Var *x, float scale); /* softmax(scale x) over the last dimension */

/* ---- layer norms within products (ops_fold.c): passes without gradients ------------------ */
/* A linear layer with the layer norm in front of it folded into its weights. */
typedef struct NormFold {
    Tensor w, offset; /* [O,I], F32 [O]; none: not folded */
} NormFold;
/* Folds layernorm(.; gain, shift) into w [O,I], b [O] (b may be NULL). The first call takes memory
 * from d->weights. To be called again when any of the four has changed. */
Status norm_fold(Device *d, NormFold *f, const Var *w, const Var *b, const Var *gain,
                 const Var *shift);
/* Whether a pass gains by it: it is folded, nothing is recorded, BF16, and the device multiplies
 * `rows` rows in one kernel. */
bool norm_folds(Tape *t, const NormFold *f, int64_t rows);
/* op_cpe, and *stats F32 [B*N,2] of its result: mean and rstd of each row. */
Var *op_cpe_stats(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b, float eps,
                  Var **stats);
/* op_linear_residual without a scale, and *stats alike. */
Var *op_linear_residual_stats(Tape *t, Var *x, Var *w, Var *b, Var *residual, float eps,
                              Var **stats);
/* The folded layer of x [..., I], which has these stats. */
Var *op_linear_folded(Tape *t, Var *x, Var *stats, const NormFold *f);
/* x + gelu(folded layer of x) w2' + b2: op_layernorm and op_mlp_residual of x. *out (NULL: not
 * wanted): the stats of the result for eps. */
Var *op_mlp_folded(Tape *t, Var *x, Var *stats, const NormFold *f, Var *w2, Var *b2, float eps,
                   Var **out);
/* op_mean_tokens of op_layernorm of x, which has these stats. */
Var *op_norm_mean_tokens(Tape *t, Var *x, Var *stats, Var *gain, Var *shift);

/* ---- attention (ops_attention.c) -------------------------------------------------------- */
/* softmax(q k' / sqrt(dh)) v in each window of packed [W,l,3d] (q | k | v, head-major), q and k
 * RMS-normed with q_w, k_w F32 [dh] unless both are NULL -> [W,l,d]. */
Var *op_attention(Tape *t, Var *packed, Var *q_w, Var *k_w, int64_t heads, float eps);

/* ---- depthwise 3x3 (ops_dwconv.c) ------------------------------------------------------- */
/* x + dwconv(x) over the [B,H,W,C] view of x [B,N,C]; w [C,1,3,3], b [C]: conditional position
 * encoding. */
Var *op_cpe(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b);
/* The same, and the layer norm of it: returns layernorm(sum), *sum = x + dwconv(x). One node, equal
 * to op_cpe and op_layernorm. */
Var *op_cpe_norm(Tape *t, Var *x, int64_t height, int64_t width, Var *w, Var *b, Var *gain,
                 Var *shift, float eps, Var **sum);
/* Per-sample taps: y[p] = sum_t w[b,c,t] x[p+t]; x [B,H,W,C], w [1 or B,C,9]. */
Var *op_dwconv_apply(Tape *t, Var *x, Var *w);
/* g[b,c,t] = alpha sum_p x[p+t] y[p] -> F32 [B,C,9]. */
Var *op_dwconv_taps(Tape *t, Var *x, Var *y, float alpha);

/* ---- tokens and heads (ops_tokens.c) ---------------------------------------------------- */
Var *op_split_heads(Tape *t, Var *packed, int64_t offset, int64_t heads, int64_t head_dim);
/* [B,N,nh*dh + extra]: the heads of a [B,nh,N,dh] and behind them those of b [B,nb,N,db] (b may be
 * NULL). */
Var *op_merge_heads(Tape *t, Var *a, Var *b);
Var *op_mean_tokens(Tape *t, Var *x); /* [B,N,C] -> F32 [B,C] */
/* U8 [B,H,W,3] to (x/255 - mean)/std, as a map (patch 0) or as op_patchify makes patches of it. */
Var *op_image_normalise(Tape *t, Tensor u8, const float *mean, const float *std, int64_t patch);
/* Training images: normalised, flipped, erased, mixed; samples I32 [B,8] and mix F32 [8] as the
 * kernel takes them, on the device. Without gradients, like normalise. */
Var *op_image_prepare(Tape *t, Tensor u8, Tensor samples, Tensor mix, const float *mean,
                      const float *std, int64_t patch);
/* Tokens [B,V*l,12 p^2] of the tape's activations from cameras F32 [B,V,16] and the colours U8
 * [B,I,height*width,3] of the first I views (or none); without gradients. */
Var *op_view_tokens(Tape *t, Tensor cameras, Tensor rgb, int64_t height, int64_t width,
                    int64_t patch);
Var *op_patchify(Tape *t, Var *image, int64_t patch); /* gradient to the image is not offered */

/* ---- factors and runs of tokens (ops_runs.c) -------------------------------------------- */
/* s[r] x[r,c]: a factor per row of x [..., C]; s F32 with as many values as x has rows. */
Var *op_scale_tokens(Tape *t, Var *x, Var *s);
/* Tokens [first, first + count) of x [B,N,C], as a tensor of their own. */
Var *op_slice_tokens(Tape *t, Var *x, int64_t first, int64_t count);
/* [B,N+M,C]: the tokens of a [B,N,C], then those of b [B,M,C]. */
Var *op_concat_tokens(Tape *t, Var *a, Var *b);

/* ---- prefixes of tokens (ops_decay.c), F32 ---------------------------------------------- */
/* y_t = e^f_t y_{t-1} + x_t over the tokens of x [G,N,C]; log decays f [G,N,C] or [G,N,1] (NULL:
 * 0), y_{-1} = start [G,C] (NULL: 0). */
Var *op_decay_scan(Tape *t, Var *x, Var *f, Var *start);
Var *op_reverse_tokens(Tape *t, Var *x); /* the last token of x [G,N,C] first */
/* [G,N,N]: sum_i q[t,i] k[s,i] e^(l[t,i] - l[s,i]) for s <= t, else 0; q, k [G,N,C], l [G,N,C] or
 * [G,N,1] not growing with t (NULL: 0). */
Var *op_decay_scores(Tape *t, Var *q, Var *k, Var *l);

/* ---- loss (ops_loss.c) ------------------------------------------------------------------ */
Var *op_cross_entropy(Tape *t, Var *logits, Tensor targets); /* F32 [1] */
/* Mean of (x - target)^2 -> F32 [1]; target F32 of x's shape. */
Var *op_mse(Tape *t, Var *x, Tensor target);

/* ---- orthogonalisation (ops_newton_schulz.c) -------------------------------------------- */
/* Newton-Schulz of each matrix of g [..., r, c] (F32 or BF16) as one node that keeps g and its
 * norms alone; the result is of dtype `out`, F32 or BF16. */
Var *op_newton_schulz(Tape *t, Var *g, NewtonSchulz s, DType out);

/* ---- stages of a hierarchical ViTTT (ops_conv3.c, ops_batchnorm.c, ops_rope.c) ------------- */
/* 3x3 convolution with padding 1: x [B,H,W,C], w [O,C,3,3] -> [B,ceil(H/stride),...,O]. */
Var *op_conv3(Tape *t, Var *x, Var *w, int64_t stride);
/* relu(b + depthwise 3x3 with stride 2 of relu(x)): x [B,H,W,C], w [C,1,3,3], b [C]. */
Var *op_dwconv_down(Tape *t, Var *x, Var *w, Var *b);
/* Batch norm over all but the last dimension, relu behind it where asked. training: statistics of
 * x, towards which seen_mean and seen_var [C] move by a tenth at once; otherwise those seen, which
 * stay. */
Var *op_batchnorm(Tape *t, Var *x, Var *w, Var *b, Var *seen_mean, Var *seen_var, float eps,
                  bool relu, bool training);
/* Rotary positions: channels [0,C) and [C,2C) of x [B,N,P] turned by table F32 [N,C/2,2] or
 * [H,W,C/2,2] = (cos, sin), which has no gradient. */
Var *op_rope(Tape *t, Var *x, Var *table);

/* ---- fused ViTTT branches (ops_vittt.c): one node each, equal to the composition in ttt/  */
/* cat [B,N,C+d] from packed qkv [B,N,3C+3d], both branches. */
Var *op_vittt_inner(Tape *t, Var *qkv, Var *w1, Var *w2, Var *w3, VitttShape s);

/* ---- LaCT fast-weight layer (ops_lact.c, ops_lact_tokens.c): fused forms of ttt/'s composition;
 * lact_nvs.md 3.3, 4, 5. d width, H heads, e = d/H, h hidden -------------------------------- */
/* x [..., I] times rows [first, first + rows) of w [O, I], transposed. */
Var *op_linear_rows(Tape *t, Var *x, Var *w, int64_t first, int64_t rows);
/* softplus(x w' + b + shift) in F32, whatever x is: F32 [..., J]; w [J, I] and b [J] F32. */
Var *op_token_rates(Tape *t, Var *x, Var *w, Var *b, float shift);
/* [a | b] in `dtype` from F32 a [H,e,h] and b: [1,H,e,2h]. */
Var *op_side_by_side(Tape *t, Var *a, Var *b, DType dtype);

/* Inner gradients, F32 or BF16. gates: G0 [B,H,e,h], then G2; where h = e also G1 behind them, as
 * [3B,H,e,e], and back is NULL: one batch for Newton-Schulz. Otherwise back is G1 [B,H,h,e], and
 * gates is NULL when W1 alone is written. */
typedef struct LactGradients {
    Var *gates, *back;
} LactGradients;
/* packed [B,n,2d]: keys and values before silu, rates [B,n,3H]; w0, w2 [H,e,h] and w1 [H,h,e] F32;
 * keys become silu(k)/(|silu(k)| + offset). `out`: F32, or that of packed. */
LactGradients op_lact_write(Tape *t, Var *packed, Var *rates, Var *const w[3], float offset,
                            bool only_w1, DType out);
/* op_lact_write, all three of them, and op_newton_schulz of what it gives as one node, for n <= e
 * tokens, in whose span the iteration runs (ops_lact_span.c). Results as op_lact_write's; their
 * values are not needed by the backward. */
LactGradients op_lact_steps(Tape *t, Var *packed, Var *rates, Var *const w[3], float offset,
                            NewtonSchulz s, DType out);

/* Fast weights for the reading products, in `dtype`: gates [W0' | W2'] [B,H,e,2h], back W1'
 * [B,H,h,e]. */
typedef struct LactWeights {
    Var *gates, *back;
} LactWeights;
/* W + sign U, with offset > 0 under weight norm. u as op_lact_write's result; without u.gates W0
 * and W2 stay as they are, with B = 1. The values of u are not needed afterwards. */
LactWeights op_lact_step(Tape *t, LactGradients u, Var *const w[3], float sign, float offset,
                         DType dtype);
/* The same without recording, into values that are there. */
void op_lact_step_to(Tape *t, LactGradients u, Var *const w[3], float sign, float offset,
                     LactWeights to);
/* f_W'(q) [B,H,m,e] of packed [B,m,d], queries before silu (without recording the first d channels
 * of more); leading dimensions of the weights are
 * B or 1. */
Var *op_lact_read(Tape *t, Var *packed, LactWeights w, float offset);
/* rmsnorm(o; norm_w) of o [B,H,m,e] by head, heads joined, times proj_w [O,He] transposed, plus
 * residual [B,m,O] (may be NULL): op_rmsnorm, op_merge_heads and op_linear_residual in one. */
Var *op_lact_out(Tape *t, Var *o, Var *norm_w, float eps, Var *proj_w, Var *residual);
/* x [B,N,d] through `count` blocks that only read, in place: x stays the caller's. The colours
 * [B,N,C] F32 that form.colours_w [C,d] makes of the result, or x. Not while recording. The caller
 * fills heads, window, the offsets and, for colours, both weights of `form`. */
Var *op_view_blocks(Tape *t, Var *x, int count, const ViewBlock *block, ViewForm form);

#endif
