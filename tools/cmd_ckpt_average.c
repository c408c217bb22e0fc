/* ttv ckpt average: the mean of several checkpoints' weights, tensor by tensor. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "nn/checkpoint.h"
#include "tools/cli.h"
#include "tools/inspect.h"
#include "tools/model_io.h"
#include "tools/weights_out.h"

enum { SHAPE_BYTES = 96 };

typedef struct AverageOptions {
    int weights; /* WeightsChoice */
    int dtype;
    int64_t newest;
    bool overwrite;
} AverageOptions;

static AverageOptions options;

#define FIELD(name) offsetof(AverageOptions, name)
static const Option average_options[] = {
    {"newest", OPTION_INT, FIELD(newest), "0", 0, 1e6, NULL, "newest",
     "of one run folder: its newest N saved steps; 0: the checkpoints as they are named"},
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP "; with --newest auto is raw"},
    {"dtype", OPTION_CHOICE, FIELD(dtype), "f32", 0, 0, WEIGHTS_DTYPES, "dtype",
     WEIGHTS_DTYPE_HELP},
    {"overwrite", OPTION_BOOL, FIELD(overwrite), "false", 0, 0, NULL, "overwrite",
     "write over an existing file"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"average", average_options, &options};
    *count = 1;
    return list;
}

typedef struct Average {
    SafeFile **files;
    int64_t count;
    double *sum, *term; /* of one tensor */
    WeightsOut out;
    char text[32];
} Average;

/* ---- which files ---- */

static Status open_file(Average *a, char *path) {
    const Status s = safetensors_open(path, &a->files[a->count]);
    mem_free(path);
    if (s == STATUS_OK) a->count++;
    return s;
}

static Status take_room(Average *a, int64_t files) {
    void *block;
    TRY(mem_alloc(&block, files, sizeof(SafeFile *), "checkpoints to average"));
    a->files = block;
    return STATUS_OK;
}

static Status open_steps(Average *a, const char *folder, const SavedStep *steps, int64_t count) {
    const bool average = options.weights == WEIGHTS_EMA;
    if (count < options.newest)
        return status_set(STATUS_DATA, "%s holds %lld saved steps, --newest asks for %lld", folder,
                          (long long)count, (long long)options.newest);
    TRY(take_room(a, options.newest));
    for (int64_t i = 0; i < options.newest; i++) {
        char *path;
        if (average && !steps[i].has_ema)
            return status_set(STATUS_DATA, "%s: step %lld holds no averaged weights", folder,
                              (long long)steps[i].step);
        TRY(checkpoint_step_path(folder, &steps[i], average, &path));
        TRY(open_file(a, path));
    }
    return STATUS_OK;
}

static Status open_newest(Average *a, const char *folder) {
    SavedStep *steps;
    int64_t count;
    TRY(checkpoint_steps(folder, &steps, &count));
    const Status s = open_steps(a, folder, steps, count);
    mem_free(steps);
    return s;
}

static Status open_named(Average *a, int count, char **names) {
    TRY(take_room(a, count));
    for (int i = 0; i < count; i++) {
        char *path;
        TRY(weights_resolve(names[i], (WeightsChoice)options.weights, &path));
        TRY(open_file(a, path));
    }
    return STATUS_OK;
}

/* ---- the mean ---- */

static Status entry_like(const SafeFile *file, const SafeEntry *e, const SafeEntry **out) {
    char shapes[2][SHAPE_BYTES];
    const SafeEntry *other = safetensors_find(file, e->name);
    if (!other)
        return status_set(STATUS_DATA, "%s has no tensor '%.200s'", safetensors_path(file),
                          e->name);
    if (!entry_same_shape(other, e))
        return status_set(
            STATUS_DATA, "%s: tensor '%.200s' has shape %s, expected %s as in the first",
            safetensors_path(file), e->name, entry_shape_text(other, shapes[0], sizeof shapes[0]),
            entry_shape_text(e, shapes[1], sizeof shapes[1]));
    *out = other;
    return STATUS_OK;
}

/* Files of one model hold the same tensors and tell classes apart in the same order. */
static Status check_alike(const Average *a) {
    const SafeFile *first = a->files[0];
    const char *classes = safetensors_meta(first, "ttv.classes");
    for (int64_t k = 1; k < a->count; k++) {
        const SafeFile *file = a->files[k];
        const char *own = safetensors_meta(file, "ttv.classes");
        if (safetensors_count(file) != safetensors_count(first))
            return status_set(STATUS_DATA, "%s holds %lld tensors, the first %lld",
                              safetensors_path(file), (long long)safetensors_count(file),
                              (long long)safetensors_count(first));
        if (classes && own && strcmp(classes, own) != 0)
            return status_set(STATUS_DATA, "%s was trained on other classes than the first",
                              safetensors_path(file));
    }
    return STATUS_OK;
}

static Status average_tensor(Average *a, const SafeEntry *e) {
    Tensor mean;
    if (weights_out_skips(e)) return STATUS_OK;
    TRY(weights_out_take(&a->out, e, &mean));
    const int64_t n = tensor_count(mean);
    TRY(mem_grow((void **)&a->sum, n + 1, sizeof *a->sum, "a tensor's sum"));
    TRY(mem_grow((void **)&a->term, n + 1, sizeof *a->term, "a tensor"));
    memset(a->sum, 0, sizeof *a->sum * (size_t)n);
    for (int64_t k = 0; k < a->count; k++) {
        const SafeEntry *other = e;
        TRY(entry_like(a->files[k], e, &other));
        TRY(status_context(
            safetensors_read(other, tensor_of(a->term, DTYPE_F64, e->rank, e->shape)), "%s",
            safetensors_path(a->files[k])));
        for (int64_t i = 0; i < n; i++) a->sum[i] += a->term[i];
    }
    float *to = mean.data;
    for (int64_t i = 0; i < n; i++) {
        to[i] = (float)(a->sum[i] / (double)a->count);
        if (!isfinite(to[i]))
            return status_set(STATUS_NUMERIC, "tensor '%.200s': the mean is not finite", e->name);
    }
    return weights_out_done(&a->out, options.dtype);
}

/* What describes the model stays; what describes one training step does not. */
static bool describes_step(const char *key) {
    static const char *const of_step[] = {"ttv.step",     "ttv.epoch",    "ttv.metric",
                                          "ttv.weights",  "ttv.top1_raw", "ttv.top1_ema",
                                          "ttv.psnr_raw", "ttv.psnr_ema", "ttv.averaged"};
    for (size_t i = 0; i < sizeof of_step / sizeof *of_step; i++)
        if (strcmp(key, of_step[i]) == 0) return true;
    return false;
}

static Status average_all(Average *a) {
    const SafeFile *first = a->files[0];
    TRY(check_alike(a));
    TRY(weights_out_begin(&a->out, first, 2));
    for (int64_t i = 0; i < safetensors_count(first); i++)
        if (!weights_out_skips(safetensors_at(first, i)))
            TRY(average_tensor(a, safetensors_at(first, i)));
    for (int64_t i = 0; i < safetensors_meta_count(first); i++) {
        const char *key, *value;
        safetensors_meta_at(first, i, &key, &value);
        if (!describes_step(key)) weights_out_meta(&a->out, key, value);
    }
    snprintf(a->text, sizeof a->text, "%lld", (long long)a->count);
    weights_out_meta(&a->out, "ttv.weights", "mean");
    weights_out_meta(&a->out, "ttv.averaged", a->text);
    return STATUS_OK;
}

static void average_free(Average *a) {
    for (int64_t k = 0; k < a->count; k++) safetensors_close(a->files[k]);
    mem_free(a->files);
    mem_free(a->sum);
    mem_free(a->term);
    weights_out_free(&a->out);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Average a = {0};
    if (argc < 2)
        return cli_usage(&command_ckpt_average, "checkpoints and the file to write are expected");
    if (options.newest > 0 && argc != 2)
        return cli_usage(&command_ckpt_average, "--newest is of one run folder");
    const char *to = argv[argc - 1];
    Status s = weights_out_check(to, options.overwrite);
    if (s == STATUS_OK)
        s = options.newest > 0 ? open_newest(&a, argv[0]) : open_named(&a, argc - 1, argv);
    if (s == STATUS_OK) s = average_all(&a);
    if (s == STATUS_OK) s = weights_out_write(&a.out, to);
    average_free(&a);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_ckpt_average = {
    .name = "ckpt average",
    .aliases = "checkpoint average",
    .summary = "write the mean of several checkpoints' weights as one file",
    .synopsis = "ttv ckpt average [--newest N] [--weights auto|raw|ema] [--dtype f32|bf16] "
                "CHECKPOINT... OUT.safetensors",
    .examples = "  ttv ckpt average --newest 5 runs/rooms rooms.safetensors\n"
                "  ttv ckpt average runs/seed0 runs/seed1 runs/seed2 soup.safetensors\n",
    .sections = sections,
    .run = run,
};
