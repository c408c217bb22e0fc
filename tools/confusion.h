/* Which class was taken for which: counts, and what they look like as a table and as a picture. */
#ifndef TTV_TOOLS_CONFUSION_H
#define TTV_TOOLS_CONFUSION_H

#include "datasets/folder.h"
#include "datasets/loader.h"

typedef struct Confusion {
    int64_t classes;
    int64_t *counts; /* [truth, prediction]; NULL before confusion_init */
} Confusion;

Status confusion_init(Confusion *c, int64_t classes);
void confusion_free(Confusion *c);
/* Counts the valid samples of a batch; logits [count, classes]. Nothing before confusion_init. */
void confusion_add(Confusion *c, const HostBatch *b, const float *logits);

/* Mean over the classes that have samples of their share of right predictions; NaN without any. */
double confusion_balanced(const Confusion *c);

/* CSV, one row a class: class, name, images, correct, accuracy, predicted, precision,
 * most_confused, most_confused_count. A class without images has no accuracy, one that was never
 * predicted no precision. */
Status confusion_write_csv(const Confusion *c, const ClassList *names, const char *path);
/* PNG: rows are true classes, columns predictions, darkness the share of the row. */
Status confusion_write_png(const Confusion *c, const ClassList *names, const char *path);

#endif
