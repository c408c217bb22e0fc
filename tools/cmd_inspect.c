/* `ttv inspect CHECKPOINT...`: what is in a checkpoint, and is it whole. */
#include "tools/inspect.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "nn/checkpoint.h"
#include "tools/cli.h"

typedef struct InspectOptions {
    bool tensors, stats, verify;
} InspectOptions;

static InspectOptions options;

#define FIELD(name) offsetof(InspectOptions, name)
static const Option inspect_options[] = {
    {"tensors", OPTION_BOOL, FIELD(tensors), "false", 0, 0, NULL, "tensors",
     "list every tensor: name, dtype, shape, bytes"},
    {"stats", OPTION_BOOL, FIELD(stats), "false", 0, 0, NULL, "stats",
     "list tensors with minimum, maximum, mean, deviation, non-finite values"},
    {"verify", OPTION_BOOL, FIELD(verify), "false", 0, 0, NULL, "verify",
     "check manifests (size, CRC), the model's list of tensors, and every value; exit code 1 on a "
     "fault"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"inspect", inspect_options, &options};
    *count = 1;
    return list;
}

/* ---- gathering ---- */

static bool is_run_folder(const char *path) {
    static const char *const manifests[] = {"last.json", "best.json"};
    bool found = false;
    for (int k = 0; k < 2; k++) {
        char *file;
        if (path_join(&file, path, manifests[k]) != STATUS_OK) return false;
        found = found || file_exists(file);
        mem_free(file);
    }
    return found;
}

static void count_values(Inspection *i) {
    for (int64_t t = 0; t < safetensors_count(i->file); t++) {
        const SafeEntry *e = safetensors_at(i->file, t);
        i->parameters += (int64_t)(e->bytes / dtype_size(e->dtype));
        i->bytes += (int64_t)e->bytes;
        if (!i->stats) continue;
        i->stats[t] = tensor_stats(e);
        i->nonfinite += i->stats[t].nonfinite;
    }
}

static Status gather(Inspection *i) {
    TRY(checkpoint_resolve(i->path, &i->weights));
    TRY(safetensors_open(i->weights, &i->file));
    if (options.stats || options.verify) {
        void *stats;
        TRY(mem_alloc(&stats, safetensors_count(i->file), sizeof(TensorStats),
                      "tensor statistics"));
        i->stats = stats;
    }
    count_values(i);
    i->model = recognise(i->file);
    return STATUS_OK;
}

/* ---- verifying ---- */

static void check_finite(Inspection *i, const SafeFile *f, const char *where,
                         const TensorStats *stats) {
    for (int64_t t = 0; t < safetensors_count(f); t++) {
        const SafeEntry *e = safetensors_at(f, t);
        int64_t bad = stats ? stats[t].nonfinite : tensor_stats(e).nonfinite;
        if (bad == 0) continue;
        findings_add(&i->faults, "%stensor '%.200s' has %lld non-finite of %lld values", where,
                     e->name, (long long)bad, (long long)(e->bytes / dtype_size(e->dtype)));
    }
}

/* The state file of a run: safetensors rules, and no value that would poison a resumed run. */
static void check_state(Inspection *i, const char *path) {
    SafeFile *f;
    char where[300];
    if (safetensors_open(path, &f) != STATUS_OK) {
        findings_add(&i->faults, "%s", status_message());
        return;
    }
    const char *slash = strrchr(path, '/');
    snprintf(where, sizeof where, "%.250s: ", slash ? slash + 1 : path);
    check_finite(i, f, where, NULL);
    safetensors_close(f);
}

/* Sizes and CRCs of both manifests of a run folder. */
static void check_manifests(Inspection *i) {
    static const char *const which[] = {"last", "best"};
    for (int k = 0; k < 2; k++) {
        char name[16], *file, *weights = NULL, *state = NULL;
        snprintf(name, sizeof name, "%s.json", which[k]);
        if (path_join(&file, i->path, name) != STATUS_OK) return;
        bool there = file_exists(file);
        mem_free(file);
        if (!there) continue;
        if (checkpoint_find(i->path, which[k], &weights, &state) != STATUS_OK) {
            findings_add(&i->faults, "%s", status_message());
            continue;
        }
        check_state(i, state);
        mem_free(weights);
        mem_free(state);
    }
}

static Status verify(Inspection *i) {
    TRY(recognised_check(&i->model, i->file, &i->faults, &i->compared));
    check_finite(i, i->file, "", i->stats);
    return i->faults.status;
}

/* ---- one checkpoint ---- */

static void inspection_free(Inspection *i) {
    if (i->file) safetensors_close(i->file);
    findings_free(&i->faults);
    mem_free(i->stats);
    mem_free(i->weights);
}

static Status inspect(Inspection *i) {
    i->run_folder = file_is_folder(i->path) && is_run_folder(i->path);
    i->verified = options.verify;
    if (options.verify && i->run_folder) check_manifests(i);
    Status s = gather(i);
    /* A run folder whose manifests have faults may have nothing left to open: that is the verdict.
     */
    if (s != STATUS_OK && i->faults.count > 0 && s != STATUS_MEMORY) return i->faults.status;
    TRY(s);
    return options.verify ? verify(i) : STATUS_OK;
}

static Status report(const Inspection *i) {
    if (!common.json) {
        inspection_print(i, options.tensors, options.stats);
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    return out_json(&w, inspection_json(i, options.tensors, options.stats, &w));
}

static int inspect_one(const char *path) {
    Inspection i = {.path = path};
    Status s = inspect(&i);
    if (s == STATUS_OK) s = report(&i);
    int code = s != STATUS_OK ? cli_fail(s) : i.faults.count > 0 ? EXIT_NEGATIVE : 0;
    inspection_free(&i);
    return code;
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    int worst = 0;
    options.tensors = options.tensors || options.stats;
    /* Called as `ttv ckpt verify` it does what it says. */
    if (argc > 0 && strcmp(cli_argv[1], "ckpt") == 0)
        options.verify |= strcmp(cli_argv[2], "verify") == 0;
    if (argc == 0) return cli_usage(&command_inspect, "no checkpoint was named");
    for (int k = 0; k < argc; k++) {
        int code = inspect_one(argv[k]);
        if (code > worst) worst = code;
        if (!common.json && k + 1 < argc && !out_failed()) out_text("\n");
    }
    return worst;
}

const Command command_inspect = {
    .name = "inspect",
    .aliases = "ckpt info|ckpt verify|checkpoint info",
    .summary = "show what a checkpoint holds and whether it is whole",
    .synopsis = "ttv inspect [--tensors] [--stats] [--verify] [--json] CHECKPOINT...",
    .examples = "  ttv inspect runs/digits\n"
                "  ttv inspect --verify runs/digits model.safetensors\n"
                "  ttv inspect --tensors --stats --json model.safetensors\n",
    .sections = sections,
    .run = run,
};
