/* A classifier's layers against the identity: passes of one picture, and the rows of the report. */
#include "tools/verify.h"

#include "core/memory.h"
#include "tools/predict.h"

struct Verifier {
    Model *model;
    Predictor predictor;
    FastLayer *layers;
    VerifyRow *rows;
    int64_t *first; /* row of each layer; behind the last: their number */
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

Status classifier_layers(const Model *m, FastLayer **out) {
    TRY(mem_alloc((void **)out, m->config.depth, sizeof **out, "layers to look at"));
    for (int64_t i = 0; i < m->config.depth; i++) {
        VitttBlock *b = &m->vittt->blocks[i];
        const int64_t side = vittt_block_side(m->vittt, i, m->preprocess.image_size);
        (*out)[i] = b->sequence.kind == SEQUENCE_LACT    ? fast_layer_lact(&b->sequence.lact)
                    : b->sequence.kind == SEQUENCE_GRAPH ? fast_layer_graph(&b->sequence)
                                                         : fast_layer_vittt(&b->mixer, side);
    }
    return STATUS_OK;
}

static Status open_rows(Verifier *v) {
    const int64_t depth = v->model->config.depth;
    TRY(mem_alloc((void **)&v->rows, depth * LAYER_ROWS, sizeof *v->rows, "rows"));
    TRY(mem_alloc((void **)&v->first, depth + 1, sizeof *v->first, "rows"));
    for (int64_t i = 0; i < depth; i++)
        v->first[i + 1] = v->first[i] + fast_layer_rows(&v->layers[i], i, v->rows + v->first[i]);
    return STATUS_OK;
}

Status verifier_open(Model *m, Verifier **out) {
    Verifier *v;
    TRY(mem_alloc((void **)&v, 1, sizeof *v, "a verifier"));
    v->model = m;
    Status s = predictor_open(&v->predictor, m, 1);
    if (s == STATUS_OK) s = classifier_layers(m, &v->layers);
    if (s == STATUS_OK) s = open_rows(v);
    if (s == STATUS_OK)
        s = mem_alloc((void **)&v->logits, m->config.classes, sizeof(float), "logits");
    if (s != STATUS_OK) {
        verifier_close(v);
        return s;
    }
    for (int64_t i = 0; i < m->config.depth; i++) fast_layer_trace(&v->layers[i], true);
    *out = v;
    return STATUS_OK;
}

void verifier_close(Verifier *v) {
    if (!v) return;
    for (int64_t i = 0; v->layers && i < v->model->config.depth; i++)
        fast_layer_trace(&v->layers[i], false);
    predictor_close(&v->predictor);
    mem_free(v->layers);
    mem_free(v->rows);
    mem_free(v->first);
    mem_free(v->logits);
    mem_free(v);
}

const VerifyRow *verifier_rows(const Verifier *v, int64_t *count) {
    *count = v->first[v->model->config.depth];
    return v->rows;
}

bool verifier_has_muon(const Verifier *v) {
    return fast_layer_has_muon(&v->layers[0]);
}

Status verifier_picture(Verifier *v, const uint8_t *pixels) {
    TRY(predict(&v->predictor, pixels, 1, v->logits));
    for (int64_t i = 0; i < v->model->config.depth; i++)
        TRY(fast_layer_verify(v->model->device, &v->layers[i], v->rows + v->first[i]));
    return STATUS_OK;
}
