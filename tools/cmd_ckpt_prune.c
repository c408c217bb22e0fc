/* ttv ckpt prune: removes old checkpoints of a run folder; the last and the best stay. */
#include <stddef.h>

#include "core/memory.h"
#include "nn/checkpoint.h"
#include "tools/cli.h"
#include "tools/run_folder.h"

typedef struct PruneOptions {
    int64_t keep;
    bool states, dry_run;
} PruneOptions;

static PruneOptions options;

#define FIELD(name) offsetof(PruneOptions, name)
static const Option prune_options[] = {
    {"keep", OPTION_INT, FIELD(keep), "0", 0, 1e9, NULL, "keep",
     "steps to keep besides the last and the best; has to be given"},
    {"states", OPTION_BOOL, FIELD(states), "false", 0, 0, NULL, "states",
     "remove the training states (moments) of steps that stay, too, but for the last and the best: "
     "no run can be resumed from others"},
    {"dry_run", OPTION_BOOL, FIELD(dry_run), "false", 0, 0, NULL, "dry-run",
     "tell what would be removed, remove nothing"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[1];
    list[0] = (Section){"prune", prune_options, &options};
    *count = 1;
    return list;
}

typedef enum Fate { FATE_KEPT, FATE_STATE, FATE_REMOVED } Fate;
static const char *const fates[] = {"kept", "state removed", "removed"};

typedef struct Pruning {
    const char *folder;
    SavedStep *steps;
    int64_t count, kept; /* kept: of those that no manifest names */
    uint64_t freed;
} Pruning;

static Fate fate_of(Pruning *p, const SavedStep *s) {
    if (s->last || s->best) return FATE_KEPT;
    if (p->kept++ >= options.keep) return FATE_REMOVED;
    return options.states && s->has_state ? FATE_STATE : FATE_KEPT;
}

static void tell_step(const SavedStep *s, Fate fate, JsonWriter *w) {
    const char *use = s->last && s->best ? "last, best" : s->last ? "last" : s->best ? "best" : "";
    if (!common.json) {
        out_printf("step %lld", (long long)s->step);
        if (s->revision > 1) out_printf("-%d", s->revision);
        out_printf("  %.1f MB  %s%s%s%s\n", (double)s->bytes / 1e6, fates[fate], *use ? " (" : "",
                   use, *use ? ")" : "");
        return;
    }
    json_begin_object(w);
    json_pair_int(w, "step", s->step);
    json_pair_int(w, "revision", s->revision);
    json_pair_int(w, "bytes", (int64_t)s->bytes);
    json_pair_bool(w, "last", s->last);
    json_pair_bool(w, "best", s->best);
    json_pair_string(w, "fate", fates[fate]);
    json_end_object(w);
}

static Status prune_steps(Pruning *p, JsonWriter *w) {
    TRY(checkpoint_steps(p->folder, &p->steps, &p->count));
    for (int64_t i = 0; i < p->count; i++) {
        const SavedStep *s = &p->steps[i];
        const Fate fate = fate_of(p, s);
        if (fate != FATE_KEPT) {
            p->freed += fate == FATE_STATE ? s->state_bytes : s->bytes;
            if (!options.dry_run) TRY(checkpoint_step_remove(p->folder, s, fate == FATE_STATE));
        }
        tell_step(s, fate, w);
    }
    return STATUS_OK;
}

static Status prune(Pruning *p) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "run", p->folder);
    json_pair_bool(&w, "dry_run", options.dry_run);
    json_key(&w, "steps");
    json_begin_array(&w);
    const Status s = prune_steps(p, &w);
    json_end_array(&w);
    json_pair_int(&w, "freed_bytes", (int64_t)p->freed);
    json_end_object(&w);
    if (common.json) return out_json(&w, s);
    json_writer_free(&w);
    TRY(s);
    out_printf("%.1f MB %s\n", (double)p->freed / 1e6,
               options.dry_run ? "would be freed" : "freed");
    return STATUS_OK;
}

static int run(Config *config, int argc, char **argv) {
    Pruning p = {0};
    RunFolder folder = {.lock = -1};
    if (argc != 1) return cli_usage(&command_ckpt_prune, "one run folder is expected");
    if (!config_is_set(config, "prune", "keep"))
        return cli_usage(&command_ckpt_prune, "--keep N says how many old steps stay");
    p.folder = argv[0];
    /* First of all this must be a run folder; then the lock keeps a training run from saving. */
    Status s = checkpoint_steps(p.folder, &p.steps, &p.count);
    mem_free(p.steps);
    p.steps = NULL;
    if (s == STATUS_OK && !options.dry_run) s = run_folder_open(&folder, p.folder);
    if (s == STATUS_OK) s = prune(&p);
    run_folder_close(&folder);
    mem_free(p.steps);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_ckpt_prune = {
    .name = "ckpt prune",
    .aliases = "checkpoint prune",
    .summary = "remove old checkpoints of a run folder",
    .synopsis = "ttv ckpt prune --keep N [--states] [--dry-run] RUN",
    .examples = "  ttv ckpt prune --keep 0 --dry-run runs/rooms\n"
                "  ttv ckpt prune --keep 5 --states runs/rooms\n",
    .sections = sections,
    .run = run,
};
