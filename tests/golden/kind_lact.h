/* Limits that the kinds models/lact_layer and models/lact_nvs share (lact_nvs.md; fastweight.md 9,
 * row "LaCT v0 with NS"): Newton-Schulz multiplies rounding noise in null directions by up to 485.
 */
#ifndef TTV_TESTS_GOLDEN_KIND_LACT_H
#define TTV_TESTS_GOLDEN_KIND_LACT_H

#include "golden.h"

void lact_output_limits(Golden *g);   /* 1e-5 in F32 */
void lact_state_limits(Golden *g);    /* 2e-5 in F32 */
void lact_gradient_limits(Golden *g); /* 3e-4 in F32 */

/* Every parameter's gradient against <prefix><name>. */
Status golden_check_lact_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                                   double floor);

#endif
