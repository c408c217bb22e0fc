/* Samples of views: the training recipe, evaluation indices. */
#include "data_views.h"

#include <math.h>

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
        "{\"0000000000000000\": {\"context\": [0, 20], \"target\": [3, 9, 10]},\n"
        "\"0000000000000001\": {\"context\": [0, 20], \"target\": [4, 9, 10]},\n\n"
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
    assert_non_null(strstr(x.entries[1].reason, "frame 4 has no picture (i.json:2)"));
    assert_non_null(strstr(x.entries[3].reason, "not in the data (i.json:4)"));
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
        {"{\"a\": 1}", "i.json: scene 'a': null or an object"},
        {"{\"b\": null,\n\"a\": {\"context\": [1, 2]}}", "i.json:2: scene 'a': a list 'target'"},
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recipe),      cmocka_unit_test(short_scenes),
        cmocka_unit_test(shares),          cmocka_unit_test(turns),
        cmocka_unit_test(index_states),    cmocka_unit_test(bad_indices),
        cmocka_unit_test(generated_index), cmocka_unit_test(official_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
