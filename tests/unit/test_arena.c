/* Arenas: placement, reuse, growth and its end, messages; and the device that owns them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "core/memory.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

static int open_cpu(void **state) {
    Device *d;
    if (device_open("cpu", &d) != STATUS_OK) return -1;
    *state = d;
    return 0;
}

static int close_cpu(void **state) {
    device_close(*state);
    return mem_live() == 0 ? 0 : -1;
}

static void regions_are_aligned_and_apart(void **state) {
    Device *d = *state;
    char *regions[200];
    for (int i = 0; i < 200; i++) {
        const size_t bytes = (size_t)(1 + i * 37);
        assert_int_equal(arena_take(&d->step, bytes, (void **)&regions[i]), STATUS_OK);
        assert_int_equal((uintptr_t)regions[i] % 256, 0);
        memset(regions[i], i, bytes);
    }
    for (int i = 0; i < 200; i++) {
        for (int b = 0; b < 1 + i * 37; b++) assert_int_equal((unsigned char)regions[i][b], i);
    }
    arena_reset(&d->step);
    assert_int_equal(d->step.used, 0);
}

/* One step's sequence of requests: larger than the first block, with give-backs in between. */
static void step(Device *d, void *addresses[6]) {
    arena_reset(&d->step);
    const size_t sizes[6] = {9u << 20, 6u << 20, 5u << 20, 6u << 20, 40u << 20, 3000};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(arena_take(&d->step, sizes[i], &addresses[i]), STATUS_OK);
        if (i == 2) arena_give(&d->step, addresses[1], sizes[1]);
    }
}

static void steps_repeat_addresses_without_growth(void **state) {
    Device *d = *state;
    void *first[6], *again[6];
    step(d, first);
    assert_ptr_equal(first[3], first[1]); /* same size, given back */
    const int64_t growths = d->step.growths;
    const size_t reserved = d->step.reserved, peak = d->step.peak;
    assert_true(growths >= 2);
    for (int i = 0; i < 3; i++) {
        step(d, again);
        assert_memory_equal(first, again, sizeof first);
    }
    assert_int_equal(d->step.growths, growths);
    assert_int_equal(d->step.reserved, reserved);
    assert_int_equal(d->step.peak, peak);
}

static void give_counts_rounded_bytes(void **state) {
    Device *d = *state;
    void *a, *b;
    assert_int_equal(arena_take(&d->state, 1, &a), STATUS_OK);
    assert_int_equal(arena_take(&d->state, 257, &b), STATUS_OK);
    assert_int_equal(d->state.used, 256 + 512);
    arena_give(&d->state, b, 300);
    arena_give(&d->state, NULL, 300);
    assert_int_equal(d->state.used, 256);
    void *c;
    assert_int_equal(arena_take(&d->state, 512, &c), STATUS_OK);
    assert_ptr_equal(b, c);
}

/* a b c d e of one block: what is given back joins its neighbours, the smallest gap that fits is
 * taken, and the top sinks. */
static void gaps_join_and_are_filled(void **state) {
    Device *d = *state;
    Arena *arena = &d->step;
    void *p[5], *q, *small;
    for (int i = 0; i < 5; i++) assert_int_equal(arena_take(arena, 1024, &p[i]), STATUS_OK);
    arena_give(arena, p[0], 1024);
    arena_give(arena, p[2], 1024);
    assert_int_equal(arena_take(arena, 300, &small), STATUS_OK); /* of equal gaps the first */
    assert_ptr_equal(small, p[0]);
    arena_give(arena, small, 300);
    arena_give(arena, p[1], 1024); /* a, b and c are one */
    assert_int_equal(arena_take(arena, 3072, &q), STATUS_OK);
    assert_ptr_equal(q, p[0]);
    arena_give(arena, p[3], 1024);
    assert_int_equal(arena_take(arena, 1025, &small), STATUS_OK); /* fits no gap */
    assert_ptr_equal(small, (char *)p[4] + 1024);
    arena_give(arena, small, 1025);
    assert_int_equal(arena->placed, 5 * 1024);
    arena_give(arena, p[4], 1024); /* d was a gap at the top now */
    assert_int_equal(arena->placed, 3 * 1024);
    arena_give(arena, q, 3072);
    assert_int_equal(arena->placed, 0);
    assert_int_equal(arena->used, 0);
    assert_int_equal(arena->extent, 5 * 1024 + 1280);
}

static void too_much_is_refused_with_numbers(void **state) {
    Device *d = *state;
    void *p = d;
    assert_int_equal(arena_take(&d->weights, (size_t)1 << 60, &p), STATUS_MEMORY);
    assert_null(p);
    assert_non_null(strstr(status_message(), "'weights'"));
    assert_non_null(strstr(status_message(), "MiB"));
    Tensor t;
    const int64_t shape[4] = {INT64_C(1) << 31, INT64_C(1) << 31, 2, 1};
    assert_int_not_equal(arena_tensor(&d->weights, DTYPE_F32, 4, shape, &t), STATUS_OK);
    assert_null(t.data);
    assert_int_equal(d->weights.used, 0);
}

static void tensors_have_their_shape(void **state) {
    Device *d = *state;
    Tensor t;
    assert_int_equal(arena_tensor(&d->weights, DTYPE_BF16, 3, (int64_t[]){2, 3, 5}, &t), STATUS_OK);
    assert_int_equal(tensor_bytes(t), 60);
    assert_int_equal(t.rank, 3);
    assert_int_equal(t.shape[2], 5);
}

static void push_and_pull_round_trip(void **state) {
    Device *d = *state;
    float in[7] = {1, 2, 3, 4, 5, 6, 7}, out[7] = {0};
    Tensor t;
    assert_int_equal(arena_tensor(&d->step, DTYPE_F32, 1, (int64_t[]){7}, &t), STATUS_OK);
    assert_int_equal(device_push(d, t, in), STATUS_OK);
    assert_int_equal(device_pull(d, out, t), STATUS_OK);
    assert_memory_equal(in, out, sizeof in);
    assert_int_equal(device_sync(d), STATUS_OK);
}

static void memory_is_reported(void **state) {
    size_t available = 0, total = 0;
    assert_int_equal(device_memory(*state, &available, &total), STATUS_OK);
    assert_true(available > 0 && available <= total);
}

static void unknown_devices_are_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "", "gpu", "cuda1", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Device *d = (Device *)(uintptr_t)1;
        assert_int_equal(device_open(wrong[i], &d), STATUS_USAGE);
        assert_null(d);
        assert_non_null(strstr(status_message(), "cuda:<number>"));
    }
}

static void this_processor_will_do(void **state) {
    (void)state;
    assert_int_equal(device_check_cpu(), STATUS_OK);
}

/* Opening and growing with the n-th allocation failing, for every n until none fails. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int64_t n = 1;; n++) {
        Device *d = NULL;
        void *p;
        mem_fail_at(n);
        Status status = device_open("cpu", &d);
        if (status == STATUS_OK) status = arena_take(&d->step, 1000, &p);
        if (status == STATUS_OK) arena_give(&d->step, p, 1000);
        const bool fired = !mem_fail_pending();
        mem_fail_at(0);
        if (status != STATUS_OK) assert_int_equal(status, STATUS_MEMORY);
        device_close(d);
        assert_int_equal(mem_live(), 0);
        if (!fired) return;
        assert_true(n < 1000);
    }
}

static void every_slot_is_filled(void **state) {
    const Device *d = *state;
    assert_true(kernels_slot_count() > 0);
    for (int i = 0; i < kernels_slot_count(); i++) {
        assert_non_null(kernels_slot_name(i));
        assert_non_null(kernels_slot(d->k, i));
    }
    assert_null(kernels_slot_name(-1));
    assert_null(kernels_slot_name(kernels_slot_count()));
    assert_null(kernels_slot(d->k, kernels_slot_count()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(regions_are_aligned_and_apart, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(steps_repeat_addresses_without_growth, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(gaps_join_and_are_filled, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(give_counts_rounded_bytes, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(too_much_is_refused_with_numbers, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(tensors_have_their_shape, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(push_and_pull_round_trip, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(memory_is_reported, open_cpu, close_cpu),
        cmocka_unit_test_setup_teardown(every_slot_is_filled, open_cpu, close_cpu),
        cmocka_unit_test(unknown_devices_are_refused),
        cmocka_unit_test(this_processor_will_do),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
