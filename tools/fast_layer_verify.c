/* A layer's branches, nodes or heads against their attention forms. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "tools/fast_layer.h"

int fast_layer_rows(const FastLayer *l, int64_t layer, VerifyRow *rows) {
    int count = 0;
    if (l->kind == LAYER_LACT) rows[count++] = (VerifyRow){.layer = layer, .branch = "lact"};
    if (l->kind == LAYER_VITTT) {
        rows[count++] = (VerifyRow){.layer = layer, .branch = "glu"};
        rows[count++] = (VerifyRow){.layer = layer, .branch = "depthwise"};
    }
    if (l->kind != LAYER_GRAPH) return count;
    const Graph *g = &l->graph->graph;
    for (int j = 0; j < g->count; j++) {
        const GraphNode *n = &g->nodes[j];
        if (!n->fast) continue;
        rows[count] = (VerifyRow){.layer = layer, .branch = n->name};
        graph_linear_form(g, j, rows[count].note, sizeof rows[count].note);
        count++;
    }
    rows[count] = (VerifyRow){.layer = layer, .branch = "output"};
    graph_linear_form(g, g->count, rows[count].note, sizeof rows[count].note);
    return count + 1;
}

static void merge(VerifyRow *row, const IdentityResult *r) {
    if (row->seen)
        identity_merge(&row->result, r);
    else
        row->result = *r;
    row->seen = true;
}

/* ---- ViTTT ---- */

/* What one layer saw, and room for one head of it. */
typedef struct LayerView {
    const VitttMixer *mixer;
    int64_t tokens, side;
    double *qkv, *cat, *w1, *w2, *w3, *head; /* head [4, tokens, d] */
} LayerView;

static Status check_glu(const LayerView *l, VerifyRow *row) {
    const int64_t c = l->mixer->width, d = c / l->mixer->heads, n = l->tokens, all = 3 * (c + d);
    double *q = l->head, *k = q + n * d, *v = k + n * d, *out = v + n * d;
    for (int64_t h = 0; h < l->mixer->heads; h++) {
        IdentityResult r;
        matrix_columns(k, l->qkv, n, all, c + h * d, d);
        matrix_columns(q, l->qkv, n, all, (l->mixer->variant.query_is_key ? c : 0) + h * d, d);
        matrix_columns(v, l->qkv, n, all, 2 * c + h * d, d);
        matrix_columns(out, l->cat, n, c + d, h * d, d);
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
    matrix_columns(k, l->qkv, n, all, 3 * c + d, d);
    matrix_columns(q, l->qkv, n, all, 3 * c + (l->mixer->variant.query_is_key ? d : 0), d);
    matrix_columns(v, l->qkv, n, all, 3 * c + 2 * d, d);
    matrix_columns(out, l->cat, n, c + d, c, d);
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

static Status verify_vittt(Device *d, const FastLayer *layer, VerifyRow *rows) {
    const VitttMixer *mixer = layer->vittt;
    const VitttTrace *t = &layer->vittt_trace;
    LayerView l = {.mixer = mixer, .side = layer->side, .tokens = layer->side * layer->side};
    Status s = fast_layer_pull(d, t->qkv->value, &l.qkv);
    if (s == STATUS_OK) s = fast_layer_pull(d, t->cat->value, &l.cat);
    if (s == STATUS_OK) s = fast_layer_pull(d, mixer->w1->value, &l.w1);
    if (s == STATUS_OK) s = fast_layer_pull(d, mixer->w2->value, &l.w2);
    if (s == STATUS_OK) s = fast_layer_pull(d, mixer->w3->value, &l.w3);
    if (s == STATUS_OK)
        s = mem_alloc((void **)&l.head, 4 * l.tokens * (mixer->width / mixer->heads),
                      sizeof *l.head, "a head");
    if (s == STATUS_OK) s = check_glu(&l, &rows[0]);
    if (s == STATUS_OK) s = check_dwc(&l, &rows[1]);
    double *owned[] = {l.qkv, l.cat, l.w1, l.w2, l.w3, l.head};
    for (int j = 0; j < 6; j++) mem_free(owned[j]);
    return s;
}

/* ---- LaCT ---- */

static Status verify_lact(Device *d, const FastLayer *l, VerifyRow *row) {
    LactInput x;
    IdentityResult r;
    TRY(lact_input(d, l, &x));
    const Status s = identity_lact(&x.in, &r);
    lact_input_free(&x);
    if (s == STATUS_OK) merge(row, &r);
    return s;
}

/* ---- graphs ---- */

static Status verify_head(const IdentityGraph *in, VerifyRow *rows) {
    const Graph *g = in->graph;
    IdentityResult results[LAYER_ROWS];
    TRY(identity_graph(in, results));
    int row = 0;
    for (int j = 0; j < g->count; j++) {
        if (!g->nodes[j].fast) continue;
        merge(&rows[row++], &results[j]);
    }
    merge(&rows[row], &results[g->count]);
    return STATUS_OK;
}

static Status verify_graph(Device *d, const FastLayer *l, VerifyRow *rows) {
    GraphInput x;
    TRY(graph_input(d, l, &x));
    Status s = STATUS_OK;
    for (int64_t h = 0; h < l->graph->heads && s == STATUS_OK; h++) {
        const IdentityGraph head = graph_head(&x, l, h);
        s = verify_head(&head, rows);
    }
    graph_input_free(&x);
    return s;
}

Status fast_layer_verify(Device *d, const FastLayer *l, VerifyRow *rows) {
    if (l->kind == LAYER_VITTT) return verify_vittt(d, l, rows);
    return l->kind == LAYER_LACT ? verify_lact(d, l, rows) : verify_graph(d, l, rows);
}
