/* One ViTTT mixer with random parameters, run forward and backward; shared by the test_vittt_*.c
 * files. */
#ifndef TTV_TESTS_UNIT_VITTT_FIXTURE_H
#define TTV_TESTS_UNIT_VITTT_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"
#include "tape_fixture.h"
#include "ttt/vittt_mixer.h"

/* An empty file in the folder for temporary files; its path goes to `path`. */
static inline void temporary_weights(char path[256]) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, 256, "%.200s/ttv-unit-XXXXXX.safetensors", folder ? folder : "/tmp");
    const int file = mkstemps(path, 12);
    assert_true(file >= 0);
    close(file);
}

static inline double norm_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* |a - b| / max(|b|, floor); infinite when anything is not finite. */
static inline double relative(const double *a, const double *b, int64_t n, double floor) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    double scale = fmax(norm_of(b, n), floor);
    return sum == 0 ? 0 : sqrt(sum) / scale;
}

/* Device tensor as doubles (free). */
static inline double *pull_doubles(Device *d, Tensor t) {
    const int64_t n = tensor_count(t);
    void *raw = malloc((size_t)n * 4);
    double *out = malloc((size_t)n * sizeof *out);
    check_ok(device_pull(d, raw, t));
    for (int64_t i = 0; i < n; i++)
        out[i] = t.dtype == DTYPE_BF16 ? (double)f32_from_bf16(((uint16_t *)raw)[i])
                                       : (double)((float *)raw)[i];
    free(raw);
    return out;
}

/* Step-arena tensor with the given values. */
static inline Tensor push_floats(Tape *t, const float *values, DType dtype, int rank,
                                 const int64_t *shape) {
    Tensor out;
    check_ok(tape_take(t, dtype, rank, shape, &out));
    const int64_t n = tensor_count(out);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    for (int64_t i = 0; i < n; i++) half[i] = bf16_from_f32(values[i]);
    check_ok(device_push(tape_device(t), out,
                         dtype == DTYPE_BF16 ? (const void *)half : (const void *)values));
    check_ok(device_sync(tape_device(t)));
    free(half);
    return out;
}

static inline void fill_normal(float *x, int64_t n, uint64_t stream, double scale) {
    Rng r = rng_stream(7, RNG_TEST, stream, 0);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(scale * rng_normal(&r));
}

/* All parameters N(0, scale^2), each of a stream of its own. */
static inline void params_fill_normal(Params *p, double scale) {
    for (int64_t i = 0; i < p->count; i++) {
        Tensor master = p->items[i]->master;
        float *values = malloc(tensor_bytes(master));
        fill_normal(values, tensor_count(master), (uint64_t)i, scale);
        check_ok(device_push(p->device, master, values));
        free(values);
    }
    check_ok(params_refresh(p));
}

typedef struct Size {
    int64_t batch, height, width, channels, heads;
} Size;

typedef struct Fixture {
    Device *device;
    Tape *tape;
    Params params;
    VitttMixer mixer;
    Size size;
    float *x, *dy; /* [B,N,C] */
} Fixture;

static inline int64_t fixture_count(const Fixture *f) {
    return f->size.batch * f->size.height * f->size.width * f->size.channels;
}

/* `scale`: of inputs and parameters; 0.5 makes the inner update as large as the weights. */
static inline void fixture_open(Fixture *f, Size size, DType act, double scale) {
    memset(f, 0, sizeof *f);
    f->size = size;
    check_ok(device_open("cpu", &f->device));
    params_init(&f->params, f->device);
    check_ok(vittt_mixer_register(&f->mixer, &f->params, "attn.", size.channels, size.heads));
    check_ok(params_build(&f->params, act, true));
    params_fill_normal(&f->params, scale);
    check_ok(tape_new(f->device, &f->tape));
    tape_set_act(f->tape, act);
    const int64_t n = fixture_count(f);
    f->x = malloc((size_t)n * sizeof *f->x);
    f->dy = malloc((size_t)n * sizeof *f->dy);
    fill_normal(f->x, n, 100, 1);
    fill_normal(f->dy, n, 101, 1);
}

static inline void fixture_close(Fixture *f) {
    free(f->x);
    free(f->dy);
    tape_free(f->tape);
    params_free(&f->params);
    device_close(f->device);
}

/* y, dx and the parameters' gradients of sum(y dy), each as doubles. */
enum { RESULTS = 9 };
typedef struct Result {
    double *values[RESULTS];
    int64_t counts[RESULTS];
    const char *names[RESULTS];
} Result;

static inline void result_free(Result *r) {
    for (int i = 0; i < RESULTS; i++) free(r->values[i]);
}

static inline Var *sum_of_products(Tape *t, Var *y, Tensor dy) {
    const int64_t n = tensor_count(dy);
    Var *wide = y->value.dtype == DTYPE_F32 ? y : op_cast(t, y, DTYPE_F32);
    Var *row = op_view(t, wide, 2, (int64_t[]){1, n});
    Var *column = op_view(t, tape_input(t, dy, "dy"), 2, (int64_t[]){n, 1});
    return op_view(t, op_matmul(t, row, false, column, false, 1, DTYPE_F32), 1, (int64_t[]){1});
}

static inline Result fixture_run(Fixture *f, VitttForm form) {
    Tape *t = f->tape;
    Result r = {{0}, {0}, {0}};
    const int64_t shape[] = {f->size.batch, f->size.height * f->size.width, f->size.channels};
    f->mixer.form = form;
    params_begin_step(&f->params);
    tape_reset(t, true);
    Var *x = tape_input_grad(t, push_floats(t, f->x, tape_act(t), 3, shape), "x");
    Tensor dy = push_floats(t, f->dy, DTYPE_F32, 3, shape);
    Var *y = vittt_mixer_forward(&f->mixer, t, x, f->size.height, f->size.width);
    check_ok(tape_status(t));
    r.names[0] = "y";
    r.counts[0] = tensor_count(y->value);
    r.values[0] = pull_doubles(f->device, y->value);
    check_ok(tape_backward(t, sum_of_products(t, y, dy), 1));
    check_ok(params_finish_grads(&f->params));
    r.names[1] = "dx";
    r.counts[1] = tensor_count(x->grad);
    r.values[1] = pull_doubles(f->device, x->grad);
    for (int i = 0; i < 7; i++) {
        Param *p = f->params.items[i];
        r.names[2 + i] = p->name;
        r.counts[2 + i] = tensor_count(p->master);
        r.values[2 + i] = pull_doubles(f->device, p->var.grad);
    }
    return r;
}

/* y alone, without recording. */
static inline double *fixture_infer(Fixture *f, VitttForm form, const float *x, int64_t batch) {
    Tape *t = f->tape;
    const int64_t shape[] = {batch, f->size.height * f->size.width, f->size.channels};
    f->mixer.form = form;
    tape_reset(t, false);
    Var *in = tape_input(t, push_floats(t, x, tape_act(t), 3, shape), "x");
    Var *y = vittt_mixer_forward(&f->mixer, t, in, f->size.height, f->size.width);
    check_ok(tape_status(t));
    return pull_doubles(f->device, y->value);
}

/* Largest relative difference over y and all gradients; gradients against at least 1e-3 of the
 * largest. */
static inline double result_distance(const Result *a, const Result *b, const char **worst) {
    double largest = 0, distance = 0;
    for (int i = 1; i < RESULTS; i++) largest = fmax(largest, norm_of(b->values[i], b->counts[i]));
    for (int i = 0; i < RESULTS; i++) {
        double d = relative(a->values[i], b->values[i], b->counts[i], i ? 1e-3 * largest : 0);
        if (!(d <= distance)) {
            distance = d;
            *worst = b->names[i];
        }
    }
    return distance;
}

#endif
