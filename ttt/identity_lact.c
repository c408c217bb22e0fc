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

static ChunkedRule rule_of(LactVariant v, int64_t steps) {
    return (ChunkedRule){.static_gates = v.only_w1,
                         .no_weight_norm = v.no_weight_norm,
                         .linear = v.linear,
                         .no_muon = v.no_muon,
                         .inclusive = true,
                         .ascend = v.ascend,
                         .steps = steps > 1 ? steps : 1,
                         .newton_schulz = newton_schulz_fixed(NEWTON_SCHULZ_STEPS, false)};
}

/* First rows of q and k in the projection: a layer that was built without queries has none. */
static void project_head(const IdentityLact *in, int64_t h, LactHead *head) {
    const int64_t e = in->width / in->heads, d = in->width;
    const int64_t keys = in->query_rows ? d : 0;
    project(in, (in->variant.query_is_key ? keys : 0) + h * e, true, head->q);
    project(in, keys + h * e, true, head->k);
    project(in, keys + d + h * e, false, head->v);
}

static Status check_head(const IdentityLact *in, int64_t h, LactHead *head, IdentityResult *out) {
    const int64_t e = in->width / in->heads, hidden = e * in->inter_multi;
    project_head(in, h, head);
    const ChunkedRule rule = rule_of(in->variant, in->steps);
    IdentityChunked c = {.rule = &rule,
                         .tokens = in->tokens,
                         .dk = e,
                         .dh = in->variant.linear ? e : hidden,
                         .dv = e,
                         .q = head->q,
                         .k = head->k,
                         .v = head->v,
                         .out = in->out + h * (in->tokens - in->first_read) * e,
                         .first_read = in->first_read};
    for (int j = 0; j < 3; j++) {
        rates(in, j, h, head->rate[j]);
        c.rate[j] = head->rate[j];
        if (j == 1 || !in->variant.linear) c.w[j] = in->w[j] + h * e * hidden;
    }
    return identity_chunked(&c, out);
}

static Status head_new(const IdentityLact *in, LactHead *head, double **memory) {
    const int64_t size = in->tokens * (in->width / in->heads);
    TRY(mem_alloc((void **)memory, 3 * size + 3 * in->tokens, sizeof **memory, "a head"));
    *head = (LactHead){.q = *memory, .k = *memory + size, .v = *memory + 2 * size};
    for (int j = 0; j < 3; j++) head->rate[j] = *memory + 3 * size + j * in->tokens;
    return STATUS_OK;
}

Status identity_lact(const IdentityLact *in, IdentityResult *out) {
    LactHead head;
    double *memory;
    *out = (IdentityResult){0};
    TRY(head_new(in, &head, &memory));
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

Status lact_vectors(const IdentityLact *in, int64_t h, LactVectors *out) {
    const int64_t e = in->width / in->heads, size = in->tokens * e;
    LactHead head;
    double *memory;
    TRY(head_new(in, &head, &memory));
    project_head(in, h, &head);
    *out = (LactVectors){.q = head.q,
                         .k = head.k,
                         .v = head.v,
                         .reading = in->tokens - in->first_read,
                         .writing = in->writing,
                         .width = e};
    memmove(out->q, out->q + in->first_read * e,
            (size_t)(size - in->first_read * e) * sizeof *out->q);
    return STATUS_OK;
}

/* ---- the inner loop ---- */

void lact_features(const IdentityLact *in, int64_t h, const double *const w[3], const double *x,
                   int64_t n, double *work, double *out) {
    const int64_t e = in->width / in->heads, hidden = e * in->inter_multi, at = h * e * hidden;
    dense_product(out, x, false, w[0] + at, false, n, hidden, e, 1);
    dense_product(work, x, false, w[2] + at, false, n, hidden, e, 1);
    for (int64_t i = 0; i < n * hidden; i++) out[i] = dense_silu(out[i]) * work[i];
}

/* f(k) of head h with the weights w, into y; a and b are work [writing, hidden]. */
static void evaluate(const IdentityLact *in, int64_t h, const double *const w[3], const double *k,
                     double *a, double *b, double *y) {
    const int64_t e = in->width / in->heads, n = in->writing;
    const int64_t hidden = in->variant.linear ? e : e * in->inter_multi, at = h * e * hidden;
    if (!in->variant.linear) lact_features(in, h, w, k, n, b, a);
    dense_product(y, in->variant.linear ? k : a, false, w[1] + at, false, n, e, hidden, 1);
}

static double moved_share(const IdentityLact *in, const double *const written[3]) {
    const int64_t size = in->width * (in->width / in->heads) * in->inter_multi;
    double off = 0, all = 0;
    for (int j = 0; j < 3; j++) {
        if (j != 1 && (in->variant.only_w1 || in->variant.linear)) continue;
        for (int64_t i = 0; i < size; i++) {
            off += (written[j][i] - in->w[j][i]) * (written[j][i] - in->w[j][i]);
            all += in->w[j][i] * in->w[j][i];
        }
    }
    return sqrt(off / fmax(all, 1e-300));
}

Status inner_lact(const IdentityLact *in, const double *const written[3], InnerLoop *out) {
    const int64_t e = in->width / in->heads, n = in->writing, hidden = e * in->inter_multi;
    LactHead head;
    double *memory, *work;
    *out = (InnerLoop){.moved = moved_share(in, written)};
    TRY(head_new(in, &head, &memory));
    const Status s =
        mem_alloc((void **)&work, n * (2 * hidden + e), sizeof *work, "values of an inner model");
    for (int64_t h = 0; s == STATUS_OK && h < in->heads; h++) {
        InnerLoop one;
        double *y = work + 2 * n * hidden;
        project_head(in, h, &head);
        for (int i = 0; i < 2; i++) {
            evaluate(in, h, i ? written : in->w, head.k, work, work + n * hidden, y);
            inner_measure(&one, i, y, head.v, n, e, 1);
            out->loss[i] += one.loss[i] / (double)in->heads;
            out->alignment[i] += one.alignment[i] / (double)in->heads;
        }
    }
    mem_free(memory);
    if (s == STATUS_OK) mem_free(work);
    return s;
}
