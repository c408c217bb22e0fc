#include "fast_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "nn/ops.h"

bool fast_family_is(const SafeFile *f, const char *family) {
    const char *text = safetensors_meta(f, "family");
    return text && strcmp(text, family) == 0;
}

/* ---- configuration ---- */

const char *fast_text_of(const cJSON *o, const char *key, const char *absent) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(v) ? v->valuestring : absent;
}
double fast_number_of(const cJSON *o, const char *key, double absent) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : absent;
}
bool fast_flag_of(const cJSON *o, const char *key) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, key));
}
const char *fast_text(const FastCase *c, const char *key, const char *absent) {
    return fast_text_of(c->config, key, absent);
}
double fast_number(const FastCase *c, const char *key, double absent) {
    return fast_number_of(c->config, key, absent);
}
bool fast_flag(const FastCase *c, const char *key) {
    return fast_flag_of(c->config, key);
}

int fast_index_of(const char *word, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i;
    return -1;
}

/* ---- inputs ---- */

static Status read_input(FastCase *c, const char *name, int length) {
    if (c->count == FAST_INPUTS) return status_set(STATUS_DATA, "too many inputs");
    FastInput *in = &c->inputs[c->count++];
    snprintf(in->name, sizeof in->name, "%.*s", length, name);
    GoldenArray a;
    Tensor x;
    TRY(golden_read(c->g, &a, "%s", in->name));
    Status s = golden_push(c->t, &a, DTYPE_F32, &x);
    mem_free(a.values);
    TRY(s);
    in->v = strncmp(in->name, "cot", 3) == 0 ? tape_input(c->t, x, in->name)
                                             : tape_input_grad(c->t, x, in->name);
    return tape_status(c->t);
}

static Status read_inputs(FastCase *c) {
    const char *names = safetensors_meta(c->g->file, "inputs");
    if (!names) return status_set(STATUS_DATA, "metadata 'inputs' is missing");
    for (const char *at = names; *at;) {
        const size_t n = strcspn(at, ",");
        TRY(read_input(c, at, (int)n));
        at += n + (at[n] == ',');
        while (*at == ' ') at++;
    }
    return STATUS_OK;
}

static Status begin(FastCase *c, Golden *g, bool recording) {
    *c = (FastCase){.g = g, .out32 = 1e-5, .grad32 = 2e-5, .out16 = 1e-2, .grad16 = 5e-2};
    const char *text = safetensors_meta(g->file, "config");
    if (!text) return status_set(STATUS_DATA, "metadata 'config' is missing");
    TRY(json_parse(text, strlen(text), "config", &c->config));
    TRY(tape_new(g->device, &c->t));
    tape_set_act(c->t, DTYPE_F32);
    tape_reset(c->t, recording);
    TRY(golden_gradient_floor(g, "grad.", &c->floor));
    return read_inputs(c);
}

Status fast_begin(FastCase *c, Golden *g) {
    return begin(c, g, true);
}

Status fast_begin_values(FastCase *c, Golden *g) {
    return begin(c, g, false);
}

void fast_end(FastCase *c) {
    if (c->t) tape_free(c->t);
    json_free(c->config);
}

Var *fast_find(const FastCase *c, const char *prefix, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->inputs[i].name, full) == 0) return c->inputs[i].v;
    return NULL;
}

/* ---- checks ---- */

static double meta_number(const FastCase *c, const char *key) {
    const char *text = safetensors_meta(c->g->file, key);
    return text ? strtod(text, NULL) : 0;
}

/* The family's limit, or ten times what plain F32 (three times what plain BF16) gave on this case.
 */
static void set_limits(FastCase *c, bool gradient) {
    const double own32 = meta_number(c, gradient ? "f32_grad" : "f32_out");
    const double own16 = meta_number(c, gradient ? "bf16_grad" : "bf16_out");
    const double bf16 = fmax(gradient ? c->grad16 : c->out16, 3 * own16);
    golden_set_limits(c->g, fmax(gradient ? c->grad32 : c->out32, 10 * own32), bf16 / 4, bf16);
}

Status fast_compare_out(FastCase *c, const char *form, Var *out) {
    TRY(tape_status(c->t));
    set_limits(c, false);
    return golden_compare(c->g, "out", form, out->value, 0);
}

Status fast_compare_end(FastCase *c, const char *form, const char *name, Var *end) {
    char full[96];
    snprintf(full, sizeof full, "end.%s", name);
    TRY(tape_status(c->t));
    set_limits(c, false);
    return end && golden_has(c->g, full) ? golden_compare(c->g, full, form, end->value, 0)
                                         : STATUS_OK;
}

Var *fast_loss(FastCase *c, Var *out) {
    Var *cot = fast_find(c, "cot", "");
    if (tape_poison(c->t) || !cot) return tape_poison(c->t);
    return golden_weighted_sum(c->t, out, cot->value);
}

Var *fast_loss_end(FastCase *c, Var *loss, const char *name, Var *end) {
    Var *cot = fast_find(c, "cot_end.", name);
    if (!cot || !end || tape_poison(c->t)) return loss;
    return op_add(c->t, loss, golden_weighted_sum(c->t, end, cot->value), 1);
}

/* A gradient, or zeros where none came: none reaches v through the sign of the l1 loss, nor q where
 * k takes its place. */
static Status gradient_of(FastCase *c, Var *v, Tensor *out) {
    *out = v->grad;
    if (!tensor_is_none(*out)) return STATUS_OK;
    Device *d = tape_device(c->t);
    TRY(tape_take(c->t, DTYPE_F32, v->value.rank, v->value.shape, out));
    return d->k->zero(d, *out);
}

Status fast_compare_gradients(FastCase *c, const char *form, Var *loss) {
    TRY(tape_status(c->t));
    TRY(tape_backward(c->t, loss, 1));
    set_limits(c, true);
    for (int i = 0; i < c->count; i++) {
        char name[96];
        Tensor gradient;
        snprintf(name, sizeof name, "grad.%s", c->inputs[i].name);
        if (!golden_has(c->g, name)) continue;
        TRY(gradient_of(c, c->inputs[i].v, &gradient));
        TRY(golden_compare(c->g, name, form, gradient, c->floor));
    }
    return STATUS_OK;
}
