/* Per-image predictions of `ttv eval --results-file`: RFC 4180, written completely or not at all.
 */
#ifndef TTV_TOOLS_RESULTS_CSV_H
#define TTV_TOOLS_RESULTS_CSV_H

#include "datasets/loader.h"

typedef struct ResultsCsv ResultsCsv;

Status results_csv_open(const char *path, ResultsCsv **out);
/* Rows "index,path,label,class,prediction,predicted_class,probability,rank,loss"; a sample that
 * could not be decoded has empty fields behind its class. Errors are sticky until commit. */
void results_csv_batch(ResultsCsv *r, const Dataset *d, const ClassList *classes,
                       const HostBatch *b, const float *logits);
Status results_csv_commit(ResultsCsv *r); /* frees r in every case */
void results_csv_abort(ResultsCsv *r);    /* NULL is allowed */

#endif
