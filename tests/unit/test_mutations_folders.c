/* Data sets and run folders whose files are damaged (mutations.h). */
#include "mutations.h"

#include "datasets/folder.h"
#include "nn/checkpoint_files.h"

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

int main(void) {
    mutations_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard),
        cmocka_unit_test(labels),
        cmocka_unit_test(manifest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
