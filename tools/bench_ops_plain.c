/* Cases of `ttv bench ops`: single products, norms, elementwise kernels, images, loss, optimiser.
 * Rules of the text: bench_ops_cases.c.
 */
#include "tools/bench_ops.h"

/* ---- elementwise ---- */
static Status run_zero(OpRun *r) {
    return r->k->zero(r->device, r->t[0]);
}
static Status run_fill(OpRun *r) {
    return r->k->fill(r->device, r->t[0], 0.5f);
}
static Status run_copy(OpRun *r) {
    return r->k->copy(r->device, grad_set(r->t[0]), r->t[1], 1.0f);
}
static Status run_add(OpRun *r) {
    return r->k->add(r->device, r->t[0], r->t[1], r->t[2], 1.0f);
}
static Status run_mul(OpRun *r) {
    return r->k->mul(r->device, grad_set(r->t[0]), r->t[1], r->t[2]);
}
static Status run_unary(OpRun *r) {
    return r->k->unary(r->device, grad_set(r->t[0]), UNARY_GELU, r->t[1]);
}
static Status run_unary_mul(OpRun *r) {
    return r->k->unary_mul(r->device, grad_set(r->t[0]), UNARY_DGELU, r->t[1], r->t[2]);
}
static Status run_sum_batch(OpRun *r) {
    return r->k->sum_batch(r->device, grad_set(r->t[0]), r->t[1], 1.0f);
}
static Status run_residual(OpRun *r) {
    return r->k->residual(r->device, r->t[0], r->t[1], r->t[2], r->t[3]);
}
static Status run_scale_rows(OpRun *r) {
    return r->k->scale_rows(r->device, grad_set(r->t[0]), r->t[1], r->t[2]);
}

/* ---- products: t = output, then operands ---- */
static Status run_matmul_gradient(OpRun *r) { /* G = K' E */
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[2]);
    return r->k->matmul(r->device, grad_set(r->t[0]), r->t[1], true, r->t[2], false, 1.0f);
}
static Status run_matmul_apply(OpRun *r) { /* Y = Q W */
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[2]);
    return r->k->matmul(r->device, grad_set(r->t[0]), r->t[1], false, r->t[2], false, 1.0f);
}
static Status run_matmul_back(OpRun *r) { /* dQ = dY W' */
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->matmul(r->device, grad_set(r->t[0]), r->t[1], false, r->t[2], true, 1.0f);
}
static Status run_linear(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->linear(r->device, r->t[0], tensor_none(), r->t[1], r->t[2], r->t[3], ACT_NONE);
}
static Status run_linear_gelu(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[0]);
    return r->k->linear(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], ACT_GELU);
}
static Status run_linear_residual(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->linear_residual(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], r->t[5]);
}
static Status run_linear_dx(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->linear_dx(r->device, grad_set(r->t[0]), grad_none(), r->t[1], r->t[2],
                           tensor_none(), ACT_NONE);
}
static Status run_linear_dx_gelu(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    const Tensor sums = r->t[4];
    return r->k->linear_dx(r->device, grad_set(r->t[0]),
                           tensor_is_none(sums) ? grad_none() : grad_set(sums), r->t[1], r->t[2],
                           r->t[3], ACT_GELU);
}
static Status run_linear_dw(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[3]);
    return r->k->linear_dw(r->device, grad_set(r->t[0]), grad_set(r->t[1]), r->t[2], r->t[3]);
}

/* ---- norms ---- */
static Status run_norm_fold(OpRun *r) {
    return r->k->norm_fold(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], r->t[5]);
}
static Status run_linear_rated(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[0]);
    return r->k->linear_rated(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], ACT_NONE);
}
static Status run_linear_rated_gelu(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[0]);
    return r->k->linear_rated(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], ACT_GELU);
}
static Status run_linear_residual_stats(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[0]);
    return r->k->linear_residual_stats(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4],
                                       r->t[5], 1e-6f);
}
static Status run_layernorm_stats(OpRun *r) {
    return r->k->layernorm(r->device, tensor_none(), r->t[0], r->t[1], tensor_none(), tensor_none(),
                           1e-6f);
}
static Status run_layernorm(OpRun *r) {
    return r->k->layernorm(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], 1e-6f);
}
static Status run_layernorm_backward(OpRun *r) {
    return r->k->layernorm_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                    grad_set(r->t[2]), tensor_none(), r->t[3], r->t[4], r->t[5],
                                    tensor_none(), r->t[6], tensor_none(), tensor_none());
}
static Status run_layernorm_backward_add(OpRun *r) { /* onto the residual's gradient, drop path */
    r->bytes = 5.0 * (double)tensor_bytes(r->t[0]);
    return r->k->layernorm_backward(r->device, grad_add(r->t[0]), grad_set(r->t[1]),
                                    grad_set(r->t[2]), tensor_none(), r->t[3], r->t[4], r->t[5],
                                    tensor_none(), r->t[6], r->t[7], r->t[8]);
}
static Status run_layernorm_backward_again(OpRun *r) { /* and the normed rows once more */
    r->bytes = 5.0 * (double)tensor_bytes(r->t[0]);
    return r->k->layernorm_backward(r->device, grad_add(r->t[0]), grad_set(r->t[1]),
                                    grad_set(r->t[2]), r->t[3], r->t[3], r->t[4], r->t[5], r->t[5],
                                    r->t[6], tensor_none(), tensor_none());
}
static Status run_softnorm(OpRun *r) {
    return r->k->softnorm(r->device, r->t[0], r->t[1], r->t[2], tensor_none(), 1.0f);
}
static Status run_softnorm_backward(OpRun *r) {
    return r->k->softnorm_backward(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3],
                                   tensor_none(), 1.0f);
}
static Status run_rmsnorm(OpRun *r) {
    return r->k->rmsnorm(r->device, r->t[0], r->t[1], r->t[2], r->t[3], 1e-5f);
}
static Status run_rmsnorm_backward(OpRun *r) {
    return r->k->rmsnorm_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]), tensor_none(),
                                  r->t[2], r->t[3], r->t[4], r->t[5]);
}
static Status run_softmax(OpRun *r) {
    return r->k->softmax(r->device, r->t[0], r->t[1], 0.125f);
}
static Status run_softmax_backward(OpRun *r) {
    return r->k->softmax_backward(r->device, grad_set(r->t[0]), r->t[1], r->t[2], 0.125f);
}
static Status run_row_dot(OpRun *r) {
    return r->k->row_dot(r->device, grad_set(r->t[0]), r->t[1], r->t[2]);
}

/* ---- prefixes of tokens ---- */
static Status run_decay_scan(OpRun *r) {
    return r->k->decay_scan(r->device, r->t[0], r->t[1], r->t[2], tensor_none());
}
static Status run_decay_scan_backward(OpRun *r) {
    return r->k->decay_scan_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]), grad_none(),
                                     r->t[2], r->t[3], r->t[4], tensor_none());
}
static Status run_reverse_tokens(OpRun *r) {
    return r->k->reverse_tokens(r->device, grad_set(r->t[0]), r->t[1]);
}
static Status run_decay_scores(OpRun *r) {
    return r->k->decay_scores(r->device, r->t[0], r->t[1], r->t[2], tensor_none());
}
static Status run_decay_scores_backward(OpRun *r) {
    return r->k->decay_scores_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]), grad_none(),
                                       r->t[2], r->t[3], r->t[4], tensor_none());
}

/* ---- tokens, images, heads ---- */
static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
static Status run_image_prepare(OpRun *r) { /* mixed, but neither flipped nor erased nor cut */
    return r->k->image_prepare(r->device, r->t[0], r->t[1], r->t[2], r->t[3], mean, std, r->patch);
}
static Status run_image_normalise(OpRun *r) {
    return r->k->image_normalise(r->device, r->t[0], r->t[1], mean, std, r->patch);
}
static Status run_patchify(OpRun *r) {
    return r->k->patchify(r->device, r->t[0], r->t[1], r->patch);
}
static Status run_view_tokens(OpRun *r) {
    const int64_t side = r->patch * r->shape.height;
    return r->k->view_tokens(r->device, r->t[0], r->t[1], r->t[2], side, side, r->patch);
}
static Status run_split_heads(OpRun *r) {
    r->bytes = 2.0 * (double)tensor_bytes(r->t[0]);
    return r->k->split_heads(r->device, grad_set(r->t[0]), r->t[1], 0);
}
static Status run_merge_heads(OpRun *r) {
    r->bytes = 2.0 * (double)tensor_bytes(r->t[1]);
    return r->k->merge_heads(r->device, grad_set(r->t[0]), r->t[1], 0);
}
static Status run_norm_mean_tokens(OpRun *r) {
    return r->k->norm_mean_tokens(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4]);
}
static Status run_mean_tokens(OpRun *r) {
    return r->k->mean_tokens(r->device, r->t[0], r->t[1]);
}
static Status run_mean_tokens_backward(OpRun *r) {
    return r->k->mean_tokens_backward(r->device, grad_set(r->t[0]), r->t[1]);
}

/* ---- loss and optimiser ---- */
static Status run_cross_entropy(OpRun *r) {
    return r->k->cross_entropy(r->device, r->t[0], r->t[1], r->t[2]);
}
static Status run_cross_entropy_backward(OpRun *r) {
    return r->k->cross_entropy_backward(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3]);
}
static Status run_mse(OpRun *r) {
    return r->k->mse(r->device, r->t[0], r->t[1], r->t[2]);
}
static Status run_mse_backward(OpRun *r) {
    return r->k->mse_backward(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3]);
}
static Status run_grad_norm(OpRun *r) {
    return r->k->grad_norm(r->device, r->t[0], r->t[1], r->t[2], 5.0f, 0.0f, 0.9f, 0.999f);
}
static Status run_ema(OpRun *r) {
    r->bytes = 3.0 * (double)tensor_bytes(r->t[0]);
    return r->k->ema(r->device, r->t[0], r->t[1], 0.999f);
}
static Status run_muon_momentum(OpRun *r) {
    r->bytes = 3.0 * (double)tensor_bytes(r->t[1]) + (double)tensor_bytes(r->t[0]);
    return r->k->muon_momentum(r->device, r->t[0], r->t[1], r->t[2], r->t[3], tensor_count(r->t[0]),
                               0.95f);
}
static Status run_muon_step(OpRun *r) {
    r->bytes = 2.0 * (double)tensor_bytes(r->t[0]) + (double)tensor_bytes(r->t[1]) +
               (double)tensor_bytes(r->t[2]);
    return r->k->muon_step(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4],
                           tensor_count(r->t[2]), 0.2f, 0.05f);
}
static Status run_adamw(OpRun *r) {
    r->bytes = 7.0 * (double)tensor_bytes(r->t[0]) + (double)tensor_bytes(r->t[6]);
    return r->k->adamw(r->device, r->t[0], r->t[1], r->t[2], r->t[6], r->t[3], r->t[4], r->t[5],
                       0.9f, 0.999f, 1e-8f, 0.05f);
}

const OpCase op_cases_plain[] = {
    {"zero", "tokens", "a:BNC", run_zero},
    {"fill", "tokens", "a:BNC", run_fill},
    {"copy", "tokens to F32", "f:BNC a:BNC", run_copy},
    {"add", "tokens", "a:BNC a:BNC a:BNC", run_add},
    {"mul", "tokens", "a:BNC a:BNC a:BNC", run_mul},
    {"unary", "gelu of the MLP", "a:RM a:RM", run_unary},
    {"unary_mul", "gelu' of the MLP", "a:RM a:RM a:RM", run_unary_mul},
    {"sum_batch", "inner weights", "f:1hDD f:BhDD", run_sum_batch},
    {"residual", "tokens, drop path", "a:BNC a:BNC a:BNC f:B", run_residual},
    {"scale_rows", "tokens, drop path", "a:BNC a:BNC f:B", run_scale_rows},
    {"matmul", "inner gradient K'E", "f:BhDD a:BhND a:BhND", run_matmul_gradient},
    {"matmul", "inner product QW", "a:BhND a:BhND a:1hDD", run_matmul_apply},
    {"matmul", "LaCT gates, q W", "a:Sre a:SrE a:SEe", run_matmul_apply},
    {"matmul", "LaCT dq, g W'", "a:SrE a:Sre a:SEe", run_matmul_back},
    {"matmul", "LaCT dW, q' g", "a:SEe a:SrE a:Sre", run_matmul_gradient},
    {"matmul", "LaCT inner gradient", "a:SEE a:SwE a:SwE", run_matmul_gradient},
    {"linear", "patch embedding", "a:RC a:Rp a:Cp f:C", run_linear},
    {"linear", "qkv", "a:RP a:RC a:PC f:P", run_linear},
    {"linear", "proj", "a:RC a:RK a:CK f:C", run_linear},
    {"linear", "fc1 + gelu", "a:RM a:RM a:RC a:MC f:M", run_linear_gelu},
    {"linear", "fc2", "a:RC a:RM a:CM f:C", run_linear},
    {"linear", "head", "f:BL f:BC f:LC f:L", run_linear},
    {"linear_residual", "proj", "a:RC a:RK a:CK f:C a:RC", run_linear_residual},
    {"linear_residual", "proj, drop path", "a:RC a:RK a:CK f:C a:RC f:B", run_linear_residual},
    {"linear_residual", "fc2", "a:RC a:RM a:CM f:C a:RC", run_linear_residual},
    {"linear_residual", "fc2, drop path", "a:RC a:RM a:CM f:C a:RC f:B", run_linear_residual},
    {"linear_dx", "qkv", "a:RC a:RP a:PC", run_linear_dx},
    {"linear_dx", "proj", "a:RK a:RC a:CK", run_linear_dx},
    {"linear_dx", "fc1", "a:RC a:RM a:MC", run_linear_dx},
    {"linear_dx", "fc2 + gelu'", "a:RM a:RC a:CM a:RM", run_linear_dx_gelu},
    {"linear_dx", "fc2 + gelu', sums", "a:RM a:RC a:CM a:RM f:M", run_linear_dx_gelu},
    {"linear_dw", "qkv", "f:PC f:P a:RP a:RC", run_linear_dw},
    {"linear_dw", "patch embedding", "f:Cp f:C a:RC a:Rp", run_linear_dw},
    {"linear_dw", "proj", "f:CK f:C a:RC a:RK", run_linear_dw},
    {"linear_dw", "fc2", "f:CM f:C a:RC a:RM", run_linear_dw},
    {"linear_dw", "fc1", "f:MC f:M a:RM a:RC", run_linear_dw},
    {"norm_fold", "norm and fc1", "a:MC f:M a:MC f:M f:C f:C", run_norm_fold},
    {"linear_rated", "qkv", "a:RP f:R2 a:RC a:PC f:P", run_linear_rated},
    {"linear_rated", "fc1 + gelu", "a:RM f:R2 a:RC a:MC f:M", run_linear_rated_gelu},
    {"linear_residual_stats", "proj", "a:RC f:R2 a:RK a:CK f:C a:RC", run_linear_residual_stats},
    {"layernorm", "tokens, statistics alone", "f:R2 a:RC", run_layernorm_stats},
    {"layernorm", "tokens", "a:RC f:R2 a:RC f:C f:C", run_layernorm},
    {"layernorm_backward", "tokens", "a:RC f:C f:C a:RC a:RC f:C f:R2", run_layernorm_backward},
    {"layernorm_backward", "tokens, added, scaled", "a:RC f:C f:C a:RC a:RC f:C f:R2 a:RC f:B",
     run_layernorm_backward_add},
    {"layernorm_backward", "tokens, added, normed again", "a:RC f:C f:C a:RC a:RC f:C f:R2",
     run_layernorm_backward_again},
    {"softnorm", "inner gradients", "f:GDD f:GD f:GDD", run_softnorm},
    {"softnorm_backward", "inner gradients", "f:GDD f:GDD f:GDD f:GD", run_softnorm_backward},
    {"softnorm", "unit vectors", "a:RC f:R a:RC1", run_softnorm},
    {"softnorm_backward", "unit vectors", "a:RC1 a:RC1 a:RC1 f:R", run_softnorm_backward},
    {"rmsnorm", "tokens", "a:RC f:R a:RC f:C", run_rmsnorm},
    {"rmsnorm_backward", "tokens", "a:RC f:C a:RC a:RC f:C f:R", run_rmsnorm_backward},
    {"softmax", "attention", "a:BhNN a:BhNN", run_softmax},
    {"softmax_backward", "attention", "a:BhNN a:BhNN a:BhNN", run_softmax_backward},
    {"row_dot", "tokens", "f:R a:RC a:RC", run_row_dot},
    {"decay_scan", "tokens", "f:BNC f:BNC f:BN1", run_decay_scan},
    {"decay_scan_backward", "tokens", "f:BNC f:BN1 f:BNC f:BNC f:BN1", run_decay_scan_backward},
    {"reverse_tokens", "tokens", "f:BNC f:BNC", run_reverse_tokens},
    {"decay_scores", "tokens", "f:BNN f:BND f:BND", run_decay_scores},
    {"decay_scores_backward", "tokens", "f:BND f:BND f:BNN f:BND f:BND", run_decay_scores_backward},
    {"image_normalise", "images to patches", "a:BNp u:BII3", run_image_normalise},
    {"image_prepare", "images to patches, mixup", "a:BNp u:BII3 n:B8 f:8", run_image_prepare},
    {"patchify", "images", "a:BNp a:BII3", run_patchify},
    {"view_tokens", "posed views", "a:BNV f:B1@ u:B1x3", run_view_tokens},
    {"split_heads", "q of qkv", "a:BhND a:BNP", run_split_heads},
    {"merge_heads", "branches", "a:BNK a:BhND", run_merge_heads},
    {"norm_mean_tokens", "tokens", "f:BC a:BNC f:R2 f:C f:C", run_norm_mean_tokens},
    {"mean_tokens", "tokens", "f:BC a:BNC", run_mean_tokens},
    {"mean_tokens_backward", "tokens", "a:BNC f:BC", run_mean_tokens_backward},
    {"cross_entropy", "logits", "f:1 f:BL f:BL", run_cross_entropy},
    {"cross_entropy_backward", "logits", "f:BL f:1 f:BL f:BL", run_cross_entropy_backward},
    {"mse", "images", "f:1 a:BNp f:BNp", run_mse},
    {"mse_backward", "images", "a:BNp f:1 a:BNp f:BNp", run_mse_backward},
    {"grad_norm", "all parameters", "f:4 i:1 f:F", run_grad_norm},
    {"adamw", "all parameters", "f:F f:F f:F f:F f:1 f:4 s:F", run_adamw},
    {"muon_momentum", "all parameters", "s:11F f:F f:F f:4", run_muon_momentum},
    {"muon_step", "all parameters", "f:F s:F s:11F f:1 f:4", run_muon_step},
    {"ema", "all parameters", "f:F f:F", run_ema},
};
const int op_cases_plain_count = sizeof op_cases_plain / sizeof *op_cases_plain;
