/* `ttv ttt verify`: the linear-attention identity on the layers of a trained model. */
#ifndef TTV_TOOLS_VERIFY_H
#define TTV_TOOLS_VERIFY_H

#include "tools/fast_layer.h"
#include "tools/model_io.h"
#include "tools/nvs_model.h"

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

/* The layers of a model, one of each block (mem_free). */
Status classifier_layers(const Model *m, FastLayer **out);
Status nvs_layers(const NvsModel *m, FastLayer **out);

/* What a LaCT-NVS checkpoint is checked on: two input views and two others a sample. */
typedef struct VerifyNvs {
    const char *scenes; /* posed scenes as scene_set_open() takes them; NULL: noise */
    int64_t samples;    /* of noise; of scenes at most, 0: all */
    uint64_t seed;      /* of the noise */
} VerifyNvs;
/* Scenes that cannot be used are told and counted; STATUS_DATA when none can. out->owned is the
 * caller's to free, also after a failure. */
Status verify_nvs(const char *checkpoint, WeightsChoice choice, const Config *user,
                  const VerifyNvs *what, VerifyReport *out);

/* Runs one picture's pixels (U8 [S,S,3]) through a classifier and merges what each layer shows into
 * its rows. */
typedef struct Verifier Verifier;
Status verifier_open(Model *m, Verifier **out);
Status verifier_picture(Verifier *v, const uint8_t *pixels);
void verifier_close(Verifier *v);
const VerifyRow *verifier_rows(const Verifier *v, int64_t *count);

/* Limits of fastweight.md 10.5 for the activations' dtype; muon: through Newton-Schulz. */
VerifyLimits verify_limits(DType act, bool muon);
/* Whether the model's layers go through Newton-Schulz. */
bool verifier_has_muon(const Verifier *v);
/* Both differences within the limits, and every control off by a hundred times f64. */
bool verify_row_holds(const VerifyRow *r, VerifyLimits limits);

#endif
