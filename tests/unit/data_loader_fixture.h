/* Two data sets in a temporary folder, one clean, one with damaged files, and a loader's options.
 */
#ifndef TTV_TESTS_DATA_LOADER_FIXTURE_H
#define TTV_TESTS_DATA_LOADER_FIXTURE_H

#include "data_tar.h"

#include "datasets/loader.h"

enum { SIDE = 24, IMAGES = 53, BATCH = 8 };

static char root[256];
static Dataset *clean, *dirty;
static ClassList classes;

static const char *const good[] = {
    "grey.jpg",   "rgb_420.jpg",         "rgb_interlaced.png", "cmyk_adobe.jpg",    "palette_8.png",
    "exif_6.jpg", "progressive_420.jpg", "rgba_16.png",        "rgb_components.jpg"};

static Dataset *open_split(const char *split) {
    DataConfig c = {0};
    Section section = {"data", data_options, &c};
    Config *config;
    Dataset *d;
    assert_ok(config_new(&section, 1, &config));
    config_free(config);
    snprintf(c.root, sizeof c.root, "%s", root);
    assert_ok(dataset_open(&c, split, &classes, &d));
    return d;
}

static int set_up(void **state) {
    (void)state;
    char name[64];
    make_temp(root);
    for (int i = 0; i < IMAGES; i++) {
        snprintf(name, sizeof name, "clean/%d/%02d.jpg", i % 3, i);
        put_image(root, name, good[i % 9]);
        snprintf(name, sizeof name, "dirty/%d/%02d.jpg", i % 3, i);
        put_image(root, name, i % 10 == 4 ? "truncated_50.jpg" : i == 7 ? "text.jpg" : good[i % 9]);
    }
    clean = open_split("clean");
    dirty = open_split("dirty");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    dataset_close(clean);
    dataset_close(dirty);
    class_list_free(&classes);
    remove_tree(root);
    return 0;
}

static const Preprocess preprocess = {
    SIDE, 0.875, CROP_CENTER, FILTER_BICUBIC, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}};
static const Augment augment = {.random_resized_crop = true,
                                .scale_min = 0.08,
                                .scale_max = 1,
                                .ratio_min = 0.75,
                                .ratio_max = 4.0 / 3,
                                .flip = 0.5,
                                .jitter = 0.3,
                                .shift = 4};

static LoaderOptions options_of(int threads, bool training) {
    return (LoaderOptions){.preprocess = &preprocess,
                           .augment = training ? &augment : NULL,
                           .batch = BATCH,
                           .threads = threads,
                           .prefetch = 3,
                           .seed = 42,
                           .shuffle = training,
                           .drop_last = training,
                           .max_corrupt = 1,
                           .image = image_options_default()};
}

/* CRC over everything that a batch holds. */
static inline uint32_t batch_crc(uint32_t crc, const HostBatch *b) {
    size_t n = (size_t)b->count;
    crc = crc32c(crc, b->pixels, n * SIDE * SIDE * 3);
    crc = crc32c(crc, b->labels, n * sizeof(int64_t));
    crc = crc32c(crc, b->samples, n * sizeof(int64_t));
    return crc32c(crc, b->valid, n);
}

/* CRC of each batch of an epoch from `cursor` on; the number of batches. */
static inline int run_epoch(Loader *l, int64_t epoch, int64_t cursor, uint32_t *crcs) {
    int n = 0;
    HostBatch b;
    Status s;
    assert_ok(loader_begin(l, epoch, cursor));
    while ((s = loader_next(l, &b)) == STATUS_OK) crcs[n++] = batch_crc(0, &b);
    assert_int_equal(s, STATUS_END);
    assert_int_equal(loader_next(l, &b), STATUS_END);
    return n;
}

#endif
