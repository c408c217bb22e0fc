/* Fast weights of scenes as values and files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "core/memory.h"
#include "ttt/lact_state.h"
#include "vittt_fixture.h"

static void fill_state(LactState *s) {
    for (int64_t i = 0; i < s->layers; i++)
        for (int j = 0; j < 3; j++) {
            Tensor w = lact_state_tensor(s, i, j);
            fill_normal(w.data, tensor_count(w), (uint64_t)(3 * i + j), 1);
        }
}

static void states_survive_a_file(void **state) {
    (void)state;
    char path[256];
    temporary_weights(path);
    Device *d;
    LactState *s, *back;
    SafeFile *f;
    const SafeMeta meta[] = {{"what", "a test"}};
    check_ok(device_open("cpu", &d));
    check_ok(lact_state_new(d, 2, 3, 2, 4, 5, &s));
    fill_state(s);
    check_ok(lact_state_save(s, path, meta, 1));
    check_ok(safetensors_open(path, &f));
    assert_string_equal(safetensors_meta(f, "what"), "a test");
    assert_int_equal(safetensors_find(f, "layers.1.w1")->shape[2], 5);
    check_ok(lact_state_load(d, f, &back));
    safetensors_close(f);
    assert_true(back->layers == 2 && back->batch == 3 && back->heads == 2);
    for (int64_t i = 0; i < 6; i++) {
        Tensor a = lact_state_tensor(s, i / 3, (int)(i % 3));
        Tensor b = lact_state_tensor(back, i / 3, (int)(i % 3));
        assert_true(tensor_same_shape(a, b));
        assert_memory_equal(a.data, b.data, tensor_bytes(a));
    }
    lact_state_free(back);
    ((float *)lact_state_tensor(s, 1, 2).data)[7] = NAN;
    check_ok(lact_state_save(s, path, NULL, 0));
    check_ok(safetensors_open(path, &f));
    assert_int_equal(lact_state_load(d, f, &back), STATUS_DATA);
    assert_non_null(strstr(status_message(), "'layers.1.w2' holds a value that is not finite"));
    safetensors_close(f);
    lact_state_free(s);
    unlink(path);
    device_close(d);
}

static void wrong_state_files_are_refused(void **state) {
    (void)state;
    char path[256];
    temporary_weights(path);
    Device *d;
    LactState *s;
    float zero[64] = {0};
    check_ok(device_open("cpu", &d));
    const Tensor w0 = tensor_4d(zero, DTYPE_F32, 1, 1, 2, 3),
                 w1 = tensor_4d(zero, DTYPE_F32, 1, 1, 3, 2);
    const struct {
        SafeItem items[3];
        const char *message;
    } files[] = {
        {{{"a", w0}, {"b", w0}, {"c", w0}}, "no fast weights"},
        {{{"layers.0.w0", tensor_2d(zero, DTYPE_F32, 2, 3)},
          {"layers.0.w1", w1},
          {"layers.0.w2", w0}},
         "rank 2"},
        {{{"layers.0.w0", w0}, {"layers.0.w1", w0}, {"layers.0.w2", w0}},
         "'layers.0.w1' has another shape than [1, 1, 3, 2]"},
        {{{"layers.0.w0", w0}, {"layers.0.w1", w1}, {"layers.0.w3", w0}},
         "'layers.0.w2' is missing"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        SafeFile *f;
        check_ok(safetensors_write(path, files[i].items, 3, NULL, 0));
        check_ok(safetensors_open(path, &f));
        assert_int_equal(lact_state_load(d, f, &s), STATUS_DATA);
        if (!strstr(status_message(), files[i].message)) print_error("%s\n", status_message());
        assert_non_null(strstr(status_message(), files[i].message));
        safetensors_close(f);
    }
    assert_int_equal(lact_state_new(d, 0, 1, 1, 1, 1, &s), STATUS_USAGE);
    unlink(path);
    device_close(d);
}

static void a_state_may_run_out_of_memory(void **state) {
    (void)state;
    char path[256];
    temporary_weights(path);
    Device *d;
    LactState *s;
    check_ok(device_open("cpu", &d));
    check_ok(lact_state_new(d, 1, 1, 1, 2, 2, &s));
    fill_state(s);
    check_ok(lact_state_save(s, path, NULL, 0));
    SafeFile *f;
    check_ok(safetensors_open(path, &f));
    const int64_t alive = mem_live();
    int refused = 0;
    for (int64_t n = 1, failed = 1; failed; n++) {
        LactState *back = NULL;
        mem_fail_at(n);
        Status status = lact_state_load(d, f, &back);
        if (status == STATUS_OK) status = lact_state_save(back, path, NULL, 0);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        refused += status == STATUS_MEMORY;
        lact_state_free(back);
        assert_int_equal(mem_live(), alive);
    }
    assert_true(refused >= 8);
    safetensors_close(f);
    lact_state_free(s);
    unlink(path);
    device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_survive_a_file),
        cmocka_unit_test(wrong_state_files_are_refused),
        cmocka_unit_test(a_state_may_run_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
