/* scores_parity [--device D] [MODEL...]: scores of many pictures in passes that record nothing, as
 * evaluation runs them, whose layer norms lie within products (vittt_fold): BF16 against F32 on the
 * same card, which model_parity compares with the CPU; with folded norms and without.
 *
 * As many norms as device_folds_norms promises must be within products, on a Hopper card all of
 * the larger models', and then the scores must differ from those with norms apart by rounding, or
 * the product was not used.
 *
 * Prints one line per check with its number and what it may be at most. Exit 0, 1 when a check
 * failed, 2 usage, 77 without the device.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "side.h"

#define DEPTH 12
#define LIMIT 1.2e-2 /* of the logits' norm: that of model_parity; an H200 showed 5.4e-3 */

typedef struct Case {
    const char *name;
    int64_t width, heads, batch;
    int folds; /* norms within products on a Hopper card: of a block's two, that of qkv only where
                * its columns fill tiles */
} Case;

/* The last one is too small for them. */
static const Case cases[] = {
    {"tiny", 192, 6, 256, DEPTH},
    {"small", 384, 6, 250, DEPTH},
    {"base", 768, 12, 256, 2 * DEPTH},
    {"few", 192, 6, 3, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int checks, failures;

static VitttConfig config_of(const Case *c) {
    return (VitttConfig){.preset = "custom",
                         .mixer = "base",
                         .image_size = 224,
                         .patch = 16,
                         .width = c->width,
                         .depth = DEPTH,
                         .heads = c->heads,
                         .mlp_ratio = 4,
                         .classes = 1000};
}

static void judge(const Case *c, const char *what, double error, double limit) {
    const bool good = error <= limit;
    checks++;
    failures += !good;
    printf("%s %-5s %-25s %.1e, at most %.0e\n", good ? "PASS" : "FAIL", c->name, what, error,
           limit);
    fflush(stdout);
}

static void judge_count(const Case *c, const char *what, int count, int want) {
    const bool good = count == want;
    checks++;
    failures += !good;
    printf("%s %-5s %-25s %d, must be %d\n", good ? "PASS" : "FAIL", c->name, what, count, want);
    fflush(stdout);
}

/* *weights: drawn by the first side, given to the others. */
static Values scores(const Case *c, SideOptions *o, Values *weights, bool fold, Folds *folds) {
    const VitttConfig config = config_of(c);
    Side *s = side_open(&config, 1, 1, o);
    if (!o->weights) *weights = side_pull(s, s->params.master);
    o->weights = weights;
    Values out = side_scores(s, c->batch, fold, folds);
    side_close(s);
    return out;
}

/* By the name that the driver gives a card. */
static bool is_hopper(const char *card) {
    return strstr(card, "H100") || strstr(card, "H200") || strstr(card, "H800");
}

static void check_case(const Case *c, const char *device, const char *card) {
    SideOptions o = {.device = device, .act = DTYPE_F32, .form = VITTT_FUSED, .spoil = 1};
    Folds folds;
    Values weights, want = scores(c, &o, &weights, true, &folds);
    judge_count(c, "folded in F32", folds.done, 0);
    o.act = DTYPE_BF16;
    Values apart = scores(c, &o, &weights, false, &folds);
    judge_count(c, "folded unasked", folds.done, 0);
    Values within = scores(c, &o, &weights, true, &folds);
    judge_count(c, "norms within products", folds.done, folds.promised);
    if (is_hopper(card)) judge_count(c, "promised by a Hopper card", folds.promised, c->folds);
    judge(c, "norms apart", values_distance(apart.v, want.v, apart.count, 0), LIMIT);
    judge(c, folds.done ? "within products" : "apart again",
          values_distance(within.v, want.v, within.count, 0), LIMIT);
    judge_count(c, "bits of their own",
                memcmp(apart.v, within.v, sizeof *apart.v * (size_t)apart.count) != 0,
                folds.done > 0);
    values_free(&within);
    values_free(&apart);
    values_free(&want);
    values_free(&weights);
}

static bool wanted(const Case *item, int argc, char **argv) {
    for (int i = optind; i < argc; i++)
        if (strcmp(argv[i], item->name) == 0) return true;
    return optind == argc;
}

int main(int argc, char **argv) {
    static const struct option flags[] = {{"device", required_argument, NULL, 'd'}, {0}};
    const char *device = "cuda";
    Device *d;
    int flag;
    while ((flag = getopt_long(argc, argv, "", flags, NULL)) != -1) {
        if (flag != 'd') {
            fputs("usage: scores_parity [--device cuda] [tiny|small|base|few...]\n", stderr);
            return 2;
        }
        device = optarg;
    }
    if (device_open(device, &d) != STATUS_OK) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    char card[sizeof d->name];
    memcpy(card, d->name, sizeof card);
    printf("%s\n", card);
    device_close(d);
    for (int i = 0; i < CASES; i++)
        if (wanted(&cases[i], argc, argv)) check_case(&cases[i], device, card);
    printf("%d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}
