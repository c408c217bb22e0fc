/* The dry device: addresses that nothing lies behind, kernels that do nothing. A pass on it takes
 * from the arenas what the same pass takes on a true device, so it tells how much memory that will
 * need (nn/plan.h). Only the scratch that kernels take for themselves does not show.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/backend.h"
#include "kernels/slots.h"

#define DRY_ALIGN ((uintptr_t)256)
#define DRY_FIRST ((uintptr_t)1 << 20)
#define DRY_TOTAL ((size_t)1 << 46)

/* ---- kernels: with the parameters of their slots, so that the compiler compares -------------- */

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define DRY(slot, ...)                                                                             \
    static Status slot##_dry(Device *d, __VA_ARGS__) {                                             \
        return STATUS_OK;                                                                          \
    }

DRY(zero, Tensor y)
DRY(fill, Tensor y, float value)
DRY(copy, Grad y, Tensor x, float alpha)
DRY(add, Tensor y, Tensor a, Tensor b, float alpha)
DRY(mul, Grad y, Tensor a, Tensor b)
DRY(unary, Grad y, UnaryKind f, Tensor x)
DRY(unary_mul, Grad y, UnaryKind f, Tensor x, Tensor dy)
DRY(sum_batch, Grad y, Tensor x, float alpha)
DRY(residual, Tensor y, Tensor x, Tensor branch, Tensor scale)
DRY(scale_rows, Grad y, Tensor x, Tensor scale)
DRY(matmul, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha)
DRY(linear, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias, Activation act)
DRY(linear_residual, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor residual, Tensor scale)
DRY(linear_dx, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre, Activation act)
DRY(linear_dw, Grad dw, Grad dbias, Tensor dy, Tensor x)
DRY(norm_fold, Tensor folded, Tensor offset, Tensor w, Tensor bias, Tensor gain, Tensor shift)
DRY(linear_rated, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias, Activation act)
DRY(linear_residual_stats, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias, Tensor residual,
    float eps)
DRY(norm_mean_tokens, Tensor y, Tensor x, Tensor stats, Tensor gain, Tensor shift)
DRY(layernorm, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, float eps)
DRY(layernorm_backward, Grad dx, Grad dw, Grad db, Tensor y, Tensor dy, Tensor x, Tensor w,
    Tensor b, Tensor stats, Tensor scaled, Tensor scale)
DRY(softnorm, Tensor y, Tensor norms, Tensor g, Tensor gain, float offset)
DRY(softnorm_backward, Grad dg, Tensor dy, Tensor g, Tensor norms, Tensor gain, float offset)
DRY(rmsnorm, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps)
DRY(rmsnorm_backward, Grad dx, Grad dw, Tensor y, Tensor dy, Tensor x, Tensor w, Tensor rstd)
DRY(softmax, Tensor y, Tensor x, float scale)
DRY(softmax_backward, Grad dx, Tensor dy, Tensor y, float scale)
DRY(row_dot, Grad s, Tensor x, Tensor y)
DRY(decay_scan, Tensor y, Tensor x, Tensor f, Tensor start)
DRY(decay_scan_backward, Grad dx, Grad df, Grad dstart, Tensor dy, Tensor y, Tensor f, Tensor start)
DRY(reverse_tokens, Grad y, Tensor x)
DRY(decay_scores, Tensor a, Tensor q, Tensor k, Tensor l)
DRY(decay_scores_backward, Grad dq, Grad dk, Grad dl, Tensor da, Tensor q, Tensor k, Tensor l)
DRY(attention, Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w, int64_t heads,
    float eps)
DRY(attention_backward, Tensor dpacked, Grad dq_w, Grad dk_w, Tensor dout, Tensor o, Tensor lse,
    Tensor packed, Tensor q_w, Tensor k_w, int64_t heads, float eps)
DRY(dwconv3, Grad y, Tensor x, Tensor w, Tensor bias, TapMode mode, bool add_input)
DRY(dwconv3_taps, Grad g, Grad sum_y, Tensor x, Tensor y, float alpha)
DRY(dwconv3_norm, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor bias, Tensor gain,
    Tensor shift, float eps)
DRY(dwconv3_backward, Grad dx, Grad dw, Grad sum_dy, Tensor dy, Tensor x, Tensor w, bool add_input,
    Tensor scaled, Tensor scale)
DRY(image_normalise, Tensor y, Tensor x, const float *mean, const float *std, int64_t patch)
DRY(image_prepare, Tensor y, Tensor x, Tensor samples, Tensor mix, const float *mean,
    const float *std, int64_t patch)
DRY(patchify, Tensor y, Tensor x, int64_t patch)
DRY(view_tokens, Tensor y, Tensor cameras, Tensor rgb, int64_t height, int64_t width, int64_t patch)
DRY(split_heads, Grad y, Tensor packed, int64_t offset)
DRY(merge_heads, Grad packed, Tensor x, int64_t offset)
DRY(mean_tokens, Tensor y, Tensor x)
DRY(mean_tokens_backward, Grad dx, Tensor dy)
DRY(cross_entropy, Tensor loss, Tensor logits, Tensor targets)
DRY(cross_entropy_backward, Grad dlogits, Tensor dloss, Tensor logits, Tensor targets)
DRY(mse, Tensor loss, Tensor x, Tensor target)
DRY(mse_backward, Grad dx, Tensor dloss, Tensor x, Tensor target)
DRY(grad_norm, Tensor control, Tensor taken, Tensor g, float max_norm, float skip_norm, float beta1,
    float beta2)
DRY(adamw, Tensor p, Tensor m, Tensor v, Tensor shadow, Tensor g, Tensor lr, Tensor control,
    float beta1, float beta2, float eps, float weight_decay)
DRY(muon_momentum, Tensor u, Tensor m, Tensor g, Tensor control, int64_t stride, float momentum)
DRY(muon_step, Tensor p, Tensor shadow, Tensor u, Tensor lr, Tensor control, int64_t stride,
    float scale, float weight_decay)
DRY(ema, Tensor average, Tensor p, float decay)
DRY(vittt_glu, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w1, Tensor w2)
DRY(vittt_glu_backward, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2, Tensor dcat, Tensor qkv,
    Tensor g, Tensor w1, Tensor w2)
DRY(vittt_dwc, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w3)
DRY(vittt_dwc_backward, VitttShape s, Tensor dqkv, Grad dw3, Tensor dcat, Tensor qkv, Tensor g,
    Tensor w3)
DRY(newton_schulz, Tensor u, Tensor norms, Tensor g, NewtonSchulz s)
DRY(newton_schulz_backward, Grad dg, Tensor u, Tensor du, Tensor g, Tensor norms, NewtonSchulz s)
DRY(token_basis, Tensor q, Tensor r, Tensor inv, Tensor x)
DRY(walsh_rows, Tensor w, Tensor energy)
DRY(walsh_energy, Tensor energy, Tensor x)
DRY(silu_heads, Tensor y, Tensor packed, int64_t at, float offset)
DRY(silu_heads_backward, Grad dpacked, Tensor y, Tensor dy, Tensor packed, int64_t at, float offset)
DRY(token_rates, Tensor eta, Tensor x, Tensor w, Tensor b, float shift)
DRY(token_rates_backward, Grad dx, Grad dw, Grad db, Tensor deta, Tensor eta, Tensor x, Tensor w)
DRY(lact_write, Tensor e, Tensor ac, Tensor t, Tensor eta)
DRY(lact_write_backward, Tensor dac, Tensor dt, Grad deta, Tensor e, Tensor ac, Tensor t,
    Tensor eta)
DRY(lact_gate, Tensor p, Tensor ab)
DRY(lact_gate_backward, Tensor dab, Tensor p, Tensor dp, Tensor ab)
DRY(view_blocks, Tensor x, int count, const ViewBlock *block, const ViewForm *form)
DRY(weight_step, int parts, const WeightStep *part, float sign, float offset)
DRY(weight_step_backward, int parts, const WeightSlope *part, float sign)
DRY(gate_product, Tensor p, Tensor x, Tensor w, Tensor rate)
DRY(gate_read, Tensor y, Tensor x, Tensor w, Tensor s)
DRY(gate_write, Tensor y, Tensor x, Tensor v, Tensor w, Tensor rate)
DRY(state_scan, Tensor y, Tensor last, Tensor x, Tensor m, Tensor start, float alpha, bool before)
DRY(chunk_step, int parts, const ChunkStep *part, float sign, float offset)
DRY(conv3, Tensor y, Tensor x, Tensor w, int64_t stride)
DRY(conv3_backward, Grad dx, Grad dw, Tensor dy, Tensor x, Tensor w, int64_t stride)
DRY(dwconv3_down, Tensor y, Tensor x, Tensor w, Tensor bias)
DRY(dwconv3_down_backward, Grad dx, Grad dw, Grad db, Tensor dy, Tensor y, Tensor x, Tensor w)
DRY(batchnorm, Tensor y, Tensor stats, Tensor seen_mean, Tensor seen_var, Tensor x, Tensor w,
    Tensor b, float eps, float momentum, bool relu, bool training)
DRY(batchnorm_backward, Grad dx, Grad dw, Grad db, Tensor dy, Tensor x, Tensor w, Tensor b,
    Tensor stats, bool relu, bool training)
DRY(rope, Grad y, Tensor x, Tensor table, bool back)

#define ENTRY(slot) .slot = slot##_dry,
static const Kernels kernels_dry = {.name = "dry", KERNEL_SLOTS(ENTRY)};

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Device.backend: the next address. */
typedef struct Dry {
    uintptr_t next;
} Dry;

static Status dry_alloc(Device *d, size_t bytes, void **out) {
    Dry *dry = d->backend;
    if (bytes > DRY_TOTAL)
        return status_set(STATUS_MEMORY, "%zu bytes are more than there can be", bytes);
    *out = (void *)dry->next;
    dry->next += (bytes + DRY_ALIGN - 1) / DRY_ALIGN * DRY_ALIGN;
    return STATUS_OK;
}

static void dry_release(Device *d, void *memory) {}

static Status dry_push(Device *d, void *dst, const void *src, size_t bytes) {
    return STATUS_OK;
}

static Status dry_pull(Device *d, void *dst, const void *src, size_t bytes) {
    memset(dst, 0, bytes);
    return STATUS_OK;
}

static Status dry_sync(Device *d) {
    return STATUS_OK;
}

static Status dry_available(Device *d, size_t *available, size_t *total) {
    *available = *total = DRY_TOTAL;
    return STATUS_OK;
}

static void dry_close(Device *d) {
    mem_free(d->backend);
}

static const DeviceMemory dry_memory = {
    .alloc = dry_alloc,
    .release = dry_release,
    .push = dry_push,
    .pull = dry_pull,
    .sync = dry_sync,
    .available = dry_available,
    .close = dry_close,
};

Status dry_device_open(Device **out) {
    void *device, *dry;
    TRY(mem_alloc(&device, 1, sizeof(Device), "dry device"));
    const Status status = mem_alloc(&dry, 1, sizeof(Dry), "dry device");
    if (status != STATUS_OK) {
        mem_free(device);
        return status;
    }
    Device *d = device;
    ((Dry *)dry)->next = DRY_FIRST;
    d->kind = DEVICE_DRY;
    d->k = &kernels_dry;
    d->memory = &dry_memory;
    d->backend = dry;
    snprintf(d->name, sizeof d->name, "dry run");
    *out = d;
    return STATUS_OK;
}
