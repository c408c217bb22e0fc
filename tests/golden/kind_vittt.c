/* models/vittt.safetensors (vittt.md section 14): ttt.* the mixer in every variant, iso.* a plain
 * model, both in all their forms; hier.* a hierarchical model. */
#include "kind_vittt.h"

#include <stdio.h>

const char *const vittt_form_names[] = {"fused", "composed", "pairs"};

static bool recognise(const SafeFile *f) {
    return safetensors_meta(f, "ttt_heads") || safetensors_meta(f, "iso_heads");
}

static Status run(Golden *g) {
    if (golden_has(g, "ttt.")) TRY(golden_run_vittt_mixer(g));
    if (golden_has(g, "iso.")) TRY(golden_run_vittt_model(g));
    golden_skip(g, "ttt.base_rope.", "hierarchical model not built");
    golden_skip(g, "ttt.rope", "hierarchical model not built");
    golden_skip(g, "hier.", "hierarchical model not built");
    return STATUS_OK;
}

const GoldenKind golden_kind_vittt = {"models/vittt", recognise, run};
