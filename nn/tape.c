#include <string.h>

#include "core/memory.h"
#include "nn/tape_internal.h"

Status tape_new(Device *d, Tape **out) {
    void *memory;
    TRY(mem_alloc(&memory, 1, sizeof(Tape), "tape"));
    Tape *t = memory;
    t->device = d;
    t->act = DTYPE_F32;
    t->poison.name = "poison";
    t->poison.value = tensor_4d(NULL, DTYPE_F32, 1, 1, 1, 1);
    *out = t;
    return STATUS_OK;
}

void tape_free(Tape *t) {
    if (!t) return;
    for (int64_t i = 0; i < t->var_chunk_count; i++) mem_free(t->var_chunks[i]);
    for (int64_t i = 0; i < t->node_chunk_count; i++) mem_free(t->node_chunks[i]);
    mem_free(t->var_chunks);
    mem_free(t->node_chunks);
    for (int i = 0; i < ZEROS && t->zeros[i].data; i++)
        arena_give(&t->device->state, t->zeros[i].data, tensor_bytes(t->zeros[i]));
    mem_free(t);
}

Status tape_zeros(Tape *t, int64_t count, Tensor *out) {
    int i = 0;
    while (i < ZEROS && t->zeros[i].data && tensor_count(t->zeros[i]) != count) i++;
    *out = i < ZEROS ? t->zeros[i] : tensor_none();
    if (i == ZEROS || out->data) return STATUS_OK;
    TRY(arena_tensor(&t->device->state, DTYPE_F32, 1, &count, out));
    const Status s = t->device->k->zero(t->device, *out);
    if (s != STATUS_OK) {
        arena_give(&t->device->state, out->data, tensor_bytes(*out));
        return s;
    }
    t->zeros[i] = *out;
    return STATUS_OK;
}

void tape_reset(Tape *t, bool recording) {
    t->recording = recording;
    t->spent = false;
    t->status = STATUS_OK;
    t->vars = 0;
    t->nodes = 0;
    arena_reset(&t->device->step);
}

bool tape_pause(Tape *t) {
    const bool recording = t->recording;
    t->recording = false;
    return recording;
}

void tape_resume(Tape *t, bool recording) {
    t->recording = recording;
}

bool tape_recording(const Tape *t) {
    return t->recording;
}
Device *tape_device(const Tape *t) {
    return t->device;
}
void tape_set_act(Tape *t, DType act) {
    t->act = act;
}
DType tape_act(const Tape *t) {
    return t->act;
}
void tape_set_thrift(Tape *t, TapeThrift thrift) {
    t->thrift = thrift;
}
TapeThrift tape_thrift(const Tape *t) {
    return t->thrift;
}
int64_t tape_nodes(const Tape *t) {
    return t->nodes;
}

int64_t tape_growths(const Tape *t) {
    const Device *d = t->device;
    return d->weights.growths + d->state.growths + d->step.growths + d->scratch.growths;
}

/* ---- errors ----------------------------------------------------------------------------- */

Status tape_status(const Tape *t) {
    return t->status == STATUS_OK ? STATUS_OK : status_set(t->status, "%s", t->message);
}

Var *tape_fail(Tape *t, Status s) {
    if (t->status == STATUS_OK) {
        t->status = s == STATUS_OK ? STATUS_INTERNAL : s;
        strncpy(t->message, status_message(), MESSAGE - 1);
        t->message[MESSAGE - 1] = '\0';
    }
    return &t->poison;
}

Var *tape_poison(Tape *t) {
    return t->status == STATUS_OK ? NULL : &t->poison;
}

/* ---- memory ----------------------------------------------------------------------------- */

Status tape_take(Tape *t, DType dtype, int rank, const int64_t *shape, Tensor *out) {
    return arena_tensor(&t->device->step, dtype, rank, shape, out);
}

void tape_give(Tape *t, Tensor memory) {
    if (!tensor_is_none(memory)) arena_give(&t->device->step, memory.data, tensor_bytes(memory));
}

void tape_give_grad(Tape *t, Var *v) {
    if (v->owns_grad) tape_give(t, v->grad);
    v->owns_grad = false;
    v->grad_ready = false;
    v->grad = tensor_none();
}

void tape_give_value(Tape *t, Var *v) {
    if (v->owns_value) tape_give(t, v->value);
    v->owns_value = false;
    v->value.data = NULL; /* the shape stays, for messages */
}

void tape_drop(Tape *t, Var *v) {
    if (!t->recording && v->owns_value) tape_give_value(t, v);
}

void tape_release(Tape *t, Var *v) {
    if (!v->owns_value) return;
    tape_give_value(t, v);
    v->released = true;
}

/* ---- vars and nodes --------------------------------------------------------------------- */

Var *tape_var_at(const Tape *t, int64_t i) {
    return &t->var_chunks[i / CHUNK]->items[i % CHUNK];
}

static Var *take_var(Tape *t) {
    if (t->status != STATUS_OK) return NULL;
    if (t->vars == t->var_chunk_count * CHUNK) {
        void *list = t->var_chunks, *chunk;
        Status s = mem_alloc(&chunk, 1, sizeof(VarChunk), "tape values");
        if (s == STATUS_OK) {
            s = mem_grow(&list, t->var_chunk_count + 1, sizeof(VarChunk *), "tape values");
            if (s != STATUS_OK) mem_free(chunk);
        }
        if (s != STATUS_OK) {
            tape_fail(t, s);
            return NULL;
        }
        t->var_chunks = list;
        t->var_chunks[t->var_chunk_count++] = chunk;
    }
    Var *v = tape_var_at(t, t->vars++);
    memset(v, 0, sizeof *v);
    return v;
}

Node *tape_node_at(const Tape *t, int64_t i) {
    return &t->node_chunks[i / CHUNK]->items[i % CHUNK];
}

Node *tape_take_node(Tape *t) {
    if (t->nodes == t->node_chunk_count * CHUNK) {
        void *list = t->node_chunks, *chunk;
        Status s = mem_alloc(&chunk, 1, sizeof(NodeChunk), "tape nodes");
        if (s == STATUS_OK) {
            s = mem_grow(&list, t->node_chunk_count + 1, sizeof(NodeChunk *), "tape nodes");
            if (s != STATUS_OK) mem_free(chunk);
        }
        if (s != STATUS_OK) {
            tape_fail(t, s);
            return NULL;
        }
        t->node_chunks = list;
        t->node_chunks[t->node_chunk_count++] = chunk;
    }
    Node *n = tape_node_at(t, t->nodes++);
    memset(n, 0, sizeof *n);
    return n;
}

Var *tape_input(Tape *t, Tensor value, const char *name) {
    Var *v = take_var(t);
    if (!v) return &t->poison;
    v->value = value;
    v->name = name;
    return v;
}

Var *tape_input_grad(Tape *t, Tensor value, const char *name) {
    Var *v = tape_input(t, value, name);
    if (v != &t->poison) v->wants_grad = true;
    return v;
}

Var *tape_view(Tape *t, Var *base, int rank, const int64_t *shape) {
    if (t->status != STATUS_OK || base == &t->poison) return &t->poison;
    Var *v = take_var(t);
    if (!v) return &t->poison;
    v->value = tensor_view(base->value, rank, shape);
    v->wants_grad = base->wants_grad;
    v->is_param = base->is_param;
    v->is_view = true;
    v->base = base->is_view ? base->base : base;
    v->name = base->name;
    return v;
}

Var *tape_output(Tape *t, DType dtype, int rank, const int64_t *shape) {
    Var *v = take_var(t);
    if (!v) return &t->poison;
    Status s = tape_take(t, dtype, rank, shape, &v->value);
    if (s != STATUS_OK) return tape_fail(t, s);
    v->owns_value = true;
    return v;
}

bool tape_will_record(const Tape *t, int inputs, Var *const *in) {
    if (!t->recording || t->status != STATUS_OK) return false;
    for (int i = 0; i < inputs; i++)
        if (in[i] && in[i]->wants_grad) return true;
    return false;
}

Node *tape_record(Tape *t, const char *op, Status (*backward)(Tape *, Node *), Var *out, int inputs,
                  Var *const *in) {
    if (!tape_will_record(t, inputs, in)) return NULL;
    Node *n = tape_take_node(t);
    if (!n) return NULL;
    n->op = op;
    n->backward = backward;
    n->out = out;
    for (int i = 0; i < inputs; i++) n->in[i] = in[i];
    out->wants_grad = true;
    return n;
}

void tape_record_more(Node *n, Var *out) {
    if (!n) return;
    int i = 0;
    while (i < NODE_MORE - 1 && n->more[i]) i++;
    n->more[i] = out;
    out->wants_grad = true;
}
