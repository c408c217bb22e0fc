/* scores_parity [--device D] [MODEL...]: scores of many pictures in passes that record nothing, as
 * evaluation runs them, whose layer norms lie within products (vittt_fold): BF16 against F32 on the
 * same card, which model_parity compares with the CPU; with folded norms and without.
 *
 * Prints one line per check with its number and what it may be at most. Exit 0, 1 when a check
 * failed, 2 usage, 77 without the device.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "side.h"

#define LIMIT 1.2e-2 /* of the logits' norm: that of model_parity; an H200 showed 5.4e-3 */

typedef struct Case {
    const char *name;
    int64_t width, heads, batch;
    bool folds; /* on a card with the fused products */
} Case;

/* The last one is too small for them. */
static const Case cases[] = {
    {"tiny", 192, 6, 256, true},
    {"small", 384, 6, 250, true},
    {"base", 768, 12, 256, true},
    {"few", 192, 6, 3, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static int checks, failures;

static VitttConfig config_of(const Case *c) {
    return (VitttConfig){.preset = "custom",
                         .mixer = "base",
                         .image_size = 224,
                         .patch = 16,
                         .width = c->width,
                         .depth = 12,
                         .heads = c->heads,
                         .mlp_ratio = 4,
                         .classes = 1000};
}

static void judge(const Case *c, const char *what, double error, double limit) {
    const bool good = error <= limit;
    checks++;
    failures += !good;
    printf("%s %-5s %-24s %.1e, at most %.0e\n", good ? "PASS" : "FAIL", c->name, what, error,
           limit);
    fflush(stdout);
}

/* *weights: drawn by the first side, given to the others. */
static Values scores(const Case *c, SideOptions *o, Values *weights, bool fold, bool *folded) {
    const VitttConfig config = config_of(c);
    Side *s = side_open(&config, 1, 1, o);
    if (!o->weights) *weights = side_pull(s, s->params.master);
    o->weights = weights;
    Values out = side_scores(s, c->batch, fold, folded);
    side_close(s);
    return out;
}

static void check_case(const Case *c, const char *device) {
    SideOptions o = {.device = device, .act = DTYPE_F32, .form = VITTT_FUSED, .spoil = 1};
    bool apart, folded;
    Values weights, want = scores(c, &o, &weights, true, &folded);
    judge(c, "folded in F32", folded, 0);
    o.act = DTYPE_BF16;
    Values got = scores(c, &o, &weights, false, &apart);
    Values within = scores(c, &o, &weights, true, &folded);
    judge(c, "norms apart", values_distance(got.v, want.v, got.count, 0), LIMIT);
    judge(c, folded ? "norms within products" : "norms apart again",
          values_distance(within.v, want.v, got.count, 0), LIMIT);
    if (folded && !c->folds) judge(c, "folded where few rows are", 1, 0);
    if (!folded && c->folds) printf("     %-5s this card folds nothing\n", c->name);
    values_free(&within);
    values_free(&got);
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
    printf("%s\n", d->name);
    device_close(d);
    for (int i = 0; i < CASES; i++)
        if (wanted(&cases[i], argc, argv)) check_case(&cases[i], device);
    printf("%d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}
