/* `ttv ttt probe steps|ascent|swap|qk CHECKPOINT`: experiments on a trained classifier. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
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
     "of the data, whose inner losses and distributions are looked at"},
    {"vectors", OPTION_INT, FIELD(vectors), "512", 16, 4096, NULL, "vectors",
     "qk: vectors of a layer and kind, at most"},
    {"shuffles", OPTION_INT, FIELD(shuffles), "200", 1, 100000, NULL, "shuffles",
     "qk: relabellings behind a p-value"},
    {"tsne", OPTION_BOOL, FIELD(tsne), "false", 0, 0, NULL, "tsne",
     "qk: a t-SNE picture of queries and keys for each layer"},
    {"per_layer", OPTION_BOOL, FIELD(per_layer), "false", 0, 0, NULL, "per-layer",
     "swap: also one layer at a time"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, 1e15, NULL, "seed", "of the relabellings"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

static const Section *sections(int *count) {
    static Section list[8];
    *count = sections_fill(list, 7, "model data preprocess loader");
    list[(*count)++] = (Section){"probe", probe_options, &options};
    return list;
}

static const Section *hidden(int *count) {
    static Section list[8];
    *count = sections_fill(list, 8, "augment optim train run");
    return list;
}

static const struct {
    const char *name;
    Status (*sweep)(Probe *p, ProbeTable *t);
} modes[] = {{"steps", probe_steps}, {"ascent", probe_ascent}, {"swap", probe_swap}, {"qk", NULL}};
enum { MODES = sizeof modes / sizeof *modes };

/* ---- report ---- */

static double top1_of(const ProbeRow *r) {
    return 100 * (double)r->score.top1 / (double)r->score.scored;
}

/* Whether the inner loss falls while the metric does, from the first row of the list on. */
typedef struct Trend {
    double metric, inner; /* rank correlation with the number of steps */
    bool paradox;
} Trend;

static Trend trend_of(const ProbeTable *t) {
    double x[PROBE_ROWS], top1[PROBE_ROWS], loss[PROBE_ROWS];
    const int64_t n = t->count - 1;
    for (int64_t i = 0; i < n; i++) {
        x[i] = t->rows[i + 1].value;
        top1[i] = top1_of(&t->rows[i + 1]);
        loss[i] = t->rows[i + 1].loss[1];
    }
    Trend trend = {rank_correlation(x, top1, n), rank_correlation(x, loss, n), false};
    trend.paradox = trend.metric < 0 && trend.inner < 0;
    return trend;
}

static void print_table(const ProbeTable *t) {
    out_printf("%-32s %8s %8s %12s %12s %10s %10s %9s\n", "setting", "top-1 %", "loss",
               "inner before", "inner after", "-cos before", "-cos after", "moved");
    for (int i = 0; i < t->count; i++) {
        const ProbeRow *r = &t->rows[i];
        out_printf("%-32s %8.3f %8.4f %12.4g %12.4g %10.4f %10.4f %9.4f\n", r->setting, top1_of(r),
                   r->score.loss_sum / (double)r->score.scored, r->loss[0], r->loss[1],
                   r->alignment[0], r->alignment[1], r->moved);
    }
}

static void write_row(JsonWriter *w, const ProbeRow *r) {
    json_begin_object(w);
    json_pair_string(w, "setting", r->setting);
    json_pair_number(w, "value", r->value);
    json_pair_int(w, "images", r->score.scored);
    json_pair_number(w, "top1", top1_of(r));
    json_pair_number(w, "loss", r->score.loss_sum / (double)r->score.scored);
    json_pair_number(w, "inner_loss_before", r->loss[0]);
    json_pair_number(w, "inner_loss_after", r->loss[1]);
    json_pair_number(w, "alignment_before", r->alignment[0]);
    json_pair_number(w, "alignment_after", r->alignment[1]);
    json_pair_number(w, "moved", r->moved);
    json_end_object(w);
}

static Status print_json(const ProbeTable *t, const char *mode) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_pair_string(&w, "mode", mode);
    json_pair_string(&w, "output", options.output);
    json_key(&w, "rows");
    json_begin_array(&w);
    for (int i = 0; i < t->count; i++) write_row(&w, &t->rows[i]);
    json_end_array(&w);
    if (strcmp(mode, "steps") == 0) {
        const Trend trend = trend_of(t);
        json_pair_number(&w, "spearman_metric", trend.metric);
        json_pair_number(&w, "spearman_inner_loss", trend.inner);
        json_pair_bool(&w, "paradox", trend.paradox);
    }
    json_end_object(&w);
    const Status s = w.status;
    if (s == STATUS_OK) out_printf("%s\n", w.text);
    json_writer_free(&w);
    return s;
}

static Status report(const ProbeTable *t, const char *mode) {
    if (common.json) return print_json(t, mode);
    if (strcmp(mode, "qk") != 0) print_table(t);
    if (strcmp(mode, "steps") == 0) {
        const Trend trend = trend_of(t);
        out_printf("rank correlation with the steps: top-1 %.3f, inner loss %.3f%s\n", trend.metric,
                   trend.inner,
                   trend.paradox ? "; the inner loss falls while the metric worsens" : "");
    }
    note("written to %s", options.output);
    return STATUS_OK;
}

/* ---- the command ---- */

static Status probe_run(Config *config, int mode) {
    static ProbeTable table;
    Probe p;
    table.count = 0;
    Status s = probe_open(&p, &options, config);
    if (s == STATUS_OK)
        s = modes[mode].sweep ? modes[mode].sweep(&p, &table) : probe_distributions(&p);
    progress_end();
    probe_close(&p);
    return s == STATUS_OK ? report(&table, modes[mode].name) : s;
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
    .summary = "change the inner loop of a trained classifier, and see what it does",
    .synopsis = "ttv ttt probe [flags] steps|ascent|swap|qk CHECKPOINT",
    .examples = "  ttv ttt probe steps --list 1,2,4,8 runs/digits\n"
                "  ttv ttt probe swap --per-layer runs/digits -o swap\n"
                "  ttv ttt probe qk --tsne runs/digits\n",
    .letters = "b=batch-size j=workers m=model o=output",
    .sections = sections,
    .hidden = hidden,
    .run = run,
};
