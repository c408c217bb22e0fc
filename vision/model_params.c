/* Names, start values and decay of parameters. */
#include "vision/model_params.h"

#include <math.h>
#include <stdio.h>

Var *model_param(Params *p, const char *prefix, const char *name, Init init, int flags, int rank,
                 const int64_t *shape) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (!(flags & PARAM_BUFFER) && params_decays(full, rank)) flags |= PARAM_DECAY;
    return params_add(p, full, rank, shape, init, flags);
}

/* <name>.weight of the given shape and <name>.bias over its first dimension. PyTorch starts
 * convolutions, bias included, uniform within 1/sqrt(fan in); Linear layers are N(0, 0.02^2) with
 * bias 0 (vittt.md 6). */
void model_conv(Params *p, const char *prefix, const char *name, int flags, const int64_t shape[4],
                Var **w, Var **b) {
    const float bound = 1.0f / sqrtf((float)(shape[1] * shape[2] * shape[3]));
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s.weight", name);
    *w = model_param(p, prefix, leaf, (Init){INIT_UNIFORM, bound}, flags, 4, shape);
    snprintf(leaf, sizeof leaf, "%s.bias", name);
    *b = model_param(p, prefix, leaf, (Init){INIT_UNIFORM, bound}, 0, 1, shape);
}

void model_linear(Params *p, const char *prefix, const char *name, int flags, int64_t out,
                  int64_t in, Var **w, Var **b) {
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s.weight", name);
    *w = model_param(p, prefix, leaf, (Init){INIT_NORMAL, 0.02f}, flags, 2, (int64_t[]){out, in});
    snprintf(leaf, sizeof leaf, "%s.bias", name);
    *b = model_param(p, prefix, leaf, (Init){INIT_ZERO, 0}, 0, 1, (int64_t[]){out});
}

void model_norm(Params *p, const char *prefix, const char *name, int64_t c, Var **w, Var **b) {
    char leaf[64];
    snprintf(leaf, sizeof leaf, "%s.weight", name);
    *w = model_param(p, prefix, leaf, (Init){INIT_ONE, 0}, 0, 1, (int64_t[]){c});
    snprintf(leaf, sizeof leaf, "%s.bias", name);
    *b = model_param(p, prefix, leaf, (Init){INIT_ZERO, 0}, 0, 1, (int64_t[]){c});
}
