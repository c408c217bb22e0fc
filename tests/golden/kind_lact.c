#include "kind_lact.h"

#include <stdio.h>
#include <string.h>

/* tf32 is four times tighter than bf16. An error of 0.4 of the norm still means a cosine above 0.9,
 * which is what fastweight.md 9 asks of bf16 gradients through Newton-Schulz. */
#define BF16_OUTPUT   2e-1
#define BF16_GRADIENT 4e-1

void lact_output_limits(Golden *g) {
    golden_set_limits(g, 1e-5, BF16_OUTPUT / 4, BF16_OUTPUT);
}

void lact_state_limits(Golden *g) {
    golden_set_limits(g, 2e-5, BF16_OUTPUT / 4, BF16_OUTPUT);
}

void lact_gradient_limits(Golden *g) {
    golden_set_limits(g, 3e-4, BF16_GRADIENT / 4, BF16_GRADIENT);
}

/* The step does not depend on the size of the rates (lact_nvs.md 4.1), so the gradient of their
 * bias is what is left of terms 500 times as large that cancel. F32 is off by 3e-4 to 1e-3 of it,
 * whichever way the sums are rounded. */
static void limits_of(Golden *g, const char *name) {
    static const char ending[] = "lr_fc.bias";
    const size_t n = strlen(name), m = sizeof ending - 1;
    lact_gradient_limits(g);
    if (n >= m && strcmp(name + n - m, ending) == 0) g->limits[GOLDEN_FP32] = 2e-3;
}

Status golden_check_lact_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                                   double floor) {
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, item->name);
        limits_of(g, item->name);
        TRY(golden_compare(g, name, form, item->var.grad, floor));
    }
    return STATUS_OK;
}
