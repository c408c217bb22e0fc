/* What the kinds models/lact_layer and models/lact_nvs share. */
#ifndef TTV_TESTS_GOLDEN_KIND_LACT_H
#define TTV_TESTS_GOLDEN_KIND_LACT_H

#include "golden.h"

/* Limits through Newton-Schulz (shared/golden/README.md); outputs keep 1e-5. */
#define LACT_STATES    2e-5
#define LACT_GRADIENTS 3e-4
/* Of lr_fc.bias: the step does not depend on the size of the rates (lact_nvs.md 4.1), so this
 * gradient is what is left of terms 500 times as large that cancel. F32 gives 6e-4 at worst. */
#define LACT_RATE_BIAS 2e-3

/* Every parameter's gradient against <prefix><name>, with these limits. */
Status golden_check_lact_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                                   double floor);

#endif
