/* A camera file on its own, as a path that somebody wants rendered. */
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/scene_internal.h"

enum { MAX_BYTES = 1 << 28 };

/* JSON begins with a bracket. A list is LaCT's form; of the objects LVSM's has fxfycxcy. */
static bool is_json(const char *text, SceneFormat *format) {
    const char *at = text + strspn(text, " \t\r\n");
    *format = *at == '[' ? SCENE_LACT : SCENE_LVSM;
    if (*at == '{' && strstr(at, "\"fxfycxcy\"") == NULL) *format = SCENE_INFO;
    return *at == '[' || *at == '{';
}

static Status read_cameras(Scene *s, const char *text, size_t size) {
    SceneSource source = {NULL, 0, SCENE_RE10K};
    if (!is_json(text, &source.format)) return scene_read_text(s, text, size, true);
    s->format = source.format;
    return scene_read_json(s, &source, text, size);
}

Status scene_cameras_read(const char *path, SceneFrame **frames, int64_t *count) {
    Scene s = {.format = SCENE_RE10K};
    char shown[600], *text;
    size_t size;
    *frames = NULL;
    *count = 0;
    TRY(file_read(path, MAX_BYTES, &text, &size));
    Status status = mem_string(&s.camera_file, text_printable(path, shown, sizeof shown));
    if (status == STATUS_OK) status = read_cameras(&s, text, size);
    mem_free(text);
    if (status == STATUS_OK && s.fault_count > 1)
        status = status_set(STATUS_DATA, "%s (and %lld more faults)", s.faults[0],
                            (long long)s.fault_count - 1);
    if (status == STATUS_OK && s.fault_count == 1)
        status = status_set(STATUS_DATA, "%s", s.faults[0]);
    if (status == STATUS_OK) {
        *frames = s.frames;
        *count = s.count;
        s.frames = NULL;
    }
    scene_free(&s);
    return status;
}
