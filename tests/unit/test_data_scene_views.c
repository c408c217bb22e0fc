/* Samples of views: the training recipe, evaluation indices, the threaded loader. */
#include "data_support.h"

#include <math.h>

#include "core/rng.h"
#include "datasets/view_loader.h"

/* A folder with scenes of so many frames each; frame `hole` of every scene has no picture. */
static SceneSet *make_set(char root[256], const int *frames, int scenes, int hole) {
    SceneSet *set;
    make_temp(root);
    char *text = malloc(1 << 16);
    for (int s = 0; s < scenes; s++) {
        size_t used = (size_t)sprintf(text, s % 4 == 3 ? "synthetic: test\n" : "url\n");
        for (int f = 0; f < frames[s]; f++)
            used += (size_t)sprintf(text + used, "%d .5 .5 .5 .5 0 0 1 0 0 %d.5 0 1 0 0 0 0 1 0\n",
                                    f * 33000, f);
        char name[100];
        sprintf(name, "train/%016x.txt", s);
        put_text(root, name, text);
        for (int f = 0; f < frames[s]; f++) {
            if (f == hole) continue;
            sprintf(name, "train/%016x/%d.png", s, f * 33000);
            put_text(root, name, "");
        }
    }
    free(text);
    assert_ok(scene_set_open(root, NULL, &set));
    return set;
}

static void the_recipe(void **state) {
    (void)state;
    char root[256];
    const int frames[] = {250, 60, 20, 27};
    SceneSet *set = make_set(root, frames, 4, 13);
    ViewRecipe r = view_recipe_re10k();
    ViewSampler *a, *b;
    ViewSample x, y;
    int64_t seen[4] = {0}, widest = 0, narrowest = 1000, repeated = 0;
    assert_ok(view_sampler_open(set, &r, 7, &a));
    assert_ok(view_sampler_open(set, &r, 7, &b));
    assert_int_equal(view_sampler_scenes(a), 3);
    assert_int_equal(view_sampler_short(a), 1);
    for (int n = 0; n < 600; n++) {
        assert_ok(view_sampler_draw(a, n, 0, &x));
        int64_t gap = x.frames[1] - x.frames[0];
        assert_true(gap >= 25 && gap <= 192 && x.frames[0] >= 0);
        assert_true(x.frames[1] < scene_set_at(set, x.scene)->count);
        assert_true(x.inputs == 2 && x.targets == 6);
        for (int i = 2; i < 8; i++) {
            assert_true(x.frames[i] >= x.frames[0] && x.frames[i] <= x.frames[1]);
            assert_int_not_equal(x.frames[i], 13);
            repeated += x.frames[i] == x.frames[0];
            for (int k = 2; k < i; k++) assert_int_not_equal(x.frames[i], x.frames[k]);
        }
        seen[x.scene]++;
        if (gap > widest) widest = gap;
        if (gap < narrowest) narrowest = gap;
    }
    assert_true(seen[0] > 300 && seen[1] > 50 && seen[2] == 0 && seen[3] > 0);
    assert_true(widest > 180 && narrowest < 30 && repeated > 0);
    /* any order, any attempt: the same */
    for (int n = 599; n >= 0; n -= 37) {
        assert_ok(view_sampler_draw(a, n, n % 3, &x));
        assert_ok(view_sampler_draw(b, n, n % 3, &y));
        assert_memory_equal(x.frames, y.frames, 8 * sizeof x.frames[0]);
        assert_int_equal(x.scene, y.scene);
    }
    view_sampler_close(a);
    view_sampler_close(b);
    scene_set_close(set);
    remove_tree(root);
}

static void short_scenes(void **state) {
    (void)state;
    char root[256];
    const int frames[] = {9, 4};
    SceneSet *set = make_set(root, frames, 2, -1);
    ViewRecipe r = view_recipe_re10k();
    ViewSampler *s;
    ViewSample x;
    assert_int_equal(view_sampler_open(set, &r, 1, &s), STATUS_DATA);
    assert_message("2 too short");
    r.clamp = r.inside = true;
    assert_ok(view_sampler_open(set, &r, 1, &s));
    assert_int_equal(view_sampler_short(s), 1);
    for (int n = 0; n < 50; n++) {
        assert_ok(view_sampler_draw(s, n, 0, &x));
        for (int i = 2; i < 8; i++)
            assert_true(x.frames[i] > x.frames[0] && x.frames[i] < x.frames[1]);
    }
    view_sampler_close(s);
    r.gap_min = 0;
    assert_int_equal(view_sampler_open(set, &r, 1, &s), STATUS_USAGE);
    r = view_recipe_re10k();
    r.targets = VIEW_MAX;
    assert_int_equal(view_sampler_open(set, &r, 1, &s), STATUS_USAGE);
    scene_set_close(set);
    remove_tree(root);
}

/* A share of the samples is synthetic, however many of the scenes are; some samples are mirrored.
 */
static void shares(void **state) {
    (void)state;
    char root[256];
    const int frames[] = {30, 30, 30, 30}; /* the last one is synthetic */
    SceneSet *set = make_set(root, frames, 4, -1);
    ViewRecipe r = view_recipe_re10k();
    ViewSampler *s, *again;
    ViewSample x, y;
    int64_t seen[4] = {0}, crops[VIEW_CROPS] = {0}, mirrored = 0;
    r.gap_max = 29;
    r.synthetic = 0.6;
    r.mirror = 0.5;
    r.crop = true;
    r.tint = 0.3;
    assert_ok(view_sampler_open(set, &r, 7, &s));
    assert_ok(view_sampler_open(set, &r, 7, &again));
    assert_int_equal(view_sampler_scenes(s), 4);
    assert_int_equal(view_sampler_synthetic(s), 1);
    for (int n = 0; n < 1000; n++) {
        assert_ok(view_sampler_draw(s, n, 0, &x));
        seen[x.scene]++;
        mirrored += x.mirror;
        crops[x.crop + VIEW_CROPS / 2]++;
        for (int i = 0; i < 4; i++) assert_true(x.tint[i] > 0.74f && x.tint[i] < 1.35f);
    }
    assert_true(seen[3] >= 599 && seen[3] <= 601);
    for (int i = 0; i < 3; i++) assert_true(seen[i] >= 133 && seen[i] <= 134);
    for (int i = 0; i < VIEW_CROPS; i++) assert_true(crops[i] > 150 && crops[i] < 250);
    assert_true(mirrored > 430 && mirrored < 570);
    for (int n = 999; n >= 0; n -= 31) {
        assert_ok(view_sampler_draw(s, n, n % 2, &x));
        assert_ok(view_sampler_draw(again, n, n % 2, &y));
        assert_true(x.scene == y.scene && x.mirror == y.mirror && x.frames[5] == y.frames[5]);
        assert_int_equal(x.scene == 3, n * 6 % 10 >= 4); /* the stand-in is of the same kind */
    }
    view_sampler_close(s);
    view_sampler_close(again);
    r.synthetic = 1.5;
    assert_int_equal(view_sampler_open(set, &r, 7, &s), STATUS_USAGE);
    scene_set_close(set);
    remove_tree(root);
    set = make_set(root, frames, 3, -1);
    r.synthetic = 0.5;
    assert_int_equal(view_sampler_open(set, &r, 7, &s), STATUS_DATA);
    assert_message("0 of 3");
    scene_set_close(set);
    remove_tree(root);
}

/* A camera that turns by 3 degrees a frame: gaps of up to 4 stay below 13 degrees. */
static void turns(void **state) {
    (void)state;
    char root[256], *text = malloc(1 << 16), name[100];
    size_t used = (size_t)sprintf(text, "url\n");
    make_temp(root);
    for (int f = 0; f < 30; f++) {
        const double a = f * 3 * acos(-1) / 180;
        used += (size_t)sprintf(text + used,
                                "%d .5 .5 .5 .5 0 0 %.15g 0 %.15g 0 0 1 0 0 %.15g 0 %.15g 0\n",
                                f * 33000, cos(a), sin(a), -sin(a), cos(a));
        sprintf(name, "train/0000000000000000/%d.png", f * 33000);
        put_text(root, name, "");
    }
    put_text(root, "train/0000000000000000.txt", text);
    free(text);
    SceneSet *set;
    assert_ok(scene_set_open(root, NULL, &set));
    const Scene *scene = scene_set_at(set, 0);
    assert_true(fabs(view_turn(&scene->frames[3], &scene->frames[20]) - 51) < 1e-9);
    assert_true(view_turn(&scene->frames[3], &scene->frames[3]) < 1e-6);
    ViewRecipe r = {.gap_min = 3, .gap_max = 12, .inputs = 2, .targets = 2, .turn_max = 13};
    ViewSampler *s;
    ViewSample x;
    int64_t seen[5] = {0};
    assert_ok(view_sampler_open(set, &r, 7, &s));
    for (int n = 0; n < 200; n++) {
        assert_ok(view_sampler_draw(s, n, 0, &x));
        const int64_t gap = x.frames[1] - x.frames[0];
        assert_true(gap == 3 || gap == 4);
        seen[gap]++;
    }
    assert_true(seen[3] > 50 && seen[4] > 50);
    view_sampler_close(s);
    EvalIndex index;
    assert_ok(eval_index_generate(set, &r, 5, &index));
    const int64_t *frames = index.entries[0].sample.frames;
    assert_true(frames[1] - frames[0] == 3 || frames[1] - frames[0] == 4);
    eval_index_free(&index);
    r.turn_max = 5;
    assert_ok(eval_index_generate(set, &r, 5, &index));
    assert_non_null(strstr(index.entries[0].reason, "turning too fast"));
    eval_index_free(&index);
    r.turn_max = 181;
    assert_int_equal(view_sampler_open(set, &r, 7, &s), STATUS_USAGE);
    scene_set_close(set);
    remove_tree(root);
}

/* ---- indices ---- */

static void index_states(void **state) {
    (void)state;
    char root[256];
    const int frames[] = {30, 30};
    SceneSet *set = make_set(root, frames, 2, 4);
    static const char text[] =
        "{\"0000000000000000\": {\"context\": [0, 20], \"target\": [3, 9, 10]},"
        "\"0000000000000001\": {\"context\": [0, 20], \"target\": [4, 9, 10]},"
        "\"00\": null, \"gone\": {\"context\": [0, 1], \"target\": [0]},"
        "\"0000000000000001\\u0020\": {\"context\": [0, 1], \"target\": [0]}}";
    EvalIndex x;
    assert_ok(eval_index_parse(text, sizeof text - 1, "i.json", &x));
    assert_ok(eval_index_resolve(&x, set));
    EvalCounts c = eval_index_counts(&x);
    assert_int_equal(c.ready, 1);
    assert_int_equal(c.null, 1);
    assert_int_equal(c.missing, 3);
    assert_int_equal(c.ready + c.null + c.missing + c.faulty + c.failed, x.count);
    assert_int_equal(x.entries[0].sample.frames[4], 10);
    assert_non_null(strstr(x.entries[1].reason, "frame 4 has no picture"));
    assert_non_null(strstr(x.entries[3].reason, "not in the data"));
    status_set(STATUS_DATA, "broken.png: cut");
    assert_ok(eval_entry_failed(&x.entries[0]));
    assert_string_equal(x.entries[0].reason, "broken.png: cut");
    assert_int_equal(eval_index_counts(&x).failed, 1);
    eval_index_free(&x);
    static const char beyond[] = "{\"0000000000000000\": {\"context\": [0, 30], \"target\": [3]}}";
    assert_ok(eval_index_parse(beyond, sizeof beyond - 1, "i.json", &x));
    assert_ok(eval_index_resolve(&x, set));
    assert_non_null(strstr(x.entries[0].reason, "no frame 30: 30 cameras"));
    eval_index_free(&x);
    scene_set_close(set);
    remove_tree(root);
}

static void bad_indices(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "i.json"},
        {"[]", "an object of scenes"},
        {"{}", "no scenes"},
        {"{\"a\": 1}", "scene 'a': null or an object"},
        {"{\"a\": {\"context\": [1, 2]}}", "a list 'target'"},
        {"{\"a\": {\"context\": [], \"target\": [1]}}", "a list 'context'"},
        {"{\"a\": {\"context\": [0, 1.5], \"target\": [1]}}", "'context' holds something"},
        {"{\"a\": {\"context\": [0, -1], \"target\": [1]}}", "position 1"},
        {"{\"a\": null, \"a\": null}", "i.json"},
    };
    int64_t live = mem_live();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        EvalIndex x;
        assert_int_equal(eval_index_parse(cases[i][0], strlen(cases[i][0]), "i.json", &x),
                         STATUS_DATA);
        assert_message(cases[i][1]);
    }
    assert_int_equal(mem_live(), live);
}

static void generated_index(void **state) {
    (void)state;
    char root[256], path[300];
    const int frames[] = {60, 12, 3, 150};
    SceneSet *set = make_set(root, frames, 4, 2);
    ViewRecipe r = view_recipe_re10k();
    EvalIndex x, y;
    r.gap_min = 45;
    r.gap_max = 135;
    r.targets = 3;
    assert_ok(eval_index_generate(set, &r, 5, &x));
    assert_int_equal(x.count, 4);
    assert_int_equal(x.entries[2].state, EVAL_NULL);
    assert_non_null(strstr(x.entries[2].reason, "too short: 2 pictures"));
    for (int i = 0; i < 4; i++) {
        const ViewSample *s = &x.entries[i].sample;
        for (int t = 2; t < s->inputs + s->targets; t++) {
            assert_true(s->frames[t] > s->frames[0] && s->frames[t] < s->frames[1]);
            assert_int_not_equal(s->frames[t], 2);
        }
    }
    snprintf(path, sizeof path, "%s/index.json", root);
    assert_ok(eval_index_write(&x, path));
    assert_ok(eval_index_read(path, &y));
    assert_ok(eval_index_resolve(&y, set));
    assert_int_equal(eval_index_counts(&y).ready, 3);
    for (int i = 0; i < 4; i++)
        assert_memory_equal(x.entries[i].sample.frames, y.entries[i].sample.frames,
                            sizeof x.entries[i].sample.frames);
    eval_index_free(&x);
    eval_index_free(&y);
    scene_set_close(set);
    remove_tree(root);
}

static void official_index(void **state) {
    (void)state;
    const char *path = shared_file("data/multiview/evaluation_index_re10k.json");
    if (path == NULL) skip();
    EvalIndex x;
    SceneSet *set;
    assert_ok(eval_index_read(path, &x));
    assert_int_equal(x.count, 7194);
    assert_int_equal(eval_index_counts(&x).null, 720);
    assert_ok(scene_set_open(shared_file("data/multiview/re10k-real.tar"), "test", &set));
    assert_ok(eval_index_resolve(&x, set));
    EvalCounts c = eval_index_counts(&x);
    assert_int_equal(c.ready, 2);
    assert_int_equal(c.null + c.missing, 7192);
    for (int64_t i = 0; i < x.count; i++)
        if (strcmp(x.entries[i].scene, "000c3ab189999a83") == 0) {
            const int64_t want[5] = {9, 126, 29, 30, 46};
            assert_int_equal(x.entries[i].state, EVAL_READY);
            assert_memory_equal(x.entries[i].sample.frames, want, sizeof want);
        }
    eval_index_free(&x);
    scene_set_close(set);
}

/* ---- the loader ---- */

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recipe),
        cmocka_unit_test(short_scenes),
        cmocka_unit_test(shares),
        cmocka_unit_test(turns),
        cmocka_unit_test(index_states),
        cmocka_unit_test(bad_indices),
        cmocka_unit_test(generated_index),
        cmocka_unit_test(official_index),
        cmocka_unit_test(loader_is_deterministic),
        cmocka_unit_test(loader_of_a_list),
        cmocka_unit_test(real_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
