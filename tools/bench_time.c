/* Clocks, medians, test data and ceilings of `ttv bench`. */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/memory.h"
#include "core/rng.h"

enum { MAX_SAMPLES = 201, MIN_SAMPLES = 5 };
/* A sample shorter than this is dominated by the clock and by device_sync. */
static const double SAMPLE_SECONDS = 2e-3;

double bench_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof(double), compare_doubles);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Seconds of `calls` calls of f, until the device has finished. */
static Status time_group(Device *d, BenchCall f, void *user, int64_t calls, double *seconds) {
    double start = bench_clock();
    for (int64_t i = 0; i < calls; i++) TRY(f(user));
    TRY(device_sync(d));
    *seconds = bench_clock() - start;
    return STATUS_OK;
}

Status bench_time(Device *d, BenchCall f, void *user, double seconds, double *median_s) {
    double samples[MAX_SAMPLES], one;
    TRY(time_group(d, f, user, 1, &one)); /* warm-up: caches, primitives, arenas */
    TRY(time_group(d, f, user, 1, &one));
    int64_t calls = one < SAMPLE_SECONDS ? (int64_t)(SAMPLE_SECONDS / (one + 1e-9)) + 1 : 1;

    double start = bench_clock();
    int64_t n = 0;
    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || bench_clock() - start < seconds)) {
        TRY(time_group(d, f, user, calls, &samples[n]));
        n++;
    }
    *median_s = bench_median(samples, n) / (double)calls;
    return STATUS_OK;
}

/* Values repeat after this many elements: drawing gigabytes would take longer than measuring. */
enum { FILL_PERIOD = 1 << 20 };

static void fill_period(DType dtype, unsigned char *host, int64_t count, uint64_t seed) {
    Rng rng = rng_stream(seed, RNG_TEST, 0, 0);
    for (int64_t i = 0; i < count; i++) {
        uint32_t draw = rng_u32(&rng);
        float x = 0.05f + 0.9f * (float)(draw >> 8) * 0x1p-24f;
        uint16_t half = dtype == DTYPE_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        switch (dtype) {
        case DTYPE_F32:
            memcpy(host + 4 * i, &x, 4);
            break;
        case DTYPE_F64:
            memcpy(host + 8 * i, &(double){x}, 8);
            break;
        case DTYPE_BF16:
        case DTYPE_F16:
            memcpy(host + 2 * i, &half, 2);
            break;
        case DTYPE_U8:
            host[i] = (unsigned char)(draw >> 24);
            break;
        case DTYPE_I32:
        case DTYPE_I64:
            break; /* counters: zero, as allocated */
        }
    }
}

Status bench_fill(Device *d, Tensor t, uint64_t seed) {
    size_t bytes = tensor_bytes(t), period = FILL_PERIOD * dtype_size(t.dtype);
    if (period > bytes) period = bytes;
    unsigned char *host;
    TRY(mem_alloc((void **)&host, (int64_t)bytes, 1, "bench data"));
    fill_period(t.dtype, host, (int64_t)(period / dtype_size(t.dtype)), seed);
    for (size_t at = period; at < bytes; at += period)
        memcpy(host + at, host, bytes - at < period ? bytes - at : period);
    Status s = device_push(d, t, host);
    if (s == STATUS_OK) s = device_sync(d);
    mem_free(host);
    return s;
}

typedef struct Ceiling {
    Device *device;
    Tensor y, x, w;
} Ceiling;

static Status run_product(void *user) {
    Ceiling *c = user;
    return c->device->k->linear(c->device, c->y, tensor_none(), c->x, c->w, tensor_none(),
                                ACT_NONE);
}

static Status run_copy(void *user) {
    Ceiling *c = user;
    return c->device->k->copy(c->device, grad_set(c->y), c->x, 1.0f);
}

static Status take_filled(Device *d, DType dtype, int64_t rows, int64_t columns, Tensor *out) {
    int64_t shape[2] = {rows, columns};
    TRY(arena_tensor(&d->step, dtype, 2, shape, out));
    return bench_fill(d, *out, 1);
}

static Status measure_product(Bench *b) {
    Device *d = b->device;
    int64_t n = d->kind == DEVICE_CUDA ? 8192 : 1536;
    Ceiling c = {.device = d};
    double seconds;
    TRY(take_filled(d, b->act, n, n, &c.y));
    TRY(take_filled(d, b->act, n, n, &c.x));
    TRY(take_filled(d, b->act, n, n, &c.w));
    TRY(bench_time(d, run_product, &c, b->options->seconds, &seconds));
    b->peak_flops = 2.0 * (double)n * (double)n * (double)n / seconds;
    return STATUS_OK;
}

double bench_copy_bytes(const Bench *b, int i) {
    int64_t first = b->device->kind == DEVICE_CUDA ? 1 << 23 : 1 << 20;
    return (double)(first << (2 * i));
}

static Status measure_copy(Bench *b, int i) {
    Device *d = b->device;
    Ceiling c = {.device = d};
    double seconds;
    int64_t floats =
        (int64_t)bench_copy_bytes(b, i) / (2 * (int64_t)sizeof(float)); /* read, written */
    TRY(take_filled(d, DTYPE_F32, 1, floats, &c.y));
    TRY(take_filled(d, DTYPE_F32, 1, floats, &c.x));
    TRY(bench_time(d, run_copy, &c, b->options->seconds, &seconds));
    b->peak_bytes[i] = bench_copy_bytes(b, i) / seconds;
    return STATUS_OK;
}

double bench_copy_ceiling(const Bench *b, double bytes) {
    int i = 0;
    while (i + 1 < BENCH_COPIES && bytes > bench_copy_bytes(b, i)) i++;
    return b->peak_bytes[i];
}

Status bench_ceilings(Bench *b) {
    if (b->peak_flops > 0) return STATUS_OK;
    Status s = measure_product(b);
    for (int i = 0; i < BENCH_COPIES && s == STATUS_OK; i++) {
        arena_reset(&b->device->step);
        s = measure_copy(b, i);
    }
    arena_reset(&b->device->step);
    return status_context(s, "measuring the ceilings");
}

void bench_number(JsonWriter *w, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    json_pair_number(w, key, strtod(text, NULL));
}
