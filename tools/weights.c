/* --weights: which of the weights that a run saved. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "nn/checkpoint.h"
#include "tools/model_io.h"

/* A score as the run wrote it beside the weights; NAN: not known. */
static double stored_score(const SafeFile *file, const char *key) {
    const char *text = safetensors_meta(file, key);
    return text ? strtod(text, NULL) : NAN;
}

/* The average, unless the weights themselves scored higher. */
static Status average_is_better(const char *raw, bool *yes) {
    SafeFile *file;
    TRY(safetensors_open(raw, &file));
    *yes = !(stored_score(file, "ttv.top1_raw") > stored_score(file, "ttv.top1_ema")) &&
           !(stored_score(file, "ttv.psnr_raw") > stored_score(file, "ttv.psnr_ema"));
    safetensors_close(file);
    return STATUS_OK;
}

/* The manifest that checkpoint_resolve() takes of a run folder; NULL: it is another folder. */
static Status manifest_of(const char *folder, const char **which) {
    static const char *const names[] = {"best", "last"};
    *which = NULL;
    for (int i = 0; i < 2 && !*which; i++) {
        char name[16], *path;
        snprintf(name, sizeof name, "%s.json", names[i]);
        TRY(path_join(&path, folder, name));
        if (file_exists(path)) *which = names[i];
        mem_free(path);
    }
    return STATUS_OK;
}

/* *path are the raw weights of a run folder; they become the average where that is wanted. */
static Status choose_in_run(const char *folder, const char *which, WeightsChoice choice,
                            char **path) {
    char *average;
    bool better = true;
    const Status s = checkpoint_find_ema(folder, which, &average);
    if (s == STATUS_DATA && choice == WEIGHTS_AUTO) return STATUS_OK; /* there is none */
    TRY(s);
    const Status read = choice == WEIGHTS_AUTO ? average_is_better(*path, &better) : STATUS_OK;
    if (read == STATUS_OK && better) {
        char *raw = *path;
        *path = average;
        average = raw;
    }
    mem_free(average);
    return read;
}

/* A single file is what its metadata say; files of other tools say nothing and are taken as raw. */
static Status check_file(const char *path, WeightsChoice choice) {
    SafeFile *file;
    if (choice == WEIGHTS_AUTO) return STATUS_OK;
    TRY(safetensors_open(path, &file));
    const char *kind = safetensors_meta(file, "ttv.weights");
    const bool is_average = kind && strcmp(kind, "ema") == 0;
    safetensors_close(file);
    if (is_average == (choice == WEIGHTS_EMA)) return STATUS_OK;
    return status_set(STATUS_DATA, "%s holds %s weights, --weights asks for %s ones", path,
                      is_average ? "averaged (ema)" : "raw", is_average ? "raw" : "averaged (ema)");
}

static Status choose(const char *checkpoint, WeightsChoice choice, char **path) {
    const char *which = NULL;
    if (file_is_folder(checkpoint)) TRY(manifest_of(checkpoint, &which));
    if (!which) return check_file(*path, choice);
    return choice == WEIGHTS_RAW ? STATUS_OK : choose_in_run(checkpoint, which, choice, path);
}

Status weights_resolve(const char *checkpoint, WeightsChoice choice, char **path) {
    TRY(checkpoint_resolve(checkpoint, path));
    const Status s = choose(checkpoint, choice, path);
    if (s != STATUS_OK) {
        mem_free(*path);
        *path = NULL;
    }
    return s;
}
