/* The step of the fast weights and their weight norm (lact_nvs.md 4, 5.2). A thread takes a few
 * columns of a matrix, whatever the number of threads. */
#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/cpu/values.h"

#define COLUMNS 64

typedef struct Sizes {
    int64_t outer, rows, columns, pitch, at, period, parts;
} Sizes;

static Sizes sizes_of(Tensor y, int64_t at, int64_t columns, int64_t period) {
    return (Sizes){
        y.shape[0], y.shape[1], columns, y.shape[2], at, period, div_up(columns, COLUMNS)};
}

/* Step U of n columns, zeros where there is none. */
static const float *step_read(const Tensor *u, int64_t at, int64_t n, float *buffer) {
    if (u->data) return values_read(u, at, n, buffer);
    memset(buffer, 0, (size_t)n * sizeof *buffer);
    return buffer;
}

/* scale = |W|/(|M| + offset) and back = 1/(|W| |M|) of n columns of matrix o. */
static void column_factors(float *scale, float *back, const Sizes *s, const Tensor *u, int64_t at,
                           const float *w, int64_t n, float sign, float offset) {
    float moved[COLUMNS] = {0}, start[COLUMNS] = {0}, buffer[COLUMNS];
    for (int64_t r = 0; r < s->rows; r++) {
        const float *step = step_read(u, at + r * s->columns, n, buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float a = w[r * s->columns + i], m = a + sign * step[i];
            moved[i] += m * m;
            start[i] += a * a;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const float norm = sqrtf(moved[i]), wanted = sqrtf(start[i]), product = norm * wanted;
        scale[i] = wanted / (norm + offset);
        back[i] = product > 0.0f ? 1.0f / product : 0.0f;
    }
}

static void step_part(const WeightStep *p, float sign, float offset) {
    const Tensor u = p->u, w = p->w;
    const int64_t at = p->at;
    const Sizes s = sizes_of(p->y, at, w.shape[2], w.shape[0]);
    const Grad to = grad_set(p->y);
    float *kept = p->stats.data;
#pragma omp parallel for schedule(static) if (s.outer * s.rows * s.columns >= PARALLEL_MIN)
    for (int64_t job = 0; job < s.outer * s.parts; job++) {
        const int64_t o = job / s.parts, c = job % s.parts * COLUMNS;
        const int64_t n = min_i64(COLUMNS, s.columns - c);
        const int64_t begin = o * s.rows * s.columns + c;
        const float *start = (const float *)w.data + o % s.period * s.rows * s.columns + c;
        float scale[COLUMNS], back[COLUMNS], u_buffer[COLUMNS], buffer[COLUMNS];
        for (int64_t i = 0; i < COLUMNS; i++) scale[i] = 1.0f;
        if (offset > 0.0f) column_factors(scale, back, &s, &u, begin, start, n, sign, offset);
        for (int64_t r = 0; r < s.rows; r++) {
            const float *a = start + r * s.columns;
            const float *b = step_read(&u, begin + r * s.columns, n, u_buffer);
            for (int64_t i = 0; i < n; i++) buffer[i] = (a[i] + sign * b[i]) * scale[i];
            values_write(&to, (o * s.rows + r) * s.pitch + at + c, n, buffer);
        }
        for (int64_t i = 0; kept && offset > 0.0f && i < n; i++) {
            kept[2 * (o * s.columns + c + i)] = scale[i];
            kept[2 * (o * s.columns + c + i) + 1] = back[i];
        }
    }
}

Status weight_step_cpu(Device *d, int parts, const WeightStep *part, float sign, float offset) {
    (void)d;
    for (int i = 0; i < parts; i++) {
        if (!act_dtype(part[i].y.dtype) || (part[i].u.data && !act_dtype(part[i].u.dtype)))
            return refuse_dtype("weight_step", part[i].y.dtype);
        step_part(&part[i], sign, offset);
    }
    return STATUS_OK;
}

/* pull = s1 sum(y g) of n columns of matrix o. */
static void column_pull(float *pull, const Sizes *s, const Tensor *dy, const Tensor *y,
                        const float *stats, int64_t o, int64_t c, int64_t n) {
    float g_buffer[COLUMNS], y_buffer[COLUMNS];
    memset(pull, 0, COLUMNS * sizeof *pull);
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t from = (o * s->rows + r) * s->pitch + s->at + c;
        const float *g = values_read(dy, from, n, g_buffer);
        const float *v = values_read(y, from, n, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) pull[i] += g[i] * v[i];
    }
    for (int64_t i = 0; i < n; i++) pull[i] *= stats[2 * (o * s->columns + c + i) + 1];
}

/* Matrix o's part of the columns [c, c + n): du, and dw with the sum so far. */
static void step_back(const Sizes *s, const Grad *du, const Grad *dw, const Tensor *dy,
                      const Tensor *y, const float *stats, int64_t o, int64_t c, int64_t n,
                      float sign) {
    float g_buffer[COLUMNS], y_buffer[COLUMNS], dm[COLUMNS], pull[COLUMNS], step[COLUMNS];
    const Grad sum = {dw->t, dw->add || o >= s->period};
    if (stats) column_pull(pull, s, dy, y, stats, o, c, n);
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t from = (o * s->rows + r) * s->pitch + s->at + c;
        const float *g = values_read(dy, from, n, g_buffer);
        memcpy(dm, g, (size_t)n * sizeof *dm);
        if (stats) {
            const float *v = values_read(y, from, n, y_buffer);
            for (int64_t i = 0; i < n; i++)
                dm[i] = stats[2 * (o * s->columns + c + i)] * g[i] - pull[i] * v[i];
        }
        for (int64_t i = 0; i < n; i++) step[i] = sign * dm[i];
        const int64_t to = r * s->columns + c, matrix = s->rows * s->columns;
        if (du->t.data) values_write(du, o * matrix + to, n, step);
        if (dw->t.data) values_write(&sum, o % s->period * matrix + to, n, dm);
    }
}

static Status slope_part(const WeightSlope *p, float sign) {
    const Grad du = p->du, dw = p->dw;
    const Tensor dy = p->dy, y = p->y;
    if (!du.t.data && !dw.t.data) return STATUS_OK;
    if (!act_dtype(dy.dtype) || (du.t.data && !act_dtype(du.t.dtype)) ||
        (p->stats.data && y.dtype != dy.dtype))
        return refuse_dtype("weight_step_backward", dy.dtype);
    const Tensor *like = du.t.data ? &du.t : &dw.t;
    const Sizes s = sizes_of(dy, p->at, like->shape[2], dw.t.data ? dw.t.shape[0] : dy.shape[0]);
    /* All matrices that share one of w are summed by one thread, in order. */
#pragma omp parallel for schedule(static) if (tensor_count(dy) >= PARALLEL_MIN)
    for (int64_t job = 0; job < s.period * s.parts; job++) {
        const int64_t c = job % s.parts * COLUMNS, n = min_i64(COLUMNS, s.columns - c);
        for (int64_t o = job / s.parts; o < s.outer; o += s.period)
            step_back(&s, &du, &dw, &dy, &y, p->stats.data, o, c, n, sign);
    }
    return STATUS_OK;
}

Status weight_step_backward_cpu(Device *d, int parts, const WeightSlope *part, float sign) {
    (void)d;
    for (int i = 0; i < parts; i++) TRY(slope_part(&part[i], sign));
    return STATUS_OK;
}
