#include "tools/run_resume.h"

#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/sections.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

static bool has_checkpoint(const char *folder) {
    char *path;
    if (path_join(&path, folder, "last.json") != STATUS_OK) return false;
    bool yes = file_exists(path);
    mem_free(path);
    return yes;
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

static Status take_stored_config(const RunFolder *r, Config *config, const char *inherited) {
    char *path, *text = NULL;
    size_t size;
    TRY(path_join(&path, r->path, "config.ini"));
    Status s = file_read(path, MAX_CONFIG_BYTES, &text, &size);
    *refused = '\0';
    if (s == STATUS_OK) s = config_overlay(config, text, size, path, inherited, tell_change);
    mem_free(text);
    mem_free(path);
    if (s != STATUS_OK || !*refused) return s;
    return status_set(STATUS_DATA,
                      "%s was trained with %s (--initial-checkpoint takes its weights into a new "
                      "run)",
                      r->path, refused);
}

Status run_resume_find(RunFolder *r, Config *config, const char *inherited, bool *resuming) {
    const char *how = settings.run.resume;
    if (strcmp(how, "none") == 0) return STATUS_OK;
    bool automatic = strcmp(how, "auto") == 0, last = strcmp(how, "last") == 0;
    char folder[CONFIG_TEXT];
    snprintf(folder, sizeof folder, "%s", automatic || last ? settings.run.output : how);
    if (!has_checkpoint(folder)) {
        if (!automatic)
            return status_set(STATUS_USAGE, "--resume %s: %s holds no checkpoint (no last.json)",
                              how, folder);
        settings.run.exist_ok = true; /* the same command, again and again, uses the same folder */
        return STATUS_OK;
    }
    if (output_is_mine())
        TRY(run_folder_open(r, folder));
    else /* rank 0 has locked it */
        TRY(mem_string(&r->path, folder));
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
