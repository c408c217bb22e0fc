/* fastweight/vittt_*: the branches of the ViTTT mixer alone, with several inner steps, ascent, no
 * soft norm and the linear kernels, and a block of both (fastweight.md 5). */
#include <math.h>
#include <string.h>

#include "fast_case.h"
#include "ttt/vittt_forms.h"

static bool recognise(const SafeFile *f) {
    return fast_family_is(f, "vittt_glu") || fast_family_is(f, "vittt_dwc") ||
           fast_family_is(f, "vittt_block");
}

/* Variant by the switches of a branch's configuration. */
static Status read_variant(const cJSON *o, VitttVariant *v) {
    const bool linear = strcmp(fast_text_of(o, "kernel", "glu"), "linear") == 0;
    const cJSON *gate = cJSON_GetObjectItemCaseSensitive(o, "update_gate");
    const cJSON *clip = cJSON_GetObjectItemCaseSensitive(o, "clip");
    const bool fixed = gate && !cJSON_IsTrue(gate), raw = clip && !cJSON_IsTrue(clip);
    const bool ascend = fast_number_of(o, "sign", 1) < 0;
    *v = (VitttVariant){.gate = linear  ? VITTT_GATE_NONE
                                : fixed ? VITTT_GATE_STATIC
                                        : VITTT_GATE_BOTH,
                        .ascend_glu = ascend,
                        .ascend_dwc = ascend,
                        .raw_glu = raw,
                        .raw_dwc = raw,
                        .steps = (int64_t)fast_number_of(o, "steps", 1)};
    if (fabs(fast_number_of(o, "scale", 1.0 / 3) - 1.0 / 3) > 1e-9 ||
        fast_number_of(o, "lr", 1) != 1)
        return status_set(STATUS_DATA, "config: another scale or rate than the mixer's");
    return STATUS_OK;
}

static Var *weight(FastCase *c, const char *name, int rank, const int64_t *shape) {
    Var *w = fast_find(c, "w.", name);
    return w ? op_view(c->t, w, rank, shape) : NULL;
}

static Var *head_weight(FastCase *c, const char *name, int64_t heads, int64_t d) {
    return weight(c, name, 4, (int64_t[]){1, heads, d, d});
}

/* ---- branches ---- */

static Var *glu_branch(FastCase *c, VitttMixer *m) {
    Var *q = fast_find(c, "q", ""), *k = fast_find(c, "k", ""), *v = fast_find(c, "v", "");
    const int64_t *s = q->value.shape;
    m->w1 = head_weight(c, "wl", s[1], s[3]);
    m->w2 = head_weight(c, "wg", s[1], s[3]);
    return vittt_glu_branch(m, c->t, q, k, v);
}

/* [B,C,H,W] -> [B,H*W,C]. */
static Var *channels_last(FastCase *c, const char *name) {
    Var *x = fast_find(c, name, "");
    const int64_t *s = x->value.shape;
    return op_merge_heads(c->t, op_view(c->t, x, 4, (int64_t[]){s[0], s[1], s[2] * s[3], 1}), NULL);
}

static Var *dwc_branch(FastCase *c, VitttMixer *m) {
    const int64_t *s = fast_find(c, "q", "")->value.shape;
    const int64_t d = s[1], tokens = s[2] * s[3];
    m->w3 = weight(c, "w3", 4, (int64_t[]){d, 1, 3, 3});
    if (!m->w3) m->w3 = weight(c, "w", 4, (int64_t[]){d, 1, 3, 3});
    Var *q = channels_last(c, "q"), *k = channels_last(c, "k"), *v = channels_last(c, "v");
    Var *y = vittt_dwc_branch(m, c->t, q, k, v, s[2], s[3]);
    if (m->form == VITTT_PAIRS)
        return op_view(c->t, y, 4, (int64_t[]){s[0], d, s[2], s[3]}); /* already [B,d,N,1] */
    Var *rows = op_view(c->t, y, 3, (int64_t[]){s[0], tokens, d});
    return op_view(c->t, op_split_heads(c->t, rows, 0, d, 1), 4, s);
}

/* x [B,N,i] w [i,o] + b. */
static Var *project(FastCase *c, Var *x, const char *name, const char *bias) {
    Var *w = fast_find(c, "w.", name), *b = fast_find(c, "w.", bias);
    const int64_t *s = w->value.shape, rows = x->value.shape[0] * x->value.shape[1];
    Var *flat = op_view(c->t, x, 2, (int64_t[]){rows, s[0]});
    Var *y = op_matmul(c->t, flat, false, w, false, 1, DTYPE_F32);
    Var *one = NULL;
    Tensor ones;
    Status status = tape_take(c->t, DTYPE_F32, 2, (int64_t[]){rows, 1}, &ones);
    if (status == STATUS_OK) status = tape_device(c->t)->k->fill(tape_device(c->t), ones, 1);
    if (status != STATUS_OK) return tape_fail(c->t, status);
    one = tape_input(c->t, ones, "ones");
    Var *all =
        op_matmul(c->t, one, false, op_view(c->t, b, 2, (int64_t[]){1, s[1]}), false, 1, DTYPE_F32);
    return op_view(c->t, op_add(c->t, y, all, 1), 3,
                   (int64_t[]){x->value.shape[0], x->value.shape[1], s[1]});
}

static Var *block(FastCase *c, VitttMixer *m) {
    m->heads = (int64_t)fast_number(c, "heads", 1);
    m->width = (int64_t)fast_number(c, "C", 1);
    const int64_t d = m->width / m->heads;
    m->w1 = head_weight(c, "wl", m->heads, d);
    m->w2 = head_weight(c, "wg", m->heads, d);
    m->w3 = weight(c, "w3", 4, (int64_t[]){d, 1, 3, 3});
    Var *packed = project(c, fast_find(c, "x", ""), "wqkv", "bqkv");
    Var *cat = vittt_inner_composed(m, c->t, packed, (int64_t)fast_number(c, "hh", 1),
                                    (int64_t)fast_number(c, "ww", 1));
    return project(c, cat, "wo", "bo");
}

/* ---- the run ---- */

static Status run_case(FastCase *c, VitttForm form) {
    const char *name = form == VITTT_PAIRS ? "pairs" : "composed";
    VitttTrace trace = {0};
    VitttMixer m = {.form = form, .trace = form == VITTT_COMPOSED ? &trace : NULL};
    const bool whole = fast_family_is(c->g->file, "vittt_block");
    const cJSON *config = whole ? cJSON_GetObjectItemCaseSensitive(c->config, "glu") : c->config;
    TRY(read_variant(config, &m.variant));
    if (form == VITTT_PAIRS && m.variant.steps > 1) return STATUS_OK;
    Var *y = whole                                     ? block(c, &m)
             : fast_family_is(c->g->file, "vittt_glu") ? glu_branch(c, &m)
                                                       : dwc_branch(c, &m);
    TRY(fast_compare_out(c, name, y));
    TRY(fast_compare_end(c, name, "wl", trace.u1));
    TRY(fast_compare_end(c, name, "wg", trace.u2));
    TRY(fast_compare_end(c, name, "w3", trace.dwc_u));
    return fast_compare_gradients(c, name, fast_loss(c, y));
}

static Status run(Golden *g) {
    const VitttForm forms[] = {VITTT_COMPOSED, VITTT_PAIRS};
    for (int i = 0; i < 2; i++) {
        FastCase c;
        Status s = fast_begin(&c, g);
        if (s == STATUS_OK) s = run_case(&c, forms[i]);
        fast_end(&c);
        TRY(s);
    }
    return STATUS_OK;
}

const GoldenKind golden_kind_fast_vittt = {"fastweight/vittt", recognise, run};
