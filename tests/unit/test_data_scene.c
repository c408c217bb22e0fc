/* Scenes: the camera text with every fault of users_expect.md R17, the JSON forms, pictures by
 * time, and the real data where it is there. */
#include "data_tar.h"

#include "core/rng.h"
#include "datasets/scene.h"

#define ROTATION     " 1 0 0 0 0 1 0 0 0 0 1 0"
#define CAMERA(time) time " 0.5 0.9 0.5 0.5 0 0" ROTATION "\n"
#define HEX          "00112233445566aa"

/* A set with one scene of the text, and the pictures at the given times. */
static SceneSet *open_text(char root[256], const char *text, const char *const *times) {
    SceneSet *set;
    make_temp(root);
    put_text(root, "train/" HEX ".txt", text);
    for (; times != NULL && *times != NULL; times++) {
        char name[300];
        snprintf(name, sizeof name, "train/" HEX "/%s", *times);
        put_text(root, name, "not decoded here");
    }
    assert_ok(scene_set_open(root, NULL, &set));
    assert_int_equal(scene_set_count(set), 1);
    return set;
}

static void good_text(void **state) {
    (void)state;
    char root[256];
    const char *const times[] = {"1000.jpg", "9000.png", "50000.jpg", "other.png", NULL};
    int64_t live = mem_live();
    SceneSet *set =
        open_text(root,
                  "\xEF\xBB\xBFhttps://x\r\n"
                  "0  0.5\t0.9 0.25 0.75 0 0" ROTATION "  \r\n"
                  "\r\n" CAMERA("9001") CAMERA("30000") "41999 .5 9e-1 .5 .5 0.0 0" ROTATION,
                  times);
    const Scene *s = scene_set_at(set, 0);
    assert_int_equal(s->fault_count, 0);
    assert_int_equal(s->count, 4);
    assert_string_equal(s->url, "https://x");
    assert_string_equal(s->name, HEX);
    assert_string_equal(s->split, "train");
    assert_int_equal(s->missing, 2); /* 30000 and 41999: 8001 us is too far */
    assert_int_equal(s->extra, 2);   /* 50000 and the one without a time */
    assert_int_equal(s->frames[0].late, 1000);
    assert_int_equal(s->frames[1].late, -1);
    assert_int_equal(s->frames[1].line, 4);
    assert_int_equal(s->frames[2].image, -1);
    assert_true(s->frames[0].cx == 0.25 && s->frames[0].cy == 0.75 && s->frames[3].fy == 0.9);
    assert_true(scene_usable(s));
    assert_int_equal(scene_set_find(set, HEX), 0);
    assert_int_equal(scene_set_find(set, "x"), -1);
    scene_set_close(set);
    assert_int_equal(mem_live(), live);
    remove_tree(root);
}

/* A frame exactly 8 ms away still belongs to the camera. */
static void nearest_in_time(void **state) {
    (void)state;
    char root[256];
    const char *const times[] = {"8000.jpg", "8000.png", "20000.png", "24000.png", NULL};
    SceneSet *set = open_text(root, "u\n" CAMERA("0") CAMERA("22000") CAMERA("32001"), times);
    const Scene *s = scene_set_at(set, 0);
    assert_int_equal(s->frames[0].late, 8000);
    assert_int_equal(s->frames[1].late, -2000); /* equally near: the earlier */
    assert_int_equal(s->missing, 1);
    assert_int_equal(s->extra, 2); /* the .png double, and 24000 */
    scene_set_close(set);
    remove_tree(root);
}

typedef struct BadText {
    const char *text, *part[2];
} BadText;

static const BadText bad_texts[] = {
    {"", {".txt: an empty file", ""}},
    {"https://x\n", {"only a URL", ""}},
    {"u\n\n\n", {"only a URL", ""}},
    {CAMERA("0"), {".txt:1:", "URL"}},
    {"u\n" CAMERA("0") "1 .5 .9 .5 .5 0 0 1 0 0 0 0 1 0 0 0 0 1\n",
     {".txt:3: 18 columns", "column 19"}},
    {"u\n1 .5 .9 .5 .5 0 0" ROTATION " 7\n", {".txt:2: 20 columns", "column 20"}},
    {"u\n" CAMERA("0") "1 nan .9 .5 .5 0 0" ROTATION, {".txt:3: column 2 (fx)", "not finite"}},
    {"u\n1 .5 .9 .5 .5 0 0 1 0 0 inf 0 1 0 0 0 0 1 0", {".txt:2: column 11 (t1)", "not finite"}},
    {"u\n1 .5 .9 .5 .5 0 0 1 0 0 1e999 0 1 0 0 0 0 1 0", {"column 11 (t1)", "not finite"}},
    {"u\n1 .5 .9x .5 .5 0 0" ROTATION, {"column 3 (fy)", "no number"}},
    {"u\n1.5 .5 .9 .5 .5 0 0" ROTATION, {"column 1 (timestamp)", "'1.5'"}},
    {"u\n-1 .5 .9 .5 .5 0 0" ROTATION, {"column 1 (timestamp)", "'-1'"}},
    {"u\n1 0 .9 .5 .5 0 0" ROTATION, {"column 2, fx", "focal length is 0"}},
    {"u\n1 .5 -1 .5 .5 0 0" ROTATION, {"column 3, fy", "focal length is -1"}},
    {"u\n1 450 .9 .5 .5 0 0" ROTATION, {"column 2 (fx)", "pixels"}},
    {"u\n1 .5 .9 320 .5 0 0" ROTATION, {"column 4 (cx)", "pixels"}},
    {"u\n1 .5 .9 .5 .5 0.1 0" ROTATION, {"column 6 (k1)", "distortion"}},
    {"u\n1 .5 .9 .5 .5 0 0 1.02 0 0 0 0 1 0 0 0 0 1 0",
     {"columns 8 to 18", "not orthonormal by 0.04"}},
    {"u\n1 .5 .9 .5 .5 0 0 1 0 0 0 0 1 0 0 0 0 -1 0", {"columns 8 to 18", "mirrors"}},
    {"u\n" CAMERA("5") CAMERA("5"), {".txt:3: column 1", "repeats the timestamp of line 2"}},
    {"u\n" CAMERA("5") CAMERA("7") CAMERA("6"), {".txt:4: column 1", "earlier than line 3"}},
};

static void every_fault_is_named(void **state) {
    (void)state;
    char root[256], reason[1024];
    for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; i++) {
        const BadText *b = &bad_texts[i];
        SceneSet *set = open_text(root, b->text, NULL);
        const Scene *s = scene_set_at(set, 0);
        assert_int_equal(s->fault_count, 1);
        assert_false(scene_usable(s));
        scene_reason(s, reason, sizeof reason);
        for (int p = 0; p < 2; p++)
            if (strstr(reason, b->part[p]) == NULL)
                fail_msg("case %zu: '%s' lacks '%s'", i, reason, b->part[p]);
        scene_set_close(set);
        remove_tree(root);
    }
}

static void faults_are_kept_and_counted(void **state) {
    (void)state;
    char root[256], text[8192] = "u\n";
    for (int i = 0; i < 30; i++) strcat(text, "1 2 3\n");
    SceneSet *set = open_text(root, text, NULL);
    assert_int_equal(scene_set_at(set, 0)->fault_count, 30);
    assert_non_null(strstr(scene_set_at(set, 0)->faults[19], ".txt:21:"));
    scene_set_close(set);
    remove_tree(root);
    text[3] = '\0';
    make_temp(root);
    put_file(root, "train/" HEX ".txt", "u\n\0", 3);
    assert_ok(scene_set_open(root, "train", &set));
    assert_non_null(strstr(scene_set_at(set, 0)->faults[0], "NUL"));
    scene_set_close(set);
    remove_tree(root);
}

static void unusable_without_faults(void **state) {
    (void)state;
    char root[256], reason[1024];
    const char *const times[] = {"0.png", NULL};
    SceneSet *set = open_text(root, "u\n" CAMERA("0"), times);
    assert_non_null(
        strstr(scene_reason(scene_set_at(set, 0), reason, sizeof reason), "one camera"));
    scene_set_close(set);
    remove_tree(root);
    set = open_text(root, "u\n" CAMERA("0") CAMERA("9"), NULL);
    assert_non_null(
        strstr(scene_reason(scene_set_at(set, 0), reason, sizeof reason), "no pictures"));
    const void *bytes;
    size_t size;
    bool owned;
    assert_int_equal(scene_bytes(set, 0, 1, &bytes, &size, &owned), STATUS_DATA);
    assert_message(".txt:3: frame 1 has no picture");
    assert_int_equal(scene_bytes(set, 0, 2, &bytes, &size, &owned), STATUS_DATA);
    scene_set_close(set);
    remove_tree(root);
}

/* ---- sets ---- */

static bool is_scene_root(const char *root) {
    bool found;
    assert_ok(scene_root(root, &found));
    return found;
}

static void which_files_are_scenes(void **state) {
    (void)state;
    char root[256], two[600];
    SceneSet *set;
    make_temp(root);
    put_text(root, "README.txt", "nothing");
    put_text(root, "train/room.txt", "u\n" CAMERA("0"));
    put_text(root, "train/room/0.png", "x");
    put_text(root, "train/notes.txt", "nothing");
    put_text(root, "test/" HEX ".txt", "u\n");
    assert_true(is_scene_root(root));
    assert_ok(scene_set_open(root, "", &set));
    assert_int_equal(scene_set_count(set), 2);
    assert_string_equal(scene_set_at(set, 1)->name, "room");
    assert_int_equal(scene_set_other_files(set), 2);
    scene_set_close(set);
    assert_ok(scene_set_open(root, "test", &set));
    assert_int_equal(scene_set_count(set), 1);
    scene_set_close(set);
    assert_int_equal(scene_set_open(root, "val", &set), STATUS_DATA);
    assert_message("split 'val'");
    snprintf(two, sizeof two, "%s,%s", root, root);
    assert_int_equal(scene_set_open(two, "train", &set), STATUS_DATA);
    assert_message("the same scene twice");
    snprintf(two, sizeof two, "%s/train", root); /* the split's folder itself */
    assert_ok(scene_set_open(two, "train", &set));
    scene_set_close(set);
    snprintf(two, sizeof two, "%s/train/room", root);
    assert_false(is_scene_root(two));
    assert_int_equal(scene_set_open(two, NULL, &set), STATUS_DATA);
    assert_message("no scenes");
    assert_int_equal(scene_set_open("/nowhere/at all", NULL, &set), STATUS_IO);
    remove_tree(root);
}

#define EYE "[[1,0,0,0.5],[0,1,0,0],[0,0,1,0],[0,0,0,1]]"

/* The quick look finds cameras beside thousands of pictures, and links are followed once. */
static void quick_look(void **state) {
    (void)state;
    char root[256], name[300], target[600];
    SceneSet *set;
    make_temp(root);
    for (int i = 0; i < 4100; i++) {
        snprintf(name, sizeof name, "train/" HEX "/%d.png", i);
        put_text(root, name, "");
    }
    assert_false(is_scene_root(root));
    put_text(root, "train/" HEX ".txt", "u\n" CAMERA("0") CAMERA("30000"));
    assert_true(is_scene_root(root));
    snprintf(name, sizeof name, "%s/loop", root);
    snprintf(target, sizeof target, "%s/nothing", root);
    assert_int_equal(symlink(target, name), 0);
    assert_ok(scene_set_open(root, NULL, &set));
    assert_int_equal(scene_set_at(set, 0)->extra, 4099);
    scene_set_close(set);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(symlink(root, name), 0); /* a loop ends with a message */
    assert_int_equal(scene_set_open(root, NULL, &set), STATUS_DATA);
    assert_message("nested deeper");
    remove_tree(root);
}

static void json_scenes(void **state) {
    (void)state;
    char root[256];
    SceneSet *set;
    make_temp(root);
    put_text(root, "objects/chair/opencv_cameras.json",
             "[{\"w\":512,\"h\":256,\"fx\":500,\"fy\":400,\"cx\":250,\"cy\":130,\"w2c\":" EYE
             ",\"file_path\":\"./images/a.png\"}, {\"w\":512,\"h\":256,\"fx\":500,\"fy\":400,"
             "\"cx\":250,\"cy\":130,\"w2c\":" EYE ",\"file_path\":\"images/gone.png\"}]");
    put_text(root, "objects/chair/images/a.png", "x");
    put_text(root, "test/metadata/lounge.json",
             "{\"scene_name\":\"lounge\",\"frames\":[{\"image_path\":\"/home/me/lounge/00000.png\","
             "\"fxfycxcy\":[300,310,128,120],\"w2c\":" EYE "}]}");
    put_text(root, "test/images/lounge/00000.png", "x");
    put_text(root, "test/hall/scene_info.json",
             "{\"frames\":[{\"image_path\":\"1.png\",\"intrinsics\":[300,310,128,120],\"c2ws\":" EYE
             "}]}");
    put_text(root, "test/hall/1.png", "x");
    assert_ok(scene_set_open(root, NULL, &set));
    assert_int_equal(scene_set_count(set), 3);
    const Scene *chair = scene_set_at(set, 0), *hall = scene_set_at(set, 1),
                *lounge = scene_set_at(set, 2);
    assert_string_equal(chair->name, "chair");
    assert_string_equal(chair->split, "objects");
    assert_int_equal(chair->format, SCENE_LACT);
    assert_int_equal(chair->missing, 1);
    assert_true(chair->frames[0].width == 512 && chair->frames[0].cy == 130);
    assert_int_equal(hall->format, SCENE_INFO);
    assert_int_equal(hall->missing, 0);
    assert_true(hall->frames[0].w2c[3] == -0.5 && lounge->frames[0].w2c[3] == 0.5);
    assert_string_equal(lounge->split, "test");
    assert_int_equal(lounge->missing, 0);
    assert_int_equal(scene_set_other_files(set), 0);
    scene_set_close(set);
    remove_tree(root);
}

static void json_faults(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "byte 0"},
        {"{}", "a list of frames"},
        {"[]", "no frames"},
        {"[1]", "frame 0: an object"},
        {"[{\"w\":9,\"h\":9,\"fx\":50,\"fy\":50,\"cx\":5,\"cy\":5,\"w2c\":[[1,2]],\"file_path\":"
         "\"a\"}]",
         "4x4 matrix w2c"},
        {"[{\"w\":9,\"h\":9,\"fx\":50,\"cx\":5,\"cy\":5,\"w2c\":" EYE "}]", "fx, fy, cx, cy"},
        {"[{\"w\":9,\"fx\":50,\"fy\":5,\"cx\":5,\"cy\":5,\"w2c\":" EYE "}]", "size w, h"},
        {"[{\"w\":9,\"h\":9,\"fx\":0.5,\"fy\":0.5,\"cx\":5,\"cy\":5,\"w2c\":" EYE
         ",\"file_path\":\"a\"}]",
         "pixels are expected"},
        {"[{\"w\":9,\"h\":9,\"fx\":50,\"fy\":50,\"cx\":5,\"cy\":5,\"w2c\":" EYE "}]", "path"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char root[256], reason[1024];
        SceneSet *set;
        make_temp(root);
        put_text(root, "chair/opencv_cameras.json", cases[i][0]);
        assert_ok(scene_set_open(root, NULL, &set));
        scene_reason(scene_set_at(set, 0), reason, sizeof reason);
        if (strstr(reason, cases[i][1]) == NULL)
            fail_msg("case %zu: '%s' lacks '%s'", i, reason, cases[i][1]);
        scene_set_close(set);
        remove_tree(root);
    }
}

/* ---- real data ---- */

static void real_scenes(void **state) {
    (void)state;
    static const struct {
        const char *file;
        int64_t scenes, frames;
    } tars[] = {{"re10k-real.tar", 8, 564},
                {"posed-train-1.tar", 78, 1406},
                {"posed-train-2.tar", 79, 1334},
                {"posed-test.tar", 28, 483}};
    for (size_t i = 0; i < 4; i++) {
        char name[100];
        snprintf(name, sizeof name, "data/multiview/%s", tars[i].file);
        const char *path = shared_file(name);
        if (path == NULL) skip();
        SceneSet *set;
        int64_t frames = 0;
        assert_ok(scene_set_open(path, NULL, &set));
        assert_int_equal(scene_set_count(set), tars[i].scenes);
        for (int64_t k = 0; k < scene_set_count(set); k++) {
            const Scene *s = scene_set_at(set, k);
            char reason[1024];
            if (!scene_usable(s)) fail_msg("%s", scene_reason(s, reason, sizeof reason));
            assert_int_equal(s->missing + s->extra, 0);
            frames += s->count;
        }
        assert_int_equal(frames, tars[i].frames);
        assert_int_equal(scene_set_other_files(set), 0);
        scene_set_close(set);
    }
}

/* Damaged bytes anywhere: a fault or not, but never a crash, and the scene stays one scene. */
static void mutated_files(void **state) {
    (void)state;
    static const char *const names[] = {"train/" HEX ".txt", "a/opencv_cameras.json",
                                        "metadata/b.json", "c/scene_info.json"};
    static const char *const texts[] = {
        "https://x\n" CAMERA("0") CAMERA("33000"),
        "[{\"w\":9,\"h\":9,\"fx\":50,\"fy\":50,\"cx\":5,\"cy\":5,\"w2c\":" EYE
        ",\"file_path\":\"a\"}]",
        "{\"frames\":[{\"image_path\":\"/x/a\",\"fxfycxcy\":[30,30,1,1],\"w2c\":" EYE "}]}",
        "{\"frames\":[{\"image_path\":\"a\",\"intrinsics\":[30,30,1,1],\"c2ws\":" EYE "}]}",
    };
    char root[256], text[1024], reason[1024];
    int64_t live = mem_live();
    Rng rng = rng_stream(1, RNG_TEST, 0, 0);
    make_temp(root);
    for (int n = 0; n < 800; n++) {
        SceneSet *set;
        size_t size = strlen(texts[n % 4]);
        memcpy(text, texts[n % 4], size);
        for (int k = 0; k < 1 + n % 3; k++) text[rng_below(&rng, size)] = (char)rng_u32(&rng);
        if (n % 7 == 0) size = (size_t)rng_below(&rng, size + 1);
        put_file(root, names[n % 4], text, size);
        assert_ok(scene_set_open(root, NULL, &set));
        assert_int_equal(scene_set_count(set), n < 4 ? n + 1 : 4);
        for (int64_t i = 0; i < scene_set_count(set); i++) {
            const Scene *s = scene_set_at(set, i);
            scene_reason(s, reason, sizeof reason);
            assert_true(s->fault_count > 0 || s->count > 0);
        }
        scene_set_close(set);
    }
    assert_int_equal(mem_live(), live);
    remove_tree(root);
}

/* Every allocation of opening a set fails once. */
static void out_of_memory(void **state) {
    (void)state;
    int64_t live = mem_live();
    for (int64_t n = 1;; n++) {
        SceneSet *set;
        mem_fail_at(n);
        Status s = scene_set_open(TTV_SOURCE_DIR "/data/motorcycle.tar", NULL, &set);
        bool done = mem_fail_pending();
        mem_fail_at(0);
        if (s == STATUS_OK) scene_set_close(set);
        if (!done) assert_int_equal(s, STATUS_MEMORY);
        assert_int_equal(mem_live(), live);
        if (done) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_text),
        cmocka_unit_test(nearest_in_time),
        cmocka_unit_test(every_fault_is_named),
        cmocka_unit_test(faults_are_kept_and_counted),
        cmocka_unit_test(unusable_without_faults),
        cmocka_unit_test(which_files_are_scenes),
        cmocka_unit_test(quick_look),
        cmocka_unit_test(json_scenes),
        cmocka_unit_test(json_faults),
        cmocka_unit_test(mutated_files),
        cmocka_unit_test(real_scenes),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
