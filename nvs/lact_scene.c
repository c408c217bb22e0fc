#include "nvs/lact_scene.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define FORMAT "lact-scene 1"

enum { OWN_KEYS = 6, FRAME_TEXT = 17 * 32 };

/* Own metadata as text. Numbers in %.17g come back as the same doubles. */
typedef struct SceneText {
    char frame[FRAME_TEXT], height[24], width[24], patch[24];
} SceneText;

static void write_frame(const PoseFrame *f, char *out, size_t size) {
    size_t used = 0;
    for (int i = 0; i < 17 && used < size; i++) {
        const double x = i < 16 ? f->to_frame[i] : f->scale;
        const int n = snprintf(out + used, size - used, "%s%.17g", i ? " " : "", x);
        used += n > 0 ? (size_t)n : 0;
    }
}

Status lact_scene_save(const LactScene *s, const char *path, const SafeMeta *meta,
                       int64_t meta_count) {
    SceneText text;
    SafeMeta *all;
    write_frame(&s->frame, text.frame, sizeof text.frame);
    snprintf(text.height, sizeof text.height, "%" PRId64, s->height);
    snprintf(text.width, sizeof text.width, "%" PRId64, s->width);
    snprintf(text.patch, sizeof text.patch, "%" PRId64, s->patch);
    TRY(mem_alloc((void **)&all, OWN_KEYS + meta_count, sizeof *all, "scene metadata"));
    const SafeMeta own[OWN_KEYS] = {{"ttv.format", FORMAT},      {"ttv.frame", text.frame},
                                    {"ttv.height", text.height}, {"ttv.width", text.width},
                                    {"ttv.patch", text.patch},   {"ttv.variant", s->variant}};
    memcpy(all, own, sizeof own);
    for (int64_t i = 0; i < meta_count; i++) all[OWN_KEYS + i] = meta[i];
    Status status = lact_state_save(s->fast, path, all, OWN_KEYS + meta_count);
    mem_free(all);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------ */

static Status meta_text(const SafeFile *f, const char *key, const char **out) {
    *out = safetensors_meta(f, key);
    if (*out) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: not a reconstructed scene (metadata '%s' is missing)",
                      safetensors_path(f), key);
}

static Status meta_size(const SafeFile *f, const char *key, int64_t *out) {
    const char *text;
    char *end;
    TRY(meta_text(f, key, &text));
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (errno == 0 && end != text && *end == 0 && *out >= 1 && *out <= 65536) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: metadata '%s' is '%.40s', expected 1 to 65536",
                      safetensors_path(f), key, text);
}

static Status meta_frame(const SafeFile *f, PoseFrame *out) {
    const char *text;
    TRY(meta_text(f, "ttv.frame", &text));
    char *end = NULL;
    for (int i = 0; i < 17; i++) {
        double *to = i < 16 ? &out->to_frame[i] : &out->scale;
        *to = strtod(text, &end);
        if (end == text || !isfinite(*to))
            return status_set(STATUS_DATA, "%s: metadata 'ttv.frame' has no number %d of 17",
                              safetensors_path(f), i + 1);
        text = end;
    }
    if (*end == 0 && out->scale > 0) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s: metadata 'ttv.frame' is not 16 numbers of a pose and a scale above 0",
                      safetensors_path(f));
}

static Status read_meta(const SafeFile *f, LactScene *out) {
    const char *format, *name;
    LactVariant variant;
    TRY(meta_text(f, "ttv.format", &format));
    if (strcmp(format, FORMAT) != 0)
        return status_set(STATUS_DATA, "%s: format is '%.40s', expected '%s'", safetensors_path(f),
                          format, FORMAT);
    TRY(meta_frame(f, &out->frame));
    TRY(meta_size(f, "ttv.height", &out->height));
    TRY(meta_size(f, "ttv.width", &out->width));
    TRY(meta_size(f, "ttv.patch", &out->patch));
    TRY(meta_text(f, "ttv.variant", &name));
    if (lact_variant_by_name(name, &variant) != STATUS_OK)
        return status_set(STATUS_DATA, "%s: metadata 'ttv.variant' is '%.40s', no known variant",
                          safetensors_path(f), name);
    snprintf(out->variant, sizeof out->variant, "%s", name);
    return STATUS_OK;
}

Status lact_scene_load(Device *d, const char *path, LactScene *out) {
    SafeFile *f;
    LactScene s = {0};
    TRY(safetensors_open(path, &f));
    Status status = read_meta(f, &s);
    if (status == STATUS_OK) status = lact_state_load(d, f, &s.fast);
    safetensors_close(f);
    if (status == STATUS_OK) *out = s;
    return status;
}

void lact_scene_free(LactScene *s) {
    lact_state_free(s->fast);
    s->fast = NULL;
}

Status lact_scene_check(const LactScene *s, const LactNvs *m) {
    const LactNvsConfig *c = &m->config;
    if (s->height != c->height || s->width != c->view_width || s->patch != c->patch)
        return status_set(STATUS_DATA,
                          "the scene has views of %" PRId64 "x%" PRId64 " in patches of %" PRId64
                          ", the model %" PRId64 "x%" PRId64 " in patches of %" PRId64,
                          s->width, s->height, s->patch, c->view_width, c->height, c->patch);
    if (strcmp(s->variant, c->variant) != 0)
        return status_set(STATUS_DATA, "the scene was written by variant %s, the model is %s",
                          s->variant, c->variant);
    return lact_nvs_state_check(m, s->fast);
}
