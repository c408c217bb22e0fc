/* Parameters as every model of vision/ starts them (vittt.md 6): PyTorch's uniform convolutions,
 * Linear layers N(0, 0.02^2) with bias 0, norms 1 and 0; decay by name and rank.
 */
#ifndef TTV_VISION_MODEL_PARAMS_H
#define TTV_VISION_MODEL_PARAMS_H

#include "nn/params.h"

/* <prefix><name>, with PARAM_DECAY where the name and rank ask for it; buffers never decay. */
Var *model_param(Params *p, const char *prefix, const char *name, Init init, int flags, int rank,
                 const int64_t *shape);
/* <name>.weight of the given shape and <name>.bias over its first dimension. */
void model_conv(Params *p, const char *prefix, const char *name, int flags, const int64_t shape[4],
                Var **w, Var **b);
void model_linear(Params *p, const char *prefix, const char *name, int flags, int64_t out,
                  int64_t in, Var **w, Var **b);
void model_norm(Params *p, const char *prefix, const char *name, int64_t channels, Var **w,
                Var **b);

#endif
