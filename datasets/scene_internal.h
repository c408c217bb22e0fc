/* How a set of scenes is put together: files -> camera files -> cameras -> pictures. Private to
 * datasets/. */
#ifndef TTV_DATASETS_SCENE_INTERNAL_H
#define TTV_DATASETS_SCENE_INTERNAL_H

#include "datasets/folder_internal.h"
#include "datasets/scene.h"
#include "datasets/tar.h"

/* ---- scene_files.c ---- */

/* A place that files come from: a folder, or an archive. */
typedef struct SceneRoot {
    char *path;
    Tar *tar; /* NULL: a folder */
} SceneRoot;

typedef struct SceneFile {
    size_t name; /* in the pool: path below the root, with slashes */
    int32_t root;
    int64_t member; /* of the tar */
} SceneFile;

typedef struct SceneFiles {
    TextPool pool;
    SceneRoot *roots;
    int64_t root_count;
    SceneFile *files; /* by root, then by name */
    int64_t count, capacity;
    int64_t limit; /* walk no further after so many files; 0: none */
} SceneFiles;

/* Every file below every root of the comma list. */
Status scene_files_open(const char *roots, int64_t limit, SceneFiles *out);
void scene_files_close(SceneFiles *f);
static inline const char *scene_file_name(const SceneFiles *f, int64_t i) {
    return f->pool.text + f->files[i].name;
}
/* Files below a folder of a root ("test/x/"): the first, and how many. */
int64_t scene_files_below(const SceneFiles *f, int32_t root, const char *folder, int64_t *first);
/* -1: no such file. */
int64_t scene_files_find(const SceneFiles *f, int32_t root, const char *name);
Status scene_files_bytes(const SceneFiles *f, int64_t i, const void **bytes, size_t *size,
                         bool *owned);
/* The bytes as text of its own, NUL-terminated (mem_free). */
Status scene_files_text(const SceneFiles *f, int64_t i, char **text, size_t *size);
const char *scene_files_shown(const SceneFiles *f, int64_t i, char *text, size_t size);

/* ---- scene.c ---- */

/* One camera file and what it says. */
typedef struct SceneSource {
    const SceneFiles *files;
    int64_t file;
    SceneFormat format;
} SceneSource;

/* Keeps a fault with the scene; STATUS_MEMORY when that fails. */
void scene_free(Scene *s);
Status scene_fault(Scene *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
Status scene_add_frame(Scene *s, const SceneFrame *frame, int64_t *capacity);
/* Focal lengths, centres, rotation; faults begin with `place`. columns: a text whose columns are
 * named. *good: no fault. */
Status scene_check_camera(Scene *s, const SceneFrame *frame, const char *place, bool columns,
                          bool *good);

/* ---- scene_match.c ---- */

/* Finds the pictures of a RealEstate10K scene below `folder` ("test/x/"): the nearest in time. */
Status scene_match_times(Scene *s, const SceneFiles *files, int32_t root, const char *folder);
bool scene_is_picture(const char *name);
/* Folder part of a file name, with its slash: "test/x.txt" gives "test/". */
Status scene_folder_of(const char *name, char **out);

/* ---- scene_text.c, scene_json.c ---- */

/* Cameras of a file; faults go to the scene. loose: cameras alone, for a path: no line 1 is needed,
 * times may repeat or descend. source->files NULL: the same, no pictures are looked for. */
Status scene_read_text(Scene *s, const char *text, size_t size, bool loose);
Status scene_read_json(Scene *s, const SceneSource *source, const char *text, size_t size);

#endif
