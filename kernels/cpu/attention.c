/* Attention within windows (lact_nvs.md 3.2, 5.5): per window, the heads as a batch of products in
 * F32, a block of queries at a time.
 */
#include <math.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vmath.h"

/* Queries at a time: the scores of a block stay in the second-level cache. */
#define QUERIES 256

/* Sizes, and a window's tensors as F32 [heads, l, dh]. */
typedef struct Windows {
    int64_t count, tokens, heads, width; /* width: dh */
    float scale, eps;
    const float *q_w, *k_w; /* NULL: no norm */
    float *q, *k, *v;       /* normed */
    float *q_rate, *k_rate; /* [heads, l]: 1/sqrt(mean + eps) */
    float *scores;          /* [heads, block, l] */
} Windows;

static int64_t block_of(const Windows *w) {
    return min_i64(QUERIES, w->tokens);
}

static Status windows_open(Device *d, Tensor packed, Tensor q_w, Tensor k_w, int64_t heads,
                           float eps, Windows *w) {
    *w = (Windows){.count = packed.shape[0],
                   .tokens = packed.shape[1],
                   .heads = heads,
                   .width = packed.shape[2] / (3 * heads),
                   .eps = eps,
                   .q_w = q_w.data,
                   .k_w = k_w.data};
    w->scale = 1.0f / sqrtf((float)w->width);
    const int64_t rows = heads * w->tokens;
    TRY(scratch_floats(d, rows * w->width, &w->q));
    TRY(scratch_floats(d, rows * w->width, &w->k));
    TRY(scratch_floats(d, rows * w->width, &w->v));
    TRY(scratch_floats(d, rows, &w->q_rate));
    TRY(scratch_floats(d, rows, &w->k_rate));
    return scratch_floats(d, heads * block_of(w) * w->tokens, &w->scores);
}

/* Element of packed where row (head, token) of third 0 (q), 1 (k), 2 (v) begins. */
static int64_t packed_at(const Windows *w, int64_t window, int third, int64_t row) {
    const int64_t head = row / w->tokens, token = row % w->tokens, d = w->heads * w->width;
    return ((window * w->tokens + token) * 3 + third) * d + head * w->width;
}
/* The same in [W,l,d]. */
static int64_t plain_at(const Windows *w, int64_t window, int64_t row) {
    const int64_t head = row / w->tokens, token = row % w->tokens;
    return ((window * w->tokens + token) * w->heads + head) * w->width;
}

static void read_row(const Tensor *t, int64_t at, int64_t n, float *to) {
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t part = min_i64(CHUNK, n - c);
        const float *x = values_read(t, at + c, part, to + c);
        if (x != to + c) memcpy(to + c, x, (size_t)part * sizeof *to);
    }
}

static void norm_row(float *x, const float *weight, int64_t n, float eps, float *rate) {
    const float r = 1.0f / sqrtf(vec_dot(x, x, n) / (float)n + eps);
    *rate = r;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) x[c] *= r * weight[c];
}

static void window_read(const Windows *w, Tensor packed, int64_t window) {
    const int64_t rows = w->heads * w->tokens, n = w->width;
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        read_row(&packed, packed_at(w, window, 0, r), n, w->q + r * n);
        read_row(&packed, packed_at(w, window, 1, r), n, w->k + r * n);
        read_row(&packed, packed_at(w, window, 2, r), n, w->v + r * n);
        if (!w->q_w) continue;
        norm_row(w->q + r * n, w->q_w, n, w->eps, &w->q_rate[r]);
        norm_row(w->k + r * n, w->k_w, n, w->eps, &w->k_rate[r]);
    }
}

/* c (+)= op(a) op(b) of every head; matrices of a head are `stride` elements apart. */
typedef struct Heads {
    float *data;
    int64_t stride;
} Heads;

static Status heads_product(Device *d, const Windows *w, Heads c, bool add, Heads a, bool ta,
                            Heads b, bool tb, int64_t m, int64_t n, int64_t k, float alpha) {
    const Gemm g = {.batch = w->heads,
                    .m = m,
                    .n = n,
                    .k = k,
                    .a = a.data,
                    .b = b.data,
                    .c = c.data,
                    .in = DTYPE_F32,
                    .out = DTYPE_F32,
                    .ta = ta,
                    .tb = tb,
                    .lda = ta ? m : k,
                    .ldb = tb ? k : n,
                    .ldc = n,
                    .stride_a = a.stride,
                    .stride_b = b.stride,
                    .stride_c = c.stride,
                    .alpha = alpha,
                    .add = add};
    return gemm_run(d, &g);
}

static Heads tokens_of(const Windows *w, float *data, int64_t first) {
    return (Heads){data + first * w->width, w->tokens * w->width};
}

/* ---- forward ------------------------------------------------------------------------------ */

/* The row becomes exp(row - its largest value). */
static float exp_row(float *x, int64_t n, float *largest) {
    float top = x[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = exp_value(x[i] - top);
    *largest = top;
    return vec_total(x, n);
}

static Status forward_block(Device *d, const Windows *w, Tensor o, float *lse, float *out,
                            int64_t window, int64_t first) {
    const int64_t block = block_of(w), n = min_i64(block, w->tokens - first), dh = w->width;
    const Heads scores = {w->scores, n * w->tokens}, result = {out, n * dh};
    TRY(heads_product(d, w, scores, false, tokens_of(w, w->q, first), false, tokens_of(w, w->k, 0),
                      true, n, w->tokens, dh, w->scale));
#pragma omp parallel for schedule(static) if (w->heads * n * w->tokens >= PARALLEL_MIN)
    for (int64_t r = 0; r < w->heads * n; r++) {
        float *row = w->scores + r * w->tokens, top;
        const float sum = exp_row(row, w->tokens, &top), inverse = 1.0f / sum;
#pragma omp simd
        for (int64_t i = 0; i < w->tokens; i++) row[i] *= inverse;
        if (lse) lse[(window * w->heads + r / n) * w->tokens + first + r % n] = top + logf(sum);
    }
    TRY(heads_product(d, w, result, false, scores, false, tokens_of(w, w->v, 0), false, n, dh,
                      w->tokens, 1));
    const Grad to = grad_set(o);
#pragma omp parallel for schedule(static) if (w->heads * n * dh >= PARALLEL_MIN)
    for (int64_t r = 0; r < w->heads * n; r++)
        values_write(&to, plain_at(w, window, r / n * w->tokens + first + r % n), dh, out + r * dh);
    return STATUS_OK;
}

static Status forward(Device *d, Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w,
                      int64_t heads, float eps) {
    Windows w;
    float *out;
    TRY(windows_open(d, packed, q_w, k_w, heads, eps, &w));
    TRY(scratch_floats(d, heads * block_of(&w) * w.width, &out));
    for (int64_t window = 0; window < w.count; window++) {
        window_read(&w, packed, window);
        for (int64_t first = 0; first < w.tokens; first += QUERIES)
            TRY(forward_block(d, &w, o, lse.data, out, window, first));
    }
    return STATUS_OK;
}

Status attention_cpu(Device *d, Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w,
                     int64_t heads, float eps) {
    if (!act_dtype(packed.dtype) || o.dtype != packed.dtype)
        return refuse_dtype("attention", packed.dtype);
    return scratch_done(d, forward(d, o, lse, packed, q_w, k_w, heads, eps));
}

/* ---- backward ----------------------------------------------------------------------------- */

/* Of one window, [heads, l, dh], and sums over all windows of the weights' gradients by head. */
typedef struct Gradients {
    float *q, *k, *v, *out; /* out: the incoming gradient */
    float *delta;           /* [heads, l]: sum of out o */
    float *scores;          /* like Windows.scores: dP, then dS */
    float *weights;         /* [heads, 2, dh] */
} Gradients;

static Status gradients_open(Device *d, const Windows *w, Gradients *g) {
    const int64_t rows = w->heads * w->tokens, each = rows * w->width;
    TRY(scratch_floats(d, each, &g->q));
    TRY(scratch_floats(d, each, &g->k));
    TRY(scratch_floats(d, each, &g->v));
    TRY(scratch_floats(d, each, &g->out));
    TRY(scratch_floats(d, rows, &g->delta));
    TRY(scratch_floats(d, w->heads * block_of(w) * w->tokens, &g->scores));
    TRY(scratch_floats(d, w->heads * 2 * w->width, &g->weights));
    memset(g->weights, 0, (size_t)(w->heads * 2 * w->width) * sizeof(float));
    return STATUS_OK;
}

static void gradients_read(const Windows *w, Gradients *g, Tensor dout, Tensor o, int64_t window) {
    const int64_t rows = w->heads * w->tokens, n = w->width;
#pragma omp parallel for schedule(static) if (rows * n >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        float o_buffer[CHUNK], sum = 0;
        const int64_t at = plain_at(w, window, r);
        read_row(&dout, at, n, g->out + r * n);
        for (int64_t c = 0; c < n; c += CHUNK) {
            const int64_t part = min_i64(CHUNK, n - c);
            sum += vec_dot(g->out + r * n + c, values_read(&o, at + c, part, o_buffer), part);
        }
        g->delta[r] = sum;
    }
}

/* P = exp(S - lse), dS = P (dP - delta) / sqrt(dh) of a block of queries. */
static Status backward_block(Device *d, const Windows *w, Gradients *g, const float *lse,
                             int64_t window, int64_t first) {
    const int64_t n = min_i64(block_of(w), w->tokens - first), l = w->tokens, dh = w->width;
    const Heads p = {w->scores, n * l}, ds = {g->scores, n * l};
    const Heads q = tokens_of(w, w->q, first), k = tokens_of(w, w->k, 0);
    const Heads dout = tokens_of(w, g->out, first);
    TRY(heads_product(d, w, p, false, q, false, k, true, n, l, dh, w->scale));
    TRY(heads_product(d, w, ds, false, dout, false, tokens_of(w, w->v, 0), true, n, l, dh, 1));
#pragma omp parallel for schedule(static) if (w->heads * n * l >= PARALLEL_MIN)
    for (int64_t r = 0; r < w->heads * n; r++) {
        const int64_t row = r / n * l + first + r % n;
        const float shift = lse[window * w->heads * l + row], delta = g->delta[row];
        float *x = w->scores + r * l, *y = g->scores + r * l;
#pragma omp simd
        for (int64_t i = 0; i < l; i++) {
            x[i] = exp_value(x[i] - shift);
            y[i] = w->scale * x[i] * (y[i] - delta);
        }
    }
    const bool add = first > 0;
    TRY(heads_product(d, w, tokens_of(w, g->v, 0), add, p, true, dout, false, l, dh, n, 1));
    TRY(heads_product(d, w, tokens_of(w, g->k, 0), add, ds, true, q, false, l, dh, n, 1));
    return heads_product(d, w, tokens_of(w, g->q, first), false, ds, false, k, false, n, dh, l, 1);
}

/* g, the gradient of y = weight x rate, becomes that of x; dweight += g x rate. */
static void norm_row_backward(float *g, const float *y, const float *weight, float rate, int64_t n,
                              const float *x, float *dweight) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++) sum += g[c] * y[c];
    const float mean = sum / (float)n * rate * rate;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) {
        dweight[c] += g[c] * x[c] * rate;
        g[c] = rate * weight[c] * g[c] - x[c] * mean;
    }
}

static void gradients_write(const Windows *w, Gradients *g, Tensor dpacked, Tensor packed,
                            int64_t window) {
    const int64_t n = w->width;
    const Grad to = grad_set(dpacked);
#pragma omp parallel for schedule(static) if (w->heads * w->tokens * n >= PARALLEL_MIN)
    for (int64_t head = 0; head < w->heads; head++) {
        float *dq_w = g->weights + head * 2 * n, *dk_w = dq_w + n;
        for (int64_t r = head * w->tokens; r < (head + 1) * w->tokens; r++) {
            float *q = g->q + r * n, *k = g->k + r * n;
            if (w->q_w) { /* `out` has room for the raw row now */
                float *x = g->out + r * n;
                read_row(&packed, packed_at(w, window, 0, r), n, x);
                norm_row_backward(q, w->q + r * n, w->q_w, w->q_rate[r], n, x, dq_w);
                read_row(&packed, packed_at(w, window, 1, r), n, x);
                norm_row_backward(k, w->k + r * n, w->k_w, w->k_rate[r], n, x, dk_w);
            }
            values_write(&to, packed_at(w, window, 0, r), n, q);
            values_write(&to, packed_at(w, window, 1, r), n, k);
            values_write(&to, packed_at(w, window, 2, r), n, g->v + r * n);
        }
    }
}

/* dw (+)= the sum over heads. */
static void sum_heads(Grad dw, const float *parts, int64_t heads, int64_t n) {
    if (!dw.t.data) return;
    for (int64_t c = 0; c < n; c++) {
        float sum = 0;
        for (int64_t h = 0; h < heads; h++) sum += parts[h * 2 * n + c];
        values_write(&dw, c, 1, &sum);
    }
}

static Status backward(Device *d, Tensor dpacked, Grad dq_w, Grad dk_w, Tensor dout, Tensor o,
                       Tensor lse, Tensor packed, Tensor q_w, Tensor k_w, int64_t heads,
                       float eps) {
    Windows w;
    Gradients g;
    TRY(windows_open(d, packed, q_w, k_w, heads, eps, &w));
    TRY(gradients_open(d, &w, &g));
    for (int64_t window = 0; window < w.count; window++) {
        window_read(&w, packed, window);
        gradients_read(&w, &g, dout, o, window);
        for (int64_t first = 0; first < w.tokens; first += QUERIES)
            TRY(backward_block(d, &w, &g, lse.data, window, first));
        gradients_write(&w, &g, dpacked, packed, window);
    }
    sum_heads(dq_w, g.weights, heads, w.width);
    sum_heads(dk_w, g.weights + w.width, heads, w.width);
    return STATUS_OK;
}

Status attention_backward_cpu(Device *d, Tensor dpacked, Grad dq_w, Grad dk_w, Tensor dout,
                              Tensor o, Tensor lse, Tensor packed, Tensor q_w, Tensor k_w,
                              int64_t heads, float eps) {
    if (!act_dtype(packed.dtype) || dpacked.dtype != packed.dtype || dout.dtype != packed.dtype)
        return refuse_dtype("attention_backward", packed.dtype);
    return scratch_done(
        d, backward(d, dpacked, dq_w, dk_w, dout, o, lse, packed, q_w, k_w, heads, eps));
}
