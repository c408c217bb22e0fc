#include "nn/tape.h"

#include <string.h>

#include "core/memory.h"

#define CHUNK   256
#define MESSAGE 1024

/* Stable storage: chunks stay where they are and are used again in the next pass. */
typedef struct VarChunk {
    Var items[CHUNK];
} VarChunk;
typedef struct NodeChunk {
    Node items[CHUNK];
} NodeChunk;

#define ZEROS 8 /* lengths of zeros that are kept */

struct Tape {
    Device *device;
    DType act;
    bool recording;
    bool frugal;
    bool spent; /* a backward went over this pass: its values are gone */
    Status status;
    char message[MESSAGE];
    Var poison;
    VarChunk **var_chunks;
    NodeChunk **node_chunks;
    int64_t var_chunk_count, node_chunk_count;
    int64_t vars, nodes;    /* used in this pass */
    int64_t first, running; /* of the walk: its first node, and the one whose backward runs */
    Tensor zeros[ZEROS];    /* by length; in the state arena */
};

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
void tape_set_frugal(Tape *t, bool frugal) {
    t->frugal = frugal;
}
bool tape_frugal(const Tape *t) {
    return t->frugal;
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

static void give_grad(Tape *t, Var *v) {
    if (v->owns_grad) tape_give(t, v->grad);
    v->owns_grad = false;
    v->grad_ready = false;
    v->grad = tensor_none();
}

static void give_value(Tape *t, Var *v) {
    if (v->owns_value) tape_give(t, v->value);
    v->owns_value = false;
    v->value.data = NULL; /* the shape stays, for messages */
}

void tape_drop(Tape *t, Var *v) {
    if (!t->recording && v->owns_value) give_value(t, v);
}

void tape_release(Tape *t, Var *v) {
    if (!v->owns_value) return;
    give_value(t, v);
    v->released = true;
}

/* ---- vars and nodes --------------------------------------------------------------------- */

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
    Var *v = &t->var_chunks[t->vars / CHUNK]->items[t->vars % CHUNK];
    t->vars++;
    memset(v, 0, sizeof *v);
    return v;
}

static Node *node_at(const Tape *t, int64_t i) {
    return &t->node_chunks[i / CHUNK]->items[i % CHUNK];
}

static Node *take_node(Tape *t) {
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
    Node *n = node_at(t, t->nodes++);
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
    Node *n = take_node(t);
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

/* ---- backward --------------------------------------------------------------------------- */

static Var *memory_of(Var *v) {
    return v->is_view ? v->base : v;
}

Grad tape_grad(Tape *t, Var *v) {
    if (!v || !v->wants_grad || t->status != STATUS_OK) return grad_none();
    Var *base = memory_of(v);
    if (tensor_is_none(base->grad)) {
        DType dtype = base->is_param ? DTYPE_F32 : base->value.dtype;
        Status s = tape_take(t, dtype, base->value.rank, base->value.shape, &base->grad);
        if (s != STATUS_OK) {
            tape_fail(t, s);
            return grad_none();
        }
        base->owns_grad = true;
        base->grad_ready = false;
    }
    Grad g = {tensor_of(base->grad.data, base->grad.dtype, v->value.rank, v->value.shape),
              base->grad_ready};
    base->grad_ready = true;
    return g;
}

Status tape_grad_of(Tape *t, Var *out, Tensor *grad) {
    const bool reached = out->grad_ready;
    *grad = reached ? out->grad : tape_grad(t, out).t;
    TRY(tape_status(t));
    return reached ? STATUS_OK : t->device->k->zero(t->device, *grad);
}

Grad tape_grad_last(Tape *t, Var *v, Tensor *scaled, Tensor *scale) {
    const Grad g = tape_grad(t, v);
    *scaled = *scale = tensor_none();
    if (tensor_is_none(g.t) || t->running <= t->first) return g;
    Node *n = node_at(t, t->running - 1);
    if (n->out != v || !n->scale) return g;
    const Status s = tape_take(t, g.t.dtype, g.t.rank, g.t.shape, &n->scaled);
    if (s != STATUS_OK) {
        tape_fail(t, s);
        return grad_none();
    }
    *scaled = n->scaled;
    *scale = n->scale->value;
    return g;
}

Status tape_grad_pass(Tape *t, Var *to, Var *from) {
    if (!to->wants_grad) return STATUS_OK;
    Var *base = memory_of(to);
    if (tensor_is_none(base->grad) && from->owns_grad && !base->is_param &&
        base->value.dtype == from->grad.dtype) {
        base->grad =
            tensor_of(from->grad.data, from->grad.dtype, base->value.rank, base->value.shape);
        base->owns_grad = true;
        base->grad_ready = true;
        from->owns_grad = false;
        from->grad = tensor_none();
        return STATUS_OK;
    }
    Grad g = tape_grad(t, to);
    if (tensor_is_none(g.t)) return tape_status(t);
    return t->device->k->copy(t->device, g, from->grad, 1.0f);
}

/* Whether a's gradient may be read as b's: nothing stands between the running node and the one that
 * computed b, so b's gradient is used up before anything is added to a's. */
static bool can_lend(const Tape *t, const Var *a, const Var *b, const Var *out) {
    const Var *base = a->is_view ? a->base : a;
    bool takes_over = base->wants_grad && !base->is_param && tensor_is_none(base->grad) &&
                      out->owns_grad && base->value.dtype == out->grad.dtype;
    if (!takes_over || t->running == t->first) return false;
    const Node *n = node_at(t, t->running - 1);
    if (n->out != b || b->is_view || !(b->owns_value || b->released) || !tensor_is_none(b->grad) ||
        b->value.dtype != out->grad.dtype)
        return false;
    for (int i = 0; i < NODE_INPUTS; i++)
        if (n->in[i] && memory_of(n->in[i]) == base) return false;
    return true;
}

Status tape_grad_fork(Tape *t, Var *a, Var *b, Var *out) {
    if (can_lend(t, a, b, out)) {
        b->grad = tensor_of(out->grad.data, out->grad.dtype, b->value.rank, b->value.shape);
        b->grad_ready = true; /* and not owned: a gives the memory back */
        return tape_grad_pass(t, a, out);
    }
    Grad g = tape_grad(t, b);
    if (!tensor_is_none(g.t)) TRY(t->device->k->copy(t->device, g, out->grad, 1.0f));
    TRY(tape_status(t));
    return tape_grad_pass(t, a, out);
}

static Status run_node(Tape *t, Node *n) {
    bool reached = n->out->grad_ready;
    for (int i = 0; i < NODE_MORE; i++) reached = reached || (n->more[i] && n->more[i]->grad_ready);
    if (!reached) return STATUS_OK;
    TRY(status_context(n->backward(t, n), "backward of %s", n->op));
    return tape_status(t); /* memory for a gradient may have run out */
}

/* An output whose node has run backward. */
static void give_output(Tape *t, Var *v, const Var *keep) {
    if (!v) return;
    give_grad(t, v);
    if (v != keep) give_value(t, v);
}

/* Backward of the nodes from the end down to `first`; what they held is given back, but not the
 * value of `keep`. */
static Status walk(Tape *t, int64_t first, const Var *keep) {
    const int64_t outer_first = t->first, outer_running = t->running;
    Status s = STATUS_OK;
    t->first = first;
    for (int64_t i = t->nodes - 1; i >= first && s == STATUS_OK; i--) {
        Node *n = node_at(t, i);
        t->running = i;
        s = run_node(t, n);
        for (int j = 0; j < NODE_SAVED; j++) tape_give(t, n->saved[j]);
        give_output(t, n->out, keep);
        for (int j = 0; j < NODE_MORE; j++) give_output(t, n->more[j], keep);
    }
    t->first = outer_first;
    t->running = outer_running;
    return s;
}

Status tape_backward(Tape *t, Var *loss, float seed) {
    TRY(tape_status(t));
    Tensor l = loss->value;
    if (l.dtype != DTYPE_F32 || tensor_count(l) != 1)
        return status_set(STATUS_INTERNAL, "backward needs a scalar F32 loss");
    if (t->spent) return status_set(STATUS_INTERNAL, "second backward over one pass");
    t->spent = true;
    if (!loss->wants_grad) return STATUS_OK; /* nothing depends on a parameter */
    Grad g = tape_grad(t, loss);
    TRY(tape_status(t));
    Status s = t->device->k->fill(t->device, g.t, seed);
    if (s == STATUS_OK) s = walk(t, 0, memory_of(loss));
    if (s != STATUS_OK) tape_fail(t, s);
    return s;
}

/* ---- computing again instead of keeping --------------------------------------------------- */

/* Gives back what the Vars from number `first` on still hold; `keep` keeps its value. */
static void give_vars(Tape *t, int64_t first, const Var *keep) {
    for (int64_t i = first; i < t->vars; i++) {
        Var *v = &t->var_chunks[i / CHUNK]->items[i % CHUNK];
        give_grad(t, v);
        if (v != keep) give_value(t, v);
    }
}

/* The block's nodes live behind all others while this runs. */
static Status recompute_backward(Tape *t, Node *n) {
    const int64_t first_node = t->nodes, first_var = t->vars;
    Var *x = n->in[0];
    Var *y = n->u.again.block(n->u.again.user, t, tape_view(t, x, x->value.rank, x->value.shape));
    TRY(tape_status(t));
    if (!y->wants_grad) return STATUS_OK;
    TRY(tape_grad_pass(t, y, n->out));
    TRY(walk(t, first_node, NULL));
    give_vars(t, first_var, NULL);
    t->nodes = first_node;
    t->vars = first_var;
    return STATUS_OK;
}

/* The first run records too, and what it recorded is thrown away: kernels round otherwise when
 * nothing is saved, and both runs must give the same bits. */
Var *tape_recompute(Tape *t, Var *x, TapeBlock block, void *user) {
    if (tape_poison(t)) return tape_poison(t);
    if (!t->recording) return block(user, t, x);
    const int64_t first_node = t->nodes, first_var = t->vars;
    Var *y = block(user, t, tape_view(t, x, x->value.rank, x->value.shape));
    if (tape_poison(t)) return tape_poison(t);
    if (!y->owns_value)
        return tape_fail(t, status_set(STATUS_INTERNAL, "recompute: the block computed nothing"));
    for (int64_t i = first_node; i < t->nodes; i++)
        for (int j = 0; j < NODE_SAVED; j++) tape_give(t, node_at(t, i)->saved[j]);
    give_vars(t, first_var, y);
    t->nodes = first_node;
    if (!y->wants_grad) return y;
    Node *n = take_node(t);
    if (!n) return tape_poison(t);
    n->op = "recompute";
    n->backward = recompute_backward;
    n->in[0] = x;
    n->out = y;
    n->u.again.block = block;
    n->u.again.user = user;
    return y;
}
