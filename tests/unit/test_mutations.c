/* Every parser of bytes from outside against files that were damaged in hundreds of seeded ways: it
 * says STATUS_OK, or what is wrong, keeps no memory, and takes no time. With the sanitizers of CI
 * this is a small fuzzer that everybody runs; TTV_FUZZ_SEED=N takes other damage, TTV_FUZZ_TIMES=N
 * more of it. */
#include "data_tar.h"

#include <sys/mman.h>

#include "core/config.h"
#include "core/json.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "datasets/folder.h"
#include "datasets/policy.h"
#include "datasets/scene.h"
#include "datasets/tar.h"
#include "datasets/view_sample.h"
#include "nn/checkpoint_files.h"
#include "ttt/graph.h"

#define SLOW_SECONDS 5.0

/* Frees what it opened. `data` is NUL-terminated one past `size` where `text` says so. */
typedef struct Target {
    const char *name;
    Status (*parse)(const unsigned char *data, size_t size);
    bool text;
    int rounds;
} Target;

typedef struct Bytes {
    unsigned char *data;
    size_t size;
} Bytes;

static uint64_t seed = 1;
static int times = 1;

static volatile unsigned sink; /* what is read of a result */

static void touch(const unsigned char *data, size_t size) {
    for (size_t i = 0; i < size; i++) sink += data[i];
}

/* ---- damage ----------------------------------------------------------------------------- */

static const char *const numbers[] = {
    "0",   "-1",  "1e400",      "99999999999999999999", "4294967296",
    "NaN", "0.5", "2147483648", "9007199254740993",     "1"};

static Bytes copy_of(const Bytes *from, size_t room) {
    Bytes b = {malloc(from->size + room + 1), from->size};
    assert_non_null(b.data);
    memcpy(b.data, from->data, from->size);
    return b;
}

/* Replaces `gone` bytes at `at` by `count` others. */
static void splice(Bytes *b, size_t at, size_t gone, const void *with, size_t count) {
    memmove(b->data + at + count, b->data + at + gone, b->size - at - gone);
    memcpy(b->data + at, with, count);
    b->size = b->size - gone + count;
}

static void replace_number(Bytes *b, Rng *r) {
    const char *with = numbers[rng_below(r, sizeof numbers / sizeof *numbers)];
    const size_t start = rng_below(r, b->size);
    for (size_t i = start; i < b->size; i++) {
        size_t n = 0;
        while (i + n < b->size && b->data[i + n] >= '0' && b->data[i + n] <= '9') n++;
        if (n == 0) continue;
        splice(b, i, n, with, strlen(with));
        return;
    }
}

/* One of six ways; most files keep their shape, so that damage gets past the first check. */
static Bytes damaged(const Bytes *whole, Rng *r) {
    unsigned char junk[64];
    Bytes b = copy_of(whole, sizeof junk);
    const size_t at = rng_below(r, b.size), run = 1 + rng_below(r, sizeof junk);
    const size_t inside = run < b.size - at ? run : b.size - at;
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (unsigned char)rng_below(r, 256);
    switch (rng_below(r, 6)) {
    case 0: /* a few bits */
        for (uint64_t i = rng_below(r, 6) + 1; i > 0; i--) {
            const size_t place = rng_below(r, b.size);
            b.data[place] ^= (unsigned char)(1u << rng_below(r, 8));
        }
        break;
    case 1: /* the rest is missing */
        b.size = at;
        break;
    case 2:
        splice(&b, at, inside, junk, 0);
        break;
    case 3:
        splice(&b, at, 0, junk, run);
        break;
    case 4: /* a piece of itself where another belongs */
        memmove(b.data + at, b.data + rng_below(r, b.size - inside + 1), inside);
        break;
    default:
        replace_number(&b, r);
    }
    return b;
}

/* ---- one target, one file --------------------------------------------------------------- */

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* How often it was refused. */
static int attack(const Target *t, const Bytes *whole, uint64_t stream) {
    int refused = 0;
    for (int i = 0; i < t->rounds * times; i++) {
        Rng r = rng_stream(seed, RNG_TEST, stream, (uint64_t)i);
        Bytes b = damaged(whole, &r);
        /* Memory that ends where the file does, so that a sanitizer sees one byte too many. */
        unsigned char *exact = malloc(b.size + t->text + (b.size + t->text == 0));
        memcpy(exact, b.data, b.size);
        if (t->text) exact[b.size] = '\0';
        const int64_t live = mem_live();
        const double begun = seconds_now();
        const Status s = t->parse(exact, b.size);
        if (s != STATUS_OK && s != STATUS_DATA && s != STATUS_USAGE)
            fail_msg("%s, damage %d: %s: %s", t->name, i, status_name(s), status_message());
        if (s != STATUS_OK && !*status_message()) fail_msg("%s, damage %d: no message", t->name, i);
        if (mem_live() != live) fail_msg("%s, damage %d: memory is kept", t->name, i);
        if (seconds_now() - begun > SLOW_SECONDS) fail_msg("%s, damage %d: slow", t->name, i);
        refused += s != STATUS_OK;
        free(exact);
        free(b.data);
    }
    return refused;
}

/* The whole file is taken, most damaged ones are not. */
static void attack_file(const Target *t, const void *data, size_t size, uint64_t stream) {
    const Bytes whole = {(unsigned char *)(uintptr_t)data, size};
    Bytes exact = copy_of(&whole, 0);
    exact.data[size] = '\0';
    assert_ok(t->parse(exact.data, size));
    free(exact.data);
    const int refused = attack(t, &whole, stream);
    print_message("%s: %d of %d refused\n", t->name, refused, t->rounds * times);
    assert_true(refused > t->rounds * times / 5);
}

static void attack_text(const Target *t, const char *text, uint64_t stream) {
    attack_file(t, text, strlen(text), stream);
}

/* ---- the targets ------------------------------------------------------------------------ */

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

static int shard_file; /* in memory */

static Status parse_shard(const unsigned char *data, size_t size) {
    DataConfig c = {.max_pixels = 1 << 20};
    ClassList classes = {0};
    Dataset *d;
    assert_int_equal(ftruncate(shard_file, 0), 0);
    assert_int_equal(pwrite(shard_file, data, size, 0), size);
    snprintf(c.root, sizeof c.root, "/proc/self/fd/%d", shard_file);
    TRY(dataset_open(&c, "", &classes, &d));
    for (int64_t i = 0; i < dataset_count(d); i++) {
        const void *bytes;
        size_t length;
        bool owned;
        assert_ok(dataset_bytes(d, i, &bytes, &length, &owned));
        touch(bytes, length);
        assert_in_range(dataset_label(d, i), 0, classes.count - 1);
    }
    dataset_close(d);
    class_list_free(&classes);
    return STATUS_OK;
}

static void shard(void **state) {
    (void)state;
    static const Target t = {"shard", parse_shard, false, 1500};
    TarBytes tar = {0};
    shard_file = memfd_create("shard", 0);
    assert_true(shard_file >= 0);
    tar_file(&tar, "a/1.jpg", "picture");
    tar_file(&tar, "a/1.cls", "1\n");
    tar_file(&tar, "a/2.cls", "0");
    tar_file(&tar, "a/2.png", "picture");
    tar_file(&tar, "a/3.json", "{\"label\": 1, \"more\": [\"x\"]}");
    tar_file(&tar, "a/3.png", "picture");
    tar_finish(&tar);
    attack_file(&t, tar.data, tar.size, 11);
    tar_drop(&tar);
    assert_int_equal(close(shard_file), 0);
}

static int labels_file; /* of the flat shard in shard_file */

static Status parse_labels(const unsigned char *data, size_t size) {
    DataConfig c = {.max_pixels = 1 << 20};
    ClassList classes = {0};
    Dataset *d;
    assert_int_equal(ftruncate(labels_file, 0), 0);
    assert_int_equal(pwrite(labels_file, data, size, 0), size);
    snprintf(c.root, sizeof c.root, "/proc/self/fd/%d", shard_file);
    snprintf(c.val_labels, sizeof c.val_labels, "/proc/self/fd/%d", labels_file);
    TRY(dataset_open(&c, "", &classes, &d));
    for (int64_t i = 0; i < dataset_count(d); i++)
        assert_in_range(dataset_label(d, i), 0, classes.count - 1);
    dataset_close(d);
    class_list_free(&classes);
    return STATUS_OK;
}

static void labels(void **state) {
    (void)state;
    static const Target t = {"labels", parse_labels, false, 1500};
    TarBytes tar = {0};
    shard_file = memfd_create("flat", 0);
    labels_file = memfd_create("labels", 0);
    assert_true(shard_file >= 0 && labels_file >= 0);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "val_%d.jpg", i);
        tar_file(&tar, name, "picture");
    }
    tar_finish(&tar);
    assert_int_equal(pwrite(shard_file, tar.data, tar.size, 0), tar.size);
    tar_drop(&tar);
    attack_text(&t, "val_0.jpg 3\nval_1.jpg 0\r\n\nval_2.jpg 1\nval_3.jpg 2\n", 12);
    attack_text(&t,
                "ImageId,PredictionString\nval_1,n02 1 2 3 4\nval_0,n01 5 6 7 8 n03 1 1 2 2\n"
                "val_3,n02 0 0 1 1\nval_2,n01 0 0 1 1\n",
                13);
    assert_int_equal(close(shard_file), 0);
    assert_int_equal(close(labels_file), 0);
}

static char run_folder[64];

static Status parse_manifest(const unsigned char *data, size_t size) {
    Manifest m;
    char path[80];
    snprintf(path, sizeof path, "%s/last.json", run_folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return manifest_read(run_folder, "last", &m);
}

static void manifest(void **state) {
    (void)state;
    static const Target t = {"manifest", parse_manifest, false, 1500};
    char path[80];
    snprintf(run_folder, sizeof run_folder, "/tmp/ttv-manifest-XXXXXX");
    assert_non_null(mkdtemp(run_folder));
    attack_text(&t,
                "{\"format\":1,\"step\":264,\"epoch\":12,\"metric\":66.478873239436624,\"weights\":"
                "\"checkpoints/"
                "step-00000264.safetensors\",\"weights_bytes\":296584,\"weights_crc32c\":"
                "1758904193,\"state\":\"checkpoints/"
                "step-00000264.state.safetensors\",\"state_bytes\":888848,\"state_crc32c\":"
                "4270742552,\"ema\":\"checkpoints/"
                "step-00000264.ema.safetensors\",\"ema_bytes\":296584,\"ema_crc32c\":1554053430}\n",
                14);
    snprintf(path, sizeof path, "%s/last.json", run_folder);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(run_folder), 0);
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

static int number_from(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

int main(void) {
    seed = (uint64_t)number_from("TTV_FUZZ_SEED", 1);
    times = number_from("TTV_FUZZ_TIMES", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors),
        cmocka_unit_test(json),
        cmocka_unit_test(configuration),
        cmocka_unit_test(graph),
        cmocka_unit_test(policy),
        cmocka_unit_test(tar_file_of),
        cmocka_unit_test(evaluation_index),
        cmocka_unit_test(cameras),
        cmocka_unit_test(shard),
        cmocka_unit_test(labels),
        cmocka_unit_test(manifest),
        cmocka_unit_test(pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
