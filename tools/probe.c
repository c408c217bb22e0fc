/* Opening, scoring and the sweeps over the inner loop. */
#include "tools/probe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/plot.h"

/* ---- opening ---- */

static Status open_data(Probe *p) {
    if (!*settings.data.root)
        return status_set(STATUS_USAGE,
                          "no data: give --data-dir DIR, or [data] root in a file (-c)");
    if (p->model.classes.count > 0) TRY(class_list_copy(&p->classes, &p->model.classes));
    TRY(dataset_open(&settings.data, settings.data.val_split, &p->classes, &p->data));
    if (p->classes.count == p->model.config.classes) return STATUS_OK;
    return status_set(STATUS_DATA, "%s has %lld classes, but the model has %lld",
                      settings.data.root, (long long)p->classes.count,
                      (long long)p->model.config.classes);
}

/* The run folder of the checkpoint knows where its data was. */
static Status take_data_of_run(Config *config, const char *checkpoint) {
    enum { MAX_CONFIG_BYTES = 1 << 20 };
    char *path, *text = NULL;
    size_t size;
    TRY(path_join(&path, checkpoint, "config.ini"));
    Status s = STATUS_OK;
    if (file_is_folder(checkpoint) && file_exists(path)) {
        s = file_read(path, MAX_CONFIG_BYTES, &text, &size);
        if (s == STATUS_OK) s = config_overlay(config, text, size, path, "data", NULL);
    }
    mem_free(text);
    mem_free(path);
    return s;
}

Status probe_open(Probe *p, const ProbeOptions *o, Config *config) {
    *p = (Probe){.options = o};
    TRY(take_data_of_run(config, o->checkpoint));
    TRY(model_open(&p->model, o->checkpoint, (WeightsChoice)o->weights, config));
    TRY(open_data(p));
    if (p->model.vittt->blocks[0].sequence.kind != SEQUENCE_NONE)
        return status_set(STATUS_USAGE, "mixer '%s': only the mixers of ViTTT can be probed so far",
                          p->model.config.mixer);
    TRY(verifier_open(&p->model, &p->verifier));
    p->base = p->model.vittt->blocks[0].mixer.variant;
    TRY(predictor_open(&p->predictor, &p->model, settings.loader.batch_size));
    const int64_t side = p->model.preprocess.image_size;
    TRY(mem_alloc((void **)&p->logits, settings.loader.batch_size * p->model.config.classes,
                  sizeof(float), "logits"));
    TRY(mem_alloc((void **)&p->pictures, o->pictures * side * side, 3, "pictures"));
    return file_make_folder(o->output);
}

void probe_close(Probe *p) {
    verifier_close(p->verifier);
    predictor_close(&p->predictor);
    mem_free(p->logits);
    mem_free(p->pictures);
    if (p->data) dataset_close(p->data);
    class_list_free(&p->classes);
    model_close(&p->model);
}

/* ---- scoring ---- */

/* Keeps the first good pictures of the first pass. */
static void keep_pictures(void *user, const HostBatch *b, const float *logits) {
    (void)logits;
    Probe *p = user;
    const int64_t side = p->model.preprocess.image_size, size = side * side * 3;
    for (int64_t i = 0; i < b->count && p->kept < p->options->pictures; i++) {
        if (b->valid && !b->valid[i]) continue;
        memcpy(p->pictures + p->kept * size, b->pixels + i * size, (size_t)size);
        p->kept++;
    }
}

static void set_traces(Probe *p, bool on) {
    verifier_trace(p->verifier, on);
}

Status probe_score(Probe *p, Score *out) {
    Loader *loader;
    *out = (Score){0};
    TRY(eval_loader_open(p->data, &p->model.preprocess, &loader));
    set_traces(p, false); /* a batch's values need not stay */
    Status s =
        score_all(&p->predictor, loader, dataset_count(p->data), p->logits, out, keep_pictures, p);
    set_traces(p, true);
    loader_close(loader);
    if (s == STATUS_OK && p->kept == 0)
        s = status_set(STATUS_DATA, "%s: no picture could be read", settings.data.root);
    return s;
}

void probe_set(Probe *p, VitttVariant v, int64_t layer) {
    for (int64_t i = 0; i < p->model.config.depth; i++)
        if (layer < 0 || i == layer) p->model.vittt->blocks[i].mixer.variant = v;
}

static Status inner_losses(Probe *p, ProbeRow *row) {
    const int64_t side = p->model.preprocess.image_size, size = side * side * 3;
    verifier_clear(p->verifier);
    for (int64_t i = 0; i < p->kept; i++)
        TRY(verifier_picture(p->verifier, p->pictures + i * size));
    int64_t count, seen = 0;
    const VerifyRow *rows = verifier_rows(p->verifier, &count);
    for (int64_t i = 0; i < count; i += 2) { /* the GLU branch of each layer */
        seen += rows[i].count;
        for (int k = 0; k < 2; k++) {
            row->loss[k] += rows[i].loss[k];
            row->alignment[k] += rows[i].alignment[k];
        }
        row->moved += rows[i].moved;
    }
    for (int k = 0; k < 2; k++) {
        row->loss[k] /= (double)seen;
        row->alignment[k] /= (double)seen;
    }
    row->moved /= (double)seen;
    return STATUS_OK;
}

Status probe_measure(Probe *p, ProbeTable *t, const char *setting, double value) {
    if (t->count == PROBE_ROWS)
        return status_set(STATUS_USAGE, "more than %d settings", PROBE_ROWS);
    ProbeRow *row = &t->rows[t->count];
    *row = (ProbeRow){.value = value};
    snprintf(row->setting, sizeof row->setting, "%s", setting);
    TRY(probe_score(p, &row->score));
    TRY(inner_losses(p, row));
    t->count++;
    progress_line(5, "%s: top-1 %.2f %%", setting,
                  100 * (double)row->score.top1 / (double)row->score.scored);
    return STATUS_OK;
}

/* ---- files ---- */

static Status output_path(const Probe *p, const char *name, const char *ending, char **out) {
    char leaf[96];
    snprintf(leaf, sizeof leaf, "%.64s.%.8s", name, ending);
    return path_join(out, p->options->output, leaf);
}

Status probe_write_csv(const Probe *p, const ProbeTable *t, const char *name) {
    char *path, line[512];
    FileWriter *w;
    TRY(output_path(p, name, "csv", &path));
    Status s = file_writer_open(path, &w);
    mem_free(path);
    TRY(s);
    const char *head = "setting,value,images,top1,top5,loss,inner_loss_before,inner_loss_after,"
                       "alignment_before,alignment_after,moved\n";
    s = file_writer_write(w, head, strlen(head));
    for (int i = 0; i < t->count && s == STATUS_OK; i++) {
        const ProbeRow *r = &t->rows[i];
        const double n = (double)r->score.scored;
        const int length = snprintf(
            line, sizeof line, "%s,%g,%lld,%.4f,%.4f,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g\n", r->setting,
            r->value, (long long)r->score.scored, 100 * (double)r->score.top1 / n,
            100 * (double)r->score.top5 / n, r->score.loss_sum / n, r->loss[0], r->loss[1],
            r->alignment[0], r->alignment[1], r->moved);
        s = file_writer_write(w, line, (size_t)length);
    }
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* Top-1 and the inner loss after the step over the swept value; the first row repeats one of the
 * list and is left out. */
static Status write_plots(const Probe *p, const ProbeTable *t, const char *name,
                          const char *x_name) {
    double x[PROBE_ROWS], top1[PROBE_ROWS], after[PROBE_ROWS];
    const int n = t->count - 1;
    for (int i = 0; i < n; i++) {
        const ProbeRow *r = &t->rows[i + 1];
        x[i] = r->value;
        top1[i] = 100 * (double)r->score.top1 / (double)r->score.scored;
        after[i] = r->alignment[1];
    }
    char file[64], *path;
    const PlotSeries metric = {"top-1 %", x, top1, n};
    const PlotSeries inner = {"-cos(f(k), v)", x, after, n};
    snprintf(file, sizeof file, "%s_top1", name);
    TRY(output_path(p, file, "png", &path));
    Status s = plot_write(path, "top-1", x_name, &metric, 1, false);
    mem_free(path);
    TRY(s);
    snprintf(file, sizeof file, "%s_inner", name);
    TRY(output_path(p, file, "png", &path));
    s = plot_write(path, "inner loss after the step", x_name, &inner, 1, false);
    mem_free(path);
    return s;
}

/* ---- the modes ---- */

/* The next of "1,2,4"; STATUS_END behind the last. */
static Status next_number(const char **at, int64_t *out) {
    char *end;
    if (!**at) return STATUS_END;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (end == *at || errno || *out < 1 || *out > 1000 || (*end && *end != ','))
        return status_set(STATUS_USAGE,
                          "--list '%s': expected numbers from 1 to 1000, separated by commas", *at);
    *at = end + (*end == ',');
    return STATUS_OK;
}

Status probe_steps(Probe *p, ProbeTable *t) {
    const char *at = p->options->list;
    int64_t steps;
    Status s;
    TRY(probe_measure(p, t, "baseline", (double)(p->base.steps > 1 ? p->base.steps : 1)));
    while ((s = next_number(&at, &steps)) == STATUS_OK) {
        VitttVariant v = p->base;
        char name[32];
        v.steps = steps;
        snprintf(name, sizeof name, "steps %lld", (long long)steps);
        probe_set(p, v, -1);
        TRY(probe_measure(p, t, name, (double)steps));
    }
    if (s != STATUS_END) return s;
    TRY(probe_write_csv(p, t, "steps"));
    return write_plots(p, t, "steps", "inner steps");
}

Status probe_ascent(Probe *p, ProbeTable *t) {
    TRY(probe_measure(p, t, "baseline", 0));
    const struct {
        const char *name;
        bool glu, dwc;
    } settings_of[] = {{"ascent of the GLU branch", true, false},
                       {"ascent of the depthwise branch", false, true},
                       {"ascent", true, true}};
    for (int i = 0; i < 3; i++) {
        VitttVariant v = p->base;
        v.ascend_glu ^= settings_of[i].glu;
        v.ascend_dwc ^= settings_of[i].dwc;
        probe_set(p, v, -1);
        TRY(probe_measure(p, t, settings_of[i].name, i + 1));
    }
    return probe_write_csv(p, t, "ascent");
}

Status probe_swap(Probe *p, ProbeTable *t) {
    VitttVariant swapped = p->base;
    swapped.query_is_key = !swapped.query_is_key;
    TRY(probe_measure(p, t, "baseline", -1));
    probe_set(p, swapped, -1);
    TRY(probe_measure(p, t, "q = k in all layers", -1));
    for (int64_t i = 0; p->options->per_layer && i < p->model.config.depth; i++) {
        char name[40];
        snprintf(name, sizeof name, "q = k in layer %lld", (long long)i);
        probe_set(p, p->base, -1);
        probe_set(p, swapped, i);
        TRY(probe_measure(p, t, name, (double)i));
    }
    return probe_write_csv(p, t, "swap");
}

/* ---- ranks ---- */

static double rank_of(const double *x, int64_t n, int64_t i) {
    double below = 0, equal = 0;
    for (int64_t j = 0; j < n; j++) {
        below += x[j] < x[i];
        equal += x[j] == x[i];
    }
    return below + (equal - 1) / 2;
}

double rank_correlation(const double *x, const double *y, int64_t n) {
    const double mean = (double)(n - 1) / 2;
    double xy = 0, xx = 0, yy = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = rank_of(x, n, i) - mean, b = rank_of(y, n, i) - mean;
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}
