#include "ttt/query_swap.h"

#include <math.h>

#include "core/memory.h"
#include "core/rng.h"

enum { PERMUTATION = 1, NOISE = 2 }; /* streams of a seed */

/* A value of either dtype on the host. */
typedef struct Values {
    void *data;
    DType dtype;
} Values;

static double value_at(Values v, int64_t i) {
    return v.dtype == DTYPE_F32 ? (double)((float *)v.data)[i]
                                : (double)f32_from_bf16(((uint16_t *)v.data)[i]);
}

static void value_set(Values v, int64_t i, double x) {
    if (v.dtype == DTYPE_F32)
        ((float *)v.data)[i] = (float)x;
    else
        ((uint16_t *)v.data)[i] = bf16_from_f32((float)x);
}

/* The row of one token's head: |q| g / |g| of normal numbers g. */
static void make_noise(Values v, int64_t at, int64_t width, Rng *r) {
    const Rng again = *r;
    double own = 0, drawn = 0;
    for (int64_t i = 0; i < width; i++) {
        const double q = value_at(v, at + i), g = rng_normal(r);
        own += q * q;
        drawn += g * g;
    }
    *r = again; /* the same numbers once more: no row is kept */
    const double scale = drawn > 0 ? sqrt(own / drawn) : 0;
    for (int64_t i = 0; i < width; i++) value_set(v, at + i, scale * rng_normal(r));
}

/* All tokens of one sample; `from` [N * heads * width] has the queries as they were. */
static void replace(Values v, int64_t first, int64_t tokens, int64_t row, const QuerySwap *s,
                    QueryPlace p, const int64_t *order, const double *from) {
    const int64_t size = p.heads * p.width;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t at = first + t * row;
        if (s->kind == QUERY_SHUFFLED)
            for (int64_t i = 0; i < size; i++)
                value_set(v, at + p.query + i, from[order[t] * size + i]);
        if (s->kind == QUERY_KEYS)
            for (int64_t i = 0; i < size; i++)
                value_set(v, at + p.query + i, value_at(v, at + p.key + i));
        for (int64_t h = 0; h < p.heads && s->kind == QUERY_NOISE; h++) {
            Rng r = rng_stream(s->seed, NOISE, (uint64_t)(s->layer * 1024 + h), (uint64_t)t);
            make_noise(v, at + p.query + h * p.width, p.width, &r);
        }
    }
}

static Status swap_on_host(Values v, Tensor shape, const QuerySwap *s, QueryPlace p) {
    const int64_t batch = shape.shape[0], n = shape.shape[1], row = shape.shape[2];
    const int64_t size = p.heads * p.width;
    int64_t *order = NULL;
    double *from = NULL;
    Status status = mem_alloc((void **)&order, n, sizeof *order, "an order of tokens");
    if (status == STATUS_OK) status = mem_alloc((void **)&from, n * size, sizeof *from, "queries");
    if (status == STATUS_OK) {
        Rng r = rng_stream(s->seed, PERMUTATION, (uint64_t)s->layer, (uint64_t)n);
        rng_permutation(&r, order, n);
    }
    for (int64_t b = 0; b < batch && status == STATUS_OK; b++) {
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < size; i++)
                from[t * size + i] = value_at(v, (b * n + t) * row + p.query + i);
        replace(v, b * n * row, n, row, s, p, order, from);
    }
    mem_free(order);
    mem_free(from);
    return status;
}

Var *query_swap(Tape *t, Var *packed, const QuerySwap *s, QueryPlace place) {
    if (tape_poison(t)) return tape_poison(t);
    const Tensor x = packed->value;
    if (tape_recording(t))
        return tape_fail(t, status_set(STATUS_USAGE, "replaced queries: in evaluation only"));
    Var *out = tape_output(t, x.dtype, 3, x.shape);
    if (tape_poison(t)) return tape_poison(t);
    Values v = {NULL, x.dtype};
    Status status = mem_alloc(&v.data, tensor_count(x), dtype_size(x.dtype), "queries to replace");
    if (status == STATUS_OK) status = device_pull(tape_device(t), v.data, x);
    if (status == STATUS_OK) status = swap_on_host(v, x, s, place);
    if (status == STATUS_OK) status = device_push(tape_device(t), out->value, v.data);
    mem_free(v.data);
    return status == STATUS_OK ? out : tape_fail(t, status);
}
