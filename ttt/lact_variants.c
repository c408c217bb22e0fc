/* The ablations of lact_nvs.md 9 under their golden file's names; each step of the ladder keeps the
 * earlier ones. */
#include "ttt/lact.h"

#include <string.h>

#include "core/config.h"

typedef struct NamedVariant {
    const char *name;
    LactVariant variant;
} NamedVariant;

static const NamedVariant variants[] = {
    {"base", {0}},
    {"V1", {.only_w1 = true}},
    {"V2", {.only_w1 = true, .no_weight_norm = true}},
    {"V3", {.only_w1 = true, .no_weight_norm = true, .linear = true}},
    {"V4", {.only_w1 = true, .no_weight_norm = true, .linear = true, .unit_rate = true}},
    {"V5", {.only_w1 = true, .no_weight_norm = true, .linear = true, .unit_rate = true}},
    {"V6",
     {.only_w1 = true, .no_weight_norm = true, .linear = true, .unit_rate = true, .no_muon = true}},
    {"ascent", {.ascend = true}},
    {"query_is_key", {.query_is_key = true}},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

const char *lact_variant_name(int i) {
    return i >= 0 && i < VARIANTS ? variants[i].name : NULL;
}

Status lact_variant_by_name(const char *name, LactVariant *out) {
    const char *names[VARIANTS];
    for (int i = 0; i < VARIANTS; i++) {
        if (strcmp(variants[i].name, name) == 0) {
            *out = variants[i].variant;
            return STATUS_OK;
        }
        names[i] = variants[i].name;
    }
    const char *near = nearest_name(name, names, VARIANTS);
    if (near)
        return status_set(STATUS_USAGE, "unknown LaCT variant '%.100s'; did you mean '%s'?", name,
                          near);
    return status_set(STATUS_USAGE,
                      "unknown LaCT variant '%.100s'; there are base, V1, V2, V3, V4, V5, V6, "
                      "ascent, query_is_key",
                      name);
}
