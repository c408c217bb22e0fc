#include "tools/bench_profile.h"

#include <string.h>

#include "kernels/slots.h"
#include "tools/cli.h"

enum { RUNS = 3, SHOWN = 8 };

#define SLOT_NUMBER(slot) SLOT_##slot,
enum { KERNEL_SLOTS(SLOT_NUMBER) SLOTS };
_Static_assert(SLOTS <= (int)PROFILE_SLOTS, "Profile has too few places");

/* What the timing table works on: one profile at a time. */
static const Kernels *timed;
static Profile *profile;
static int depth; /* a kernel may call another through the table: only the outer one counts */

static double enter(Device *d) {
    if (depth++ > 0) return 0;
    device_sync(d);
    return bench_clock();
}

static Status leave(Device *d, int slot, double start, Status s) {
    if (--depth > 0) return s;
    if (s == STATUS_OK) s = device_sync(d);
    profile->seconds[slot] += bench_clock() - start;
    profile->calls[slot] += 1;
    return s;
}

/* X(slot, (parameters), (arguments)) */
#define TIMED_SLOTS(X)                                                                             \
    X(zero, (Device * d, Tensor y), (d, y))                                                        \
    X(fill, (Device * d, Tensor y, float value), (d, y, value))                                    \
    X(copy, (Device * d, Grad y, Tensor x, float alpha), (d, y, x, alpha))                         \
    X(add, (Device * d, Tensor y, Tensor a, Tensor b, float alpha), (d, y, a, b, alpha))           \
    X(mul, (Device * d, Grad y, Tensor a, Tensor b), (d, y, a, b))                                 \
    X(unary, (Device * d, Grad y, UnaryKind f, Tensor x), (d, y, f, x))                            \
    X(unary_mul, (Device * d, Grad y, UnaryKind f, Tensor x, Tensor dy), (d, y, f, x, dy))         \
    X(sum_batch, (Device * d, Grad y, Tensor x, float alpha), (d, y, x, alpha))                    \
    X(residual, (Device * d, Tensor y, Tensor x, Tensor b, Tensor s), (d, y, x, b, s))             \
    X(scale_rows, (Device * d, Grad y, Tensor x, Tensor scale), (d, y, x, scale))                  \
    X(matmul, (Device * d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha),             \
      (d, c, a, ta, b, tb, alpha))                                                                 \
    X(linear, (Device * d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b, Activation act),    \
      (d, y, pre, x, w, b, act))                                                                   \
    X(linear_residual,                                                                             \
      (Device * d, Tensor y, Tensor x, Tensor w, Tensor b, Tensor residual, Tensor scale),         \
      (d, y, x, w, b, residual, scale))                                                            \
    X(linear_dx, (Device * d, Grad dx, Grad s, Tensor dy, Tensor w, Tensor pre, Activation act),   \
      (d, dx, s, dy, w, pre, act))                                                                 \
    X(linear_dw, (Device * d, Grad dw, Grad db, Tensor dy, Tensor x), (d, dw, db, dy, x))          \
    X(norm_fold, (Device * d, Tensor y, Tensor o, Tensor w, Tensor b, Tensor gain, Tensor shift),  \
      (d, y, o, w, b, gain, shift))                                                                \
    X(linear_rated,                                                                                \
      (Device * d, Tensor y, Tensor s, Tensor x, Tensor w, Tensor b, Activation act),              \
      (d, y, s, x, w, b, act))                                                                     \
    X(linear_residual_stats,                                                                       \
      (Device * d, Tensor y, Tensor s, Tensor x, Tensor w, Tensor b, Tensor residual, float eps),  \
      (d, y, s, x, w, b, residual, eps))                                                           \
    X(layernorm, (Device * d, Tensor y, Tensor s, Tensor x, Tensor w, Tensor b, float eps),        \
      (d, y, s, x, w, b, eps))                                                                     \
    X(layernorm_backward,                                                                          \
      (Device * d, Grad dx, Grad dw, Grad db, Tensor y, Tensor dy, Tensor x, Tensor w, Tensor b,   \
       Tensor s, Tensor scaled, Tensor scale),                                                     \
      (d, dx, dw, db, y, dy, x, w, b, s, scaled, scale))                                           \
    X(softnorm, (Device * d, Tensor y, Tensor norms, Tensor g, Tensor gain, float offset),         \
      (d, y, norms, g, gain, offset))                                                              \
    X(softnorm_backward,                                                                           \
      (Device * d, Grad dg, Tensor dy, Tensor g, Tensor norms, Tensor gain, float offset),         \
      (d, dg, dy, g, norms, gain, offset))                                                         \
    X(rmsnorm, (Device * d, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps),                 \
      (d, y, rstd, x, w, eps))                                                                     \
    X(rmsnorm_backward,                                                                            \
      (Device * d, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x, Tensor w, Tensor rstd),        \
      (d, dx, dw, y, dy, x, w, rstd))                                                              \
    X(softmax, (Device * d, Tensor y, Tensor x, float scale), (d, y, x, scale))                    \
    X(softmax_backward, (Device * d, Grad dx, Tensor dy, Tensor y, float scale),                   \
      (d, dx, dy, y, scale))                                                                       \
    X(row_dot, (Device * d, Grad s, Tensor x, Tensor y), (d, s, x, y))                             \
    X(decay_scan, (Device * d, Tensor y, Tensor x, Tensor f, Tensor first), (d, y, x, f, first))   \
    X(decay_scan_backward,                                                                         \
      (Device * d, Grad dx, Grad df, Grad ds, Tensor dy, Tensor y, Tensor f, Tensor first),        \
      (d, dx, df, ds, dy, y, f, first))                                                            \
    X(reverse_tokens, (Device * d, Grad y, Tensor x), (d, y, x))                                   \
    X(decay_scores, (Device * d, Tensor a, Tensor q, Tensor k, Tensor l), (d, a, q, k, l))         \
    X(decay_scores_backward,                                                                       \
      (Device * d, Grad dq, Grad dk, Grad dl, Tensor da, Tensor q, Tensor k, Tensor l),            \
      (d, dq, dk, dl, da, q, k, l))                                                                \
    X(attention,                                                                                   \
      (Device * d, Tensor o, Tensor l, Tensor x, Tensor q, Tensor k, int64_t heads, float eps),    \
      (d, o, l, x, q, k, heads, eps))                                                              \
    X(attention_backward,                                                                          \
      (Device * d, Tensor dx, Grad dq, Grad dk, Tensor g, Tensor o, Tensor l, Tensor x, Tensor q,  \
       Tensor k, int64_t heads, float eps),                                                        \
      (d, dx, dq, dk, g, o, l, x, q, k, heads, eps))                                               \
    X(dwconv3, (Device * d, Grad y, Tensor x, Tensor w, Tensor b, TapMode m, bool add_input),      \
      (d, y, x, w, b, m, add_input))                                                               \
    X(dwconv3_taps, (Device * d, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha),             \
      (d, g, sum_y, x, y, alpha))                                                                  \
    X(dwconv3_norm,                                                                                \
      (Device * d, Tensor sum, Tensor y, Tensor s, Tensor x, Tensor w, Tensor b, Tensor gain,      \
       Tensor shift, float eps),                                                                   \
      (d, sum, y, s, x, w, b, gain, shift, eps))                                                   \
    X(dwconv3_backward,                                                                            \
      (Device * d, Grad dx, Grad dw, Grad sum_dy, Tensor dy, Tensor x, Tensor w, bool add_input,   \
       Tensor scaled, Tensor scale),                                                               \
      (d, dx, dw, sum_dy, dy, x, w, add_input, scaled, scale))                                     \
    X(image_normalise,                                                                             \
      (Device * d, Tensor y, Tensor x, const float *mean, const float *std, int64_t patch),        \
      (d, y, x, mean, std, patch))                                                                 \
    X(image_prepare,                                                                               \
      (Device * d, Tensor y, Tensor x, Tensor s, Tensor m, const float *mean, const float *std,    \
       int64_t patch),                                                                             \
      (d, y, x, s, m, mean, std, patch))                                                           \
    X(patchify, (Device * d, Tensor y, Tensor x, int64_t patch), (d, y, x, patch))                 \
    X(view_tokens,                                                                                 \
      (Device * d, Tensor y, Tensor c, Tensor rgb, int64_t h, int64_t w, int64_t patch),           \
      (d, y, c, rgb, h, w, patch))                                                                 \
    X(split_heads, (Device * d, Grad y, Tensor packed, int64_t offset), (d, y, packed, offset))    \
    X(merge_heads, (Device * d, Grad packed, Tensor x, int64_t offset), (d, packed, x, offset))    \
    X(norm_mean_tokens, (Device * d, Tensor y, Tensor x, Tensor s, Tensor gain, Tensor shift),     \
      (d, y, x, s, gain, shift))                                                                   \
    X(mean_tokens, (Device * d, Tensor y, Tensor x), (d, y, x))                                    \
    X(mean_tokens_backward, (Device * d, Grad dx, Tensor dy), (d, dx, dy))                         \
    X(cross_entropy, (Device * d, Tensor loss, Tensor logits, Tensor t), (d, loss, logits, t))     \
    X(cross_entropy_backward, (Device * d, Grad dlogits, Tensor dloss, Tensor logits, Tensor t),   \
      (d, dlogits, dloss, logits, t))                                                              \
    X(mse, (Device * d, Tensor loss, Tensor x, Tensor target), (d, loss, x, target))               \
    X(mse_backward, (Device * d, Grad dx, Tensor dloss, Tensor x, Tensor target),                  \
      (d, dx, dloss, x, target))                                                                   \
    X(grad_norm,                                                                                   \
      (Device * d, Tensor control, Tensor taken, Tensor g, float max, float skip, float beta1,     \
       float beta2),                                                                               \
      (d, control, taken, g, max, skip, beta1, beta2))                                             \
    X(adamw,                                                                                       \
      (Device * d, Tensor p, Tensor m, Tensor v, Tensor shadow, Tensor g, Tensor lr,               \
       Tensor control, float beta1, float beta2, float eps, float decay),                          \
      (d, p, m, v, shadow, g, lr, control, beta1, beta2, eps, decay))                              \
    X(muon_momentum,                                                                               \
      (Device * d, Tensor u, Tensor m, Tensor g, Tensor control, int64_t stride, float momentum),  \
      (d, u, m, g, control, stride, momentum))                                                     \
    X(muon_step,                                                                                   \
      (Device * d, Tensor p, Tensor shadow, Tensor u, Tensor lr, Tensor control, int64_t stride,   \
       float scale, float decay),                                                                  \
      (d, p, shadow, u, lr, control, stride, scale, decay))                                        \
    X(ema, (Device * d, Tensor average, Tensor p, float decay), (d, average, p, decay))            \
    X(vittt_glu,                                                                                   \
      (Device * d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w1, Tensor w2),          \
      (d, s, cat, g, qkv, w1, w2))                                                                 \
    X(vittt_glu_backward,                                                                          \
      (Device * d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2, Tensor dcat, Tensor qkv,         \
       Tensor g, Tensor w1, Tensor w2),                                                            \
      (d, s, dqkv, dw1, dw2, dcat, qkv, g, w1, w2))                                                \
    X(vittt_dwc, (Device * d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w3),          \
      (d, s, cat, g, qkv, w3))                                                                     \
    X(vittt_dwc_backward,                                                                          \
      (Device * d, VitttShape s, Tensor dqkv, Grad dw3, Tensor dcat, Tensor qkv, Tensor g,         \
       Tensor w3),                                                                                 \
      (d, s, dqkv, dw3, dcat, qkv, g, w3))                                                         \
    X(newton_schulz, (Device * d, Tensor u, Tensor norms, Tensor g, NewtonSchulz s),               \
      (d, u, norms, g, s))                                                                         \
    X(newton_schulz_backward,                                                                      \
      (Device * d, Grad dg, Tensor u, Tensor du, Tensor g, Tensor norms, NewtonSchulz s),          \
      (d, dg, u, du, g, norms, s))                                                                 \
    X(token_basis, (Device * d, Tensor q, Tensor r, Tensor inv, Tensor x), (d, q, r, inv, x))      \
    X(walsh_rows, (Device * d, Tensor w, Tensor energy), (d, w, energy))                           \
    X(walsh_energy, (Device * d, Tensor energy, Tensor x), (d, energy, x))                         \
    X(silu_heads, (Device * d, Tensor y, Tensor packed, int64_t at, float offset),                 \
      (d, y, packed, at, offset))                                                                  \
    X(silu_heads_backward,                                                                         \
      (Device * d, Grad dpacked, Tensor y, Tensor dy, Tensor packed, int64_t at, float offset),    \
      (d, dpacked, y, dy, packed, at, offset))                                                     \
    X(token_rates, (Device * d, Tensor eta, Tensor x, Tensor w, Tensor b, float shift),            \
      (d, eta, x, w, b, shift))                                                                    \
    X(token_rates_backward,                                                                        \
      (Device * d, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta, Tensor x, Tensor w),        \
      (d, dx, dw, db, deta, eta, x, w))                                                            \
    X(lact_write, (Device * d, Tensor e, Tensor ac, Tensor t, Tensor eta), (d, e, ac, t, eta))     \
    X(lact_write_backward,                                                                         \
      (Device * d, Tensor dac, Tensor dt, Grad deta, Tensor e, Tensor ac, Tensor t, Tensor eta),   \
      (d, dac, dt, deta, e, ac, t, eta))                                                           \
    X(lact_gate, (Device * d, Tensor p, Tensor ab), (d, p, ab))                                    \
    X(lact_gate_backward, (Device * d, Tensor dab, Tensor p, Tensor dp, Tensor ab),                \
      (d, dab, p, dp, ab))                                                                         \
    X(view_blocks,                                                                                 \
      (Device * d, Tensor x, int count, const ViewBlock *block, const ViewForm *form),             \
      (d, x, count, block, form))                                                                  \
    X(weight_step, (Device * d, int parts, const WeightStep *part, float sign, float offset),      \
      (d, parts, part, sign, offset))                                                              \
    X(weight_step_backward, (Device * d, int parts, const WeightSlope *part, float sign),          \
      (d, parts, part, sign))                                                                      \
    X(gate_product, (Device * d, Tensor p, Tensor x, Tensor w, Tensor rate), (d, p, x, w, rate))   \
    X(gate_read, (Device * d, Tensor y, Tensor x, Tensor w, Tensor s), (d, y, x, w, s))            \
    X(gate_write, (Device * d, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate),               \
      (d, y, x, v, w, rate))                                                                       \
    X(state_scan,                                                                                  \
      (Device * d, Tensor y, Tensor last, Tensor x, Tensor m, Tensor s, float alpha, bool before), \
      (d, y, last, x, m, s, alpha, before))                                                        \
    X(chunk_step, (Device * d, int parts, const ChunkStep *part, float sign, float offset),        \
      (d, parts, part, sign, offset))                                                              \
    X(conv3, (Device * d, Tensor y, Tensor x, Tensor w, int64_t stride), (d, y, x, w, stride))     \
    X(conv3_backward,                                                                              \
      (Device * d, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w, int64_t stride),               \
      (d, dx, dw, dy, x, w, stride))                                                               \
    X(dwconv3_down, (Device * d, Tensor y, Tensor x, Tensor w, Tensor b), (d, y, x, w, b))         \
    X(dwconv3_down_backward,                                                                       \
      (Device * d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y, Tensor x, Tensor w),            \
      (d, dx, dw, db, dy, y, x, w))                                                                \
    X(batchnorm,                                                                                   \
      (Device * d, Tensor y, Tensor s, Tensor mean, Tensor var, Tensor x, Tensor w, Tensor b,      \
       float eps, float momentum, bool relu, bool training),                                       \
      (d, y, s, mean, var, x, w, b, eps, momentum, relu, training))                                \
    X(batchnorm_backward,                                                                          \
      (Device * d, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x, Tensor w, Tensor b, Tensor s,   \
       bool relu, bool training),                                                                  \
      (d, dx, dw, db, dy, x, w, b, s, relu, training))                                             \
    X(rope, (Device * d, Grad y, Tensor x, Tensor table, bool back), (d, y, x, table, back))

#define DEFINE_TIMED(slot, parameters, arguments)                                                  \
    static Status timed_##slot parameters {                                                        \
        double start = enter(d);                                                                   \
        return leave(d, SLOT_##slot, start, timed->slot arguments);                                \
    }
TIMED_SLOTS(DEFINE_TIMED)

/* Slots that TIMED_SLOTS does not know yet stay untimed: their time counts as outside the kernels.
 */
#define USE_TIMED(slot, parameters, arguments) table.slot = timed_##slot;

Status profile_run(Device *d, BenchCall f, void *user, Profile *out) {
    Kernels table = *d->k;
    TIMED_SLOTS(USE_TIMED)
    *out = (Profile){0};
    timed = d->k;
    profile = out;
    depth = 0;
    d->k = &table;
    double start = bench_clock();
    Status s = STATUS_OK;
    for (int i = 0; i < RUNS && s == STATUS_OK; i++) s = f(user);
    if (s == STATUS_OK) s = device_sync(d);
    out->total = (bench_clock() - start) / RUNS;
    d->k = timed;
    for (int i = 0; i < SLOTS; i++) {
        out->seconds[i] /= RUNS;
        out->calls[i] /= RUNS;
    }
    return s;
}

/* Slots by falling time. */
static void sort_slots(const Profile *p, int order[SLOTS]) {
    for (int i = 0; i < SLOTS; i++) {
        int at = i;
        for (; at > 0 && p->seconds[order[at - 1]] < p->seconds[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

static double outside(const Profile *p) {
    double inside = 0;
    for (int i = 0; i < SLOTS; i++) inside += p->seconds[i];
    return p->total > inside ? p->total - inside : 0;
}

static void report_json(JsonWriter *w, const char *key, const Profile *p, const int *order) {
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < SLOTS && p->seconds[order[i]] > 0; i++) {
        json_begin_object(w);
        json_pair_string(w, "op", kernels_slot_name(order[i]));
        bench_number(w, "calls", p->calls[order[i]]);
        bench_number(w, "ms", 1e3 * p->seconds[order[i]]);
        bench_number(w, "share", p->seconds[order[i]] / p->total);
        json_end_object(w);
    }
    json_begin_object(w);
    json_pair_string(w, "op", "outside kernels");
    bench_number(w, "ms", 1e3 * outside(p));
    bench_number(w, "share", outside(p) / p->total);
    json_end_object(w);
    json_end_array(w);
}

void profile_report(const Bench *b, const char *key, const Profile *p) {
    int order[SLOTS];
    sort_slots(p, order);
    if (b->json) {
        report_json(b->json, key, p, order);
        return;
    }
    out_text("  time goes to");
    for (int i = 0; i < SHOWN && p->seconds[order[i]] > 0.005 * p->total; i++)
        out_printf("%s %s %.0f %%", i ? "," : "", kernels_slot_name(order[i]),
                   100 * p->seconds[order[i]] / p->total);
    out_printf("; outside kernels %.0f %%\n", 100 * outside(p) / p->total);
}
