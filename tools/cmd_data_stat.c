/* `ttv data stat ROOT`: mean and deviation of a data set's colours, as [preprocess] wants them. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/data_scan.h"
#include "tools/parallel.h"
#include "tools/sections.h"

typedef struct StatOptions {
    char split[CONFIG_TEXT];
    int64_t img_size, workers;
} StatOptions;

static StatOptions options;

#define FIELD(name) offsetof(StatOptions, name)
static const Option stat_options[] = {
    {"split", OPTION_STRING, FIELD(split), "", 0, 0, NULL, "split",
     "split to measure; default: --train-split where there is one, else the root"},
    {"img_size", OPTION_INT, FIELD(img_size), "0", 0, 16384, NULL, "img-size",
     "measure what evaluation makes of the pictures at this size (--crop-pct, ...); 0: whole "
     "pictures, every pixel counts once"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 256, NULL, "workers",
     "decoding threads; 0: one per processor"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[3];
    list[0] = (Section){"stat", stat_options, &options};
    *count = 1 + sections_fill(list + 1, 2, "data preprocess");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[6];
    *count = sections_fill(list, 6, "model augment loader optim train run");
    return list;
}

/* Of one picture: whole numbers, so that the order of adding up does not matter. */
typedef struct Sums {
    uint64_t pixels, sum[3], squares[3];
    bool corrupt;
} Sums;

typedef struct Stat {
    const char *split;
    Dataset *dataset;
    ClassList classes;
    Preprocess preprocess;
    ImageOptions image;
    Sums *samples, total;
    int64_t count, corrupt;
    double mean[3], std[3];
    time_t start;
} Stat;

/* ---- one picture ---- */

static void add_pixels(Sums *s, const uint8_t *rgb, uint64_t pixels) {
    s->pixels += pixels;
    for (uint64_t i = 0; i < pixels; i++)
        for (int c = 0; c < 3; c++) {
            const uint64_t x = rgb[3 * i + c];
            s->sum[c] += x;
            s->squares[c] += x * x;
        }
}

static Status add_preprocessed(const Stat *t, Sums *s, const Image *image) {
    const int64_t side = t->preprocess.image_size;
    ResizeScratch scratch = {0};
    void *pixels;
    TRY(mem_alloc(&pixels, side * side, 3, "a picture"));
    const Status status = preprocess_apply(&t->preprocess, image, pixels, &scratch);
    if (status == STATUS_OK) add_pixels(s, pixels, (uint64_t)(side * side));
    resize_scratch_free(&scratch);
    mem_free(pixels);
    return status;
}

static Status measure(const Stat *t, int64_t i, Sums *s) {
    const void *bytes;
    size_t size;
    bool owned;
    Image image = {0};
    ImageInfo info;
    TRY(dataset_bytes(t->dataset, i, &bytes, &size, &owned));
    Status status =
        image_decode(bytes, size, dataset_name(t->dataset, i), &t->image, &image, &info);
    if (status == STATUS_OK && t->preprocess.image_size > 0)
        status = add_preprocessed(t, s, &image);
    else if (status == STATUS_OK)
        add_pixels(s, image.pixels, (uint64_t)image.width * (uint64_t)image.height);
    image_free(&image);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    return status;
}

/* A file that cannot be used is told and left out, as in training, or ends the command. */
static Status work(void *user, int64_t i) {
    Stat *t = user;
    const Status s = measure(t, i, &t->samples[i]);
    if (s == STATUS_OK || s == STATUS_MEMORY || settings.data.on_corrupt == 1) return s;
    complain("left out: %s", status_message());
    t->samples[i] = (Sums){.corrupt = true};
    return STATUS_OK;
}

static void show_progress(void *user, int64_t done) {
    const Stat *t = user;
    if (time(NULL) - t->start >= 2)
        progress_line(10, "measuring %lld of %lld", (long long)done, (long long)t->count);
}

/* ---- all ---- */

static Status add_up(Stat *t) {
    for (int64_t i = 0; i < t->count; i++) {
        const Sums *s = &t->samples[i];
        t->corrupt += s->corrupt;
        t->total.pixels += s->pixels;
        for (int c = 0; c < 3; c++) {
            t->total.sum[c] += s->sum[c];
            t->total.squares[c] += s->squares[c];
        }
    }
    if (t->total.pixels == 0)
        return status_set(STATUS_DATA, "%s: no picture could be measured", settings.data.root);
    if ((double)t->corrupt > settings.data.max_corrupt * (double)t->count)
        return status_set(STATUS_DATA,
                          "%s: %lld of %lld pictures cannot be used, more than "
                          "data.max_corrupt allows",
                          settings.data.root, (long long)t->corrupt, (long long)t->count);
    for (int c = 0; c < 3; c++) {
        const long double n = (long double)t->total.pixels, mean = (long double)t->total.sum[c] / n,
                          variance = (long double)t->total.squares[c] / n - mean * mean;
        t->mean[c] = (double)(mean / 255);
        t->std[c] = (double)(sqrtl(variance > 0 ? variance : 0) / 255);
    }
    return STATUS_OK;
}

static Status measure_all(Stat *t) {
    void *memory;
    const DataConfig *c = &settings.data;
    bool found = false;
    if (*options.split == '\0') TRY(dataset_has_split(c->root, c->train_split, &found));
    t->split = found ? c->train_split : options.split;
    t->preprocess = settings.preprocess;
    t->preprocess.image_size = options.img_size;
    t->image = data_image_options(c);
    t->start = time(NULL);
    TRY(dataset_open(c, t->split, &t->classes, &t->dataset));
    t->count = dataset_count(t->dataset);
    TRY(mem_alloc(&memory, t->count, sizeof *t->samples, "sums of pictures"));
    t->samples = memory;
    TRY(parallel_for(t->count, (int)options.workers, work, show_progress, t));
    progress_clear();
    return add_up(t);
}

/* ---- report ---- */

static void describe(const Stat *t, char *text, size_t size) {
    if (t->preprocess.image_size == 0) {
        snprintf(text, size, "whole pictures, every pixel counts once");
        return;
    }
    preprocess_text(&t->preprocess, text, size);
    char *end = strstr(text, ", scale to"); /* what follows is what is being measured */
    if (end) *end = '\0';
}

static void print(const Stat *t) {
    static const char *const color[] = {"r", "g", "b"};
    char text[512];
    describe(t, text, sizeof text);
    out_printf("; %lld pictures%s%s: %s\n[preprocess]\n", (long long)(t->count - t->corrupt),
               *t->split ? " of " : "", t->split, text);
    for (int c = 0; c < 3; c++) out_printf("mean_%s = %.6g\n", color[c], t->mean[c]);
    for (int c = 0; c < 3; c++) out_printf("std_%s = %.6g\n", color[c], t->std[c]);
}

static void numbers_json(JsonWriter *w, const char *key, const double x[3]) {
    json_key(w, key);
    json_begin_array(w);
    for (int c = 0; c < 3; c++) json_number(w, x[c]);
    json_end_array(w);
}

static Status report(const Stat *t) {
    char text[512];
    if (!common.json) {
        print(t);
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    describe(t, text, sizeof text);
    json_begin_object(&w);
    json_pair_string(&w, "root", settings.data.root);
    json_pair_string(&w, "split", t->split);
    json_pair_string(&w, "measured", text);
    json_pair_int(&w, "pictures", t->count - t->corrupt);
    json_pair_int(&w, "corrupt", t->corrupt);
    json_pair_int(&w, "pixels", (int64_t)t->total.pixels);
    numbers_json(&w, "mean", t->mean);
    numbers_json(&w, "std", t->std);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static int run(Config *config, int argc, char **argv) {
    Stat t = {0};
    (void)config;
    const int usage = data_take_root(&command_data_stat, argc, argv);
    if (usage != 0) return usage;
    Status s = measure_all(&t);
    progress_end();
    if (s == STATUS_OK) s = report(&t);
    mem_free(t.samples);
    if (t.dataset) dataset_close(t.dataset);
    class_list_free(&t.classes);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_data_stat = {
    .name = "data stat",
    .summary = "mean and deviation of a data set's colours, as [preprocess] wants them",
    .synopsis = "ttv data stat [--split NAME] [--img-size N] [--json] ROOT",
    .examples = "  ttv data stat data/digits.tar\n"
                "  ttv data stat /data/pets --img-size 224 >colours.ini; ttv train -c pets.ini -c "
                "colours.ini\n",
    .letters = "j=workers",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
