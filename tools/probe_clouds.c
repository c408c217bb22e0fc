/* Distributions of queries, keys, values and outputs, layer by layer (fastweight.md 10.3). */
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

/* What is compared in one layer; `a` and `b` as verifier_values names them, HALVES: two random
 * halves of the keys, as the reference of what equals. */
typedef struct Pair {
    const char *name;
    int a, b;
} Pair;
enum { QUERIES, KEYS, VALUES, OUTPUTS, HALVES = -1 };
static const Pair pairs[] = {
    {"q_k", QUERIES, KEYS}, {"v_o", VALUES, OUTPUTS}, {"k_k", KEYS, HALVES}};
enum { PAIRS = 3 };

typedef struct Cloud {
    double *x; /* [n, d] */
    int64_t n, d;
} Cloud;

/* Rows of all kept pictures, thinned to at most options->vectors at a regular distance. */
static Status gather(Probe *p, int64_t layer, int kind, Cloud *out) {
    const int64_t side = p->model.preprocess.image_size, size = side * side * 3;
    const int64_t each = p->options->vectors / p->kept > 0 ? p->options->vectors / p->kept : 1;
    *out = (Cloud){0};
    for (int64_t i = 0; i < p->kept; i++) {
        double *rows = NULL;
        int64_t n, d;
        TRY(predict(&p->predictor, p->pictures + i * size, 1, p->logits));
        TRY(verifier_values(p->verifier, layer, kind, &rows, &n, &d));
        Status s = STATUS_OK;
        if (!out->x) s = mem_alloc((void **)&out->x, p->kept * each * d, sizeof *out->x, "vectors");
        out->d = d;
        const int64_t take = each < n ? each : n;
        for (int64_t j = 0; s == STATUS_OK && j < take; j++)
            memcpy(out->x + (out->n++) * d, rows + j * n / take * d, (size_t)d * sizeof *rows);
        mem_free(rows);
        TRY(s);
    }
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

static Status draw_tsne(const Probe *p, int64_t layer, const Cloud *q, const Cloud *k) {
    char leaf[64], *path;
    double *points;
    const int64_t n = q->n + k->n;
    double *all;
    TRY(mem_alloc((void **)&all, n * q->d, sizeof *all, "vectors"));
    memcpy(all, q->x, (size_t)(q->n * q->d) * sizeof *all);
    memcpy(all + q->n * q->d, k->x, (size_t)(k->n * q->d) * sizeof *all);
    Status s = mem_alloc((void **)&points, 4 * n, sizeof *points, "points");
    if (s == STATUS_OK) s = tsne(all, n, q->d, 30, 1000, points);
    mem_free(all);
    if (s != STATUS_OK) return s;
    double *x = points + 2 * n, *y = x + n;
    for (int64_t i = 0; i < n; i++) {
        x[i] = points[2 * i];
        y[i] = points[2 * i + 1];
    }
    const PlotSeries series[] = {{"queries", x, y, q->n}, {"keys", x + q->n, y + q->n, k->n}};
    snprintf(leaf, sizeof leaf, "tsne_layer%lld.png", (long long)layer);
    s = path_join(&path, p->options->output, leaf);
    if (s == STATUS_OK) {
        s = plot_write(path, leaf, "t-SNE", series, 2, true);
        mem_free(path);
    }
    mem_free(points);
    return s;
}

static Status probe_layer(Probe *p, int64_t layer, CloudRow rows[PAIRS]) {
    Cloud c[4] = {{0}};
    Status s = STATUS_OK;
    for (int kind = 0; kind < 4 && s == STATUS_OK; kind++) s = gather(p, layer, kind, &c[kind]);
    if (s == STATUS_OK && p->options->tsne) s = draw_tsne(p, layer, &c[QUERIES], &c[KEYS]);
    for (int i = 0; i < PAIRS && s == STATUS_OK; i++) {
        Cloud a = c[pairs[i].a], b = pairs[i].b == HALVES ? (Cloud){0} : c[pairs[i].b];
        if (pairs[i].b == HALVES) {
            shuffle(&a, (uint64_t)p->options->seed);
            b = (Cloud){a.x + a.n / 2 * a.d, a.n / 2, a.d};
            a.n /= 2;
        }
        s = compare(p, &a, &b, &rows[i]);
    }
    for (int kind = 0; kind < 4; kind++) mem_free(c[kind].x);
    return s;
}

static Status write_rows(const Probe *p, FileWriter *w, const CloudRow *rows) {
    char line[256];
    for (int64_t i = 0; i < p->model.config.depth * PAIRS; i++) {
        const CloudRow *r = &rows[i];
        const int n = snprintf(line, sizeof line, "%lld,%s,%.6g,%.6g,%.6g,%.6g,%.6g,%.4g,%.4g\n",
                               (long long)(i / PAIRS), pairs[i % PAIRS].name, r->d.frechet,
                               r->d.mmd2, r->d.energy, r->d.mean_cos, r->d.auc, r->p[0], r->p[1]);
        TRY(file_writer_write(w, line, (size_t)n));
        if (!common.json)
            out_printf(
                "layer %2lld %s  frechet %10.4g  mmd2 %9.3g (p %.3g)  energy %9.3g (p %.3g)  "
                "cosine %7.4f  auc %.4f\n",
                (long long)(i / PAIRS), pairs[i % PAIRS].name, r->d.frechet, r->d.mmd2, r->p[0],
                r->d.energy, r->p[1], r->d.mean_cos, r->d.auc);
    }
    return STATUS_OK;
}

static Status write_all(const Probe *p, const CloudRow *rows) {
    const char *head = "layer,pair,frechet,mmd2,energy,mean_cos,fisher_auc,mmd2_p,energy_p\n";
    char *path;
    FileWriter *w;
    TRY(path_join(&path, p->options->output, "qk.csv"));
    Status s = file_writer_open(path, &w);
    mem_free(path);
    TRY(s);
    s = file_writer_write(w, head, strlen(head));
    if (s == STATUS_OK) s = write_rows(p, w, rows);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* Separability over the layers. */
static Status plot_auc(const Probe *p, const CloudRow *rows) {
    const int64_t depth = p->model.config.depth;
    double *values;
    char *path;
    TRY(mem_alloc((void **)&values, depth * (1 + PAIRS), sizeof *values, "a plot"));
    PlotSeries series[PAIRS];
    for (int64_t i = 0; i < depth; i++) {
        values[i] = (double)i;
        for (int j = 0; j < PAIRS; j++) values[(1 + j) * depth + i] = rows[i * PAIRS + j].d.auc;
    }
    for (int j = 0; j < PAIRS; j++)
        series[j] = (PlotSeries){pairs[j].name, values, values + (1 + j) * depth, depth};
    Status s = path_join(&path, p->options->output, "qk_auc.png");
    if (s == STATUS_OK) {
        s = plot_write(path, "separability (AUC)", "layer", series, PAIRS, false);
        mem_free(path);
    }
    mem_free(values);
    return s;
}

Status probe_distributions(Probe *p) {
    Score baseline;
    CloudRow *rows;
    TRY(probe_score(p, &baseline)); /* keeps the pictures */
    TRY(mem_alloc((void **)&rows, p->model.config.depth * PAIRS, sizeof *rows, "distances"));
    Status s = STATUS_OK;
    for (int64_t i = 0; i < p->model.config.depth && s == STATUS_OK; i++) {
        s = probe_layer(p, i, rows + i * PAIRS);
        progress_line(5, "layer %lld of %lld", (long long)i + 1, (long long)p->model.config.depth);
    }
    progress_end();
    if (s == STATUS_OK) s = write_all(p, rows);
    if (s == STATUS_OK) s = plot_auc(p, rows);
    mem_free(rows);
    return s;
}
