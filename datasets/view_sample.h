/* Which views make a sample: drawn for training, or listed by an index file for evaluation. */
#ifndef TTV_DATASETS_VIEW_SAMPLE_H
#define TTV_DATASETS_VIEW_SAMPLE_H

#include "datasets/view.h"

/* The training recipe (lact_nvs.md 7). Frames are counted as cameras of the file; those without a
 * picture are never chosen. */
typedef struct ViewRecipe {
    int64_t gap_min, gap_max; /* between the first and the last view */
    int64_t inputs, targets;
    bool clamp;      /* short scenes: gaps up to frames - 1 instead of leaving the scene out */
    bool inside;     /* targets strictly between the inputs, as LVSM draws them */
    double turn_max; /* degrees between the first and the last camera at most, so that pictures
                        overlap; 0: any. Draws beyond it are repeated */
    bool crop;       /* samples get one of VIEW_CROPS places of the crop, not the centre */
    double tint; /* colours of a sample: gamma and gains of exp(-tint) to exp(tint); 0: as stored */
    double mirror; /* probability that a sample is mirrored (lact_nvs.md 12) */
    double
        synthetic; /* share of the samples that come from synthetic scenes; 0: scenes count alike */
} ViewRecipe;
/* 25 to 192, 2 inputs, 6 targets of start..end inclusive. */
ViewRecipe view_recipe_re10k(void);
/* Degrees by which the second camera is turned against the first. */
double view_turn(const SceneFrame *a, const SceneFrame *b);
/* STATUS_USAGE when its numbers contradict each other. */
Status view_recipe_check(const ViewRecipe *r);

/* Draws training samples: sample n depends on (seed, n, attempt) and the set only. One thread at a
 * time. Inputs beyond two are spread evenly between start and end. */
typedef struct ViewSampler ViewSampler;
/* STATUS_DATA when no scene can serve the recipe. The set must outlive the sampler. */
Status view_sampler_open(const SceneSet *set, const ViewRecipe *r, uint64_t seed,
                         ViewSampler **out);
void view_sampler_close(ViewSampler *s);
/* Every usable scene comes once in view_sampler_scenes() samples, or, where the recipe says how
 * many are synthetic, as often as others of its kind. attempt > 0: a stand-in for one that failed.
 */
Status view_sampler_draw(ViewSampler *s, int64_t n, int attempt, ViewSample *out);
int64_t view_sampler_scenes(const ViewSampler *s);
int64_t view_sampler_synthetic(const ViewSampler *s); /* of them */
/* Scenes that are left out: faulty or without pictures, and too short for the recipe. */
int64_t view_sampler_unusable(const ViewSampler *s);
int64_t view_sampler_short(const ViewSampler *s);

/* ---- evaluation ---- */

typedef enum EvalState {
    EVAL_READY,
    EVAL_NULL,    /* the index says null */
    EVAL_MISSING, /* the scene, or a picture of it, is not there */
    EVAL_FAULTY,  /* its camera file has faults */
    EVAL_FAILED,  /* could not be loaded or computed: set by who evaluates */
} EvalState;
const char *eval_state_name(EvalState s);

typedef struct EvalEntry {
    char *scene;
    ViewSample sample; /* frames as listed; sample.scene after eval_index_resolve(), else -1 */
    EvalState state;
    char *reason; /* NULL when ready or null */
    int64_t line; /* of the scene in the index file; 0: from no file, or all of it is one line */
} EvalEntry;

typedef struct EvalIndex {
    EvalEntry *entries; /* in the order of the file */
    int64_t count;
    char *name; /* of the file, as in messages; NULL: from no file */
} EvalIndex;

/* pixelSplat's evaluation_index_re10k.json: {"<scene>": null | {"context": [..], "target": [..]}}.
 */
Status eval_index_read(const char *path, EvalIndex *out);
Status eval_index_parse(const char *text, size_t size, const char *name, EvalIndex *out);
/* An index of one's own: for each scene, a gap of the recipe (clamped to the scene) and `targets`
 * views spread between; depends on the seed and the scene's name, not on the other scenes. Faulty
 * and short scenes get null with a reason. */
Status eval_index_generate(const SceneSet *set, const ViewRecipe *r, uint64_t seed, EvalIndex *out);
Status eval_index_write(const EvalIndex *x, const char *path);
void eval_index_free(EvalIndex *x);

/* Looks every entry up in the set and says what becomes of it. */
Status eval_index_resolve(EvalIndex *x, const SceneSet *set);
/* Marks an entry as failed with the thread's message as its reason. */
Status eval_entry_failed(EvalEntry *e);

/* They add up to x->count. */
typedef struct EvalCounts {
    int64_t ready, null, missing, faulty, failed;
} EvalCounts;
EvalCounts eval_index_counts(const EvalIndex *x);

#endif
