/* ops_gradient [--device SPEC] [--source DIR] [--part K/N] [FILTER]: exit 1 when any gradient is
 * wrong, 77 without the device. --source: the source folder, when it has moved since the build.
 * --part: of the cases whose op has FILTER in its name the K-th (from 0) of N parts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "gradient.h"

#define DIRECTIONS     3
#define STEP           0.05
#define TOLERANCE      2e-3 /* of the typical size |grad| |direction| / sqrt(count) */
#define BF16_TOLERANCE 4e-2
#define COUNT_MAX      4096

/* ---- one run of a case ------------------------------------------------------------------ */

typedef struct Harness {
    Device *d;
    Tape *tape;
    const GradientCase *c;
    int inputs;
    Tensor values[CASE_INPUTS], grads[CASE_INPUTS]; /* F32, on the host */
    Tensor weights[2];                              /* r for each use of the op */
    int uses;
    int only; /* the one input that wants a gradient; -1: all */
    DType act;
} Harness;

static void must(Status s) {
    if (s == STATUS_OK) return;
    printf("%s: %s\n", status_name(s), status_message());
    exit(1);
}

static float *floats(Tensor t) {
    return t.data;
}

static Tensor host_tensor(int rank, const int64_t *shape) {
    Tensor t = tensor_of(NULL, DTYPE_F32, rank, shape);
    t.data = calloc((size_t)tensor_count(t), sizeof(float));
    return t;
}

static float rounded(float x) {
    return f32_from_bf16(bf16_from_f32(x));
}

/* Host F32 -> device tensor of the given dtype in the step arena. */
static Tensor push(Harness *h, Tensor host, DType dtype) {
    static uint16_t half[COUNT_MAX];
    Tensor t;
    must(tape_take(h->tape, dtype, host.rank, host.shape, &t));
    if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < tensor_count(host); i++) half[i] = bf16_from_f32(floats(host)[i]);
    must(device_push(h->d, t, dtype == DTYPE_BF16 ? (void *)half : host.data));
    return t;
}

static void pull(Harness *h, Tensor host, Tensor device) {
    static uint16_t half[COUNT_MAX];
    bool narrow = device.dtype == DTYPE_BF16;
    must(device_pull(h->d, narrow ? (void *)half : host.data, device));
    for (int64_t i = 0; narrow && i < tensor_count(host); i++)
        floats(host)[i] = f32_from_bf16(half[i]);
}

static Var *make_input(Harness *h, int i, Var *storage) {
    InputKind kind = h->c->in[i].kind;
    bool narrow = h->act == DTYPE_BF16 && (kind == INPUT_ACT || kind == INPUT_WEIGHT);
    Tensor value = push(h, h->values[i], narrow ? DTYPE_BF16 : DTYPE_F32);
    if (kind == INPUT_FIXED) return tape_input(h->tape, value, "fixed");
    bool wanted = h->only < 0 || h->only == i;
    if (kind == INPUT_ACT)
        return wanted ? tape_input_grad(h->tape, value, "x") : tape_input(h->tape, value, "x");
    memset(storage, 0, sizeof *storage);
    storage->value = value;
    storage->is_param = true;
    storage->wants_grad = wanted;
    storage->name = "parameter";
    must(tape_take(h->tape, DTYPE_F32, value.rank, value.shape, &storage->grad));
    return storage;
}

/* sum(r * y) as an F32 scalar on the tape. */
static Var *weighted_sum(Harness *h, Var *y, int use) {
    Tape *t = h->tape;
    int64_t n = tensor_count(y->value), row[] = {1, n}, column[] = {n, 1}, one = 1;
    if (tape_status(t) != STATUS_OK) return y;
    if (!h->weights[use].data) {
        Rng rng = rng_stream(7, RNG_TEST, (uint64_t)use, 1);
        h->weights[use] = host_tensor(1, &n);
        for (int64_t i = 0; i < n; i++)
            floats(h->weights[use])[i] = rounded((float)rng_normal(&rng));
    }
    Var *r = tape_input(t, push(h, h->weights[use], y->value.dtype), "r");
    Var *l =
        op_matmul(t, op_view(t, y, 2, row), false, op_view(t, r, 2, column), false, 1, DTYPE_F32);
    return op_view(t, l, 1, &one);
}

static double host_sum(Harness *h, Var *y, int use) {
    Tensor host = host_tensor(y->value.rank, y->value.shape);
    double sum = 0;
    pull(h, host, y->value);
    for (int64_t i = 0; i < tensor_count(host); i++)
        sum += (double)floats(host)[i] * floats(h->weights[use])[i];
    free(host.data);
    return sum;
}

/* Forward, and backward into h->grads when `grads`. Returns the scalar, summed in double. */
static double run(Harness *h, bool grads) {
    Var storage[CASE_INPUTS], *in[CASE_INPUTS] = {0}, *loss = NULL, *y[2];
    tape_set_act(h->tape, h->act);
    tape_reset(h->tape, grads);
    for (int i = 0; i < h->inputs; i++) in[i] = make_input(h, i, &storage[i]);
    double sum = 0;
    for (int use = 0; use < h->uses; use++) {
        y[use] = h->c->build(h->tape, in);
        Var *l = weighted_sum(h, y[use], use);
        must(tape_status(h->tape));
        sum += host_sum(h, y[use], use);
        loss = loss ? op_add(h->tape, loss, l, 1.0f) : l;
    }
    if (!grads) return sum;
    must(tape_backward(h->tape, loss, 1.0f));
    for (int i = 0; i < h->inputs; i++)
        if (in[i]->wants_grad) pull(h, h->grads[i], in[i]->grad);
    return sum;
}

static void setup(Harness *h, Device *d, Tape *t, const GradientCase *c) {
    memset(h, 0, sizeof *h);
    h->d = d;
    h->tape = t;
    h->c = c;
    h->only = -1;
    h->act = DTYPE_F32;
    Rng rng = rng_stream(42, RNG_TEST, 0, 0);
    while (h->inputs < CASE_INPUTS && c->in[h->inputs].kind) {
        const CaseInput *in = &c->in[h->inputs];
        Tensor x = host_tensor(in->rank, in->shape);
        int64_t last = tensor_last(x);
        for (int64_t i = 0; i < tensor_count(x); i++)
            floats(x)[i] =
                rounded(in->scale > 0 ? (float)(in->scale * rng_normal(&rng)) : 1.0f / (float)last);
        h->values[h->inputs] = x;
        h->grads[h->inputs++] = host_tensor(in->rank, in->shape);
    }
}

static void teardown(Harness *h) {
    for (int i = 0; i < h->inputs; i++) {
        free(h->values[i].data);
        free(h->grads[i].data);
    }
    for (int i = 0; i < 2; i++) free(h->weights[i].data);
}

/* ---- checks ----------------------------------------------------------------------------- */

static double norm(Tensor t) {
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) sum += (double)floats(t)[i] * floats(t)[i];
    return sqrt(sum);
}

/* The scalar with input i moved by `by` along the direction. */
static double moved(Harness *h, int i, const double *direction, double by) {
    Tensor x = h->values[i], keep = host_tensor(x.rank, x.shape);
    memcpy(keep.data, x.data, tensor_bytes(x));
    for (int64_t j = 0; j < tensor_count(x); j++)
        floats(x)[j] = (float)(floats(keep)[j] + by * direction[j]);
    double l = run(h, false);
    memcpy(x.data, keep.data, tensor_bytes(x));
    free(keep.data);
    return l;
}

/* Largest relative error of input i over the directions; fourth-order central differences. */
static double difference_error(Harness *h, int i) {
    double step = h->c->step > 0 ? h->c->step : STEP, worst = 0;
    int64_t n = tensor_count(h->values[i]);
    double *direction = calloc((size_t)n, sizeof *direction);
    for (int k = 0; k < DIRECTIONS; k++) {
        Rng rng = rng_stream(99, RNG_TEST, (uint64_t)i, (uint64_t)k);
        double exact = 0, length = 0;
        for (int64_t j = 0; j < n; j++) {
            direction[j] = rng_normal(&rng);
            exact += direction[j] * floats(h->grads[i])[j];
            length += direction[j] * direction[j];
        }
        double near = moved(h, i, direction, step) - moved(h, i, direction, -step);
        double far = moved(h, i, direction, 2 * step) - moved(h, i, direction, -2 * step);
        double estimate = (8 * near - far) / (12 * step);
        double size = fmax(norm(h->grads[i]) * sqrt(length / (double)n), 1e-6);
        worst = fmax(worst, fabs(estimate - exact) / size);
    }
    free(direction);
    return worst;
}

static bool has_gradient(const Harness *h, int i) {
    return h->c->in[i].kind != INPUT_FIXED;
}

static int report(const Harness *h, const char *what, int input, double error, double tolerance) {
    if (error <= tolerance) return 0;
    printf("FAIL %s %s: %s, input %d: error %.3g above %.3g\n", h->c->op, h->c->variant, what,
           input, error, tolerance);
    return 1;
}

static int check_differences(Harness *h, int uses, double *worst) {
    int failures = 0;
    h->uses = uses;
    run(h, true);
    for (int i = 0; i < h->inputs; i++) {
        if (!has_gradient(h, i)) continue;
        double error = difference_error(h, i);
        *worst = fmax(*worst, error);
        failures += report(h, uses == 1 ? "set" : "accumulated", i, error, TOLERANCE);
    }
    return failures;
}

/* Norm of a - b over that of a; 0 when the bytes are equal. */
static double distance(Tensor a, Tensor b) {
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(a); i++)
        sum += pow((double)floats(a)[i] - (double)floats(b)[i], 2);
    return memcmp(a.data, b.data, tensor_bytes(a)) == 0 ? 0 : sqrt(sum) / fmax(norm(a), 1e-30);
}

/* One input at a time gets the very bits that it gets among all. */
static int check_single(Harness *h) {
    int failures = 0;
    h->uses = 1;
    for (int i = 0; i < h->inputs; i++) {
        if (!has_gradient(h, i)) continue;
        h->only = -1;
        run(h, true);
        Tensor all = host_tensor(h->grads[i].rank, h->grads[i].shape);
        memcpy(all.data, h->grads[i].data, tensor_bytes(all));
        memset(h->grads[i].data, 0, tensor_bytes(all));
        h->only = i;
        run(h, true);
        failures += report(h, "alone", i, distance(all, h->grads[i]), 0);
        free(all.data);
    }
    h->only = -1;
    return failures;
}

static int check_bf16(Harness *h, double *worst) {
    double tolerance = h->c->bf16_tolerance != 0 ? h->c->bf16_tolerance : BF16_TOLERANCE;
    if (tolerance < 0) return 0;
    int failures = 0;
    for (h->uses = 1; h->uses <= 2; h->uses++) {
        Tensor exact[CASE_INPUTS];
        h->act = DTYPE_F32;
        run(h, true);
        for (int i = 0; i < h->inputs; i++) {
            exact[i] = host_tensor(h->grads[i].rank, h->grads[i].shape);
            memcpy(exact[i].data, h->grads[i].data, tensor_bytes(exact[i]));
        }
        h->act = DTYPE_BF16;
        run(h, true);
        for (int i = 0; i < h->inputs; i++) {
            double size = fmax(norm(exact[i]), 1e-6);
            for (int64_t j = 0; j < tensor_count(exact[i]); j++)
                floats(exact[i])[j] -= floats(h->grads[i])[j];
            double error = norm(exact[i]) / size;
            *worst = fmax(*worst, error);
            failures += report(h, "bf16", i, error, tolerance);
            free(exact[i].data);
        }
    }
    h->act = DTYPE_F32;
    return failures;
}

/* Every op of nn/ops.h must have a case (or a check of its own). */
static int check_complete(const char *source) {
    static const char *const special[] = {
        "cast",          "detach",          "patchify",         "view_tokens",
        "view_blocks",   "image_normalise", "cpe_stats",        "linear_residual_stats",
        "linear_folded", "mlp_folded",      "norm_mean_tokens", "image_prepare"};
    char path[1024], line[512];
    snprintf(path, sizeof path, "%s/nn/ops.h", source);
    FILE *f = fopen(path, "r");
    int failures = 0, seen = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *at = strstr(line, "Var *op_"), *end = at ? strchr(at, '(') : NULL;
        if (!end) continue;
        *end = '\0';
        bool found = false;
        for (int i = 0; gradient_case(i); i++)
            found |= strcmp(gradient_case(i)->op, at + strlen("Var *op_")) == 0;
        for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
            found |= strcmp(special[i], at + strlen("Var *op_")) == 0;
        if (!found) printf("FAIL %s has no gradient case\n", at + strlen("Var *"));
        failures += !found;
        seen++;
    }
    if (f) fclose(f);
    if (seen < 20) printf("FAIL only %d ops found in nn/ops.h\n", seen);
    return failures + (seen < 20);
}

typedef struct Options {
    const char *device, *source, *filter;
    int part, parts;
} Options;

static bool take_options(Options *o, int argc, char **argv) {
    *o = (Options){"cpu", TTV_SOURCE_DIR, "", 0, 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            o->device = argv[++i];
        else if (strcmp(argv[i], "--source") == 0 && i + 1 < argc)
            o->source = argv[++i];
        else if (strcmp(argv[i], "--part") != 0)
            o->filter = argv[i];
        else if (++i == argc || sscanf(argv[i], "%d/%d", &o->part, &o->parts) != 2 || o->part < 0 ||
                 o->part >= o->parts)
            return false;
    }
    return true;
}

static int check_case(Device *d, Tape *t, const GradientCase *c) {
    Harness h;
    double worst = 0, worst_bf16 = 0;
    setup(&h, d, t, c);
    const int failed = check_differences(&h, 1, &worst) + check_differences(&h, 2, &worst) +
                       check_single(&h) + check_bf16(&h, &worst_bf16);
    printf("%s %-14s %-12s %.1e  bf16 %.1e\n", failed ? "FAIL" : "PASS", c->op, c->variant, worst,
           worst_bf16);
    (void)fflush(stdout); /* what a time limit cuts off is known up to there */
    teardown(&h);
    return failed;
}

int main(int argc, char **argv) {
    Options o;
    Device *d;
    Tape *t;
    if (!take_options(&o, argc, argv)) {
        fprintf(stderr, "--part K/N: K from 0 to N - 1\n");
        return 2;
    }
    if (device_open(o.device, &d) == STATUS_DEVICE) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    must(tape_new(d, &t));
    int failures = 0, cases = 0;
    if (o.part == 0)
        failures =
            check_complete(o.source) + check_cast(d) + check_detach(d) + check_patchify_refuses(d);
    const GradientCase *c;
    for (int i = 0; (c = gradient_case(i)) != NULL; i++) {
        if (!strstr(c->op, o.filter) || i % o.parts != o.part) continue;
        failures += check_case(d, t, c);
        cases++;
    }
    tape_free(t);
    device_close(d);
    printf("%d cases, %d failures\n", cases, failures);
    return failures ? 1 : 0;
}
