/* `ttv data check ROOT`: is this data set what a training run needs? Every file is decoded. Posed
 * scenes are recognised by their camera files. */
#include "tools/data_check.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "tools/augment_preview.h"
#include "tools/cli.h"
#include "tools/scene_check.h"
#include "tools/sections.h"

typedef struct CheckOptions {
    char splits[CONFIG_TEXT], epipolar[CONFIG_TEXT], scene[CONFIG_TEXT], pair[CONFIG_TEXT],
        preview[CONFIG_TEXT];
    int64_t workers, list;
    bool duplicates;
} CheckOptions;

static CheckOptions options;

#define FIELD(name) offsetof(CheckOptions, name)
static const Option check_options[] = {
    {"split", OPTION_STRING, FIELD(splits), "", 0, 0, NULL, "split",
     "splits to check, separated by commas; default: train and val where they exist, else the "
     "root"},
    {"workers", OPTION_INT, FIELD(workers), "0", 0, 256, NULL, "workers",
     "decoding threads; 0: one per processor"},
    {"max_list", OPTION_INT, FIELD(list), "100", 0, 1e9, NULL, "max-list",
     "faults to list in the text report; 0: all that are kept (1000)"},
    {"duplicates", OPTION_BOOL, FIELD(duplicates), "true", 0, 0, NULL, "duplicates",
     "look for identical files"},
    {"augment_preview", OPTION_STRING, FIELD(preview), "", 0, 0, NULL, "augment-preview",
     "write a PNG of pictures of the first split as [augment] makes them for training (-c FILE, "
     "--set augment.aa=trivial, ...)"},
    {"epipolar", OPTION_STRING, FIELD(epipolar), "", 0, 0, NULL, "epipolar",
     "posed scenes: write a PNG of two frames with corners and their epipolar lines"},
    {"scene", OPTION_STRING, FIELD(scene), "", 0, 0, NULL, "scene",
     "scene of the epipolar picture; default: the first usable one"},
    {"pair", OPTION_STRING, FIELD(pair), "", 0, 0, NULL, "pair",
     "frame numbers A,B of the epipolar picture; default: two in the middle"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

/* Here a corrupt file is a fault that is reported, whatever training makes of it: those keys are
 * read, since training files have them, and have no flags. */
static const Option *data_options_here(void) {
    enum { ROOM = 64 };
    static Option list[ROOM];
    for (int i = 0; i < ROOM - 1 && data_options[i].key; i++) {
        const char *key = data_options[i].key;
        list[i] = data_options[i];
        if (strcmp(key, "on_corrupt") == 0 || strcmp(key, "max_corrupt") == 0) list[i].flag = NULL;
    }
    return list;
}

static const Section *sections(int *count) {
    static Section list[2];
    list[0] = (Section){"check", check_options, &options};
    list[1] = (Section){"data", data_options_here(), &settings.data};
    *count = 2;
    return list;
}

static const Section *hidden(int *count) {
    static Section list[7];
    *count = sections_fill(list, 7, "model preprocess augment loader optim train run");
    return list;
}

/* ---- which splits ---- */

/* Opens one more split; class lists of flat splits come from the first. */
static Status add_split(DataCheck *c, const char *name) {
    if (c->split_count == MAX_SPLITS)
        return status_set(STATUS_USAGE, "more than %d splits", MAX_SPLITS);
    const ClassList *known = c->split_count > 0 ? &c->splits[0].classes : NULL;
    TRY(split_scan_open(&c->splits[c->split_count], &settings.data, name, known));
    c->split_count++;
    return STATUS_OK;
}

/* Splits that the user named: one that cannot be opened is a fault of the data set, not the end. */
static Status open_named(DataCheck *c, const char *list) {
    Status first = STATUS_OK;
    for (const char *at = list; *at;) {
        char name[256];
        size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        Status s = n < sizeof name ? add_split(c, name)
                                   : status_set(STATUS_USAGE, "--split: a name is too long");
        if (s == STATUS_MEMORY || s == STATUS_USAGE) return s;
        if (s != STATUS_OK) findings_add(&c->faults, "%s", status_message());
        if (first == STATUS_OK) first = s;
        at += n + (at[n] == ',');
    }
    if (c->split_count > 0) return c->faults.status;
    return first != STATUS_OK ? status_set(first, "%s", c->faults.lines ? c->faults.lines[0] : "")
                              : status_set(STATUS_USAGE, "--split names no split");
}

static Status open_splits(DataCheck *c) {
    const char *const usual[] = {settings.data.train_split, settings.data.val_split};
    char list[2 * CONFIG_TEXT + 2] = "";
    if (options.splits[0]) return open_named(c, options.splits);
    if (!usual[0][0] && data_holdout(usual[1]) > 0) { /* the root itself, in two parts */
        TRY(add_split(c, usual[0]));
        return add_split(c, usual[1]);
    }
    for (int i = 0; i < 2; i++) {
        bool found;
        size_t n = strlen(list);
        TRY(dataset_has_split(c->root, usual[i], &found));
        if (found) snprintf(list + n, sizeof list - n, "%s%s", n ? "," : "", usual[i]);
    }
    return list[0] ? open_named(c, list) : add_split(c, "");
}

/* ---- findings ---- */

static void find_split_faults(DataCheck *c, const SplitScan *s) {
    const char *colon = *s->name ? ": " : "";
    for (int64_t i = 0; i < s->count; i++)
        if (s->samples[i].error)
            findings_add(&c->faults, "%s%scorrupt: %s", s->name, colon, s->samples[i].error);
    for (int64_t k = 0; k < s->classes.count; k++)
        if (s->per_class[k] == 0)
            findings_add(&c->faults, "%s%sclass '%s' is empty", s->name, colon,
                         s->classes.names[k]);
    if (s->report.dangling_links > 0)
        findings_add(&c->faults, "%s%s%lld dangling links", s->name, colon,
                     (long long)s->report.dangling_links);
    if (s->count == 0) findings_add(&c->faults, "%s%sno images", s->name, colon);
}

static Status preview(const DataCheck *c) {
    const SplitScan *first = &c->splits[0];
    if (!*options.preview || dataset_count(first->dataset) == 0) return STATUS_OK;
    TRY(augment_preview_write(first->dataset, &first->classes, options.preview));
    note("wrote %s", options.preview);
    return STATUS_OK;
}

static Status check(DataCheck *c) {
    for (int i = 0; i < c->split_count; i++) {
        TRY(split_scan_decode(&c->splits[i], &settings.data, (int)options.workers));
        find_split_faults(c, &c->splits[i]);
        if (i > 0) compare_classes(&c->splits[0], &c->splits[i], &c->faults);
    }
    if (options.duplicates)
        TRY(find_duplicates(c->splits, c->split_count, &c->duplicates, &c->faults));
    return c->faults.status;
}

static Status report(const DataCheck *c) {
    if (!common.json) {
        data_check_print(c, options.list);
        return STATUS_OK;
    }
    JsonWriter w;
    json_writer_init(&w);
    return out_json(&w, data_check_json(c, &w));
}

static int run_scenes(const char *root) {
    SceneCheckOptions o = {options.splits,   options.scene,        options.pair,
                           options.epipolar, (int)options.workers, options.list};
    return scene_check_run(root, &o);
}

static int check_and_report(DataCheck *c) {
    Status s = check(c);
    progress_end();
    if (s == STATUS_OK) s = report(c);
    return s != STATUS_OK ? cli_fail(s) : c->faults.count > 0 ? EXIT_NEGATIVE : 0;
}

/* The preview comes first: whoever wants it need not wait until all is decoded. */
static int run_check(DataCheck *c) {
    Status s = open_splits(c);
    int code = s != STATUS_OK ? cli_fail(s) : 0;
    if (s == STATUS_OK) {
        s = preview(c);
        code = s != STATUS_OK ? cli_fail(s) : check_and_report(c);
    }
    for (int i = 0; i < c->split_count; i++) split_scan_close(&c->splits[i]);
    findings_free(&c->faults);
    return code;
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    DataCheck c = {0};
    const char *root = settings.data.root;
    const int usage = data_take_root(&command_data_check, argc, argv);
    if (usage != 0) return usage;
    bool posed;
    Status s = scene_root(root, &posed);
    if (s != STATUS_OK) return cli_fail(s);
    if (posed && *options.preview)
        return cli_usage(&command_data_check, "--augment-preview: %s holds posed scenes", root);
    if (posed) return run_scenes(root);
    if (*options.epipolar)
        return cli_usage(&command_data_check, "--epipolar: %s holds no posed scenes", root);
    c.root = root;
    return run_check(&c);
}

const Command command_data_check = {
    .name = "data check",
    .summary = "check a data set: labels or cameras, corrupt files, counts, duplicates",
    .synopsis = "ttv data check [flags] ROOT",
    .examples = "  ttv data check data/digits.tar\n"
                "  ttv data check /data/imagenet --split val --val-labels LOC_val_solution.csv\n"
                "  ttv data check /data/pets --json >report.json\n"
                "  ttv data check data/digits.tar -c configs/digits.ini "
                "--set augment.aa=trivial --augment-preview sheet.png\n"
                "  ttv data check data/motorcycle.tar --epipolar pair.png\n",
    .letters = "j=workers",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
