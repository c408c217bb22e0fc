/* A classifier's layers: what they saw, on the host in double precision, against the identity. */
#include "tools/verify.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/predict.h"

struct Verifier {
    Model *model;
    Predictor predictor;
    VitttTrace *traces;
    LactTrace *lact;
    bool is_lact;
    VerifyRow *rows;
    float *logits;
};

VerifyLimits verify_limits(DType act, bool muon) {
    return (VerifyLimits){1e-10, act == DTYPE_F32 ? (muon ? 5e-5 : 1e-5) : muon ? 5e-2 : 2e-2};
}

bool verify_row_holds(const VerifyRow *r, VerifyLimits limits) {
    bool holds = r->seen && r->result.f64 <= limits.f64 && r->result.layer <= limits.layer;
    /* A wrong formula that misses by no more than the right one would make the check worthless. How
     * far it misses is up to the model: where the gradient is tiny, so is its soft norm's part. */
    for (int i = 0; i < r->result.controls; i++)
        holds = holds && r->result.control[i].error >= 100 * r->result.f64;
    return holds;
}

Status verifier_open(Model *m, Verifier **out) {
    Verifier *v;
    const int64_t depth = m->config.depth;
    if (m->vittt->blocks[0].sequence.kind == SEQUENCE_GRAPH)
        return status_set(STATUS_USAGE, "mixer '%s': graph learners cannot be verified so far",
                          m->config.mixer);
    TRY(mem_alloc((void **)&v, 1, sizeof *v, "a verifier"));
    v->model = m;
    Status s = predictor_open(&v->predictor, m, 1);
    if (s == STATUS_OK) s = mem_alloc((void **)&v->traces, depth, sizeof *v->traces, "traces");
    if (s == STATUS_OK) s = mem_alloc((void **)&v->lact, depth, sizeof *v->lact, "traces");
    if (s == STATUS_OK) s = mem_alloc((void **)&v->rows, 2 * depth, sizeof *v->rows, "rows");
    if (s == STATUS_OK)
        s = mem_alloc((void **)&v->logits, m->config.classes, sizeof(float), "logits");
    if (s != STATUS_OK) {
        verifier_close(v);
        return s;
    }
    v->is_lact = m->vittt->blocks[0].sequence.kind == SEQUENCE_LACT;
    for (int64_t i = 0; i < depth; i++) {
        VerifyRow *rows = v->is_lact ? &v->rows[i] : &v->rows[2 * i];
        rows[0] = (VerifyRow){.layer = i, .branch = v->is_lact ? "lact" : "glu"};
        if (!v->is_lact) rows[1] = (VerifyRow){.layer = i, .branch = "depthwise"};
    }
    verifier_trace(v, true);
    *out = v;
    return STATUS_OK;
}

void verifier_close(Verifier *v) {
    if (!v) return;
    verifier_trace(v, false);
    predictor_close(&v->predictor);
    mem_free(v->traces);
    mem_free(v->lact);
    mem_free(v->rows);
    mem_free(v->logits);
    mem_free(v);
}

const VerifyRow *verifier_rows(const Verifier *v, int64_t *count) {
    *count = (v->is_lact ? 1 : 2) * v->model->config.depth;
    return v->rows;
}

/* ---- tensors as doubles ---- */

static Status pull(Device *d, Tensor t, double **out) {
    const int64_t n = tensor_count(t);
    void *raw;
    TRY(mem_alloc(&raw, n, dtype_size(t.dtype), "a layer's values"));
    Status s = mem_alloc((void **)out, n, sizeof **out, "a layer's values");
    if (s == STATUS_OK) s = device_pull(d, raw, t);
    for (int64_t i = 0; s == STATUS_OK && i < n; i++)
        (*out)[i] = t.dtype == DTYPE_F32 ? (double)((float *)raw)[i]
                                         : (double)f32_from_bf16(((uint16_t *)raw)[i]);
    mem_free(raw);
    return s;
}

/* Columns [from, from + width) of x [rows, columns]. */
static void columns(double *out, const double *x, int64_t rows, int64_t all, int64_t from,
                    int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + r * width, x + r * all + from, (size_t)width * sizeof *out);
}

/* What one layer saw, and room for one head of it. */
typedef struct LayerView {
    const VitttMixer *mixer;
    int64_t tokens, side;
    double *qkv, *cat, *w1, *w2, *w3, *head; /* head [4, tokens, d] */
} LayerView;

static void merge(VerifyRow *row, const IdentityResult *r) {
    if (row->seen)
        identity_merge(&row->result, r);
    else
        row->result = *r;
    row->seen = true;
    for (int i = 0; i < 2; i++) {
        row->loss[i] += r->loss[i];
        row->alignment[i] += r->alignment[i];
    }
    row->moved += r->moved;
    row->count++;
}

static Status check_glu(const LayerView *l, VerifyRow *row) {
    const int64_t c = l->mixer->width, d = c / l->mixer->heads, n = l->tokens, all = 3 * (c + d);
    double *q = l->head, *k = q + n * d, *v = k + n * d, *out = v + n * d;
    for (int64_t h = 0; h < l->mixer->heads; h++) {
        IdentityResult r;
        columns(k, l->qkv, n, all, c + h * d, d);
        columns(q, l->qkv, n, all, (l->mixer->variant.query_is_key ? c : 0) + h * d, d);
        columns(v, l->qkv, n, all, 2 * c + h * d, d);
        columns(out, l->cat, n, c + d, h * d, d);
        const IdentityGlu in = {.tokens = n,
                                .width = d,
                                .variant = l->mixer->variant,
                                .q = q,
                                .k = k,
                                .v = v,
                                .w1 = l->w1 + h * d * d,
                                .w2 = l->w2 + h * d * d,
                                .out = out};
        TRY(identity_glu(&in, &r));
        merge(row, &r);
    }
    return STATUS_OK;
}

static Status check_dwc(const LayerView *l, VerifyRow *row) {
    const int64_t c = l->mixer->width, d = c / l->mixer->heads, n = l->tokens, all = 3 * (c + d);
    double *q = l->head, *k = q + n * d, *v = k + n * d, *out = v + n * d;
    IdentityResult r;
    columns(k, l->qkv, n, all, 3 * c + d, d);
    columns(q, l->qkv, n, all, 3 * c + (l->mixer->variant.query_is_key ? d : 0), d);
    columns(v, l->qkv, n, all, 3 * c + 2 * d, d);
    columns(out, l->cat, n, c + d, c, d);
    const IdentityDwc in = {.height = l->side,
                            .columns = l->side,
                            .width = d,
                            .variant = l->mixer->variant,
                            .q = q,
                            .k = k,
                            .v = v,
                            .w3 = l->w3,
                            .out = out};
    TRY(identity_dwc(&in, &r));
    merge(row, &r);
    return STATUS_OK;
}

Status verify_lact(Device *d, const LactLayer *m, const LactTrace *t, VerifyRow *row) {
    double *v[7] = {0};
    const Tensor from[7] = {t->x->value,    m->qkv_w->value, m->rate_w->value, m->rate_b->value,
                            m->w[0]->value, m->w[1]->value,  m->w[2]->value};
    double *out = NULL;
    IdentityResult r;
    Status s = pull(d, t->o->value, &out);
    for (int i = 0; i < 7 && s == STATUS_OK; i++) s = pull(d, from[i], &v[i]);
    const int64_t tokens = t->x->value.shape[1];
    const IdentityLact in = {.variant = m->variant,
                             .tokens = tokens,
                             .writing = t->writing,
                             .width = m->width,
                             .heads = m->heads,
                             .inter_multi = m->inter_multi,
                             .x = v[0],
                             .qkv_w = v[1],
                             .rate_w = v[2],
                             .rate_b = v[3],
                             .w = {v[4], v[5], v[6]},
                             .out = out};
    if (s == STATUS_OK) s = identity_lact(&in, &r);
    if (s == STATUS_OK) merge(row, &r);
    for (int i = 0; i < 7; i++) mem_free(v[i]);
    mem_free(out);
    return s;
}

static Status check_layer(Verifier *v, int64_t i) {
    const Model *m = v->model;
    const VitttMixer *mixer = &m->vittt->blocks[i].mixer;
    const VitttTrace *t = &v->traces[i];
    LayerView l = {.mixer = mixer, .side = m->preprocess.image_size / m->config.patch};
    l.tokens = l.side * l.side;
    Device *d = m->device;
    Status s = pull(d, t->qkv->value, &l.qkv);
    if (s == STATUS_OK) s = pull(d, t->cat->value, &l.cat);
    if (s == STATUS_OK) s = pull(d, mixer->w1->value, &l.w1);
    if (s == STATUS_OK) s = pull(d, mixer->w2->value, &l.w2);
    if (s == STATUS_OK) s = pull(d, mixer->w3->value, &l.w3);
    if (s == STATUS_OK)
        s = mem_alloc((void **)&l.head, 4 * l.tokens * (mixer->width / mixer->heads),
                      sizeof *l.head, "a head");
    if (s == STATUS_OK) s = check_glu(&l, &v->rows[2 * i]);
    if (s == STATUS_OK) s = check_dwc(&l, &v->rows[2 * i + 1]);
    double *owned[] = {l.qkv, l.cat, l.w1, l.w2, l.w3, l.head};
    for (int j = 0; j < 6; j++) mem_free(owned[j]);
    return s;
}

bool verifier_has_muon(const Verifier *v) {
    return v->is_lact && !v->model->vittt->blocks[0].sequence.lact.variant.no_muon;
}

void verifier_trace(Verifier *v, bool on) {
    for (int64_t i = 0; v->lact && i < v->model->config.depth; i++) {
        VitttBlock *b = &v->model->vittt->blocks[i];
        b->mixer.trace = on && !v->is_lact ? &v->traces[i] : NULL;
        b->sequence.lact.trace = on && v->is_lact ? &v->lact[i] : NULL;
    }
}

void verifier_clear(Verifier *v) {
    for (int64_t i = 0; i < 2 * v->model->config.depth; i++)
        v->rows[i] = (VerifyRow){.layer = v->rows[i].layer, .branch = v->rows[i].branch};
}

Status verifier_values(const Verifier *v, int64_t layer, int kind, double **out, int64_t *rows,
                       int64_t *width) {
    const VitttMixer *m = &v->model->vittt->blocks[layer].mixer;
    const int64_t c = m->width, d = c / m->heads;
    const Var *from = kind == 3 ? v->traces[layer].cat : v->traces[layer].qkv;
    const int64_t tokens = from->value.shape[1], all = from->value.shape[2];
    double *packed = NULL;
    TRY(pull(v->model->device, from->value, &packed));
    const Status s = mem_alloc((void **)out, tokens * c, sizeof **out, "a layer's values");
    for (int64_t t = 0; s == STATUS_OK && t < tokens; t++)
        memcpy(*out + t * c, packed + t * all + (kind == 3 ? 0 : kind * c),
               (size_t)c * sizeof **out);
    mem_free(packed);
    *rows = tokens * m->heads;
    *width = d;
    return s;
}

Status verifier_picture(Verifier *v, const uint8_t *pixels) {
    TRY(predict(&v->predictor, pixels, 1, v->logits));
    for (int64_t i = 0; i < v->model->config.depth; i++) {
        const LactLayer *lact = &v->model->vittt->blocks[i].sequence.lact;
        TRY(v->is_lact ? verify_lact(v->model->device, lact, &v->lact[i], &v->rows[i])
                       : check_layer(v, i));
    }
    return STATUS_OK;
}
