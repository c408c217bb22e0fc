/* Clocks, medians, recorded calls and test data of `ttv bench`. */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/rng.h"

enum { MAX_SAMPLES = 201, MIN_SAMPLES = 5, MAX_RECORDED = 400 };
/* A sample shorter than this is dominated by the clock and by device_sync. */
static const double SAMPLE_SECONDS = 2e-3;

double bench_clock(void) {
    return seconds_now();
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

/* ---- recorded calls ---- */

typedef struct Replay {
    Device *device;
    DeviceGraph *graph;
} Replay;

static Status launch(void *user) {
    Replay *r = user;
    return device_graph_launch(r->device, r->graph);
}

Status bench_record(Device *d, BenchCall f, void *user, int64_t calls, DeviceGraph **out) {
    char message[1024];
    Status s = STATUS_OK;
    TRY(device_graph_begin(d));
    for (int64_t i = 0; i < calls && s == STATUS_OK; i++) s = f(user);
    snprintf(message, sizeof message, "%s", status_message());
    Status end = device_graph_end(d, out);
    return s == STATUS_OK ? end : status_set(s, "%s", message);
}

/* How many calls a graph holds: enough for a sample, whole rounds of the rotation. */
static int64_t calls_recorded(double one_s, int64_t rotation) {
    double want = SAMPLE_SECONDS / (one_s + 1e-9);
    int64_t calls = want < 1 ? 1 : want > MAX_RECORDED ? MAX_RECORDED : (int64_t)want;
    return (calls + rotation - 1) / rotation * rotation;
}

Status bench_time_recorded(Device *d, BenchCall f, void *user, int64_t rotation, double seconds,
                           double *median_s) {
    Replay r = {.device = d};
    double one;
    if (!device_can_capture(d)) return bench_time(d, f, user, seconds, median_s);
    TRY(time_group(d, f, user, rotation, &one)); /* memory and plans of products */
    TRY(time_group(d, f, user, rotation, &one));
    int64_t calls = calls_recorded(one / (double)rotation, rotation);
    TRY(bench_record(d, f, user, calls, &r.graph));
    Status s = bench_time(d, launch, &r, seconds, median_s);
    *median_s /= (double)calls;
    device_graph_free(d, r.graph);
    return s;
}

/* ---- test data ---- */

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

/* From the host; elements behind the first period repeat it. */
static Status push_values(Device *d, Tensor t, uint64_t seed) {
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

Status bench_fill(Device *d, Tensor t, uint64_t seed) {
    const int64_t count = tensor_count(t), size = (int64_t)dtype_size(t.dtype);
    if ((t.dtype != DTYPE_F32 && t.dtype != DTYPE_BF16) || count <= FILL_PERIOD)
        return push_values(d, t, seed);
    /* What is filled already is copied behind itself, where it is: gigabytes from the host would
     * take longer than measuring. */
    TRY(push_values(d, tensor_1d(t.data, t.dtype, FILL_PERIOD), seed));
    for (int64_t done = FILL_PERIOD; done < count;) {
        const int64_t n = count - done < done ? count - done : done;
        char *to = (char *)t.data + done * size;
        TRY(d->k->copy(d, grad_set(tensor_1d(to, t.dtype, n)), tensor_1d(t.data, t.dtype, n), 1));
        done += n;
    }
    return device_sync(d);
}

Status bench_pull(Device *d, Tensor t, void **host, const char *what) {
    TRY(mem_alloc(host, (int64_t)tensor_bytes(t), 1, what));
    return device_pull(d, *host, t);
}

void bench_number(JsonWriter *w, const char *key, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", value);
    json_pair_number(w, key, strtod(text, NULL));
}

const char *bench_flops_text(const Device *d, double flops, char *text, size_t size) {
    bool card = d->kind == DEVICE_CUDA;
    snprintf(text, size, "%7.*f %cFLOP/s", card ? 1 : 0, (card ? 1e-12 : 1e-9) * flops,
             card ? 'T' : 'G');
    return text;
}
