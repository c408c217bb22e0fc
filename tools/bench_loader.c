/* `ttv bench loader`: pictures per second from JPEG bytes to training and evaluation batches, per
 * core, and where the time goes. Reads a data set (--data-dir) or pictures of its own making.
 */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/loader.h"
#include "tools/cli.h"

/* Single-thread seconds, summed over the pictures. */
typedef struct Stages {
    double train_decode, augment; /* of training */
    double decode, preprocess;    /* of evaluation */
    double bytes, pixels;
    int64_t pictures;
} Stages;

typedef struct Throughput {
    double train, evaluate; /* images a second of the threaded loader */
    int workers, cores;
} Throughput;

/* ---- the data set ---- */

static Status open_split(const DataConfig *c, Dataset **out) {
    ClassList classes = {0};
    Status s = dataset_open(c, c->train_split, &classes, out);
    class_list_free(&classes);
    return s;
}

/* Pictures in a temporary tar file, gone from the file system as soon as it is mapped. */
static Status make_dataset(int64_t images, Dataset **out) {
    const char *base = getenv("TMPDIR");
    DataConfig c = settings.data;
    char folder[CONFIG_TEXT - 16];
    snprintf(folder, sizeof folder, "%s/ttv-bench-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) return status_errno("cannot make a folder like %s", folder);
    snprintf(c.root, sizeof c.root, "%s/pictures.tar", folder);
    snprintf(c.train_split, sizeof c.train_split, "train");
    progress_line(10, "loader: making %lld pictures", (long long)images);
    Status s = bench_pictures(c.root, images);
    if (s == STATUS_OK) s = open_split(&c, out);
    unlink(c.root);
    rmdir(folder);
    return s;
}

/* ---- stages, one thread ---- */

typedef struct StageWork {
    const Dataset *dataset;
    ResizeScratch resize;
    ImageScratch pixels;
    uint8_t *output;
} StageWork;

/* The stages of datasets/loader_sample.c, one by one. */
static Status time_training(StageWork *w, const void *bytes, size_t size, int64_t i, Stages *sum) {
    const char *name = dataset_name(w->dataset, i);
    ImageOptions options = data_image_options(&settings.data);
    Rng rng = rng_stream(1, RNG_AUGMENT, (uint64_t)sum->pictures, (uint64_t)i);
    Image image;
    double start = bench_clock();
    TRY(image_decode_scratch(bytes, size, name, &options, &w->pixels, &image));
    double decoded = bench_clock();
    TRY(augment_apply(&settings.augment, &settings.preprocess, &image, &rng, w->output,
                      &w->resize));
    sum->train_decode += decoded - start;
    sum->augment += bench_clock() - decoded;
    sum->pixels += (double)(image.width * image.height);
    return STATUS_OK;
}

static Status time_evaluation(StageWork *w, const void *bytes, size_t size, int64_t i,
                              Stages *sum) {
    ImageOptions options = data_image_options(&settings.data);
    Image image;
    double start = bench_clock();
    TRY(image_decode_scratch(bytes, size, dataset_name(w->dataset, i), &options, &w->pixels,
                             &image));
    double decoded = bench_clock();
    TRY(preprocess_apply(&settings.preprocess, &image, w->output, &w->resize));
    sum->decode += decoded - start;
    sum->preprocess += bench_clock() - decoded;
    return STATUS_OK;
}

static Status time_picture(StageWork *w, int64_t i, Stages *sum) {
    const void *bytes;
    size_t size;
    bool owned;
    TRY(dataset_bytes(w->dataset, i, &bytes, &size, &owned));
    Status s = time_training(w, bytes, size, i, sum);
    if (s == STATUS_OK) s = time_evaluation(w, bytes, size, i, sum);
    sum->bytes += (double)size;
    sum->pictures++;
    if (owned) mem_free((void *)(uintptr_t)bytes);
    return s;
}

static Status time_stages(const Bench *b, const Dataset *d, Stages *out) {
    StageWork w = {.dataset = d};
    int64_t side = settings.preprocess.image_size, count = dataset_count(d);
    TRY(mem_alloc((void **)&w.output, side * side * 3, 1, "loader bench"));
    Status s = time_picture(&w, 0, out); /* warm-up: tables, first pages */
    *out = (Stages){0};
    double start = bench_clock();
    for (int64_t i = 0; s == STATUS_OK && (i < 8 || bench_clock() - start < b->options->seconds);
         i++)
        s = time_picture(&w, i % count, out);
    image_scratch_free(&w.pixels);
    resize_scratch_free(&w.resize);
    mem_free(w.output);
    return s;
}

/* ---- the loader itself ---- */

/* Images a second over whole epochs until the time is up; the first batch only starts the clock. */
static Status time_epochs(Loader *l, double seconds, double *rate) {
    int64_t images = 0;
    double start = 0;
    for (int64_t epoch = 0;; epoch++) {
        HostBatch batch;
        Status s;
        TRY(loader_begin(l, epoch, 0));
        while ((s = loader_next(l, &batch)) == STATUS_OK) {
            if (start == 0)
                start = bench_clock();
            else
                images += batch.count;
            if (images > 0 && bench_clock() - start > seconds) {
                *rate = (double)images / (bench_clock() - start);
                return STATUS_OK;
            }
        }
        if (s != STATUS_END) return s;
    }
}

static Status time_loader(const Bench *b, const Dataset *d, bool training, int workers,
                          double *rate) {
    LoaderOptions o = {
        .preprocess = &settings.preprocess,
        .augment = training ? &settings.augment : NULL,
        .batch = b->options->batch,
        .threads = workers,
        .seed = 1,
        .shuffle = training,
        .max_corrupt = settings.data.max_corrupt,
        .image = data_image_options(&settings.data),
    };
    Loader *l;
    progress_line(10, "loader: %s batches, %d threads", training ? "training" : "evaluation",
                  workers);
    TRY(loader_open(d, &o, &l));
    /* Long enough to pass the prefetched batches by far. */
    Status s = time_epochs(l, 4 * b->options->seconds, rate);
    loader_close(l);
    return s;
}

/* ---- report ---- */

static double cores_used(const Throughput *t) {
    return t->workers < t->cores ? t->workers : t->cores;
}

static void report_json(JsonWriter *j, const Stages *s, const Throughput *t, const char *source) {
    double n = (double)s->pictures, train = s->train_decode + s->augment;
    json_key(j, "loader");
    json_begin_object(j);
    json_pair_string(j, "source", source);
    bench_number(j, "mean_bytes", s->bytes / n);
    bench_number(j, "mean_pixels", s->pixels / n);
    json_pair_int(j, "image_size", settings.preprocess.image_size);
    bench_number(j, "train_decode_ms", 1e3 * s->train_decode / n);
    bench_number(j, "train_augment_ms", 1e3 * s->augment / n);
    bench_number(j, "train_decode_share", s->train_decode / train);
    bench_number(j, "train_augment_share", s->augment / train);
    bench_number(j, "eval_decode_ms", 1e3 * s->decode / n);
    bench_number(j, "eval_resize_ms", 1e3 * s->preprocess / n);
    json_pair_int(j, "workers", t->workers);
    json_pair_int(j, "cores", t->cores);
    bench_number(j, "train_images_per_s", t->train);
    bench_number(j, "train_images_per_s_per_core", t->train / cores_used(t));
    bench_number(j, "eval_images_per_s", t->evaluate);
    bench_number(j, "eval_images_per_s_per_core", t->evaluate / cores_used(t));
    json_end_object(j);
}

static void report_stage(const char *what, const char *rest, double decode, double resize,
                         double n) {
    out_printf("%-11s one thread: decode %.3f ms (%.0f %%), %s %.3f ms (%.0f %%): %.0f img/s\n",
               what, 1e3 * decode / n, 100 * decode / (decode + resize), rest, 1e3 * resize / n,
               100 * resize / (decode + resize), n / (decode + resize));
}

static void report_text(const Stages *s, const Throughput *t, const char *source) {
    double n = (double)s->pictures;
    char line[256];
    preprocess_text(&settings.preprocess, line, sizeof line);
    out_printf("loader on %s: %.0f KB and %.2f megapixels a picture\n", source, 1e-3 * s->bytes / n,
               1e-6 * s->pixels / n);
    out_printf("evaluation does: %s\n", line);
    report_stage("training", "resize and flip", s->train_decode, s->augment, n);
    report_stage("evaluation", "resize", s->decode, s->preprocess, n);
    out_printf("%d threads on %d cores: training %.0f img/s (%.0f a core), evaluation %.0f img/s "
               "(%.0f a core)\n",
               t->workers, t->cores, t->train, t->train / cores_used(t), t->evaluate,
               t->evaluate / cores_used(t));
}

static Status measure(Bench *b, const Dataset *d, const char *source) {
    Stages stages = {0};
    Throughput t = {0};
    if (dataset_count(d) == 0) return status_set(STATUS_DATA, "%s: no pictures", source);
    t.cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    t.workers = b->options->workers > 0 ? (int)b->options->workers : t.cores;
    progress_line(10, "loader: stages");
    TRY(time_stages(b, d, &stages));
    TRY(time_loader(b, d, true, t.workers, &t.train));
    TRY(time_loader(b, d, false, t.workers, &t.evaluate));
    if (b->json)
        report_json(b->json, &stages, &t, source);
    else
        report_text(&stages, &t, source);
    return STATUS_OK;
}

Status bench_loader(Bench *b) {
    Dataset *d;
    DataConfig *c = &settings.data;
    if (b->options->data[0]) snprintf(c->root, sizeof c->root, "%s", b->options->data);
    bool own = c->root[0] == '\0';
    settings.preprocess.image_size = b->model->image_size;
    TRY(own ? make_dataset(b->options->images, &d) : open_split(c, &d));
    Status s = measure(b, d, own ? "pictures of own making" : c->root);
    dataset_close(d);
    return s;
}
