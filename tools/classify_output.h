/* What `ttv classify` writes: one block, CSV row or JSON object per picture, in input order.
 *
 * CSV follows RFC 4180 and keeps the bytes of names. JSON lines are valid for any name: bytes that
 * are no UTF-8 are replaced, and "path_bytes" holds the whole name in hexadecimal.
 */
#ifndef TTV_TOOLS_CLASSIFY_OUTPUT_H
#define TTV_TOOLS_CLASSIFY_OUTPUT_H

#include "tools/predict.h"

typedef enum ResultFormat { FORMAT_TEXT, FORMAT_CSV, FORMAT_JSONL, FORMAT_JSON } ResultFormat;
typedef enum LabelType { LABEL_NAME, LABEL_INDEX, LABEL_BOTH } LabelType;

typedef struct ResultStyle {
    ResultFormat format;
    LabelType labels; /* machine formats always hold the index; LABEL_INDEX leaves out the name */
    bool logits;      /* scores as the model gives them, not probabilities */
    int64_t topk;
} ResultStyle;

typedef struct ResultRow {
    const char *path;
    const char *error; /* not NULL: nothing below counts */
    int64_t width, height;
    int orientation;        /* EXIF, as found in the file */
    const int64_t *classes; /* topk, best first */
    const float *scores;
} ResultRow;

typedef struct ResultWriter ResultWriter;

/* `file`: where the results go, completely or not at all; "" or "-": standard output. `model` names
 * classes and must outlive the writer. */
Status results_open(const ResultStyle *style, const char *file, const Model *model,
                    ResultWriter **out);
Status results_row(ResultWriter *w, const ResultRow *row);
Status results_commit(ResultWriter *w); /* frees w in every case */
void results_abort(ResultWriter *w);    /* NULL is allowed */

#endif
