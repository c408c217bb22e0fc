/* Both branches of the ViTTT mixer, and what all identities share. */
#include "ttt/identity.h"

#include "core/memory.h"
#include "ttt/identity_parts.h"

void identity_compare(IdentityResult *r, const double *production, const double *layer,
                      const double *attention, int64_t n) {
    double dot = 0, off64 = 0, off = 0;
    r->most = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = layer[i] - attention[i], b = production[i] - attention[i];
        off64 += a * a;
        off += b * b;
        dot += production[i] * attention[i];
        r->most = fmax(r->most, fabs(b));
    }
    const double size = fmax(dense_norm(layer, n), 1e-300);
    const double made = fmax(dense_norm(production, n), 1e-300);
    r->f64 = sqrt(off64) / size;
    r->layer = sqrt(off) / made;
    r->cosine = dot / (made * fmax(dense_norm(attention, n), 1e-300));
}

void identity_control(IdentityResult *r, const char *name, const double *layer, const double *wrong,
                      int64_t n) {
    double off = 0;
    for (int64_t i = 0; i < n; i++) off += (layer[i] - wrong[i]) * (layer[i] - wrong[i]);
    if (r->controls == IDENTITY_CONTROLS) return;
    r->control[r->controls++] =
        (IdentityControl){name, sqrt(off) / fmax(dense_norm(layer, n), 1e-300)};
}

void identity_merge(IdentityResult *into, const IdentityResult *other) {
    into->f64 = fmax(into->f64, other->f64);
    into->layer = fmax(into->layer, other->layer);
    into->most = fmax(into->most, other->most);
    into->cosine = fmin(into->cosine, other->cosine);
    into->start = fmax(into->start, other->start);
    for (int i = 0; i < other->controls && i < into->controls; i++)
        into->control[i].error = fmin(into->control[i].error, other->control[i].error);
}

void inner_measure(InnerLoop *r, int which, const double *f, const double *v, int64_t n, int64_t d,
                   double scale) {
    double sum = 0, aligned = 0;
    for (int64_t t = 0; t < n; t++) {
        double dot = 0;
        for (int64_t i = 0; i < d; i++) dot += f[t * d + i] * v[t * d + i];
        const double size = dense_norm(f + t * d, d) * dense_norm(v + t * d, d);
        sum -= dot / (double)n;
        aligned -= size > 0 ? dot / size / (double)n : 0;
    }
    r->loss[which] = scale * sum;
    r->alignment[which] = aligned;
}

/* ---- GLU branch ---- */

/* Work of one head: matrices [tokens, width] and [width, width]. */
typedef struct GluWork {
    const IdentityGlu *in;
    double rate, sign; /* c = 1/(3N); +1 where the step adds c K'P */
    bool gated, both;
    double *z1, *z2, *p1, *p2;   /* of the keys */
    double *w1, *w2, *g, *norms; /* current weights, gradient, column norms */
    double *scores, *v1, *v2;    /* Q K'; sums of vhat over the steps */
    double *y1, *y2, *layer, *attention, *wrong;
} GluWork;

static void key_terms(GluWork *w) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    dense_product(w->z1, in->k, false, w->w1, false, n, d, d, 1);
    dense_product(w->z2, in->k, false, w->w2, false, n, d, d, 1);
    for (int64_t i = 0; i < n * d; i++) {
        const double a = dense_silu(w->z2[i]);
        double e = in->v[i];
        if (in->variant.loss == VITTT_MSE) e -= w->gated ? w->z1[i] * a : w->z1[i];
        if (in->variant.loss == VITTT_MSE_FORK) e -= a;
        w->p1[i] = w->gated ? e * a : in->variant.gate == VITTT_GATE_NONE_FORK ? e * w->z1[i] : e;
        w->p2[i] = e * w->z1[i] * dense_silu_slope(w->z2[i]);
    }
}

/* Moves `weight` by the step that p gives and adds its vhat to `values`; `raw` leaves the soft norm
 * out of the values alone, for a control. */
static void glu_event(GluWork *w, const double *p, double *weight, double *values) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    dense_product(w->g, in->k, true, p, false, d, d, n, w->rate);
    dense_column_norms(w->norms, w->g, d, d);
    for (int64_t j = 0; j < d; j++)
        w->norms[j] = in->variant.raw_glu ? w->sign : w->sign / (w->norms[j] + 1);
    for (int64_t i = 0; i < d * d; i++) weight[i] += w->norms[i % d] * w->g[i];
    for (int64_t i = 0; i < n * d; i++) values[i] += w->rate * w->norms[i % d] * p[i];
}

/* y = q start + (q k') values: the attention form of one node. */
static void glu_attention(const GluWork *w, double *y, const double *start, const double *values) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    dense_product(y, in->q, false, start, false, n, d, d, 1);
    dense_add_product(y, w->scores, false, values, false, n, d, n, 1);
}

static void gate(const GluWork *w, double *out, const double *y1, const double *y2) {
    for (int64_t i = 0; i < w->in->tokens * w->in->width; i++)
        out[i] = w->gated ? y1[i] * dense_silu(y2[i]) : y1[i];
}

static void glu_controls(GluWork *w, IdentityResult *r) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    if (w->both) { /* the gate of the weights before the step */
        dense_product(w->z2, in->q, false, in->w2, false, n, d, d, 1);
        gate(w, w->wrong, w->y1, w->z2);
        identity_control(r, "gate before the step", w->layer, w->wrong, n * d);
    }
    if (in->variant.raw_glu || in->variant.steps > 1) return;
    for (int64_t i = 0; i < n * d; i++) w->v1[i] = w->sign * w->rate * w->p1[i];
    glu_attention(w, w->z1, in->w1, w->v1);
    gate(w, w->wrong, w->z1, w->y2);
    identity_control(r, "no soft norm", w->layer, w->wrong, n * d);
}

static void glu_steps(GluWork *w) {
    const int64_t steps = w->in->variant.steps;
    for (int64_t s = 0; s < (steps > 1 ? steps : 1); s++) {
        key_terms(w);
        glu_event(w, w->p1, w->w1, w->v1);
        if (w->both) glu_event(w, w->p2, w->w2, w->v2);
    }
}

static void glu_run(GluWork *w, IdentityResult *r) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    glu_steps(w);
    /* The layer: reads of the written states. */
    dense_product(w->y1, in->q, false, w->w1, false, n, d, d, 1);
    dense_product(w->y2, in->q, false, w->w2, false, n, d, d, 1);
    gate(w, w->layer, w->y1, w->y2);
    /* The attention form: start states and pairs of tokens. */
    dense_product(w->scores, in->q, false, in->k, true, n, n, d, 1);
    glu_attention(w, w->y1, in->w1, w->v1);
    glu_attention(w, w->y2, in->w2, w->v2);
    gate(w, w->attention, w->y1, w->y2);
    identity_compare(r, in->out, w->layer, w->attention, n * d);
    dense_product(w->z1, in->q, false, in->w1, false, n, d, d, 1);
    gate(w, w->wrong, w->z1, w->y2);
    r->start = dense_norm(w->wrong, n * d) / fmax(dense_norm(w->attention, n * d), 1e-300);
    glu_controls(w, r);
}

static Status glu_work(const IdentityGlu *in, GluWork *w, double **memory) {
    const int64_t n = in->tokens, d = in->width, gate_kind = in->variant.gate;
    *w = (GluWork){.in = in,
                   .rate = 1 / (3.0 * (double)n),
                   .sign = in->variant.ascend_glu ? -1 : 1,
                   .gated = gate_kind == VITTT_GATE_BOTH || gate_kind == VITTT_GATE_STATIC,
                   .both = gate_kind == VITTT_GATE_BOTH};
    TRY(mem_alloc((void **)memory, 11 * n * d + n * n + 3 * d * d + d, sizeof **memory,
                  "an attention form"));
    double **tokens[] = {&w->z1, &w->z2, &w->p1,    &w->p2,        &w->v1,   &w->v2,
                         &w->y1, &w->y2, &w->layer, &w->attention, &w->wrong};
    for (int i = 0; i < 11; i++) *tokens[i] = *memory + i * n * d;
    w->scores = *memory + 11 * n * d;
    w->w1 = w->scores + n * n;
    w->w2 = w->w1 + d * d;
    w->g = w->w2 + d * d;
    w->norms = w->g + d * d;
    memcpy(w->w1, in->w1, (size_t)(d * d) * sizeof *w->w1);
    memcpy(w->w2, in->w2, (size_t)(d * d) * sizeof *w->w2);
    return STATUS_OK;
}

Status identity_glu(const IdentityGlu *in, IdentityResult *out) {
    GluWork w;
    double *memory;
    *out = (IdentityResult){0};
    TRY(glu_work(in, &w, &memory));
    glu_run(&w, out);
    mem_free(memory);
    return STATUS_OK;
}

/* Loss and alignment of the weights that the keys meet. */
static void inner_loss(GluWork *w, int which, InnerLoop *r) {
    const IdentityGlu *in = w->in;
    const int64_t n = in->tokens, d = in->width;
    dense_product(w->z1, in->k, false, w->w1, false, n, d, d, 1);
    dense_product(w->z2, in->k, false, w->w2, false, n, d, d, 1);
    gate(w, w->wrong, w->z1, w->z2);
    inner_measure(r, which, w->wrong, in->v, n, d, w->rate * (double)n);
}

Status inner_glu(const IdentityGlu *in, InnerLoop *out) {
    const int64_t size = in->width * in->width;
    GluWork w;
    double *memory;
    *out = (InnerLoop){0};
    TRY(glu_work(in, &w, &memory));
    inner_loss(&w, 0, out);
    glu_steps(&w);
    inner_loss(&w, 1, out);
    for (int64_t i = 0; i < size; i++) w.g[i] = w.w1[i] - in->w1[i];
    out->moved = dense_norm(w.g, size) / fmax(dense_norm(in->w1, size), 1e-300);
    mem_free(memory);
    return STATUS_OK;
}

/* ---- depthwise branch ---- */

/* x at pixel (row, column) of channel c, zero outside. */
static double pixel(const IdentityDwc *in, const double *x, int64_t row, int64_t column,
                    int64_t c) {
    if (row < 0 || row >= in->height || column < 0 || column >= in->columns) return 0;
    return x[(row * in->columns + column) * in->width + c];
}

/* The 9 neighbours of a pixel. */
static void neighbours(const IdentityDwc *in, const double *x, int64_t p, int64_t c,
                       double out[9]) {
    for (int t = 0; t < 9; t++)
        out[t] = pixel(in, x, p / in->columns + t / 3 - 1, p % in->columns + t % 3 - 1, c);
}

/* One channel: layer, attention form and control into column c of the outputs. */
static void dwc_channel(const IdentityDwc *in, int64_t c, double *layer, double *attention,
                        double *wrong, double *start) {
    const int64_t n = in->height * in->columns, d = in->width;
    const int64_t steps = in->variant.steps > 1 ? in->variant.steps : 1;
    const double rate = 1 / (3.0 * (double)n), sign = in->variant.ascend_dwc ? -1 : 1;
    double g[9] = {0}, norm = 0, near[9], far[9];
    for (int64_t p = 0; p < n; p++) {
        neighbours(in, in->k, p, c, near);
        for (int t = 0; t < 9; t++) g[t] += rate * near[t] * in->v[p * d + c];
    }
    for (int t = 0; t < 9; t++) norm += g[t] * g[t];
    const double factor = sign * (double)steps * (in->variant.raw_dwc ? 1 : 1 / (sqrt(norm) + 1));
    for (int64_t p = 0; p < n; p++) {
        double state = 0, first = 0, pairs = 0;
        neighbours(in, in->q, p, c, near);
        for (int t = 0; t < 9; t++) {
            state += near[t] * (in->w3[c * 9 + t] + factor * g[t]);
            first += near[t] * in->w3[c * 9 + t];
        }
        for (int64_t s = 0; s < n; s++) {
            double score = 0;
            neighbours(in, in->k, s, c, far);
            for (int t = 0; t < 9; t++) score += near[t] * far[t];
            pairs += score * rate * in->v[s * d + c];
        }
        layer[p * d + c] = state;
        attention[p * d + c] = first + factor * pairs;
        wrong[p * d + c] = first + sign * (double)steps * pairs;
        start[p * d + c] = first;
    }
}

Status identity_dwc(const IdentityDwc *in, IdentityResult *out) {
    const int64_t size = in->height * in->columns * in->width;
    double *memory;
    *out = (IdentityResult){0};
    TRY(mem_alloc((void **)&memory, 4 * size, sizeof *memory, "an attention form"));
    double *layer = memory, *attention = memory + size, *wrong = memory + 2 * size;
    double *start = memory + 3 * size;
    for (int64_t c = 0; c < in->width; c++) dwc_channel(in, c, layer, attention, wrong, start);
    identity_compare(out, in->out, layer, attention, size);
    out->start = dense_norm(start, size) / fmax(dense_norm(attention, size), 1e-300);
    if (!in->variant.raw_dwc) identity_control(out, "no soft norm", layer, wrong, size);
    mem_free(memory);
    return STATUS_OK;
}
