/* `ttv ttt verify`: the linear-attention identity on the layers of a trained model. */
#ifndef TTV_TOOLS_VERIFY_H
#define TTV_TOOLS_VERIFY_H

#include "tools/model_io.h"
#include "ttt/identity.h"

/* One row of the report: a layer's branch, worst of all heads and inputs. */
typedef struct VerifyRow {
    int64_t layer;
    const char *branch;
    IdentityResult result;
    bool seen;
} VerifyRow;

typedef struct VerifyLimits {
    double f64, layer;
} VerifyLimits;

/* Runs one picture's pixels (U8 [S,S,3]) through the model and merges what each layer shows into
 * rows [2 * depth]: GLU, then depthwise, of each block. */
typedef struct Verifier Verifier;
Status verifier_open(Model *m, Verifier **out);
Status verifier_picture(Verifier *v, const uint8_t *pixels);
void verifier_close(Verifier *v);
const VerifyRow *verifier_rows(const Verifier *v, int64_t *count);

/* Limits of fastweight.md 10.5 for the activations' dtype. */
VerifyLimits verify_limits(DType act);
/* Both differences within the limits, and every control off by a hundred times f64. */
bool verify_row_holds(const VerifyRow *r, VerifyLimits limits);

#endif
