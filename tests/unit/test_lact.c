/* The LaCT layer: finite differences of every variant, its two forms. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "lact_fixture.h"

static void move(float *to, const float *from, const float *direction, int64_t n, double by) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i] + (float)by * direction[i];
}

/* Derivative along `direction`, from values one step to either side; *at is put back. */
static double slope_along(Layer *l, float *at, const float *direction, int64_t n) {
    const double h = 3e-4;
    float *kept = malloc(sizeof *kept * (size_t)n);
    memcpy(kept, at, sizeof *kept * (size_t)n);
    move(at, kept, direction, n, h);
    check_ok(params_refresh(&l->params));
    double slope = layer_loss(l);
    move(at, kept, direction, n, -h);
    check_ok(params_refresh(&l->params));
    slope = (slope - layer_loss(l)) / (2 * h);
    memcpy(at, kept, sizeof *kept * (size_t)n);
    check_ok(params_refresh(&l->params));
    free(kept);
    return slope;
}

static void check_slope(Layer *l, const char *what, float *at, const double *gradient, int64_t n,
                        uint64_t stream) {
    float *direction = malloc(sizeof *direction * (size_t)n);
    double want = 0;
    fill_normal(direction, n, stream, 1);
    for (int64_t i = 0; i < n; i++) want += gradient[i] * (double)direction[i];
    const double got = slope_along(l, at, direction, n);
    /* against the size that the sum can have; below it, F32 noise of the loss over the step */
    const double scale = norm_of(gradient, n) + 1.5;
    if (!(fabs(got - want) < 0.01 * scale))
        print_error("%s: tape %g, difference %g, scale %g\n", what, want, got, scale);
    assert_true(fabs(got - want) < 0.01 * scale);
    free(direction);
}

/* The column norms of a written weight are constants to the tape, not to a difference: there the
 * golden vectors stand in. */
static bool has_constant(const LactLayer *m, int param) {
    return param < 3 && !m->variant.no_weight_norm && (param == 1 || !m->variant.only_w1);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    for (int i = 0; lact_variant_name(i); i++) {
        Layer l;
        layer_open(&l, 2, 1 + (i == 0), lact_variant_name(i), DTYPE_F32);
        Var *input;
        layer_backward(&l, &input);
        double *gradients[9];
        gradients[8] = pull_doubles(l.device, input->grad);
        for (int k = 0; k < 8; k++)
            gradients[k] = pull_doubles(l.device, l.params.items[k]->var.grad);
        char name[64];
        for (int k = 0; k < 8; k++) {
            Param *p = l.params.items[k];
            if (has_constant(&l.lact, k)) continue;
            snprintf(name, sizeof name, "%s %s", lact_variant_name(i), p->name);
            check_slope(&l, name, p->master.data, gradients[k], tensor_count(p->master),
                        (uint64_t)(200 + k));
        }
        snprintf(name, sizeof name, "%s x", lact_variant_name(i));
        check_slope(&l, name, l.x, gradients[8], layer_count(&l), 300);
        for (int k = 0; k < 9; k++) free(gradients[k]);
        layer_close(&l);
    }
}

/* ---- the two forms -------------------------------------------------------------------------- */

static void fused_is_composed(void **state) {
    (void)state;
    for (int i = 0; lact_variant_name(i); i++)
        for (int form = 0; form < 4; form++) {
            Layer l;
            LactVariant v;
            check_ok(lact_variant_by_name(lact_variant_name(i), &v));
            if (v.linear) continue; /* one form only */
            layer_open(&l, 1 + form % 2, 1 + form / 2, lact_variant_name(i), DTYPE_F32);
            double *a[LAYER_PARTS], *b[LAYER_PARTS];
            l.lact.composed = false;
            layer_results(&l, a);
            l.lact.composed = true;
            layer_results(&l, b);
            for (int k = 0; k < LAYER_PARTS; k++) {
                const int64_t n = k < 8 ? tensor_count(l.params.items[k]->master) : layer_count(&l);
                /* the rates' bias: what is left of terms of the size of their weights' gradient */
                const double floor = k == 6 ? norm_of(b[5], 3 * l.lact.heads * l.width) : 0;
                const double error = relative(a[k], b[k], n, floor);
                if (!(error < 1e-4))
                    print_error("%s, %d heads, %d: result %d is off by %g\n", lact_variant_name(i),
                                1 + form % 2, 1 + form / 2, k, error);
                assert_true(error < 1e-4);
            }
            for (int k = 0; k < LAYER_PARTS; k++) {
                free(a[k]);
                free(b[k]);
            }
            layer_close(&l);
        }
}

int main(void) {
    device_set_threads(1); /* tiny products: a second thread is only waited for */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(fused_is_composed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
