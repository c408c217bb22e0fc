#include "ttt/lact_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"

Status lact_state_new(Device *d, int64_t layers, int64_t batch, int64_t heads, int64_t head_dim,
                      int64_t hidden, LactState **out) {
    const int64_t shape[] = {layers, batch, heads, 3, head_dim, hidden};
    int64_t count;
    for (int i = 0; i < 6; i++) {
        if (shape[i] < 1)
            return status_set(STATUS_USAGE, "fast weights: a size is %lld, expected at least 1",
                              (long long)shape[i]);
    }
    TRY(shape_count(6, shape, &count));
    if (count > INT64_MAX / (int64_t)sizeof(float))
        return status_set(STATUS_DATA, "fast weights: %lld numbers are too many", (long long)count);
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(LactState), "fast weights of a scene"));
    LactState *s = memory;
    *s = (LactState){.device = d,
                     .layers = layers,
                     .batch = batch,
                     .heads = heads,
                     .head_dim = head_dim,
                     .hidden = hidden};
    Status status = device_alloc(d, (size_t)count * sizeof(float), &s->memory);
    if (status != STATUS_OK) {
        mem_free(s);
        return status_context(status, "fast weights of a scene");
    }
    *out = s;
    return STATUS_OK;
}

void lact_state_free(LactState *s) {
    if (!s) return;
    device_release(s->device, s->memory);
    if (s->ready) device_release(s->device, s->ready);
    mem_free(s);
}

/* Where W_j of a layer lies in F32. */
static Tensor dense(const LactState *s, int64_t layer, int j) {
    const int64_t each = s->batch * s->heads * s->head_dim * s->hidden;
    float *data = (float *)s->memory + (3 * layer + j) * each;
    const bool second = j == 1;
    return tensor_4d(data, DTYPE_F32, s->batch, s->heads, second ? s->hidden : s->head_dim,
                     second ? s->head_dim : s->hidden);
}

/* [W0 | W2] of a layer, behind it W1. */
static Tensor ready_gates(const LactState *s, int64_t layer) {
    const int64_t each = s->batch * s->heads * s->head_dim * s->hidden;
    char *data = (char *)s->ready + (size_t)(3 * layer * each) * dtype_size(s->ready_type);
    return tensor_4d(data, s->ready_type, s->batch, s->heads, s->head_dim, 2 * s->hidden);
}
static Tensor ready_back(const LactState *s, int64_t layer) {
    const Tensor gates = ready_gates(s, layer);
    return tensor_4d((char *)gates.data + tensor_bytes(gates), s->ready_type, s->batch, s->heads,
                     s->hidden, s->head_dim);
}

/* One half of the gates as a matrix of its own, in F32. */
static Status take_half(const LactState *s, int64_t layer, int j) {
    Arena *arena = &s->device->step;
    const Tensor gates = ready_gates(s, layer), to = dense(s, layer, j);
    const int64_t rows = tensor_rows(gates), h = s->hidden, shape[] = {1, 1, rows, h};
    Tensor half;
    TRY(arena_tensor(arena, gates.dtype, 4, shape, &half));
    Status status = s->device->k->split_heads(s->device, grad_set(half),
                                              tensor_view3(gates, 1, rows, 2 * h), j / 2 * h);
    if (status == STATUS_OK)
        status = s->device->k->copy(s->device, grad_set(to), tensor_view(half, 4, to.shape), 1);
    arena_give(arena, half.data, tensor_bytes(half));
    return status;
}

/* Taken out anew each time: a graph may have stored in between, which no flag would tell. */
Tensor lact_state_tensor(const LactState *s, int64_t layer, int j) {
    const Tensor to = dense(s, layer, j);
    Status status = STATUS_OK;
    if (s->fused_counts)
        status = j == 1 ? s->device->k->copy(s->device, grad_set(to), ready_back(s, layer), 1)
                        : take_half(s, layer, j);
    return status == STATUS_OK ? to : tensor_none();
}

static Status store(LactState *s, Tensor to, Tensor from) {
    char a[64], b[64];
    const Kernels *k = s->device->k;
    if (tensor_same_shape(to, from)) return k->copy(s->device, grad_set(to), from, 1);
    Tensor one = to;
    one.shape[0] = 1;
    if (!tensor_same_shape(one, from))
        return status_set(STATUS_INTERNAL, "fast weights are %s, the state holds %s",
                          tensor_shape_text(from, a, sizeof a), tensor_shape_text(to, b, sizeof b));
    for (int64_t i = 0; i < to.shape[0]; i++) {
        TRY(k->copy(s->device, grad_set(one), from, 1));
        one.data = (char *)one.data + tensor_bytes(one);
    }
    return STATUS_OK;
}

/* Memory for the fused form. */
static Status ready_room(LactState *s, DType act) {
    if (s->ready && s->ready_type == act) return STATUS_OK;
    if (s->ready) device_release(s->device, s->ready);
    s->ready = NULL;
    s->ready_fresh = false;
    const int64_t count = 3 * s->layers * tensor_count(dense(s, 0, 0));
    TRY(device_alloc(s->device, (size_t)count * dtype_size(act), &s->ready));
    s->ready_type = act;
    return STATUS_OK;
}

static Status store_fused(LactState *s, int64_t layer, LactWeights w) {
    TRY(ready_room(s, w.gates->value.dtype));
    s->fused_counts = s->ready_fresh = true;
    TRY(status_context(store(s, ready_gates(s, layer), w.gates->value), "layer %lld, W0 and W2",
                       (long long)layer));
    return status_context(store(s, ready_back(s, layer), w.back->value), "layer %lld, W1",
                          (long long)layer);
}

Status lact_state_store(LactState *s, int64_t layer, LactFast fast) {
    if (fast.fused.gates) return store_fused(s, layer, fast.fused);
    s->fused_counts = s->ready_fresh = false;
    for (int j = 0; j < 3; j++)
        TRY(status_context(store(s, dense(s, layer, j), fast.w[j]->value), "layer %lld, W%d",
                           (long long)layer, j));
    return STATUS_OK;
}

Status lact_state_room(LactState *s, Tape *t, int64_t layer, LactWeights *to) {
    TRY(tape_status(t));
    TRY(ready_room(s, tape_act(t)));
    s->fused_counts = s->ready_fresh = true;
    to->gates = tape_input(t, ready_gates(s, layer), "fast weights");
    to->back = tape_input(t, ready_back(s, layer), "fast weight");
    return tape_status(t);
}

/* ---- to the fused form -------------------------------------------------------------------- */

/* `wide` has room for a layer's gates in F32. */
static Status ready_layer(LactState *s, int64_t layer, Tensor wide) {
    const Kernels *k = s->device->k;
    const int64_t rows = s->batch * s->heads * s->head_dim;
    for (int j = 0; j < 3; j += 2) {
        const Tensor w = tensor_view4(dense(s, layer, j), 1, 1, rows, s->hidden);
        TRY(k->merge_heads(s->device, grad_set(tensor_view3(wide, 1, rows, 2 * s->hidden)), w,
                           j / 2 * s->hidden));
    }
    TRY(k->copy(s->device, grad_set(ready_gates(s, layer)), wide, 1));
    return k->copy(s->device, grad_set(ready_back(s, layer)), dense(s, layer, 1), 1);
}

static Status make_ready(LactState *s, DType act) {
    if (s->fused_counts && s->ready_type != act)
        return status_set(STATUS_INTERNAL, "fast weights were stored in another precision");
    TRY(ready_room(s, act));
    if (s->ready_fresh) return STATUS_OK;
    Tensor wide;
    Arena *arena = &s->device->step;
    TRY(arena_tensor(arena, DTYPE_F32, 4, ready_gates(s, 0).shape, &wide));
    Status status = STATUS_OK;
    for (int64_t i = 0; i < s->layers && status == STATUS_OK; i++) status = ready_layer(s, i, wide);
    arena_give(arena, wide.data, tensor_bytes(wide));
    s->ready_fresh = status == STATUS_OK;
    return status;
}

LactFast lact_state_fast(const LactState *s, Tape *t, int64_t layer) {
    LactFast fast = {.w = {NULL}};
    /* a cache within the state, which is const for what it says */
    const Status status = tape_poison(t) ? STATUS_OK : make_ready((LactState *)s, tape_act(t));
    if (status != STATUS_OK) tape_fail(t, status);
    for (int j = 0; j < 3 && !s->fused_counts; j++)
        fast.w[j] = tape_input(t, dense(s, layer, j), "fast weight");
    fast.fused.gates = tape_input(t, ready_gates(s, layer), "fast weights");
    fast.fused.back = tape_input(t, ready_back(s, layer), "fast weight");
    return fast;
}

/* ---- files -------------------------------------------------------------------------------- */

typedef struct StateName {
    char text[48];
} StateName;

static StateName name_of(int64_t layer, int j) {
    StateName n;
    snprintf(n.text, sizeof n.text, "layers.%lld.w%d", (long long)layer, j);
    return n;
}

/* The whole state on the host, behind it the list for the writer. */
typedef struct StateImage {
    float *values;
    StateName *names;
    SafeItem *items;
    int64_t count; /* tensors */
} StateImage;

static void image_free(StateImage *m) {
    mem_free(m->values);
    mem_free(m->names);
    mem_free(m->items);
}

static int64_t numbers_in(const LactState *s) {
    return 3 * s->layers * tensor_count(dense(s, 0, 0));
}

static Status image_new(const LactState *s, StateImage *m) {
    *m = (StateImage){.count = 3 * s->layers};
    Status status =
        mem_alloc((void **)&m->values, numbers_in(s), sizeof *m->values, "fast weights of a scene");
    if (status == STATUS_OK)
        status = mem_alloc((void **)&m->names, m->count, sizeof *m->names, "fast weight names");
    if (status == STATUS_OK)
        status = mem_alloc((void **)&m->items, m->count, sizeof *m->items, "fast weight list");
    if (status != STATUS_OK) {
        image_free(m);
        return status;
    }
    float *at = m->values;
    for (int64_t i = 0; i < m->count; i++) {
        m->names[i] = name_of(i / 3, (int)(i % 3));
        Tensor t = dense(s, i / 3, (int)(i % 3));
        t.data = at;
        at += tensor_count(t);
        m->items[i] = (SafeItem){m->names[i].text, t};
    }
    return STATUS_OK;
}

Status lact_state_save(const LactState *s, const char *path, const SafeMeta *meta,
                       int64_t meta_count) {
    StateImage m;
    for (int64_t i = 0; i < 3 * s->layers; i++)
        if (tensor_is_none(lact_state_tensor(s, i / 3, (int)(i % 3)))) return STATUS_DEVICE;
    TRY(image_new(s, &m));
    Status status =
        device_pull(s->device, m.values, tensor_1d(s->memory, DTYPE_F32, numbers_in(s)));
    if (status == STATUS_OK) status = safetensors_write(path, m.items, m.count, meta, meta_count);
    image_free(&m);
    return status;
}

/* Sizes from layers.0.w0 and the number of tensors. */
static Status read_sizes(const SafeFile *f, int64_t *layers, const SafeEntry **first) {
    const int64_t count = safetensors_count(f);
    *first = safetensors_find(f, "layers.0.w0");
    if (!*first)
        return status_set(STATUS_DATA, "%s: no fast weights (tensor 'layers.0.w0' is missing)",
                          safetensors_path(f));
    if ((*first)->rank != 4 || count % 3 != 0)
        return status_set(STATUS_DATA,
                          "%s: 'layers.0.w0' has rank %d among %lld tensors, expected rank 4 and "
                          "three tensors a layer",
                          safetensors_path(f), (*first)->rank, (long long)count);
    *layers = count / 3;
    return STATUS_OK;
}

static Status read_item(const SafeFile *f, const SafeItem *item) {
    const SafeEntry *e = safetensors_find(f, item->name);
    char text[64];
    if (!e)
        return status_set(STATUS_DATA, "%s: tensor '%s' is missing", safetensors_path(f),
                          item->name);
    if (e->rank != 4 || memcmp(e->shape, item->t.shape, sizeof item->t.shape) != 0)
        return status_set(STATUS_DATA, "%s: tensor '%s' has another shape than %s",
                          safetensors_path(f), item->name,
                          tensor_shape_text(item->t, text, sizeof text));
    TRY(status_context(safetensors_read(e, item->t), "%s", safetensors_path(f)));
    const float *x = item->t.data;
    for (int64_t i = 0; i < tensor_count(item->t); i++) {
        if (!isfinite(x[i]))
            return status_set(STATUS_DATA, "%s: tensor '%s' holds a value that is not finite",
                              safetensors_path(f), item->name);
    }
    return STATUS_OK;
}

static Status fill(LactState *s, const SafeFile *f) {
    StateImage m;
    TRY(image_new(s, &m));
    Status status = STATUS_OK;
    for (int64_t i = 0; i < m.count && status == STATUS_OK; i++) status = read_item(f, &m.items[i]);
    if (status == STATUS_OK)
        status = device_push(s->device, tensor_1d(s->memory, DTYPE_F32, numbers_in(s)), m.values);
    if (status == STATUS_OK) status = device_sync(s->device);
    image_free(&m);
    return status;
}

Status lact_state_load(Device *d, const SafeFile *f, LactState **out) {
    int64_t layers = 0;
    const SafeEntry *first = NULL;
    LactState *s = NULL;
    TRY(read_sizes(f, &layers, &first));
    const int64_t *shape = first->shape;
    TRY(status_context(lact_state_new(d, layers, shape[0], shape[1], shape[2], shape[3], &s), "%s",
                       safetensors_path(f)));
    Status status = fill(s, f);
    if (status != STATUS_OK) {
        lact_state_free(s);
        return status;
    }
    *out = s;
    return STATUS_OK;
}
