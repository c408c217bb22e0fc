/* The slots of LaCT over chunks (fastweight.md 4.1, 4.4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op_case.h"

/* ---- gated products ---- */

/* p: B, H, n, e, h, B of the weights; p[6]: 1 without rates. */
static void gate_product_body(Run *r) {
    const int64_t b = r->p[0], heads = r->p[1], n = r->p[2], e = r->p[3], h = r->p[4];
    Tensor x = input(r, "x", r->act, SHAPE(b, heads, n, e), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(r->p[5], heads, e, 2 * h), 1.0 / sqrt((double)e));
    Tensor rate = tensor_none();
    if (!r->p[6]) rate = input(r, "rate", DTYPE_F32, SHAPE(b, heads, n), 1.0);
    Tensor p = output(r, "p", r->act, SHAPE(b, heads, n, h));
    r->flops = 4.0 * (double)(b * heads * n * e * h);
    CALL(r, gate_product, p, x, w, rate);
    double *want = r->reference ? expected(r, p) : NULL;
    for (int64_t row = 0; want && row < b * heads * n; row++) {
        const double *in = values(r, x) + row * e;
        const double *own = values(r, w) + row / n % (r->p[5] * heads) * e * 2 * h;
        const double eta = rate.data ? values(r, rate)[row] : 1.0;
        for (int64_t j = 0; j < h; j++) {
            double a = 0.0, c = 0.0;
            for (int64_t i = 0; i < e; i++) {
                a += in[i] * own[i * 2 * h + j];
                c += in[i] * own[i * 2 * h + h + j];
            }
            want[row * h + j] = eta * a * sigma(a) * c;
        }
    }
}

#define SIZE_MOST 384 /* hidden */

/* p: B, H, N, e, h, o, C */
static void gate_read_body(Run *r) {
    const int64_t b = r->p[0], heads = r->p[1], n = r->p[2], e = r->p[3], h = r->p[4];
    const int64_t o = r->p[5], chunks = r->p[6], rows = b * heads * n;
    Tensor x = input(r, "x", r->act, SHAPE(b, heads, n, e), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(1, heads, e, 2 * h), 1.0 / sqrt((double)e));
    Tensor s = input(r, "s", r->act, SHAPE(b * heads, chunks, h, o), 1.0 / sqrt((double)h));
    Tensor y = output(r, "y", r->act, SHAPE(b, heads, n, o));
    r->flops = 4.0 * (double)(rows * e * h) + 2.0 * (double)(rows * h * o);
    CALL(r, gate_read, y, x, w, s);
    double *want = r->reference ? expected(r, y) : NULL;
    double own[2 * SIZE_MOST];
    for (int64_t row = 0; want && row < rows; row++) {
        const double *in = values(r, x) + row * e;
        const double *gates = values(r, w) + row / n % heads * e * 2 * h;
        const double *state = values(r, s) + row / (n / chunks) * h * o;
        for (int64_t j = 0; j < 2 * h; j++) own[j] = 0.0;
        for (int64_t i = 0; i < e; i++)
            for (int64_t j = 0; j < 2 * h; j++) own[j] += in[i] * gates[i * 2 * h + j];
        for (int64_t i = 0; i < h; i++) {
            const double p = own[i] * sigma(own[i]) * own[h + i];
            for (int64_t j = 0; j < o; j++) want[row * o + j] += p * state[i * o + j];
        }
    }
}

/* p: B, H, N, e, h, o, C; p[7]: 1 no rates, 2 an F32 result */
static void gate_write_body(Run *r) {
    const int64_t b = r->p[0], heads = r->p[1], n = r->p[2], e = r->p[3], h = r->p[4];
    const int64_t o = r->p[5], chunks = r->p[6], rows = b * heads * n;
    Tensor x = input(r, "x", r->act, SHAPE(b, heads, n, e), 1.0);
    Tensor v = input(r, "v", r->act, SHAPE(b, heads, n, o), 1.0);
    Tensor w = input(r, "w", r->act, SHAPE(1, heads, e, 2 * h), 1.0 / sqrt((double)e));
    Tensor rate = tensor_none();
    if (!(r->p[7] & 1)) rate = input(r, "rate", DTYPE_F32, SHAPE(b, heads, n), 1.0);
    r->coarse = r->act == DTYPE_BF16;
    const DType type = r->p[7] & 2 ? DTYPE_F32 : r->act;
    Tensor y = output(r, "y", type, SHAPE(b * heads, chunks, h, o));
    r->flops = 4.0 * (double)(rows * e * h) + 2.0 * (double)(rows * h * o);
    CALL(r, gate_write, y, x, v, w, rate);
    double *want = r->reference ? expected(r, y) : NULL;
    double own[2 * SIZE_MOST];
    for (int64_t row = 0; want && row < rows; row++) {
        const double *in = values(r, x) + row * e, *value = values(r, v) + row * o;
        const double *gates = values(r, w) + row / n % heads * e * 2 * h;
        double *sums = want + row / (n / chunks) * h * o;
        const double eta = rate.data ? values(r, rate)[row] : 1.0;
        for (int64_t j = 0; j < 2 * h; j++) own[j] = 0.0;
        for (int64_t i = 0; i < e; i++)
            for (int64_t j = 0; j < 2 * h; j++) own[j] += in[i] * gates[i * 2 * h + j];
        for (int64_t i = 0; i < h; i++) {
            const double p = eta * own[i] * sigma(own[i]) * own[h + i];
            for (int64_t j = 0; j < o; j++) sums[i * o + j] += p * value[j];
        }
    }
}

/* ---- states ---- */

#define ALPHA (-0.75)

/* p: G, C, E, tokens of a chunk (0: no factors), rows of factors and of starts (0: none); p[6]: 1
 * states before, 2 no y, 4 no last, 8 last is start, 16 y of the other dtype. */
static double factor_mean(Run *r, Tensor m, int64_t group, int64_t c) {
    if (!m.data) return 1.0;
    double sum = 0.0;
    const double *x = values(r, m) + (group % m.shape[0] * r->p[1] + c) * r->p[3];
    for (int64_t i = 0; i < r->p[3]; i++) sum += x[i] / (double)r->p[3];
    return sum;
}

static void state_scan_body(Run *r) {
    const int64_t groups = r->p[0], chunks = r->p[1], width = r->p[2], flags = r->p[6];
    const DType other = r->act == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
    Tensor x = input(r, "x", r->act, SHAPE(groups, chunks, width), 1.0);
    Tensor m = tensor_none(), start = tensor_none(), y = tensor_none(), last = tensor_none();
    if (r->p[3] > 0) m = input(r, "m", DTYPE_F32, SHAPE(r->p[4], chunks, r->p[3]), 1.0);
    if (flags & 8)
        start = last = in_place(r, "state", DTYPE_F32, SHAPE(groups, width), 1.0);
    else if (r->p[5] > 0)
        start = input(r, "start", DTYPE_F32, SHAPE(r->p[5], width), 1.0);
    if (!(flags & 2)) y = output(r, "y", flags & 16 ? other : r->act, SHAPE(groups, chunks, width));
    if (!(flags & 12)) last = output(r, "last", DTYPE_F32, SHAPE(groups, width));
    CALL(r, state_scan, y, last, x, m, start, (float)ALPHA, flags & 1);
    if (!r->reference) return;
    double *states = expected(r, y), *end = expected(r, last);
    for (int64_t i = 0; i < groups * width; i++) {
        const int64_t g = i / width, at = i % width;
        double s = start.data ? values(r, start)[g % start.shape[0] * width + at] : 0.0;
        for (int64_t c = 0; c < chunks; c++) {
            const int64_t place = (g * chunks + c) * width + at;
            if (states && flags & 1) states[place] = s;
            s = factor_mean(r, m, g, c) * s + ALPHA * values(r, x)[place];
            if (states && !(flags & 1)) states[place] = s;
        }
        if (end) end[i] = s;
    }
}

/* ---- steps ---- */

/* p: O, R, C, q, columns of y before and behind; p[6]: 1 without a norm, 2 with u of the other
 * dtype, 4 in place. */
static void chunk_step_body(Run *r) {
    const int64_t outer = r->p[0], rows = r->p[1], columns = r->p[2], q = r->p[3];
    const int64_t pitch = r->p[4] + columns + r->p[5], flags = r->p[6];
    const DType other = r->act == DTYPE_F32 ? DTYPE_BF16 : DTYPE_F32;
    const double sign = -1.0, offset = flags & 1 ? 0.0 : (double)1e-5f;
    Tensor u = input(r, "u", flags & 2 ? other : r->act, SHAPE(outer, rows, columns), 0.3);
    Tensor before, w, kept = tensor_none();
    if (flags & 4) {
        before = w = in_place(r, "w", DTYPE_F32, SHAPE(outer, rows, columns), 1.0);
    } else {
        before = input(r, "before", DTYPE_F32, SHAPE(q, rows, columns), 1.0);
        w = output(r, "w", DTYPE_F32, SHAPE(outer, rows, columns));
    }
    if (!(flags & 1)) kept = input(r, "kept", DTYPE_F32, SHAPE(q, columns), 1.0);
    Tensor y = in_place(r, "y", r->act, SHAPE(outer, rows, pitch), 1.0);
    const ChunkStep part = {w, y, r->p[4], u, before, kept};
    CALL(r, chunk_step, 1, &part, (float)sign, (float)offset);
    if (!r->reference) return;
    double *ew = expected(r, w), *ey = expected(r, y);
    for (int64_t i = 0; i < outer * rows * pitch; i++) ey[i] = values(r, y)[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t j = 0; j < columns; j++) {
            double squares = 0.0, scale = 1.0;
            for (int64_t i = 0; i < rows; i++) {
                const int64_t at = (o * rows + i) * columns + j;
                const int64_t from = (o % before.shape[0] * rows + i) * columns + j;
                ew[at] = values(r, before)[from] + sign * values(r, u)[at];
                squares += ew[at] * ew[at];
            }
            if (kept.data) scale = values(r, kept)[o % q * columns + j] / (sqrt(squares) + offset);
            for (int64_t i = 0; i < rows; i++) {
                ew[(o * rows + i) * columns + j] *= scale;
                ey[(o * rows + i) * pitch + r->p[4] + j] = ew[(o * rows + i) * columns + j];
            }
        }
}

/* ---- many matrices of heads of 384 ---- */

/* p: matrices, side, steps, how many differ. */
typedef struct Repeated {
    Run *r;
    double *values;
} Repeated;

static double repeated_value(int64_t i, void *user) {
    const Repeated *s = user;
    const int64_t all = s->r->p[3] * s->r->p[1] * s->r->p[1];
    if (i < all) s->values[i] = 0.01 * random_normal(s->r);
    return s->values[i % all];
}

/* c = a op(b) of n x n. */
static void square_product(double *c, const double *a, const double *b, bool turned, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) c[i * n + j] = 0.0;
        for (int64_t k = 0; k < n; k++)
            for (int64_t j = 0; j < n && !turned; j++) c[i * n + j] += a[i * n + k] * b[k * n + j];
        for (int64_t j = 0; j < n && turned; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) sum += a[i * n + k] * b[j * n + k];
            c[i * n + j] = sum;
        }
    }
}

static const float triple[3] = {3.4445f, -4.7750f, 2.0315f};

/* x after a step; a, b: room. */
static void square_step(double *x, double *a, double *b, int64_t n) {
    square_product(a, x, x, true, n);
    square_product(b, a, a, false, n);
    for (int64_t i = 0; i < n * n; i++) b[i] = (double)triple[1] * a[i] + (double)triple[2] * b[i];
    for (int64_t i = 0; i < n; i++) b[i * n + i] += (double)triple[0];
    square_product(a, b, x, false, n);
    memcpy(x, a, sizeof(double) * (size_t)(n * n));
}

static void repeated_body(Run *r) {
    const int64_t count = r->p[0], n = r->p[1], size = n * n, kinds = r->p[3];
    NewtonSchulz s = {.steps = (int)r->p[2], .bf16 = true};
    for (int k = 0; k < s.steps; k++) memcpy(s.triple[k], triple, sizeof triple);
    Repeated user = {r, malloc(sizeof(double) * (size_t)(kinds * size))};
    Tensor g = input_of(r, "g", r->act, SHAPE(count, n, n), repeated_value, &user);
    Tensor u = output(r, "u", r->act, SHAPE(count, n, n));
    Tensor norms = output(r, "norms", DTYPE_F32, SHAPE(count));
    r->coarse = true;
    r->flops = 6.0 * (double)(count * size * n) * s.steps;
    CALL(r, newton_schulz, u, norms, g, s);
    free(user.values);
    if (!r->reference) return;
    double *want = expected(r, u), *norm = expected(r, norms);
    double *room = malloc(2 * sizeof(double) * (size_t)size);
    for (int64_t i = 0; i < count; i++) {
        const double *x = values(r, g) + i * size;
        double sum = 0.0;
        for (int64_t k = 0; k < size; k++) sum += x[k] * x[k];
        norm[i] = sqrt(sum);
        if (i >= kinds) {
            memcpy(want + i * size, want + i % kinds * size, sizeof(double) * (size_t)size);
            continue;
        }
        for (int64_t k = 0; k < size; k++) want[i * size + k] = x[k] / (norm[i] + 1e-7);
        for (int k = 0; k < s.steps; k++) square_step(want + i * size, room, room + size, n);
    }
    free(room);
}

#define BOTH  (IN_BOTH | ANY_THREADS)
#define BENCH (IN_BF16 | ONLY_BENCH)

const OpCase cases_chunk[] = {
    {"gate_product", gate_product_body, {1, 1, 1, 1, 1, 1}, IN_BOTH, 3},
    {"gate_product", gate_product_body, {2, 2, 5, 9, 3, 1}, IN_BOTH, 3},
    {"gate_product", gate_product_body, {2, 3, 33, 40, 24, 2, 1}, IN_BOTH, 3},
    {"gate_product", gate_product_body, {1, 1, 128, 64, 128, 1}, IN_BOTH, 3},
    {"gate_product", gate_product_body, {1, 2, 256, 192, 128, 1, 1}, IN_BF16, 3},
    {"gate_product", gate_product_body, {2, 2, 384, 384, 128, 2}, IN_BF16, 3},
    {"gate_product", gate_product_body, {4, 2, 64, 64, 128, 2, 1}, IN_BOTH, 3},
    {"gate_product", gate_product_body, {2, 3, 512, 64, 1024, 1}, IN_BF16, 3},
    {"gate_product", gate_product_body, {1, 4, 32768, 384, 384, 1}, BENCH, 0},
    {"gate_product", gate_product_body, {1, 4, 2048, 384, 384, 1}, BENCH, 0},
    {"gate_write", gate_write_body, {1, 1, 1, 1, 1, 1, 1}, IN_BOTH, 3},
    {"gate_write", gate_write_body, {2, 3, 12, 9, 5, 7, 3}, IN_BOTH, 3},
    {"gate_write", gate_write_body, {2, 2, 64, 40, 24, 16, 1, 1}, IN_BOTH, 3},
    {"gate_write", gate_write_body, {1, 2, 60, 40, 24, 16, 3, 2}, IN_BF16, 3},
    {"gate_write", gate_write_body, {1, 1, 128, 384, 384, 384, 2}, IN_BF16, 3},
    {"gate_write", gate_write_body, {1, 1, 1408, 384, 384, 384, 22, 1}, IN_BF16, 3},
    {"gate_write", gate_write_body, {2, 2, 1152, 384, 384, 384, 6}, IN_BF16, 3},
    {"gate_write", gate_write_body, {1, 3, 3200, 384, 384, 384, 25}, IN_BF16 | ONLY_CARDS, 3},
    {"gate_write", gate_write_body, {1, 4, 32768, 384, 384, 384, 16}, BENCH, 0},
    {"gate_read", gate_read_body, {1, 1, 1, 1, 1, 1, 1}, IN_BOTH, 3},
    {"gate_read", gate_read_body, {2, 3, 12, 9, 5, 7, 3}, IN_BOTH, 3},
    {"gate_read", gate_read_body, {2, 2, 64, 40, 24, 16, 1}, IN_BOTH, 3},
    {"gate_read", gate_read_body, {1, 2, 256, 384, 384, 384, 1}, IN_BF16, 3},
    {"gate_read", gate_read_body, {2, 1, 768, 384, 384, 384, 3}, IN_BF16, 3},
    {"gate_read", gate_read_body, {1, 2, 256, 384, 384, 384, 2}, IN_BF16, 3},
    {"gate_read", gate_read_body, {1, 1, 17152, 384, 384, 384, 67}, IN_BF16 | ONLY_CARDS, 3},
    {"gate_read", gate_read_body, {1, 4, 32768, 384, 384, 384, 16}, BENCH, 0},
    {"state_scan", state_scan_body, {1, 1, 1, 1, 1, 1}, BOTH, 0},
    {"state_scan", state_scan_body, {3, 5, 33, 4, 3, 3}, BOTH, 0},
    {"state_scan", state_scan_body, {4, 9, 64, 7, 2, 2, 1}, BOTH, 0},
    {"state_scan", state_scan_body, {4, 17, 1028, 0, 0, 1, 16 + 1}, BOTH, 0},
    {"state_scan", state_scan_body, {2, 3, 40, 300, 2, 0, 4 + 16}, BOTH, 0},
    {"state_scan", state_scan_body, {2, 8, 40, 5, 1, 2, 2}, BOTH, 0},
    {"state_scan", state_scan_body, {6, 1, 96, 5, 2, 6, 8}, BOTH, 0},
    {"state_scan", state_scan_body, {4, 16, 384 * 384, 2048, 4, 0}, IN_BOTH | ONLY_BENCH, 0},
    {"chunk_step", chunk_step_body, {1, 1, 1, 1, 0, 0}, BOTH, 0},
    {"chunk_step", chunk_step_body, {4, 5, 33, 2, 0, 7}, BOTH, 0},
    {"chunk_step", chunk_step_body, {4, 24, 64, 2, 64, 0, 2}, BOTH, 0},
    {"chunk_step", chunk_step_body, {2, 384, 96, 1, 0, 96}, BOTH, 0},
    {"chunk_step", chunk_step_body, {2, 500, 40, 2, 0, 0, 4}, BOTH, 0},
    {"chunk_step", chunk_step_body, {3, 20, 40, 3, 0, 0, 1 + 4}, BOTH, 0},
    {"chunk_step", chunk_step_body, {2, 400, 36, 1, 4, 0, 1}, BOTH, 0},
    {"chunk_step", chunk_step_body, {12, 384, 384, 12, 0, 0, 4}, BENCH, 0},
    {"newton_schulz", repeated_body, {1, 384, 1, 1}, IN_BF16, 3},
    {"newton_schulz", repeated_body, {75, 384, 2, 2}, IN_BF16, 4},
    {"newton_schulz", repeated_body, {3, 384, 5, 1}, IN_BF16, 15},
    {0},
};
