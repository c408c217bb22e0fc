/* Scenes as JSON: LaCT's opencv_cameras.json, LVSM's metadata, LaCT-RE10K's scene_info.json
 * (lact_nvs.md 7.1 and 12). Intrinsics are in pixels; the latter two do not say of which size: it
 * is that of the picture. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/json.h"
#include "core/memory.h"
#include "datasets/scene_internal.h"

typedef struct JsonScene {
    Scene *scene;
    const SceneSource *source;
    char *folder; /* of the camera file, with its slash */
    int64_t capacity;
    char place[800]; /* "file: frame 3" */
} JsonScene;

static const cJSON *member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool take_number(const cJSON *object, const char *key, double *value) {
    const cJSON *item = member(object, key);
    *value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return isfinite(*value);
}

/* [fx, fy, cx, cy] */
static bool take_four(const cJSON *object, const char *key, SceneFrame *f) {
    const cJSON *item = member(object, key);
    double *const to[4] = {&f->fx, &f->fy, &f->cx, &f->cy};
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 4) return false;
    for (int i = 0; i < 4; i++) {
        const cJSON *number = cJSON_GetArrayItem(item, i);
        if (!cJSON_IsNumber(number)) return false;
        *to[i] = number->valuedouble;
    }
    return true;
}

/* Four rows of four; the last must be 0 0 0 1. */
static bool take_matrix(const cJSON *object, const char *key, double out[12]) {
    const cJSON *rows = member(object, key);
    if (!cJSON_IsArray(rows) || cJSON_GetArraySize(rows) != 4) return false;
    for (int r = 0; r < 4; r++) {
        const cJSON *row = cJSON_GetArrayItem(rows, r);
        if (!cJSON_IsArray(row) || cJSON_GetArraySize(row) != 4) return false;
        for (int c = 0; c < 4; c++) {
            const cJSON *number = cJSON_GetArrayItem(row, c);
            if (!cJSON_IsNumber(number)) return false;
            if (r < 3)
                out[4 * r + c] = number->valuedouble;
            else if (fabs(number->valuedouble - (c == 3)) > 1e-6)
                return false;
        }
    }
    return true;
}

/* Rigid: the inverse of [R t] is [R' -R't]. */
static void invert_rigid(double m[12]) {
    double a[12];
    memcpy(a, m, sizeof a);
    for (int r = 0; r < 3; r++) {
        m[4 * r + 3] = 0;
        for (int c = 0; c < 3; c++) {
            m[4 * r + c] = a[4 * c + r];
            m[4 * r + 3] -= a[4 * c + r] * a[4 * c + 3];
        }
    }
}

/* Number of the file "<folder><name>" in the camera file's root; names with ".." match nothing. */
static int64_t find_below(const JsonScene *j, const char *folder, const char *name) {
    char path[2048];
    while (strncmp(name, "./", 2) == 0) name += 2;
    int n = snprintf(path, sizeof path, "%s%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path) return -1;
    return scene_files_find(j->source->files, j->source->files->files[j->source->file].root, path);
}

/* Paths are relative to the camera file, to the root, or come from the machine that wrote them:
 * then images/<scene>/<name> beside the camera file's folder (LVSM). */
static int64_t find_picture(const JsonScene *j, const char *path) {
    char above[1024], guess[2048];
    const char *slash = strrchr(path, '/');
    int64_t found = find_below(j, j->folder, path);
    if (found < 0) found = find_below(j, "", path);
    if (found >= 0) return found;
    snprintf(above, sizeof above, "%s", j->folder);
    size_t n = strlen(above);
    if (n > 0) above[n - 1] = '\0';
    char *up = strrchr(above, '/');
    if (up != NULL)
        up[1] = '\0';
    else
        above[0] = '\0';
    found = find_below(j, above, path);
    if (found >= 0) return found;
    snprintf(guess, sizeof guess, "images/%s/%s", j->scene->name, slash != NULL ? slash + 1 : path);
    return find_below(j, above, guess);
}

static Status lacks(JsonScene *j, const char *what) {
    return scene_fault(j->scene, "%s: %s", j->place, what);
}

/* Intrinsics and matrix by the format's keys. NULL, or what is wrong. */
static const char *take_camera(SceneFormat format, const cJSON *object, SceneFrame *f) {
    if (format == SCENE_LACT) {
        if (!take_number(object, "fx", &f->fx) || !take_number(object, "fy", &f->fy) ||
            !take_number(object, "cx", &f->cx) || !take_number(object, "cy", &f->cy))
            return "the numbers fx, fy, cx, cy are expected";
        if (!take_number(object, "w", &f->width) || !take_number(object, "h", &f->height) ||
            f->width < 1 || f->height < 1)
            return "the picture's size w, h is expected";
        return take_matrix(object, "w2c", f->w2c) ? NULL : "a 4x4 matrix w2c is expected";
    }
    if (format == SCENE_LVSM) {
        if (!take_four(object, "fxfycxcy", f)) return "four numbers fxfycxcy are expected";
        return take_matrix(object, "w2c", f->w2c) ? NULL : "a 4x4 matrix w2c is expected";
    }
    if (!take_four(object, "intrinsics", f)) return "four numbers intrinsics are expected";
    if (!take_matrix(object, "c2ws", f->w2c)) return "a 4x4 matrix c2ws is expected";
    invert_rigid(f->w2c);
    return NULL;
}

static Status read_frame(JsonScene *j, const cJSON *object, int64_t position) {
    SceneFrame f = {.time = position, .line = position, .image = -1};
    const cJSON *path = member(object, j->scene->format == SCENE_LACT ? "file_path" : "image_path");
    snprintf(j->place, sizeof j->place, "%s: frame %lld", j->scene->camera_file,
             (long long)position);
    if (!cJSON_IsObject(object)) return lacks(j, "an object is expected");
    const char *why = take_camera(j->scene->format, object, &f);
    if (why != NULL) return lacks(j, why);
    if (f.fx < 5 || f.fy < 5)
        return lacks(j, "the focal length is below 5: pixels are expected, not shares of the size");
    const bool pictures = j->source->files != NULL;
    if (pictures && !cJSON_IsString(path)) return lacks(j, "the picture's path is expected");
    bool good = true;
    TRY(scene_check_camera(j->scene, &f, j->place, false, &good));
    if (!good) return STATUS_OK;
    if (pictures) f.image = find_picture(j, path->valuestring);
    j->scene->missing += f.image < 0;
    return scene_add_frame(j->scene, &f, &j->capacity);
}

Status scene_read_json(Scene *s, const SceneSource *source, const char *text, size_t size) {
    cJSON *root;
    JsonScene j = {.scene = s, .source = source};
    Status status = json_parse(text, size, s->camera_file, &root);
    if (status == STATUS_DATA) return scene_fault(s, "%s", status_message());
    TRY(status);
    const cJSON *frames = source->format == SCENE_LACT ? root : member(root, "frames");
    if (!cJSON_IsArray(frames)) {
        status = scene_fault(s, "%s: a list of frames is expected", s->camera_file);
    } else if (cJSON_GetArraySize(frames) == 0) {
        status = scene_fault(s, "%s: no frames", s->camera_file);
    } else {
        if (source->files != NULL)
            status = scene_folder_of(scene_file_name(source->files, source->file), &j.folder);
        int64_t position = 0;
        for (const cJSON *f = frames->child; status == STATUS_OK && f != NULL; f = f->next)
            status = read_frame(&j, f, position++);
    }
    mem_free(j.folder);
    json_free(root);
    return status;
}
