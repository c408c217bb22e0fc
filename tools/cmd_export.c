/* ttv export: the weights of a run as one small file, matrices as bf16. */
#include <stddef.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/hub_folder.h"
#include "tools/model_io.h"
#include "tools/weights_out.h"

typedef struct ExportOptions {
    int weights; /* WeightsChoice */
    int dtype;
    bool overwrite;
} ExportOptions;

static ExportOptions options;

static const Option export_options[] = {
    {"weights", OPTION_CHOICE, offsetof(ExportOptions, weights), "auto", 0, 0, WEIGHTS_CHOICES,
     "weights", WEIGHTS_HELP},
    {"dtype", OPTION_CHOICE, offsetof(ExportOptions, dtype), "bf16", 0, 0, WEIGHTS_DTYPES, "dtype",
     WEIGHTS_DTYPE_HELP},
    {"overwrite", OPTION_BOOL, offsetof(ExportOptions, overwrite), "false", 0, 0, NULL, "overwrite",
     "write over an existing file"},
    {0},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"export", export_options, &options};
    *count = 1;
    return list;
}

static Status copy(WeightsOut *w, const SafeFile *file) {
    TRY(weights_out_begin(w, file, 0));
    for (int64_t i = 0; i < safetensors_count(file); i++) {
        const SafeEntry *e = safetensors_at(file, i);
        Tensor t;
        if (weights_out_skips(e)) continue;
        TRY(weights_out_take(w, e, &t));
        TRY(safetensors_read(e, t));
        TRY(weights_out_done(w, options.dtype));
    }
    for (int64_t i = 0; i < safetensors_meta_count(file); i++) {
        const char *key, *value;
        safetensors_meta_at(file, i, &key, &value);
        weights_out_meta(w, key, value);
    }
    return STATUS_OK;
}

static Status write_file(const char *from, const char *to) {
    SafeFile *file;
    WeightsOut w = {0};
    TRY(safetensors_open(from, &file));
    Status s = status_context(copy(&w, file), "%s", from);
    if (s == STATUS_OK) s = weights_out_write(&w, to);
    weights_out_free(&w);
    safetensors_close(file);
    return s;
}

/* The weights as model.safetensors, and what describes them. */
static Status write_folder(const char *from, const char *folder, const char *to) {
    SafeFile *file;
    HubFolder hub = {0};
    TRY(safetensors_open(from, &file));
    Status s = hub_folder_describe(file, from, &hub);
    safetensors_close(file);
    if (s == STATUS_OK) s = file_make_folder(folder);
    if (s == STATUS_OK) s = write_file(from, to);
    if (s == STATUS_OK) s = hub_folder_write(&hub, folder);
    hub_folder_free(&hub);
    return s;
}

static bool names_folder(const char *path) {
    return (*path && path[strlen(path) - 1] == '/') || file_is_folder(path);
}

static Status export(const char *checkpoint, const char *to) {
    char *from = NULL, *inside = NULL;
    const bool folder = names_folder(to);
    if (folder) TRY(path_join(&inside, to, "model.safetensors"));
    Status s = weights_out_check(folder ? inside : to, options.overwrite);
    if (s == STATUS_OK && folder) s = hub_folder_check(to, options.overwrite);
    if (s == STATUS_OK) s = weights_resolve(checkpoint, (WeightsChoice)options.weights, &from);
    if (s == STATUS_OK) s = folder ? write_folder(from, to, inside) : write_file(from, to);
    mem_free(inside);
    mem_free(from);
    return s;
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    if (argc != 2)
        return cli_usage(&command_export, "a checkpoint and the file to write are expected");
    const Status s = export(argv[0], argv[1]);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_export = {
    .name = "export",
    .aliases = "ckpt export|ckpt convert|convert",
    .summary = "write a checkpoint's weights as one file, half as large, or as a folder for a hub",
    .synopsis =
        "ttv export [--dtype bf16|f32] [--weights auto|raw|ema] CHECKPOINT OUT.safetensors|FOLDER/",
    .examples = "  ttv export runs/rooms rooms.safetensors\n"
                "  ttv export runs/cifar10 cifar10/\n"
                "  ttv export --weights ema --dtype f32 runs/rooms rooms.safetensors\n",
    .sections = sections,
    .run = run,
};
