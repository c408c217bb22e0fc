/* ttv export: the weights of a run as one small file, matrices as bf16. */
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/model_io.h"

typedef struct ExportOptions {
    int weights; /* WeightsChoice */
    int dtype;
    bool overwrite;
} ExportOptions;

static ExportOptions options;

enum { EXPORT_BF16, EXPORT_F32 };

static const Option export_options[] = {
    {"weights", OPTION_CHOICE, offsetof(ExportOptions, weights), "auto", 0, 0, WEIGHTS_CHOICES,
     "weights", WEIGHTS_HELP},
    {"dtype", OPTION_CHOICE, offsetof(ExportOptions, dtype), "bf16", 0, 0, "bf16|f32", "dtype",
     "bf16: tensors with two axes or more, rounded to nearest; vectors stay f32"},
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

typedef struct Export {
    SafeFile *file;
    SafeItem *items;
    SafeMeta *meta;
    int64_t count, bytes;
} Export;

/* One tensor, read as F32, in host memory of its own. */
static Status take(Export *x, const SafeEntry *e) {
    int64_t shape[4] = {1, 1, 1, 1};
    void *block, *narrow;
    if (e->rank < 1 || e->rank > 4)
        return status_set(STATUS_DATA, "%s: tensor '%s' has %d axes, expected 1 to 4",
                          safetensors_path(x->file), e->name, e->rank);
    for (int i = 0; i < e->rank; i++) shape[i] = e->shape[i];
    Tensor wide = tensor_of(NULL, DTYPE_F32, e->rank, shape);
    const int64_t count = tensor_count(wide);
    TRY(mem_alloc(&block, count, sizeof(float), "a tensor to export"));
    SafeItem *item = &x->items[x->count++];
    *item = (SafeItem){e->name, tensor_of(block, DTYPE_F32, e->rank, shape)};
    TRY(safetensors_read(e, item->t));
    if (options.dtype == EXPORT_BF16 && e->rank > 1) {
        TRY(mem_alloc(&narrow, count, sizeof(uint16_t), "a tensor to export"));
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)narrow)[i] = bf16_from_f32(((const float *)block)[i]);
        mem_free(block);
        item->t = tensor_of(narrow, DTYPE_BF16, e->rank, shape);
    }
    x->bytes += (int64_t)tensor_bytes(item->t);
    return STATUS_OK;
}

static Status write_file(Export *x, const char *from, const char *to) {
    void *block;
    TRY(safetensors_open(from, &x->file));
    const int64_t tensors = safetensors_count(x->file), pairs = safetensors_meta_count(x->file);
    TRY(mem_alloc(&block, tensors + 1, sizeof(SafeItem), "tensors to export"));
    x->items = block;
    TRY(mem_alloc(&block, pairs + 1, sizeof(SafeMeta), "metadata to export"));
    x->meta = block;
    for (int64_t i = 0; i < tensors; i++) TRY(take(x, safetensors_at(x->file, i)));
    for (int64_t i = 0; i < pairs; i++)
        safetensors_meta_at(x->file, i, &x->meta[i].key, &x->meta[i].value);
    return safetensors_write(to, x->items, tensors, x->meta, pairs);
}

static void export_free(Export *x) {
    for (int64_t i = 0; i < x->count; i++) mem_free(x->items[i].t.data);
    mem_free(x->items);
    mem_free(x->meta);
    if (x->file) safetensors_close(x->file);
}

static Status report(const Export *x, const char *to) {
    if (!common.json) {
        out_printf("%lld tensors, %lld bytes, in ", (long long)x->count, (long long)x->bytes);
        out_path(to);
        out_text("\n");
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "file", to);
    json_pair_int(&w, "tensors", x->count);
    json_pair_int(&w, "tensor_bytes", x->bytes);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Export x = {0};
    char *from = NULL;
    if (argc != 2)
        return cli_usage(&command_export, "a checkpoint and the file to write are expected");
    if (file_exists(argv[1]) && !options.overwrite)
        return cli_fail(status_set(STATUS_USAGE, "%s exists; --overwrite writes over it", argv[1]));
    Status s = weights_resolve(argv[0], (WeightsChoice)options.weights, &from);
    if (s == STATUS_OK) s = write_file(&x, from, argv[1]);
    if (s == STATUS_OK) s = report(&x, argv[1]);
    export_free(&x);
    mem_free(from);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_export = {
    .name = "export",
    .aliases = "ckpt export|convert",
    .summary = "write a checkpoint's weights as one file, half as large",
    .synopsis = "ttv export [--dtype bf16|f32] [--weights auto|raw|ema] CHECKPOINT OUT.safetensors",
    .examples = "  ttv export runs/rooms rooms.safetensors\n"
                "  ttv export --weights ema --dtype f32 runs/rooms rooms.safetensors\n",
    .sections = sections,
    .run = run,
};
