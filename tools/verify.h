/* `ttv ttt verify`: the linear-attention identity on the layers of a trained model. */
#ifndef TTV_TOOLS_VERIFY_H
#define TTV_TOOLS_VERIFY_H

#include "tools/model_io.h"
#include "ttt/identity.h"

/* One row of the report: a layer's branch, worst of all heads and inputs. */
typedef struct VerifyRow {
    int64_t layer;
    const char *branch;
    IdentityResult result; /* losses, alignment and moved: of the last head */
    bool seen;
    double loss[2], alignment[2], moved; /* sums over heads and inputs */
    int64_t count;
} VerifyRow;

typedef struct VerifyLimits {
    double f64, layer;
} VerifyLimits;

/* What a verification says. */
typedef struct VerifyReport {
    const char *path;
    const VerifyRow *rows;
    int64_t count, used, failed; /* rows; pictures or samples used, and those that were not read */
    VerifyLimits limits;
    VerifyRow *owned; /* of verify_nvs: mem_free */
} VerifyReport;

/* A LaCT-NVS checkpoint on `samples` of noise, two input views and two others each. The last layer
 * is left out: there input tokens only write, and target tokens only read. */
Status verify_nvs(const char *checkpoint, WeightsChoice choice, const Config *user, int64_t samples,
                  uint64_t seed, VerifyReport *out);

/* Runs one picture's pixels (U8 [S,S,3]) through the model and merges what each layer shows into
 * rows [2 * depth]: GLU, then depthwise, of each block. */
typedef struct Verifier Verifier;
Status verifier_open(Model *m, Verifier **out);
Status verifier_picture(Verifier *v, const uint8_t *pixels);
/* Whether passes keep what layers see (they do from the beginning). */
void verifier_trace(Verifier *v, bool on);
/* Forgets what was seen. */
void verifier_clear(Verifier *v);
/* What a layer's GLU branch saw in the last picture: queries, keys or values (kind 0, 1, 2), or its
 * output (3), as rows [tokens * heads, d] of doubles (mem_free). */
Status verifier_values(const Verifier *v, int64_t layer, int kind, double **out, int64_t *rows,
                       int64_t *width);
void verifier_close(Verifier *v);
const VerifyRow *verifier_rows(const Verifier *v, int64_t *count);

/* One LaCT layer, from what its trace kept of one sample. */
Status verify_lact(Device *d, const LactLayer *m, const LactTrace *t, VerifyRow *row);
/* Limits of fastweight.md 10.5 for the activations' dtype; muon: through Newton-Schulz. */
VerifyLimits verify_limits(DType act, bool muon);
/* Whether the model's layers go through Newton-Schulz. */
bool verifier_has_muon(const Verifier *v);
/* Both differences within the limits, and every control off by a hundred times f64. */
bool verify_row_holds(const VerifyRow *r, VerifyLimits limits);

#endif
