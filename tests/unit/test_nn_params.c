/* Parameters: layout, decay rule, initial values, loading with its messages. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "nn_fixture.h"

static void decay_rule(void **unused) {
    (void)unused;
    assert_true(params_decays("blocks.0.attn.w1", 4));
    assert_true(params_decays("blocks.0.cpe.weight", 4));
    assert_true(params_decays("patch_embed.proj.weight", 4));
    assert_false(params_decays("blocks.0.norm1.weight", 1));
    assert_false(params_decays("head.bias", 1));
    assert_false(params_decays("odd.bias", 2));
}

static void layout_puts_decayed_first(void **unused) {
    (void)unused;
    Toy *toy = toy_new(4);
    const Params *p = &toy->params;
    assert_int_equal(p->count, 6);
    assert_int_equal(p->total, 35 + 7 + 35 + 5 + 15 + 3);
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        bool decays = (item->flags & PARAM_DECAY) != 0;
        assert_int_equal(item->offset < p->decayed, decays);
        assert_int_equal(item->offset % 128, 0);
        assert_ptr_equal(item->var.value.data, (float *)p->master.data + item->offset);
        assert_ptr_equal(item->var.grad.data, (float *)p->grad.data + item->offset);
    }
    assert_string_equal(p->items[1]->name, "fc1.bias"); /* registration order is kept */
    assert_ptr_equal(params_find(&toy->params, "head.weight"), p->items[4]);
    assert_null(params_find(&toy->params, "head"));
    toy_free(toy);
}

static void initial_values_depend_on_the_seed_only(void **unused) {
    (void)unused;
    Toy *a = toy_new(4), *b = toy_new(8);
    Snapshot one = snapshot_take(a), two = snapshot_take(b);
    assert_true(snapshot_equal(&one, &two));
    check_ok(params_initialise(&b->params, 6));
    Snapshot other = snapshot_take(b);
    assert_false(snapshot_equal(&one, &other));
    const float *bias = one.values[0] + a->params.items[3]->offset; /* U(-0.3, 0.3) */
    for (int i = 0; i < FEATURES; i++) assert_true(bias[i] != 0 && fabsf(bias[i]) < 0.3f);
    snapshot_free(&one);
    snapshot_free(&two);
    snapshot_free(&other);
    toy_free(a);
    toy_free(b);
}

static void registration_errors_stick(void **unused) {
    (void)unused;
    Device *d;
    Params p;
    const int64_t shape[] = {2, 0};
    check_ok(device_open("cpu", &d));
    params_init(&p, d);
    assert_null(params_add(&p, "empty", 2, shape, (Init){INIT_ZERO, 0}, 0));
    assert_null(params_add(&p, "fine", 1, shape, (Init){INIT_ZERO, 0}, 0));
    assert_int_not_equal(params_build(&p, DTYPE_F32, true), STATUS_OK);
    params_free(&p);
    params_init(&p, d);
    assert_non_null(params_add(&p, "twice", 1, shape, (Init){INIT_ZERO, 0}, 0));
    assert_null(params_add(&p, "twice", 1, shape, (Init){INIT_ZERO, 0}, 0));
    check_fails(params_build(&p, DTYPE_F32, true), STATUS_INTERNAL, "twice");
    params_free(&p);
    device_close(d);
}

static void save_and_load_keep_every_bit(void **unused) {
    (void)unused;
    char *folder = folder_new(), path[128];
    snprintf(path, sizeof path, "%s/w.safetensors", folder);
    Toy *a = toy_new(4), *b = toy_new(4);
    check_ok(params_initialise(&b->params, 99));
    SafeMeta meta = {"note", "kept"};
    check_ok(params_save(&a->params, path, &meta, 1));
    SafeFile *f;
    check_ok(safetensors_open(path, &f));
    assert_string_equal(safetensors_meta(f, "note"), "kept");
    assert_string_equal(safetensors_at(f, 0)->name, "fc1.weight");
    check_ok(params_load(&b->params, f, NULL));
    Snapshot one = snapshot_take(a), two = snapshot_take(b);
    assert_true(snapshot_equal(&one, &two));
    snapshot_free(&one);
    snapshot_free(&two);
    safetensors_close(f);
    toy_free(a);
    toy_free(b);
    folder_remove(folder);
}

/* A file with what the toy has, but other names and shapes in places. */
static SafeFile *odd_file(const char *path) {
    static float zeros[64];
    SafeItem items[] = {
        {"fc1.weight", tensor_2d(zeros, DTYPE_F32, HIDDEN, FEATURES)},
        {"fc1.bias", tensor_1d(zeros, DTYPE_F32, HIDDEN)},
        {"fc2.weight", tensor_2d(zeros, DTYPE_F32, FEATURES, HIDDEN)},
        {"fc2.bias", tensor_2d(zeros, DTYPE_F32, 1, FEATURES)},
        {"head.weight", tensor_2d(zeros, DTYPE_F32, 4, FEATURES)},
        {"ema.fc1.weight", tensor_1d(zeros, DTYPE_F32, 2)},
        {"rope.0.table", tensor_1d(zeros, DTYPE_F32, 2)},
    };
    SafeFile *f;
    check_ok(safetensors_write(path, items, 7, NULL, 0));
    check_ok(safetensors_open(path, &f));
    return f;
}

static void load_lists_what_does_not_fit(void **unused) {
    (void)unused;
    char *folder = folder_new(), path[128];
    snprintf(path, sizeof path, "%s/odd.safetensors", folder);
    SafeFile *f = odd_file(path);
    Toy *toy = toy_new(4);
    Snapshot before = snapshot_take(toy);
    Status s = params_load(&toy->params, f, NULL);
    check_fails(s, STATUS_DATA, "missing: head.bias;");
    check_fails(s, STATUS_DATA, "odd.safetensors: ");
    check_fails(s, STATUS_DATA, "head.weight [4, 5] F32, expected [3, 5]");
    check_fails(s, STATUS_DATA, "fc2.bias [1, 5] F32, expected [5]");
    check_fails(s, STATUS_DATA, "ema.fc1.weight");
    s = params_load(&toy->params, f, "ema.*, rope.*.table");
    check_fails(s, STATUS_DATA, "missing: head.bias;");
    assert_null(strstr(status_message(), "not in the model"));
    s = params_load(&toy->params, f, "ema.*,rope");
    check_fails(s, STATUS_DATA, "not in the model: rope.0.table");
    Snapshot after = snapshot_take(toy);
    assert_true(snapshot_equal(&before, &after)); /* refused before anything was touched */
    snapshot_free(&before);
    snapshot_free(&after);
    safetensors_close(f);
    toy_free(toy);
    folder_remove(folder);
}

static void long_lists_are_counted(void **unused) {
    (void)unused;
    char *folder = folder_new(), path[128];
    snprintf(path, sizeof path, "%s/many.safetensors", folder);
    static char names[40][200];
    static float zero;
    SafeItem items[40];
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "layer.%02d.%0*d", i, i % 2 ? 150 : 3, 0);
        items[i] = (SafeItem){names[i], tensor_1d(&zero, DTYPE_F32, 1)};
    }
    SafeFile *f;
    Toy *toy = toy_new(4);
    check_ok(safetensors_write(path, items, 40, NULL, 0));
    check_ok(safetensors_open(path, &f));
    Status s = params_load(&toy->params, f, NULL);
    check_fails(s, STATUS_DATA, "missing: fc1.weight, fc1.bias, fc2.weight, fc2.bias, head.weight");
    check_fails(s, STATUS_DATA, " more");
    safetensors_close(f);
    toy_free(toy);
    folder_remove(folder);
}

static void finite_check_names_the_parameter(void **unused) {
    (void)unused;
    Toy *toy = toy_new(4);
    float bad[CLASSES] = {0, NAN, INFINITY};
    check_ok(params_check_finite(&toy->params));
    check_ok(device_push(toy->d, toy->params.items[5]->master, bad));
    check_fails(params_check_finite(&toy->params), STATUS_NUMERIC, "head.bias: 2 of 3 values");
    toy_free(toy);
}

static void unreached_gradients_are_zero(void **unused) {
    (void)unused;
    Toy *toy = toy_new(4);
    float seven[15], got[15];
    for (int i = 0; i < 15; i++) seven[i] = 7;
    check_ok(device_push(toy->d, toy->w3->grad, seven));
    params_begin_step(&toy->params);
    toy->w1->grad_ready = true; /* as if one had arrived */
    check_ok(params_finish_grads(&toy->params));
    check_ok(device_pull(toy->d, got, toy->w3->grad));
    for (int i = 0; i < 15; i++) assert_true(got[i] == 0);
    toy_free(toy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decay_rule),
        cmocka_unit_test(layout_puts_decayed_first),
        cmocka_unit_test(initial_values_depend_on_the_seed_only),
        cmocka_unit_test(registration_errors_stick),
        cmocka_unit_test(save_and_load_keep_every_bit),
        cmocka_unit_test(load_lists_what_does_not_fit),
        cmocka_unit_test(long_lists_are_counted),
        cmocka_unit_test(finite_check_names_the_parameter),
        cmocka_unit_test(unreached_gradients_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
