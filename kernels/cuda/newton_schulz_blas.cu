/* Newton-Schulz with batched products of cuBLASLt: any size, F32, TF32 or BF16. */
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/newton_schulz.cuh"

/* c[n,rows,columns] (+)= alpha op(a) op(b); depth: of the sums. */
static Status product(const Iteration *it, void *c, DType out, const void *a, const void *b,
                      bool turned_b, int64_t columns, int64_t depth, float alpha, bool add) {
    GemmCall g = gemm_call(it->r, columns, depth, a, false, b, turned_b, c, it->type, out, add);
    g.batch = it->n;
    g.step_a = it->r * depth;
    g.step_b = depth * columns;
    g.step_c = it->r * columns;
    g.alpha = alpha;
    return gemm_run(it->d, &g);
}

/* s (+)= x y' */
static Status gram(const Iteration *it, void *s, DType out, const void *x, const void *y,
                   bool add) {
    return product(it, s, out, x, y, true, it->r, it->c, 1.0f, add);
}

/* p (+)= alpha s t of symmetric matrices, F32. */
static Status square(const Iteration *it, float *p, const void *s, const void *t, float alpha,
                     bool add) {
    return product(it, p, DTYPE_F32, s, t, false, it->r, it->r, alpha, add);
}

static Status take(const Iteration *it, DType type, int64_t columns, void **out) {
    return scratch_take(it->d, dtype_size(type) * it->n * it->r * columns, out);
}

/* What a product reads in the place of x: x itself, or x rounded, in `room`. */
static Status operand(const Iteration *it, const float *x, int64_t columns, void *room,
                      const void **out) {
    *out = it->type == DTYPE_F32 ? (const void *)x : room;
    if (it->type == DTYPE_F32) return STATUS_OK;
    const int64_t count = it->n * it->r * columns;
    return copy_cuda(it->d, grad_set(tensor_1d(room, it->type, count)),
                     tensor_1d((void *)x, DTYPE_F32, count), 1.0f);
}

typedef struct Work {
    void *a, *b, *h; /* of the iteration's type */
    float *p;
    void *room; /* of an operand; unused in F32 */
} Work;

static Status work_take(const Iteration *it, Work *w) {
    TRY(take(it, it->type, it->r, &w->a));
    TRY(take(it, it->type, it->r, &w->b));
    TRY(take(it, DTYPE_F32, it->r, (void **)&w->p));
    w->room = NULL;
    return it->type == DTYPE_F32 ? STATUS_OK : take(it, it->type, it->c, &w->room);
}

/* A, and B = bA + cAA. */
static Status polynomial(const Iteration *it, const Work *w, const void *x, const float *triple) {
    TRY(gram(it, w->a, it->type, x, x, false));
    TRY(square(it, w->p, w->a, w->a, triple[2], false));
    return polynomial_add(it, w->b, w->p, w->a, triple[1]);
}

/* y = a x + B o, F32, o being the operand of x. */
static Status bend(const Iteration *it, const Work *w, float *y, const float *x, const void *o,
                   float a) {
    const int64_t count = it->n * it->r * it->c;
    TRY(copy_cuda(it->d, grad_set(tensor_1d(y, DTYPE_F32, count)),
                  tensor_1d((void *)x, DTYPE_F32, count), a));
    return product(it, y, DTYPE_F32, w->b, o, false, it->c, it->r, 1.0f, true);
}

Status iterate_blas(const Iteration *it, float *u, float *x) {
    Work w;
    float *spare;
    const void *o;
    TRY(work_take(it, &w));
    TRY(take(it, DTYPE_F32, it->c, (void **)&spare));
    for (int k = 0; k < it->s->steps; k++) {
        float *next = k + 1 == it->s->steps ? u : spare;
        TRY(operand(it, x, it->c, w.room, &o));
        TRY(polynomial(it, &w, o, it->s->triple[k]));
        TRY(bend(it, &w, next, x, o, it->s->triple[k][0]));
        spare = x;
        x = next;
    }
    return STATUS_OK;
}

/* next = the gradient before the step from the operand x. */
static Status step_back(const Iteration *it, const Work *w, const void *x, const float *dx,
                        float *next, const float *triple) {
    const void *o, *h;
    TRY(operand(it, dx, it->c, w->room, &o));
    TRY(polynomial(it, w, x, triple));
    TRY(bend(it, w, next, dx, o, triple[0]));
    float *wide = it->type == DTYPE_F32 ? (float *)w->h : w->p;
    TRY(gram(it, wide, DTYPE_F32, o, x, false));
    TRY(gram(it, wide, DTYPE_F32, x, o, true));
    TRY(operand(it, wide, it->r, w->h, &h));
    TRY(square(it, w->p, h, w->a, triple[2], false));
    TRY(square(it, w->p, w->a, h, triple[2], true));
    TRY(polynomial_add(it, w->b, w->p, h, triple[1])); /* Q in the place of B */
    return product(it, next, DTYPE_F32, w->b, x, false, it->c, it->r, 1.0f, true);
}

/* Operands of all X; in F32 they are the X. u (or NULL) = the last X, which is nobody's operand. */
static Status recompute(const Iteration *it, const Work *w, float *u, float *x, const void **kept) {
    float *next, *spare = NULL;
    void *room = NULL;
    for (int k = 0; k < it->s->steps; k++) {
        if (it->type != DTYPE_F32) TRY(take(it, it->type, it->c, &room));
        TRY(operand(it, x, it->c, room, &kept[k]));
        const bool last = k + 1 == it->s->steps;
        if (last && !u) break;
        next = last ? u : spare;
        if (!next) TRY(take(it, DTYPE_F32, it->c, (void **)&next));
        TRY(polynomial(it, w, kept[k], it->s->triple[k]));
        TRY(bend(it, w, next, x, kept[k], it->s->triple[k][0]));
        spare = it->type == DTYPE_F32 ? NULL : x;
        x = next;
    }
    return STATUS_OK;
}

Status iterate_blas_backward(const Iteration *it, float *dx0, float *u, float *dx, float *x) {
    Work w;
    const void *kept[NEWTON_SCHULZ_MOST];
    float *spare;
    TRY(work_take(it, &w));
    TRY(take(it, it->type, it->r, &w.h));
    TRY(take(it, DTYPE_F32, it->c, (void **)&spare));
    TRY(recompute(it, &w, u, x, kept));
    for (int k = it->s->steps - 1; k >= 0; k--) {
        float *next = k == 0 ? dx0 : spare;
        TRY(step_back(it, &w, kept[k], dx, next, it->s->triple[k]));
        spare = dx;
        dx = next;
    }
    return STATUS_OK;
}
