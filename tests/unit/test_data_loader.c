/* The loader: the same batches whatever the threads, resume in the middle of an epoch. */
#include "data_loader_fixture.h"

static void threads_do_not_matter(void **state) {
    (void)state;
    const int threads[] = {1, 2, 5, 16};
    for (int training = 0; training < 2; training++) {
        uint32_t first[2][16], crcs[16];
        int batches = training ? IMAGES / BATCH : (IMAGES + BATCH - 1) / BATCH;
        for (int t = 0; t < 4; t++) {
            Loader *l;
            LoaderOptions o = options_of(threads[t], training);
            assert_ok(loader_open(dirty, &o, &l));
            assert_int_equal(loader_batches(l), batches);
            for (int epoch = 0; epoch < 2; epoch++) {
                assert_int_equal(run_epoch(l, epoch, 0, t == 0 ? first[epoch] : crcs), batches);
                if (t > 0)
                    assert_memory_equal(crcs, first[epoch], sizeof(uint32_t) * (size_t)batches);
            }
            assert_int_equal(loader_corrupt_count(l), 6);
            for (int64_t i = 0; i < 6; i++) {
                int64_t sample;
                const char *reason;
                loader_corrupt_at(l, i, &sample, &reason);
                assert_non_null(strstr(reason, dataset_name(dirty, sample)));
                assert_true(strstr(reason, "truncated") || strstr(reason, "Premature") ||
                            strstr(reason, "but text"));
            }
            loader_close(l);
        }
        assert_true(!training || memcmp(first[0], first[1], sizeof crcs[0] * 6) != 0);
        assert_true(training || memcmp(first[0], first[1], sizeof crcs[0] * 6) == 0);
    }
}

static void resume_in_the_middle(void **state) {
    (void)state;
    Loader *l;
    uint32_t whole[16], part[16];
    LoaderOptions o = options_of(2, true);
    assert_ok(loader_open(clean, &o, &l));
    assert_int_equal(run_epoch(l, 3, 0, whole), 6);
    assert_int_equal(run_epoch(l, 3, 4 * BATCH, part), 2);
    assert_memory_equal(part, whole + 4, 2 * sizeof whole[0]);
    for (int stop = 0; stop < 6; stop++) { /* begin again while batches are in work */
        HostBatch b;
        assert_ok(loader_begin(l, stop, 0));
        for (int i = 0; i < stop; i++) assert_ok(loader_next(l, &b));
    }
    assert_int_equal(run_epoch(l, 3, 2 * BATCH, part), 4);
    assert_memory_equal(part, whole + 2, 4 * sizeof whole[0]);
    assert_int_equal(run_epoch(l, 3, IMAGES, part), 0);
    assert_int_equal(loader_begin(l, 3, IMAGES + 1), STATUS_USAGE);
    assert_int_equal(loader_begin(l, -1, 0), STATUS_USAGE);
    loader_close(l);
}

static void every_sample_once(void **state) {
    (void)state;
    Loader *l;
    LoaderOptions o = options_of(3, true);
    o.drop_last = false;
    assert_ok(loader_open(clean, &o, &l));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int seen[IMAGES] = {0}, in_place = 0;
        int64_t position = 0;
        HostBatch b;
        assert_ok(loader_begin(l, epoch, 0));
        while (loader_next(l, &b) == STATUS_OK) {
            for (int64_t i = 0; i < b.count; i++, position++) {
                seen[b.samples[i]]++;
                in_place += b.samples[i] == position;
                assert_int_equal(b.labels[i], dataset_label(clean, b.samples[i]));
                assert_int_equal(b.valid[i], 1);
            }
        }
        assert_int_equal(position, IMAGES);
        for (int i = 0; i < IMAGES; i++) assert_int_equal(seen[i], 1);
        assert_true(in_place < IMAGES / 4);
    }
    loader_close(l);
}

/* Evaluation gives what decoding and preprocessing give, and the tail is not dropped. */
static void evaluation_is_plain_preprocessing(void **state) {
    (void)state;
    Loader *l;
    HostBatch b;
    ResizeScratch scratch = {0};
    LoaderOptions o = options_of(2, false);
    int64_t position = 0;
    assert_ok(loader_open(clean, &o, &l));
    assert_ok(loader_begin(l, 0, 0));
    while (loader_next(l, &b) == STATUS_OK) {
        for (int64_t i = 0; i < b.count; i++, position++) {
            Image image;
            uint8_t want[SIDE * SIDE * 3];
            assert_int_equal(b.samples[i], position);
            assert_ok(image_read(dataset_name(clean, position), &o.image, &image, NULL));
            assert_ok(preprocess_apply(&preprocess, &image, want, &scratch));
            assert_memory_equal(b.pixels + i * SIDE * SIDE * 3, want, sizeof want);
            image_free(&image);
        }
    }
    assert_int_equal(position, IMAGES);
    loader_close(l);
    resize_scratch_free(&scratch);
}

/* Training gives what augment_apply gives, turned by EXIF or not. */
static void training_equals_augment_apply(void **state) {
    (void)state;
    for (int orientation = 0; orientation < 2; orientation++) {
        Loader *l;
        HostBatch b;
        ResizeScratch scratch = {0};
        LoaderOptions o = options_of(2, true);
        o.image.apply_orientation = orientation;
        assert_ok(loader_open(clean, &o, &l));
        assert_ok(loader_begin(l, 7, 0));
        while (loader_next(l, &b) == STATUS_OK) {
            for (int64_t i = 0; i < b.count; i++) {
                Image image;
                uint8_t want[SIDE * SIDE * 3];
                Rng rng = rng_stream(o.seed, RNG_AUGMENT, 7, (uint64_t)b.samples[i]);
                assert_ok(image_read(dataset_name(clean, b.samples[i]), &o.image, &image, NULL));
                assert_ok(augment_apply(&augment, &preprocess, &image, &rng, want, &scratch));
                assert_memory_equal(b.pixels + i * SIDE * SIDE * 3, want, sizeof want);
                image_free(&image);
            }
        }
        loader_close(l);
        resize_scratch_free(&scratch);
    }
}

static bool always(void) {
    return true;
}

/* A batch that is not there yet is given up, one that is there is handed out. */
static void a_wait_can_be_stopped(void **state) {
    (void)state;
    int stopped = 0;
    for (int i = 0; i < 100 && stopped == 0; i++) {
        Loader *l;
        HostBatch b;
        LoaderOptions o = options_of(1, true);
        const int64_t live = mem_live();
        o.batch = IMAGES;
        o.stopped = always;
        assert_ok(loader_open(clean, &o, &l));
        assert_ok(loader_begin(l, 0, 0));
        const double start = seconds_now();
        const Status s = loader_next(l, &b);
        assert_true(s == STATUS_OK || s == STATUS_STOPPED);
        stopped += s == STATUS_STOPPED;
        if (stopped) assert_message("stopped while waiting for data");
        loader_close(l);
        assert_true(seconds_now() - start < 2);
        assert_int_equal(mem_live(), live);
    }
    assert_int_equal(stopped, 1);
}

static void close_is_prompt(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        Loader *l;
        HostBatch b;
        LoaderOptions o = options_of(1 + i % 4, true);
        int64_t live = mem_live();
        double start = seconds_now();
        assert_ok(loader_open(clean, &o, &l));
        if (i % 3 > 0) assert_ok(loader_begin(l, 0, 0));
        if (i % 3 > 1) assert_ok(loader_next(l, &b));
        loader_close(l);
        assert_true(seconds_now() - start < 2);
        assert_int_equal(mem_live(), live);
    }
    loader_close(NULL);
}

static void options_are_checked(void **state) {
    (void)state;
    Loader *l;
    LoaderOptions o = options_of(1, true);
    o.batch = 0;
    assert_int_equal(loader_open(clean, &o, &l), STATUS_USAGE);
    o = options_of(-1, true);
    assert_int_equal(loader_open(clean, &o, &l), STATUS_USAGE);
    Augment bad = augment;
    bad.scale_min = 2;
    o = options_of(1, true);
    o.augment = &bad;
    assert_int_equal(loader_open(clean, &o, &l), STATUS_USAGE);
    assert_null(l);
}

static void allocation_failures_are_clean(void **state) {
    (void)state;
    int64_t live = mem_live();
    for (int64_t n = 1; n < 40; n++) {
        Loader *l;
        LoaderOptions o = options_of(2, true);
        mem_fail_at(n);
        Status s = loader_open(clean, &o, &l);
        int pending = mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(s, pending ? STATUS_OK : STATUS_MEMORY);
        loader_close(l);
        assert_int_equal(mem_live(), live);
        if (pending) break;
    }
    for (int64_t n = 1; n < 60; n += 3) { /* inside the workers: an error, never a wrong batch */
        Loader *l;
        HostBatch b;
        Status s;
        LoaderOptions o = options_of(2, true);
        assert_ok(loader_open(dirty, &o, &l));
        assert_ok(loader_begin(l, 0, 0));
        mem_fail_at(n);
        while ((s = loader_next(l, &b)) == STATUS_OK) {
        }
        mem_fail_at(0);
        assert_true(s == STATUS_END || s == STATUS_MEMORY);
        loader_close(l);
        assert_int_equal(mem_live(), live);
    }
}

/* After warm-up, batches of images inside a tar take nothing from the heap through the library. */
static void steady_state_allocates_little(void **state) {
    (void)state;
    Loader *l;
    HostBatch b;
    LoaderOptions o = options_of(1, true);
    assert_ok(loader_open(clean, &o, &l));
    int64_t before = 0;
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        assert_ok(loader_begin(l, epoch, 0));
        while (loader_next(l, &b) == STATUS_OK) {
        }
        if (epoch == 1) before = mem_live();
    }
    assert_int_equal(mem_live(), before);
    assert_true(loader_wait_seconds(l) >= 0);
    assert_true(loader_wait_seconds(l) == 0);
    loader_close(l);
}

/* ---- several ranks ---- */

enum { TOGETHER = 12 }; /* images of a training batch */

static void note_samples(Loader *l, int64_t cursor, int64_t *samples, int64_t *count) {
    HostBatch b;
    assert_ok(loader_begin(l, 1, cursor));
    while (loader_next(l, &b) == STATUS_OK)
        for (int64_t i = 0; i < b.count; i++) samples[(*count)++] = b.samples[i];
}

static int by_number(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Every step has the images that it has with one rank, from any cursor. */
static void ranks_divide_batches(void **state) {
    (void)state;
    for (int64_t cursor = 0; cursor <= 24; cursor += TOGETHER) {
        int64_t whole[64], count = 0;
        for (int64_t ranks = 1; ranks <= 4; ranks++) {
            int64_t parts[4][64], sizes[4] = {0};
            const int64_t own = TOGETHER / ranks;
            for (int64_t r = 0; r < ranks; r++) {
                Loader *l;
                LoaderOptions o = options_of(2, true);
                o.batch = own;
                o.shard = (Shard){r, ranks};
                assert_ok(loader_open(clean, &o, &l));
                assert_int_equal(loader_batches(l), IMAGES / TOGETHER);
                note_samples(l, cursor, parts[r], &sizes[r]);
                loader_close(l);
                if (ranks == 1) {
                    count = sizes[0];
                    memcpy(whole, parts[0], sizeof whole);
                }
                assert_int_equal(sizes[r] * ranks, count);
            }
            for (int64_t step = 0; step < count / TOGETHER; step++) {
                int64_t got[TOGETHER], want[TOGETHER];
                for (int64_t r = 0; r < ranks; r++)
                    memcpy(got + r * own, parts[r] + step * own, (size_t)own * sizeof *got);
                memcpy(want, whole + step * TOGETHER, sizeof want);
                qsort(got, TOGETHER, sizeof *got, by_number);
                qsort(want, TOGETHER, sizeof *want, by_number);
                assert_memory_equal(got, want, sizeof got);
            }
        }
    }
}

/* Each image is scored once, in a batch that one rank would have, too. */
static void ranks_deal_whole_batches(void **state) {
    (void)state;
    uint32_t whole[16];
    for (int64_t ranks = 1; ranks <= 9; ranks++) {
        int total = 0;
        for (int64_t r = 0; r < ranks; r++) {
            Loader *l;
            uint32_t crcs[16];
            LoaderOptions o = options_of(2, false);
            o.shard = (Shard){r, ranks};
            assert_ok(loader_open(clean, &o, &l));
            const int n = run_epoch(l, 0, 0, ranks == 1 ? whole : crcs);
            for (int k = 0; k < n && ranks > 1; k++)
                assert_int_equal(crcs[k], whole[r + k * ranks]);
            total += n;
            loader_close(l);
        }
        assert_int_equal(total, (IMAGES + BATCH - 1) / BATCH);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(ranks_divide_batches),
        cmocka_unit_test(ranks_deal_whole_batches),
        cmocka_unit_test(resume_in_the_middle),
        cmocka_unit_test(every_sample_once),
        cmocka_unit_test(evaluation_is_plain_preprocessing),
        cmocka_unit_test(training_equals_augment_apply),
        cmocka_unit_test(a_wait_can_be_stopped),
        cmocka_unit_test(close_is_prompt),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(allocation_failures_are_clean),
        cmocka_unit_test(steady_state_allocates_little),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
