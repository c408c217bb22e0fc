#include "nn/optim.h"

#include <math.h>
#include <string.h>

Status adamw_init(AdamW *o, Params *p, AdamWOptions options) {
    Device *d = p->device;
    int64_t one = 1, four = 4;
    memset(o, 0, sizeof *o);
    o->params = p;
    o->options = options;
    if (tensor_is_none(p->grad))
        return status_set(STATUS_INTERNAL, "AdamW needs parameters that were built for training");
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &p->flat, &o->m));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &p->flat, &o->v));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &one, &o->lr));
    TRY(arena_tensor(&d->state, DTYPE_F32, 1, &four, &o->control));
    TRY(arena_tensor(&d->state, DTYPE_I64, 1, &one, &o->taken));
    TRY(d->k->zero(d, o->m));
    TRY(d->k->zero(d, o->v));
    TRY(d->k->zero(d, o->control));
    return adamw_set_taken(o, 0);
}

static Tensor range(Tensor block, int64_t offset, int64_t count) {
    unsigned char *data = block.data;
    if (tensor_is_none(block)) return block;
    return tensor_1d(data + (size_t)offset * dtype_size(block.dtype), block.dtype, count);
}

static Status update(AdamW *o, int64_t offset, int64_t count, float weight_decay) {
    const Params *p = o->params;
    const AdamWOptions *a = &o->options;
    if (count == 0) return STATUS_OK;
    return p->device->k->adamw(p->device, range(p->master, offset, count),
                               range(o->m, offset, count), range(o->v, offset, count),
                               range(p->shadow, offset, count), range(p->grad, offset, count),
                               o->lr, o->control, a->beta1, a->beta2, a->eps, weight_decay);
}

/* The decayed parameters, which lie in the order of their registration, without those of Muon. */
static Status update_around_matrices(AdamW *o) {
    const Params *p = o->params;
    const float decay = o->options.weight_decay;
    int64_t from = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        if (!muon_takes(item)) continue;
        TRY(update(o, from, item->offset - from, decay));
        from = item->offset + tensor_count(item->master);
    }
    TRY(update(o, from, p->decayed - from, decay));
    return muon_apply(o->muon, o->m, o->lr, o->control, decay);
}

Status adamw_set_lr(AdamW *o, double lr) {
    float rate = (float)lr;
    o->params->changes++; /* of every step, also where a recorded graph does the rest */
    return device_push(o->params->device, o->lr, &rate);
}

Status adamw_apply(AdamW *o) {
    const Params *p = o->params;
    const AdamWOptions *a = &o->options;
    Device *d = p->device;
    TRY(d->k->grad_norm(d, o->control, o->taken, p->grad, a->clip_norm, a->skip_norm, a->beta1,
                        a->beta2));
    if (o->muon)
        TRY(update_around_matrices(o));
    else
        TRY(update(o, 0, p->decayed, a->weight_decay));
    TRY(update(o, p->decayed, p->flat - p->decayed, 0.0f));
    return o->ema ? ema_update(o->ema) : STATUS_OK;
}

Status adamw_step(AdamW *o, double lr) {
    TRY(adamw_set_lr(o, lr));
    return adamw_apply(o);
}

Status adamw_report(AdamW *o, float *norm, float *clip) {
    float control[4];
    TRY(device_pull(o->params->device, control, o->control));
    *norm = control[0];
    *clip = control[1];
    return STATUS_OK;
}

bool adamw_skips(const AdamW *o, float norm) {
    const float limit = o->options.skip_norm;
    return !isfinite(norm) || (limit > 0.0f && norm > limit);
}

Status adamw_taken(AdamW *o, int64_t *taken) {
    return device_pull(o->params->device, taken, o->taken);
}

Status adamw_set_taken(AdamW *o, int64_t taken) {
    return device_push(o->params->device, o->taken, &taken);
}
