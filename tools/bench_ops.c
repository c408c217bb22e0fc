/* `ttv bench ops`: every kernel slot at the shapes that the chosen ViTTT gives it.
 *
 * A case is one row: tensors as text, and a one-line call. Dimensions are letters:
 *   B batch  N tokens  H W token grid  I image side  C width  D head width  h heads  G = B*h
 *   P = 3C+3d packed projection  K = C+d concatenated branches  M MLP width  L classes
 *   R = B*N rows  p = 3 patch^2  F all parameters  digits: themselves
 * dtypes: a activations, f F32, u U8, i I64, n I32, s BF16 shadow (left out in F32 runs).
 * Bytes count every tensor once; a kernel that reads a part only corrects that.
 */
#include "tools/bench.h"

#include <string.h>

#include "tools/cli.h"

enum { CASE_TENSORS = 8, LETTERS = 128 };

typedef struct OpRun {
    const struct OpCase *op;
    Device *device;
    const Kernels *k;
    VitttShape shape;
    Tensor t[CASE_TENSORS];
    int64_t patch;
    double flops, bytes;
} OpRun;

typedef struct OpCase {
    const char *slot, *note, *tensors;
    Status (*run)(OpRun *r);
} OpCase;

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
static Status run_linear(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->linear(r->device, r->t[0], tensor_none(), r->t[1], r->t[2], r->t[3], ACT_NONE);
}
static Status run_linear_gelu(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[0]);
    return r->k->linear(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], ACT_GELU);
}
static Status run_linear_dx(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    bool gelu = !tensor_is_none(r->t[3]);
    return r->k->linear_dx(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3],
                           gelu ? ACT_GELU : ACT_NONE);
}
static Status run_linear_dw(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[2]) * (double)tensor_last(r->t[3]);
    return r->k->linear_dw(r->device, grad_set(r->t[0]), grad_set(r->t[1]), r->t[2], r->t[3]);
}

/* ---- norms ---- */
static Status run_layernorm(OpRun *r) {
    return r->k->layernorm(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], 1e-6f);
}
static Status run_layernorm_backward(OpRun *r) {
    return r->k->layernorm_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                    grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], r->t[6]);
}
static Status run_softnorm(OpRun *r) {
    return r->k->softnorm(r->device, r->t[0], r->t[1], r->t[2]);
}
static Status run_softnorm_backward(OpRun *r) {
    return r->k->softnorm_backward(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3]);
}

/* ---- depthwise 3x3 ---- */
static Status run_dwconv3_cpe(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[1]);
    return r->k->dwconv3(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3], TAPS_CORRELATE,
                         true);
}
static Status run_dwconv3_adjoint(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[1]);
    return r->k->dwconv3(r->device, grad_set(r->t[0]), r->t[1], r->t[2], tensor_none(),
                         TAPS_TRANSPOSE, false);
}
static Status run_dwconv3_taps(OpRun *r) {
    bool summed = !tensor_is_none(r->t[3]);
    r->flops = 18.0 * (double)tensor_count(r->t[1]);
    return r->k->dwconv3_taps(r->device, grad_set(r->t[0]),
                              summed ? grad_set(r->t[3]) : grad_none(), r->t[1], r->t[2], 1.0f);
}

/* ---- tokens, images, heads ---- */
static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
static Status run_image_prepare(OpRun *r) { /* mixed, but neither flipped nor erased nor cut */
    return r->k->image_prepare(r->device, r->t[0], r->t[1], r->t[2], r->t[3], mean, std);
}
static Status run_image_normalise(OpRun *r) {
    return r->k->image_normalise(r->device, r->t[0], r->t[1], mean, std);
}
static Status run_patchify(OpRun *r) {
    return r->k->patchify(r->device, r->t[0], r->t[1], r->patch);
}
static Status run_split_heads(OpRun *r) {
    r->bytes = 2.0 * (double)tensor_bytes(r->t[0]);
    return r->k->split_heads(r->device, grad_set(r->t[0]), r->t[1], 0);
}
static Status run_merge_heads(OpRun *r) {
    r->bytes = 2.0 * (double)tensor_bytes(r->t[1]);
    return r->k->merge_heads(r->device, grad_set(r->t[0]), r->t[1], 0);
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
static Status run_grad_norm(OpRun *r) {
    return r->k->grad_norm(r->device, r->t[0], r->t[1], r->t[2], 5.0f, 0.9f, 0.999f);
}
static Status run_ema(OpRun *r) {
    r->bytes = 3.0 * (double)tensor_bytes(r->t[0]);
    return r->k->ema(r->device, r->t[0], r->t[1], 0.999f);
}
static Status run_adamw(OpRun *r) {
    r->bytes = 7.0 * (double)tensor_bytes(r->t[0]) + (double)tensor_bytes(r->t[6]);
    return r->k->adamw(r->device, r->t[0], r->t[1], r->t[2], r->t[6], r->t[3], r->t[4], r->t[5],
                       0.9f, 0.999f, 1e-8f, 0.05f);
}

/* ---- fused inner step: 6 and 16 products of N d^2 per head (vittt.md 2.5, 3.1) ---- */
static double glu_product_flops(VitttShape s) {
    return 2.0 * (double)(s.batch * s.heads * s.height * s.width * s.head_dim * s.head_dim);
}
/* Bytes of `parts` token maps of `channels` channels. */
static double token_bytes(const OpRun *r, int64_t parts, int64_t channels) {
    return (double)(parts * r->shape.batch * r->shape.height * r->shape.width * channels) *
           (double)dtype_size(r->t[0].dtype);
}
static Status run_vittt_glu(OpRun *r) {
    r->flops = 6.0 * glu_product_flops(r->shape);
    r->bytes = token_bytes(r, 4, r->shape.heads * r->shape.head_dim);
    return r->k->vittt_glu(r->device, r->shape, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4]);
}
static Status run_vittt_glu_backward(OpRun *r) {
    r->flops = 16.0 * glu_product_flops(r->shape);
    r->bytes = token_bytes(r, 7, r->shape.heads * r->shape.head_dim);
    return r->k->vittt_glu_backward(r->device, r->shape, r->t[0], grad_set(r->t[1]),
                                    grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], r->t[6], r->t[7]);
}
static Status run_vittt_dwc(OpRun *r) {
    r->flops = 2.0 * 18.0 * (double)(r->shape.batch * r->shape.height * r->shape.width) *
               (double)r->shape.head_dim;
    r->bytes = token_bytes(r, 4, r->shape.head_dim);
    return r->k->vittt_dwc(r->device, r->shape, r->t[0], r->t[1], r->t[2], r->t[3]);
}
static Status run_vittt_dwc_backward(OpRun *r) {
    r->flops = 4.0 * 18.0 * (double)(r->shape.batch * r->shape.height * r->shape.width) *
               (double)r->shape.head_dim;
    r->bytes = token_bytes(r, 7, r->shape.head_dim);
    return r->k->vittt_dwc_backward(r->device, r->shape, r->t[0], grad_set(r->t[1]), r->t[2],
                                    r->t[3], r->t[4], r->t[5]);
}

static const OpCase op_cases[] = {
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
    {"linear", "patch embedding", "a:RC a:Rp a:Cp f:C", run_linear},
    {"linear", "qkv", "a:RP a:RC a:PC f:P", run_linear},
    {"linear", "proj", "a:RC a:RK a:CK f:C", run_linear},
    {"linear", "fc1 + gelu", "a:RM a:RM a:RC a:MC f:M", run_linear_gelu},
    {"linear", "fc2", "a:RC a:RM a:CM f:C", run_linear},
    {"linear", "head", "f:BL f:BC f:LC f:L", run_linear},
    {"linear_dx", "qkv", "a:RC a:RP a:PC", run_linear_dx},
    {"linear_dx", "fc2 + gelu'", "a:RM a:RC a:CM a:RM", run_linear_dx},
    {"linear_dw", "qkv", "f:PC f:P a:RP a:RC", run_linear_dw},
    {"linear_dw", "fc1", "f:MC f:M a:RM a:RC", run_linear_dw},
    {"layernorm", "tokens", "a:RC f:R2 a:RC f:C f:C", run_layernorm},
    {"layernorm_backward", "tokens", "a:RC f:C f:C a:RC a:RC f:C f:R2", run_layernorm_backward},
    {"softnorm", "inner gradients", "f:GDD f:GD f:GDD", run_softnorm},
    {"softnorm_backward", "inner gradients", "f:GDD f:GDD f:GDD f:GD", run_softnorm_backward},
    {"dwconv3", "position encoding", "a:BHWC a:BHWC f:1C9 f:C", run_dwconv3_cpe},
    {"dwconv3", "inner kernel, adjoint", "a:BHWD a:BHWD f:BD9", run_dwconv3_adjoint},
    {"dwconv3_taps", "position encoding", "f:1C9 a:BHWC a:BHWC f:C", run_dwconv3_taps},
    {"dwconv3_taps", "inner kernel", "f:BD9 a:BHWD a:BHWD", run_dwconv3_taps},
    {"image_normalise", "images", "a:BII3 u:BII3", run_image_normalise},
    {"image_prepare", "images, mixup", "a:BII3 u:BII3 n:B8 f:8", run_image_prepare},
    {"patchify", "images", "a:BNp a:BII3", run_patchify},
    {"split_heads", "q of qkv", "a:BhND a:BNP", run_split_heads},
    {"merge_heads", "branches", "a:BNK a:BhND", run_merge_heads},
    {"mean_tokens", "tokens", "f:BC a:BNC", run_mean_tokens},
    {"mean_tokens_backward", "tokens", "a:BNC f:BC", run_mean_tokens_backward},
    {"cross_entropy", "logits", "f:1 f:BL f:BL", run_cross_entropy},
    {"cross_entropy_backward", "logits", "f:BL f:1 f:BL f:BL", run_cross_entropy_backward},
    {"grad_norm", "all parameters", "f:4 i:1 f:F", run_grad_norm},
    {"adamw", "all parameters", "f:F f:F f:F f:F f:1 f:4 s:F", run_adamw},
    {"ema", "all parameters", "f:F f:F", run_ema},
    {"vittt_glu", "fused inner step", "a:BNK f:G2DD a:BNP f:1hDD f:1hDD", run_vittt_glu},
    {"vittt_glu_backward", "fused inner step",
     "a:BNP f:1hDD f:1hDD a:BNK a:BNP f:G2DD f:1hDD f:1hDD", run_vittt_glu_backward},
    {"vittt_dwc", "fused inner kernel", "a:BNK f:BD9 a:BNP f:D9", run_vittt_dwc},
    {"vittt_dwc_backward", "fused inner kernel", "a:BNP f:D9 a:BNK a:BNP f:BD9 f:D9",
     run_vittt_dwc_backward},
};
enum { OP_CASES = sizeof op_cases / sizeof *op_cases };

/* Parameters of the plain model (vittt.md 5). */
static int64_t parameter_count(const VitttConfig *m) {
    int64_t c = m->width, d = c / m->heads, packed = 3 * c + 3 * d, hidden = m->mlp_ratio * c;
    int64_t mixer = 2 * m->heads * d * d + 9 * d + packed * (c + 1) + c * (c + d + 1);
    int64_t block = 10 * c + 4 * c + mixer + 2 * hidden * c + hidden + c;
    return c * (3 * m->patch * m->patch + 1) + m->depth * block + 2 * c + m->classes * (c + 1);
}

static void set_letters(const Bench *b, int64_t *size) {
    const VitttConfig *m = b->model;
    int64_t side = m->image_size / m->patch, d = m->width / m->heads;
    for (int digit = 0; digit <= 9; digit++) size['0' + digit] = digit;
    size['B'] = b->options->batch;
    size['H'] = size['W'] = side;
    size['N'] = side * side;
    size['I'] = side * m->patch;
    size['C'] = m->width;
    size['D'] = d;
    size['h'] = m->heads;
    size['G'] = b->options->batch * m->heads;
    size['P'] = 3 * m->width + 3 * d;
    size['K'] = m->width + d;
    size['M'] = m->mlp_ratio * m->width;
    size['L'] = m->classes;
    size['R'] = b->options->batch * side * side;
    size['p'] = 3 * m->patch * m->patch;
    size['F'] = parameter_count(m);
}

static Status read_dtype(const Bench *b, char letter, DType *dtype, bool *left_out) {
    *left_out = letter == 's' && b->act != DTYPE_BF16;
    switch (letter) {
    case 'a':
        *dtype = b->act;
        return STATUS_OK;
    case 'f':
        *dtype = DTYPE_F32;
        return STATUS_OK;
    case 'u':
        *dtype = DTYPE_U8;
        return STATUS_OK;
    case 'i':
        *dtype = DTYPE_I64;
        return STATUS_OK;
    case 'n':
        *dtype = DTYPE_I32;
        return STATUS_OK;
    case 's':
        *dtype = DTYPE_BF16;
        return STATUS_OK;
    default:
        return status_set(STATUS_INTERNAL, "bench case: unknown dtype letter '%c'", letter);
    }
}

/* Takes and fills the tensors of a case in the step arena. */
static Status take_tensors(Bench *b, OpRun *r) {
    int64_t size[LETTERS] = {0};
    set_letters(b, size);
    const char *text = r->op->tensors;
    for (int i = 0; i < CASE_TENSORS && *text; i++) {
        int64_t shape[TENSOR_MAX_RANK];
        int rank = 0;
        DType dtype = DTYPE_F32;
        bool left_out;
        TRY(read_dtype(b, *text, &dtype, &left_out));
        for (text += 2; *text && *text != ' ' && rank < TENSOR_MAX_RANK; text++)
            shape[rank++] = size[(unsigned char)*text % LETTERS];
        while (*text == ' ') text++;
        if (left_out) continue;
        TRY(arena_tensor(&b->device->step, dtype, rank, shape, &r->t[i]));
        TRY(bench_fill(b->device, r->t[i], (uint64_t)i + 1));
        r->bytes += (double)tensor_bytes(r->t[i]);
    }
    return STATUS_OK;
}

static Status call_case(void *user) {
    OpRun *r = user;
    return r->op->run(r);
}

/* The time that the ceilings allow, over the time taken. */
static double ceiling_share(const Bench *b, const OpRun *r, double seconds) {
    double product = r->flops / b->peak_flops, traffic = r->bytes / bench_copy_ceiling(b, r->bytes);
    return (product > traffic ? product : traffic) / seconds;
}

static void report_case(Bench *b, const OpRun *r, double seconds) {
    double gflops = 1e-9 * r->flops / seconds, gbytes = 1e-9 * r->bytes / seconds;
    double share = ceiling_share(b, r, seconds);
    if (b->json) {
        json_begin_object(b->json);
        json_pair_string(b->json, "op", r->op->slot);
        json_pair_string(b->json, "case", r->op->note);
        bench_number(b->json, "ms", 1e3 * seconds);
        bench_number(b->json, "gflops", gflops);
        bench_number(b->json, "gbytes_per_s", gbytes);
        bench_number(b->json, "ceiling_share", share);
        json_end_object(b->json);
    } else {
        out_printf("%-24s %-22s %9.4f %9.1f %9.1f %7.0f %%\n", r->op->slot, r->op->note,
                   1e3 * seconds, gflops, gbytes, 100.0 * share);
    }
}

static Status bench_case(Bench *b, const OpCase *op) {
    OpRun r = {.op = op, .device = b->device, .k = b->device->k, .patch = b->model->patch};
    int64_t side = b->model->image_size / b->model->patch, heads = b->model->heads;
    r.shape = (VitttShape){b->options->batch, side, side, heads, b->model->width / heads};
    double seconds;
    arena_reset(&b->device->step);
    TRY(take_tensors(b, &r));
    TRY(bench_time(b->device, call_case, &r, b->options->seconds, &seconds));
    report_case(b, &r, seconds);
    return STATUS_OK;
}

/* A slot that nobody measures would go unnoticed. */
static Status check_slots(void) {
    for (int i = 0; i < kernels_slot_count(); i++) {
        int c = 0;
        while (c < OP_CASES && strcmp(op_cases[c].slot, kernels_slot_name(i)) != 0) c++;
        if (c == OP_CASES)
            return status_set(STATUS_INTERNAL, "kernel '%s' has no case in bench_ops.c",
                              kernels_slot_name(i));
    }
    return STATUS_OK;
}

static void report_ceilings(const Bench *b) {
    json_key(b->json, "ceilings");
    json_begin_object(b->json);
    bench_number(b->json, "gflops", 1e-9 * b->peak_flops);
    json_key(b->json, "copies");
    json_begin_array(b->json);
    for (int i = 0; i < BENCH_COPIES; i++) {
        json_begin_object(b->json);
        bench_number(b->json, "bytes", bench_copy_bytes(b, i));
        bench_number(b->json, "gbytes_per_s", 1e-9 * b->peak_bytes[i]);
        json_end_object(b->json);
    }
    json_end_array(b->json);
    json_end_object(b->json);
}

static void report_head(const Bench *b) {
    if (b->json) {
        json_key(b->json, "ops");
        json_begin_object(b->json);
        json_pair_int(b->json, "batch", b->options->batch);
        report_ceilings(b);
        json_key(b->json, "cases");
        json_begin_array(b->json);
        return;
    }
    out_printf("ceilings: product %.0f GFLOP/s in %s; copy", 1e-9 * b->peak_flops,
               dtype_name(b->act));
    for (int i = 0; i < BENCH_COPIES; i++)
        out_printf("%s %.0f GB/s of %.0f MB", i ? "," : "", 1e-9 * b->peak_bytes[i],
                   bench_copy_bytes(b, i) / (1 << 20));
    out_printf("\n%-24s %-22s %9s %9s %9s %9s\n", "kernel", "at", "ms", "GFLOP/s", "GB/s",
               "ceiling");
}

Status bench_ops(Bench *b) {
    TRY(check_slots());
    TRY(bench_ceilings(b));
    report_head(b);
    int done = 0;
    for (int i = 0; i < OP_CASES && !out_failed(); i++) {
        if (!strstr(op_cases[i].slot, b->options->filter)) continue;
        progress_line(10, "ops: %s, %s", op_cases[i].slot, op_cases[i].note);
        TRY(status_context(bench_case(b, &op_cases[i]), "%s (%s)", op_cases[i].slot,
                           op_cases[i].note));
        done++;
    }
    arena_reset(&b->device->step);
    if (b->json) {
        json_end_array(b->json);
        json_end_object(b->json);
    }
    if (done == 0)
        return status_set(STATUS_USAGE, "no kernel has '%s' in its name", b->options->filter);
    return STATUS_OK;
}
