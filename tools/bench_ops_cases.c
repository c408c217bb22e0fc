/* The cases of `ttv bench ops`, one row each: tensors as text, and a one-line call. Here are
 * depthwise convolutions, attention and the kernels of fast-weight layers, in bench_ops_plain.c all
 * others.
 *
 * Dimensions are letters:
 *   B batch  N tokens  H W token grid  I image side  C width  D head width  h heads  G = B*h
 *   t = 3C q, k, v
 *   P = 3C+3d packed projection  K = C+d concatenated branches  M MLP width  L classes
 *   x = I*I pixels  V = 12 patch^2  @ = 16
 *   R = B*N rows  p = 3 patch^2  F all parameters  digits: themselves
 *   E width of LaCT-NVS (768)  Z its fast weights of a batch of at most 32 scenes
 *   e = 2E  S scenes  w r writing and reading tokens of one  Q = S*w  T = S*r
 *   J = E/2  X = 64: weights of 16 chunks of 4 heads
 * dtypes: a activations, f F32, u U8, i I64, n I32, s BF16 shadow (left out in F32 runs).
 * Bytes count every tensor once; a kernel that reads a part only corrects that.
 */
#include "tools/bench_ops.h"

/* ---- attention: 4 and 10 N^2 C of each window ---- */
static double attention_flops(const OpRun *r, double per_score) {
    const int64_t *s = r->t[0].shape;
    return per_score * (double)(s[0] * s[1] * s[1]) * (double)r->shape.heads *
           (double)r->shape.head_dim;
}
static Status run_attention(OpRun *r) {
    r->flops = attention_flops(r, 4);
    return r->k->attention(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], r->shape.heads,
                           1e-7f);
}
static Status run_attention_backward(OpRun *r) {
    r->flops = attention_flops(r, 10);
    return r->k->attention_backward(r->device, r->t[0], grad_set(r->t[6]), grad_set(r->t[7]),
                                    r->t[1], r->t[2], r->t[3], r->t[4], r->t[5], r->t[5],
                                    r->shape.heads, 1e-7f);
}

/* ---- depthwise 3x3 ---- */
static Status run_dwconv3_cpe(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[1]);
    return r->k->dwconv3(r->device, grad_set(r->t[0]), r->t[1], r->t[2], r->t[3], TAPS_CORRELATE,
                         true);
}
static Status run_dwconv3_cpe_adjoint(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[1]);
    return r->k->dwconv3(r->device, grad_set(r->t[0]), r->t[1], r->t[2], tensor_none(),
                         TAPS_TRANSPOSE, true);
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

static Status run_dwconv3_norm(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[3]);
    return r->k->dwconv3_norm(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], r->t[5],
                              r->t[6], r->t[7], 1e-6f);
}
static Status run_dwconv3_stats(OpRun *r) {
    r->flops = 18.0 * (double)tensor_count(r->t[2]);
    return r->k->dwconv3_norm(r->device, r->t[0], tensor_none(), r->t[1], r->t[2], r->t[3], r->t[4],
                              tensor_none(), tensor_none(), 1e-6f);
}
static Status run_dwconv3_backward(OpRun *r) {
    r->flops = 36.0 * (double)tensor_count(r->t[4]);
    return r->k->dwconv3_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                  grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], true, r->t[6],
                                  r->t[7]);
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

/* ---- orthogonalisation: work counts every product in full (lact_nvs.md 4.5, 5.3) ---- */
static NewtonSchulz newton_schulz_of(Tensor g) {
    NewtonSchulz s = {.steps = 5, .bf16 = g.dtype == DTYPE_BF16};
    for (int i = 0; i < s.steps; i++) {
        s.triple[i][0] = 3.4445f;
        s.triple[i][1] = -4.7750f;
        s.triple[i][2] = 2.0315f;
    }
    return s;
}
/* FLOP of a product with the matrices g, `wide` of a step, and among Gram matrices, `square`. */
static double newton_schulz_work(Tensor g, double wide, double square) {
    const double r = (double)g.shape[1], c = (double)g.shape[2], less = r < c ? r : c;
    return 5.0 * (double)tensor_count(g) * (wide * less + square * less * less * less / (r * c));
}
static Status run_newton_schulz(OpRun *r) {
    r->flops = newton_schulz_work(r->t[2], 4.0, 2.0);
    return r->k->newton_schulz(r->device, r->t[0], r->t[1], r->t[2], newton_schulz_of(r->t[2]));
}
static Status run_newton_schulz_backward(OpRun *r) {
    r->flops = newton_schulz_work(r->t[2], 10.0, 6.0);
    return r->k->newton_schulz_backward(r->device, grad_set(r->t[0]), tensor_none(), r->t[1],
                                        r->t[2], r->t[3], newton_schulz_of(r->t[2]));
}
/* Gram matrix, factor, inverse and basis, of each what lies below the diagonal. */
static Status run_token_basis(OpRun *r) {
    const Tensor x = r->t[3];
    const double n = (double)x.shape[1];
    r->flops = (double)tensor_count(x) * n * 2.0 + 2.0 / 3.0 * (double)x.shape[0] * n * n * n;
    return r->k->token_basis(r->device, r->t[0], r->t[1], r->t[2], x);
}
static Status run_walsh_rows(OpRun *r) {
    return r->k->walsh_rows(r->device, r->t[0], r->t[1]);
}
static Status run_walsh_energy(OpRun *r) {
    return r->k->walsh_energy(r->device, r->t[0], r->t[1]);
}

/* ---- LaCT fast-weight layer ---- */
static Status run_silu_heads(OpRun *r) {
    return r->k->silu_heads(r->device, r->t[0], r->t[1], 0, 1e-5f);
}
static Status run_silu_heads_backward(OpRun *r) {
    return r->k->silu_heads_backward(r->device, grad_set(r->t[0]), r->t[3], r->t[1], r->t[2], 0,
                                     1e-5f);
}
static Status run_token_rates(OpRun *r) {
    return r->k->token_rates(r->device, r->t[0], r->t[1], r->t[2], r->t[3], -4.6f);
}
static Status run_token_rates_backward(OpRun *r) {
    return r->k->token_rates_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                      grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], r->t[6]);
}
static Status run_lact_write(OpRun *r) {
    return r->k->lact_write(r->device, r->t[0], r->t[1], r->t[2], r->t[3]);
}
static Status run_lact_write_backward(OpRun *r) {
    return r->k->lact_write_backward(r->device, r->t[0], r->t[1], grad_set(r->t[2]), r->t[3],
                                     r->t[4], r->t[5], r->t[6]);
}
static Status run_lact_gate(OpRun *r) {
    return r->k->lact_gate(r->device, r->t[0], r->t[1]);
}
static Status run_lact_gate_backward(OpRun *r) {
    return r->k->lact_gate_backward(r->device, r->t[0], r->t[1], r->t[2], r->t[3]);
}
/* t: x, vectors [8,E], square matrices [9,E,E], the MLP's two, memory. */
static Status run_view_blocks(OpRun *r) {
    const Tensor x = r->t[0], all = r->t[2], work = r->t[5];
    const int64_t e = tensor_last(x), rows = tensor_rows(x), heads = e / r->shape.head_dim;
    char *m = (char *)all.data, *w = (char *)work.data;
    const size_t square = (size_t)(e * e) * dtype_size(all.dtype);
    const size_t plane = (size_t)(rows * e) * dtype_size(work.dtype);
    float *v = (float *)r->t[1].data;
    const ViewBlock b = {
        .norm_w = {tensor_1d(v, DTYPE_F32, e), tensor_1d(v + e, DTYPE_F32, e),
                   tensor_1d(v + 2 * e, DTYPE_F32, e)},
        .qkv_w = tensor_2d(m, all.dtype, 3 * e, e),
        .q_norm_w = tensor_1d(v + 3 * e, DTYPE_F32, e / heads),
        .k_norm_w = tensor_1d(v + 4 * e, DTYPE_F32, e / heads),
        .proj_w = tensor_2d(m + 3 * square, all.dtype, e, e),
        .query_w = tensor_2d(m + 4 * square, all.dtype, e, e),
        .gates = tensor_4d(m + 5 * square, all.dtype, 1, 1, e, 2 * e),
        .back = tensor_4d(m + 7 * square, all.dtype, 1, 1, e, e),
        .out_norm_w = tensor_1d(v + 5 * e, DTYPE_F32, e),
        .out_w = tensor_2d(m + 8 * square, all.dtype, e, e),
        .fc_w = tensor_2d(r->t[3].data, all.dtype, 4 * e, e),
        .fc_out_w = tensor_2d(r->t[4].data, all.dtype, e, 4 * e),
    };
    const ViewForm f = {.heads = heads,
                        .window = rows,
                        .norm_eps = 1e-5f,
                        .head_eps = 1e-7f,
                        .unit_offset = 1e-5f,
                        .out_eps = 1e-5f,
                        .zeros = tensor_1d(v + 6 * e, DTYPE_F32, e),
                        .u = tensor_2d(w, work.dtype, rows, e),
                        .o = tensor_2d(w + plane, work.dtype, rows, e),
                        .wide = tensor_2d(w + 2 * plane, work.dtype, rows, 4 * e)};
    r->flops = 2.0 * (double)rows * (double)(17 * e * e + 2 * rows * e);
    return r->k->view_blocks(r->device, x, 1, &b, &f);
}
/* Matrices [first, first + count) of x. */
static Tensor matrices(Tensor x, int64_t first, int64_t count) {
    const int64_t each = x.shape[1] * x.shape[2];
    return tensor_3d((char *)x.data + (size_t)(first * each) * dtype_size(x.dtype), x.dtype, count,
                     x.shape[1], x.shape[2]);
}
/* W0, W2 side by side and W1: y0 [S,e,2e], y1 [S,e,e], stats [3S,e,2], u [3S,e,e], w [3,e,e]. */
static Status run_weight_step(OpRun *r) {
    const int64_t scenes = r->t[1].shape[0];
    WeightStep part[WEIGHT_PARTS];
    for (int i = 0; i < WEIGHT_PARTS; i++)
        part[i] = (WeightStep){r->t[i == 2], i == 1 ? r->t[4].shape[1] : 0,
                               matrices(r->t[2], i * scenes, scenes),
                               matrices(r->t[3], i * scenes, scenes), matrices(r->t[4], i, 1)};
    return r->k->weight_step(r->device, WEIGHT_PARTS, part, 1.0f, 1e-5f);
}
/* du [3S,e,e], dw [3,e,e], dy and y like y0 and y1 each, stats. */
static Status run_weight_step_backward(OpRun *r) {
    const int64_t scenes = r->t[3].shape[0];
    WeightSlope part[WEIGHT_PARTS];
    for (int i = 0; i < WEIGHT_PARTS; i++)
        part[i] = (WeightSlope){grad_set(matrices(r->t[0], i * scenes, scenes)),
                                grad_set(matrices(r->t[1], i, 1)),
                                r->t[2 + (i == 2)],
                                i == 1 ? r->t[1].shape[1] : 0,
                                r->t[4 + (i == 2)],
                                matrices(r->t[6], i * scenes, scenes)};
    return r->k->weight_step_backward(r->device, WEIGHT_PARTS, part, 1.0f);
}
static Status run_gate_product(OpRun *r) {
    r->flops = 4.0 * (double)tensor_count(r->t[1]) * (double)tensor_last(r->t[0]);
    return r->k->gate_product(r->device, r->t[0], r->t[1], r->t[2], r->t[3]);
}
/* Each group one chunk. */
static Status run_gate_read(OpRun *r) {
    const Tensor x = r->t[1], s = r->t[3];
    r->flops = 6.0 * (double)tensor_count(x) * (double)tensor_last(x);
    return r->k->gate_read(r->device, r->t[0], x, r->t[2],
                           tensor_view4(s, x.shape[0], 1, s.shape[1], s.shape[2]));
}
static Status run_gate_write(OpRun *r) {
    const Tensor x = r->t[1], y = r->t[0];
    r->flops = 6.0 * (double)tensor_count(x) * (double)tensor_last(x);
    return r->k->gate_write(r->device, tensor_view4(y, x.shape[0], 1, y.shape[1], y.shape[2]), x,
                            r->t[2], r->t[3], r->t[4]);
}
static Status run_state_scan(OpRun *r) {
    return r->k->state_scan(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[1], 1.0f, true);
}
static Status run_chunk_step(OpRun *r) {
    const ChunkStep part = {r->t[0], r->t[1], 0, r->t[2], r->t[0], r->t[3]};
    return r->k->chunk_step(r->device, 1, &part, 1.0f, 1e-5f);
}

/* ---- stages of a hierarchical model, on the map of tokens ---- */
/* [O,C,9] as a convolution's weight. */
static Tensor as_taps3(Tensor w) {
    return tensor_view4(w, w.shape[0], w.shape[1], 3, 3);
}
static Status run_conv3(OpRun *r) {
    r->flops = 2.0 * (double)tensor_count(r->t[1]) * 9.0 * (double)tensor_last(r->t[0]);
    return r->k->conv3(r->device, r->t[0], r->t[1], as_taps3(r->t[2]), 1);
}
static Status run_conv3_backward(OpRun *r) {
    r->flops = 4.0 * (double)tensor_count(r->t[0]) * 9.0 * (double)tensor_last(r->t[2]);
    return r->k->conv3_backward(r->device, grad_set(r->t[0]), grad_set(as_taps3(r->t[1])), r->t[2],
                                r->t[3], as_taps3(r->t[4]), 1);
}
/* The first tensor has room for a whole map, of which a quarter is written. */
static Status run_dwconv3_down(OpRun *r) {
    r->bytes = 1.25 * (double)tensor_bytes(r->t[1]);
    return r->k->dwconv3_down(r->device, r->t[0], r->t[1], r->t[2], r->t[3]);
}
static Status run_dwconv3_down_backward(OpRun *r) {
    r->bytes = 2.5 * (double)tensor_bytes(r->t[0]);
    return r->k->dwconv3_down_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                       grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], r->t[6]);
}
static Status run_batchnorm(OpRun *r) {
    return r->k->batchnorm(r->device, r->t[0], r->t[1], r->t[2], r->t[3], r->t[4], r->t[5], r->t[6],
                           1e-5f, 0.1f, true, true);
}
static Status run_batchnorm_backward(OpRun *r) {
    return r->k->batchnorm_backward(r->device, grad_set(r->t[0]), grad_set(r->t[1]),
                                    grad_set(r->t[2]), r->t[3], r->t[4], r->t[5], r->t[6], r->t[7],
                                    true, true);
}
static Status run_rope(OpRun *r) {
    const Tensor t = r->t[2];
    return r->k->rope(r->device, grad_set(r->t[0]), r->t[1],
                      tensor_view3(t, t.shape[0], t.shape[1] / 2, 2), false);
}

static const OpCase fused[] = {
    {"attention", "windows, q/k norm", "a:BNC f:BhN a:BNt f:D f:D", run_attention},
    {"attention_backward", "windows, q/k norm", "a:BNt a:BNC a:BNC f:BhN a:BNt f:D f:D f:D",
     run_attention_backward},
    {"dwconv3", "position encoding", "a:BHWC a:BHWC f:1C9 f:C", run_dwconv3_cpe},
    {"dwconv3", "position encoding, adjoint", "a:BHWC a:BHWC f:1C9", run_dwconv3_cpe_adjoint},
    {"dwconv3", "inner kernel, adjoint", "a:BHWD a:BHWD f:BD9", run_dwconv3_adjoint},
    {"dwconv3_taps", "position encoding", "f:1C9 a:BHWC a:BHWC f:C", run_dwconv3_taps},
    {"dwconv3_taps", "inner kernel", "f:BD9 a:BHWD a:BHWD", run_dwconv3_taps},
    {"dwconv3_norm", "position encoding", "a:BHWC a:BHWC f:R2 a:BHWC f:1C9 f:C f:C f:C",
     run_dwconv3_norm},
    {"dwconv3_norm", "position encoding, statistics alone", "a:BHWC f:R2 a:BHWC f:1C9 f:C",
     run_dwconv3_stats},
    {"dwconv3_backward", "position encoding, scaled",
     "a:BHWC f:1C9 f:C a:BHWC a:BHWC f:1C9 a:BHWC f:B", run_dwconv3_backward},
    {"vittt_glu", "fused inner step", "a:BNK f:G2DD a:BNP f:1hDD f:1hDD", run_vittt_glu},
    {"vittt_glu_backward", "fused inner step",
     "a:BNP f:1hDD f:1hDD a:BNK a:BNP f:G2DD f:1hDD f:1hDD", run_vittt_glu_backward},
    {"vittt_dwc", "fused inner kernel", "a:BNK f:BD9 a:BNP f:D9", run_vittt_dwc},
    {"vittt_dwc_backward", "fused inner kernel", "a:BNP f:D9 a:BNK a:BNP f:BD9 f:D9",
     run_vittt_dwc_backward},
    {"newton_schulz", "three fast weights", "f:3EE f:3 a:3EE", run_newton_schulz},
    {"newton_schulz", "fast weights of a batch", "f:ZEE f:Z a:ZEE", run_newton_schulz},
    {"newton_schulz", "weights of 16 chunks", "f:XJJ f:X a:XJJ", run_newton_schulz},
    {"newton_schulz", "in the tokens' span", "a:ZwE f:Z a:ZwE", run_newton_schulz},
    {"newton_schulz_backward", "weights of 16 chunks", "a:XJJ f:XJJ a:XJJ f:X",
     run_newton_schulz_backward},
    {"newton_schulz_backward", "fast weights of a batch", "a:ZEE f:ZEE a:ZEE f:Z",
     run_newton_schulz_backward},
    {"newton_schulz_backward", "in the tokens' span", "a:ZwE a:ZwE a:ZwE f:Z",
     run_newton_schulz_backward},
    {"token_basis", "writing tokens", "a:SwE a:Sww a:Sww a:SwE", run_token_basis},
    {"walsh_rows", "by energy", "a:Sww f:Sw", run_walsh_rows},
    {"walsh_energy", "writing tokens", "f:Sw a:SwE", run_walsh_energy},
    {"silu_heads", "queries", "a:11TE a:1TE", run_silu_heads},
    {"silu_heads_backward", "queries", "a:1TE a:11TE a:1TE a:11TE", run_silu_heads_backward},
    {"token_rates", "writing tokens", "f:Q3 a:QE f:3E f:3", run_token_rates},
    {"token_rates_backward", "writing tokens", "a:QE f:3E f:3 f:Q3 f:Q3 a:QE f:3E",
     run_token_rates_backward},
    {"lact_write", "writing tokens", "a:3SwE a:S1we a:S1wE f:Sw3", run_lact_write},
    {"lact_write_backward", "writing tokens", "a:S1we a:S1wE f:Sw3 a:3SwE a:S1we a:S1wE f:Sw3",
     run_lact_write_backward},
    {"lact_gate", "reading tokens", "a:TE a:Te", run_lact_gate},
    {"view_blocks", "a view of 256 tokens", "a:1@@E f:8E a:9EE a:4EE a:4EE a:@@6E",
     run_view_blocks},
    {"lact_gate_backward", "reading tokens", "a:Te a:TE a:TE a:Te", run_lact_gate_backward},
    {"weight_step", "fast weights of a batch", "a:SEe a:SEE f:ZE2 a:ZEE f:3EE", run_weight_step},
    {"weight_step_backward", "fast weights of a batch", "a:ZEE f:3EE a:SEe a:SEE a:SEe a:SEE f:ZE2",
     run_weight_step_backward},
    {"gate_product", "writing tokens", "a:S1wE a:S1wE a:11Ee f:S1w", run_gate_product},
    {"gate_read", "reading tokens", "a:S1wE a:S1wE a:11Ee a:SEE", run_gate_read},
    {"gate_write", "writing tokens", "a:SEE a:S1wE a:S1wE a:11Ee f:S1w", run_gate_write},
    {"state_scan", "states of chunks", "a:EZE f:EE f:EZE f:EZ1", run_state_scan},
    {"chunk_step", "fast weights of a batch", "f:ZEE a:ZEE a:ZEE f:ZE", run_chunk_step},
    {"conv3", "tokens, heads' channels", "a:BHWD a:BHWD a:DD9", run_conv3},
    {"conv3_backward", "tokens, heads' channels", "a:BHWD f:DD9 a:BHWD a:BHWD a:DD9",
     run_conv3_backward},
    {"dwconv3_down", "tokens", "a:BHWC a:BHWC f:1C9 f:C", run_dwconv3_down},
    {"dwconv3_down_backward", "tokens", "a:BHWC f:1C9 f:C a:BHWC a:BHWC a:BHWC f:1C9",
     run_dwconv3_down_backward},
    {"batchnorm", "tokens", "a:RC f:2C f:C f:C a:RC f:C f:C", run_batchnorm},
    {"batchnorm_backward", "tokens", "a:RC f:C f:C a:RC a:RC f:C f:C f:2C", run_batchnorm_backward},
    {"rope", "q and k", "a:BNP a:BNP f:NC", run_rope},
};

const OpCase *op_case(int i) {
    const int count = sizeof fused / sizeof *fused;
    if (i < op_cases_plain_count) return &op_cases_plain[i];
    return i < op_cases_plain_count + count ? &fused[i - op_cases_plain_count] : NULL;
}
