#include "nn/ema.h"

#define SWAP_CHUNK ((int64_t)1 << 20) /* elements exchanged at a time */

Status ema_restart(Ema *e) {
    Params *p = e->params;
    return p->device->k->copy(p->device, grad_set(e->average), p->master, 1.0f);
}

Status ema_init(Ema *e, Params *p, float decay) {
    *e = (Ema){.params = p, .decay = decay};
    if (!(decay >= 0.0f && decay < 1.0f))
        return status_set(STATUS_USAGE, "the decay of averaged weights is %g, expected 0 <= it < 1",
                          (double)decay);
    TRY(arena_tensor(&p->device->state, DTYPE_F32, 1, &p->flat, &e->average));
    return ema_restart(e);
}

Status ema_update(Ema *e) {
    Params *p = e->params;
    return p->device->k->ema(p->device, e->average, p->master, e->decay);
}

static Tensor part(Tensor block, int64_t offset, int64_t count) {
    return tensor_1d((float *)block.data + offset, DTYPE_F32, count);
}

static Status exchange(Ema *e, Tensor spare) {
    Params *p = e->params;
    Device *d = p->device;
    for (int64_t done = 0; done < p->flat; done += SWAP_CHUNK) {
        const int64_t count = p->flat - done < SWAP_CHUNK ? p->flat - done : SWAP_CHUNK;
        const Tensor a = part(p->master, done, count), b = part(e->average, done, count);
        const Tensor c = part(spare, 0, count);
        TRY(d->k->copy(d, grad_set(c), a, 1.0f));
        TRY(d->k->copy(d, grad_set(a), b, 1.0f));
        TRY(d->k->copy(d, grad_set(b), c, 1.0f));
    }
    e->swapped = !e->swapped;
    return params_refresh(p);
}

Status ema_swap(Ema *e) {
    Arena *scratch = &e->params->device->scratch;
    const int64_t chunk = SWAP_CHUNK;
    Tensor spare;
    Status s = arena_tensor(scratch, DTYPE_F32, 1, &chunk, &spare);
    if (s == STATUS_OK) s = exchange(e, spare);
    arena_reset(scratch);
    return s;
}
