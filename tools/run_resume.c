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

static void tell_change(const char *section, const char *key, const char *stored, const char *now) {
    note("changed since the run began: %s.%s was %s, is now %s", section, key, stored, now);
}

static Status take_stored_config(const RunFolder *r, Config *config, const char *inherited) {
    char *path, *text = NULL;
    size_t size;
    TRY(path_join(&path, r->path, "config.ini"));
    Status s = file_read(path, MAX_CONFIG_BYTES, &text, &size);
    if (s == STATUS_OK) s = config_overlay(config, text, size, path, inherited, tell_change);
    mem_free(text);
    mem_free(path);
    return s;
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
