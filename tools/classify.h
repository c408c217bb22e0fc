/* Batches of pictures on their way through `ttv classify`. */
#ifndef TTV_TOOLS_CLASSIFY_H
#define TTV_TOOLS_CLASSIFY_H

#include "tools/classify_output.h"
#include "tools/inputs.h"

/* Section [classify]. */
typedef struct ClassifyOptions {
    char checkpoint[CONFIG_TEXT], files_from[CONFIG_TEXT], labels[CONFIG_TEXT];
    char results_file[CONFIG_TEXT];
    int64_t topk, batch, workers;
    int format, results_format; /* 0: automatic, else ResultFormat + 1 */
    int label_type, output_type, on_corrupt, exif, weights;
    bool recursive, null_separated, print_preprocess;
} ClassifyOptions;

enum { ON_CORRUPT_SKIP, ON_CORRUPT_FAIL };
enum { EXIF_APPLY, EXIF_IGNORE };

typedef struct Picture {
    char *path;
    char *error; /* NULL: decoded */
    bool is_stdin;
    int64_t width, height;
    int orientation;
} Picture;

typedef struct Classifier {
    const ClassifyOptions *options;
    Model model;
    Predictor predictor;
    Inputs *inputs;
    ResultWriter *writer;
    ImageOptions decode;
    int64_t topk;
    Picture *pictures; /* of this batch */
    int64_t count;
    uint8_t *pixels; /* [batch, S, S, 3], later packed: pictures that decoded only */
    float *logits, *scores;
    int64_t *classes;
    int64_t done, failed;
    int64_t not_finite; /* decoded, but the model gave no numbers */
} Classifier;

/* Memory for batches of options->batch; model, predictor, inputs and writer are the caller's. */
Status classifier_reserve(Classifier *c);
void classifier_free(Classifier *c);

/* The next batch: names, decoding on threads, one forward pass, results in order. A picture that
 * cannot be read gets its error line and counts as failed; STATUS_DATA at the first one when asked
 * to fail. STATUS_END behind the last name. */
Status classifier_next(Classifier *c);

#endif
