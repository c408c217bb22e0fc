/* A layer's inner loop and its vectors in the last pass. */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/fast_layer.h"

static void inner_add(InnerLoop *sum, const InnerLoop *one, double factor) {
    for (int i = 0; i < 2; i++) {
        sum->loss[i] += factor * one->loss[i];
        sum->alignment[i] += factor * one->alignment[i];
    }
    sum->moved += factor * one->moved;
}

/* ---- ViTTT ---- */

/* The GLU branch: packed projections, weights, and room for a head's keys and values. */
typedef struct GluView {
    double *qkv, *w1, *w2, *k, *v;
} GluView;

static Status glu_heads(const FastLayer *l, const GluView *g, InnerLoop *out) {
    const VitttMixer *m = l->vittt;
    const int64_t c = m->width, d = c / m->heads, n = l->side * l->side, all = 3 * (c + d);
    for (int64_t h = 0; h < m->heads; h++) {
        InnerLoop one;
        matrix_columns(g->k, g->qkv, n, all, c + h * d, d);
        matrix_columns(g->v, g->qkv, n, all, 2 * c + h * d, d);
        const IdentityGlu in = {.tokens = n,
                                .width = d,
                                .variant = m->variant,
                                .k = g->k,
                                .v = g->v,
                                .w1 = g->w1 + h * d * d,
                                .w2 = g->w2 + h * d * d};
        TRY(inner_glu(&in, &one));
        inner_add(out, &one, 1 / (double)m->heads);
    }
    return STATUS_OK;
}

static Status inner_of_vittt(Device *d, const FastLayer *l, InnerLoop *out) {
    const VitttMixer *m = l->vittt;
    const int64_t size = l->side * l->side * (m->width / m->heads);
    GluView g = {0};
    Status s = fast_layer_pull(d, l->vittt_trace.qkv->value, &g.qkv);
    if (s == STATUS_OK) s = fast_layer_pull(d, m->w1->value, &g.w1);
    if (s == STATUS_OK) s = fast_layer_pull(d, m->w2->value, &g.w2);
    if (s == STATUS_OK) s = mem_alloc((void **)&g.k, 2 * size, sizeof *g.k, "a head");
    if (s == STATUS_OK) {
        g.v = g.k + size;
        s = glu_heads(l, &g, out);
    }
    mem_free(g.qkv);
    mem_free(g.w1);
    mem_free(g.w2);
    mem_free(g.k);
    return s;
}

/* ---- LaCT ---- */

/* W0 and W2 [H,e,h] out of [W0 | W2] [H,e,2h]. */
static Status split_gates(const LactLayer *m, double *gates, double *w[3]) {
    const int64_t e = m->width / m->heads, h = e * m->inter_multi, size = m->width * h;
    TRY(mem_alloc((void **)&w[0], size, sizeof **w, "written weights"));
    TRY(mem_alloc((void **)&w[2], size, sizeof **w, "written weights"));
    matrix_columns(w[0], gates, m->width, 2 * h, 0, h);
    matrix_columns(w[2], gates, m->width, 2 * h, h, h);
    return STATUS_OK;
}

/* The written weights in the layout of the layer's own; those that are none stay NULL. */
static Status written_weights(Device *d, const FastLayer *l, double *w[3]) {
    const LactFast *f = &l->lact_trace.fast;
    double *gates = NULL;
    if (!f->fused.gates) {
        for (int j = 0; j < 3; j++)
            if (f->w[j]) TRY(fast_layer_pull(d, f->w[j]->value, &w[j]));
        return STATUS_OK;
    }
    TRY(fast_layer_pull(d, f->fused.back->value, &w[1]));
    TRY(fast_layer_pull(d, f->fused.gates->value, &gates));
    const Status s = split_gates(l->lact, gates, w);
    mem_free(gates);
    return s;
}

static Status inner_of_lact(Device *d, const FastLayer *l, InnerLoop *out) {
    LactInput x;
    double *w[3] = {NULL};
    TRY(lact_input(d, l, &x));
    Status s = written_weights(d, l, w);
    const double *const written[3] = {w[0] ? w[0] : x.in.w[0], w[1], w[2] ? w[2] : x.in.w[2]};
    if (s == STATUS_OK) s = inner_lact(&x.in, written, out);
    for (int j = 0; j < 3; j++) mem_free(w[j]);
    lact_input_free(&x);
    return s;
}

/* ---- graphs ---- */

static Status inner_of_graph(Device *d, const FastLayer *l, InnerLoop *out) {
    GraphInput x;
    TRY(graph_input(d, l, &x));
    Status s = STATUS_OK;
    for (int64_t h = 0; h < l->graph->heads && s == STATUS_OK; h++) {
        const IdentityGraph in = graph_head(&x, l, h);
        InnerLoop one;
        s = inner_graph(&in, &one);
        if (s == STATUS_OK) inner_add(out, &one, 1 / (double)l->graph->heads);
    }
    graph_input_free(&x);
    return s;
}

Status fast_layer_inner(Device *d, const FastLayer *l, InnerLoop *out) {
    *out = (InnerLoop){0};
    if (l->kind == LAYER_VITTT) return inner_of_vittt(d, l, out);
    return l->kind == LAYER_LACT ? inner_of_lact(d, l, out) : inner_of_graph(d, l, out);
}

/* ---- vectors ---- */

static Status vectors_of_vittt(Device *d, const FastLayer *l, VectorKind kind, double **out,
                               int64_t *count, int64_t *width) {
    const VitttMixer *m = l->vittt;
    const int64_t c = m->width;
    const Var *from = kind == VECTOR_OUTPUT ? l->vittt_trace.cat : l->vittt_trace.qkv;
    const int64_t tokens = from->value.shape[1], all = from->value.shape[2];
    const int third = kind == VECTOR_QUERY && m->variant.query_is_key ? VECTOR_KEY : (int)kind;
    double *packed = NULL;
    Status s = fast_layer_pull(d, from->value, &packed);
    if (s == STATUS_OK) s = mem_alloc((void **)out, tokens * c, sizeof **out, "vectors");
    if (s == STATUS_OK)
        matrix_columns(*out, packed, tokens, all, kind == VECTOR_OUTPUT ? 0 : third * c, c);
    mem_free(packed);
    *count = tokens * m->heads;
    *width = c / m->heads;
    return s;
}

bool fast_layer_has_features(const FastLayer *l) {
    return l->kind == LAYER_LACT && !l->lact->variant.linear;
}

static bool is_of_writers(VectorKind kind) {
    return kind == VECTOR_KEY || kind == VECTOR_VALUE || kind == VECTOR_WRITE_FEATURE;
}

/* n rows of head h, of kinds other than OUTPUT, to `out`; w: the written weights. */
static Status vectors_of_head(const IdentityLact *in, int64_t h, VectorKind kind,
                              const double *const w[3], int64_t n, double *out) {
    const int64_t e = in->width / in->heads, hidden = e * in->inter_multi;
    LactVectors v;
    TRY(lact_vectors(in, h, &v));
    const double *from = is_of_writers(kind) ? v.k : v.q;
    Status s = STATUS_OK;
    if (kind == VECTOR_READ_FEATURE || kind == VECTOR_WRITE_FEATURE) {
        double *work;
        s = mem_alloc((void **)&work, n * hidden, sizeof *work, "features");
        if (s == STATUS_OK) {
            const double *const *gates = kind == VECTOR_READ_FEATURE ? w : in->w;
            lact_features(in, h, gates, from, n, work, out);
            mem_free(work);
        }
    } else {
        memcpy(out, kind == VECTOR_VALUE ? v.v : from, (size_t)(n * e) * sizeof *out);
    }
    mem_free(v.q);
    return s;
}

/* Rows of head h behind those of earlier heads. */
static Status vectors_of_lact(Device *d, const FastLayer *l, VectorKind kind, double **out,
                              int64_t *count, int64_t *width) {
    const LactLayer *m = l->lact;
    const bool features = kind == VECTOR_READ_FEATURE || kind == VECTOR_WRITE_FEATURE;
    double *w[3] = {NULL};
    LactInput x;
    TRY(lact_input(d, l, &x));
    const int64_t n = is_of_writers(kind) ? x.in.writing : x.in.tokens - x.in.first_read;
    *width = m->width / m->heads * (features ? m->inter_multi : 1);
    *count = n * m->heads;
    Status s = mem_alloc((void **)out, *count * *width, sizeof **out, "vectors");
    if (s == STATUS_OK && kind == VECTOR_READ_FEATURE) s = written_weights(d, l, w);
    const double *const written[3] = {w[0] ? w[0] : x.in.w[0], w[1], w[2] ? w[2] : x.in.w[2]};
    if (s == STATUS_OK && kind == VECTOR_OUTPUT)
        memcpy(*out, x.in.out, (size_t)(*count * *width) * sizeof **out);
    for (int64_t h = 0; s == STATUS_OK && kind != VECTOR_OUTPUT && h < m->heads; h++)
        s = vectors_of_head(&x.in, h, kind, written, n, *out + h * n * *width);
    for (int j = 0; j < 3; j++) mem_free(w[j]);
    lact_input_free(&x);
    return s;
}

static Status vectors_of_graph(Device *d, const FastLayer *l, VectorKind kind, double **out,
                               int64_t *count, int64_t *width) {
    const GraphTrace *t = &l->graph_trace;
    const Var *from[] = {t->q, t->k, t->v, t->o};
    const int64_t *shape = t->q->value.shape;
    *count = shape[1] * shape[2];
    *width = shape[3];
    return fast_layer_pull(d, from[kind]->value, out);
}

Status fast_layer_vectors(Device *d, const FastLayer *l, VectorKind kind, double **out,
                          int64_t *count, int64_t *width) {
    *out = NULL;
    Status s = l->kind == LAYER_VITTT  ? vectors_of_vittt(d, l, kind, out, count, width)
               : l->kind == LAYER_LACT ? vectors_of_lact(d, l, kind, out, count, width)
                                       : vectors_of_graph(d, l, kind, out, count, width);
    if (s == STATUS_OK) return s;
    mem_free(*out);
    *out = NULL;
    return s;
}

/* ---- cosine of query and key ---- */

static double mean_cosine(const double *q, const double *k, int64_t n, int64_t d) {
    double sum = 0;
    for (int64_t t = 0; t < n; t++) {
        double qk = 0, qq = 0, kk = 0;
        for (int64_t i = t * d; i < (t + 1) * d; i++) {
            qk += q[i] * k[i];
            qq += q[i] * q[i];
            kk += k[i] * k[i];
        }
        sum += qq > 0 && kk > 0 ? qk / sqrt(qq * kk) : 0;
    }
    return n > 0 ? sum / (double)n : NAN;
}

/* LaCT: tokens that write and read stand in front; none do where the two are separate. */
static Status cosine_of_lact(Device *d, const FastLayer *l, double *out) {
    LactInput x;
    *out = NAN;
    if (l->lact_trace.read) return STATUS_OK;
    TRY(lact_input(d, l, &x));
    double sum = 0;
    Status s = STATUS_OK;
    for (int64_t h = 0; s == STATUS_OK && h < l->lact->heads; h++) {
        LactVectors v;
        s = lact_vectors(&x.in, h, &v);
        if (s != STATUS_OK) break;
        sum += mean_cosine(v.q, v.k, v.writing, v.width);
        mem_free(v.q);
    }
    lact_input_free(&x);
    *out = sum / (double)l->lact->heads;
    return s;
}

Status fast_layer_cosine(Device *d, const FastLayer *l, double *out) {
    double *q = NULL, *k = NULL;
    int64_t n, m, width;
    if (l->kind == LAYER_LACT) return cosine_of_lact(d, l, out);
    Status s = fast_layer_vectors(d, l, VECTOR_QUERY, &q, &n, &width);
    if (s == STATUS_OK) s = fast_layer_vectors(d, l, VECTOR_KEY, &k, &m, &width);
    if (s == STATUS_OK) *out = mean_cosine(q, k, n, width);
    mem_free(q);
    mem_free(k);
    return s;
}
