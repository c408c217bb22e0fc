/* The parts of the models/vittt kind. */
#ifndef TTV_TESTS_GOLDEN_KIND_VITTT_H
#define TTV_TESTS_GOLDEN_KIND_VITTT_H

#include "golden.h"

extern const char *const vittt_form_names[]; /* by VitttForm */

Status golden_run_vittt_mixer(Golden *g); /* ttt.* */
Status golden_run_vittt_model(Golden *g); /* iso.* */

#endif
