/* model_parity [flags] [MODEL...]: whole models on a card against the CPU.
 *
 * For each model, on the same weights and pictures: logits, loss, every gradient, and training
 * steps with everything that a real run does (mixed pictures, drop path, clipping, AdamW, moving
 * average, recorded graphs). Then the card against itself, bit for bit: the same run again, call by
 * call, and resumed from a checkpoint. Then checkpoints that cross over to the other device.
 *
 * Prints one line per check with its number and what it may be at most. Exit 0, 1 when a check
 * failed, 2 usage, 77 without the device.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "core/clock.h"

typedef struct Check {
    const Case *item;
    const char *device, *reference, *weight;
    int form, only; /* Precision, or -1 */
    DType reference_act;
    double spoil;
    int64_t steps;
    char folder[64];
    /* of the CPU in F32 */
    Values logits, gradients, start, trained;
    double loss, *losses;
} Check;

static int checks, failures;

/* ---- verdicts --------------------------------------------------------------------------- */

static void judge(const Check *c, const char *precision, const char *what, double error,
                  double limit, const char *detail) {
    const bool good = error <= limit;
    checks++;
    failures += !good;
    printf("%s %-5s %s %-25s  %.1e, at most %.0e%s%s\n", good ? "PASS" : "FAIL", c->item->name,
           precision, what, error, limit, *detail ? ": " : "", detail);
    fflush(stdout);
}

static void judge_bits(const Check *c, const char *precision, const char *what, bool same) {
    checks++;
    failures += !same;
    printf("%s %-5s %s %-25s  %s\n", same ? "PASS" : "FAIL", c->item->name, precision, what,
           same ? "the same bits" : "bits differ");
    fflush(stdout);
}

static void judge_gradients(const Check *c, const char *precision, const Params *p,
                            const Values *got, const Limits *l) {
    double largest = 0, worst = -1;
    const char *name = "";
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        const int64_t n = tensor_count(item->master);
        largest = fmax(largest, values_norm(c->gradients.v + item->offset, n));
    }
    for (int64_t i = 0; i < p->count; i++) {
        const Param *item = p->items[i];
        const double error = values_distance(got->v + item->offset, c->gradients.v + item->offset,
                                             tensor_count(item->master), 1e-3 * largest);
        if (error <= worst) continue;
        worst = error;
        name = item->name;
    }
    judge(c, precision, "gradients", values_distance(got->v, c->gradients.v, c->gradients.count, 0),
          l->whole, "");
    judge(c, precision, "worst gradient", worst, l->gradient, name);
}

/* Losses step by step, and the way that the weights went since `start`. */
static void judge_training(const Check *c, const char *precision, const char *what, const Side *s,
                           const Values *start, const Values *weights, const Limits *l) {
    char label[48], detail[32];
    double worst = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < c->steps; i++) {
        double error = fabs(s->losses[i] - c->losses[i]) / fabs(c->losses[i]);
        if (isnan(error)) error = INFINITY;
        if (error <= worst) continue;
        worst = error;
        at = i;
    }
    snprintf(label, sizeof label, "%s, losses", what);
    snprintf(detail, sizeof detail, "step %lld of %lld", (long long)at + 1, (long long)c->steps);
    judge(c, precision, label, worst, l->loss, detail);

    double sum = 0, scale = 0;
    for (int64_t i = 0; i < weights->count; i++) {
        const double want = (double)c->trained.v[i] - c->start.v[i];
        const double got = (double)weights->v[i] - start->v[i];
        sum += (got - want) * (got - want);
        scale += want * want;
    }
    snprintf(label, sizeof label, "%s, update", what);
    judge(c, precision, label, sqrt(sum / scale), l->update, "");
}

/* ---- sides ------------------------------------------------------------------------------ */

static Side *open_card(const Check *c, Precision p) {
    const SideOptions o = {
        c->device, p == BF16 ? DTYPE_BF16 : DTYPE_F32, p == TF32, c->form, c->spoil, c->weight,
        &c->start};
    return side_open(&c->item->config, c->item->batch, c->steps, &o);
}

static Side *open_reference(const Check *c) {
    const SideOptions o = {
        c->reference, c->reference_act, false, VITTT_FUSED, 1, NULL, c->start.v ? &c->start : NULL};
    return side_open(&c->item->config, c->item->batch, c->steps, &o);
}

static void clear_folder(const Check *c) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'/*", c->folder);
    if (system(command) != 0) must(STATUS_IO, "clearing the run folder");
}

static void train(const Check *c, Side *s, int64_t until, bool resume, bool no_graphs) {
    if (!resume) clear_folder(c);
    side_train(s, c->folder, until, resume, no_graphs);
}

/* Everything that a resumed run continues from. */
enum { BLOCKS = 4 };
typedef struct Snapshot {
    Values block[BLOCKS];
    double *losses;
} Snapshot;

static Snapshot snapshot_take(Side *s) {
    Snapshot out = {.losses = calloc((size_t)s->steps, sizeof(double))};
    const Tensor blocks[BLOCKS] = {s->params.master, s->optim.m, s->optim.v, s->ema.average};
    for (int i = 0; i < BLOCKS; i++) out.block[i] = side_pull(s, blocks[i]);
    memcpy(out.losses, s->losses, (size_t)s->steps * sizeof(double));
    return out;
}

static void snapshot_free(Snapshot *s) {
    for (int i = 0; i < BLOCKS; i++) values_free(&s->block[i]);
    free(s->losses);
}

/* `from`: the first step whose loss `s` has seen itself. */
static bool same_bits(const Snapshot *want, Side *s, int64_t from) {
    Snapshot got = snapshot_take(s);
    bool same = memcmp(want->losses + from, got.losses + from,
                       (size_t)(s->steps - from) * sizeof(double)) == 0;
    for (int i = 0; i < BLOCKS; i++)
        same = same && memcmp(want->block[i].v, got.block[i].v,
                              (size_t)got.block[i].count * sizeof(float)) == 0;
    snapshot_free(&got);
    return same;
}

/* ---- the checks ------------------------------------------------------------------------- */

static void run_reference(Check *c) {
    const double begun = seconds_now();
    Side *s = open_reference(c);
    side_pass(s, &c->logits, &c->gradients, &c->loss);
    c->start = side_pull(s, s->params.master);
    train(c, s, c->steps, false, false);
    c->trained = side_pull(s, s->params.master);
    c->losses = calloc((size_t)c->steps, sizeof(double));
    memcpy(c->losses, s->losses, (size_t)c->steps * sizeof(double));
    printf("     %-5s reference: loss %.6f, after %lld steps %.6f; %.1f s on %s\n", c->item->name,
           c->loss, (long long)c->steps, c->losses[c->steps - 1], seconds_now() - begun,
           s->d->name);
    fflush(stdout);
    side_close(s);
}

static void check_pass(const Check *c, Side *s, Precision p) {
    Values logits, gradients;
    double loss;
    const Limits *l = limits_of(c->item, p);
    side_pass(s, &logits, &gradients, &loss);
    const char *name = precision_names[p];
    judge(c, name, "logits", values_distance(logits.v, c->logits.v, logits.count, 0), l->forward,
          "");
    judge(c, name, "loss", fabs(loss - c->loss) / fabs(c->loss), l->start, "");
    judge_gradients(c, name, &s->params, &gradients, l);
    values_free(&logits);
    values_free(&gradients);
}

static void check_again(const Check *c, Precision p, const Snapshot *want, bool no_graphs) {
    Side *s = open_card(c, p);
    train(c, s, c->steps, false, no_graphs);
    judge_bits(c, precision_names[p], no_graphs ? "call by call" : "the same run again",
               same_bits(want, s, 0));
    side_close(s);
}

static void check_resume(const Check *c, Precision p, const Snapshot *want, int64_t half) {
    Side *s = open_card(c, p);
    train(c, s, half, false, false);
    side_close(s);
    s = open_card(c, p);
    train(c, s, c->steps, true, false);
    judge_bits(c, precision_names[p], "resumed", same_bits(want, s, half));
    side_close(s);
}

/* A run of which the first part is done by one device and the rest by the other. */
static void check_crossing(const Check *c, bool to_card, int64_t half) {
    Side *s = to_card ? open_reference(c) : open_card(c, FP32);
    train(c, s, half, false, false);
    double *first = calloc((size_t)half, sizeof(double));
    memcpy(first, s->losses, (size_t)half * sizeof(double));
    side_close(s);
    s = to_card ? open_card(c, FP32) : open_reference(c);
    train(c, s, c->steps, true, false);
    memcpy(s->losses, first, (size_t)half * sizeof(double));
    Values weights = side_pull(s, s->params.master);
    judge_training(c, "fp32", to_card ? "begun on the CPU" : "ended on the CPU", s, &c->start,
                   &weights, limits_of(c->item, FP32));
    values_free(&weights);
    free(first);
    side_close(s);
}

static void check_precision(const Check *c, Precision p) {
    const int64_t half = (c->steps + 1) / 3;
    Side *s = open_card(c, p);
    check_pass(c, s, p);
    if (p == TF32) {
        side_close(s);
        return;
    }
    Values start = side_pull(s, s->params.master);
    train(c, s, c->steps, false, false);
    Snapshot snapshot = snapshot_take(s);
    judge_training(c, precision_names[p], "training", s, &start, &snapshot.block[0],
                   limits_of(c->item, p));
    values_free(&start);
    side_close(s);
    check_again(c, p, &snapshot, false);
    if (c->item->kind == CASE_SMALL) {
        check_again(c, p, &snapshot, true);
        if (half > 0) check_resume(c, p, &snapshot, half);
    }
    snapshot_free(&snapshot);
}

static void check_model(Check *c) {
    const int64_t half = (c->steps + 1) / 3;
    run_reference(c);
    for (int p = 0; p < PRECISIONS; p++)
        if (c->only < 0 || c->only == p) check_precision(c, (Precision)p);
    if (c->item->kind == CASE_SMALL && half > 0 && (c->only < 0 || c->only == FP32)) {
        check_crossing(c, false, half);
        check_crossing(c, true, half);
    }
    values_free(&c->logits);
    values_free(&c->gradients);
    values_free(&c->start);
    values_free(&c->trained);
    free(c->losses);
}

/* ---- main ------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: model_parity [--device cuda|cpu] [--steps N] [--form fused|composed|pairs]\n"
    "                    [--precision fp32|tf32|bf16] [--reference-precision fp32|bf16]\n"
    "                    [--spoil FACTOR [--weight NAME]] [MODEL...]\n"
    "models: odd even wide stem hier tiny small base; all of them when none is named;\n"
    "        h_tiny h_small h_base\n"
    "--form: of the mixer on --device; --spoil: scales one of its weights, which must fail\n";

static int find_form(const char *name) {
    const char *const forms[] = {"fused", "composed", "pairs"};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, forms[i]) == 0) return i;
    return -1;
}

static int find_precision(const char *name) {
    for (int i = 0; i < PRECISIONS; i++)
        if (strcmp(name, precision_names[i]) == 0) return i;
    return PRECISIONS;
}

static bool parse(int argc, char **argv, Check *c) {
    static const struct option flags[] = {{"device", required_argument, NULL, 'd'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"form", required_argument, NULL, 'f'},
                                          {"spoil", required_argument, NULL, 'x'},
                                          {"weight", required_argument, NULL, 'w'},
                                          {"precision", required_argument, NULL, 'p'},
                                          {"reference-precision", required_argument, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    int flag;
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (flag == 'd') c->device = optarg;
        if (flag == 's') c->steps = atoi(optarg);
        if (flag == 'f') c->form = find_form(optarg);
        if (flag == 'x') c->spoil = atof(optarg);
        if (flag == 'w') c->weight = optarg;
        if (flag == 'p') c->only = find_precision(optarg);
        if (flag == 'r') {
            const int p = find_precision(optarg);
            if (p != FP32 && p != BF16) return false;
            c->reference_act = p == BF16 ? DTYPE_BF16 : DTYPE_F32;
        }
        if (flag == '?') return false;
    }
    for (int i = optind; i < argc; i++) {
        int k = 0;
        while (k < CASES && strcmp(argv[i], cases[k].name) != 0) k++;
        if (k == CASES) return false;
    }
    return c->steps >= 1 && c->form >= 0 && c->only < PRECISIONS;
}

static bool wanted(const Case *item, int argc, char **argv) {
    for (int i = optind; i < argc; i++)
        if (strcmp(argv[i], item->name) == 0) return true;
    return optind == argc && item->kind != CASE_BY_NAME;
}

/* A folder in memory where there is one: the runs save their state. */
static void make_folder(Check *c) {
    const char *base = getenv("TMPDIR");
    if (!base) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(c->folder, sizeof c->folder, "%.40s/ttv-parity-XXXXXX", base);
    if (!mkdtemp(c->folder)) must(status_errno("%s", c->folder), "making a run folder");
}

int main(int argc, char **argv) {
    Check c = {.device = "cuda",
               .reference = "cpu",
               .reference_act = DTYPE_F32,
               .only = -1,
               .steps = 20,
               .spoil = 1};
    Device *d;
    if (!parse(argc, argv, &c)) {
        fputs(usage, stderr);
        return 2;
    }
    if (device_open(c.device, &d) != STATUS_OK) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    printf("%s against %s\n", d->name, c.reference);
    device_close(d);
    make_folder(&c);
    for (int i = 0; i < CASES; i++) {
        const double begun = seconds_now();
        c.item = &cases[i];
        if (!wanted(c.item, argc, argv)) continue;
        check_model(&c);
        printf("     %-5s done in %.1f s\n", c.item->name, seconds_now() - begun);
    }
    clear_folder(&c);
    rmdir(c.folder);
    printf("%d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}
