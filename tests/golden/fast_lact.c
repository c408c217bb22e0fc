/* fastweight/lact_*: the chunked layer in every variant (fastweight.md 4), recurrent and, where
 * there is one, parallel; and the bidirectional vision layer around it (4.6). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fast_case.h"
#include "fast_lact.h"
#include "ttt/chunked.h"

static bool recognise(const SafeFile *f) {
    return fast_family_is(f, "lact") || fast_family_is(f, "lact_layer");
}

static Status read_triples(const cJSON *o, NewtonSchulz *out) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, "ns_coefficients");
    out->steps = cJSON_GetArraySize(list);
    if (out->steps > NEWTON_SCHULZ_MOST) return status_set(STATUS_DATA, "too many triples");
    for (int i = 0; i < out->steps; i++)
        for (int k = 0; k < 3; k++) {
            const cJSON *v = cJSON_GetArrayItem(cJSON_GetArrayItem(list, i), k);
            if (!cJSON_IsNumber(v))
                return status_set(STATUS_DATA, "a triple of other than numbers");
            out->triple[i][k] = (float)v->valuedouble;
        }
    return STATUS_OK;
}

/* The five triples of "schedule5" (4.3), for files that name it only. */
static const float schedule5[5][3] = {{4.0848f, -6.8946f, 2.9270f},
                                      {3.9505f, -6.3029f, 2.6377f},
                                      {3.7418f, -5.5913f, 2.3037f},
                                      {2.8769f, -3.1427f, 1.2046f},
                                      {2.8366f, -3.0525f, 1.2012f}};

Status fast_lact_rule(const cJSON *o, ChunkedRule *r) {
    const cJSON *update = cJSON_GetObjectItemCaseSensitive(o, "update");
    *r = (ChunkedRule){.static_gates = cJSON_GetArraySize(update) == 1,
                       .no_weight_norm = !fast_flag_of(o, "weight_norm"),
                       .linear = strcmp(fast_text_of(o, "kernel", ""), "identity") == 0,
                       .no_muon = !fast_flag_of(o, "muon"),
                       .detach_norm = fast_flag_of(o, "wn_detach"),
                       .inclusive = strcmp(fast_text_of(o, "vis", ""), "inclusive") == 0,
                       .ascend = fast_number_of(o, "sign", 1) < 0,
                       .chunk = (int64_t)fast_number_of(o, "chunk", 0),
                       .steps = (int64_t)fast_number_of(o, "steps", 1)};
    if (cJSON_GetObjectItemCaseSensitive(o, "ns_coefficients"))
        return read_triples(o, &r->newton_schulz);
    r->newton_schulz.steps = 5;
    memcpy(r->newton_schulz.triple, schedule5, sizeof schedule5);
    return STATUS_OK;
}

/* Limits of the class (9). */
static void set_class(FastCase *c, const ChunkedRule *r) {
    if (r->no_muon) return;
    const bool all = !r->static_gates && !r->linear;
    c->out32 = all ? 5e-5 : 2e-5;
    c->grad32 = all ? 1e-3 : 2e-4;
    c->out16 = all ? 2e-1 : 5e-2;
    c->grad16 = 4e-1; /* not comparable element by element: a cosine above 0.9 */
}

static Var *as_weight(Tape *t, Var *w) {
    if (!w) return NULL;
    const int64_t *s = w->value.shape;
    return op_view(t, w, 4, (int64_t[]){1, s[0], s[1], s[2]});
}

static ChunkedTokens tokens_of(const FastCase *c) {
    static const char *const names[] = {"w0", "w1", "w2"};
    const bool swapped = strcmp(fast_text(c, "q_from", "q"), "k") == 0;
    ChunkedTokens in = {.q = fast_find(c, swapped ? "k" : "q", ""),
                        .k = fast_find(c, "k", ""),
                        .v = fast_find(c, "v", ""),
                        .momentum = fast_find(c, "mom", "")};
    for (int j = 0; j < 3; j++) {
        in.weight[j] = as_weight(c->t, fast_find(c, "w.", names[j]));
        in.rate[j] = fast_find(c, "lr.", names[j]);
    }
    Var **tokens[] = {&in.q, &in.k, &in.v};
    for (int j = 0; j < 3; j++)
        if (*tokens[j]) *tokens[j] = op_cast(c->t, *tokens[j], c->g->act);
    return in;
}

static Status check_form(FastCase *c, const ChunkedRule *rule, ChunkedForm form, const char *name) {
    static const char *const ends[] = {"w0", "w1", "w2"};
    const ChunkedTokens in = tokens_of(c);
    ChunkedState end;
    Var *out = chunked_forward(rule, form, c->t, &in, &end);
    TRY(fast_compare_out(c, name, out));
    for (int j = 0; j < 3; j++) TRY(fast_compare_end(c, name, ends[j], end.weight[j]));
    return tape_recording(c->t) ? fast_compare_gradients(c, name, fast_loss(c, out)) : STATUS_OK;
}

/* ---- the vision layer ---- */

/* x [B,N,i] w [i,o]. */
static Var *project(FastCase *c, Var *x, const char *name) {
    Var *w = fast_find(c, "w.", name);
    if (!w) return tape_fail(c->t, status_set(STATUS_DATA, "no 'w.%s'", name));
    const int64_t *s = w->value.shape;
    return op_matmul(c->t, x, false, op_view(c->t, w, 3, (int64_t[]){1, s[0], s[1]}), false, 1,
                     DTYPE_F32);
}

/* softplus(beta + softplus^-1(base)). */
static Var *rates(FastCase *c, Var *x) {
    const double base = fast_number(c, "base_lr", 0.01);
    Var *beta = project(c, x, "wlr");
    if (tape_poison(c->t)) return beta;
    Tensor offset;
    Device *d = tape_device(c->t);
    Status s = tape_take(c->t, DTYPE_F32, beta->value.rank, beta->value.shape, &offset);
    if (s == STATUS_OK) s = d->k->fill(d, offset, (float)log(expm1(base)));
    if (s != STATUS_OK) return tape_fail(c->t, s);
    return op_softplus(c->t, op_add(c->t, beta, tape_input(c->t, offset, "offset"), 1));
}

static Status check_layer(FastCase *c) {
    Tape *t = c->t;
    ChunkedRule rule;
    TRY(fast_lact_rule(cJSON_GetObjectItemCaseSensitive(c->config, "core"), &rule));
    set_class(c, &rule);
    Var *x = fast_find(c, "x", "");
    const int64_t heads = (int64_t)fast_number(c, "heads", 1), width = x->value.shape[2];
    const int64_t d = width / heads, batch = x->value.shape[0], n = x->value.shape[1];
    ChunkedTokens in = tokens_of(c);
    Var *packed = op_silu(t, project(c, x, "wqkv")), *eta = rates(c, x);
    Var **out[] = {&in.q, &in.k, &in.v};
    for (int j = 0; j < 3; j++) {
        Var *part = op_split_heads(t, packed, j * width, heads, d);
        *out[j] = j == 2 ? part : op_normalise(t, part, batch * heads * n, d, 1, 1e-5f);
        Var *rate = op_split_heads(t, eta, j * heads, heads, 1);
        in.rate[j] = op_view(t, rate, 3, (int64_t[]){batch, heads, n});
    }
    TRY(tape_status(t));
    Var *o = chunked_forward(&rule, CHUNKED_RECURRENT, t, &in, NULL);
    Var *merged = op_merge_heads(t, op_rmsnorm(t, o, fast_find(c, "w.", "gamma"), 1e-5f), NULL);
    Var *y = project(c, merged, "wo");
    TRY(fast_compare_out(c, "layer", y));
    return fast_compare_gradients(c, "layer", fast_loss(c, y));
}

/* ---- the run ---- */

/* Without gradients in the fused form, with them in the composed one. */
static Status run_forms(FastCase *c, bool parallel) {
    static const char *const names[2][2] = {{"fused recurrent", "fused parallel"},
                                            {"recurrent", "parallel"}};
    ChunkedRule rule;
    TRY(fast_lact_rule(c->config, &rule));
    set_class(c, &rule);
    rule.newton_schulz.bf16 = c->g->act == DTYPE_BF16;
    return check_form(c, &rule, parallel ? CHUNKED_PARALLEL : CHUNKED_RECURRENT,
                      names[tape_recording(c->t)][parallel]);
}

static Status run_once(Golden *g, bool recording, bool parallel) {
    FastCase c;
    Status s = recording ? fast_begin(&c, g) : fast_begin_values(&c, g);
    if (s == STATUS_OK)
        s = fast_family_is(g->file, "lact_layer") ? check_layer(&c) : run_forms(&c, parallel);
    fast_end(&c);
    return s;
}

static Status has_parallel(Golden *g, bool *out) {
    FastCase c;
    ChunkedRule rule;
    Status s = fast_begin_values(&c, g);
    if (s == STATUS_OK) s = fast_lact_rule(c.config, &rule);
    if (s == STATUS_OK) {
        *out = chunked_has_parallel(&rule);
        if (*out != fast_flag(&c, "has_parallel_form"))
            s = status_set(STATUS_DATA, "has_parallel_form is not what the rule says");
    }
    fast_end(&c);
    return s;
}

static Status run(Golden *g) {
    if (fast_family_is(g->file, "lact_layer")) return run_once(g, true, false);
    bool parallel = false;
    TRY(has_parallel(g, &parallel));
    for (int form = 0; form <= parallel; form++) {
        TRY(run_once(g, true, form));
        TRY(run_once(g, false, form));
    }
    return STATUS_OK;
}

const GoldenKind golden_kind_chunked = {"fastweight/lact", recognise, run};
