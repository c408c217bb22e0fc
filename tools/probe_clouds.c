/* Distributions of queries, keys, values and outputs, layer by layer (fastweight.md 10.3). */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/rng.h"
#include "tools/cli.h"
#include "tools/plot.h"
#include "tools/probe.h"
#include "ttt/tsne.h"
#include "ttt/distance.h"

/* What is compared in one layer; HALVES: two random halves of the keys, as the reference of what
 * equals. */
typedef struct Pair {
    const char *name;
    int a, b;
} Pair;
enum { HALVES = -1, KINDS = 6, PAIRS = 4 };
static const Pair pairs[PAIRS] = {{"q_k", VECTOR_QUERY, VECTOR_KEY},
                                  {"v_o", VECTOR_VALUE, VECTOR_OUTPUT},
                                  {"k_k", VECTOR_KEY, HALVES},
                                  {"qhat_khat", VECTOR_READ_FEATURE, VECTOR_WRITE_FEATURE}};
static const char *const kind_names[KINDS] = {
    "queries", "keys", "values", "outputs", "features of queries", "features of keys"};

/* Those that the model's layers have; features are the last. */
static int pairs_of(const Probe *p) {
    return fast_layer_has_features(&p->layers[0]) ? PAIRS : PAIRS - 1;
}
static int kinds_of(const Probe *p) {
    return fast_layer_has_features(&p->layers[0]) ? KINDS : KINDS - 2;
}

typedef struct Cloud {
    double *x; /* [n, d] */
    int64_t n, d;
    int64_t all; /* vectors that these were taken from */
} Cloud;

/* All clouds of a layer, and the mean cosine of tokens' queries and keys. */
typedef struct LayerClouds {
    Cloud kinds[KINDS];
    double cosine;
} LayerClouds;

/* Rows of the last pass, thinned at a regular distance, so that all inputs together give
 * options->vectors at most. */
static Status gather(Probe *p, int64_t layer, VectorKind kind, Cloud *out) {
    const int64_t each = p->options->vectors / p->kept > 0 ? p->options->vectors / p->kept : 1;
    double *rows = NULL;
    int64_t n = 0, d = 0;
    TRY(fast_layer_vectors(p->device, &p->layers[layer], kind, &rows, &n, &d));
    Status s = STATUS_OK;
    if (!out->x) s = mem_alloc((void **)&out->x, p->kept * each * d, sizeof *out->x, "vectors");
    out->d = d;
    out->all += n;
    const int64_t take = each < n ? each : n;
    for (int64_t j = 0; s == STATUS_OK && j < take; j++)
        memcpy(out->x + (out->n++) * d, rows + j * n / take * d, (size_t)d * sizeof *rows);
    mem_free(rows);
    return s;
}

static Status gather_all(Probe *p, LayerClouds *layers) {
    probe_trace(p, true);
    for (int64_t i = 0; i < p->kept; i++) {
        TRY(p->subject->trace(p, i));
        for (int64_t l = 0; l < p->depth; l++) {
            double cosine;
            for (int kind = 0; kind < kinds_of(p); kind++)
                TRY(gather(p, l, (VectorKind)kind, &layers[l].kinds[kind]));
            TRY(fast_layer_cosine(p->device, &p->layers[l], &cosine));
            layers[l].cosine += cosine / (double)p->kept;
        }
        progress_line(5, "input %lld of %lld", (long long)i + 1, (long long)p->kept);
    }
    probe_trace(p, false);
    return STATUS_OK;
}

/* A random half in front, the other behind. */
static void shuffle(Cloud *c, uint64_t seed) {
    Rng r = rng_stream(seed, 0, 1, 0);
    for (int64_t i = c->n - 1; i > 0; i--) {
        const int64_t j = (int64_t)rng_below(&r, (uint64_t)i + 1);
        for (int64_t k = 0; k < c->d; k++) {
            const double keep = c->x[i * c->d + k];
            c->x[i * c->d + k] = c->x[j * c->d + k];
            c->x[j * c->d + k] = keep;
        }
    }
}

typedef struct CloudRow {
    CloudDistance d;
    double p[2];
} CloudRow;

static Status compare(const Probe *p, const Cloud *a, const Cloud *b, CloudRow *out) {
    const int64_t shuffles = p->options->shuffles;
    TRY(cloud_distance(a->x, a->n, b->x, b->n, a->d, &out->d));
    return cloud_permutation(a->x, a->n, b->x, b->n, a->d, shuffles, (uint64_t)p->options->seed,
                             &out->p[0], &out->p[1]);
}

/* ---- t-SNE ---- */

/* A picture of two clouds, and their points as rows of the CSV. */
static Status write_points(FileWriter *w, int64_t layer, const Pair *pair, const Cloud *a,
                           const double *points, int64_t n) {
    char line[128];
    for (int64_t i = 0; i < n; i++) {
        const int kind = i < a->n ? pair->a : pair->b;
        const int length = snprintf(line, sizeof line, "%lld,%s,%s,%.6g,%.6g\n", (long long)layer,
                                    pair->name, kind_names[kind], points[2 * i], points[2 * i + 1]);
        TRY(file_writer_write(w, line, (size_t)length));
    }
    return STATUS_OK;
}

static Status draw_points(const Probe *p, int64_t layer, const Pair *pair, const Cloud *a,
                          const double *points, int64_t n, double *x) {
    char leaf[64], title[96], *path;
    double *y = x + n;
    for (int64_t i = 0; i < n; i++) {
        x[i] = points[2 * i];
        y[i] = points[2 * i + 1];
    }
    const PlotSeries series[] = {
        {.name = kind_names[pair->a], .x = x, .y = y, .count = a->n},
        {.name = kind_names[pair->b], .x = x + a->n, .y = y + a->n, .count = n - a->n}};
    snprintf(leaf, sizeof leaf, "tsne_%s_layer%lld.png", pair->name, (long long)layer);
    TRY(probe_path(p, leaf, &path));
    snprintf(title, sizeof title, "%c%s and %s, layer %lld", toupper(kind_names[pair->a][0]),
             kind_names[pair->a] + 1, kind_names[pair->b], (long long)layer);
    const Status s = plot_write(path, title, "t-SNE, axes without a unit", series, 2, true);
    mem_free(path);
    return s;
}

static Status tsne_of_pair(const Probe *p, FileWriter *w, int64_t layer, const Pair *pair,
                           const Cloud *a, const Cloud *b) {
    const int64_t n = a->n + b->n;
    double *all, *points;
    TRY(mem_alloc((void **)&all, n * a->d, sizeof *all, "vectors"));
    memcpy(all, a->x, (size_t)(a->n * a->d) * sizeof *all);
    memcpy(all + a->n * a->d, b->x, (size_t)(b->n * a->d) * sizeof *all);
    Status s = mem_alloc((void **)&points, 4 * n, sizeof *points, "points");
    if (s == STATUS_OK) {
        s = tsne(all, n, a->d, 30, 1000, points);
        if (s == STATUS_OK) s = write_points(w, layer, pair, a, points, n);
        if (s == STATUS_OK) s = draw_points(p, layer, pair, a, points, n, points + 2 * n);
        mem_free(points);
    }
    mem_free(all);
    return s;
}

static Status tsne_all(const Probe *p, FileWriter *w, const LayerClouds *layers) {
    const char *head = "layer,pair,kind,x,y\n";
    TRY(file_writer_write(w, head, strlen(head)));
    for (int64_t l = 0; l < p->depth; l++) {
        for (int i = 0; i < pairs_of(p); i++) {
            if (pairs[i].b == HALVES) continue;
            const Cloud *kinds = layers[l].kinds;
            TRY(tsne_of_pair(p, w, l, &pairs[i], &kinds[pairs[i].a], &kinds[pairs[i].b]));
        }
        progress_line(5, "t-SNE of layer %lld of %lld", (long long)l + 1, (long long)p->depth);
    }
    return STATUS_OK;
}

/* ---- tables ---- */

static Status compare_layer(const Probe *p, const LayerClouds *c, CloudRow rows[PAIRS]) {
    for (int i = 0; i < pairs_of(p); i++) {
        Cloud a = c->kinds[pairs[i].a], b = {0};
        if (pairs[i].b == HALVES) {
            shuffle(&a, (uint64_t)p->options->seed);
            b = (Cloud){.x = a.x + a.n / 2 * a.d, .n = a.n / 2, .d = a.d};
            a.n /= 2;
        } else {
            b = c->kinds[pairs[i].b];
        }
        TRY(compare(p, &a, &b, &rows[i]));
        /* Cosines mean something for vectors of the same tokens alone. */
        if (pairs[i].b == HALVES || a.all != b.all) rows[i].d.mean_cos = NAN;
        if (pairs[i].a == VECTOR_QUERY) rows[i].d.mean_cos = c->cosine;
    }
    return STATUS_OK;
}

static Status write_row(FileWriter *w, int64_t layer, const char *name, const CloudRow *r) {
    char line[256], cosine[32] = "";
    if (isfinite(r->d.mean_cos)) snprintf(cosine, sizeof cosine, "%.6g", r->d.mean_cos);
    const int n =
        snprintf(line, sizeof line, "%lld,%s,%.6g,%.6g,%.6g,%s,%.6g,%.4g,%.4g\n", (long long)layer,
                 name, r->d.frechet, r->d.mmd2, r->d.energy, cosine, r->d.auc, r->p[0], r->p[1]);
    return file_writer_write(w, line, (size_t)n);
}

static Status write_rows(const Probe *p, FileWriter *w, const CloudRow *rows) {
    const char *head = "layer,pair,frechet,mmd2,energy,mean_cos,fisher_auc,mmd2_p,energy_p\n";
    TRY(file_writer_write(w, head, strlen(head)));
    for (int64_t i = 0; i < p->depth * PAIRS; i++) {
        const CloudRow *r = &rows[i];
        if (i % PAIRS >= pairs_of(p)) continue;
        TRY(write_row(w, i / PAIRS, pairs[i % PAIRS].name, r));
        if (!common.json)
            out_printf(
                "layer %2lld %-9s frechet %10.4g  mmd2 %9.3g (p %.3g)  energy %9.3g (p %.3g)  "
                "cosine %7.4f  auc %.4f\n",
                (long long)(i / PAIRS), pairs[i % PAIRS].name, r->d.frechet, r->d.mmd2, r->p[0],
                r->d.energy, r->p[1], r->d.mean_cos, r->d.auc);
    }
    return STATUS_OK;
}

static Status open_csv(const Probe *p, const char *leaf, FileWriter **w) {
    char *path;
    TRY(probe_path(p, leaf, &path));
    const Status s = file_writer_open(path, w);
    mem_free(path);
    return s;
}

static Status close_csv(FileWriter *w, Status s) {
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

typedef double (*CloudNumber)(const CloudRow *r);
static double auc_of(const CloudRow *r) {
    return r->d.auc;
}
static double energy_of(const CloudRow *r) {
    return r->d.energy;
}

/* One number over the layers, a line for each pair. */
static Status plot_number(const Probe *p, const CloudRow *rows, const char *leaf, const char *title,
                          CloudNumber number) {
    double *values;
    char *path;
    TRY(mem_alloc((void **)&values, p->depth * (1 + PAIRS), sizeof *values, "a plot"));
    PlotSeries series[PAIRS];
    for (int64_t i = 0; i < p->depth; i++) {
        values[i] = (double)i;
        for (int j = 0; j < pairs_of(p); j++)
            values[(1 + j) * p->depth + i] = number(&rows[i * PAIRS + j]);
    }
    for (int j = 0; j < pairs_of(p); j++)
        series[j] = (PlotSeries){.name = pairs[j].name,
                                 .x = values,
                                 .y = values + (1 + j) * p->depth,
                                 .count = p->depth};
    Status s = probe_path(p, leaf, &path);
    if (s == STATUS_OK) {
        s = plot_write(path, title, "layer", series, pairs_of(p), false);
        mem_free(path);
    }
    mem_free(values);
    return s;
}

/* ---- the mode ---- */

static Status tsne_files(const Probe *p, const LayerClouds *layers) {
    FileWriter *w;
    TRY(open_csv(p, "tsne.csv", &w));
    return close_csv(w, tsne_all(p, w, layers));
}

static Status distance_files(const Probe *p, const LayerClouds *layers, CloudRow *rows) {
    FileWriter *w;
    for (int64_t l = 0; l < p->depth; l++) {
        TRY(compare_layer(p, &layers[l], rows + l * PAIRS));
        progress_line(5, "layer %lld of %lld", (long long)l + 1, (long long)p->depth);
    }
    progress_end();
    TRY(open_csv(p, "qk.csv", &w));
    TRY(close_csv(w, write_rows(p, w, rows)));
    TRY(plot_number(p, rows, "qk_auc.png", "Separability (AUC), by layer", auc_of));
    return plot_number(p, rows, "qk_energy.png", "Energy distance, by layer", energy_of);
}

static Status distributions(Probe *p, LayerClouds *layers) {
    CloudRow *rows;
    TRY(gather_all(p, layers));
    if (p->options->tsne) TRY(tsne_files(p, layers)); /* before halves are shuffled */
    TRY(mem_alloc((void **)&rows, p->depth * PAIRS, sizeof *rows, "distances"));
    const Status s = distance_files(p, layers, rows);
    mem_free(rows);
    return s;
}

Status probe_distributions(Probe *p, ProbeTable *t) {
    LayerClouds *layers;
    (void)t;
    probe_set(p, &(ProbeSetting){.layer = -1});
    if (p->kept == 0) TRY(p->subject->score(p)); /* keeps the pictures */
    TRY(mem_alloc((void **)&layers, p->depth, sizeof *layers, "distributions"));
    const Status s = distributions(p, layers);
    for (int64_t l = 0; l < p->depth; l++)
        for (int k = 0; k < KINDS; k++) mem_free(layers[l].kinds[k].x);
    mem_free(layers);
    return s;
}
