/* The step of the LaCT layer's fast weights, W' = weight norm of W + sign U (lact_nvs.md 4, 5.2),
 * laid out for the reading products. */
#include "nn/ops.h"
#include "nn/ops_check.h"

/* Which third of u and of the outputs belongs to a weight. */
typedef struct StepPart {
    Tensor u, y, stats;
    int64_t at; /* first column in y */
} StepPart;

typedef struct StepSizes {
    int64_t each, heads, e, h; /* each = B*H matrices */
    bool gates, joined;
} StepSizes;

static Tensor third(Tensor x, int64_t first, int64_t each, int64_t r, int64_t c) {
    if (tensor_is_none(x)) return x;
    char *data = (char *)x.data + (size_t)(first * each * r * c) * dtype_size(x.dtype);
    return tensor_3d(data, x.dtype, each, r, c);
}

/* Weight j: 0, 2 in the gates, 1 in back. `u`, `stats` and the like may be none. */
static StepPart part_of(const StepSizes *s, int j, const Tensor u[2], const Tensor y[2],
                        Tensor stats) {
    const bool back = j == 1;
    const int64_t r = back ? s->h : s->e, c = back ? s->e : s->h;
    StepPart p = {.at = j == 2 ? s->h : 0};
    p.y = third(y[back], 0, s->each, r, back ? c : 2 * c);
    const Tensor from = back && !s->joined ? u[1] : u[0];
    p.u = third(from, back ? (s->joined ? 2 : 0) : j / 2, s->each, r, c);
    /* stats of W0, W2, W1 one behind the other */
    const int64_t skip = back ? (s->gates ? 2 * s->h : 0) : j / 2 * s->h;
    p.stats = stats;
    if (!tensor_is_none(stats))
        p.stats = tensor_3d((float *)stats.data + 2 * s->each * skip, DTYPE_F32, s->each, c, 2);
    return p;
}

static StepSizes step_sizes(Var *const *w, Tensor back, bool gates) {
    const int64_t *s = w[0]->value.shape;
    return (StepSizes){back.shape[0] * s[0], s[0], s[1], s[2], gates, gates && s[1] == s[2]};
}

/* in: w0, w1, w2, u.gates, u.back; f: sign, offset; i[0]: whether W0 and W2 are written */
static Status step_backward(Tape *t, Node *n) {
    Device *d = tape_device(t);
    const bool gates = n->i[0];
    Var *back = n->out, *front = n->more[0];
    const StepSizes s = step_sizes(n->in, back->value, gates);
    const Tensor y[2] = {op_value(front), back->value};
    Tensor dy[2] = {tensor_none(), tensor_none()};
    TRY(tape_grad_of(t, back, &dy[1]));
    if (gates) TRY(tape_grad_of(t, front, &dy[0]));
    const Grad du[2] = {tape_grad(t, n->in[3]), tape_grad(t, n->in[4])};
    const Tensor to[2] = {du[0].t, du[1].t};
    WeightSlope parts[WEIGHT_PARTS];
    int count = 0;
    for (int j = 0; j < 3; j++) {
        if (j != 1 && !gates) continue;
        const StepPart value = part_of(&s, j, to, y, n->saved[0]);
        const StepPart slope = part_of(&s, j, to, dy, n->saved[0]);
        const bool add = j == 1 && !s.joined ? du[1].add : du[0].add;
        parts[count++] = (WeightSlope){
            (Grad){value.u, add}, tape_grad(t, n->in[j]), slope.y, value.at, value.y, value.stats};
    }
    return d->k->weight_step_backward(d, count, parts, n->u.f[0]);
}

static bool has_shape(const Var *v, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t *s = v->value.shape;
    return v->value.rank == 4 && op_is_act(v->value.dtype) && s[0] == a && s[1] == b && s[2] == c &&
           s[3] == d;
}

/* u against w; *batch from whichever is there. */
static bool step_fits(LactGradients u, Var *const *w, int64_t *batch) {
    for (int j = 0; j < 3; j++)
        if (w[j]->value.rank != 3 || w[j]->value.dtype != DTYPE_F32) return false;
    const int64_t *s = w[0]->value.shape, *b = w[1]->value.shape;
    if (!tensor_same_shape(w[0]->value, w[2]->value) || b[0] != s[0] || b[1] != s[2] ||
        b[2] != s[1])
        return false;
    const int64_t parts = u.back ? 2 : 3;
    if (!u.back && s[1] != s[2]) return false;
    *batch = u.back ? u.back->value.shape[0] : u.gates->value.shape[0] / parts;
    return (!u.back || has_shape(u.back, *batch, s[0], s[2], s[1])) &&
           (!u.gates || has_shape(u.gates, parts * *batch, s[0], s[1], s[2]));
}

static Status take_stats(Tape *t, const StepSizes *s, Tensor *stats) {
    const int64_t columns = s->e + (s->gates ? 2 * s->h : 0);
    return tape_take(t, DTYPE_F32, 2, (int64_t[]){s->each * columns, 2}, stats);
}

static Status step_forward(Tape *t, const StepSizes *s, Var *const *w, const Tensor u[2],
                           const Tensor y[2], Tensor stats, float sign, float offset) {
    WeightStep parts[WEIGHT_PARTS];
    int count = 0;
    for (int j = 0; j < 3; j++) {
        if (j != 1 && !s->gates) continue;
        const StepPart p = part_of(s, j, u, y, stats);
        parts[count++] = (WeightStep){p.y, p.at, p.stats, p.u, w[j]->value};
    }
    return op_kernels(t)->weight_step(tape_device(t), count, parts, sign, offset);
}

static LactWeights no_weights(Tape *t) {
    return (LactWeights){tape_poison(t), tape_poison(t)};
}

LactWeights op_lact_step(Tape *t, LactGradients u, Var *const w[3], float sign, float offset,
                         DType dtype) {
    Var *in[] = {w[0], w[1], w[2], u.gates, u.back};
    Var *present = u.back ? u.back : u.gates;
    Var *needed[] = {w[0], w[1], w[2], present, u.gates ? u.gates : present};
    int64_t batch = 0;
    if (!op_ready(t, "lact_step", 5, needed)) return no_weights(t);
    if (!step_fits(u, w, &batch)) {
        op_refuse(t, "lact_step", 5, in, "F32 w0 and w2 [H, e, h], w1 [H, h, e], and steps alike");
        return no_weights(t);
    }
    const int64_t *shape = w[0]->value.shape;
    LactWeights y = {0};
    y.back = tape_output(t, dtype, 4, (int64_t[]){batch, shape[0], shape[2], shape[1]});
    y.gates = u.gates
                  ? tape_output(t, dtype, 4, (int64_t[]){batch, shape[0], shape[1], 2 * shape[2]})
                  : op_side_by_side(t, w[0], w[2], dtype);
    if (tape_poison(t)) return no_weights(t);
    const StepSizes s = step_sizes(w, y.back->value, u.gates != NULL);
    const Tensor from[2] = {op_value(u.gates), op_value(u.back)};
    const Tensor to[2] = {u.gates ? y.gates->value : tensor_none(), y.back->value};
    Tensor stats = tensor_none();
    Status status = STATUS_OK;
    if (offset > 0.0f && tape_will_record(t, 5, in)) status = take_stats(t, &s, &stats);
    if (status == STATUS_OK) status = step_forward(t, &s, w, from, to, stats, sign, offset);
    Node *n =
        status == STATUS_OK ? tape_record(t, "lact_step", step_backward, y.back, 5, in) : NULL;
    if (n) {
        n->saved[0] = stats;
        n->u.f[0] = sign;
        n->i[0] = u.gates != NULL;
        if (u.gates) tape_record_more(n, y.gates);
    }
    return op_done(t, "lact_step", status, y.back) == y.back ? y : no_weights(t);
}

void op_lact_step_to(Tape *t, LactGradients u, Var *const w[3], float sign, float offset,
                     LactWeights to) {
    Var *present = u.back ? u.back : u.gates;
    Var *in[] = {w[0], w[1], w[2], u.gates ? u.gates : present, present, to.gates, to.back};
    int64_t batch = 0;
    if (!op_ready(t, "lact_step", 7, in)) return;
    const int64_t *s = w[0]->value.shape;
    if (tape_recording(t) || !u.gates || !step_fits(u, w, &batch) ||
        !has_shape(to.gates, batch, s[0], s[1], 2 * s[2]) ||
        !has_shape(to.back, batch, s[0], s[2], s[1]) ||
        to.gates->value.dtype != to.back->value.dtype) {
        op_refuse(t, "lact_step", 7, in,
                  "F32 w0 and w2 [H, e, h], w1 [H, h, e], steps and results alike, a tape that "
                  "does not record");
        return;
    }
    const StepSizes sizes = step_sizes(w, to.back->value, true);
    const Tensor from[2] = {u.gates->value, op_value(u.back)};
    const Tensor y[2] = {to.gates->value, to.back->value};
    const Status status = step_forward(t, &sizes, w, from, y, tensor_none(), sign, offset);
    op_done(t, "lact_step", status, to.back);
}
