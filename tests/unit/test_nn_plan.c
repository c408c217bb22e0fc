/* The plan of a step's memory against what a true step takes; refusals with advice. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/backend.h"
#include "nn/plan.h"
#include "nn_train_fixture.h"
#include "vision/vittt.h"

/* ---- arenas ----------------------------------------------------------------------------- */

static void reserving_gives_one_block(void **unused) {
    (void)unused;
    Device *d;
    void *a, *b;
    check_ok(device_open("cpu", &d));
    Arena *arena = &d->step;
    check_ok(arena_reserve(arena, 100 << 20));
    assert_int_equal(arena->reserved, 100 << 20);
    assert_int_equal(arena->growths, 1);
    check_ok(arena_take(arena, 60 << 20, &a));
    check_ok(arena_take(arena, 40 << 20, &b));
    assert_int_equal(arena->growths, 1);
    assert_int_equal(arena->extent, 100 << 20);
    assert_int_equal(arena->largest, 60 << 20);
    arena_give(arena, a, 60 << 20);
    check_ok(arena_take(arena, 60 << 20, &b));
    assert_ptr_equal(a, b);
    assert_int_equal(arena->placed, 100 << 20);
    check_ok(arena_reserve(arena, 50 << 20)); /* there is one that large */
    assert_int_equal(arena->growths, 1);
    arena_reset(arena);
    check_ok(arena_reserve(arena, 120 << 20)); /* the smaller one goes */
    assert_int_equal(arena->reserved, 120 << 20);
    check_ok(arena_take(arena, 120 << 20, &a));
    assert_int_equal(arena->growths, 2);
    device_close(d);
}

/* ---- a ViTTT ---------------------------------------------------------------------------- */

typedef struct Setup {
    Device *d;
    Params params;
    Vittt *model;
    Tensor pixels, targets;
    Tape *tape;
} Setup;

static Var *vittt_loss(void *user, Tape *t, int64_t batch) {
    Setup *s = user;
    const float mean[3] = {0.5f, 0.5f, 0.5f}, std[3] = {0.5f, 0.5f, 0.5f};
    Tensor pixels = tensor_4d(s->pixels.data, DTYPE_U8, batch, 32, 32, 3);
    Var *logits = vittt_forward(s->model, t, op_image_normalise(t, pixels, mean, std, 0), true);
    return op_cross_entropy(t, logits, tensor_2d(s->targets.data, DTYPE_F32, batch, 10));
}

static void setup_open(Setup *s, DType act, int64_t batch) {
    VitttConfig c = {.preset = "custom",
                     .image_size = 32,
                     .patch = 8,
                     .width = 48,
                     .depth = 3,
                     .heads = 3,
                     .mlp_ratio = 4,
                     .classes = 10,
                     .drop_path = 0.3,
                     .mixer = "base"};
    check_ok(device_open("cpu", &s->d));
    params_init(&s->params, s->d);
    check_ok(vittt_new(&c, &s->params, &s->model));
    check_ok(params_build(&s->params, act, true));
    check_ok(params_initialise(&s->params, 1));
    const int64_t image[] = {batch, 32, 32, 3}, target[] = {batch, 10};
    check_ok(arena_tensor(&s->d->state, DTYPE_U8, 4, image, &s->pixels));
    check_ok(arena_tensor(&s->d->state, DTYPE_F32, 2, target, &s->targets));
    check_ok(s->d->k->zero(s->d, s->pixels));
    check_ok(s->d->k->zero(s->d, s->targets));
    check_ok(vittt_draw_drop_path(s->model, s->d, 1, 0, 0, batch));
    check_ok(tape_new(s->d, &s->tape));
    tape_set_act(s->tape, act);
}

static void setup_close(Setup *s) {
    tape_free(s->tape);
    vittt_free(s->model);
    params_free(&s->params);
    device_close(s->d);
}

static void true_step(Setup *s, int64_t batch) {
    tape_reset(s->tape, true);
    params_begin_step(&s->params);
    check_ok(tape_backward(s->tape, vittt_loss(s, s->tape, batch), 1));
}

static void the_plan_is_exact(void **unused) {
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        Setup s;
        StepPlan plan;
        DType act = bf16 ? DTYPE_BF16 : DTYPE_F32;
        setup_open(&s, act, 5);
        PlanTask task = {&s.params, act, &s, vittt_loss};
        check_ok(plan_reserve(&task, 5, &plan));
        assert_int_equal(s.d->step.reserved, plan.step);
        true_step(&s, 5);
        assert_int_equal(s.d->step.extent, plan.step); /* nothing less, nothing more */
        assert_int_equal(s.d->step.growths, 1);
        assert_true(plan.weights == s.d->weights.used && plan.state == s.d->state.used);
        setup_close(&s);
    }
}

static void the_largest_batch_fits_just(void **unused) {
    (void)unused;
    Setup s;
    StepPlan plan;
    setup_open(&s, DTYPE_F32, 2);
    PlanTask task = {&s.params, DTYPE_F32, &s, vittt_loss};
    int64_t largest;
    check_ok(plan_step(&task, 37, &plan));
    check_ok(plan_largest_batch(&task, plan_need(&plan), &largest));
    assert_int_equal(largest, 37);
    check_ok(plan_largest_batch(&task, plan_need(&plan) - 1, &largest));
    assert_int_equal(largest, 36);
    check_ok(plan_largest_batch(&task, 1000, &largest));
    assert_int_equal(largest, 0);
    setup_close(&s);
}

/* ---- refusals --------------------------------------------------------------------------- */

static size_t pretended;
static Status few_bytes(Device *d, size_t *available, size_t *total) {
    (void)d;
    *available = *total = pretended;
    return STATUS_OK;
}

static void a_run_that_cannot_fit_says_what_can(void **unused) {
    (void)unused;
    char *folder = folder_new();
    Toy *toy = toy_new(8);
    TrainOptions o = options(folder, 1, 1);
    TrainTask callbacks = toy_task(toy);
    PlanTask task = {&toy->params, DTYPE_F32, toy, callbacks.loss};
    StepPlan plan;
    check_ok(plan_step(&task, 3, &plan));
    DeviceMemory memory = *toy->d->memory;
    memory.available = few_bytes;
    toy->d->memory = &memory;
    pretended = plan_need(&plan);
    int64_t fits;
    check_ok(plan_largest_batch(&task, pretended, &fits));
    assert_true(fits >= 3 && fits < 100);
    char advice[64];
    if (fits >= 8) pretended = 1; /* small tensors are rounded up alike */
    snprintf(advice, sizeof advice, fits >= 8 ? "not even one sample fits" : "that fits is %lld",
             (long long)fits);
    check_fails(go(toy, &o, NULL), STATUS_MEMORY, advice);
    assert_non_null(strstr(status_message(), "a step of 8 samples needs"));
    toy_free(toy);
    folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserving_gives_one_block),
        cmocka_unit_test(the_plan_is_exact),
        cmocka_unit_test(the_largest_batch_fits_just),
        cmocka_unit_test(a_run_that_cannot_fit_says_what_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
