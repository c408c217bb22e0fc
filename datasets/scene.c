#include "datasets/scene.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/scene_internal.h"

enum { SHOWN = 600, QUICK_FILES = 4000 };

#define ORTHONORMAL_LIMIT 1e-2 /* of |R R' - 1| */

struct SceneSet {
    SceneFiles files;
    Scene *scenes;
    int64_t count, capacity;
    int64_t camera_files, pictures; /* files that belong to a scene */
};

const char *scene_format_name(SceneFormat f) {
    static const char *const names[] = {"RealEstate10K", "LaCT", "LVSM", "LaCT-RE10K"};
    return names[f];
}

/* ---- one scene ---- */

Status scene_fault(Scene *s, const char *format, ...) {
    if (s->fault_count >= SCENE_FAULTS_KEPT) {
        s->fault_count++;
        return STATUS_OK;
    }
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    void *block = s->faults;
    TRY(mem_grow(&block, s->fault_count + 1, sizeof(char *), "faults of a scene"));
    s->faults = block;
    TRY(mem_string(&s->faults[s->fault_count], text));
    s->fault_count++;
    return STATUS_OK;
}

Status scene_add_frame(Scene *s, const SceneFrame *frame, int64_t *capacity) {
    if (s->count == *capacity) {
        void *block = s->frames;
        int64_t bigger = *capacity > 0 ? 2 * *capacity : 64;
        TRY(mem_grow(&block, bigger, sizeof(SceneFrame), "cameras of a scene"));
        s->frames = block;
        *capacity = bigger;
    }
    s->frames[s->count++] = *frame;
    return STATUS_OK;
}

/* Largest entry of |R R' - 1|, and the determinant. */
static double rotation_error(const double m[12], double *determinant) {
    double worst = 0;
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++) {
            double dot = -(double)(a == b);
            for (int k = 0; k < 3; k++) dot += m[4 * a + k] * m[4 * b + k];
            if (!(fabs(dot) <= worst)) worst = fabs(dot);
        }
    *determinant = m[0] * (m[5] * m[10] - m[6] * m[9]) - m[1] * (m[4] * m[10] - m[6] * m[8]) +
                   m[2] * (m[4] * m[9] - m[5] * m[8]);
    return worst;
}

Status scene_check_camera(Scene *s, const SceneFrame *frame, const char *place, bool columns,
                          bool *good) {
    double determinant, error = rotation_error(frame->w2c, &determinant);
    int64_t before = s->fault_count;
    bool finite = isfinite(error) && isfinite(frame->cx) && isfinite(frame->cy);
    for (int r = 0; r < 3; r++) finite = finite && isfinite(frame->w2c[4 * r + 3]);
    if (!finite) TRY(scene_fault(s, "%s: a number is not finite", place));
    if (!(frame->fx > 0))
        TRY(scene_fault(s, "%s: %sfx: the focal length is %g", place, columns ? "column 2, " : "",
                        frame->fx));
    if (!(frame->fy > 0))
        TRY(scene_fault(s, "%s: %sfy: the focal length is %g", place, columns ? "column 3, " : "",
                        frame->fy));
    const char *where = columns ? "columns 8 to 18, " : "";
    if (error > ORTHONORMAL_LIMIT)
        TRY(scene_fault(s, "%s: %sr11 to r33: no rotation: not orthonormal by %.3g (at most %g)",
                        place, where, error, ORTHONORMAL_LIMIT));
    else if (determinant < 0)
        TRY(scene_fault(s, "%s: %sr11 to r33: no rotation: it mirrors", place, where));
    *good = *good && s->fault_count == before;
    return STATUS_OK;
}

void scene_free(Scene *s) {
    int64_t kept = s->fault_count < SCENE_FAULTS_KEPT ? s->fault_count : SCENE_FAULTS_KEPT;
    for (int64_t i = 0; i < kept; i++) mem_free(s->faults[i]);
    mem_free(s->faults);
    mem_free(s->frames);
    mem_free(s->name);
    mem_free(s->split);
    mem_free(s->camera_file);
    mem_free(s->url);
    *s = (Scene){0};
}

bool scene_usable(const Scene *s) {
    return s->fault_count == 0 && s->count - s->missing >= 2;
}

bool scene_synthetic(const Scene *s) {
    return strncmp(s->url, "synthetic:", 10) == 0;
}

const char *scene_reason(const Scene *s, char *text, size_t size) {
    int64_t pictures = s->count - s->missing;
    text[0] = '\0';
    if (s->fault_count > 0)
        snprintf(text, size, "%s", s->faults[0]);
    else if (s->count == 1)
        snprintf(text, size, "%s: only one camera", s->camera_file);
    else if (pictures < 2)
        snprintf(text, size, "%s: %s (%lld cameras)", s->camera_file,
                 pictures == 0 ? "no pictures" : "only one picture", (long long)s->count);
    return text;
}

/* ---- which files are scenes ---- */

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static const char *base_of(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

/* "0123456789abcdef.txt" */
static bool is_hex_text(const char *base) {
    int n = 0;
    while (isxdigit((unsigned char)base[n])) n++;
    return n == 16 && strcmp(base + n, ".txt") == 0;
}

/* A text of another name counts when pictures lie in a folder of its name. */
static bool has_pictures(const SceneFiles *f, int64_t i) {
    char folder[2048];
    const char *name = scene_file_name(f, i);
    int64_t first;
    int n = snprintf(folder, sizeof folder, "%.*s/", (int)strlen(name) - 4, name);
    if (n < 0 || (size_t)n >= sizeof folder) return false;
    int64_t count = scene_files_below(f, f->files[i].root, folder, &first);
    for (int64_t k = first; k < first + count; k++)
        if (scene_is_picture(scene_file_name(f, k))) return true;
    return false;
}

static bool in_folder(const char *name, const char *folder) {
    const char *slash = strrchr(name, '/');
    size_t n = strlen(folder);
    if (slash == NULL || (size_t)(slash - name) < n || strncmp(slash - n, folder, n) != 0)
        return false;
    return slash - n == name || slash[-(ptrdiff_t)n - 1] == '/';
}

static bool is_camera_file(const SceneFiles *f, int64_t i, SceneFormat *format) {
    const char *name = scene_file_name(f, i), *base = base_of(name);
    *format = SCENE_RE10K;
    if (ends_with(base, ".txt")) return is_hex_text(base) || has_pictures(f, i);
    *format = SCENE_LACT;
    if (strcmp(base, "opencv_cameras.json") == 0) return true;
    *format = SCENE_INFO;
    if (strcmp(base, "scene_info.json") == 0) return true;
    *format = SCENE_LVSM;
    return ends_with(base, ".json") && in_folder(name, "metadata");
}

/* Last folder of a path that ends before `end`. */
static Status folder_word(const char *path, size_t end, char **out) {
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    return mem_string_n(out, path + begin, end - begin);
}

/* Scene and split as the path says: <split>/<scene>.txt, <split>/<scene>/<cameras>.json,
 * <split>/metadata/<scene>.json. A root that is the split's folder gives its own name. */
static Status name_scene(Scene *s, const SceneFiles *f, int64_t i) {
    const char *name = scene_file_name(f, i), *base = base_of(name);
    const char *root = f->roots[f->files[i].root].path;
    size_t length = strlen(root), folder = base > name ? (size_t)(base - name) - 1 : 0;
    while (length > 1 && root[length - 1] == '/') length--;
    if (s->format == SCENE_RE10K || s->format == SCENE_LVSM) {
        TRY(mem_string_n(&s->name, base, (size_t)(strrchr(base, '.') - base)));
    } else if (folder > 0) {
        TRY(folder_word(name, folder, &s->name));
    } else {
        TRY(folder_word(root, length, &s->name));
    }
    if (s->format != SCENE_RE10K) { /* one folder up */
        while (folder > 0 && name[folder - 1] != '/') folder--;
        if (folder > 0) folder--;
    }
    if (folder > 0) return folder_word(name, folder, &s->split);
    bool is_tar = f->roots[f->files[i].root].tar != NULL;
    return is_tar ? mem_string(&s->split, "") : folder_word(root, length, &s->split);
}

static Status read_cameras(Scene *s, const SceneFiles *f, int64_t i) {
    char *text;
    size_t size;
    SceneSource source = {f, i, s->format};
    Status status = scene_files_text(f, i, &text, &size);
    if (status == STATUS_DATA || status == STATUS_IO) return scene_fault(s, "%s", status_message());
    TRY(status);
    status = s->format == SCENE_RE10K ? scene_read_text(s, text, size, false)
                                      : scene_read_json(s, &source, text, size);
    mem_free(text);
    if (status != STATUS_OK || s->format != SCENE_RE10K) return status;
    char *folder;
    const char *name = scene_file_name(f, i);
    size_t stem = strlen(name) - strlen(".txt");
    TRY(mem_string(&folder, name));
    folder[stem] = '/';
    folder[stem + 1] = '\0';
    status = scene_match_times(s, f, f->files[i].root, folder);
    mem_free(folder);
    return status;
}

static Status read_scene(Scene *s, const SceneFiles *f, int64_t i) {
    char shown[SHOWN];
    TRY(mem_string(&s->camera_file, scene_files_shown(f, i, shown, sizeof shown)));
    TRY(mem_string(&s->url, ""));
    return read_cameras(s, f, i);
}

static Status add_scene(SceneSet *set, int64_t i, SceneFormat format, const char *split) {
    Scene s = {.format = format};
    Status status = name_scene(&s, &set->files, i);
    bool wanted = split == NULL || *split == '\0';
    if (status == STATUS_OK) wanted = wanted || strcmp(s.split, split) == 0;
    if (status == STATUS_OK && wanted && set->count == set->capacity) {
        void *block = set->scenes;
        int64_t bigger = set->capacity > 0 ? 2 * set->capacity : 64;
        status = mem_grow(&block, bigger, sizeof(Scene), "list of scenes");
        if (status == STATUS_OK) {
            set->scenes = block;
            set->capacity = bigger;
        }
    }
    set->camera_files++;
    if (status == STATUS_OK && wanted) status = read_scene(&s, &set->files, i);
    if (status != STATUS_OK || !wanted) {
        scene_free(&s);
        return status;
    }
    set->pictures += s.count - s.missing + s.extra;
    set->scenes[set->count++] = s;
    return STATUS_OK;
}

/* ---- the set ---- */

static int by_name(const void *a, const void *b) {
    const Scene *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    if (order == 0) order = strcmp(x->split, y->split);
    return order != 0 ? order : strcmp(x->camera_file, y->camera_file);
}

static Status check_set(const SceneSet *s, const char *roots, const char *split) {
    char shown[SHOWN];
    text_printable(roots, shown, sizeof shown);
    if (s->count == 0 && s->camera_files > 0)
        return status_set(STATUS_DATA, "%s: none of its %lld scenes is of split '%s'", shown,
                          (long long)s->camera_files, split);
    if (s->count == 0)
        return status_set(STATUS_DATA,
                          "%s: no scenes: <split>/<scene>.txt, <scene>/opencv_cameras.json, "
                          "<scene>/scene_info.json or metadata/<scene>.json is expected",
                          shown);
    for (int64_t i = 1; i < s->count; i++) {
        const Scene *a = &s->scenes[i - 1], *b = &s->scenes[i];
        if (strcmp(a->name, b->name) == 0 && strcmp(a->split, b->split) == 0)
            return status_set(STATUS_DATA, "the same scene twice: %s and %s", a->camera_file,
                              b->camera_file);
    }
    return STATUS_OK;
}

static Status fill_set(SceneSet *s, const char *roots, const char *split) {
    SceneFormat format;
    TRY(scene_files_open(roots, 0, &s->files));
    for (int64_t i = 0; i < s->files.count; i++)
        if (is_camera_file(&s->files, i, &format)) TRY(add_scene(s, i, format, split));
    if (s->count > 1) qsort(s->scenes, (size_t)s->count, sizeof(Scene), by_name);
    return check_set(s, roots, split);
}

Status scene_set_open(const char *roots, const char *split, SceneSet **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(SceneSet), "set of scenes"));
    Status s = fill_set(block, roots, split);
    if (s != STATUS_OK) {
        scene_set_close(block);
        return s;
    }
    *out = block;
    return STATUS_OK;
}

void scene_set_close(SceneSet *s) {
    if (s == NULL) return;
    for (int64_t i = 0; i < s->count; i++) scene_free(&s->scenes[i]);
    mem_free(s->scenes);
    scene_files_close(&s->files);
    mem_free(s);
}

int64_t scene_set_count(const SceneSet *s) {
    return s->count;
}

const Scene *scene_set_at(const SceneSet *s, int64_t i) {
    return &s->scenes[i];
}

int64_t scene_set_find(const SceneSet *s, const char *name) {
    int64_t low = 0, high = s->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(s->scenes[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->count && strcmp(s->scenes[low].name, name) == 0 ? low : -1;
}

int64_t scene_set_other_files(const SceneSet *s) {
    int64_t others = s->files.count - s->camera_files - s->pictures;
    return others > 0 ? others : 0;
}

Status scene_root(const char *root, bool *found) {
    SceneFiles files;
    SceneFormat format;
    *found = false;
    Status s = scene_files_open(root, QUICK_FILES, &files);
    if (s != STATUS_OK) return s == STATUS_MEMORY ? s : STATUS_OK;
    for (int64_t i = 0; i < files.count && !*found; i++)
        *found = is_camera_file(&files, i, &format);
    scene_files_close(&files);
    return STATUS_OK;
}

const char *scene_frame_name(const SceneSet *s, int64_t scene, int64_t frame, char *text,
                             size_t size) {
    const Scene *one = &s->scenes[scene];
    const SceneFrame *f = &one->frames[frame];
    if (f->image >= 0) return scene_files_shown(&s->files, f->image, text, size);
    snprintf(text, size, "%s:%lld", one->camera_file, (long long)f->line);
    return text;
}

Status scene_bytes(const SceneSet *s, int64_t scene, int64_t frame, const void **bytes,
                   size_t *size, bool *owned) {
    const Scene *one = &s->scenes[scene];
    if (frame < 0 || frame >= one->count)
        return status_set(STATUS_DATA, "scene %s has no frame %lld: it has %lld", one->name,
                          (long long)frame, (long long)one->count);
    const SceneFrame *f = &one->frames[frame];
    if (f->image >= 0) return scene_files_bytes(&s->files, f->image, bytes, size, owned);
    return status_set(STATUS_DATA, "%s:%lld: frame %lld has no picture (time %lld us)",
                      one->camera_file, (long long)f->line, (long long)frame, (long long)f->time);
}
