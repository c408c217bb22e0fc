/* `ttv bench ttt`: fast-weight layers alone, without projections around them (fastweight.md 8): the
 * variants of the chunked LaCT layer, recurrent beside parallel, over sequence lengths. Tokens lie
 * on the device in the dtype of --precision; the forward pass is recorded where that is possible.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/bench_passes.h"
#include "tools/bench_ttt.h"
#include "tools/cli.h"
#include "ttt/chunked.h"

/* What one measurement runs on. */
typedef struct TttPass {
    Bench *b;
    Tape *tape;
    int variant;
    ChunkedForm form;
    ChunkedRule rule;
    int64_t tokens;
    Tensor q, k, v, rate[3], momentum, weight[3];
} TttPass;

/* ---- cost (fastweight.md 8): a multiply-add is 2 ---- */

static double newton_schulz_flops(double m, double n) {
    const double small = m < n ? m : n, large = m < n ? n : m;
    return 5 * (4 * small * small * large + 2 * small * small * small);
}

static double pass_flops(const TttPass *p) {
    const BenchOptions *o = p->b->options;
    const double n = (double)p->tokens, d = (double)o->head_width, h = d;
    const double chunks = (double)((p->tokens + p->rule.chunk - 1) / p->rule.chunk);
    const double muon = p->rule.no_muon ? 0 : newton_schulz_flops(d, h) * chunks;
    double one = 4 * n * d * d + muon;
    if (!p->rule.linear) one = 8 * n * d * h + 4 * n * h * d + muon;
    if (!p->rule.linear && !p->rule.static_gates) one = 12 * n * d * h + 6 * n * h * d + 3 * muon;
    return one * (double)(o->batch * o->fast_heads);
}

/* Tokens in and out and a number per rate and token, at least. */
static double pass_bytes(const TttPass *p) {
    const BenchOptions *o = p->b->options;
    const double rows = (double)(o->batch * o->fast_heads * p->tokens);
    const double scalars = (p->variant < 1 ? 3 : p->variant < 4) + (p->variant < 5);
    return rows * (4 * (double)o->head_width * (double)dtype_size(p->b->act) + 4 * scalars);
}

/* ---- one pass ---- */

static Var *input(const TttPass *p, Tensor x) {
    return tensor_is_none(x) ? NULL : tape_input(p->tape, x, "tokens");
}

static Status run_pass(void *user) {
    TttPass *p = user;
    tape_reset(p->tape, false);
    ChunkedTokens in = {.q = input(p, p->q),
                        .k = input(p, p->k),
                        .v = input(p, p->v),
                        .momentum = input(p, p->momentum)};
    for (int j = 0; j < 3; j++) {
        in.rate[j] = input(p, p->rate[j]);
        in.weight[j] = input(p, p->weight[j]);
    }
    chunked_forward(&p->rule, p->form, p->tape, &in, NULL);
    return tape_status(p->tape);
}

static Status take(Device *d, DType dtype, int rank, const int64_t *shape, uint64_t seed,
                   Tensor *out) {
    TRY(arena_tensor(&d->state, dtype, rank, shape, out));
    return bench_fill(d, *out, seed);
}

static Status open_pass(TttPass *p) {
    const BenchOptions *o = p->b->options;
    Device *d = p->b->device;
    const int64_t e = o->head_width;
    const int64_t rows[] = {o->batch, o->fast_heads, p->tokens, e};
    const int64_t weight[] = {1, o->fast_heads, e, e};
    TRY(chunked_variant(p->variant, &p->rule));
    p->rule.chunk = o->chunk;
    p->rule.composed = o->composed;
    p->rule.newton_schulz.bf16 = p->b->act == DTYPE_BF16;
    TRY(tape_new(d, &p->tape));
    tape_set_act(p->tape, p->b->act);
    TRY(take(d, p->b->act, 4, rows, 1, &p->q));
    TRY(take(d, p->b->act, 4, rows, 2, &p->k));
    TRY(take(d, p->b->act, 4, rows, 3, &p->v));
    for (int j = 0; j < 3; j++) {
        const bool used = j == 1 || !p->rule.linear;
        const bool rated = p->variant < 4 && (j == 1 || p->variant == 0);
        if (used) TRY(take(d, DTYPE_F32, 4, weight, 4 + (uint64_t)j, &p->weight[j]));
        if (rated) TRY(take(d, DTYPE_F32, 3, rows, 7 + (uint64_t)j, &p->rate[j]));
    }
    return p->variant < 5 ? take(d, DTYPE_F32, 3, rows, 10, &p->momentum) : STATUS_OK;
}

static void close_pass(TttPass *p) {
    if (p->tape) tape_free(p->tape);
    Device *d = p->b->device;
    Arena *arenas[] = {&d->state, &d->step, &d->scratch};
    for (int i = 0; i < 3; i++) { /* the next measurement's own peak */
        arena_reset(arenas[i]);
        arenas[i]->peak = 0;
    }
}

static Status measure(Bench *b, int variant, ChunkedForm form, int64_t tokens, TttTable *table) {
    const BenchOptions *o = b->options;
    TttPass p = {.b = b, .variant = variant, .form = form, .tokens = tokens};
    double seconds = 0;
    Status s = open_pass(&p);
    if (s == STATUS_OK) s = bench_time_recorded(b->device, run_pass, &p, 1, o->seconds, &seconds);
    PassMemory memory;
    pass_memory(b->device, &memory);
    if (s == STATUS_OK) {
        const double rate = (double)tokens * (double)o->batch / seconds;
        const TttRow row = {variant,
                            form,
                            tokens,
                            seconds,
                            rate,
                            pass_flops(&p) / seconds,
                            pass_bytes(&p) / seconds,
                            memory.total};
        Profile found;
        if (o->profile) s = profile_run(b->device, run_pass, &p, &found);
        if (s == STATUS_OK) s = ttt_report(b, table, &row, o->profile ? &found : NULL);
    }
    close_pass(&p);
    return s;
}

/* ---- the list ---- */

/* Whether one of the filter's words, which commas part, is in the name. */
static bool wanted(const Bench *b, int variant, ChunkedForm form) {
    char name[32], words[CONFIG_TEXT];
    snprintf(name, sizeof name, "V%d %s", variant, ttt_forms[form]);
    snprintf(words, sizeof words, "%s", b->options->filter);
    if (!words[0]) return true;
    char *next = NULL;
    for (char *word = strtok_r(words, ",", &next); word; word = strtok_r(NULL, ",", &next))
        if (strstr(name, word)) return true;
    return false;
}

/* The next number of a list "2048,32768"; STATUS_END behind the last. */
static Status next_length(const char **at, int64_t *out) {
    char *end;
    if (!**at) return STATUS_END;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (end == *at || errno || *out < 1 || *out > ((int64_t)1 << 24) || (*end && *end != ','))
        return status_set(STATUS_USAGE, "--tokens '%s': expected lengths separated by commas", *at);
    *at = end + (*end == ',');
    return STATUS_OK;
}

/* Looks at all of them before the first is measured. */
static Status check_lengths(const Bench *b) {
    const char *at = b->options->tokens;
    int64_t tokens;
    Status s = STATUS_OK;
    while (s == STATUS_OK) s = next_length(&at, &tokens);
    return s == STATUS_END ? STATUS_OK : s;
}

static Status all_lengths(Bench *b, TttTable *table) {
    const char *at = b->options->tokens;
    int64_t tokens;
    Status s;
    while ((s = next_length(&at, &tokens)) == STATUS_OK)
        for (int variant = 0; variant <= 6; variant++)
            for (int form = 0; form < 2; form++) {
                ChunkedRule rule;
                TRY(chunked_variant(variant, &rule));
                if (!wanted(b, variant, (ChunkedForm)form) ||
                    (form == CHUNKED_PARALLEL && !chunked_has_parallel(&rule)))
                    continue;
                TRY(measure(b, variant, (ChunkedForm)form, tokens, table));
            }
    return s == STATUS_END ? STATUS_OK : s;
}

Status bench_ttt(Bench *b) {
    const BenchOptions *o = b->options;
    TttTable table = {.options = o};
    TRY(check_lengths(b));
    if (!b->json) {
        out_printf("fast-weight layers: batch %lld, %lld heads of %lld, chunks of %lld tokens%s\n",
                   (long long)o->batch, (long long)o->fast_heads, (long long)o->head_width,
                   (long long)o->chunk, o->composed ? ", composed" : "");
    } else {
        json_key(b->json, "ttt");
        json_begin_array(b->json);
    }
    Status s = all_lengths(b, &table);
    if (b->json) json_end_array(b->json);
    return s == STATUS_OK && o->output[0] ? ttt_write(&table) : s;
}
