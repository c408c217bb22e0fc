/* The parts of the models/vittt kind. */
#ifndef TTV_TESTS_GOLDEN_KIND_VITTT_H
#define TTV_TESTS_GOLDEN_KIND_VITTT_H

#include "golden.h"

extern const char *const vittt_form_names[]; /* by VitttForm */

Status golden_run_vittt_mixer(Golden *g); /* ttt.* */
Status golden_run_vittt_model(Golden *g); /* iso.* */

/* Every parameter's gradient against <prefix><name>. */
Status golden_check_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                              double floor);

#endif
