/* Blocks of LaCT-NVS that only read (lact_nvs.md 3.2 to 3.4), as one slot. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op_case.h"

#define NORM_EPS    1e-5
#define HEAD_EPS    1.1920929e-7
#define UNIT_OFFSET 1e-5
#define OUT_EPS     1e-5
#define BLOCKS      2
#define COLOURS     24

/* p: samples, tokens of each, window, width, attention heads, fast heads, h, hidden MLP values. */
typedef struct View {
    Run *r;
    int64_t samples, tokens, window, width, heads, fast, h, hidden;
    int64_t rows, e; /* of all tokens; width of a fast head */
    Tensor x, norms, head_norms, out_norm, qkv, proj, query, gates, back, out, fc, fc_out;
    Tensor end_norm, colours_w, colours; /* of cases with one sample */
} View;

static double near_one(int64_t i, void *user) {
    (void)i;
    return 0.5 + random_uniform(user);
}

/* Matrix [n,k] whose products with unit values are of size `gain`. */
static Tensor weights(View *v, const char *name, int64_t n, int64_t k, double gain) {
    return input(v->r, name, v->r->act, SHAPE(n, k), gain / sqrt((double)k));
}

static View view_new(Run *r) {
    const int64_t *p = r->p;
    View v = {.r = r,
              .samples = p[0],
              .tokens = p[1],
              .window = p[2],
              .width = p[3],
              .heads = p[4],
              .fast = p[5],
              .h = p[6],
              .hidden = p[7]};
    const int64_t d = v.width;
    v.rows = v.samples * v.tokens;
    v.e = d / v.fast;
    v.x = in_place(r, "x", r->act, SHAPE(v.samples, v.tokens, d), 1.0);
    v.norms = input_of(r, "norms", DTYPE_F32, SHAPE(3, d), near_one, r);
    v.head_norms = input_of(r, "head norms", DTYPE_F32, SHAPE(2, d / v.heads), near_one, r);
    v.out_norm = input_of(r, "o_norm", DTYPE_F32, SHAPE(v.e), near_one, r);
    v.qkv = weights(&v, "qkv", 3 * d, d, 1);
    v.proj = weights(&v, "proj", d, d, 0.5);
    v.query = weights(&v, "query", d, d, 1);
    v.gates = input(r, "gates", r->act, SHAPE(v.samples, v.fast, v.e, 2 * v.h), 2);
    v.back = input(r, "back", r->act, SHAPE(v.samples, v.fast, v.h, v.e), 0.1);
    v.out = weights(&v, "out", d, d, 0.5);
    v.fc = weights(&v, "fc", v.hidden, d, 1);
    v.fc_out = weights(&v, "fc out", d, v.hidden, 0.5);
    if (v.samples > 1) return v;
    r->coarse = r->act == DTYPE_BF16;
    v.end_norm = input_of(r, "end norm", DTYPE_F32, SHAPE(d), near_one, r);
    v.colours_w = weights(&v, "colours", COLOURS, d, 1);
    v.colours = output(r, "rgb", DTYPE_F32, SHAPE(v.rows, COLOURS));
    return v;
}

/* ---- in doubles ---------------------------------------------------------------------------- */

static double *numbers(int64_t n) {
    double *x = calloc((size_t)n, sizeof(double));
    if (!x) abort();
    return x;
}

/* y[rows,n] (+)= x[rows,k] w[n,k]' */
static void product(double *y, const double *x, const double *w, int64_t rows, int64_t n, int64_t k,
                    bool add) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = add ? y[i * n + j] : 0;
            for (int64_t c = 0; c < k; c++) sum += x[i * k + c] * w[j * k + c];
            y[i * n + j] = sum;
        }
}

static void layer_norm(double *y, const double *x, const double *w, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) {
        const double *in = x + i * width;
        double mean = 0, square = 0;
        for (int64_t c = 0; c < width; c++) mean += in[c] / (double)width;
        for (int64_t c = 0; c < width; c++) square += (in[c] - mean) * (in[c] - mean);
        const double rate = 1 / sqrt(square / (double)width + NORM_EPS);
        for (int64_t c = 0; c < width; c++) y[i * width + c] = (in[c] - mean) * rate * w[c];
    }
}

static void rms_norm(double *x, const double *w, int64_t width, double eps) {
    double square = 0;
    for (int64_t c = 0; c < width; c++) square += x[c] * x[c] / (double)width;
    for (int64_t c = 0; c < width; c++) x[c] *= w[c] / sqrt(square + eps);
}

/* One query of one head against the keys of its window. */
static void attend_one(const View *v, double *o, const double *packed, int64_t row, int64_t head) {
    const int64_t d = v->width, dh = d / v->heads, first = row / v->window * v->window;
    const double *q = packed + row * 3 * d + head * dh;
    double *p = numbers(v->window), top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < v->window; j++) {
        const double *k = packed + (first + j) * 3 * d + d + head * dh;
        for (int64_t c = 0; c < dh; c++) p[j] += q[c] * k[c] / sqrt((double)dh);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < v->window; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t j = 0; j < v->window; j++) {
        const double *value = packed + (first + j) * 3 * d + 2 * d + head * dh;
        for (int64_t c = 0; c < dh; c++) o[row * d + head * dh + c] += p[j] / sum * value[c];
    }
    free(p);
}

static void attend(const View *v, double *x, double *u) {
    const int64_t d = v->width, dh = d / v->heads;
    double *packed = numbers(3 * v->rows * d), *o = numbers(v->rows * d);
    layer_norm(u, x, values(v->r, v->norms), v->rows, d);
    product(packed, u, values(v->r, v->qkv), v->rows, 3 * d, d, false);
    for (int64_t i = 0; i < v->rows; i++)
        for (int64_t part = 0; part < 2 * v->heads; part++)
            rms_norm(packed + i * 3 * d + part * dh,
                     values(v->r, v->head_norms) + part / v->heads * dh, dh, HEAD_EPS);
    for (int64_t i = 0; i < v->rows; i++)
        for (int64_t head = 0; head < v->heads; head++) attend_one(v, o, packed, i, head);
    product(x, o, values(v->r, v->proj), v->rows, d, d, true);
    free(o);
    free(packed);
}

/* q [e] of one token and head to o_norm(f(q)), in its place. */
static void read_one(const View *v, double *q, const double *gates, const double *back) {
    double *ab = numbers(2 * v->h), square = 0;
    for (int64_t c = 0; c < v->e; c++) {
        q[c] *= sigma(q[c]);
        square += q[c] * q[c];
    }
    for (int64_t c = 0; c < v->e; c++) q[c] /= sqrt(square) + UNIT_OFFSET;
    for (int64_t c = 0; c < v->e; c++)
        for (int64_t j = 0; j < 2 * v->h; j++) ab[j] += q[c] * gates[c * 2 * v->h + j];
    memset(q, 0, sizeof(double) * (size_t)v->e);
    for (int64_t j = 0; j < v->h; j++)
        for (int64_t c = 0; c < v->e; c++)
            q[c] += ab[j] * sigma(ab[j]) * ab[v->h + j] * back[j * v->e + c];
    rms_norm(q, values(v->r, v->out_norm), v->e, OUT_EPS);
    free(ab);
}

static void read(const View *v, double *x, double *u) {
    const int64_t d = v->width;
    double *q = numbers(v->rows * d);
    layer_norm(u, x, values(v->r, v->norms) + d, v->rows, d);
    product(q, u, values(v->r, v->query), v->rows, d, d, false);
    for (int64_t i = 0; i < v->rows; i++)
        for (int64_t head = 0; head < v->fast; head++) {
            const int64_t at = i / v->tokens * v->fast + head;
            read_one(v, q + i * d + head * v->e, values(v->r, v->gates) + at * v->e * 2 * v->h,
                     values(v->r, v->back) + at * v->h * v->e);
        }
    product(x, q, values(v->r, v->out), v->rows, d, d, true);
    free(q);
}

static void feed_forward(const View *v, double *x, double *u) {
    double *hidden = numbers(v->rows * v->hidden);
    layer_norm(u, x, values(v->r, v->norms) + 2 * v->width, v->rows, v->width);
    product(hidden, u, values(v->r, v->fc), v->rows, v->hidden, v->width, false);
    for (int64_t i = 0; i < v->rows * v->hidden; i++)
        hidden[i] = unary_reference(UNARY_GELU, hidden[i]);
    product(x, hidden, values(v->r, v->fc_out), v->rows, v->width, v->hidden, true);
    free(hidden);
}

static void colours(const View *v, double *rgb, const double *x, double *u) {
    layer_norm(u, x, values(v->r, v->end_norm), v->rows, v->width);
    product(rgb, u, values(v->r, v->colours_w), v->rows, COLOURS, v->width, false);
    for (int64_t i = 0; i < v->rows * COLOURS; i++) rgb[i] = sigma(rgb[i]);
}

/* ---- the slot ------------------------------------------------------------------------------ */

static Tensor memory(View *v, DType dtype, int64_t rows, int64_t columns) {
    Tensor t;
    if (arena_tensor(&v->r->device->step, dtype, 2, (int64_t[]){rows, columns}, &t) != STATUS_OK)
        abort();
    return t;
}

static Tensor row_of(Tensor x, int64_t i) {
    return tensor_1d((float *)x.data + i * x.shape[1], DTYPE_F32, x.shape[1]);
}

static void view_blocks_body(Run *r) {
    View v = view_new(r);
    const int64_t d = v.width, wide = 3 * d + 3 * v.fast * v.h + v.hidden + COLOURS;
    ViewBlock b = {.q_norm_w = row_of(v.head_norms, 0),
                   .k_norm_w = row_of(v.head_norms, 1),
                   .qkv_w = v.qkv,
                   .proj_w = v.proj,
                   .query_w = v.query,
                   .gates = v.gates,
                   .back = v.back,
                   .out_norm_w = v.out_norm,
                   .out_w = v.out,
                   .fc_w = v.fc,
                   .fc_out_w = v.fc_out};
    for (int i = 0; i < 3; i++) b.norm_w[i] = row_of(v.norms, i);
    ViewForm f = {.heads = v.heads,
                  .window = v.window,
                  .norm_eps = (float)NORM_EPS,
                  .head_eps = (float)HEAD_EPS,
                  .unit_offset = (float)UNIT_OFFSET,
                  .out_eps = (float)OUT_EPS};
    f.u = memory(&v, r->act, v.rows, d);
    f.o = memory(&v, r->act, v.rows, d);
    f.wide = memory(&v, r->act, v.rows, wide);
    f.zeros = tensor_view(memory(&v, DTYPE_F32, 1, d), 1, &d);
    if (v.samples == 1) f.end_norm_w = v.end_norm, f.colours_w = v.colours_w, f.colours = v.colours;
    if (r->k->zero(r->device, f.zeros) != STATUS_OK) abort();
    const ViewBlock blocks[BLOCKS] = {b, b};
    CALL(r, view_blocks, v.x, BLOCKS, blocks, &f);
    if (!r->reference) return;
    double *x = expected(r, v.x), *u = numbers(v.rows * d);
    memcpy(x, values(r, v.x), sizeof(double) * (size_t)(v.rows * d));
    for (int i = 0; i < BLOCKS; i++) {
        attend(&v, x, u);
        read(&v, x, u);
        feed_forward(&v, x, u);
    }
    if (v.samples == 1) colours(&v, expected(r, v.colours), x, u);
    free(u);
}

/* One sample, one fast head and sizes that are multiples of 64 are what CUDA has kernels for. */
const OpCase cases_view[] = {
    {"view_blocks", view_blocks_body, {1, 6, 3, 8, 2, 1, 8, 12}, IN_BOTH, 8},
    {"view_blocks", view_blocks_body, {2, 8, 4, 12, 3, 2, 5, 20}, IN_BOTH, 8},
    {"view_blocks", view_blocks_body, {1, 70, 35, 64, 1, 1, 64, 200}, IN_BOTH, 8},
    {"view_blocks", view_blocks_body, {1, 130, 65, 192, 3, 1, 128, 384}, IN_BOTH, 8},
    {"view_blocks", view_blocks_body, {1, 200, 200, 384, 6, 1, 384, 768}, IN_BF16, 8},
    {"view_blocks", view_blocks_body, {1, 132, 132, 768, 12, 1, 768, 3072}, IN_BF16, 8},
    {0},
};
