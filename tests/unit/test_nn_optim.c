/* AdamW against a plain double version, clipping, and the schedule's golden values. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_fixture.h"

/* ---- schedule (vittt.md 7.1): printed by the formula in Python's doubles ---------------- */

static void schedule_is_bit_equal(void **unused) {
    (void)unused;
    Schedule s = {5e-4 * 1024 / 512, 5e-7 * 1024 / 512, 5e-6 * 1024 / 512,
                  20 * 1251,         300 * 1251,        false};
    static const struct {
        int64_t step;
        double lr;
    } golden[] = {
        {0, 0x1.0c6f7a0b5ed8dp-20},      {1, 0x1.0c6f7a0b5ed8dp-20},
        {2, 0x1.17274fdc7dfbdp-20},      {1000, 0x1.56fe96e8df035p-15},
        {25020, 0x1.06222f39a6580p-10},  {25021, 0x1.034ef39c45110p-10},
        {25022, 0x1.034ee4cf46e4fp-10},  {100000, 0x1.b68cf7dc137e9p-11},
        {200001, 0x1.dbf7a1a19cff4p-12}, {375299, 0x1.4f8b58b543f78p-17},
    };
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        double lr = schedule_lr(&s, golden[i].step);
        if (memcmp(&lr, &golden[i].lr, sizeof lr) != 0)
            fail_msg("step %lld: %a instead of %a", (long long)golden[i].step, lr, golden[i].lr);
    }
    assert_true(schedule_lr(&s, s.total_steps + 1) == s.floor);
    Schedule no_warmup = {1.0, 0.25, 0.0, 0, 10, false};
    assert_true(schedule_lr(&no_warmup, 0) == 1.0);
    assert_true(schedule_lr(&no_warmup, 1) == 1.0);
}

/* lact_nvs.md 7: step 0 has rate 0, the cosine begins where the warm-up ends. */
static void schedule_after_warmup(void **unused) {
    (void)unused;
    Schedule s = {.base = 4e-4, .warmup_steps = 3000, .total_steps = 20000, .after_warmup = true};
    assert_true(schedule_lr(&s, 0) == 0);
    assert_float_equal(schedule_lr(&s, 1500), 2e-4, 1e-15);
    assert_float_equal(schedule_lr(&s, 3000), 4e-4, 1e-15);
    assert_float_equal(schedule_lr(&s, 11500), 2e-4, 1e-15);
    assert_true(schedule_lr(&s, 19999) > 0 && schedule_lr(&s, 19999) < 1e-10);
    assert_true(schedule_lr(&s, 20000) == 0);
    s.warmup_steps = 0;
    assert_true(schedule_lr(&s, 0) == 4e-4);
}

/* ---- AdamW ------------------------------------------------------------------------------ */

typedef struct Reference {
    double *p, *m, *v;
    int64_t n, taken;
} Reference;

static void reference_init(Reference *r, Toy *toy) {
    float *host = malloc((size_t)toy->params.flat * sizeof *host);
    check_ok(device_pull(toy->d, host, toy->params.master));
    r->n = toy->params.flat;
    r->taken = 0;
    r->p = calloc((size_t)r->n, sizeof(double));
    r->m = calloc((size_t)r->n, sizeof(double));
    r->v = calloc((size_t)r->n, sizeof(double));
    for (int64_t i = 0; i < r->n; i++) r->p[i] = host[i];
    free(host);
}

/* vittt.md 7.2 as written. */
static double reference_step(Reference *r, const float *g, double lr, AdamWOptions o,
                             int64_t decayed) {
    double norm = 0, beta1 = o.beta1, beta2 = o.beta2;
    for (int64_t i = 0; i < r->n; i++) norm += (double)g[i] * g[i];
    norm = sqrt(norm);
    double clip = o.clip_norm > 0 ? fmin(1, o.clip_norm / (norm + 1e-6)) : 1;
    double k = (double)++r->taken;
    for (int64_t i = 0; i < r->n; i++) {
        double gi = g[i] * clip;
        if (i < decayed) r->p[i] *= 1 - lr * o.weight_decay;
        r->m[i] = beta1 * r->m[i] + (1 - beta1) * gi;
        r->v[i] = beta2 * r->v[i] + (1 - beta2) * gi * gi;
        r->p[i] -=
            lr / (1 - pow(beta1, k)) * r->m[i] / (sqrt(r->v[i]) / sqrt(1 - pow(beta2, k)) + o.eps);
    }
    return norm;
}

static void random_gradient(Toy *toy, float *g, int64_t step, double scale) {
    memset(g, 0, (size_t)toy->params.flat * sizeof *g); /* padding stays zero */
    for (int64_t i = 0; i < toy->params.count; i++) {
        const Param *p = toy->params.items[i];
        Rng r = rng_stream(1, RNG_TEST, (uint64_t)step, (uint64_t)i);
        for (int64_t j = 0; j < tensor_count(p->master); j++)
            g[p->offset + j] = (float)(scale * rng_normal(&r));
    }
    check_ok(device_push(toy->d, toy->params.grad, g));
}

static void compare_steps(double clip_norm, double scale) {
    Toy *toy = toy_new(4);
    toy->optim.options.clip_norm = (float)clip_norm;
    toy->optim.options.weight_decay = 0.3f;
    Reference r;
    reference_init(&r, toy);
    float *g = malloc((size_t)r.n * sizeof *g), *got = malloc((size_t)r.n * sizeof *got);
    for (int64_t step = 0; step < 6; step++) {
        double lr = 0.01 / (double)(step + 1);
        random_gradient(toy, g, step, scale);
        check_ok(adamw_step(&toy->optim, lr));
        double expected = reference_step(&r, g, (float)lr, toy->optim.options, toy->params.decayed);
        float norm, clip;
        check_ok(adamw_report(&toy->optim, &norm, &clip));
        assert_true(fabs(norm - expected) < 1e-5 * expected);
        assert_int_equal(clip<1, clip_norm> 0 && expected > clip_norm);
    }
    check_ok(device_pull(toy->d, got, toy->params.master));
    double error = 0, moved = 0;
    for (int64_t i = 0; i < r.n; i++)
        error = fmax(error, fabs(got[i] - r.p[i])), moved += got[i] != 0;
    assert_true(moved > 50);
    assert_true(error < 1e-6);
    free(r.p);
    free(r.m);
    free(r.v);
    free(g);
    free(got);
    toy_free(toy);
}

static void adamw_equals_the_formula(void **unused) {
    (void)unused;
    compare_steps(0, 1);
    compare_steps(5, 1e-3); /* below the limit: not clipped */
    compare_steps(1, 3);    /* clipped */
}

static void only_decayed_parameters_decay(void **unused) {
    (void)unused;
    Toy *toy = toy_new(4);
    toy->optim.options.weight_decay = 0.5f;
    Snapshot before = snapshot_take(toy);
    check_ok(toy->d->k->zero(toy->d, toy->params.grad));
    check_ok(adamw_step(&toy->optim, 0.1));
    Snapshot after = snapshot_take(toy);
    for (int64_t i = 0; i < toy->params.count; i++) {
        const Param *p = toy->params.items[i];
        float factor = (p->flags & PARAM_DECAY) ? 0.95f : 1.0f;
        for (int64_t j = p->offset; j < p->offset + tensor_count(p->master); j++)
            assert_true(fabsf(after.values[0][j] - factor * before.values[0][j]) < 1e-7f);
    }
    snapshot_free(&before);
    snapshot_free(&after);
    toy_free(toy);
}

static void a_norm_that_is_not_finite_changes_nothing(void **unused) {
    (void)unused;
    Toy *toy = toy_new(4);
    float *g = malloc((size_t)toy->params.flat * sizeof *g);
    random_gradient(toy, g, 0, 1);
    check_ok(adamw_step(&toy->optim, 0.01));
    Snapshot before = snapshot_take(toy);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        random_gradient(toy, g, 1, 1);
        g[toy->params.items[2]->offset + 3] = bad[i];
        check_ok(device_push(toy->d, toy->params.grad, g));
        check_ok(adamw_step(&toy->optim, 0.01));
        float norm, clip;
        check_ok(adamw_report(&toy->optim, &norm, &clip));
        assert_false(isfinite(norm));
        assert_true(clip == 0);
        Snapshot after = snapshot_take(toy);
        assert_true(snapshot_equal(&before, &after));
        snapshot_free(&after);
    }
    assert_int_equal(before.taken, 1);
    snapshot_free(&before);
    free(g);
    toy_free(toy);
}

static void the_shadow_follows(void **unused) {
    (void)unused;
    Device *d;
    Params p;
    AdamW o;
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    const int64_t shape[] = {3, 5};
    Var *w = params_add(&p, "w", 2, shape, (Init){INIT_NORMAL, 1}, PARAM_MATMUL | PARAM_DECAY);
    Var *plain = params_add(&p, "w1", 2, shape, (Init){INIT_NORMAL, 1}, PARAM_DECAY);
    check_ok(params_build(&p, DTYPE_BF16, true));
    check_ok(params_initialise(&p, 1));
    assert_int_equal(w->value.dtype, DTYPE_BF16);
    assert_int_equal(plain->value.dtype, DTYPE_F32);
    assert_int_equal(w->grad.dtype, DTYPE_F32);
    check_ok(adamw_init(&o, &p, (AdamWOptions){0.9f, 0.999f, 1e-8f, 0.05f, 0, 0}));
    float ones[15], master[15];
    uint16_t shadow[15];
    for (int step = 0; step < 2; step++) {
        check_ok(device_pull(d, master, p.items[0]->master));
        check_ok(device_pull(d, shadow, w->value));
        for (int i = 0; i < 15; i++) assert_int_equal(shadow[i], bf16_from_f32(master[i]));
        for (int i = 0; i < 15; i++) ones[i] = 1;
        check_ok(device_push(d, w->grad, ones));
        check_ok(adamw_step(&o, 0.1));
    }
    params_free(&p);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_is_bit_equal),
        cmocka_unit_test(schedule_after_warmup),
        cmocka_unit_test(adamw_equals_the_formula),
        cmocka_unit_test(only_decayed_parameters_decay),
        cmocka_unit_test(a_norm_that_is_not_finite_changes_nothing),
        cmocka_unit_test(the_shadow_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
