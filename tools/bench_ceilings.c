/* The ceilings that `ttv bench` compares with: what the device reaches in a large product, and in
 * copies of growing size.
 */
#include "tools/bench.h"

#include "tools/cli.h"

/* More than any cache of a card holds (H200: 60 MB), with a margin for what stays by chance. */
#define COLD_BYTES 256e6

enum { COPY_SETS = 32 };

typedef struct Ceiling {
    Device *device;
    Tensor y[COPY_SETS], x[COPY_SETS], w;
    int64_t sets, next;
} Ceiling;

int64_t bench_sets(const Device *d, double bytes, int64_t most) {
    if (d->kind != DEVICE_CUDA || bytes >= COLD_BYTES) return 1;
    int64_t sets = (int64_t)(COLD_BYTES / (bytes + 1)) + 1;
    return sets < most ? sets : most;
}

static Status run_product(void *user) {
    Ceiling *c = user;
    return c->device->k->linear(c->device, c->y[0], tensor_none(), c->x[0], c->w, tensor_none(),
                                ACT_NONE);
}

static Status run_copy(void *user) {
    Ceiling *c = user;
    int64_t i = c->next++ % c->sets;
    return c->device->k->copy(c->device, grad_set(c->y[i]), c->x[i], 1.0f);
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
    TRY(take_filled(d, b->act, n, n, &c.y[0]));
    TRY(take_filled(d, b->act, n, n, &c.x[0]));
    TRY(take_filled(d, b->act, n, n, &c.w));
    TRY(bench_time_recorded(d, run_product, &c, 1, b->options->seconds, &seconds));
    b->peak_flops = 2.0 * (double)n * (double)n * (double)n / seconds;
    return STATUS_OK;
}

/* Bytes moved by copy i: 1 MB, 4 MB, ...; on a card 8 MB, 32 MB, ... 2 GB. */
static double copy_bytes(const Bench *b, int i) {
    int64_t first = b->device->kind == DEVICE_CUDA ? 1 << 23 : 1 << 20;
    return (double)(first << (2 * i));
}

static Status measure_copy(Bench *b, int i) {
    Device *d = b->device;
    Ceiling c = {.device = d, .sets = bench_sets(d, copy_bytes(b, i), COPY_SETS)};
    double seconds;
    int64_t floats = (int64_t)copy_bytes(b, i) / (2 * (int64_t)sizeof(float)); /* read, written */
    for (int64_t set = 0; set < c.sets; set++) {
        TRY(take_filled(d, DTYPE_F32, 1, floats, &c.y[set]));
        TRY(take_filled(d, DTYPE_F32, 1, floats, &c.x[set]));
    }
    TRY(bench_time_recorded(d, run_copy, &c, c.sets, b->options->seconds, &seconds));
    b->peak_bytes[i] = copy_bytes(b, i) / seconds;
    return STATUS_OK;
}

double bench_copy_ceiling(const Bench *b, double bytes) {
    int i = 0, best = 0;
    while (i + 1 < BENCH_COPIES && bytes > copy_bytes(b, i)) i++;
    if (b->device->kind != DEVICE_CUDA) return b->peak_bytes[i];
    for (i = 1; i < BENCH_COPIES; i++)
        if (b->peak_bytes[i] > b->peak_bytes[best]) best = i;
    return b->peak_bytes[best];
}

Status bench_ceilings(Bench *b) {
    if (b->peak_flops > 0) return STATUS_OK;
    progress_line(10, "ceilings: product and copies");
    Status s = measure_product(b);
    for (int i = 0; i < BENCH_COPIES && s == STATUS_OK; i++) {
        arena_reset(&b->device->step);
        s = measure_copy(b, i);
    }
    arena_reset(&b->device->step);
    return status_context(s, "measuring the ceilings");
}

static void report_json(const Bench *b) {
    json_key(b->json, "ceilings");
    json_begin_object(b->json);
    bench_number(b->json, "gflops", 1e-9 * b->peak_flops);
    json_key(b->json, "copies");
    json_begin_array(b->json);
    for (int i = 0; i < BENCH_COPIES; i++) {
        json_begin_object(b->json);
        bench_number(b->json, "bytes", copy_bytes(b, i));
        bench_number(b->json, "gbytes_per_s", 1e-9 * b->peak_bytes[i]);
        json_end_object(b->json);
    }
    json_end_array(b->json);
    json_end_object(b->json);
}

void bench_report_ceilings(const Bench *b) {
    char text[32];
    if (b->json) {
        report_json(b);
        return;
    }
    out_printf("ceilings: product %s in %s; copy",
               bench_flops_text(b->device, b->peak_flops, text, sizeof text), dtype_name(b->act));
    for (int i = 0; i < BENCH_COPIES; i++)
        out_printf("%s %.0f GB/s of %.0f MB", i ? "," : "", 1e-9 * b->peak_bytes[i],
                   copy_bytes(b, i) / (1 << 20));
    out_text("\n");
}
