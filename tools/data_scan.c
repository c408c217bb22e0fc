/* One split: opening, decoding every file, adding up. */
#include "tools/data_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/memory.h"
#include "tools/parallel.h"
#include "tools/sections.h"

int data_take_root(const Command *c, int argc, char **argv) {
    char *root = settings.data.root;
    if (argc > 1) return cli_usage(c, "one root is expected, %d are given", argc);
    if (argc == 1 && strlen(argv[0]) >= sizeof settings.data.root)
        return cli_usage(c, "the root's name is too long");
    if (argc == 1) snprintf(root, sizeof settings.data.root, "%s", argv[0]);
    return *root ? 0 : cli_usage(c, "no data set was named");
}

Status split_scan_open(SplitScan *s, const DataConfig *c, const char *name,
                       const ClassList *known) {
    *s = (SplitScan){0};
    Status status = mem_string(&s->name, name);
    if (status == STATUS_OK) status = dataset_open(c, name, &s->classes, &s->dataset);
    if (status == STATUS_DATA && known && known->count > 0) {
        class_list_free(&s->classes); /* a flat split has no folders to take classes from */
        if (class_list_copy(&s->classes, known) == STATUS_OK)
            status = dataset_open(c, name, &s->classes, &s->dataset);
    }
    if (status != STATUS_OK) {
        split_scan_close(s);
        return status;
    }
    s->count = dataset_count(s->dataset);
    s->report = dataset_report(s->dataset);
    return STATUS_OK;
}

void split_scan_close(SplitScan *s) {
    for (int64_t i = 0; s->samples && i < s->count; i++) mem_free(s->samples[i].error);
    mem_free(s->samples);
    mem_free(s->per_class);
    if (s->dataset) dataset_close(s->dataset);
    class_list_free(&s->classes);
    mem_free(s->name);
    *s = (SplitScan){0};
}

/* ---- decoding ---- */

typedef struct DecodeWork {
    SplitScan *split;
    ImageOptions options;
    time_t start;
} DecodeWork;

/* A file that cannot be used is a result; running out of memory is not. */
static Status keep_error(Sample *sample, Status s) {
    if (s == STATUS_OK || s == STATUS_MEMORY) return s;
    return mem_string(&sample->error, status_message());
}

static Status decode_sample(void *user, int64_t i) {
    DecodeWork *w = user;
    Sample *sample = &w->split->samples[i];
    const Dataset *d = w->split->dataset;
    const void *bytes;
    size_t size;
    bool owned;
    Image image = {0};
    Status s = dataset_bytes(d, i, &bytes, &size, &owned);
    if (s != STATUS_OK) return keep_error(sample, s);
    sample->bytes = (int64_t)size;
    sample->crc = crc32c(0, bytes, size);
    s = image_decode(bytes, size, dataset_name(d, i), &w->options, &image, &sample->info);
    sample->width = image.width;
    sample->height = image.height;
    if (s != STATUS_OK) sample->info.format = NULL;
    image_free(&image);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    return keep_error(sample, s);
}

static void show_progress(void *user, int64_t done) {
    const DecodeWork *w = user;
    const char *name = w->split->name;
    if (time(NULL) - w->start < 2) return; /* small sets are done before anyone looks */
    progress_line(10, "%s%sdecoding %lld of %lld", name, *name ? ": " : "", (long long)done,
                  (long long)w->split->count);
}

/* ---- adding up ---- */

static int compare_int64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static Spread spread_of(int64_t *values, int64_t n) {
    if (n == 0) return (Spread){0};
    qsort(values, (size_t)n, sizeof *values, compare_int64);
    return (Spread){values[0], values[n / 2], values[n - 1]};
}

static void count_mode(SplitScan *s, const ImageInfo *info) {
    bool jpeg = strcmp(info->format, "jpeg") == 0;
    if (jpeg)
        s->jpeg++;
    else
        s->png++;
    switch (info->channels) {
    case 1:
        s->grey++;
        break;
    case 3:
        s->rgb++;
        break;
    case 4:
        if (jpeg)
            s->cmyk++;
        else
            s->alpha++;
        break;
    default:
        s->alpha++;
        break; /* PNG: grey with alpha */
    }
    if (info->bits == 16) s->deep++;
    if (info->progressive_or_interlaced) s->progressive++;
    if (info->orientation > 1) s->tagged++;
}

static void count_classes(SplitScan *s) {
    s->fewest = s->most = s->classes.count > 0 ? 0 : -1;
    for (int64_t i = 0; i < s->count; i++) s->per_class[dataset_label(s->dataset, i)]++;
    for (int64_t c = 1; c < s->classes.count; c++) {
        if (s->per_class[c] < s->per_class[s->fewest]) s->fewest = c;
        if (s->per_class[c] > s->per_class[s->most]) s->most = c;
    }
}

static Status add_up(SplitScan *s) {
    void *memory;
    TRY(mem_alloc(&memory, s->classes.count, sizeof(int64_t), "images per class"));
    s->per_class = memory;
    TRY(mem_alloc(&memory, 2 * s->count, sizeof(int64_t), "image sizes"));
    int64_t *widths = memory, *heights = widths + s->count, decoded = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const Sample *sample = &s->samples[i];
        s->bytes += sample->bytes;
        if (sample->error) {
            s->corrupt++;
            continue;
        }
        count_mode(s, &sample->info);
        widths[decoded] = sample->width;
        heights[decoded++] = sample->height;
    }
    s->width = spread_of(widths, decoded);
    s->height = spread_of(heights, decoded);
    mem_free(memory);
    count_classes(s);
    return STATUS_OK;
}

Status split_scan_decode(SplitScan *s, const DataConfig *c, int threads) {
    DecodeWork w = {s, data_image_options(c), time(NULL)};
    void *samples;
    TRY(mem_alloc(&samples, s->count, sizeof(Sample), "results of the check"));
    s->samples = samples;
    TRY(parallel_for(s->count, threads, decode_sample, show_progress, &w));
    progress_clear();
    return add_up(s);
}
