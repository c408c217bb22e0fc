/* A model ready to run: device, parameters, network, preprocessing and class names in one value;
 * and the metadata that makes a checkpoint describe itself.
 *
 * Weights files that ttv writes hold
 *   ttv.config       INI text of [model] and [preprocess], all values resolved
 *   ttv.classes      JSON array of class folder names in index order
 *   ttv.class_names  JSON array of readable names (absent when there are none)
 *   ttv.weights      raw, or ema: the moving average of the weights
 *   ttv.top1_raw, ttv.top1_ema   of the run's last validation, when it averages; "nan": none yet
 *                                (psnr_raw, psnr_ema in weights of `ttv nvs train`)
 * A file without ttv.config (an official checkpoint converted to safetensors) needs --model or -c.
 */
#ifndef TTV_TOOLS_MODEL_IO_H
#define TTV_TOOLS_MODEL_IO_H

#include "core/safetensors.h"
#include "tools/sections.h"

typedef struct Model {
    Device *device;
    DType act;             /* of activations: F32 or BF16 (--precision) */
    VitttConfig config;    /* resolved */
    Preprocess preprocess; /* image_size set from the model */
    ClassList classes;     /* count 0: unknown (foreign checkpoint); otherwise == config.classes */
    Params params;
    Vittt *vittt;
    bool training; /* weights will change */
    char *path;    /* weights file; NULL for random weights */
    bool averaged; /* the file says that it holds the moving average */
    char *name;    /* preset or "custom", for people */
} Model;

/* Of a run folder: the weights, their moving average, or (auto) the average unless the weights
 * scored higher in the validation that the file tells of. Of a single file: a check. */
typedef enum WeightsChoice { WEIGHTS_AUTO, WEIGHTS_RAW, WEIGHTS_EMA } WeightsChoice;
#define WEIGHTS_CHOICES "auto|raw|ema"
#define WEIGHTS_HELP                                                                               \
    "of a run with --model-ema: raw, their average (ema), or auto: the one with the higher "       \
    "top-1 or PSNR"
/* The path of the weights (mem_free): see checkpoint_resolve(). */
Status weights_resolve(const char *checkpoint, WeightsChoice choice, char **path);

/* Loads `checkpoint` (.safetensors, shard index, or run folder) for inference on the device of
 * --device. [model] and [preprocess] come from its metadata; keys that the user set (flags, --set,
 * -c) win. Contradicting the file's own model (another preset, shapes that do not fit) is an error
 * that names both. On failure *m is empty. */
Status model_open(Model *m, const char *checkpoint, WeightsChoice choice, const Config *user);

/* Says where weights that start another run were trained with another size of pictures or mixer. */
Status model_tell_origin(const VitttConfig *now, const SafeFile *file, const char *path);

/* A network with random weights from `seed`, described by the user's [model]; `classes` > 0
 * overrides the number of classes. training: with gradients. */
Status model_create(Model *m, const Config *user, int64_t classes, bool training, uint64_t seed);

void model_close(Model *m);

/* The images of --val-split with the model's classes; a foreign checkpoint has no list of them,
 * then the data's folders are its classes. STATUS_DATA names both numbers when they differ,
 * STATUS_USAGE asks for data where none are named. On failure the caller frees what *classes and
 * *data hold. */
Status model_open_data(const Model *m, ClassList *classes, Dataset **data);

/* Readable name of class i, else its folder name, else the number (printed into `buffer`). */
const char *model_class_name(const Model *m, int64_t i, char *buffer, size_t size);
/* Folder name of class i, else the number. */
const char *model_class_folder(const Model *m, int64_t i, char *buffer, size_t size);

/* Readable names from a file: one per line in index order, or "folder<TAB>name" lines for known
 * folders, or "index<TAB>name". The number must match config.classes (STATUS_DATA with both
 * numbers). */
Status model_read_labels(Model *m, const char *path);

/* Metadata for checkpoint_save. */
typedef struct ModelMeta {
    SafeMeta items[8];
    int64_t count;
    char *owned[8];
} ModelMeta;
Status model_meta(const Model *m, ModelMeta *out);
void model_meta_free(ModelMeta *meta);

#endif
