#include "tools/run_resume.h"

#include <dirent.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_sections.h"
#include "tools/sections.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

static bool has_file(const char *folder, const char *name) {
    char *path;
    if (path_join(&path, folder, name) != STATUS_OK) return false;
    bool yes = file_exists(path);
    mem_free(path);
    return yes;
}

/* Training states that lie in the folder. */
static int count_states(const char *folder) {
    static const char end[] = ".state.safetensors";
    char *path;
    int count = 0;
    if (path_join(&path, folder, "checkpoints") != STATUS_OK) return 0;
    DIR *files = opendir(path);
    mem_free(path);
    if (!files) return 0;
    for (struct dirent *e; (e = readdir(files)) != NULL;) {
        const size_t n = strlen(e->d_name), m = strlen(end);
        count += n > m && strcmp(e->d_name + n - m, end) == 0;
    }
    closedir(files);
    return count;
}

/* --resume auto of a folder without last.json. A save that was killed as the first of all leaves
 * the files of one step, which no manifest names, or names as the best only; more of them mean that
 * a manifest was lost, and that beginning anew would lose a run. */
static Status begin_or_recover(const char *folder, bool *found) {
    *found = has_file(folder, "best.json");
    if (*found || count_states(folder) < 2) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s holds checkpoints, but neither last.json nor best.json says which are "
                      "whole: it is not begun anew; another --output does",
                      folder);
}

/* Keys that make another network of tensors with the same shapes: nothing else would notice. */
static const char *const network[] = {"nvs_model.variant", "model.mixer", "model.steps",
                                      "model.chunk",       "model.scan",  "model.visibility",
                                      "model.loss",        NULL};

static char refused[2 * CONFIG_TEXT + 128]; /* the first change of those; empty: none */

static void tell_change(const char *section, const char *key, const char *stored, const char *now) {
    char name[CONFIG_TEXT];
    note("changed since the run began: %s.%s was %s, is now %s", section, key, stored, now);
    snprintf(name, sizeof name, "%s.%s", section, key);
    for (int i = 0; network[i] && !*refused; i++)
        if (strcmp(name, network[i]) == 0)
            snprintf(refused, sizeof refused, "%s = %s, it cannot go on as %s", name, stored, now);
}

static Status overlay(const char *folder, Config *config, const char *inherited,
                      void (*tell)(const char *, const char *, const char *, const char *)) {
    char *path, *text = NULL;
    size_t size;
    TRY(path_join(&path, folder, "config.ini"));
    Status s = file_read(path, MAX_CONFIG_BYTES, &text, &size);
    if (s == STATUS_OK) s = config_overlay(config, text, size, path, inherited, tell);
    mem_free(text);
    mem_free(path);
    return s;
}

/* The data are those of the run folder: nobody named others. */
static bool data_of_run;

static bool nobody_named_data(void) {
    return !*settings.data.root && !*nvs_settings.scenes.root;
}

static Status take_stored_config(const RunFolder *r, Config *config, const char *inherited) {
    *refused = '\0';
    data_of_run = nobody_named_data();
    TRY(overlay(r->path, config, inherited, tell_change));
    if (!*refused) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s was trained with %s (--initial-checkpoint takes its weights into a new "
                      "run)",
                      r->path, refused);
}

Status run_take_data(Config *config, const char *checkpoint, const char *sections) {
    data_of_run = false;
    if (!file_is_folder(checkpoint) || !has_file(checkpoint, "config.ini")) return STATUS_OK;
    data_of_run = nobody_named_data();
    return overlay(checkpoint, config, sections, NULL);
}

Status run_data_context(Status s) {
    if (s == STATUS_OK || !data_of_run) return s;
    return status_context(s, "the data of the training run (--data-dir names others)");
}

Status run_resume_find(RunFolder *r, Config *config, const char *inherited, bool *resuming) {
    const char *how = settings.run.resume;
    if (strcmp(how, "none") == 0) return STATUS_OK;
    bool automatic = strcmp(how, "auto") == 0, last = strcmp(how, "last") == 0;
    char folder[CONFIG_TEXT];
    snprintf(folder, sizeof folder, "%s", automatic || last ? settings.run.output : how);
    bool found = has_file(folder, "last.json");
    const char *manifest = found ? "last" : "best";
    if (!found && !automatic)
        return status_set(STATUS_USAGE, "--resume %s: %s holds no checkpoint (no last.json)", how,
                          folder);
    if (!found) TRY(begin_or_recover(folder, &found));
    if (!found) {
        settings.run.exist_ok = true; /* the same command, again and again, uses the same folder */
        return STATUS_OK;
    }
    if (output_is_mine())
        TRY(run_folder_open(r, folder));
    else /* rank 0 has locked it */
        TRY(mem_string(&r->path, folder));
    r->resumed = manifest;
    TRY(take_stored_config(r, config, inherited));
    snprintf(settings.run.output, sizeof settings.run.output, "%s", folder);
    *resuming = true;
    return STATUS_OK;
}

Status run_resume_check(const TrainOptions *o, const TrainState *s, int64_t batch, int64_t times) {
    char factor[64] = "";
    TRY(train_check(o, s));
    if (s->cursor % (batch * times) == 0) return STATUS_OK;
    if (times > 1)
        snprintf(factor, sizeof factor, " times --grad-accum-steps %lld", (long long)times);
    return status_set(STATUS_USAGE,
                      "the run stopped after %lld samples, which is no multiple of --batch-size "
                      "%lld%s",
                      (long long)s->cursor, (long long)batch, factor);
}
