#include "nn/muon.h"

#include <math.h>

#include "core/memory.h"

#define SIZE_OF_ADAMW 0.2f

bool muon_takes(const Param *item) {
    const int both = PARAM_MATMUL | PARAM_DECAY;
    return item->master.rank == 2 && (item->flags & both) == both;
}

/* ---- groups ------------------------------------------------------------------------------- */

static bool same_shape(const MuonGroup *g, const Param *item) {
    return g->rows == item->master.shape[0] && g->columns == item->master.shape[1];
}

/* Blocks of a model repeat, so that their matrices of one kind lie at one distance; where that
 * distance changes, a new group begins. */
static void join(Muon *m, const Param *item) {
    for (int64_t i = 0; i < m->count; i++) {
        MuonGroup *g = &m->groups[i];
        if (!same_shape(g, item)) continue;
        const int64_t next = item->offset - (g->first + (g->count - 1) * g->stride);
        if (g->count > 1 && next != g->stride) continue;
        g->stride = next;
        g->count++;
        return;
    }
    m->groups[m->count++] =
        (MuonGroup){item->offset, 0, 1, item->master.shape[0], item->master.shape[1]};
}

static Status find_groups(Muon *m) {
    const Params *p = m->params;
    int64_t matrices = 0;
    for (int64_t i = 0; i < p->count; i++) matrices += muon_takes(p->items[i]);
    if (matrices == 0)
        return status_set(STATUS_USAGE, "Muon: the model has no matrix that it could train");
    TRY(mem_alloc((void **)&m->groups, matrices, sizeof *m->groups, "groups of matrices"));
    for (int64_t i = 0; i < p->count; i++)
        if (muon_takes(p->items[i])) join(m, p->items[i]);
    return STATUS_OK;
}

Status muon_init(Muon *m, Params *p, float momentum) {
    *m = (Muon){.params = p, .momentum = momentum, .dtype = DTYPE_F32};
    if (!(momentum >= 0.0f && momentum < 1.0f))
        return status_set(STATUS_USAGE, "the momentum of Muon is %g, expected 0 <= it < 1",
                          (double)momentum);
    if (!tensor_is_none(p->shadow)) m->dtype = DTYPE_BF16;
    Status s = find_groups(m);
    int64_t largest = 0;
    for (int64_t i = 0; i < m->count; i++) {
        const MuonGroup *g = &m->groups[i];
        const int64_t size = g->count * g->rows * g->columns;
        if (size > largest) largest = size;
    }
    Arena *state = &p->device->state;
    if (s == STATUS_OK) s = arena_tensor(state, m->dtype, 1, &largest, &m->ahead);
    if (s == STATUS_OK) s = arena_tensor(state, m->dtype, 1, &largest, &m->unit);
    if (s != STATUS_OK) muon_free(m);
    return s;
}

void muon_free(Muon *m) {
    mem_free(m->groups);
    *m = (Muon){0};
}

/* ---- a step ------------------------------------------------------------------------------- */

/* The polynomial whose slope at 0 is largest: singular values end between 0.7 and 1.2. */
static NewtonSchulz iteration(bool bf16) {
    NewtonSchulz s = {.steps = 5, .bf16 = bf16};
    for (int i = 0; i < s.steps; i++) {
        s.triple[i][0] = 3.4445f;
        s.triple[i][1] = -4.775f;
        s.triple[i][2] = 2.0315f;
    }
    return s;
}

static Tensor part(Tensor block, const MuonGroup *g) {
    unsigned char *data = block.data;
    if (tensor_is_none(block)) return block;
    return tensor_1d(data + (size_t)g->first * dtype_size(block.dtype), block.dtype,
                     (g->count - 1) * g->stride + g->rows * g->columns);
}

static Status step(Muon *m, const MuonGroup *g, Tensor moments, Tensor lr, Tensor control,
                   float weight_decay) {
    const Params *p = m->params;
    Device *d = p->device;
    const Tensor ahead = tensor_3d(m->ahead.data, m->dtype, g->count, g->rows, g->columns);
    const Tensor unit = tensor_3d(m->unit.data, m->dtype, g->count, g->rows, g->columns);
    const int64_t longer = g->rows > g->columns ? g->rows : g->columns;
    const float scale = SIZE_OF_ADAMW * sqrtf((float)longer);
    TRY(d->k->muon_momentum(d, ahead, part(moments, g), part(p->grad, g), control, g->stride,
                            m->momentum));
    TRY(d->k->newton_schulz(d, unit, tensor_none(), ahead, iteration(m->dtype == DTYPE_BF16)));
    return d->k->muon_step(d, part(p->master, g), part(p->shadow, g), unit, lr, control, g->stride,
                           scale, weight_decay);
}

Status muon_apply(Muon *m, Tensor moments, Tensor lr, Tensor control, float weight_decay) {
    for (int64_t i = 0; i < m->count; i++)
        TRY(step(m, &m->groups[i], moments, lr, control, weight_decay));
    return STATUS_OK;
}
