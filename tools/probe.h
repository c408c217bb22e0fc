/* `ttv ttt probe`: what a trained classifier does when its inner loop is changed at evaluation, and
 * how its queries, keys, values and outputs are distributed (fastweight.md 10). The checkpoint is
 * never changed.
 */
#ifndef TTV_TOOLS_PROBE_H
#define TTV_TOOLS_PROBE_H

#include "tools/train_task.h"
#include "tools/verify.h"

typedef struct ProbeOptions {
    char checkpoint[CONFIG_TEXT], output[CONFIG_TEXT], list[CONFIG_TEXT];
    int weights;
    int64_t pictures; /* of the inner loss and of the distributions */
    int64_t vectors;  /* at most, per layer and kind, of the distributions */
    int64_t shuffles, seed;
    bool per_layer;
    bool tsne;
} ProbeOptions;

/* A model with data, and pictures that were kept from its first pass. */
typedef struct Probe {
    const ProbeOptions *options;
    Model model;
    ClassList classes;
    Dataset *data;
    Predictor predictor;
    Verifier *verifier;
    float *logits;
    uint8_t *pictures; /* [kept, S, S, 3] */
    int64_t kept;
    VitttVariant base; /* the model's own */
} Probe;

Status probe_open(Probe *p, const ProbeOptions *o, Config *config);
void probe_close(Probe *p);
/* All images of the split with the mixers as they are set now. */
Status probe_score(Probe *p, Score *out);
/* The variant in every layer, or in one. */
void probe_set(Probe *p, VitttVariant v, int64_t layer); /* layer -1: all */

/* One row of a sweep. */
typedef struct ProbeRow {
    char setting[48];
    double value; /* what was swept */
    Score score;
    double loss[2], alignment[2], moved; /* means over layers, heads and pictures */
} ProbeRow;

enum { PROBE_ROWS = 256 };
typedef struct ProbeTable {
    ProbeRow rows[PROBE_ROWS];
    int count;
} ProbeTable;

/* Scores the present setting and the inner losses of the kept pictures into a new row. */
Status probe_measure(Probe *p, ProbeTable *t, const char *setting, double value);
/* <output>/<name>.csv. */
Status probe_write_csv(const Probe *p, const ProbeTable *t, const char *name);

/* The modes; each writes its files and fills the table, whose first row is the model as it is. */
Status probe_steps(Probe *p, ProbeTable *t);
Status probe_ascent(Probe *p, ProbeTable *t);
Status probe_swap(Probe *p, ProbeTable *t);
Status probe_distributions(Probe *p);

/* Spearman's rank correlation; NaN for fewer than two values or constant ones. */
double rank_correlation(const double *x, const double *y, int64_t n);

#endif
