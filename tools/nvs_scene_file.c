/* Reconstructed scenes as files of `ttv nvs render` (nvs/lact_scene.h). */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/crc32c.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_render.h"

enum { CAMERA_NUMBERS = 20, NUMBER_TEXT = 26 };

static Status add_sums(const NvsModel *m, void *host, uint32_t *crc) {
    for (int64_t i = 0; i < m->params.count; i++) {
        const Tensor t = m->params.items[i]->master;
        TRY(device_pull(m->device, host, t));
        *crc = crc32c(*crc, host, (size_t)tensor_count(t) * sizeof(float));
    }
    return STATUS_OK;
}

/* CRC-32C of all weights in their order. */
static Status weights_sum(const NvsModel *m, char text[16]) {
    void *host;
    uint32_t crc = 0;
    TRY(mem_alloc(&host, params_largest(&m->params), sizeof(float), "weights"));
    Status s = add_sums(m, host, &crc);
    snprintf(text, 16, "%08lx", (unsigned long)crc);
    mem_free(host);
    return s;
}

/* ---- writing ---- */

/* c2w, fx fy cx cy of every input, in %.17g, which reads back as it was. */
static Status cameras_text(const NvsRender *r, char **out) {
    const int64_t room = r->inputs * CAMERA_NUMBERS * NUMBER_TEXT + 1;
    void *block;
    TRY(mem_alloc(&block, room, 1, "cameras"));
    char *text = block;
    int64_t used = 0;
    for (int64_t v = 0; v < r->inputs; v++) {
        const Camera *c = &r->input_cameras[v];
        const double last[4] = {c->fx, c->fy, c->cx, c->cy};
        for (int i = 0; i < CAMERA_NUMBERS; i++)
            used += snprintf(text + used, (size_t)(room - used), "%s%.17g", used > 0 ? " " : "",
                             i < 16 ? c->c2w[i] : last[i - 16]);
    }
    *out = text;
    return STATUS_OK;
}

static void frames_text(const NvsRender *r, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (int64_t i = 0; i < r->inputs && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i > 0 ? "," : "",
                                 (long long)r->input_frames[i]);
}

Status nvs_scene_save(const NvsRender *r, const char *path) {
    char sum[16], frames[VIEW_MAX * 21], source[64], *cameras;
    TRY(weights_sum(&r->model, sum));
    frames_text(r, frames, sizeof frames);
    snprintf(source, sizeof source, "%lld %lld", (long long)r->source[0], (long long)r->source[1]);
    TRY(cameras_text(r, &cameras));
    const SafeMeta meta[] = {{"ttv.scene", r->name},
                             {"ttv.weights_crc32c", sum},
                             {"ttv.input_frames", frames},
                             {"ttv.input_cameras", cameras},
                             {"ttv.source", source}};
    Status s = lact_scene_save(&r->saved, path, meta, sizeof meta / sizeof *meta);
    mem_free(cameras);
    return s;
}

/* ---- reading ---- */

static Status take_text(const SafeFile *f, const char *key, const char **out) {
    *out = safetensors_meta(f, key);
    if (*out) return STATUS_OK;
    return status_set(STATUS_DATA, "%s: a scene without the metadata '%s'", safetensors_path(f),
                      key);
}

static Status bad_text(const SafeFile *f, const char *key, const char *wanted) {
    return status_set(STATUS_DATA, "%s: metadata '%s' is not %s", safetensors_path(f), key, wanted);
}

/* Numbers with blanks or commas between; at most `most`, *count of them. */
static bool take_numbers(const char *text, double *out, int most, int *count) {
    *count = 0;
    while (*text) {
        char *end;
        if (*count == most) return false;
        out[*count] = strtod(text, &end);
        if (end == text || !isfinite(out[*count])) return false;
        ++*count;
        text = *end == ',' || *end == ' ' ? end + 1 : end;
    }
    return true;
}

static Status read_cameras(NvsRender *r, const SafeFile *f) {
    double numbers[VIEW_MAX * CAMERA_NUMBERS];
    const char *text;
    int count;
    TRY(take_text(f, "ttv.input_cameras", &text));
    if (!take_numbers(text, numbers, VIEW_MAX * CAMERA_NUMBERS, &count) || count == 0 ||
        count % CAMERA_NUMBERS != 0)
        return bad_text(f, "ttv.input_cameras", "20 numbers for each of up to 64 cameras");
    r->inputs = count / CAMERA_NUMBERS;
    for (int64_t v = 0; v < r->inputs; v++) {
        const double *n = numbers + v * CAMERA_NUMBERS;
        Camera c = {.fx = n[16], .fy = n[17], .cx = n[18], .cy = n[19]};
        memcpy(c.c2w, n, sizeof c.c2w);
        TRY(status_context(camera_check(&c), "%s: input camera %lld", safetensors_path(f),
                           (long long)v));
        r->input_cameras[v] = c;
    }
    return STATUS_OK;
}

static Status read_rest(NvsRender *r, const SafeFile *f) {
    double numbers[VIEW_MAX];
    const char *text, *sum;
    char own[16];
    int count;
    TRY(take_text(f, "ttv.input_frames", &text));
    if (!take_numbers(text, numbers, VIEW_MAX, &count) || count != r->inputs)
        return bad_text(f, "ttv.input_frames", "a number for each input camera");
    for (int i = 0; i < count; i++) r->input_frames[i] = (int64_t)fmin(fmax(numbers[i], 0), 1e15);
    TRY(take_text(f, "ttv.source", &text));
    if (!take_numbers(text, numbers, 2, &count) || count != 2 ||
        !(numbers[0] >= 1 && numbers[1] >= 1 && numbers[0] <= 1e6 && numbers[1] <= 1e6))
        return bad_text(f, "ttv.source", "width and height of the pictures");
    r->source[0] = (int64_t)numbers[0];
    r->source[1] = (int64_t)numbers[1];
    TRY(take_text(f, "ttv.scene", &text));
    snprintf(r->name, sizeof r->name, "%s", text);
    TRY(take_text(f, "ttv.weights_crc32c", &sum));
    TRY(weights_sum(&r->model, own));
    if (strcmp(own, sum) == 0) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s was written by other weights (checksum %.16s, those of --checkpoint have "
                      "%s): only the same ones can read it",
                      safetensors_path(f), sum, own);
}

Status nvs_scene_load(NvsRender *r, const char *path) {
    SafeFile *f;
    TRY(lact_scene_load(r->model.device, path, &r->saved));
    TRY(status_context(lact_scene_check(&r->saved, r->model.nvs), "%s", path));
    if (r->saved.fast->batch != 1)
        return status_set(STATUS_DATA, "%s: %lld scenes, one is expected", path,
                          (long long)r->saved.fast->batch);
    TRY(safetensors_open(path, &f));
    Status s = read_cameras(r, f);
    if (s == STATUS_OK) s = read_rest(r, f);
    safetensors_close(f);
    r->loaded = s == STATUS_OK;
    return s;
}
