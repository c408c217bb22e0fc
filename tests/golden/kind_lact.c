#include "kind_lact.h"

#include <stdio.h>
#include <string.h>

static bool is_rate_bias(const char *name) {
    static const char ending[] = "lr_fc.bias";
    const size_t n = strlen(name), m = sizeof ending - 1;
    return n >= m && strcmp(name + n - m, ending) == 0;
}

Status golden_check_lact_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                                   double floor) {
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, item->name);
        g->f32_tolerance = is_rate_bias(item->name) ? LACT_RATE_BIAS : LACT_GRADIENTS;
        TRY(golden_compare(g, name, form, item->var.grad, floor));
    }
    return STATUS_OK;
}
