/* Posed picture sequences for view synthesis: which scenes there are, their cameras, their frames.
 *
 * Read in place, from folders and from tar files:
 *   RealEstate10K  <split>/<scene>.txt with <split>/<scene>/<timestamp>.{png,jpg}
 *   LaCT           <scene>/opencv_cameras.json
 *   LVSM           metadata/<scene>.json with images/<scene>/
 *   LaCT-RE10K     <split>/<scene>/scene_info.json
 *
 * Cameras look along +z, x to the right, y down (OpenCV); a matrix maps world to camera. A camera
 * file with faults makes its scene unusable, not the set: the faults are kept with the scene, with
 * file, line and column. A frame without a picture is normal and counted.
 */
#ifndef TTV_DATASETS_SCENE_H
#define TTV_DATASETS_SCENE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    SCENE_FAULTS_KEPT = 20,
    SCENE_MATCH_US = 8000, /* a picture belongs to a camera at most this many microseconds away */
};

typedef enum SceneFormat { SCENE_RE10K, SCENE_LACT, SCENE_LVSM, SCENE_INFO } SceneFormat;
const char *scene_format_name(SceneFormat f);

typedef struct SceneFrame {
    int64_t time;  /* microseconds; the position in the list for the JSON forms */
    int64_t line;  /* in the camera file; the position for the JSON forms */
    int64_t image; /* file number in the set; -1: the picture is missing */
    int64_t late;  /* picture's time minus camera's time, microseconds */
    double fx, fy, cx, cy;
    double width, height; /* size that fx..cy are measured in: 1 x 1 when they are normalised;
                             0 x 0: the picture's own */
    double w2c[12];       /* 3x4, row by row */
} SceneFrame;

typedef struct Scene {
    char *name;        /* "6d6f746f72637963" */
    char *split;       /* "train", "test", "" */
    char *camera_file; /* printable, for messages */
    char *url;         /* line 1 of a RealEstate10K text; "" otherwise */
    SceneFormat format;
    SceneFrame *frames; /* every camera, in the order of the file: index numbers count these */
    int64_t count;
    int64_t missing; /* cameras without a picture */
    int64_t extra;   /* pictures of the scene without a camera */
    char **faults;   /* the first SCENE_FAULTS_KEPT messages */
    int64_t fault_count;
} Scene;

/* No faults, and two pictures or more. */
bool scene_usable(const Scene *s);
/* Line 1 of its camera file says so (synth.h). */
bool scene_synthetic(const Scene *s);
/* Why it is not: the first fault, "no pictures (279 cameras)", "only one picture"; "" when it is.
 */
const char *scene_reason(const Scene *s, char *text, size_t size);

typedef struct SceneSet SceneSet;

/* roots: a folder, a tar file, or a comma list of them; tar files directly in a folder are opened
 * too. split NULL or "": all. Scenes come in byte order of their names. STATUS_DATA when there is
 * no camera file at all, or one name twice in a split. */
Status scene_set_open(const char *roots, const char *split, SceneSet **out);
void scene_set_close(SceneSet *s);
int64_t scene_set_count(const SceneSet *s);
const Scene *scene_set_at(const SceneSet *s, int64_t i);
/* Number of a scene by name; -1: unknown. The first when several splits have it. */
int64_t scene_set_find(const SceneSet *s, const char *name);
int64_t scene_set_other_files(const SceneSet *s); /* neither cameras nor pictures of a scene */

/* Whether there are camera files below `root`: a quick look at the first few thousand names. What
 * cannot be opened holds none; only STATUS_MEMORY is an error. */
Status scene_root(const char *root, bool *found);

/* Cameras alone, as a path to render (mem_free): lines of a RealEstate10K text, with or without its
 * line 1, times in any order; or JSON in one of the forms above, whose pictures need not be there.
 * STATUS_DATA tells the first fault with file and line. */
Status scene_cameras_read(const char *path, SceneFrame **frames, int64_t *count);

/* Bytes of a frame's picture; *owned: mem_free them. STATUS_DATA when it is missing. Thread-safe.
 */
Status scene_bytes(const SceneSet *s, int64_t scene, int64_t frame, const void **bytes,
                   size_t *size, bool *owned);
/* Printable name of a frame's picture: "root.tar:test/x/0.jpg"; of the camera line when there is
 * none. */
const char *scene_frame_name(const SceneSet *s, int64_t scene, int64_t frame, char *text,
                             size_t size);

#endif
