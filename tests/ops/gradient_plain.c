/* Cases of elementwise ops, prefixes of tokens and products: small, odd and 1-sized shapes. */
#include "gradient_case.h"

/* ---- elementwise ------------------------------------------------------------------------ */

static Var *add(Tape *t, Var *const *in) {
    return op_add(t, in[0], in[1], -0.7f);
}
static Var *mul(Tape *t, Var *const *in) {
    return op_mul(t, in[0], in[1]);
}
static Var *square(Tape *t, Var *const *in) {
    return op_mul(t, in[0], in[0]);
}
static Var *scale(Tape *t, Var *const *in) {
    return op_scale(t, in[0], 1.7f);
}
static Var *silu(Tape *t, Var *const *in) {
    return op_silu(t, in[0]);
}
static Var *silu_grad(Tape *t, Var *const *in) {
    return op_silu_grad(t, in[0]);
}
static Var *gelu(Tape *t, Var *const *in) {
    return op_gelu(t, in[0]);
}
static Var *sigmoid(Tape *t, Var *const *in) {
    return op_sigmoid(t, in[0]);
}
static Var *softplus(Tape *t, Var *const *in) {
    return op_softplus(t, in[0]);
}
static Var *tanh_function(Tape *t, Var *const *in) {
    return op_function(t, in[0], FUNCTION_TANH);
}
static Var *gelu_tanh_function(Tape *t, Var *const *in) {
    return op_function(t, in[0], FUNCTION_GELU_TANH);
}
/* Both sides of the kink, and never near it. */
static Var *relu_function(Tape *t, Var *const *in) {
    Var *x = op_exp(t, in[0]);
    Var *below = op_function(t, op_scale(t, x, -1.0f), FUNCTION_RELU);
    return op_add(t, below, op_function(t, x, FUNCTION_RELU), 0.7f);
}
/* Every slope that has one of its own. */
static Var *function_grads(Tape *t, Var *const *in) {
    static const Function smooth[] = {FUNCTION_SILU, FUNCTION_GELU, FUNCTION_GELU_TANH,
                                      FUNCTION_TANH, FUNCTION_SIGMOID};
    Var *y = op_function_grad(t, op_exp(t, in[0]), FUNCTION_RELU);
    for (int i = 0; i < 5; i++)
        y = op_add(t, y, op_function_grad(t, in[0], smooth[i]), 1.0f + 0.3f * (float)i);
    return y;
}
static Var *exponential(Tape *t, Var *const *in) {
    return op_exp(t, in[0]);
}
/* Away from the pole. */
static Var *rsqrt_of_power(Tape *t, Var *const *in) {
    return op_rsqrt(t, op_exp(t, in[0]));
}
static Var *log_of_power(Tape *t, Var *const *in) {
    return op_log(t, op_add(t, op_exp(t, in[0]), op_exp(t, op_scale(t, in[0], -0.5f)), 1));
}
/* The sign is a constant: only its factor has a gradient. */
static Var *sign_times(Tape *t, Var *const *in) {
    return op_mul(t, op_sign(t, op_scale(t, op_exp(t, in[0]), -1.0f)), in[0]);
}
/* Log decays below 0, as softplus keeps them. */
static Var *decays(Tape *t, Var *raw) {
    return op_scale(t, op_softplus(t, raw), -0.5f);
}
static Var *decay_scan(Tape *t, Var *const *in) {
    return op_decay_scan(t, in[0], decays(t, in[1]), in[2]);
}
static Var *decay_scan_plain(Tape *t, Var *const *in) {
    return op_decay_scan(t, in[0], NULL, NULL);
}
static Var *reverse_tokens(Tape *t, Var *const *in) {
    return op_reverse_tokens(t, in[0]);
}
static Var *decay_scores(Tape *t, Var *const *in) {
    return op_decay_scores(t, in[0], in[1], op_decay_scan(t, decays(t, in[2]), NULL, NULL));
}
static Var *decay_scores_plain(Tape *t, Var *const *in) {
    return op_decay_scores(t, in[0], in[1], NULL);
}
static Var *residual(Tape *t, Var *const *in) {
    return op_residual(t, in[0], in[1], in[2] ? in[2]->value : tensor_none());
}
/* The residual pattern of a block: x is used by the branch and by the sum. */
static Var *block(Tape *t, Var *const *in) {
    Var *x = op_scale(t, in[0], 1.3f);
    return op_residual(t, x, op_gelu(t, x), tensor_none());
}
static Var *view(Tape *t, Var *const *in) {
    int64_t flat[] = {3, 10}, square_shape[] = {5, 6};
    Var *x = op_view(t, in[0], 2, flat);
    return op_mul(t, op_view(t, op_silu(t, x), 2, square_shape), op_view(t, x, 2, square_shape));
}

/* ---- products --------------------------------------------------------------------------- */

static Var *matmul_nn(Tape *t, Var *const *in) {
    return op_matmul(t, in[0], false, in[1], false, 0.6f, in[0]->value.dtype);
}
static Var *matmul_tn(Tape *t, Var *const *in) {
    return op_matmul(t, in[0], true, in[1], false, 0.6f, in[0]->value.dtype);
}
static Var *matmul_nt(Tape *t, Var *const *in) {
    return op_matmul(t, in[0], false, in[1], true, 0.6f, in[0]->value.dtype);
}
static Var *matmul_tt(Tape *t, Var *const *in) {
    return op_matmul(t, in[0], true, in[1], true, 0.6f, in[0]->value.dtype);
}
static Var *matmul_f32(Tape *t, Var *const *in) {
    return op_matmul(t, in[0], true, in[1], false, 0.6f, DTYPE_F32);
}
static Var *linear(Tape *t, Var *const *in) {
    return op_linear(t, in[0], in[1], in[2]);
}
static Var *linear_residual(Tape *t, Var *const *in) {
    return op_linear_residual(t, in[0], in[1], in[2], in[3], in[4] ? in[4]->value : tensor_none());
}
/* The residual is what the branch reads. */
static Var *linear_itself(Tape *t, Var *const *in) {
    return op_linear_residual(t, in[0], in[1], NULL, in[0], tensor_none());
}
static Var *mlp_residual(Tape *t, Var *const *in) {
    return op_mlp_residual(t, in[0], in[1], NULL, in[2], in[3], in[4],
                           in[5] ? in[5]->value : tensor_none());
}
static Var *mlp(Tape *t, Var *const *in) {
    return op_mlp(t, in[0], in[1], in[2], in[3], in[4]);
}

const GradientCase gradient_plain[] = {
    CASE("add", "", add, {ACT(1, 3, 5), ACT(1, 3, 5)}),
    CASE("add", "broadcast", add, {ACT(1, 1, 4, 3), ACT(1, 5, 4, 3)}),
    CASE("mul", "", mul, {ACT(1, 7), ACT(1, 7)}),
    CASE("mul", "with itself", square, {ACT(1, 7)}),
    CASE("scale", "", scale, {ACT(1, 2, 9)}),
    CASE("silu", "", silu, {ACT(2, 33)}),
    CASE("silu_grad", "", silu_grad, {ACT(2, 33)}, .step = 0.02),
    CASE("gelu", "", gelu, {ACT(1.5, 33)}),
    CASE("sigmoid", "", sigmoid, {ACT(2, 33)}),
    CASE("softplus", "", softplus, {ACT(2, 33)}),
    CASE("function", "tanh", tanh_function, {ACT(1, 33)}),
    CASE("function", "gelu, tanh form", gelu_tanh_function, {ACT(1, 33)}),
    CASE("function", "relu", relu_function, {ACT(1, 33)}),
    CASE("function_grad", "all", function_grads, {ACT(1, 33)}),
    CASE("exp", "", exponential, {ACT(1, 33)}),
    CASE("rsqrt", "", rsqrt_of_power, {ACT(1, 33)}),
    CASE("log", "", log_of_power, {ACT(1, 33)}),
    CASE("sign", "", sign_times, {ACT(1, 33)}),
    {.op = "decay_scan",
     .variant = "scalar decay and start",
     .build = decay_scan,
     .in = {PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 1), PLAIN(1, 2, 3)},
     .bf16_tolerance = -1},
    {.op = "decay_scan",
     .variant = "decay per channel",
     .build = decay_scan,
     .in = {PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 3), PLAIN(1, 2, 3)},
     .bf16_tolerance = -1},
    {.op = "decay_scan",
     .variant = "running sum",
     .build = decay_scan_plain,
     .in = {PLAIN(1, 2, 5, 3)},
     .bf16_tolerance = -1},
    {.op = "reverse_tokens",
     .variant = "",
     .build = reverse_tokens,
     .in = {PLAIN(1, 2, 5, 3)},
     .bf16_tolerance = -1},
    {.op = "decay_scores",
     .variant = "scalar decay",
     .build = decay_scores,
     .in = {PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 1)},
     .bf16_tolerance = -1},
    {.op = "decay_scores",
     .variant = "decay per channel",
     .build = decay_scores,
     .in = {PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 3)},
     .bf16_tolerance = -1},
    {.op = "decay_scores",
     .variant = "no decay",
     .build = decay_scores_plain,
     .in = {PLAIN(1, 2, 5, 3), PLAIN(1, 2, 5, 3)},
     .bf16_tolerance = -1},
    CASE("residual", "", residual, {ACT(1, 3, 2, 5), ACT(1, 3, 2, 5)}),
    CASE("residual", "scaled", residual, {ACT(1, 3, 2, 5), ACT(1, 3, 2, 5), FIXED(1, 3)}),
    CASE("residual", "of a branch", block, {ACT(1, 3, 2, 5)}),
    CASE("view", "", view, {ACT(1, 2, 15)}),
    CASE("matmul", "nn", matmul_nn, {ACT(1, 3, 5), ACT(1, 5, 2)}),
    CASE("matmul", "tn", matmul_tn, {ACT(1, 5, 3), ACT(1, 5, 2)}),
    CASE("matmul", "nt", matmul_nt, {ACT(1, 3, 5), ACT(1, 2, 5)}),
    CASE("matmul", "tt", matmul_tt, {ACT(1, 5, 3), ACT(1, 2, 5)}),
    CASE("matmul", "batched tn", matmul_tn, {ACT(1, 2, 3, 7, 4), ACT(1, 2, 3, 7, 5)}),
    CASE("matmul", "batched tt", matmul_tt, {ACT(1, 2, 3, 7, 4), ACT(1, 2, 3, 5, 7)}),
    CASE("matmul", "broadcast b", matmul_nn, {ACT(1, 3, 2, 4, 5), ACT(1, 1, 2, 5, 3)}),
    CASE("matmul", "broadcast a", matmul_nt, {ACT(1, 1, 2, 4, 5), ACT(1, 3, 2, 3, 5)}),
    CASE("matmul", "lower rank", matmul_nn, {ACT(1, 3, 4, 5), ACT(1, 5, 2)}),
    CASE("matmul", "F32 result", matmul_f32, {ACT(1, 2, 6, 3), ACT(1, 2, 6, 4)}),
    CASE("linear", "", linear, {ACT(1, 2, 3, 5), WEIGHT(0.5, 4, 5), PLAIN(1, 4)}),
    CASE("linear", "no bias", linear, {ACT(1, 7, 3), WEIGHT(0.5, 2, 3)}),
    CASE("linear", "1 by 1", linear, {ACT(1, 1, 1), WEIGHT(0.5, 1, 1), PLAIN(1, 1)}),
    CASE("linear_residual", "", linear_residual,
         {ACT(1, 2, 3, 5), WEIGHT(0.5, 4, 5), PLAIN(1, 4), ACT(1, 6, 4)}),
    CASE("linear_residual", "scaled", linear_residual,
         {ACT(1, 6, 5), WEIGHT(0.5, 4, 5), PLAIN(1, 4), ACT(1, 3, 2, 4), FIXED(1, 3)}),
    CASE("linear_residual", "with itself", linear_itself, {ACT(1, 3, 4), WEIGHT(0.5, 4, 4)}),
    CASE("mlp_residual", "", mlp_residual,
         {ACT(1, 2, 3, 5), WEIGHT(0.5, 7, 5), WEIGHT(0.5, 4, 7), PLAIN(1, 4), ACT(1, 2, 3, 4)}),
    CASE("mlp_residual", "scaled", mlp_residual,
         {ACT(1, 2, 3, 5), WEIGHT(0.5, 7, 5), WEIGHT(0.5, 4, 7), PLAIN(1, 4), ACT(1, 2, 3, 4),
          FIXED(1, 2)}),
    CASE("mlp", "", mlp,
         {ACT(1, 2, 3, 5), WEIGHT(0.5, 7, 5), PLAIN(0.5, 7), WEIGHT(0.5, 4, 7), PLAIN(1, 4)}),
};
const int gradient_plain_count = sizeof gradient_plain / sizeof gradient_plain[0];
