#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define GUARD      256
#define GUARD_BYTE 0xA5

/* Usual tolerances, relative to the norm of the expected tensor; the largest single error may be a
 * few times that, relative to the largest value. */
#define TOLERANCE_F32  2e-6
#define TOLERANCE_BF16 4e-3
#define LARGEST_ERROR  5.0

clockid_t bench_clock = CLOCK_MONOTONIC;

static void fail_stop(const char *what) {
    fprintf(stderr, "ops_test: %s: %s\n", what, status_message());
    exit(70);
}

static void *allocate(int64_t count, size_t size) {
    void *block;
    if (mem_alloc(&block, count, size, "op test") != STATUS_OK) fail_stop("memory");
    return block;
}

/* splitmix64: the tests need no more than that. */
static uint64_t random_bits(Run *r) {
    uint64_t z = (r->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double random_uniform(Run *r) {
    return (double)(random_bits(r) >> 11) * 0x1p-53;
}

double random_normal(Run *r) {
    const double u = 1.0 - random_uniform(r), v = random_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static double read_value(const void *data, DType dtype, int64_t i) {
    switch (dtype) {
    case DTYPE_F32:
        return (double)((const float *)data)[i];
    case DTYPE_BF16:
        return (double)f32_from_bf16(((const uint16_t *)data)[i]);
    case DTYPE_I64:
        return (double)((const int64_t *)data)[i];
    case DTYPE_I32:
        return (double)((const int32_t *)data)[i];
    case DTYPE_U8:
        return (double)((const uint8_t *)data)[i];
    default:
        return NAN;
    }
}

static void write_value(void *data, DType dtype, int64_t i, double value) {
    switch (dtype) {
    case DTYPE_F32:
        ((float *)data)[i] = (float)value;
        break;
    case DTYPE_BF16:
        ((uint16_t *)data)[i] = bf16_from_f32((float)value);
        break;
    case DTYPE_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case DTYPE_U8:
        ((uint8_t *)data)[i] = (uint8_t)value;
        break;
    default:
        break;
    }
}

static size_t region_bytes(Tensor t) {
    return tensor_bytes(t) + 2 * GUARD;
}

/* Declares a tensor; the caller then fills before + GUARD. */
static RunTensor *declare(Run *r, const char *name, Role role, DType dtype, int rank,
                          const int64_t *shape) {
    if (r->count == RUN_TENSORS) {
        fprintf(stderr, "ops_test: a case declares more than %d tensors\n", RUN_TENSORS);
        exit(70);
    }
    RunTensor *x = &r->tensors[r->count++];
    *x = (RunTensor){.name = name, .role = role, .t = tensor_of(NULL, dtype, rank, shape)};
    const size_t bytes = region_bytes(x->t);
    x->before = allocate((int64_t)bytes, 1);
    x->after = allocate((int64_t)bytes, 1);
    memset(x->before, GUARD_BYTE, bytes);
    if (arena_take(&r->device->step, bytes, &x->region) != STATUS_OK) fail_stop(name);
    x->t.data = (char *)x->region + GUARD;
    r->bytes += (double)tensor_bytes(x->t);
    return x;
}

static Tensor declared(Run *r, RunTensor *x) {
    const int64_t count = tensor_count(x->t);
    x->values = allocate(count, sizeof(double));
    for (int64_t i = 0; i < count; i++) x->values[i] = read_value(x->before + GUARD, x->t.dtype, i);
    const Tensor bytes = tensor_1d(x->region, DTYPE_U8, (int64_t)region_bytes(x->t));
    if (device_push(r->device, bytes, x->before) != STATUS_OK) fail_stop(x->name);
    return x->t;
}

static void fill_random(Run *r, RunTensor *x, double spread) {
    const int64_t count = tensor_count(x->t);
    for (int64_t i = 0; i < count; i++)
        write_value(x->before + GUARD, x->t.dtype, i, spread * random_normal(r));
}

Tensor input(Run *r, const char *name, DType dtype, int rank, const int64_t *shape, double spread) {
    RunTensor *x = declare(r, name, ROLE_INPUT, dtype, rank, shape);
    fill_random(r, x, spread);
    return declared(r, x);
}

Tensor input_of(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                double (*fill)(int64_t i, void *user), void *user) {
    RunTensor *x = declare(r, name, ROLE_INPUT, dtype, rank, shape);
    const int64_t count = tensor_count(x->t);
    for (int64_t i = 0; i < count; i++) write_value(x->before + GUARD, dtype, i, fill(i, user));
    return declared(r, x);
}

Tensor in_place(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                double spread) {
    RunTensor *x = declare(r, name, ROLE_IN_PLACE, dtype, rank, shape);
    fill_random(r, x, spread);
    return declared(r, x);
}

Tensor in_place_of(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                   double (*fill)(int64_t i, void *user), void *user) {
    Tensor t = input_of(r, name, dtype, rank, shape, fill, user);
    r->tensors[r->count - 1].role = ROLE_IN_PLACE;
    return t;
}

/* Outputs start as NaN: an element that is not written, or that was read, shows. */
Tensor output(Run *r, const char *name, DType dtype, int rank, const int64_t *shape) {
    RunTensor *x = declare(r, name, ROLE_OUTPUT, dtype, rank, shape);
    memset(x->before + GUARD, 0xff, tensor_bytes(x->t));
    return declared(r, x);
}

/* 0 set, 1 add, 2 none for the next Grad of the run. */
static int next_grad(Run *r) {
    const int index = r->grads++;
    return r->grad_mode < GRAD_MODES_PLAIN ? r->grad_mode : (index + r->grad_mode) % 3;
}

Grad gradient_in_place(Run *r, const char *name, DType dtype, int rank, const int64_t *shape) {
    const int mode = next_grad(r);
    if (mode == 2) return grad_none();
    return (Grad){in_place(r, name, dtype, rank, shape, 1.0), mode == 1};
}

Grad gradient(Run *r, const char *name, DType dtype, int rank, const int64_t *shape) {
    const int mode = next_grad(r);
    if (mode == 2) return grad_none();
    if (mode == 0) return grad_set(output(r, name, dtype, rank, shape));
    RunTensor *x = declare(r, name, ROLE_ADD, dtype, rank, shape);
    fill_random(r, x, 1.0);
    return grad_add(declared(r, x));
}

static double now(const Run *r) {
    struct timespec t;
    clock_gettime(r->clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One untimed call first, then `repeats` timed ones. */
static double call_started;
static int64_t calls_done;

void call_begin(Run *r) {
    (void)r;
    calls_done = -1;
}

bool call_again(Run *r) {
    calls_done++;
    if (r->repeats == 1) return calls_done < 1;
    if (calls_done == 1) {
        device_sync(r->device);
        call_started = now(r);
    }
    if (calls_done <= r->repeats) return true;
    device_sync(r->device);
    r->seconds = (now(r) - call_started) / (double)r->repeats;
    return false;
}

static RunTensor *find(Run *r, Tensor t) {
    for (int i = 0; i < r->count; i++) {
        if (r->tensors[i].t.data == t.data) return &r->tensors[i];
    }
    fprintf(stderr, "ops_test: a case asks for a tensor that it did not declare\n");
    exit(70);
}

const double *values(Run *r, Tensor t) {
    return find(r, t)->values;
}

double *expected(Run *r, Tensor t) {
    if (!t.data) return NULL;
    RunTensor *x = find(r, t);
    if (!x->expected) x->expected = allocate(tensor_count(x->t), sizeof(double));
    return x->expected;
}

double sigma(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* The functions of the graph learner. */
static double graph_function(UnaryKind f, double x) {
    const double c = sqrt(2.0 / M_PI), u = c * (x + 0.044715 * x * x * x), t = tanh(u);
    const double slope = c * (1.0 + 0.134145 * x * x), bend = c * 0.26829 * x;
    const double s = sigma(x), bell = 1.0 - t * t;
    switch (f) {
    case UNARY_D2GELU:
        return (2.0 - x * x) * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case UNARY_GELU_TANH:
        return 0.5 * x * (1.0 + t);
    case UNARY_DGELU_TANH:
        return 0.5 * (1.0 + t) + 0.5 * x * bell * slope;
    case UNARY_D2GELU_TANH:
        return bell * slope + 0.5 * x * bell * (bend - 2.0 * t * slope * slope);
    case UNARY_D2SIGMOID:
        return s * (1.0 - s) * (1.0 - 2.0 * s);
    case UNARY_TANH:
        return tanh(x);
    case UNARY_DTANH:
        return 1.0 / (cosh(x) * cosh(x));
    case UNARY_D2TANH:
        return -2.0 * tanh(x) / (cosh(x) * cosh(x));
    case UNARY_RELU:
        return fmax(x, 0.0);
    case UNARY_STEP:
        return x > 0.0 ? 1.0 : 0.0;
    case UNARY_SIGN:
        return (double)(x > 0.0) - (double)(x < 0.0);
    case UNARY_EXP:
        return exp(x);
    case UNARY_RSQRT:
        return x > 0.0 ? 1.0 / sqrt(x) : 0.0;
    case UNARY_LOG:
        return log(fmax(x, 1e-30));
    case UNARY_DLOG:
        return x < 1e-30 ? 0.0 : 1.0 / x;
    case UNARY_DRSQRT:
        return x > 0.0 ? -0.5 / (x * sqrt(x)) : 0.0;
    default:
        return NAN;
    }
}

double unary_reference(UnaryKind f, double x) {
    const double s = sigma(x);
    switch (f) {
    case UNARY_SILU:
        return x * s;
    case UNARY_DSILU:
        return s * (1.0 + x * (1.0 - s));
    case UNARY_D2SILU:
        return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s));
    case UNARY_GELU:
        return 0.5 * x * (1.0 + erf(x * M_SQRT1_2));
    case UNARY_DGELU:
        return 0.5 * (1.0 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case UNARY_SIGMOID:
        return s;
    case UNARY_DSIGMOID:
        return s * (1.0 - s);
    case UNARY_SOFTPLUS:
        return fmax(x, 0.0) + log1p(exp(-fabs(x)));
    default:
        return graph_function(f, x);
    }
}

void run_label(const Run *r, char *text, size_t size) {
    static const char *const modes[GRAD_MODES] = {"set", "add", "none", "mix0", "mix1", "mix2"};
    int n = snprintf(text, size, "%s %s", r->item->slot, dtype_name(r->act));
    if (r->grads) n += snprintf(text + n, size - (size_t)n, " %s", modes[r->grad_mode]);
    int last = CASE_PARAMETERS - 1;
    while (last > 0 && r->item->p[last] == 0) last--;
    for (int i = 0; i <= last; i++)
        n += snprintf(text + n, size - (size_t)n, "%s%lld", i ? "," : " (",
                      (long long)r->item->p[i]);
    snprintf(text + n, size - (size_t)n, ")");
}

bool run_case(Run *r, const OpCase *item, Device *device, DType act, int grad_mode, bool reference,
              int64_t repeats) {
    *r = (Run){.item = item,
               .device = device,
               .k = device->k,
               .p = item->p,
               .act = act,
               .grad_mode = grad_mode,
               .reference = reference,
               .repeats = repeats,
               .clock = bench_clock,
               .random = 20260101u};
    item->body(r);
    if (r->status != STATUS_OK) {
        char label[256];
        run_label(r, label, sizeof label);
        printf("FAIL %s: %s\n", label, status_message());
        return false;
    }
    for (int i = 0; i < r->count; i++) {
        RunTensor *x = &r->tensors[i];
        const Tensor bytes = tensor_1d(x->region, DTYPE_U8, (int64_t)region_bytes(x->t));
        if (device_pull(device, x->after, bytes) != STATUS_OK) fail_stop(x->name);
    }
    return true;
}

void run_end(Run *r) {
    for (int i = 0; i < r->count; i++) {
        mem_free(r->tensors[i].before);
        mem_free(r->tensors[i].after);
        mem_free(r->tensors[i].values);
        mem_free(r->tensors[i].expected);
    }
    arena_reset(&r->device->step);
    r->count = 0;
}

static bool complain(const Run *r, const RunTensor *x, const char *what, double number) {
    char label[256], shape[64];
    run_label(r, label, sizeof label);
    printf("FAIL %s on %s: %s %s: %s (%.3g)\n", label, r->k->name, x ? x->name : "-",
           x ? tensor_shape_text(x->t, shape, sizeof shape) : "", what, number);
    return false;
}

bool run_is_clean(const Run *r) {
    bool clean = true;
    if (r->device->scratch.used)
        clean = complain(r, NULL, "bytes left in scratch", (double)r->device->scratch.used);
    for (int i = 0; i < r->count; i++) {
        const RunTensor *x = &r->tensors[i];
        const size_t bytes = tensor_bytes(x->t);
        for (size_t b = 0; b < GUARD && clean; b++) {
            if (x->after[b] != GUARD_BYTE)
                clean = complain(r, x, "wrote in front of the tensor", (double)(GUARD - b));
            else if (x->after[GUARD + bytes + b] != GUARD_BYTE)
                clean = complain(r, x, "wrote behind the tensor", (double)b);
        }
        if (x->role == ROLE_INPUT && memcmp(x->before + GUARD, x->after + GUARD, bytes) != 0)
            clean = complain(r, x, "changed an input", 0.0);
    }
    return clean;
}

/* |actual - wanted| against the norm and against the largest of the wanted values. */
static bool compare(const Run *r, const RunTensor *x, const double *wanted) {
    const bool rough = x->t.dtype == DTYPE_BF16 || r->coarse;
    const double usual = rough ? TOLERANCE_BF16 : TOLERANCE_F32;
    const double tolerance = usual * (r->item->tolerance > 0.0 ? r->item->tolerance : 1.0);
    const int64_t count = tensor_count(x->t);
    double error = 0.0, norm = 0.0, largest_error = 0.0, largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double actual = read_value(x->after + GUARD, x->t.dtype, i);
        if (isnan(wanted[i]) || isinf(wanted[i])) {
            const bool same = isnan(wanted[i]) ? isnan(actual) : actual == wanted[i];
            if (!same) return complain(r, x, "not the expected inf or nan", actual);
            continue;
        }
        const double off = fabs(actual - wanted[i]);
        if (!(off < INFINITY))
            return complain(r, x, "not finite, or not written: element", (double)i);
        error += off * off;
        norm += wanted[i] * wanted[i];
        largest_error = fmax(largest_error, off);
        largest = fmax(largest, fabs(wanted[i]));
    }
    if (sqrt(error) > tolerance * (sqrt(norm) + r->cancelled))
        return complain(r, x, "relative error", sqrt(error / norm));
    if (largest_error > LARGEST_ERROR * tolerance * (largest + r->cancelled))
        return complain(r, x, "largest error", largest_error / largest);
    return true;
}

bool run_matches_reference(const Run *r) {
    bool good = true;
    for (int i = 0; i < r->count; i++) {
        const RunTensor *x = &r->tensors[i];
        if (x->role == ROLE_INPUT) continue;
        if (!x->expected) {
            good = complain(r, x, "the case expects nothing of this output", 0.0);
            continue;
        }
        if (x->role == ROLE_ADD) {
            const int64_t count = tensor_count(x->t);
            for (int64_t e = 0; e < count; e++) x->expected[e] += x->values[e];
        }
        good = compare(r, x, x->expected) && good;
    }
    return good;
}

bool run_matches_run(const Run *r, const Run *other) {
    bool good = true;
    for (int i = 0; i < r->count; i++) {
        const RunTensor *x = &r->tensors[i], *y = &other->tensors[i];
        if (x->role == ROLE_INPUT) continue;
        const int64_t count = tensor_count(x->t);
        double *wanted = allocate(count, sizeof *wanted);
        for (int64_t e = 0; e < count; e++) wanted[e] = read_value(y->after + GUARD, y->t.dtype, e);
        good = compare(r, x, wanted) && good;
        mem_free(wanted);
    }
    return good;
}

bool run_same_bits(const Run *a, const Run *b) {
    for (int i = 0; i < a->count; i++) {
        const RunTensor *x = &a->tensors[i], *y = &b->tensors[i];
        double apart = 0.0;
        if (memcmp(x->after, y->after, region_bytes(x->t)) == 0) continue;
        for (int64_t e = 0; e < tensor_count(x->t); e++)
            apart = fmax(apart, fabs(read_value(x->after + GUARD, x->t.dtype, e) -
                                     read_value(y->after + GUARD, x->t.dtype, e)));
        return complain(a, x, "a second run gave other bits, apart by", apart);
    }
    return true;
}
