/* The parts of `ttv inspect`: numbers of a tensor, which network a set of tensors is, and the
 * report. */
#ifndef TTV_TOOLS_INSPECT_H
#define TTV_TOOLS_INSPECT_H

#include "core/json.h"
#include "core/safetensors.h"
#include "tools/findings.h"
#include "vision/vittt.h"

/* Over the finite values; all zero when there is none. */
typedef struct TensorStats {
    double min, max, mean, std;
    int64_t count, nonfinite;
} TensorStats;
TensorStats tensor_stats(const SafeEntry *e);

/* Value i, whatever the dtype; the tensor may be unaligned in its file. */
double entry_value(const SafeEntry *e, int64_t i);

typedef enum ModelKind {
    MODEL_UNKNOWN,
    MODEL_VITTT,        /* plain ViTTT: `config` holds what the shapes say */
    MODEL_HIERARCHICAL, /* H-ViTTT: the same, unless config.depth is 0: then shapes are missing */
    MODEL_SEQUENCE,     /* a ViTTT whose blocks mix by LaCT or a graph */
    MODEL_NVS,          /* LaCT-NVS */
    MODEL_STATE,        /* optimiser state of a run */
    MODEL_SCENE,        /* fast weights of a scene (nvs/lact_scene.h) */
} ModelKind;

typedef struct Recognised {
    ModelKind kind;
    VitttConfig config; /* image_size 0: weights do not tell (those of an H-ViTTT do) */
} Recognised;
/* From names and shapes; a scene says what it is. */
Recognised recognise(const SafeFile *f);

/* "ViTTT-T", "ViTTT-S", "ViTTT-B", "custom ViTTT", ... */
const char *recognised_name(const Recognised *r);

/* Sizes of a hierarchical ViTTT from its shapes; depth 0 when they do not make one. */
void recognise_stages(const SafeFile *f, VitttConfig *c);

/* Compares the file with the tensors that the recognised model must have, one by one: a finding for
 * each that is missing, unknown or of another shape. *compared: the model is known well enough,
 * by its shapes or by what the file says of itself (ttv.config). */
Status recognised_check(const Recognised *r, const SafeFile *f, Findings *faults, bool *compared);

/* What was found in one checkpoint. */
typedef struct Inspection {
    const char *path; /* as given */
    char *weights;    /* resolved weights file; NULL: none could be opened */
    bool run_folder;
    SafeFile *file;     /* NULL: none */
    TensorStats *stats; /* one per tensor, or NULL when neither --stats nor --verify asks */
    Recognised model;
    int64_t parameters, bytes, nonfinite;
    Findings faults; /* of --verify */
    bool verified;
    bool compared; /* with the tensors of the model */
} Inspection;

void inspection_print(const Inspection *i, bool tensors, bool stats);
/* One JSON object. */
Status inspection_json(const Inspection *i, bool tensors, bool stats, JsonWriter *w);

bool entry_same_shape(const SafeEntry *a, const SafeEntry *b);
/* Shape of an entry as "[2, 3]". */
char *entry_shape_text(const SafeEntry *e, char *text, size_t size);

#endif
