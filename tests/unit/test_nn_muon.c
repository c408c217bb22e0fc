/* Muon: its groups, a step against the definition in doubles, skipped steps, and learning. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "nn/optim.h"
#include "tape_fixture.h"

enum { ROWS = 6, COLUMNS = 10, WHOLE = ROWS * COLUMNS, BLOCKS = 3 };

typedef struct Net {
    Device *d;
    Params params;
    AdamW optim;
    Muon muon;
} Net;

/* As in models: in each block a kernel, a matrix and a bias, then a matrix of another shape, and a
 * head without PARAM_MATMUL. */
static void net_open(Net *n, float momentum) {
    static const char *const names[BLOCKS] = {"a", "b", "c"};
    const Init init = {INIT_NORMAL, 0.5f};
    *n = (Net){0};
    check_ok(device_open("cpu", &n->d));
    params_init(&n->params, n->d);
    for (int i = 0; i < BLOCKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.kernel", names[i]);
        params_add(&n->params, name, 4, (int64_t[]){4, 1, 3, 3}, init, PARAM_DECAY);
        snprintf(name, sizeof name, "%s.weight", names[i]);
        params_add(&n->params, name, 2, (int64_t[]){ROWS, COLUMNS}, init,
                   PARAM_MATMUL | PARAM_DECAY);
        snprintf(name, sizeof name, "%s.bias", names[i]);
        params_add(&n->params, name, 1, (int64_t[]){ROWS}, init, 0);
    }
    params_add(&n->params, "tall", 2, (int64_t[]){9, 4}, init, PARAM_MATMUL | PARAM_DECAY);
    params_add(&n->params, "gap", 2, (int64_t[]){2, 3}, init, PARAM_DECAY);
    params_add(&n->params, "far", 2, (int64_t[]){ROWS, COLUMNS}, init, PARAM_MATMUL | PARAM_DECAY);
    params_add(&n->params, "head", 2, (int64_t[]){ROWS, COLUMNS}, init, PARAM_DECAY);
    check_ok(params_build(&n->params, DTYPE_F32, true));
    check_ok(params_initialise(&n->params, 3));
    check_ok(
        adamw_init(&n->optim, &n->params, (AdamWOptions){0.9f, 0.999f, 1e-8f, 0.1f, 0.0f, 0.0f}));
    check_ok(muon_init(&n->muon, &n->params, momentum));
    n->optim.muon = &n->muon;
}

static void net_close(Net *n) {
    muon_free(&n->muon);
    params_free(&n->params);
    device_close(n->d);
}

static double *values_of(Net *n, Tensor t) {
    const int64_t count = tensor_count(t);
    float *raw = malloc((size_t)count * sizeof *raw);
    double *out = malloc((size_t)count * sizeof *out);
    check_ok(device_pull(n->d, raw, t));
    for (int64_t i = 0; i < count; i++) out[i] = raw[i];
    free(raw);
    return out;
}

static void set_gradients(Net *n, uint64_t stream, bool broken) {
    Rng r = rng_stream(5, RNG_TEST, stream, 0);
    const int64_t count = n->params.flat;
    float *g = calloc((size_t)count, sizeof *g);
    for (int64_t i = 0; i < n->params.count; i++) {
        const Param *p = n->params.items[i];
        for (int64_t j = 0; j < tensor_count(p->master); j++)
            g[p->offset + j] = (float)rng_normal(&r);
    }
    if (broken) g[n->params.items[1]->offset] = NAN;
    check_ok(device_push(n->d, n->params.grad, g));
    check_ok(device_sync(n->d));
    free(g);
}

static void groups_are_found(void **state) {
    (void)state;
    Net n;
    net_open(&n, 0.95f);
    const Param *a = n.params.items[1], *b = n.params.items[4];
    assert_string_equal(a->name, "a.weight");
    assert_int_equal(n.muon.count, 3); /* a b c; tall; far, which lies at another distance */
    assert_int_equal(n.muon.groups[0].first, a->offset);
    assert_int_equal(n.muon.groups[0].stride, b->offset - a->offset);
    assert_int_equal(n.muon.groups[0].count, BLOCKS);
    assert_int_equal(n.muon.groups[1].rows, 9);
    assert_int_equal(n.muon.groups[2].count, 1);
    assert_false(muon_takes(n.params.items[0]));
    assert_false(muon_takes(n.params.items[n.params.count - 1]));
    Muon other;
    assert_int_equal(muon_init(&other, &n.params, 1.0f), STATUS_USAGE);
    Params none;
    params_init(&none, n.d);
    params_add(&none, "x", 1, (int64_t[]){4}, (Init){INIT_ONE, 0}, 0);
    assert_int_equal(muon_init(&other, &none, 0.9f), STATUS_USAGE);
    params_free(&none);
    net_close(&n);
}

/* Five steps of X <- aX + (b A + c A A) X, A = X X', on g / |g|, as the paper writes them. */
static void orthogonalise(double x[WHOLE], const double *g) {
    double norm = 0, a[ROWS][ROWS], b[ROWS][ROWS], y[WHOLE];
    for (int i = 0; i < WHOLE; i++) norm += g[i] * g[i];
    for (int i = 0; i < WHOLE; i++) x[i] = g[i] / (sqrt(norm) + 1e-7);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++) {
                a[i][j] = 0;
                for (int k = 0; k < COLUMNS; k++)
                    a[i][j] += x[i * COLUMNS + k] * x[j * COLUMNS + k];
            }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++) {
                b[i][j] = -4.775 * a[i][j];
                for (int k = 0; k < ROWS; k++) b[i][j] += 2.0315 * a[i][k] * a[k][j];
            }
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLUMNS; j++) {
                y[i * COLUMNS + j] = 3.4445 * x[i * COLUMNS + j];
                for (int k = 0; k < ROWS; k++) y[i * COLUMNS + j] += b[i][k] * x[k * COLUMNS + j];
            }
        memcpy(x, y, sizeof y);
    }
}

/* Two steps of every matrix of one shape; the head goes AdamW's way. */
static void steps_follow_the_definition(void **state) {
    (void)state;
    const double lr = 0.02, decay = 0.1, beta = 0.9f;
    const int taken[] = {1, 4, 7, 11};
    Net n;
    net_open(&n, 0.9f);
    double *start = values_of(&n, n.params.master), momentum[4][WHOLE] = {{0}};
    double *want = values_of(&n, n.params.master);
    for (int step = 0; step < 2; step++) {
        set_gradients(&n, (uint64_t)step, false);
        double *g = values_of(&n, n.params.grad);
        for (int i = 0; i < 4; i++) {
            const int64_t at = n.params.items[taken[i]]->offset;
            double ahead[WHOLE], u[WHOLE];
            for (int j = 0; j < WHOLE; j++) {
                momentum[i][j] = beta * momentum[i][j] + (1 - beta) * g[at + j];
                ahead[j] = beta * momentum[i][j] + (1 - beta) * g[at + j];
            }
            orthogonalise(u, ahead);
            for (int j = 0; j < WHOLE; j++)
                want[at + j] = want[at + j] * (1 - lr * decay) - lr * 0.2 * sqrt(COLUMNS) * u[j];
        }
        check_ok(adamw_step(&n.optim, lr));
        free(g);
    }
    double *got = values_of(&n, n.params.master), *second = values_of(&n, n.optim.v);
    for (int i = 0; i < 4; i++) {
        const int64_t at = n.params.items[taken[i]]->offset;
        for (int j = 0; j < WHOLE; j++) {
            assert_true(fabs(got[at + j] - want[at + j]) < 1e-5);
            assert_true(second[at + j] == 0);
        }
    }
    const Param *head = n.params.items[n.params.count - 1];
    double moved = 0;
    for (int j = 0; j < WHOLE; j++)
        moved = fmax(moved, fabs(got[head->offset + j] - start[head->offset + j]));
    assert_true(moved > lr / 2 && moved < 2.2 * lr); /* two steps of at most the rate, and decay */
    assert_true(second[head->offset] > 0);
    free(start);
    free(want);
    free(got);
    free(second);
    net_close(&n);
}

static void broken_gradients_change_nothing(void **state) {
    (void)state;
    Net n;
    net_open(&n, 0.95f);
    set_gradients(&n, 1, false);
    check_ok(adamw_step(&n.optim, 0.01));
    double *weights = values_of(&n, n.params.master), *moments = values_of(&n, n.optim.m);
    set_gradients(&n, 2, true);
    check_ok(adamw_step(&n.optim, 0.01));
    double *weights2 = values_of(&n, n.params.master), *moments2 = values_of(&n, n.optim.m);
    assert_memory_equal(weights, weights2, (size_t)n.params.flat * sizeof *weights);
    assert_memory_equal(moments, moments2, (size_t)n.params.flat * sizeof *moments);
    free(weights);
    free(moments);
    free(weights2);
    free(moments2);
    net_close(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_found),
        cmocka_unit_test(steps_follow_the_definition),
        cmocka_unit_test(broken_gradients_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
