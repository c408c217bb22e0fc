#include "nn/params.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"

/* Every parameter starts at a multiple of this many elements: 256 bytes also in the BF16 shadow. */
#define ALIGN 128

void params_init(Params *p, Device *d) {
    memset(p, 0, sizeof *p);
    p->device = d;
}

void params_free(Params *p) {
    for (int64_t i = 0; i < p->count; i++) {
        mem_free(p->items[i]->name);
        mem_free(p->items[i]);
    }
    mem_free(p->items);
    memset(p, 0, sizeof *p);
}

/* ---- registration ----------------------------------------------------------------------- */

bool params_decays(const char *name, int rank) {
    static const char suffix[] = ".bias";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return rank > 1 && !(length >= tail && strcmp(name + length - tail, suffix) == 0);
}

Param *params_find(Params *p, const char *name) {
    for (int64_t i = 0; i < p->count; i++)
        if (strcmp(p->items[i]->name, name) == 0) return p->items[i];
    return NULL;
}

int64_t params_largest(const Params *p) {
    int64_t largest = 0;
    for (int64_t i = 0; i < p->count; i++) {
        int64_t count = tensor_count(p->items[i]->master);
        if (count > largest) largest = count;
    }
    return largest;
}

static Status grow(Params *p) {
    if (p->count < p->capacity) return STATUS_OK;
    int64_t capacity = p->capacity ? 2 * p->capacity : 64;
    void *items = p->items;
    TRY(mem_grow(&items, capacity, sizeof(Param *), "parameter list"));
    p->items = items;
    p->capacity = capacity;
    return STATUS_OK;
}

static Status add(Params *p, const char *name, int rank, const int64_t *shape, int flags,
                  Param **out) {
    int64_t count;
    if (rank < 0 || rank > TENSOR_MAX_RANK)
        return status_set(STATUS_INTERNAL, "parameter %s: rank %d is not supported", name, rank);
    TRY(status_context(shape_count(rank, shape, &count), "parameter %s", name));
    if (count < 1) return status_set(STATUS_DATA, "parameter %s: it would be empty", name);
    if (params_find(p, name))
        return status_set(STATUS_INTERNAL, "parameter %s: registered twice", name);
    TRY(grow(p));
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(Param), "parameter"));
    Param *item = memory;
    Status s = mem_string(&item->name, name);
    if (s != STATUS_OK) {
        mem_free(item);
        return s;
    }
    item->master = tensor_of(NULL, DTYPE_F32, rank, shape);
    p->items[p->count++] = item;
    if (flags & PARAM_BUFFER)
        p->has_buffers = true;
    else
        p->total += count;
    *out = item;
    return STATUS_OK;
}

Var *params_add(Params *p, const char *name, int rank, const int64_t *shape, Init init, int flags) {
    Param *item = NULL;
    if (p->status != STATUS_OK) return NULL;
    p->status = add(p, name, rank, shape, flags, &item);
    if (p->status != STATUS_OK) return NULL;
    item->init = init;
    item->flags = flags;
    item->var.is_param = true;
    item->var.name = item->name;
    item->var.value = item->master;
    return &item->var;
}

/* ---- layout and memory ------------------------------------------------------------------ */

static int64_t place(Params *p, int64_t offset, bool decayed) {
    for (int64_t i = 0; i < p->count; i++) {
        Param *item = p->items[i];
        if (((item->flags & PARAM_DECAY) != 0) != decayed) continue;
        item->offset = offset;
        offset += (tensor_count(item->master) + ALIGN - 1) / ALIGN * ALIGN;
    }
    return offset;
}

static Status take_block(Device *d, Arena *arena, DType dtype, int64_t count, Tensor *out) {
    TRY(arena_tensor(arena, dtype, 1, &count, out));
    return d->k->zero(d, *out); /* padding must be zero: it takes part in norms */
}

static Tensor slice(Tensor block, const Param *item) {
    unsigned char *data = block.data;
    return tensor_of(data + (size_t)item->offset * dtype_size(block.dtype), block.dtype,
                     item->master.rank, item->master.shape);
}

static Status lay_out(Params *p) {
    if (p->status != STATUS_OK) return p->status;
    if (p->count == 0) return status_set(STATUS_INTERNAL, "a model without parameters");
    p->decayed = place(p, 0, true);
    p->flat = place(p, p->decayed, false);
    return STATUS_OK;
}

static void point_into_blocks(Params *p, bool training) {
    for (int64_t i = 0; i < p->count; i++) {
        Param *item = p->items[i];
        bool shadowed = (item->flags & PARAM_MATMUL) && !tensor_is_none(p->shadow);
        item->master = slice(p->master, item);
        item->var.value = shadowed ? slice(p->shadow, item) : item->master;
        /* The gradient of a buffer stays as the block came: 0. AdamW then leaves it alone. */
        item->var.wants_grad = training && !(item->flags & PARAM_BUFFER);
        if (item->var.wants_grad) item->var.grad = slice(p->grad, item);
    }
}

Status params_build(Params *p, DType act, bool training) {
    TRY(lay_out(p));
    Device *d = p->device;
    TRY(take_block(d, &d->weights, DTYPE_F32, p->flat, &p->master));
    if (act == DTYPE_BF16) TRY(take_block(d, &d->weights, DTYPE_BF16, p->flat, &p->shadow));
    if (training) TRY(take_block(d, &d->state, DTYPE_F32, p->flat, &p->grad));
    point_into_blocks(p, training);
    return STATUS_OK;
}

Status params_build_over(Params *p, Tensor master, DType act) {
    TRY(lay_out(p));
    if (tensor_count(master) != p->flat)
        return status_set(STATUS_INTERNAL, "a block of %lld values for parameters of %lld",
                          (long long)tensor_count(master), (long long)p->flat);
    p->master = master;
    if (act == DTYPE_BF16)
        TRY(take_block(p->device, &p->device->weights, DTYPE_BF16, p->flat, &p->shadow));
    point_into_blocks(p, false);
    return STATUS_OK;
}

/* ---- values ----------------------------------------------------------------------------- */

/* Rotary positions: of C/2 pairs the first half turns with the row, the second with the column,
 * both by position 10000^(-k/(C/4)) (vittt.md 4.3; angles formed in float32 there). */
static void fill_rotations(float *x, const int64_t *shape) {
    const int64_t half = shape[2] / 2;
    for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i++) {
        const int64_t pair = i % shape[2], place = i / shape[2];
        const int64_t at = pair < half ? place / shape[1] : place % shape[1];
        const float step = 1.0f / powf(10000.0f, (float)(pair % half) / (float)half);
        const double angle = (double)((float)at * step);
        x[2 * i] = (float)cos(angle);
        x[2 * i + 1] = (float)sin(angle);
    }
}

static void fill(float *x, int64_t count, Init init, Rng *r) {
    for (int64_t i = 0; i < count; i++) {
        switch (init.kind) {
        case INIT_ZERO:
            x[i] = 0.0f;
            break;
        case INIT_ONE:
            x[i] = 1.0f;
            break;
        case INIT_NORMAL:
            x[i] = (float)(init.scale * rng_normal(r));
            break;
        case INIT_UNIFORM:
            x[i] = (float)rng_range(r, -(double)init.scale, init.scale);
            break;
        case INIT_ROTATIONS:
            break; /* fill_rotations */
        }
    }
}

Status params_initialise(Params *p, uint64_t seed) {
    void *host;
    TRY(mem_alloc(&host, params_largest(p), sizeof(float), "initial values"));
    Status s = STATUS_OK;
    for (int64_t i = 0; i < p->count && s == STATUS_OK; i++) {
        Param *item = p->items[i];
        Rng r = rng_stream(seed, RNG_INIT, (uint64_t)i, 0);
        if (item->init.kind == INIT_ROTATIONS)
            fill_rotations(host, item->master.shape);
        else
            fill(host, tensor_count(item->master), item->init, &r);
        s = device_push(p->device, item->master, host);
    }
    mem_free(host);
    return s == STATUS_OK ? params_refresh(p) : s;
}

Status params_refresh(Params *p) {
    p->changes++;
    if (tensor_is_none(p->shadow)) return STATUS_OK;
    return p->device->k->copy(p->device, grad_set(p->shadow), p->master, 1.0f);
}

/* ---- gradients -------------------------------------------------------------------------- */

void params_begin_step(Params *p) {
    for (int64_t i = 0; i < p->count; i++) p->items[i]->var.grad_ready = false;
}

Status params_finish_grads(Params *p) {
    for (int64_t i = 0; i < p->count; i++) {
        Var *v = &p->items[i]->var;
        if (!v->grad_ready && !tensor_is_none(v->grad)) TRY(p->device->k->zero(p->device, v->grad));
        v->grad_ready = true;
    }
    return STATUS_OK;
}
