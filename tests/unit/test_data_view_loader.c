/* The threaded loader of view samples. */
#include "data_views.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

/* Scenes of small pictures; one picture is damaged, one of another size. */
static SceneSet *make_pictures(char root[256]) {
    const int frames[] = {12, 12, 12};
    SceneSet *set = make_set(root, frames, 3, -1);
    for (int s = 0; s < 3; s++)
        for (int f = 0; f < 12; f++) {
            char path[400];
            bool other = s == 1 && f == 5;
            Image image = pattern_image(other ? 30 : 24, 16);
            for (int64_t i = 0; i < image.width * 16 * 3; i++) image.pixels[i] += s * 16 + f;
            sprintf(path, "%s/train/%016x/%d.png", root, s, f * 33000);
            if (!(s == 2 && f == 3)) assert_ok(image_write_png(path, &image));
            image_free(&image);
        }
    return set;
}

static uint32_t hash_batches(const SceneSet *set, int threads, int64_t cache, bool vary,
                             int64_t *failures) {
    ViewRecipe r = view_recipe_re10k();
    ViewSampler *sampler;
    ViewLoader *l;
    ViewBatch b;
    uint32_t crc = 0;
    int64_t batches = 0;
    Status s;
    r.clamp = true;
    r.gap_min = 4;
    r.targets = 3;
    r.crop = vary;
    r.mirror = vary ? 0.5 : 0;
    r.tint = vary ? 0.2 : 0;
    assert_ok(view_sampler_open(set, &r, 3, &sampler));
    ViewLoaderOptions o = {.view = view_options_default(8, 8),
                           .batch = 4,
                           .views = 5,
                           .threads = threads,
                           .prefetch = 2,
                           .cache_bytes = cache,
                           .first = 8,
                           .count = 42,
                           .choose = view_choose_sampler,
                           .user = sampler};
    assert_ok(view_loader_open(set, &o, &l));
    while ((s = view_loader_next(l, &b)) == STATUS_OK) {
        crc = crc32c(crc, b.pixels, (size_t)(b.count * 5 * 8 * 8 * 3));
        crc = crc32c(crc, b.cameras, (size_t)(b.count * 5) * sizeof(ViewCamera));
        assert_int_equal(b.first, 8 + 4 * batches++);
        for (int64_t i = 0; i < b.count; i++) assert_int_equal(b.valid[i], 1);
    }
    assert_int_equal(s, STATUS_END);
    assert_int_equal(batches, 11);
    *failures = view_loader_failures(l);
    int64_t sample, before = -1;
    for (int64_t i = 0; i < *failures; i++) {
        assert_non_null(strstr(view_loader_failure(l, i, &sample), "000"));
        assert_true(sample >= before);
        before = sample;
    }
    view_loader_close(l);
    view_sampler_close(sampler);
    return crc;
}

static void loader_is_deterministic(void **state) {
    (void)state;
    char root[256];
    int64_t live = mem_live(), failures, again;
    SceneSet *set = make_pictures(root);
    uint32_t other = 0;
    for (int vary = 0; vary < 2; vary++) {
        uint32_t one = hash_batches(set, 1, 0, vary, &failures);
        assert_true(failures > 0 && one != other);
        other = one;
        assert_true(one == hash_batches(set, 4, 0, vary, &again));
        assert_int_equal(again, failures);
        assert_true(one == hash_batches(set, 3, 1 << 20, vary, &again));
        assert_true(one == hash_batches(set, 2, 2000, vary, &again));
    }
    scene_set_close(set);
    assert_int_equal(mem_live(), live);
    remove_tree(root);
}

static void loader_of_a_list(void **state) {
    (void)state;
    char root[256];
    SceneSet *set = make_pictures(root);
    ViewSample list[3] = {{0, 1, 1, {0, 1}, false, 0, {0}},
                          {1, 1, 1, {0, 5}, false, 0, {0}},
                          {2, 1, 1, {3, 4}, false, 0, {0}}};
    ViewLoader *l;
    ViewBatch b;
    int64_t sample;
    ViewLoaderOptions o = {.view = view_options_default(24, 16),
                           .batch = 3,
                           .views = 2,
                           .count = 3,
                           .choose = view_choose_list,
                           .user = list};
    assert_ok(view_loader_open(set, &o, &l));
    assert_ok(view_loader_next(l, &b));
    assert_int_equal(b.count, 3);
    assert_true(b.valid[0] == 1 && b.valid[1] == 0 && b.valid[2] == 0);
    assert_int_equal(b.pixels[24 * 16 * 3], 1); /* frame 1 of scene 0 */
    assert_int_equal(view_loader_failures(l), 2);
    assert_non_null(strstr(view_loader_failure(l, 0, &sample), "30x16"));
    assert_int_equal(sample, 1);
    assert_non_null(strstr(view_loader_failure(l, 1, &sample), "99000.png"));
    assert_int_equal(view_loader_next(l, &b), STATUS_END);
    view_loader_close(l);
    o.count = 0; /* closed while it works */
    o.batch = 1;
    assert_ok(view_loader_open(set, &o, &l));
    assert_ok(view_loader_next(l, &b));
    view_loader_close(l);
    o.views = 3;
    o.count = 1;
    assert_ok(view_loader_open(set, &o, &l));
    assert_ok(view_loader_next(l, &b));
    assert_int_equal(b.valid[0], 0);
    view_loader_close(l);
    o.batch = 0;
    assert_int_equal(view_loader_open(set, &o, &l), STATUS_USAGE);
    scene_set_close(set);
    remove_tree(root);
}

/* Training samples of the real clips that are here, decoded. */
static void real_samples(void **state) {
    (void)state;
    const char *path = shared_file("data/multiview/posed-test.tar");
    if (path == NULL) skip();
    SceneSet *set;
    ViewSampler *sampler;
    ViewLoader *l;
    ViewBatch b;
    ViewRecipe r = view_recipe_re10k();
    r.clamp = true;
    r.gap_min = 6;
    assert_ok(scene_set_open(path, NULL, &set));
    assert_ok(view_sampler_open(set, &r, 1, &sampler));
    assert_int_equal(view_sampler_unusable(sampler), 0);
    ViewLoaderOptions o = {.view = view_options_default(128, 96),
                           .batch = 4,
                           .views = 8,
                           .threads = 2,
                           .count = 12,
                           .cache_bytes = 1 << 28,
                           .choose = view_choose_sampler,
                           .user = sampler};
    assert_ok(view_loader_open(set, &o, &l));
    while (view_loader_next(l, &b) == STATUS_OK)
        for (int64_t i = 0; i < b.count; i++) {
            const uint8_t *pixels = b.pixels + i * 8 * 96 * 128 * 3;
            double mean = 0;
            for (int64_t k = 0; k < 8 * 96 * 128 * 3; k++) mean += pixels[k];
            mean /= 8 * 96 * 128 * 3;
            assert_true(b.valid[i] && mean > 10 && mean < 245);
            for (int v = 0; v < 8; v++) {
                const double *k = b.cameras[i * 8 + v].intrinsics;
                assert_true(k[0] > 50 && fabs(k[0] / k[1] - 1) < 0.02); /* square pixels */
                assert_true(fabs(k[2] - 64) < 2 && fabs(k[3] - 48) < 2);
            }
        }
    assert_int_equal(view_loader_failures(l), 0);
    view_loader_close(l);
    view_sampler_close(sampler);
    scene_set_close(set);
}

static atomic_bool held, hangs;

/* A sample with a picture that is not there (make_pictures); the stand-in is the read that does not
 * come back. The first choice must not hang: the loader makes it under its lock. */
static Status choose_when_let(void *user, int64_t n, int attempt, ViewSample *out) {
    *out = (ViewSample){.scene = 2, .inputs = 2, .targets = 3, .frames = {1, 2, 3, 4, 5}};
    if (attempt == 0) return STATUS_OK;
    atomic_store(&hangs, true);
    while (atomic_load(&held)) usleep(1000);
    return view_choose_sampler(user, n, attempt, out);
}

static bool is_held(void) {
    return atomic_load(&held);
}

static void a_wait_can_be_stopped(void **state) {
    (void)state;
    char root[256];
    const int64_t live = mem_live();
    SceneSet *set = make_pictures(root);
    ViewRecipe r = view_recipe_re10k();
    ViewSampler *sampler;
    ViewLoader *l;
    ViewBatch b;
    r.clamp = true;
    r.gap_min = 4;
    r.targets = 3;
    assert_ok(view_sampler_open(set, &r, 3, &sampler));
    ViewLoaderOptions o = {.view = view_options_default(8, 8),
                           .batch = 4,
                           .views = 5,
                           .threads = 1, /* a second one would wait for the stand-in */
                           .choose = choose_when_let,
                           .user = sampler,
                           .stopped = is_held};
    atomic_store(&held, true);
    assert_ok(view_loader_open(set, &o, &l));
    assert_int_equal(view_loader_next(l, &b), STATUS_STOPPED);
    assert_message("stopped while waiting for data");
    atomic_store(&held, false);
    assert_true(view_loader_close(l));
    assert_ok(view_loader_open(set, &o, &l)); /* nobody stops it now */
    assert_ok(view_loader_next(l, &b));
    view_loader_close(l);
    view_sampler_close(sampler);
    scene_set_close(set);
    remove_tree(root);
    assert_int_equal(mem_live(), live);
}

/* The last test: the thread hangs until the process ends. */
static void a_thread_that_hangs_is_left_behind(void **state) {
    (void)state;
    char root[256];
    SceneSet *set = make_pictures(root);
    ViewLoader *l;
    ViewBatch b;
    ViewLoaderOptions o = {.view = view_options_default(8, 8),
                           .batch = 1,
                           .views = 5,
                           .threads = 1,
                           .choose = choose_when_let,
                           .stopped = is_held};
    atomic_store(&held, true);
    atomic_store(&hangs, false);
    assert_ok(view_loader_open(set, &o, &l));
    assert_int_equal(view_loader_next(l, &b), STATUS_STOPPED);
    while (!atomic_load(&hangs)) usleep(1000);
    assert_false(view_loader_close(l)); /* so that nobody closes the set */
    remove_tree(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loader_is_deterministic),
        cmocka_unit_test(loader_of_a_list),
        cmocka_unit_test(a_wait_can_be_stopped),
        cmocka_unit_test(real_samples),
        cmocka_unit_test(a_thread_that_hangs_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
