/* The parts of the models/vittt kind. */
#ifndef TTV_TESTS_GOLDEN_KIND_VITTT_H
#define TTV_TESTS_GOLDEN_KIND_VITTT_H

#include "golden.h"

extern const char *const vittt_form_names[]; /* by VitttForm */

Status golden_run_vittt_mixer(Golden *g); /* ttt.* */
Status golden_run_vittt_model(Golden *g); /* iso.* */
Status golden_run_vittt_hier(Golden *g);  /* hier.* */

/* [B,3,H,W] of the file to the [B,H,W,3] of the model. */
Status golden_channels_last(GoldenArray *a);

#endif
