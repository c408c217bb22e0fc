/* `ttv ttt probe`: what a trained model does when its inner loop is changed at evaluation, and how
 * its queries, keys, values and outputs are distributed (fastweight.md 10). The checkpoint is never
 * changed.
 *
 * A Subject is what differs between classifiers (probe_classifier.c) and novel-view models
 * (probe_nvs.c); the rest is the same for both.
 */
#ifndef TTV_TOOLS_PROBE_H
#define TTV_TOOLS_PROBE_H

#include "tools/bootstrap.h"
#include "tools/fast_layer.h"
#include "tools/nvs_options.h"
#include "tools/sections.h"

typedef enum ProbeUnit { UNIT_IMAGE, UNIT_SCENE } ProbeUnit;

typedef struct ProbeOptions {
    char checkpoint[CONFIG_TEXT], output[CONFIG_TEXT], list[CONFIG_TEXT], split[CONFIG_TEXT];
    int weights;
    int64_t pictures; /* of the inner loss and of the distributions; scenes of novel views */
    int64_t vectors;  /* at most, per layer and kind, of the distributions */
    int64_t shuffles, seed, resamples, scenes;
    int unit; /* ProbeUnit */
    bool per_layer;
    bool tsne;
    NvsIndex views;
} ProbeOptions;

enum { PROBE_METRICS = 2 };
typedef struct Probe Probe;

typedef struct Subject {
    const char *metrics[PROBE_METRICS]; /* the first one leads: more is better */
    const char *samples;                /* what a sample is: "images", "views" */
    /* All samples with the layers as they are now: p->values[metric][sample], p->samples of them,
     * and p->groups where there are scenes. The first call counts and allocates. */
    Status (*score)(Probe *p);
    /* Runs kept input i (of p->kept, known after the first score) with p->layers traced. */
    Status (*trace)(Probe *p, int64_t i);
    /* Other queries in every softmax attention; NULL: as it is. The member is NULL where a model
     * has no attention. */
    void (*attention)(Probe *p, const QuerySwap *swap);
    void (*close)(Probe *p);
} Subject;

/* What is changed in the layers. */
typedef enum Ascent { ASCENT_NONE, ASCENT_MAIN = 1, ASCENT_DEPTHWISE = 2 } Ascent;
typedef struct ProbeSetting {
    int64_t steps; /* inner steps; 0: the model's own */
    int ascent;    /* bits of Ascent, against the model's own direction */
    QueryKind query;
    bool attention; /* `query` is of the softmax attention instead */
    int64_t layer;  /* -1: all */
} ProbeSetting;

/* A layer's own rules. */
typedef struct LayerRules {
    VitttVariant vittt;
    LactVariant lact;
    int64_t lact_steps;
    GraphRule graph;
} LayerRules;

struct Probe {
    const ProbeOptions *options;
    const Subject *subject;
    void *state; /* the subject's */
    Device *device;
    FastLayer *layers;
    LayerRules *own;
    QuerySwap *swaps; /* one of each layer */
    int64_t depth, samples, kept;
    double *values[PROBE_METRICS];
    int64_t *groups;
};

/* Opens the checkpoint as what it is. STATUS_USAGE without data. probe_close() also after a
 * failure.
 */
Status probe_open(Probe *p, const ProbeOptions *o, Config *config);
void probe_close(Probe *p);
Status probe_classifier(Probe *p, Config *config);
Status probe_nvs(Probe *p, Config *config);

/* The layers as the model has them, then changed. */
void probe_set(Probe *p, const ProbeSetting *s);
void probe_trace(Probe *p, bool on);

/* One row of a sweep. */
typedef struct ProbeRow {
    char setting[64];
    double value; /* what was swept */
    int64_t samples;
    Interval metric[PROBE_METRICS], difference[PROBE_METRICS]; /* to the first row */
    InnerLoop inner;                                           /* mean over layers */
    InnerLoop *layers;                                         /* of each; means over inputs */
} ProbeRow;

enum { PROBE_ROWS = 256 };
typedef struct ProbeTable {
    ProbeRow rows[PROBE_ROWS];
    int count;
    double *base[PROBE_METRICS]; /* the first row's values */
} ProbeTable;
void probe_table_free(ProbeTable *t);

/* Scores the setting and its inner losses into a new row. */
Status probe_measure(Probe *p, ProbeTable *t, const char *name, double value,
                     const ProbeSetting *s);

/* The modes; each writes its files and fills the table, whose first row is the model as it is. */
Status probe_steps(Probe *p, ProbeTable *t);
Status probe_ascent(Probe *p, ProbeTable *t);
Status probe_swap(Probe *p, ProbeTable *t);
Status probe_distributions(Probe *p, ProbeTable *t); /* the table stays empty */

/* ---- probe_report.c ---- */

/* <output>/<name>.csv and <name>_layers.csv, and plots of every metric: over the swept value with
 * `x_name`, else row by row. */
Status probe_write(const Probe *p, const ProbeTable *t, const char *name, const char *x_name);
/* <output>/<leaf> (mem_free). */
Status probe_path(const Probe *p, const char *leaf, char **out);

/* How metric and inner loss follow the swept value, from the second row on. */
typedef struct ProbeTrend {
    double metric, inner; /* rank correlations */
    bool paradox;         /* the inner loss falls while the metric does */
    double drop_at;       /* first value where the metric is 1 % below the first row's; NaN: none */
} ProbeTrend;
ProbeTrend probe_trend(const ProbeTable *t);
/* Spearman's rank correlation; NaN for fewer than two values or constant ones. */
double rank_correlation(const double *x, const double *y, int64_t n);

#endif
