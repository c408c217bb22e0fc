/* `ttv ttt probe steps|ascent|swap|qk CHECKPOINT`: experiments on a trained model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "nn/train.h"
#include "tools/cli.h"
#include "tools/probe.h"

static ProbeOptions options;

#define FIELD(name) offsetof(ProbeOptions, name)
static const Option probe_options[] = {
    {"weights", OPTION_CHOICE, FIELD(weights), "auto", 0, 0, WEIGHTS_CHOICES, "weights",
     WEIGHTS_HELP},
    {"output", OPTION_STRING, FIELD(output), "probe", 0, 0, NULL, "output",
     "folder of the CSV files and plots"},
    {"list", OPTION_STRING, FIELD(list), "1,2,3,4,6,8", 0, 0, NULL, "list",
     "steps: numbers of inner steps"},
    {"pictures", OPTION_INT, FIELD(pictures), "4", 1, 4096, NULL, "pictures",
     "pictures (novel views: scenes) whose inner losses and distributions are looked at"},
    {"vectors", OPTION_INT, FIELD(vectors), "512", 16, 4096, NULL, "vectors",
     "qk: vectors of a layer and kind, at most"},
    {"shuffles", OPTION_INT, FIELD(shuffles), "200", 1, 100000, NULL, "shuffles",
     "qk: relabellings behind a p-value"},
    {"tsne", OPTION_BOOL, FIELD(tsne), "false", 0, 0, NULL, "tsne",
     "qk: t-SNE pictures of queries and keys, and of values and outputs, for each layer"},
    {"per_layer", OPTION_BOOL, FIELD(per_layer), "false", 0, 0, NULL, "per-layer",
     "swap: q = k also one layer at a time"},
    {"resamples", OPTION_INT, FIELD(resamples), "1000", 1, 1e6, NULL, "resamples",
     "of the bootstrap behind the 95 % intervals"},
    {"unit", OPTION_CHOICE, FIELD(unit), "image", 0, 0, "image|scene", "resample",
     "what is drawn anew: images (novel views: target views), or whole scenes, whose views are "
     "alike"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, 1e15, NULL, "seed",
     "of relabellings, resamples, replaced queries and the generated index"},
    {"split", OPTION_STRING, FIELD(split), "", 0, 0, NULL, "split",
     "novel views: split of the scenes; empty: all (images: --val-split)"},
    {"scenes", OPTION_INT, FIELD(scenes), "16", 0, 1e6, NULL, "scenes",
     "novel views: at most so many scenes, the first by name; 0: all"},
    NVS_INDEX_OPTIONS(ProbeOptions),
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[8];
    list[0] = (Section){"probe", probe_options, &options};
    *count = 1 + sections_fill(list + 1, 7, "data preprocess loader model nvs_model");
    return list;
}

static const Section *hidden(int *count) {
    static Section list[8];
    *count = sections_fill(list, 8, "augment optim train run scenes nvs_train");
    return list;
}

static const struct {
    const char *name;
    Status (*sweep)(Probe *p, ProbeTable *t);
} modes[] = {{"steps", probe_steps},
             {"ascent", probe_ascent},
             {"swap", probe_swap},
             {"qk", probe_distributions}};
enum { MODES = sizeof modes / sizeof *modes };

/* ---- report ---- */

static void print_table(const Probe *p, const ProbeTable *t) {
    const char *first = p->subject->metrics[0], *second = p->subject->metrics[1];
    out_printf("%-40s %8s %19s %8s %19s %8s %12s %12s %10s %10s %9s\n", "setting", first, "95 %",
               "change", "95 %", second, "inner before", "inner after", "-cos before", "-cos after",
               "moved");
    for (int i = 0; i < t->count; i++) {
        const ProbeRow *r = &t->rows[i];
        const Interval *m = &r->metric[0], *d = &r->difference[0];
        out_printf("%-40s %8.3f [%8.3f,%8.3f] %8.3f [%8.3f,%8.3f] %8.4f %12.4g %12.4g %10.4f "
                   "%10.4f %9.4f\n",
                   r->setting, m->value, m->low, m->high, d->value, d->low, d->high,
                   r->metric[1].value, r->inner.loss[0], r->inner.loss[1], r->inner.alignment[0],
                   r->inner.alignment[1], r->inner.moved);
    }
}

static void write_interval(JsonWriter *w, const char *name, const char *what, const Interval *x) {
    const struct {
        const char *end;
        double value;
    } parts[] = {{"", x->value}, {"_low", x->low}, {"_high", x->high}};
    char key[64];
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s%s%s", name, what, parts[i].end);
        json_pair_number(w, key, parts[i].value);
    }
}

static void write_row(JsonWriter *w, const Probe *p, const ProbeRow *r) {
    json_begin_object(w);
    json_pair_string(w, "setting", r->setting);
    json_pair_number(w, "value", r->value);
    json_pair_int(w, p->subject->samples, r->samples);
    for (int m = 0; m < PROBE_METRICS; m++) {
        write_interval(w, p->subject->metrics[m], "", &r->metric[m]);
        write_interval(w, p->subject->metrics[m], "_difference", &r->difference[m]);
    }
    json_pair_number(w, "inner_loss_before", r->inner.loss[0]);
    json_pair_number(w, "inner_loss_after", r->inner.loss[1]);
    json_pair_number(w, "alignment_before", r->inner.alignment[0]);
    json_pair_number(w, "alignment_after", r->inner.alignment[1]);
    json_pair_number(w, "moved", r->inner.moved);
    json_end_object(w);
}

static Status print_json(const Probe *p, const ProbeTable *t, int mode) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "mode", modes[mode].name);
    json_pair_string(&w, "output", options.output);
    json_key(&w, "rows");
    json_begin_array(&w);
    for (int i = 0; i < t->count; i++) write_row(&w, p, &t->rows[i]);
    json_end_array(&w);
    if (modes[mode].sweep == probe_steps) {
        const ProbeTrend trend = probe_trend(t);
        json_pair_number(&w, "spearman_metric", trend.metric);
        json_pair_number(&w, "spearman_inner_loss", trend.inner);
        json_pair_number(&w, "drop_at", trend.drop_at);
        json_pair_bool(&w, "paradox", trend.paradox);
    }
    json_end_object(&w);
    return out_json(&w, STATUS_OK);
}

static void print_trend(const Probe *p, const ProbeTable *t) {
    const ProbeTrend trend = probe_trend(t);
    out_printf("rank correlation with the steps: %s %.3f, inner loss %.3f%s\n",
               p->subject->metrics[0], trend.metric, trend.inner,
               trend.paradox ? "; the inner loss falls while the metric worsens" : "");
    if (isfinite(trend.drop_at))
        out_printf("1 %% below the model as it is from %g steps on\n", trend.drop_at);
}

static Status report(const Probe *p, const ProbeTable *t, int mode) {
    if (t->count > 0 && isnan(t->rows[0].metric[0].low))
        note("no intervals: resampling needs two %s or more",
             options.unit == UNIT_SCENE ? "scenes" : p->subject->samples);
    if (common.json) return print_json(p, t, mode);
    if (t->count > 0) print_table(p, t);
    if (modes[mode].sweep == probe_steps) print_trend(p, t);
    note("written to %s", options.output);
    return STATUS_OK;
}

/* ---- the command ---- */

static Status probe_run(Config *config, int mode) {
    static ProbeTable table;
    Probe p;
    Status s = probe_open(&p, &options, config);
    if (s == STATUS_OK) s = modes[mode].sweep(&p, &table);
    progress_end();
    if (s == STATUS_OK) s = report(&p, &table, mode);
    probe_table_free(&table);
    probe_close(&p);
    return s;
}

static int run(Config *config, int argc, char **argv) {
    int mode = -1;
    for (int i = 0; argc > 0 && i < MODES; i++)
        if (strcmp(argv[0], modes[i].name) == 0) mode = i;
    if (argc == 0)
        return cli_usage(&command_ttt_probe, "one of steps, ascent, swap or qk is expected");
    if (mode < 0)
        return cli_usage(&command_ttt_probe, "there is no probe '%s'; steps, ascent, swap or qk",
                         argv[0]);
    if (argc != 2 || strlen(argv[1]) >= CONFIG_TEXT)
        return cli_usage(&command_ttt_probe, "exactly one checkpoint is expected");
    strcpy(options.checkpoint, argv[1]);
    signals_catch(train_request_stop);
    const Status s = probe_run(config, mode);
    if (s == STATUS_STOPPED && signals_exit_code() != 0) return signals_exit_code();
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_ttt_probe = {
    .name = "ttt probe",
    .aliases = "probe",
    .summary = "change the inner loop of a trained model, and see what it does",
    .synopsis = "ttv ttt probe [flags] steps|ascent|swap|qk CHECKPOINT",
    .examples = "  ttv ttt probe steps --list 1,2,4,8 runs/digits\n"
                "  ttv ttt probe swap --per-layer runs/digits -o swap\n"
                "  ttv ttt probe qk --tsne runs/digits\n"
                "  ttv ttt probe steps data/nvs_demo.safetensors --data-dir rooms --split test\n",
    .letters = "b=batch-size j=workers m=model o=output",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
