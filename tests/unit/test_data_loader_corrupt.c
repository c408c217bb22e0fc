/* The loader and damaged or vanished files: left out, replaced, or the end, by policy. */
#include "data_loader_fixture.h"

static void corrupt_is_left_out_of_evaluation(void **state) {
    (void)state;
    Loader *l;
    HostBatch b;
    LoaderOptions o = options_of(2, false);
    int64_t invalid = 0, total = 0;
    assert_ok(loader_open(dirty, &o, &l));
    assert_ok(loader_begin(l, 0, 0));
    while (loader_next(l, &b) == STATUS_OK) {
        for (int64_t i = 0; i < b.count; i++) {
            total++;
            if (b.valid[i]) continue;
            invalid++;
            for (int p = 0; p < SIDE * SIDE * 3; p++) {
                assert_int_equal(b.pixels[i * SIDE * SIDE * 3 + p], 0);
            }
        }
    }
    assert_int_equal(total, IMAGES);
    assert_int_equal(invalid, 6);
    loader_close(l);
}

static void corrupt_is_replaced_in_training(void **state) {
    (void)state;
    Loader *l;
    HostBatch b;
    LoaderOptions o = options_of(2, true);
    o.drop_last = false;
    int64_t total = 0;
    assert_ok(loader_open(dirty, &o, &l));
    assert_ok(loader_begin(l, 0, 0));
    while (loader_next(l, &b) == STATUS_OK) {
        for (int64_t i = 0; i < b.count; i++, total++) {
            assert_int_equal(b.valid[i], 1);
            assert_int_equal(b.labels[i], dataset_label(dirty, b.samples[i]));
            for (int64_t k = 0; k < loader_corrupt_count(l); k++) {
                int64_t sample;
                const char *reason;
                loader_corrupt_at(l, k, &sample, &reason);
                assert_true(sample != b.samples[i]);
            }
        }
    }
    assert_int_equal(total, IMAGES);
    loader_close(l);
}

static void policy_ends_the_pass(void **state) {
    (void)state;
    char first[1024] = "";
    for (int threads = 1; threads < 6; threads += 2) {
        Loader *l;
        HostBatch b;
        Status s;
        int n = 0;
        LoaderOptions o = options_of(threads, false);
        o.fail_on_corrupt = true;
        assert_ok(loader_open(dirty, &o, &l));
        assert_ok(loader_begin(l, 0, 0));
        while ((s = loader_next(l, &b)) == STATUS_OK) n++;
        assert_int_equal(s, STATUS_DATA);
        if (threads == 1) snprintf(first, sizeof first, "%d %s", n, status_message());
        char again[1024];
        snprintf(again, sizeof again, "%d %s", n, status_message());
        assert_string_equal(again, first);
        loader_close(l);

        o.fail_on_corrupt = false;
        o.max_corrupt = 3.0 / IMAGES; /* the fourth is one too many */
        assert_ok(loader_open(dirty, &o, &l));
        assert_ok(loader_begin(l, 0, 0));
        while ((s = loader_next(l, &b)) == STATUS_OK) {
        }
        assert_int_equal(s, STATUS_DATA);
        assert_message("4 of 53 samples are unreadable");
        loader_close(l);
    }
}

static void nothing_readable_is_an_error(void **state) {
    (void)state;
    char name[64];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "broken/0/%d.jpg", i);
        put_image(root, name, "text.jpg");
    }
    Dataset *d = open_split("broken");
    Loader *l;
    HostBatch b;
    LoaderOptions o = options_of(2, true);
    o.drop_last = false;
    assert_ok(loader_open(d, &o, &l));
    assert_ok(loader_begin(l, 0, 0));
    assert_int_equal(loader_next(l, &b), STATUS_DATA);
    assert_message("drawn in its place");
    loader_close(l);
    dataset_close(d);
}

/* A file that vanishes after the scan is one more unreadable sample. */
static void vanished_file(void **state) {
    (void)state;
    char path[300];
    put_image(root, "fleeting/0/1.jpg", "grey.jpg");
    put_image(root, "fleeting/0/2.jpg", "grey.jpg");
    Dataset *d = open_split("fleeting");
    Loader *l;
    HostBatch b;
    LoaderOptions o = options_of(1, false);
    snprintf(path, sizeof path, "%s/fleeting/0/1.jpg", root);
    assert_int_equal(unlink(path), 0);
    assert_ok(loader_open(d, &o, &l));
    assert_ok(loader_begin(l, 0, 0));
    assert_ok(loader_next(l, &b));
    assert_int_equal(b.count, 2);
    assert_true(!b.valid[0] && b.valid[1]);
    loader_close(l);
    dataset_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corrupt_is_left_out_of_evaluation),
        cmocka_unit_test(corrupt_is_replaced_in_training),
        cmocka_unit_test(policy_ends_the_pass),
        cmocka_unit_test(nothing_readable_is_an_error),
        cmocka_unit_test(vanished_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
