/* fastweight/ns_*: Newton-Schulz of matrices G with the file's own triples; grad.G is the gradient
 * of sum(out * cot). */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "golden.h"
#include "nn/ops.h"

static bool recognise(const SafeFile *f) {
    const char *family = safetensors_meta(f, "family");
    return family && strcmp(family, "newton_schulz") == 0;
}

/* The list of triples of the file's configuration. */
static Status read_triples(const cJSON *config, NewtonSchulz *s) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "ns_coefficients");
    const int steps = cJSON_GetArraySize(list);
    if (steps < 1 || steps > NEWTON_SCHULZ_MOST)
        return status_set(STATUS_DATA, "metadata 'config' has %d triples, expected 1 to %d", steps,
                          NEWTON_SCHULZ_MOST);
    s->steps = steps;
    for (int i = 0; i < 3 * steps; i++) {
        const cJSON *value = cJSON_GetArrayItem(cJSON_GetArrayItem(list, i / 3), i % 3);
        if (!cJSON_IsNumber(value))
            return status_set(STATUS_DATA, "triple %d of metadata 'config' is not three numbers",
                              i / 3);
        s->triple[i / 3][i % 3] = (float)value->valuedouble;
    }
    return STATUS_OK;
}

static Status read_config(const Golden *g, NewtonSchulz *s) {
    const char *text = safetensors_meta(g->file, "config");
    cJSON *config;
    if (!text) return status_set(STATUS_DATA, "metadata 'config' is missing");
    TRY(json_parse(text, strlen(text), "config", &config));
    const Status status = read_triples(config, s);
    json_free(config);
    return status;
}

/* An error that the file records of F32 or BF16 arithmetic; 0 where it has none. */
static double recorded(const Golden *g, const char *key) {
    const char *text = safetensors_meta(g->file, key);
    return text ? strtod(text, NULL) : 0;
}

/* fastweight.md 9, the row "LaCT v1..v5 with NS": the larger of the table's limit and the file's
 * own error, 10 times in F32 and 3 times in BF16; TF32 has a quarter of BF16's. */
static void set_limits(Golden *g, double fp32, const char *fp32_key, double bf16,
                       const char *bf16_key) {
    const double rough = fmax(bf16, 3 * recorded(g, bf16_key));
    golden_set_limits(g, fmax(fp32, 10 * recorded(g, fp32_key)), rough / 4, rough);
}

static Status push_named(Golden *g, Tape *t, const char *name, DType dtype, Tensor *out) {
    GoldenArray a;
    TRY(golden_read(g, &a, "%s", name));
    const Status s = golden_push(t, &a, dtype, out);
    mem_free(a.values);
    return s;
}

static Status run_pass(Golden *g, Tape *t, NewtonSchulz s) {
    Tensor value, cotangent;
    tape_reset(t, true);
    TRY(push_named(g, t, "G", DTYPE_F32, &value));
    TRY(push_named(g, t, "cot", DTYPE_F32, &cotangent));
    Var *in = tape_input_grad(t, value, "G");
    Var *u = op_newton_schulz(t, in, s, DTYPE_F32);
    Var *loss = golden_weighted_sum(t, u, cotangent);
    TRY(tape_status(t));
    set_limits(g, 2e-5, "f32_out", 5e-2, "bf16_out");
    TRY(golden_compare(g, "out", "node", u->value, 0));
    TRY(tape_backward(t, loss, 1));
    /* 0.4 of the norm: a cosine above 0.9, which is what BF16 gradients are asked for */
    set_limits(g, 2e-4, "f32_grad", 4e-1, "bf16_grad");
    return golden_compare(g, "grad.G", "node", in->grad, 0);
}

static Status run(Golden *g) {
    NewtonSchulz s = {.bf16 = g->precision == GOLDEN_BF16};
    Tape *t;
    TRY(read_config(g, &s));
    TRY(tape_new(g->device, &t));
    const Status status = run_pass(g, t, s);
    tape_free(t);
    return status;
}

const GoldenKind golden_kind_newton_schulz = {"fastweight/newton_schulz", recognise, run};
