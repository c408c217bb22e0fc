/* The LaCT layer as a chunked layer of one chunk: its projections, rates and unit lengths once more
 * on the host (lact_nvs.md 3.3). Tokens that only read are writers of rate 0. */
#include "core/memory.h"
#include "ttt/identity_parts.h"
#include "ttt/lact_forms.h"
#include "ttt/newton_schulz.h"

/* One head's tokens. */
typedef struct LactHead {
    double *q, *k, *v, *rate[3];
} LactHead;

/* silu(x W') of channels [first, first + e), of unit length where asked. */
static void project(const IdentityLact *in, int64_t first, bool unit, double *out) {
    const int64_t e = in->width / in->heads;
    dense_product(out, in->x, false, in->qkv_w + first * in->width, true, in->tokens, e, in->width,
                  1);
    for (int64_t t = 0; t < in->tokens; t++) {
        double *row = out + t * e;
        for (int64_t i = 0; i < e; i++) row[i] = dense_silu(row[i]);
        const double scale = unit ? 1 / (dense_norm(row, e) + (double)LACT_UNIT_OFFSET) : 1;
        for (int64_t i = 0; i < e; i++) row[i] *= scale;
    }
}

static double softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* eta_j of head h, 0 for tokens that only read. */
static void rates(const IdentityLact *in, int j, int64_t h, double *out) {
    const int64_t column = j * in->heads + h;
    const double *w = in->rate_w + column * in->width;
    for (int64_t t = 0; t < in->tokens; t++) {
        double z = in->rate_b[column] + (double)LACT_RATE_SHIFT;
        for (int64_t i = 0; i < in->width; i++) z += in->x[t * in->width + i] * w[i];
        out[t] = t >= in->writing ? 0 : in->variant.unit_rate ? 1 : softplus(z);
    }
}

static ChunkedRule rule_of(LactVariant v) {
    return (ChunkedRule){.static_gates = v.only_w1,
                         .no_weight_norm = v.no_weight_norm,
                         .linear = v.linear,
                         .no_muon = v.no_muon,
                         .inclusive = true,
                         .ascend = v.ascend,
                         .steps = 1,
                         .newton_schulz = newton_schulz_fixed(NEWTON_SCHULZ_STEPS, false)};
}

static Status check_head(const IdentityLact *in, int64_t h, LactHead *head, IdentityResult *out) {
    const int64_t e = in->width / in->heads, hidden = e * in->inter_multi, d = in->width;
    const int64_t keys = in->variant.query_is_key ? 0 : d;
    project(in, h * e, true, head->q);
    project(in, keys + h * e, true, head->k);
    project(in, keys + d + h * e, false, head->v);
    const ChunkedRule rule = rule_of(in->variant);
    IdentityChunked c = {.rule = &rule,
                         .tokens = in->tokens,
                         .dk = e,
                         .dh = in->variant.linear ? e : hidden,
                         .dv = e,
                         .q = head->q,
                         .k = head->k,
                         .v = head->v,
                         .out = in->out + h * in->tokens * e};
    for (int j = 0; j < 3; j++) {
        rates(in, j, h, head->rate[j]);
        c.rate[j] = head->rate[j];
        if (j == 1 || !in->variant.linear) c.w[j] = in->w[j] + h * e * hidden;
    }
    return identity_chunked(&c, out);
}

Status identity_lact(const IdentityLact *in, IdentityResult *out) {
    const int64_t size = in->tokens * (in->width / in->heads);
    double *memory;
    *out = (IdentityResult){0};
    TRY(mem_alloc((void **)&memory, 3 * size + 3 * in->tokens, sizeof *memory, "a head"));
    LactHead head = {.q = memory, .k = memory + size, .v = memory + 2 * size};
    for (int j = 0; j < 3; j++) head.rate[j] = memory + 3 * size + j * in->tokens;
    Status s = STATUS_OK;
    for (int64_t h = 0; h < in->heads && s == STATUS_OK; h++) {
        IdentityResult one;
        s = check_head(in, h, &head, &one);
        if (s != STATUS_OK) break;
        if (h == 0)
            *out = one;
        else
            identity_merge(out, &one);
    }
    mem_free(memory);
    return s;
}
