/* models/lact_causal: chunks of a static kernel, W1 alone written, with rates and momentum; what
 * every form must give, and the weights of the token-pair reading (lact_nvs.md 10). */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "golden.h"
#include "ttt/chunked.h"
#include "ttt/newton_schulz.h"

enum { Q, K, V, ETA, ALPHA, W0, W1, W2, ARRAYS };

typedef struct CausalRun {
    Golden *g;
    Tape *t;
    GoldenArray in[ARRAYS];
    int64_t chunks, length;
} CausalRun;

static bool recognise(const SafeFile *f) {
    return safetensors_meta(f, "chunk_length") && safetensors_find(f, "o.inclusive.plain");
}

static Status push(CausalRun *r, int i, int rank, const int64_t *shape, Var **out) {
    Tensor x;
    TRY(golden_push(r->t, &r->in[i], DTYPE_F32, &x));
    Var *v = tape_input(r->t, x, "input");
    if (i <= V) v = op_cast(r->t, v, r->g->act);
    *out = op_view(r->t, v, rank, shape);
    return tape_status(r->t);
}

/* The file has one factor a chunk; the layer takes the mean of one value a token. */
static Status spread_alpha(CausalRun *r) {
    GoldenArray *a = &r->in[ALPHA];
    const int64_t n = r->chunks * r->length;
    double *values;
    TRY(mem_alloc((void **)&values, n, sizeof *values, "momentum"));
    for (int64_t i = 0; i < n; i++) values[i] = a->values[i / r->length];
    mem_free(a->values);
    *a = (GoldenArray){.values = values, .count = n, .rank = 1, .shape = {n}};
    return STATUS_OK;
}

static Status run_form(CausalRun *r, const char *view, bool muon, ChunkedForm form, bool composed) {
    static const char *const names[2][2] = {{"fused recurrent", "fused parallel"},
                                            {"recurrent", "parallel"}};
    ChunkedRule rule;
    ChunkedTokens in = {0};
    char name[64];
    TRY(chunked_variant(2, &rule));
    rule.no_muon = !muon;
    rule.composed = composed;
    rule.newton_schulz.bf16 = r->g->act == DTYPE_BF16;
    rule.chunk = r->length;
    rule.inclusive = strcmp(view, "inclusive") == 0;
    tape_reset(r->t, false);
    const int64_t n = r->chunks * r->length, d = r->in[Q].shape[2], h = r->in[W0].shape[1];
    const int64_t scalars[] = {1, 1, n}, tokens[] = {1, 1, n, d};
    TRY(push(r, Q, 4, tokens, &in.q));
    TRY(push(r, K, 4, tokens, &in.k));
    TRY(push(r, V, 4, tokens, &in.v));
    TRY(push(r, ETA, 3, scalars, &in.rate[1]));
    TRY(push(r, ALPHA, 3, scalars, &in.momentum));
    TRY(push(r, W0, 4, (int64_t[]){1, 1, d, h}, &in.weight[0]));
    TRY(push(r, W1, 4, (int64_t[]){1, 1, h, d}, &in.weight[1]));
    TRY(push(r, W2, 4, (int64_t[]){1, 1, d, h}, &in.weight[2]));
    Var *y = chunked_forward(&rule, form, r->t, &in, NULL);
    TRY(tape_status(r->t));
    snprintf(name, sizeof name, "o.%s.%s", view, muon ? "muon" : "plain");
    golden_set_limits(r->g, muon ? 2e-5 : 1e-5, 5e-2 / 4, 5e-2);
    return golden_compare(r->g, name, names[composed][form == CHUNKED_PARALLEL], y->value, 0);
}

static Status run_mask(CausalRun *r, const char *view) {
    double alpha[64], weights[64 * 64];
    GoldenArray want;
    TRY(golden_read(r->g, &want, "mask.%s", view));
    for (int64_t i = 0; i < r->chunks; i++) alpha[i] = r->in[ALPHA].values[i * r->length];
    chunked_pair_weights(alpha, r->chunks, strcmp(view, "inclusive") == 0, weights);
    double worst = 0;
    for (int64_t i = 0; i < want.count && i < r->chunks * r->chunks; i++) {
        const double off =
            weights[i] > want.values[i] ? weights[i] - want.values[i] : want.values[i] - weights[i];
        worst = off > worst ? off : worst;
    }
    const bool right_size = want.count == r->chunks * r->chunks;
    mem_free(want.values);
    r->g->checked++;
    r->g->failed += !right_size || !(worst <= 1e-12);
    printf("  mask.%-37s %-9s %9.2e  %s\n", view, "weights", worst,
           right_size && worst <= 1e-12 ? "ok" : "FAIL");
    return STATUS_OK;
}

static Status run_all(CausalRun *r) {
    static const char *const views[] = {"inclusive", "exclusive"};
    static const char *const names[ARRAYS] = {"Q", "K", "V", "eta", "alpha", "w0", "w1", "w2"};
    TRY(golden_meta_int(r->g, "chunks", &r->chunks));
    TRY(golden_meta_int(r->g, "chunk_length", &r->length));
    for (int i = 0; i < ARRAYS; i++) TRY(golden_read(r->g, &r->in[i], "%s", names[i]));
    if (r->chunks < 1 || r->chunks > 64 || r->in[Q].rank != 3 || r->in[W0].rank != 2 ||
        r->in[ALPHA].count != r->chunks)
        return status_set(STATUS_DATA, "chunks or shapes are not what the file says");
    TRY(spread_alpha(r));
    TRY(tape_new(r->g->device, &r->t));
    tape_set_act(r->t, DTYPE_F32);
    for (int v = 0; v < 2; v++) {
        for (int i = 0; i < 4; i++) {
            TRY(run_form(r, views[v], i / 2, CHUNKED_RECURRENT, i % 2));
            TRY(run_form(r, views[v], i / 2, CHUNKED_PARALLEL, i % 2));
        }
        TRY(run_mask(r, views[v]));
    }
    return STATUS_OK;
}

static Status run(Golden *g) {
    CausalRun r = {.g = g};
    const Status s = run_all(&r);
    if (r.t) tape_free(r.t);
    for (int i = 0; i < ARRAYS; i++) mem_free(r.in[i].values);
    return s;
}

const GoldenKind golden_kind_lact_causal = {"models/lact_causal", recognise, run};
