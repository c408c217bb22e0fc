/* Cases of norms, stencils, tokens, fast-weight layers and losses, and the table of all: small, odd
 * and 1-sized shapes.
 */
#include "gradient_case.h"

/* ---- norms, stencils, tokens, loss ------------------------------------------------------ */

static Var *layernorm(Tape *t, Var *const *in) {
    return op_layernorm(t, in[0], in[1], in[2], 1e-6f);
}
static Var *norm_linear(Tape *t, Var *const *in) {
    return op_norm_linear(t, in[0], in[1], in[2], 1e-6f, in[3], in[4]);
}
static Var *norm_linear_frugal(Tape *t, Var *const *in) {
    tape_set_thrift(t, TAPE_FRUGAL);
    Var *y = op_norm_linear(t, in[0], in[1], NULL, 1e-6f, in[2], NULL);
    tape_set_thrift(t, TAPE_LAVISH);
    return y;
}
/* Two parts of one weight, of which the gradient of the second clears the whole. */
static Var *norm_linear_rows(Tape *t, Var *const *in) {
    Var *a = op_norm_linear_rows(t, in[0], in[1], 1e-6f, in[2], 1, 3);
    Var *b = op_norm_linear_rows(t, in[0], in[1], 1e-6f, in[2], 3, 3);
    return op_add(t, a, b, 0.5f);
}
static Var *norm_tokens(Tape *t, Var *const *in) {
    return op_norm_tokens(t, in[0], 3, in[1], 1e-6f);
}
static Var *norm_mlp(Tape *t, Var *const *in) {
    return op_norm_mlp(t, in[0], in[1], in[2], 1e-6f, in[3], in[4], in[5], NULL);
}
static Var *norm_mlp_frugal(Tape *t, Var *const *in) {
    tape_set_thrift(t, TAPE_FRUGAL);
    Var *y = op_norm_mlp(t, in[0], in[1], NULL, 1e-6f, in[2], NULL, in[3], NULL);
    tape_set_thrift(t, TAPE_LAVISH);
    return y;
}
/* The op and half of what it is made of. */
static Var *norm_mlp_twice(Tape *t, Var *const *in) {
    Var *own = norm_mlp(t, in);
    Var *n = op_layernorm(t, in[0], in[1], in[2], 1e-6f);
    Var *composed = op_mlp_residual(t, n, in[3], in[4], in[5], NULL, in[0], tensor_none());
    return op_add(t, own, composed, 0.5f);
}
static Var *softnorm(Tape *t, Var *const *in) {
    return op_softnorm(t, in[0], 3, 4, 5);
}
static Var *normalise_rows(Tape *t, Var *const *in) {
    return op_normalise(t, in[0], 6, 5, 1, 0.01f);
}
static Var *normalise_columns(Tape *t, Var *const *in) {
    return op_normalise(t, in[0], 3, 4, 5, 0.01f);
}
static Var *weight_norm(Tape *t, Var *const *in) {
    return op_weight_norm(t, in[0], in[1], 0.01f);
}
static Var *newton_schulz(Tape *t, Var *const *in) {
    const NewtonSchulz s = {.steps = 2,
                            .triple = {{3.4445f, -4.7750f, 2.0315f}, {2.0f, -1.5f, 0.5f}}};
    return op_newton_schulz(t, in[0], s, in[0]->value.dtype);
}
static Var *rmsnorm(Tape *t, Var *const *in) {
    return op_rmsnorm(t, in[0], in[1], 1e-5f);
}
static Var *softmax(Tape *t, Var *const *in) {
    return op_softmax(t, in[0], 0.7f);
}
static Var *attention(Tape *t, Var *const *in) {
    return op_attention(t, in[0], in[1], in[2], 2, 1e-5f);
}
static Var *cpe(Tape *t, Var *const *in) {
    return op_cpe(t, in[0], 4, 3, in[1], in[2]);
}
static Var *cpe_one(Tape *t, Var *const *in) {
    return op_cpe(t, in[0], 1, 1, in[1], in[2]);
}
static Var *cpe_norm(Tape *t, Var *const *in) {
    Var *sum, *y = op_cpe_norm(t, in[0], 4, 3, in[1], in[2], in[3], in[4], 1e-6f, &sum);
    return op_add(t, y, sum, 0.3f);
}
static Var *cpe_norm_sum(Tape *t, Var *const *in) {
    Var *sum, *y = op_cpe_norm(t, in[0], 4, 3, in[1], in[2], in[3], in[4], 1e-6f, &sum);
    (void)y;
    return sum;
}
static Var *cpe_norm_only(Tape *t, Var *const *in) {
    Var *sum;
    return op_cpe_norm(t, in[0], 4, 3, in[1], in[2], in[3], in[4], 1e-6f, &sum);
}
static Var *conv3(Tape *t, Var *const *in) {
    return op_conv3(t, in[0], in[1], 1);
}
static Var *conv3_strided(Tape *t, Var *const *in) {
    return op_conv3(t, in[0], in[1], 2);
}
/* Both kinks of relu have values on either side and never near them: signs are fixed. */
static Var *dwconv_down(Tape *t, Var *const *in) {
    Var *sign = op_cast(t, op_sign(t, in[3]), in[0]->value.dtype);
    Var *bias = op_mul(t, op_exp(t, in[2]), op_sign(t, in[4]));
    return op_dwconv_down(t, op_mul(t, op_exp(t, in[0]), sign), in[1], op_scale(t, bias, 3.0f));
}
static Var *batchnorm(Tape *t, Var *const *in) {
    return op_batchnorm(t, in[0], in[1], in[2], in[3], in[4], 1e-2f, false, true);
}
static Var *batchnorm_seen(Tape *t, Var *const *in) {
    return op_batchnorm(t, in[0], in[1], in[2], in[3], in[4], 1e-2f, false, false);
}
/* Four channels of the MLP's hidden layer on a map of 3 x 2; biases of the products are left out in
 * one of the cases. */
static Var *local_mlp_residual(Tape *t, Var *const *in) {
    const LocalMlp p = {in[1], NULL, in[2], in[3], in[4], NULL};
    return op_local_mlp_residual(t, in[0], 3, 2, &p, in[5], tensor_none());
}
static Var *local_mlp_composed(Tape *t, Var *const *in) {
    Var *h = op_gelu(t, op_linear(t, in[0], in[1], NULL));
    Var *local = op_gelu(t, op_cpe(t, h, 3, 2, in[2], in[3]));
    Var *y = op_linear_residual(t, local, in[4], NULL, in[5], tensor_none());
    Var *own = local_mlp_residual(t, in);
    return op_add(t, y, own, -2.0f); /* minus the op where both are equal */
}
static Var *rope(Tape *t, Var *const *in) {
    return op_rope(t, in[0], in[1]);
}
static Var *dwconv_apply(Tape *t, Var *const *in) {
    return op_dwconv_apply(t, in[0], in[1]);
}
static Var *dwconv_taps(Tape *t, Var *const *in) {
    return op_dwconv_taps(t, in[0], in[1], 0.4f);
}
static Var *split_heads(Tape *t, Var *const *in) {
    return op_split_heads(t, in[0], 3, 2, 4);
}
/* Two splits with a gap and an overlap, joined again: their gradients meet in one packed tensor. */
static Var *split_twice(Tape *t, Var *const *in) {
    Var *a = op_split_heads(t, in[0], 0, 2, 3), *b = op_split_heads(t, in[0], 4, 2, 3);
    return op_mul(t, a, b);
}
static Var *merge_heads(Tape *t, Var *const *in) {
    return op_merge_heads(t, in[0], in[1]);
}
static Var *mean_tokens(Tape *t, Var *const *in) {
    return op_mean_tokens(t, in[0]);
}
static Var *scale_tokens(Tape *t, Var *const *in) {
    return op_scale_tokens(t, in[0], in[1]);
}
static Var *slice_tokens(Tape *t, Var *const *in) {
    return op_slice_tokens(t, in[0], 2, 4);
}
/* Two slices with a gap and an overlap: their gradients meet in one tensor. */
static Var *slice_twice(Tape *t, Var *const *in) {
    return op_mul(t, op_slice_tokens(t, in[0], 0, 4), op_slice_tokens(t, in[0], 2, 4));
}
static Var *concat_tokens(Tape *t, Var *const *in) {
    return op_concat_tokens(t, in[0], in[1]);
}
static Var *concat_with_itself(Tape *t, Var *const *in) {
    return op_concat_tokens(t, op_slice_tokens(t, in[0], 1, 2), in[0]);
}
static Var *linear_rows(Tape *t, Var *const *in) {
    Var *a = op_linear_rows(t, in[0], in[1], 1, 2), *b = op_linear_rows(t, in[0], in[1], 4, 2);
    return op_mul(t, a, b);
}
static Var *token_rates(Tape *t, Var *const *in) {
    return op_token_rates(t, in[0], in[1], in[2], -0.5f);
}
static Var *side_by_side(Tape *t, Var *const *in) {
    return op_side_by_side(t, in[0], in[1], DTYPE_F32);
}
static Var *lact_write(Tape *t, Var *const *in) {
    return op_lact_write(t, in[0], in[1], in + 2, 0.01f, false, DTYPE_F32).gates;
}
/* Two outputs, both used. */
static Var *lact_write_apart(Tape *t, Var *const *in) {
    const LactGradients g = op_lact_write(t, in[0], in[1], in + 2, 0.01f, false, DTYPE_F32);
    return op_matmul(t, g.gates, false, g.back, false, 1, DTYPE_F32);
}
static Var *lact_write_last(Tape *t, Var *const *in) {
    return op_lact_write(t, in[0], in[1], in + 2, 0.01f, true, in[0]->value.dtype).back;
}
static const NewtonSchulz two_steps = {.steps = 2,
                                       .triple = {{2.0f, -1.5f, 0.5f}, {1.5f, -1.0f, 0.4f}}};
static Var *lact_steps(Tape *t, Var *const *in) {
    return op_lact_steps(t, in[0], in[1], in + 2, 0.01f, two_steps, DTYPE_F32).gates;
}
static Var *lact_steps_apart(Tape *t, Var *const *in) {
    const LactGradients u =
        op_lact_steps(t, in[0], in[1], in + 2, 0.01f, two_steps, in[0]->value.dtype);
    return op_matmul(t, u.gates, false, u.back, false, 1, DTYPE_F32);
}
static Var *lact_step(Tape *t, Var *const *in) {
    const LactGradients u = {in[0], in[4]};
    const LactWeights w = op_lact_step(t, u, in + 1, -1, 0, DTYPE_F32);
    return op_matmul(t, w.back, false, w.gates, false, 1, DTYPE_F32);
}
static Var *lact_step_norm(Tape *t, Var *const *in) {
    const LactGradients u = {in[0], in[4]};
    const LactWeights w = op_lact_step(t, u, in + 1, 1, 0.01f, DTYPE_F32);
    return op_matmul(t, w.back, false, w.gates, false, 1, DTYPE_F32);
}
/* One output is used by nobody. */
static Var *lact_step_half(Tape *t, Var *const *in) {
    const LactGradients u = {in[0], in[4]};
    return op_lact_step(t, u, in + 1, 1, 0.01f, DTYPE_F32).gates;
}
static Var *lact_read(Tape *t, Var *const *in) {
    const LactWeights w = {in[1], in[2]};
    return op_lact_read(t, in[0], w, 0.01f);
}
static Var *lact_out(Tape *t, Var *const *in) {
    return op_lact_out(t, in[0], in[1], 1e-5f, in[2], in[3]);
}
static Var *mse(Tape *t, Var *const *in) {
    return op_mse(t, in[0], in[1]->value);
}
static Var *cross_entropy(Tape *t, Var *const *in) {
    return op_cross_entropy(t, in[0], in[1]->value);
}
static Var *vittt_inner(Tape *t, Var *const *in) {
    VitttShape s = {2, 4, 3, 3, 4};
    return op_vittt_inner(t, in[0], in[1], in[2], in[3], s);
}
static Var *vittt_inner_one(Tape *t, Var *const *in) {
    VitttShape s = {1, 1, 1, 1, 2};
    return op_vittt_inner(t, in[0], in[1], in[2], in[3], s);
}

static const GradientCase others[] = {
    CASE("layernorm", "", layernorm, {ACT(1, 4, 9), PLAIN(1, 9), PLAIN(1, 9)}, .step = 0.02),
    CASE("norm_linear", "", norm_linear,
         {ACT(1, 4, 9), PLAIN(1, 9), PLAIN(1, 9), WEIGHT(0.5, 6, 9), PLAIN(1, 6)}, .step = 0.02),
    CASE("norm_linear", "frugal", norm_linear_frugal,
         {ACT(1, 2, 3, 9), PLAIN(1, 9), WEIGHT(0.5, 6, 9)}, .step = 0.02),
    CASE("norm_linear_rows", "", norm_linear_rows,
         {ACT(1, 2, 3, 9), PLAIN(1, 9), WEIGHT(0.5, 7, 9)}, .step = 0.02),
    CASE("norm_tokens", "", norm_tokens, {ACT(1, 2, 5, 9), PLAIN(1, 9)}, .step = 0.02),
    CASE("norm_tokens", "all", norm_tokens, {ACT(1, 2, 3, 9), PLAIN(1, 9)}, .step = 0.02),
    CASE(
        "norm_mlp", "", norm_mlp,
        {ACT(1, 4, 9), PLAIN(1, 9), PLAIN(1, 9), WEIGHT(0.5, 6, 9), PLAIN(1, 6), WEIGHT(0.5, 9, 6)},
        .step = 0.02),
    CASE("norm_mlp", "frugal", norm_mlp_frugal,
         {ACT(1, 2, 3, 9), PLAIN(1, 9), WEIGHT(0.5, 6, 9), WEIGHT(0.5, 9, 6)}, .step = 0.02),
    CASE(
        "norm_mlp", "and its parts", norm_mlp_twice,
        {ACT(1, 4, 9), PLAIN(1, 9), PLAIN(1, 9), WEIGHT(0.5, 6, 9), PLAIN(1, 6), WEIGHT(0.5, 9, 6)},
        .step = 0.02),
    CASE("softnorm", "", softnorm, {PLAIN(1, 3, 4, 5)}, .step = 0.02, .bf16_tolerance = -1),
    CASE("normalise", "rows", normalise_rows, {ACT(1, 2, 3, 5)}, .step = 0.005),
    CASE("normalise", "columns", normalise_columns, {ACT(1, 3, 4, 5)}, .step = 0.02),
    CASE("newton_schulz", "wide", newton_schulz, {ACT(1, 2, 2, 3, 5)}, .step = 0.02,
         .bf16_tolerance = 3e-2),
    CASE("newton_schulz", "tall", newton_schulz, {ACT(1, 2, 6, 4)}, .step = 0.02,
         .bf16_tolerance = 3e-2),
    CASE("weight_norm", "", weight_norm, {ACT(1, 2, 2, 6, 4), FIXED(1, 1, 2, 6, 4)}, .step = 0.02),
    CASE("rmsnorm", "", rmsnorm, {ACT(1, 4, 9), PLAIN(1, 9)}, .step = 0.02),
    CASE("softmax", "", softmax, {ACT(2, 3, 2, 7)}, .step = 0.02),
    CASE("attention", "", attention, {ACT(1, 2, 5, 24), PLAIN(1, 4), PLAIN(1, 4)}, .step = 0.02),
    CASE("attention", "no norm", attention, {ACT(1, 2, 5, 24)}, .step = 0.02),
    CASE("cpe", "", cpe, {ACT(1, 2, 12, 5), PLAIN(0.3, 5, 1, 3, 3), PLAIN(1, 5)}),
    CASE("cpe", "one pixel", cpe_one, {ACT(1, 1, 1, 1), PLAIN(0.3, 1, 1, 3, 3), PLAIN(1, 1)}),
    CASE("cpe_norm", "both used", cpe_norm,
         {ACT(1, 2, 12, 5), PLAIN(0.3, 5, 1, 3, 3), PLAIN(1, 5), PLAIN(1, 5), PLAIN(1, 5)},
         .step = 0.02),
    CASE("cpe_norm", "the norm", cpe_norm_only,
         {ACT(1, 2, 12, 5), PLAIN(0.3, 5, 1, 3, 3), PLAIN(1, 5), PLAIN(1, 5), PLAIN(1, 5)},
         .step = 0.02),
    CASE("cpe_norm", "the sum", cpe_norm_sum,
         {ACT(1, 2, 12, 5), PLAIN(0.3, 5, 1, 3, 3), PLAIN(1, 5), FIXED(1, 5), FIXED(1, 5)}),
    CASE("conv3", "", conv3, {ACT(1, 2, 5, 4, 3), WEIGHT(0.5, 4, 3, 3, 3)}),
    CASE("conv3", "stride 2", conv3_strided, {ACT(1, 2, 5, 4, 3), WEIGHT(0.5, 4, 3, 3, 3)}),
    CASE("dwconv_down", "", dwconv_down,
         {ACT(0.5, 2, 5, 4, 6), PLAIN(0.05, 6, 1, 3, 3), PLAIN(0.3, 6), FIXED(1, 2, 5, 4, 6),
          FIXED(1, 6)}),
    CASE("batchnorm", "of the batch", batchnorm,
         {ACT(1, 2, 7, 5), PLAIN(1, 5), PLAIN(1, 5), FIXED(1, 5), FIXED(0, 5)}),
    CASE("batchnorm", "seen before", batchnorm_seen,
         {ACT(1, 2, 7, 5), PLAIN(1, 5), PLAIN(1, 5), FIXED(1, 5), FIXED(0, 5)}),
    CASE("local_mlp_residual", "", local_mlp_residual,
         {ACT(1, 2, 6, 3), WEIGHT(0.5, 4, 3), PLAIN(0.5, 4, 1, 3, 3), PLAIN(0.5, 4),
          WEIGHT(0.5, 5, 4), ACT(1, 2, 6, 5)}),
    CASE("local_mlp_residual", "twice the op from the composed form", local_mlp_composed,
         {ACT(1, 2, 6, 3), WEIGHT(0.5, 4, 3), PLAIN(0.5, 4, 1, 3, 3), PLAIN(0.5, 4),
          WEIGHT(0.5, 5, 4), ACT(1, 2, 6, 5)}),
    CASE("rope", "", rope, {ACT(1, 2, 6, 11), FIXED(1, 6, 2, 2)}),
    CASE("dwconv_apply", "shared", dwconv_apply, {ACT(1, 2, 4, 3, 5), PLAIN(1, 1, 5, 9)}),
    CASE("dwconv_apply", "per sample", dwconv_apply, {ACT(1, 2, 4, 3, 5), PLAIN(1, 2, 5, 9)}),
    CASE("dwconv_taps", "", dwconv_taps, {ACT(1, 2, 4, 3, 5), ACT(1, 2, 4, 3, 5)}),
    CASE("split_heads", "", split_heads, {ACT(1, 2, 3, 13)}),
    CASE("split_heads", "two of one", split_twice, {ACT(1, 2, 3, 11)}),
    CASE("merge_heads", "", merge_heads, {ACT(1, 2, 3, 5, 4)}),
    CASE("merge_heads", "two", merge_heads, {ACT(1, 2, 3, 5, 4), ACT(1, 2, 1, 5, 2)}),
    CASE("mean_tokens", "", mean_tokens, {ACT(1, 2, 7, 3)}),
    CASE("scale_tokens", "", scale_tokens, {ACT(1, 2, 3, 5), PLAIN(1, 2, 3, 1)}),
    CASE("slice_tokens", "", slice_tokens, {ACT(1, 2, 7, 3)}),
    CASE("slice_tokens", "two of one", slice_twice, {ACT(1, 2, 7, 3)}),
    CASE("concat_tokens", "", concat_tokens, {ACT(1, 2, 3, 5), ACT(1, 2, 4, 5)}),
    CASE("concat_tokens", "of a slice", concat_with_itself, {ACT(1, 2, 3, 5)}),
    CASE("linear_rows", "two of one", linear_rows, {ACT(1, 2, 3, 5), WEIGHT(0.5, 6, 5)}),
    CASE("token_rates", "", token_rates, {ACT(1, 2, 3, 5), PLAIN(0.5, 6, 5), PLAIN(1, 6)}),
    CASE("side_by_side", "", side_by_side, {PLAIN(1, 2, 3, 4), PLAIN(1, 2, 3, 4)}),
    CASE("lact_write", "square", lact_write,
         {ACT(1, 2, 5, 16), PLAIN(1, 2, 5, 6), PLAIN(0.7, 2, 4, 4), PLAIN(0.7, 2, 4, 4),
          PLAIN(0.7, 2, 4, 4)},
         .step = 0.02),
    CASE("lact_write", "oblong", lact_write_apart,
         {ACT(1, 1, 5, 8), PLAIN(1, 1, 5, 3), PLAIN(0.7, 1, 4, 6), PLAIN(0.7, 1, 6, 4),
          PLAIN(0.7, 1, 4, 6)},
         .step = 0.02),
    CASE("lact_write", "W1 alone", lact_write_last,
         {ACT(1, 2, 5, 8), PLAIN(1, 2, 5, 3), PLAIN(0.7, 1, 4, 6), FIXED(0.7, 1, 6, 4),
          PLAIN(0.7, 1, 4, 6)},
         .step = 0.02),
    CASE("lact_steps", "square", lact_steps,
         {ACT(1, 2, 3, 16), PLAIN(1, 2, 3, 6), PLAIN(0.7, 2, 4, 4), PLAIN(0.7, 2, 4, 4),
          PLAIN(0.7, 2, 4, 4)},
         .step = 0.005),
    CASE("lact_steps", "oblong", lact_steps_apart,
         {ACT(1, 1, 4, 10), PLAIN(1, 1, 4, 3), PLAIN(0.7, 1, 5, 6), PLAIN(0.7, 1, 6, 5),
          PLAIN(0.7, 1, 5, 6)},
         .step = 0.02),
    {.op = "lact_step",
     .variant = "no norm",
     .build = lact_step,
     .in = {PLAIN(0.5, 4, 2, 3, 5), PLAIN(1, 2, 3, 5), PLAIN(1, 2, 5, 3), PLAIN(1, 2, 3, 5),
            PLAIN(0.5, 2, 2, 5, 3)},
     .bf16_tolerance = -1},
    {.op = "lact_step",
     .variant = "norm, square",
     .build = lact_step_norm,
     .in = {PLAIN(0.5, 6, 2, 4, 4), FIXED(1, 2, 4, 4), FIXED(1, 2, 4, 4), FIXED(1, 2, 4, 4)},
     .step = 0.02,
     .bf16_tolerance = -1},
    {.op = "lact_step",
     .variant = "norm, half used",
     .build = lact_step_half,
     .in = {PLAIN(0.5, 4, 2, 3, 5), FIXED(1, 2, 3, 5), FIXED(1, 2, 5, 3), FIXED(1, 2, 3, 5),
            PLAIN(0.5, 2, 2, 5, 3)},
     .step = 0.02,
     .bf16_tolerance = -1},
    CASE("lact_read", "", lact_read, {ACT(1, 2, 5, 8), ACT(0.7, 2, 2, 4, 12), ACT(0.7, 2, 2, 6, 4)},
         .step = 0.02),
    CASE("lact_read", "shared weights", lact_read,
         {ACT(1, 2, 5, 8), ACT(0.7, 1, 2, 4, 12), ACT(0.7, 2, 2, 6, 4)}, .step = 0.02),
    CASE("lact_out", "one head", lact_out, {ACT(1, 2, 1, 5, 4), PLAIN(1, 4), WEIGHT(0.5, 3, 4)},
         .step = 0.02),
    CASE("lact_out", "residual", lact_out,
         {ACT(1, 2, 2, 5, 4), PLAIN(1, 4), WEIGHT(0.5, 3, 8), ACT(1, 2, 5, 3)}, .step = 0.02),
    CASE("mse", "", mse, {ACT(1, 2, 3, 5), FIXED(1, 2, 3, 5)}),
    CASE("cross_entropy", "", cross_entropy, {PLAIN(2, 3, 5), FIXED(0, 3, 5)},
         .bf16_tolerance = -1),
    CASE("vittt_inner", "", vittt_inner,
         {ACT(1.5, 2, 12, 48), PLAIN(0.7, 1, 3, 4, 4), PLAIN(0.7, 1, 3, 4, 4),
          PLAIN(0.5, 4, 1, 3, 3)},
         .step = 0.02),
    CASE("vittt_inner", "smallest", vittt_inner_one,
         {ACT(1.5, 1, 1, 12), PLAIN(0.7, 1, 1, 2, 2), PLAIN(0.7, 1, 1, 2, 2),
          PLAIN(0.5, 2, 1, 3, 3)},
         .step = 0.02),
};

const GradientCase *gradient_case(int i) {
    const int count = sizeof others / sizeof others[0];
    if (i < gradient_plain_count) return &gradient_plain[i];
    return i < gradient_plain_count + count ? &others[i - gradient_plain_count] : NULL;
}
