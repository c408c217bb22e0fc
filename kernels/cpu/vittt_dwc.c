/* The depthwise branch of ViTTT, one sample at a time (vittt.md 2.2 and 3.2). */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/rowsum.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/taps.h"
#include "kernels/cpu/vittt.h"

/* The map of d channels at channel `offset` of an act tensor with `row` channels. */
static ActMap act_map(VitttShape s, Tensor t, int64_t sample, int64_t offset, int64_t row) {
    const int64_t tokens = s.height * s.width;
    return (ActMap){t, sample * tokens * row + offset, s.height, s.width, s.head_dim, row};
}

static Map whole_map(const ActMap *a, float *buffer) {
    return map_rows(a, 0, a->height, buffer);
}

/* Norm over the taps of each channel of g[9][d]. */
static void tap_norms(float *norms, const float *g, int64_t d) {
    for (int64_t c = 0; c < d; c++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < 9; t++) sum += g[t * d + c] * g[t * d + c];
        norms[c] = sqrtf(sum);
    }
}

/* w'[9][d] = w3 - g/(n+1). */
static void trained_taps(float *out, const float *w3, const float *g, const float *norms,
                         int64_t d) {
    for (int64_t t = 0; t < 9; t++) {
        for (int64_t c = 0; c < d; c++)
            out[t * d + c] = w3[c * 9 + t] - g[t * d + c] / (norms[c] + 1.0f);
    }
}

/* Applies taps w[9][d] to the whole map and stores it in the channels of an act tensor. */
static void apply(const ActMap *out, const Map *x, const float *w, float *line) {
    const Grad to = grad_set(out->t);
    const int64_t d = x->channels;
    for (int64_t row = 0; row < x->height; row++) {
        const int64_t at = out->at + row * x->width * out->pixel;
        if (out->t.dtype == DTYPE_F32) {
            taps_row((float *)out->t.data + at, out->pixel, x, row, w, NULL, false);
            continue;
        }
        taps_row(line, d, x, row, w, NULL, false);
        for (int64_t p = 0; p < x->width; p++)
            values_write(&to, at + p * out->pixel, d, line + p * d);
    }
}

static void forward_sample(VitttShape s, int64_t b, const Tensor *cat, float *g_kept,
                           const Tensor *qkv, const float *w3, float *scratch) {
    const int64_t d = s.head_dim, width = vittt_width(s), packed = vittt_packed(s);
    const int64_t map = s.height * s.width * d;
    const ActMap aq = act_map(s, *qkv, b, 3 * width, packed);
    const ActMap ak = act_map(s, *qkv, b, 3 * width + d, packed);
    const ActMap av = act_map(s, *qkv, b, 3 * width + 2 * d, packed);
    const ActMap ao = act_map(s, *cat, b, width, width + d);
    float *buffer = scratch, *g = scratch + 2 * map, *taps = g + 9 * d, *norms = taps + 9 * d;
    const Map k = whole_map(&ak, buffer), v = whole_map(&av, buffer + map);
    memset(g, 0, (size_t)(9 * d) * sizeof *g);
    taps_gradient(g, NULL, &k, &v);
    const float c = vittt_factor(s);
    for (int64_t i = 0; i < 9 * d; i++) g[i] *= -c;
    for (int64_t i = 0; g_kept && i < 9 * d; i++) g_kept[i % d * 9 + i / d] = g[i];
    tap_norms(norms, g, d);
    trained_taps(taps, w3, g, norms, d);
    const Map q = whole_map(&aq, buffer);
    apply(&ao, &q, taps, norms + d);
}

static int64_t sample_floats(VitttShape s) {
    const int64_t d = s.head_dim;
    return 2 * s.height * s.width * d + 4 * 9 * d + 2 * d + s.width * d;
}

static Status dwc_forward(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w3) {
    const int64_t per_thread = sample_floats(s), work = s.batch * s.height * s.width * s.head_dim;
    float *scratch;
    TRY(scratch_floats(d, omp_get_max_threads() * per_thread, &scratch));
#pragma omp parallel for schedule(static) if (work >= PARALLEL_MIN / 4)
    for (int64_t b = 0; b < s.batch; b++)
        forward_sample(s, b, &cat, g.data ? (float *)g.data + b * 9 * s.head_dim : NULL, &qkv,
                       w3.data, scratch + omp_get_thread_num() * per_thread);
    return STATUS_OK;
}

Status vittt_dwc_cpu(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv, Tensor w3) {
    if (!act_dtype(qkv.dtype) || !act_dtype(cat.dtype)) return refuse_dtype("vittt_dwc", qkv.dtype);
    return scratch_done(d, dwc_forward(d, s, cat, g, qkv, w3));
}

/* dg[9][d] from dw' (dghat = -dw') through the soft norm. */
static void norm_backward(float *dg, const float *dtaps, const float *g, const float *norms,
                          int64_t d) {
    for (int64_t c = 0; c < d; c++) {
        const float r = 1.0f / (norms[c] + 1.0f);
        float t = 0.0f;
        for (int64_t i = 0; i < 9; i++) t -= g[i * d + c] * dtaps[i * d + c];
        const float slope = norms[c] > 0.0f ? r * r * t / norms[c] : 0.0f;
        for (int64_t i = 0; i < 9; i++)
            dg[i * d + c] = -r * dtaps[i * d + c] - slope * g[i * d + c];
    }
}

/* out[t][d] = factor * in[8-t][d]. */
static void flip_taps(float *out, const float *in, float factor, int64_t d) {
    for (int64_t t = 0; t < 9; t++) {
        for (int64_t c = 0; c < d; c++) out[t * d + c] = factor * in[(8 - t) * d + c];
    }
}

/* One sample; adds dw' to dw3[9][d]. */
static void backward_sample(VitttShape s, int64_t b, float *dw3, const Tensor *dqkv,
                            const Tensor *dcat, const Tensor *qkv, const float *g_kept,
                            const float *w3, float *scratch) {
    const int64_t d = s.head_dim, width = vittt_width(s), packed = vittt_packed(s);
    const int64_t map = s.height * s.width * d;
    const float c = vittt_factor(s);
    float *buffer = scratch, *g = scratch + 2 * map, *taps = g + 9 * d, *dtaps = taps + 9 * d;
    float *dg = dtaps + 9 * d, *norms = dg + 9 * d, *line = norms + d;
    ActMap in[3], out[3]; /* q, k, v */
    for (int i = 0; i < 3; i++) {
        in[i] = act_map(s, *qkv, b, 3 * width + i * d, packed);
        out[i] = act_map(s, *dqkv, b, 3 * width + i * d, packed);
    }
    const ActMap ao = act_map(s, *dcat, b, width, width + d);
    for (int64_t i = 0; i < 9 * d; i++) g[i] = g_kept[i % d * 9 + i / d];
    tap_norms(norms, g, d);
    const Map dout = whole_map(&ao, buffer), q = whole_map(&in[0], buffer + map);
    memset(dtaps, 0, (size_t)(9 * d) * sizeof *dtaps);
    taps_gradient(dtaps, NULL, &q, &dout);
    trained_taps(dg, w3, g, norms, d);
    flip_taps(taps, dg, 1.0f, d);
    apply(&out[0], &dout, taps, line);
    norm_backward(dg, dtaps, g, norms, d);
    for (int64_t i = 0; i < 9 * d; i++) {
        dw3[i] += dtaps[i];
        dg[i] *= -c; /* serves dV = -c dE and dK, which reads E = -c V */
    }
    flip_taps(taps, dg, 1.0f, d);
    const Map k = whole_map(&in[1], buffer), v = whole_map(&in[2], buffer + map);
    apply(&out[2], &k, dg, line);
    apply(&out[1], &v, taps, line);
}

static Status dwc_backward(Device *d, VitttShape s, Tensor dqkv, Grad dw3, Tensor dcat, Tensor qkv,
                           Tensor g, Tensor w3) {
    const int64_t dim = s.head_dim, per_thread = sample_floats(s);
    const int64_t parts = min_i64(s.batch, VITTT_PARTS), work = s.height * s.width * dim;
    float *scratch, *partial, *turned;
    TRY(scratch_floats(d, omp_get_max_threads() * per_thread, &scratch));
    TRY(scratch_floats(d, parts * 9 * dim, &partial));
    TRY(scratch_floats(d, 9 * dim, &turned));
#pragma omp parallel for schedule(static) if (s.batch * work >= PARALLEL_MIN / 4)
    for (int64_t part = 0; part < parts; part++) {
        float *dw = partial + part * 9 * dim;
        memset(dw, 0, (size_t)(9 * dim) * sizeof *dw);
        for (int64_t b = s.batch * part / parts; b < s.batch * (part + 1) / parts; b++)
            backward_sample(s, b, dw, &dqkv, &dcat, &qkv, (const float *)g.data + b * 9 * dim,
                            w3.data, scratch + omp_get_thread_num() * per_thread);
    }
    if (!dw3.t.data) return STATUS_OK;
    for (int64_t i = 0; i < 9 * dim; i++) {
        float sum = 0.0f;
        for (int64_t p = 0; p < parts; p++) sum += partial[p * 9 * dim + i];
        turned[i % dim * 9 + i / dim] = sum;
    }
    values_write(&dw3, 0, 9 * dim, turned);
    return STATUS_OK;
}

Status vittt_dwc_backward_cpu(Device *d, VitttShape s, Tensor dqkv, Grad dw3, Tensor dcat,
                              Tensor qkv, Tensor g, Tensor w3) {
    if (!act_dtype(qkv.dtype) || !act_dtype(dqkv.dtype) || !act_dtype(dcat.dtype))
        return refuse_dtype("vittt_dwc_backward", qkv.dtype);
    return scratch_done(d, dwc_backward(d, s, dqkv, dw3, dcat, qkv, g, w3));
}
