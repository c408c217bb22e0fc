/* Self-distillation by averaged weights (MESA; vittt.md 7): from some epoch on the loss has `ratio`
 * times the cross-entropy against what the averaged weights think of the same pictures, evaluated
 * without stochastic depth and by the statistics that their batch norms have seen.
 */
#ifndef TTV_TOOLS_TEACHER_H
#define TTV_TOOLS_TEACHER_H

#include "nn/ema.h"
#include "tools/model_io.h"

typedef struct Teacher {
    Params params; /* over the average's memory */
    Vittt *vittt;
    float ratio;
    int64_t from_epoch;
} Teacher;

/* For a model and the average of its weights, both of which must live longer. */
Status teacher_open(Teacher *t, const Model *m, const Ema *ema, double ratio, int64_t from_epoch);
void teacher_close(Teacher *t);

/* targets F32 [B,classes] + ratio softmax(logits of the averaged weights): since the cross-entropy
 * is linear in its targets, that is both terms of the loss at once. Nothing of it is recorded.
 * patches: of all that vittt_forward_patches() takes on a map of side x side tokens. */
Tensor teacher_targets(Teacher *t, Tape *tape, Var *patches, int64_t side, Tensor targets);

#endif
