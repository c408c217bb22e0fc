/* models/vittt.safetensors (vittt.md section 14): ttt.* the mixer in every variant, iso.* a plain
 * model, both in all their forms; hier.* a hierarchical model. */
#include "kind_vittt.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"

const char *const vittt_form_names[] = {"fused", "composed", "pairs"};

Status golden_channels_last(GoldenArray *a) {
    if (a->rank != 4 || a->shape[1] != 3)
        return status_set(STATUS_DATA, "an image is not [B,3,H,W]");
    void *memory;
    TRY(mem_alloc(&memory, a->count, sizeof(double), "image"));
    double *out = memory;
    const int64_t batch = a->shape[0], pixels = a->shape[2] * a->shape[3];
    for (int64_t b = 0; b < batch; b++)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t p = 0; p < pixels; p++)
                out[(b * pixels + p) * 3 + c] = a->values[(b * 3 + c) * pixels + p];
    mem_free(a->values);
    a->values = out;
    a->shape[1] = a->shape[2];
    a->shape[2] = a->shape[3];
    a->shape[3] = 3;
    return STATUS_OK;
}

static bool recognise(const SafeFile *f) {
    return safetensors_meta(f, "ttt_heads") || safetensors_meta(f, "iso_heads");
}

static Status run(Golden *g) {
    if (golden_has(g, "ttt.")) TRY(golden_run_vittt_mixer(g));
    if (golden_has(g, "iso.")) TRY(golden_run_vittt_model(g));
    if (golden_has(g, "hier.")) TRY(golden_run_vittt_hier(g));
    return STATUS_OK;
}

const GoldenKind golden_kind_vittt = {"models/vittt", recognise, run};
