#include "kind_lact.h"

#include <stdio.h>
#include <string.h>

/* fastweight.md 9, row "LaCT v0 with NS". With BF16 activations the inner gradients G are BF16, as
 * in the official training (lact_nvs.md 4.4), and Newton-Schulz magnifies that rounding where G has
 * no rank: of these small files, with fewer tokens than rows, outputs and states are off by 0.05 to
 * 0.12, by 0.01 where G stays F32. tf32 is four times tighter. Of BF16 gradients fastweight.md asks
 * a cosine above 0.9; an error of 0.4 of the norm implies that. */
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
    g->cosine = 0.9;
}

/* The step does not depend on the size of the rates (lact_nvs.md 4.1), so the gradient of their
 * bias is what is left of terms that cancel, and says nothing about how well they were computed.
 * The same terms, weighted with the tokens, are the gradient of lr_fc.weight, where they do not
 * cancel: the bias is measured against the size of that. */
static Status floor_of(Golden *g, const char *prefix, const char *name, double *floor) {
    static const char ending[] = "lr_fc.bias";
    const size_t n = strlen(name), m = sizeof ending - 1;
    if (n < m || strcmp(name + n - m, ending) != 0) return STATUS_OK;
    char weight[256];
    double thousandth;
    snprintf(weight, sizeof weight, "%s%.*slr_fc.weight", prefix, (int)(n - m), name);
    TRY(golden_gradient_floor(g, weight, &thousandth));
    if (1e3 * thousandth > *floor) *floor = 1e3 * thousandth;
    return STATUS_OK;
}

Status golden_check_lact_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                                   double floor) {
    lact_gradient_limits(g);
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        char name[256];
        double least = floor;
        snprintf(name, sizeof name, "%s%s", prefix, item->name);
        TRY(floor_of(g, prefix, item->name, &least));
        TRY(golden_compare(g, name, form, item->var.grad, least));
    }
    return STATUS_OK;
}
