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

typedef struct Squares {
    void *a, *b;
    float *p;
} Squares;

static Status squares_take(const Iteration *it, Squares *q) {
    TRY(take(it, it->type, it->r, &q->a));
    TRY(take(it, it->type, it->r, &q->b));
    return take(it, DTYPE_F32, it->r, (void **)&q->p);
}

/* A, and B' = a I + b A + c AA: X' is one product then. */
static Status polynomial(const Iteration *it, const Squares *q, const void *x,
                         const float *triple) {
    TRY(gram(it, q->a, it->type, x, x, false));
    TRY(square(it, q->p, q->a, q->a, triple[2], false));
    return polynomial_add(it, q->b, q->p, q->a, triple[0], triple[1]);
}

Status iterate_blas(const Iteration *it, void *u, DType type, void *x) {
    Squares q;
    void *spare;
    TRY(squares_take(it, &q));
    TRY(take(it, it->type, it->c, &spare));
    for (int k = 0; k < it->s->steps; k++) {
        const bool last = k + 1 == it->s->steps;
        TRY(polynomial(it, &q, x, it->s->triple[k]));
        TRY(product(it, last ? u : spare, last ? type : it->type, q.b, x, false, it->c, it->r, 1.0f,
                    false));
        void *old = x;
        x = spare;
        spare = old;
    }
    return STATUS_OK;
}

/* F32 values as operands: rounded, or themselves. */
static Status operand(const Iteration *it, void *y, float *x, int64_t columns) {
    if (it->type == DTYPE_F32) return STATUS_OK;
    const int64_t count = it->n * it->r * columns;
    return copy_cuda(it->d, grad_set(tensor_1d(y, it->type, count)), tensor_1d(x, DTYPE_F32, count),
                     1.0f);
}

/* next (F32) = the gradient before the step from x. */
static Status step_back(const Iteration *it, const Squares *q, void *h, const void *x,
                        const void *dx, float *next, const float *triple) {
    float *wide = it->type == DTYPE_F32 ? (float *)h : q->p;
    TRY(polynomial(it, q, x, triple));
    TRY(product(it, next, DTYPE_F32, q->b, dx, false, it->c, it->r, 1.0f, false));
    TRY(gram(it, wide, DTYPE_F32, dx, x, false));
    TRY(gram(it, wide, DTYPE_F32, x, dx, true));
    TRY(operand(it, h, wide, it->r));
    TRY(square(it, q->p, h, q->a, triple[2], false));
    TRY(square(it, q->p, q->a, h, triple[2], true));
    TRY(polynomial_add(it, q->b, q->p, h, 0.0f, triple[1])); /* Q in the place of B' */
    return product(it, next, DTYPE_F32, q->b, x, false, it->c, it->r, 1.0f, true);
}

Status iterate_blas_backward(const Iteration *it, float *dx0, void *dx, void *x) {
    Squares q;
    void *h, *kept[NEWTON_SCHULZ_MOST] = {x};
    float *next = dx0;
    const int steps = it->s->steps;
    TRY(squares_take(it, &q));
    TRY(take(it, it->type, it->r, &h));
    for (int k = 0; k + 1 < steps; k++) {
        TRY(take(it, it->type, it->c, &kept[k + 1]));
        TRY(polynomial(it, &q, kept[k], it->s->triple[k]));
        TRY(product(it, kept[k + 1], it->type, q.b, kept[k], false, it->c, it->r, 1.0f, false));
    }
    if (it->type == DTYPE_F32 && steps > 1) TRY(take(it, DTYPE_F32, it->c, (void **)&next));
    for (int k = steps - 1; k >= 0; k--) {
        float *to = k == 0 ? dx0 : next;
        TRY(step_back(it, &q, h, kept[k], dx, to, it->s->triple[k]));
        if (k == 0) break;
        TRY(operand(it, dx, to, it->c));
        if (it->type == DTYPE_F32) {
            next = (float *)dx;
            dx = to;
        }
    }
    return STATUS_OK;
}
