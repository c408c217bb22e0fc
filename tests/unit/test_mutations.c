/* Parsers of single texts and files in memory against damage (mutations.h). */
#include "mutations.h"

#include "core/config.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "datasets/folder.h"
#include "datasets/policy.h"
#include "datasets/scene.h"
#include "datasets/tar.h"
#include "datasets/view_sample.h"
#include "ttt/graph.h"

static Status parse_safetensors(const unsigned char *data, size_t size) {
    SafeFile *f;
    const char *key, *value;
    TRY(safetensors_parse(data, size, "damaged", &f));
    for (int64_t i = 0; i < safetensors_count(f); i++)
        touch(safetensors_at(f, i)->data, safetensors_at(f, i)->bytes);
    for (int64_t i = 0; i < safetensors_meta_count(f); i++) {
        safetensors_meta_at(f, i, &key, &value);
        touch((const unsigned char *)value, strlen(value));
    }
    safetensors_close(f);
    return STATUS_OK;
}

static void safetensors(void **state) {
    (void)state;
    static const Target t = {"safetensors", parse_safetensors, false, 4000};
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\"},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},"
        "\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[32,32]}} ";
    const uint64_t length = sizeof header - 1;
    unsigned char file[8 + sizeof header - 1 + 32] = {0};
    memcpy(file, &length, 8);
    memcpy(file + 8, header, sizeof header - 1);
    attack_file(&t, file, sizeof file, 1);
}

static Status parse_json(const unsigned char *data, size_t size) {
    struct cJSON *tree;
    TRY(json_parse((const char *)data, size, "damaged", &tree));
    json_free(tree);
    return STATUS_OK;
}

static void json(void **state) {
    (void)state;
    static const Target t = {"JSON", parse_json, true, 4000};
    attack_text(&t, "{\"a\":[1,2.5e3,-0,true,null],\"\\u00fc\\n\":{\"b\":\"text\\\\\",\"c\":[]}}\n",
                2);
}

static Status parse_config(const unsigned char *data, size_t size) {
    DataConfig values = {0};
    const Section section = {"data", data_options, &values};
    Config *c;
    TRY(config_new(&section, 1, &c));
    const Status s = config_read_text(c, (const char *)data, size, "damaged", false);
    config_free(c);
    return s;
}

static void configuration(void **state) {
    (void)state;
    static const Target t = {"configuration", parse_config, true, 4000};
    attack_text(
        &t,
        "; a comment\n[data]\nroot = a folder ; and why\nmax_corrupt = 0.25\n"
        "class_order = natural\nstrict_decode = false\ntrain_limit = 1000\nmax_pixels = 5000\n",
        3);
}

static Status parse_graph(const unsigned char *data, size_t size) {
    Graph g;
    (void)size;
    return graph_parse(&g, (const char *)data, 8, 16);
}

static void graph(void **state) {
    (void)state;
    static const Target t = {"graph", parse_graph, true, 4000};
    attack_text(&t,
                "a = linear(input 2d), b = linear(input 2d slow), s = silu(b), m = mul(a s), "
                "n = norm(m eps=1e-5), o = linear(n d zero)",
                4);
}

static Status parse_policy(const unsigned char *data, size_t size) {
    Policy p;
    (void)size;
    return policy_parse((const char *)data, &p);
}

static void policy(void **state) {
    (void)state;
    static const Target t = {"policy", parse_policy, true, 500};
    attack_text(&t, "rand-m9-mstd0.5-inc1-n2-p0.5", 5);
}

static Status parse_tar(const unsigned char *data, size_t size) {
    Tar *tar;
    TRY(tar_parse(data, size, "damaged", &tar));
    for (int64_t i = 0; i < tar_count(tar); i++) {
        touch(tar_at(tar, i)->data, tar_at(tar, i)->size);
        touch((const unsigned char *)tar_at(tar, i)->name, strlen(tar_at(tar, i)->name));
    }
    tar_close(tar);
    return STATUS_OK;
}

static void tar_file_of(void **state) {
    (void)state;
    static const Target t = {"tar", parse_tar, false, 4000};
    static const char pax[] = "22 path=a/long/name.x\n";
    TarBytes tar = {0};
    tar_put(&tar, "pax", NULL, 'x', pax, sizeof pax - 1);
    tar_file(&tar, "short", "first");
    tar_put(&tar, "././@LongLink", NULL, 'L', "another/long/name", 18);
    tar_file(&tar, "short", "second");
    tar_put(&tar, "folder", "prefix", '5', NULL, 0);
    tar_finish(&tar);
    attack_file(&t, tar.data, tar.size, 6);
    tar_drop(&tar);
}

static Status parse_index(const unsigned char *data, size_t size) {
    EvalIndex x;
    TRY(eval_index_parse((const char *)data, size, "damaged", &x));
    eval_index_free(&x);
    return STATUS_OK;
}

static void evaluation_index(void **state) {
    (void)state;
    static const Target t = {"evaluation index", parse_index, true, 4000};
    attack_text(&t,
                "{\"one\":{\"context\":[3,58],\"target\":[10,20,30]},\"two\":null,"
                "\"three\":{\"context\":[0,9],\"target\":[4]}}",
                7);
}

static int camera_file; /* in memory */

static Status parse_cameras(const unsigned char *data, size_t size) {
    SceneFrame *frames;
    int64_t count;
    char path[64];
    assert_int_equal(ftruncate(camera_file, 0), 0);
    assert_int_equal(pwrite(camera_file, data, size, 0), size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", camera_file);
    TRY(scene_cameras_read(path, &frames, &count));
    touch((const unsigned char *)frames, (size_t)count * sizeof *frames);
    mem_free(frames);
    return STATUS_OK;
}

static void cameras(void **state) {
    (void)state;
    static const Target text = {"cameras", parse_cameras, false, 1500};
    static const Target list = {"cameras as JSON", parse_cameras, false, 1500};
    camera_file = memfd_create("cameras", 0);
    assert_true(camera_file >= 0);
    attack_text(&text,
                "https://a.place/video\n"
                "0 .5 .9 .5 .5 0 0 1 0 0 0.1 0 1 0 0 0 0 1 0\r\n"
                "33000 .5  .9 .5 .5 0 0 0 -1 0 0.1 1 0 0 0 0 0 1 0\n",
                8);
    attack_text(&list,
                "[{\"file_path\":\"a.png\",\"w\":64,\"h\":48,\"fx\":50,\"fy\":50,\"cx\":32,"
                "\"cy\":24,\"w2c\":[[1,0,0,0],[0,1,0,0],[0,0,1,0.5],[0,0,0,1]]}]",
                9);
    attack_text(&list,
                "{\"frames\":[{\"image_path\":\"a.png\",\"fxfycxcy\":[50,50,32,24],"
                "\"w2c\":[[1,0,0,0],[0,1,0,0],[0,0,1,0.5],[0,0,0,1]]}]}",
                10);
    assert_int_equal(close(camera_file), 0);
}

static Status parse_picture(const unsigned char *data, size_t size) {
    ImageOptions o = image_options_default();
    o.max_pixels = 1 << 20;
    Status strict = STATUS_OK;
    for (int lenient = 1; lenient >= 0; lenient--) { /* the strict verdict is the one returned */
        Image image;
        ImageInfo info;
        o.strict = !lenient;
        o.apply_orientation = !lenient;
        o.alpha = lenient ? ALPHA_COMPOSITE_WHITE : ALPHA_DROP;
        strict = image_decode(data, size, "damaged", &o, &image, &info);
        if (strict != STATUS_OK) continue;
        touch(image.pixels, (size_t)(image.width * image.height * 3));
        image_free(&image);
    }
    return strict;
}

static void pictures(void **state) {
    (void)state;
    static const char *const files[] = {
        "rgb_420.jpg", "progressive_420.jpg", "cmyk_adobe.jpg",     "exif_6.jpg",
        "grey_16.png", "palette_4_trns.png",  "rgb_interlaced.png", "exif_6.png"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const Target t = {files[i], parse_picture, false, 600};
        char path[4096], *bytes;
        size_t size;
        snprintf(path, sizeof path, "%s/%s", CORPUS, files[i]);
        read_whole(path, &bytes, &size);
        attack_file(&t, bytes, size, 20 + i);
        mem_free(bytes);
    }
}

int main(void) {
    mutations_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors),      cmocka_unit_test(json),
        cmocka_unit_test(configuration),    cmocka_unit_test(graph),
        cmocka_unit_test(policy),           cmocka_unit_test(tar_file_of),
        cmocka_unit_test(evaluation_index), cmocka_unit_test(cameras),
        cmocka_unit_test(pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
