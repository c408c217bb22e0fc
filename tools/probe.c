/* Opening, settings, and the sweeps over the inner loop. */
#include "tools/probe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/nvs_model.h"
#include "tools/run_resume.h"

/* ---- opening ---- */

static Status remember_rules(Probe *p) {
    TRY(mem_alloc((void **)&p->own, p->depth, sizeof *p->own, "a model's rules"));
    TRY(mem_alloc((void **)&p->swaps, p->depth, sizeof *p->swaps, "replaced queries"));
    for (int64_t i = 0; i < p->depth; i++) {
        const FastLayer *l = &p->layers[i];
        LayerRules *own = &p->own[i];
        if (l->kind == LAYER_VITTT) own->vittt = l->vittt->variant;
        if (l->kind == LAYER_GRAPH) own->graph = l->graph->rule;
        if (l->kind != LAYER_LACT) continue;
        own->lact = l->lact->variant;
        own->lact_steps = l->lact->steps;
    }
    return STATUS_OK;
}

Status probe_open(Probe *p, const ProbeOptions *o, Config *config) {
    *p = (Probe){.options = o};
    TRY(run_take_data(config, o->checkpoint, "data scenes"));
    bool nvs;
    TRY(nvs_checkpoint(o->checkpoint, (WeightsChoice)o->weights, &nvs));
    TRY(nvs ? probe_nvs(p, config) : probe_classifier(p, config));
    TRY(remember_rules(p));
    return file_make_folder(o->output);
}

void probe_close(Probe *p) {
    if (p->swaps) probe_set(p, &(ProbeSetting){.layer = -1}); /* the last that opening takes */
    if (p->layers) probe_trace(p, false);
    if (p->subject) p->subject->close(p);
    mem_free(p->layers);
    mem_free(p->own);
    mem_free(p->swaps);
    for (int m = 0; m < PROBE_METRICS; m++) mem_free(p->values[m]);
    mem_free(p->groups);
    *p = (Probe){0};
}

/* ---- settings ---- */

static void set_vittt(VitttMixer *m, const VitttVariant *own, const ProbeSetting *s,
                      const QuerySwap *swap) {
    m->variant = *own;
    if (s->steps > 0) m->variant.steps = s->steps;
    m->variant.ascend_glu ^= (s->ascent & ASCENT_MAIN) != 0;
    m->variant.ascend_dwc ^= (s->ascent & ASCENT_DEPTHWISE) != 0;
    m->swap = swap;
}

/* Keys as queries are a rule of the layer itself. */
static void set_lact(LactLayer *m, const LayerRules *own, const ProbeSetting *s,
                     const QuerySwap *swap) {
    m->variant = own->lact;
    m->steps = s->steps > 0 ? s->steps : own->lact_steps;
    m->variant.ascend ^= (s->ascent & ASCENT_MAIN) != 0;
    m->swap = swap && swap->kind != QUERY_KEYS ? swap : NULL;
    if (swap && swap->kind == QUERY_KEYS) m->variant.query_is_key = true;
}

static void set_graph(SequenceMixer *m, const GraphRule *own, const ProbeSetting *s,
                      const QuerySwap *swap) {
    m->rule = *own;
    if (s->steps > 0) m->rule.steps = s->steps;
    m->rule.ascend ^= (s->ascent & ASCENT_MAIN) != 0;
    m->swap = swap;
}

void probe_set(Probe *p, const ProbeSetting *s) {
    const ProbeSetting plain = {.layer = -1};
    for (int64_t i = 0; i < p->depth; i++) {
        FastLayer *l = &p->layers[i];
        const ProbeSetting *now = s->layer < 0 || s->layer == i ? s : &plain;
        p->swaps[i] = (QuerySwap){now->query, (uint64_t)p->options->seed, i};
        const bool replaces = now->query != QUERY_OWN && !now->attention;
        const QuerySwap *swap = replaces ? &p->swaps[i] : NULL;
        if (l->kind == LAYER_VITTT) set_vittt(l->vittt, &p->own[i].vittt, now, swap);
        if (l->kind == LAYER_LACT) set_lact(l->lact, &p->own[i], now, swap);
        if (l->kind == LAYER_GRAPH) set_graph(l->graph, &p->own[i].graph, now, swap);
    }
    if (p->subject->attention)
        p->subject->attention(p, s->attention && s->query != QUERY_OWN ? p->swaps : NULL);
}

void probe_trace(Probe *p, bool on) {
    for (int64_t i = 0; i < p->depth; i++) fast_layer_trace(&p->layers[i], on);
}

/* ---- measuring ---- */

static void inner_add(InnerLoop *sum, const InnerLoop *one, double factor) {
    for (int k = 0; k < 2; k++) {
        sum->loss[k] += factor * one->loss[k];
        sum->alignment[k] += factor * one->alignment[k];
    }
    sum->moved += factor * one->moved;
}

static Status inner_losses(Probe *p, ProbeRow *row) {
    probe_trace(p, true);
    for (int64_t i = 0; i < p->kept; i++) {
        TRY(p->subject->trace(p, i));
        for (int64_t l = 0; l < p->depth; l++) {
            InnerLoop one;
            TRY(fast_layer_inner(p->device, &p->layers[l], &one));
            inner_add(&row->layers[l], &one, 1 / (double)p->kept);
        }
    }
    probe_trace(p, false);
    for (int64_t l = 0; l < p->depth; l++)
        inner_add(&row->inner, &row->layers[l], 1 / (double)p->depth);
    return STATUS_OK;
}

static Status keep_base(const Probe *p, ProbeTable *t) {
    for (int m = 0; m < PROBE_METRICS; m++) {
        TRY(mem_alloc((void **)&t->base[m], p->samples, sizeof(double), "scores"));
        memcpy(t->base[m], p->values[m], (size_t)p->samples * sizeof(double));
    }
    return STATUS_OK;
}

static Status intervals(const Probe *p, const ProbeTable *t, ProbeRow *row) {
    const bool by_scene = p->options->unit == UNIT_SCENE;
    const Bootstrap b = {p->options->resamples, (uint64_t)p->options->seed, 0.95,
                         by_scene ? p->groups : NULL};
    for (int m = 0; m < PROBE_METRICS; m++)
        TRY(bootstrap_mean(&b, p->values[m], t->base[m], p->samples, &row->metric[m],
                           &row->difference[m]));
    return STATUS_OK;
}

Status probe_measure(Probe *p, ProbeTable *t, const char *name, double value,
                     const ProbeSetting *s) {
    if (t->count == PROBE_ROWS)
        return status_set(STATUS_USAGE, "more than %d settings", PROBE_ROWS);
    ProbeRow *row = &t->rows[t->count++];
    *row = (ProbeRow){.value = value};
    snprintf(row->setting, sizeof row->setting, "%s", name);
    TRY(mem_alloc((void **)&row->layers, p->depth, sizeof *row->layers, "inner losses"));
    probe_set(p, s);
    TRY(p->subject->score(p));
    row->samples = p->samples;
    if (t->count == 1) TRY(keep_base(p, t));
    TRY(intervals(p, t, row));
    TRY(inner_losses(p, row));
    progress_line(5, "%s: %s %.3f", name, p->subject->metrics[0], row->metric[0].value);
    return STATUS_OK;
}

void probe_table_free(ProbeTable *t) {
    for (int i = 0; i < t->count; i++) mem_free(t->rows[i].layers);
    for (int m = 0; m < PROBE_METRICS; m++) {
        mem_free(t->base[m]);
        t->base[m] = NULL;
    }
    t->count = 0;
}

static Status measure_own(Probe *p, ProbeTable *t, double value) {
    return probe_measure(p, t, "baseline", value, &(ProbeSetting){.layer = -1});
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

static Status check_list(const char *list) {
    int64_t steps;
    Status s;
    while ((s = next_number(&list, &steps)) == STATUS_OK) continue;
    return s == STATUS_END ? STATUS_OK : s;
}

static int64_t own_steps(const Probe *p) {
    const LayerRules *own = &p->own[0];
    const int64_t steps = p->layers[0].kind == LAYER_VITTT   ? own->vittt.steps
                          : p->layers[0].kind == LAYER_GRAPH ? own->graph.steps
                                                             : own->lact_steps;
    return steps > 1 ? steps : 1;
}

Status probe_steps(Probe *p, ProbeTable *t) {
    const char *at = p->options->list;
    int64_t steps;
    Status s;
    if (p->layers[0].kind == LAYER_GRAPH && p->own[0].graph.visibility == GRAPH_CAUSAL)
        return status_set(STATUS_USAGE, "a causal mixer has one inner step a token: its steps "
                                        "cannot be swept");
    TRY(check_list(at));
    TRY(measure_own(p, t, (double)own_steps(p)));
    while ((s = next_number(&at, &steps)) == STATUS_OK) {
        char name[32];
        snprintf(name, sizeof name, "steps %lld", (long long)steps);
        TRY(probe_measure(p, t, name, (double)steps, &(ProbeSetting){.steps = steps, .layer = -1}));
    }
    return s == STATUS_END ? probe_write(p, t, "steps", "inner steps") : s;
}

Status probe_ascent(Probe *p, ProbeTable *t) {
    const struct {
        const char *name;
        int ascent;
    } settings_of[] = {{"ascent of the GLU branch", ASCENT_MAIN},
                       {"ascent of the depthwise branch", ASCENT_DEPTHWISE},
                       {"ascent", ASCENT_MAIN | ASCENT_DEPTHWISE}};
    const bool branches = p->layers[0].kind == LAYER_VITTT;
    TRY(measure_own(p, t, 0));
    for (int i = branches ? 0 : 2; i < 3; i++)
        TRY(probe_measure(p, t, settings_of[i].name, i + 1,
                          &(ProbeSetting){.ascent = settings_of[i].ascent, .layer = -1}));
    return probe_write(p, t, "ascent", NULL);
}

static bool has_own_queries(const Probe *p) {
    const FastLayer *l = &p->layers[0];
    return !(l->kind == LAYER_VITTT && p->own[0].vittt.query_is_key) &&
           !(l->kind == LAYER_LACT && p->own[0].lact.query_is_key);
}

static const struct {
    QueryKind kind;
    const char *name;
} swaps_of[] = {{QUERY_KEYS, "q = k"},
                {QUERY_SHUFFLED, "q of another token"},
                {QUERY_NOISE, "q = noise of its length"}};
enum { SWAPS = sizeof swaps_of / sizeof *swaps_of };

Status probe_swap(Probe *p, ProbeTable *t) {
    char name[64];
    if (!has_own_queries(p))
        return status_set(STATUS_USAGE,
                          "the model's queries are its keys already: nothing to swap");
    TRY(measure_own(p, t, -1));
    for (int i = 0; i < SWAPS; i++) {
        snprintf(name, sizeof name, "%s in all layers", swaps_of[i].name);
        TRY(probe_measure(p, t, name, -1, &(ProbeSetting){.query = swaps_of[i].kind, .layer = -1}));
    }
    for (int i = 0; p->subject->attention && i < SWAPS; i++) {
        snprintf(name, sizeof name, "%s in the attention", swaps_of[i].name);
        TRY(probe_measure(
            p, t, name, -1,
            &(ProbeSetting){.query = swaps_of[i].kind, .attention = true, .layer = -1}));
    }
    for (int64_t l = 0; p->options->per_layer && l < p->depth; l++) {
        snprintf(name, sizeof name, "q = k in layer %lld", (long long)l);
        TRY(probe_measure(p, t, name, (double)l, &(ProbeSetting){.query = QUERY_KEYS, .layer = l}));
    }
    return probe_write(p, t, "swap", NULL);
}
