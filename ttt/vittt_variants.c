/* The ablations of vittt.md section 10 under their golden file's names. */
#include "ttt/vittt_mixer.h"

#include <string.h>

#include "core/config.h"

typedef struct NamedVariant {
    const char *name;
    VitttVariant variant;
} NamedVariant;

static const NamedVariant variants[] = {
    {"base", {0}},
    {"ga_fork", {.ascend_glu = true}},
    {"ga_both", {.ascend_glu = true, .ascend_dwc = true}},
    {"q_is_k", {.query_is_key = true}},
    {"v1_only_w1", {.gate = VITTT_GATE_STATIC}},
    {"v3_linear_paper", {.gate = VITTT_GATE_NONE}},
    {"v3_linear_fork", {.gate = VITTT_GATE_NONE_FORK}},
    {"v6_linattn_glu_only", {.gate = VITTT_GATE_NONE, .raw_glu = true}},
    {"v6_linattn_both", {.gate = VITTT_GATE_NONE, .raw_glu = true, .raw_dwc = true}},
    {"v6_fork_only_w1_noclip", {.gate = VITTT_GATE_STATIC, .raw_glu = true}},
    {"mse", {.loss = VITTT_MSE}},
    {"mse_fork", {.loss = VITTT_MSE_FORK}},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

const char *vittt_variant_name(int i) {
    return i >= 0 && i < VARIANTS ? variants[i].name : NULL;
}

Status vittt_variant_by_name(const char *name, VitttVariant *out) {
    const char *names[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        if (strcmp(variants[i].name, name) == 0) {
            *out = variants[i].variant;
            return STATUS_OK;
        }
        names[i] = variants[i].name;
    }
    const char *near = nearest_name(name, names, VARIANTS);
    if (near) return status_set(STATUS_USAGE, "unknown mixer '%s'; did you mean '%s'?", name, near);
    return status_set(STATUS_USAGE,
                      "unknown mixer '%s'; there are base, ga_fork, ga_both, q_is_k, v1_only_w1, "
                      "v3_linear_paper, v3_linear_fork, v6_linattn_glu_only, v6_linattn_both, "
                      "v6_fork_only_w1_noclip, mse, mse_fork",
                      name);
}

bool vittt_variant_is_base(VitttVariant v) {
    return v.loss == VITTT_DOT && v.gate == VITTT_GATE_BOTH && !v.ascend_glu && !v.ascend_dwc &&
           !v.query_is_key && !v.raw_glu && !v.raw_dwc && v.steps <= 1;
}
