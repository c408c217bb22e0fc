/* `ttv data pack ROOT OUT`: a data set as WebDataset shards. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/rng.h"
#include "datasets/tar_writer.h"
#include "nn/train.h"
#include "tools/cli.h"
#include "tools/data_scan.h"
#include "tools/sections.h"

typedef struct PackOptions {
    char split[CONFIG_TEXT];
    int64_t shard_images, seed;
    double shard_mb;
    bool shuffle;
} PackOptions;

static PackOptions options;

#define FIELD(name) offsetof(PackOptions, name)
static const Option pack_options[] = {
    {"split", OPTION_STRING, FIELD(split), "", 0, 0, NULL, "split",
     "the split to pack; default: those of --train-split and --val-split that are there"},
    {"shard_images", OPTION_INT, FIELD(shard_images), "10000", 1, 1e9, NULL, "shard-images",
     "images of a shard at most"},
    {"shard_mb", OPTION_FLOAT, FIELD(shard_mb), "1000", 0.001, 1e6, NULL, "shard-mb",
     "megabytes of a shard, beyond which the next one begins"},
    {"shuffle", OPTION_BOOL, FIELD(shuffle), "true", 0, 0, NULL, "shuffle",
     "images in random order, for readers that take shards from front to back; ttv itself reads "
     "them in the order of their numbers, which is that of ROOT"},
    {"seed", OPTION_INT, FIELD(seed), "0", 0, 9.0e15, NULL, "seed", "of that order"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[2];
    list[0] = (Section){"pack", pack_options, &options};
    *count = 1 + sections_fill(list + 1, 1, "data");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[7];
    *count = sections_fill(list, 7, "model preprocess augment loader optim train run");
    return list;
}

enum { SPLITS = 2 };

typedef struct SplitPack {
    const char *name; /* "" : the root itself, in shards called "all" */
    int64_t images, left_out, shards;
    uint64_t bytes;
} SplitPack;

typedef struct Pack {
    const char *out;
    char folder[CONFIG_TEXT + 64]; /* written here, then renamed to `out` */
    ClassList classes;
    SplitPack splits[SPLITS];
    int split_count;
    Dataset *dataset; /* of the split at hand, with its shard */
    TarWriter *shard;
    int64_t in_shard;
    time_t start;
} Pack;

/* ---- one split ---- */

static Status finish_shard(Pack *p, SplitPack *split) {
    if (p->shard == NULL) return STATUS_OK;
    TarWriter *w = p->shard;
    p->shard = NULL;
    split->bytes += tar_writer_bytes(w);
    return tar_writer_commit(w);
}

static Status begin_shard(Pack *p, SplitPack *split) {
    char name[CONFIG_TEXT + 40], *path;
    TRY(finish_shard(p, split));
    snprintf(name, sizeof name, "%s-%06lld.tar", *split->name ? split->name : "all",
             (long long)split->shards);
    TRY(path_join(&path, p->folder, name));
    Status s = tar_writer_open(path, &p->shard);
    mem_free(path);
    split->shards++;
    p->in_shard = 0;
    return s;
}

static bool shard_is_full(const Pack *p) {
    return p->shard == NULL || p->in_shard >= options.shard_images ||
           (double)tar_writer_bytes(p->shard) >= 1e6 * options.shard_mb;
}

static Status add_image(Pack *p, SplitPack *split, int64_t i, const void *bytes, size_t size) {
    ImageInfo info;
    char name[40], label[24];
    TRY(image_probe(bytes, size, dataset_name(p->dataset, i), &info));
    if (shard_is_full(p)) TRY(begin_shard(p, split));
    snprintf(name, sizeof name, "%08lld.%s", (long long)i,
             strcmp(info.format, "png") == 0 ? "png" : "jpg");
    TRY(tar_writer_add(p->shard, name, bytes, size));
    snprintf(name, sizeof name, "%08lld.cls", (long long)i);
    int length = snprintf(label, sizeof label, "%lld", (long long)dataset_label(p->dataset, i));
    TRY(tar_writer_add(p->shard, name, label, (size_t)length));
    p->in_shard++;
    split->images++;
    return STATUS_OK;
}

static Status take_image(Pack *p, SplitPack *split, int64_t i) {
    const void *bytes;
    size_t size;
    bool owned, read;
    Status s = dataset_bytes(p->dataset, i, &bytes, &size, &owned);
    read = s == STATUS_OK;
    if (read) s = add_image(p, split, i, bytes, size);
    if (read && owned) mem_free((void *)(uintptr_t)bytes);
    const bool file_is_bad = s == STATUS_DATA || (!read && s == STATUS_IO);
    if (!file_is_bad || settings.data.on_corrupt == 1) return s;
    complain("left out: %s", status_message());
    split->left_out++;
    return STATUS_OK;
}

static Status take_images(Pack *p, SplitPack *split, const int64_t *order) {
    const int64_t count = dataset_count(p->dataset);
    for (int64_t i = 0; i < count; i++) {
        if (train_stop_requested()) return status_set(STATUS_STOPPED, "stopped");
        TRY(take_image(p, split, order[i]));
        if (time(NULL) - p->start >= 2)
            progress_line(10, "packing %lld of %lld", (long long)i + 1, (long long)count);
    }
    TRY(finish_shard(p, split));
    if (split->images == 0 || (double)split->left_out > settings.data.max_corrupt * (double)count)
        return status_set(STATUS_DATA,
                          "%s: %lld of %lld pictures cannot be used, more than data.max_corrupt "
                          "allows",
                          settings.data.root, (long long)split->left_out, (long long)count);
    return STATUS_OK;
}

static Status pack_dataset(Pack *p, SplitPack *split) {
    const int64_t count = dataset_count(p->dataset);
    void *block;
    TRY(mem_alloc(&block, count, sizeof(int64_t), "order of the images"));
    int64_t *order = block;
    Rng rng = rng_stream((uint64_t)options.seed, RNG_SHUFFLE, UINT32_MAX - 1, 0);
    for (int64_t i = 0; i < count; i++) order[i] = i;
    if (options.shuffle) rng_permutation(&rng, order, count);
    Status s = take_images(p, split, order);
    mem_free(block);
    tar_writer_abort(p->shard);
    p->shard = NULL;
    return s;
}

static Status pack_split(Pack *p, const char *name) {
    SplitPack *split = &p->splits[p->split_count++];
    const bool parts = data_holdout(settings.data.val_split) > 0;
    *split = (SplitPack){.name = data_holdout(name) > 0 ? "val" : parts && !*name ? "train" : name};
    TRY(dataset_open(&settings.data, name, &p->classes, &p->dataset));
    Status s = pack_dataset(p, split);
    dataset_close(p->dataset);
    p->dataset = NULL;
    return s;
}

/* ---- the folder ---- */

static Status write_classes(const Pack *p) {
    char *path;
    FileWriter *w;
    TRY(path_join(&path, p->folder, "classes.txt"));
    Status s = file_writer_open(path, &w);
    mem_free(path);
    if (s != STATUS_OK) return s;
    for (int64_t i = 0; s == STATUS_OK && i < p->classes.count; i++) {
        const char *name = p->classes.names[i];
        if (name[strcspn(name, "\r\n")] != '\0')
            s = status_set(STATUS_DATA, "class %lld: a line end in its name", (long long)i);
        if (s == STATUS_OK) s = file_writer_write(w, name, strlen(name));
        if (s == STATUS_OK) s = file_writer_write(w, "\n", 1);
    }
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* Only what this call wrote lies in it. */
static void drop_folder(const Pack *p) {
    DIR *folder = opendir(p->folder);
    if (folder == NULL) return;
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        char *path;
        if (e->d_name[0] == '.' || path_join(&path, p->folder, e->d_name) != STATUS_OK) continue;
        unlink(path);
        mem_free(path);
    }
    closedir(folder);
    rmdir(p->folder);
}

/* The shards appear under their folder's name together, or not at all. */
static Status place_folder(const Pack *p) {
    TRY(file_sync_folder(p->folder));
    if (rename(p->folder, p->out) == 0) return STATUS_OK;
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
        return status_set(STATUS_USAGE, "%s: exists and is not an empty folder", p->out);
    return status_errno("cannot rename %s to %s", p->folder, p->out);
}

static Status pack_all(Pack *p) {
    const DataConfig *c = &settings.data;
    const char *const usual[SPLITS] = {c->train_split, c->val_split};
    if (*options.split) {
        TRY(pack_split(p, options.split));
    } else {
        for (int i = 0; i < SPLITS; i++) {
            bool found = data_holdout(c->val_split) > 0; /* both parts of the training images */
            if (!found && *usual[i]) TRY(dataset_has_split(c->root, usual[i], &found));
            if (found) TRY(pack_split(p, usual[i]));
        }
        if (p->split_count == 0) TRY(pack_split(p, ""));
    }
    return write_classes(p);
}

/* A folder among the class folders would be taken for one. The parent of OUT may not be there yet:
 * then it lies in none. */
static Status refuse_inside(const char *root, const char *folder) {
    char a[PATH_MAX], b[PATH_MAX], *parent;
    const char *slash = strrchr(folder, '/');
    TRY(mem_string_n(&parent, slash ? folder : ".", slash ? (size_t)(slash - folder) + 1 : 1));
    const bool known = realpath(root, a) && realpath(parent, b);
    mem_free(parent);
    const size_t n = known ? strlen(a) : 0;
    if (!known || strncmp(a, b, n) != 0 || (b[n] != '/' && b[n] != '\0')) return STATUS_OK;
    return status_set(STATUS_USAGE, "%s lies inside %s: name a folder outside of it", folder, root);
}

static Status make(Pack *p) {
    size_t n = strlen(p->out);
    while (n > 1 && p->out[n - 1] == '/') n--;
    TRY(out_folder_check(p->out, "name a new folder"));
    if (n + 32 > sizeof p->folder)
        return status_set(STATUS_USAGE, "the name of the folder is too long");
    snprintf(p->folder, sizeof p->folder, "%.*s", (int)n, p->out);
    TRY(refuse_inside(settings.data.root, p->folder));
    snprintf(p->folder, sizeof p->folder, "%.*s.tmp-%ld", (int)n, p->out, (long)getpid());
    TRY(file_make_folder(p->folder));
    Status s = pack_all(p);
    if (s == STATUS_OK) s = place_folder(p);
    if (s != STATUS_OK) drop_folder(p);
    return s;
}

/* ---- report ---- */

static Status report_json(const Pack *p) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "root", settings.data.root);
    json_pair_string(&w, "output", p->out);
    json_pair_int(&w, "classes", p->classes.count);
    json_key(&w, "splits");
    json_begin_array(&w);
    for (int i = 0; i < p->split_count; i++) {
        const SplitPack *s = &p->splits[i];
        json_begin_object(&w);
        json_pair_string(&w, "split", s->name);
        json_pair_int(&w, "images", s->images);
        json_pair_int(&w, "left_out", s->left_out);
        json_pair_int(&w, "shards", s->shards);
        json_pair_int(&w, "bytes", (int64_t)s->bytes);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static Status report(const Pack *p) {
    if (common.json) return report_json(p);
    for (int i = 0; i < p->split_count; i++) {
        const SplitPack *s = &p->splits[i];
        out_printf("%s/%s-*.tar: %lld images of %lld class%s in %lld shard%s, %.1f MB", p->out,
                   *s->name ? s->name : "all", (long long)s->images, (long long)p->classes.count,
                   p->classes.count == 1 ? "" : "es", (long long)s->shards,
                   s->shards == 1 ? "" : "s", 1e-6 * (double)s->bytes);
        if (s->left_out > 0) out_printf("; %lld left out", (long long)s->left_out);
        out_text("\n");
    }
    return STATUS_OK;
}

static int run(Config *config, int argc, char **argv) {
    Pack p = {.start = time(NULL)};
    (void)config;
    if (argc != 2)
        return cli_usage(&command_data_pack, "ROOT and OUT are expected, %d names are given", argc);
    const int usage = data_take_root(&command_data_pack, 1, argv);
    if (usage != 0) return usage;
    p.out = argv[1];
    signals_catch(train_request_stop);
    Status s = make(&p);
    progress_end();
    if (s == STATUS_OK) s = report(&p);
    class_list_free(&p.classes);
    if (s == STATUS_STOPPED && signals_exit_code() != 0) {
        note("stopped; nothing is left of it");
        return signals_exit_code();
    }
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_data_pack = {
    .name = "data pack",
    .summary = "write a data set as WebDataset shards: tar files of pictures and their classes",
    .synopsis = "ttv data pack [flags] ROOT OUT",
    .examples = "  ttv data pack /data/imagenet shards; ttv train -c configs/vittt_tiny.ini "
                "--data-dir shards\n"
                "  ttv data pack ILSVRC2012_img_train.tar shards --split train --shard-mb 500\n",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
