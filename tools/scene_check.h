/* `ttv data check` on posed scenes: cameras, pictures, poses. */
#ifndef TTV_TOOLS_SCENE_CHECK_H
#define TTV_TOOLS_SCENE_CHECK_H

#include "tools/findings.h"
#include "tools/scene_pose.h"

typedef struct SceneCheckOptions {
    const char *split;    /* "": all */
    const char *scene;    /* of the epipolar picture; "": the first usable one */
    const char *pair;     /* "A,B": its frame numbers; "": a pair in the middle */
    const char *epipolar; /* where to write it; "": nowhere */
    int threads;
    int64_t list; /* faults in the text report */
} SceneCheckOptions;

/* What was found out about one scene. */
typedef struct SceneReport {
    int64_t corrupt, bytes;
    int64_t width, height; /* of its first picture */
    int64_t other_sizes;   /* pictures of another size */
    int64_t other_frame;   /* the first of them */
    double travel, turn;   /* of the camera from first to last: distance, degrees */
    bool still;            /* all cameras at one place */
    PoseCheck pose;
    char **errors; /* one per frame, NULL: it decodes or is missing */
} SceneReport;

typedef struct SceneCheck {
    const char *root;
    SceneSet *set;
    SceneReport *reports;
    int64_t cameras, pictures, missing, extra, corrupt, bytes, unusable;
    int64_t fits, inverted, open; /* verdicts over the usable scenes */
    int64_t still;
    Findings faults;
} SceneCheck;

/* The whole command; the exit code. */
int scene_check_run(const char *root, const SceneCheckOptions *o);

/* scene_report.c */
void scene_check_print(const SceneCheck *c, int64_t most);
Status scene_check_json(const SceneCheck *c, JsonWriter *w);

#endif
