/* Reading, comparing and counting for all kinds of golden files. */
#include "golden.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "nn/ops.h"

/* fp32: what the vectors promise of an f32 implementation (shared/golden/README.md). The others are
 * the rounding of the operands (tf32 2^-11, bf16 2^-9) grown through a few layers and the backward.
 */
double golden_tolerance(const Golden *g) {
    static const double usual[] = {
        [GOLDEN_FP32] = 1e-5, [GOLDEN_TF32] = 1e-2, [GOLDEN_BF16] = 5e-2};
    const bool plain = g->device->kind == DEVICE_CPU && g->act == DTYPE_F32; /* it has no tf32 */
    const GoldenPrecision p = plain ? GOLDEN_FP32 : g->precision;
    return g->limits[p] > 0 ? g->limits[p] : usual[p];
}

void golden_set_limits(Golden *g, double fp32, double tf32, double bf16) {
    g->limits[GOLDEN_FP32] = fp32;
    g->limits[GOLDEN_TF32] = tf32;
    g->limits[GOLDEN_BF16] = bf16;
    g->cosine = 0;
}

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

bool golden_has(const Golden *g, const char *prefix) {
    for (int64_t i = 0; i < safetensors_count(g->file); i++)
        if (starts_with(safetensors_at(g->file, i)->name, prefix)) return true;
    return false;
}

Status golden_entry(Golden *g, const SafeEntry **out, const char *name) {
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        const SafeEntry *e = safetensors_at(g->file, i);
        if (strcmp(e->name, name) == 0) {
            g->seen[i] = 1;
            *out = e;
            return STATUS_OK;
        }
    }
    return status_set(STATUS_DATA, "tensor '%s' is missing", name);
}

static Status read_array(Golden *g, GoldenArray *out, const char *name) {
    const SafeEntry *e = NULL;
    TRY(golden_entry(g, &e, name));
    const int folded = e->rank > TENSOR_MAX_RANK ? e->rank - TENSOR_MAX_RANK : 0;
    *out = (GoldenArray){.rank = e->rank - folded};
    memcpy(out->shape, e->shape + folded, (size_t)out->rank * sizeof out->shape[0]);
    for (int i = 0; i < folded; i++) out->shape[0] *= e->shape[i];
    TRY(shape_count(e->rank, e->shape, &out->count));
    void *values;
    TRY(mem_alloc(&values, out->count, sizeof(double), name));
    Status s = safetensors_read(e, tensor_of(values, DTYPE_F64, out->rank, out->shape));
    if (s != STATUS_OK) {
        mem_free(values);
        return s;
    }
    out->values = values;
    return STATUS_OK;
}

Status golden_read(Golden *g, GoldenArray *out, const char *name, ...) {
    char full[256];
    va_list args;
    va_start(args, name);
    vsnprintf(full, sizeof full, name, args);
    va_end(args);
    return read_array(g, out, full);
}

Status golden_meta_int(const Golden *g, const char *key, int64_t *out) {
    const char *text = safetensors_meta(g->file, key);
    if (!text) return status_set(STATUS_DATA, "metadata '%s' is missing", key);
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return status_set(STATUS_DATA, "metadata '%s' is '%s', expected a whole number", key, text);
    *out = value;
    return STATUS_OK;
}

/* ---- to and from the device ----------------------------------------------------------------- */

static Status to_f32(const GoldenArray *a, float **out) {
    void *memory;
    TRY(mem_alloc(&memory, a->count, sizeof(float), "golden values"));
    *out = memory;
    for (int64_t i = 0; i < a->count; i++) (*out)[i] = (float)a->values[i];
    return STATUS_OK;
}

Status golden_push(Tape *t, const GoldenArray *a, DType dtype, Tensor *out) {
    TRY(tape_take(t, dtype, a->rank, a->shape, out));
    float *host;
    TRY(to_f32(a, &host));
    if (dtype == DTYPE_BF16) { /* in place: 2 bytes for each 4 */
        uint16_t *half = (uint16_t *)(void *)host;
        for (int64_t i = 0; i < a->count; i++) {
            float value;
            memcpy(&value, host + i, sizeof value);
            uint16_t rounded = bf16_from_f32(value);
            memcpy(half + i, &rounded, sizeof rounded);
        }
    }
    Status s = device_push(tape_device(t), *out, host);
    if (s == STATUS_OK) s = device_sync(tape_device(t));
    mem_free(host);
    return s;
}

static Status pull(Device *d, Tensor t, double **out) {
    void *raw, *values;
    const int64_t n = tensor_count(t);
    if (t.dtype != DTYPE_F32 && t.dtype != DTYPE_BF16)
        return status_set(STATUS_INTERNAL, "result is %s", dtype_name(t.dtype));
    TRY(mem_alloc(&raw, n, dtype_size(t.dtype), "a result"));
    Status s = mem_alloc(&values, n, sizeof(double), "a result");
    if (s == STATUS_OK) s = device_pull(d, raw, t);
    if (s != STATUS_OK) {
        mem_free(raw);
        return s;
    }
    *out = values;
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = t.dtype == DTYPE_F32 ? (double)((float *)raw)[i]
                                         : (double)f32_from_bf16(((uint16_t *)raw)[i]);
    mem_free(raw);
    return STATUS_OK;
}

static Status fill_param(Golden *g, Params *p, Param *item, const char *prefix) {
    GoldenArray a;
    TRY(golden_read(g, &a, "%s%s", prefix, item->name));
    Status s = STATUS_OK;
    float *host = NULL;
    if (a.count != tensor_count(item->master))
        s = status_set(STATUS_DATA, "tensor '%s%s' has %lld elements, expected %lld", prefix,
                       item->name, (long long)a.count, (long long)tensor_count(item->master));
    if (s == STATUS_OK) s = to_f32(&a, &host);
    if (s == STATUS_OK) s = device_push(p->device, item->master, host);
    if (s == STATUS_OK) s = device_sync(p->device);
    mem_free(host);
    mem_free(a.values);
    return s;
}

Status golden_fill_params(Golden *g, Params *p, const char *prefix) {
    for (int64_t i = 0; i < p->count; i++) TRY(fill_param(g, p, p->items[i], prefix));
    return params_refresh(p);
}

/* ---- comparing --------------------------------------------------------------------------------
 */

static double norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static double relative_error(const double *want, const double *got, int64_t n, double floor) {
    double sum = 0, scale = fmax(norm(want, n), floor);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) return NAN;
        sum += (got[i] - want[i]) * (got[i] - want[i]);
    }
    if (sum == 0) return 0;
    return scale > 0 ? sqrt(sum) / scale : INFINITY;
}

/* fastweight.md 9: BF16 gradients through Newton-Schulz are not comparable element by element. */
static bool points_alike(const Golden *g, const double *want, const double *got, int64_t n) {
    double dot = 0;
    if (!(g->cosine > 0) || g->precision != GOLDEN_BF16) return false;
    for (int64_t i = 0; i < n; i++) dot += want[i] * got[i];
    return dot > g->cosine * norm(want, n) * norm(got, n);
}

static void count_result(Golden *g, const char *name, const char *form, double error, bool good) {
    g->checked++;
    g->failed += !good;
    if (!(error <= g->worst)) { /* also when not a number */
        g->worst = error;
        snprintf(g->worst_name, sizeof g->worst_name, "%.200s, %.40s", name, form);
    }
}

Status golden_compare(Golden *g, const char *name, const char *form, Tensor actual, double floor) {
    GoldenArray want;
    double *got = NULL;
    TRY(read_array(g, &want, name));
    Status s = STATUS_OK;
    if (want.count != tensor_count(actual))
        s = status_set(STATUS_DATA, "tensor '%s' has %lld elements, the result has %lld", name,
                       (long long)want.count, (long long)tensor_count(actual));
    if (s == STATUS_OK) s = pull(g->device, actual, &got);
    if (s == STATUS_OK) {
        double error = relative_error(want.values, got, want.count, floor);
        bool good = error <= golden_tolerance(g) || points_alike(g, want.values, got, want.count);
        printf("  %-42s %-9s %9.2e  %s\n", name, form, error, good ? "ok" : "FAIL");
        count_result(g, name, form, error, good);
        mem_free(got);
    }
    mem_free(want.values);
    return s;
}

Status golden_compare_bytes(Golden *g, const char *name, const uint8_t *actual, int64_t count) {
    const SafeEntry *e = NULL;
    TRY(golden_entry(g, &e, name));
    if (e->dtype != DTYPE_U8 || (int64_t)e->bytes != count)
        return status_set(STATUS_DATA, "tensor '%s' is not %lld bytes of U8", name,
                          (long long)count);
    int64_t differing = 0;
    for (int64_t i = 0; i < count; i++) differing += e->data[i] != actual[i];
    printf("  %-42s %-9s %4lld of %lld bytes differ  %s\n", name, "bytes", (long long)differing,
           (long long)count, differing == 0 ? "ok" : "FAIL");
    count_result(g, name, "bytes", (double)differing, differing == 0);
    return STATUS_OK;
}

Status golden_compare_number(Golden *g, const char *name, double actual, double tolerance) {
    GoldenArray want;
    TRY(golden_read(g, &want, "%s", name));
    bool one = want.count == 1;
    /* Equal infinities differ by nothing. */
    double error = !one ? NAN : actual == want.values[0] ? 0 : fabs(actual - want.values[0]);
    mem_free(want.values);
    if (!one) return status_set(STATUS_DATA, "tensor '%s' is not one number", name);
    bool ok = error <= tolerance; /* false for NaN */
    printf("  %-42s %-9s %.9g, off by %.2e  %s\n", name, "number", actual, error,
           ok ? "ok" : "FAIL");
    count_result(g, name, "number", error, ok);
    return STATUS_OK;
}

Status golden_gradient_floor(Golden *g, const char *prefix, double *floor) {
    *floor = 0;
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        const char *name = safetensors_at(g->file, i)->name;
        if (!starts_with(name, prefix)) continue;
        unsigned char seen = g->seen[i]; /* looking for the scale is no check */
        GoldenArray a;
        TRY(read_array(g, &a, name));
        g->seen[i] = seen;
        double n = norm(a.values, a.count);
        if (n > *floor) *floor = n;
        mem_free(a.values);
    }
    *floor *= 1e-3;
    return STATUS_OK;
}

Status golden_check_gradients(Golden *g, Params *p, const char *prefix, const char *form,
                              double floor) {
    for (int64_t i = 0; i < p->count; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, p->items[i]->name);
        TRY(golden_compare(g, name, form, p->items[i]->var.grad, floor));
    }
    return STATUS_OK;
}

/* As a product of a row and a column. */
Var *golden_weighted_sum(Tape *t, Var *y, Tensor dy) {
    const int64_t n = tensor_count(dy);
    Var *wide = y->value.dtype == DTYPE_F32 ? y : op_cast(t, y, DTYPE_F32);
    Var *row = op_view(t, wide, 2, (int64_t[]){1, n});
    Var *column = op_view(t, tape_input(t, dy, "dy"), 2, (int64_t[]){n, 1});
    Var *product = op_matmul(t, row, false, column, false, 1, DTYPE_F32);
    return op_view(t, product, 1, (int64_t[]){1});
}

void golden_skip(Golden *g, const char *prefix, const char *reason) {
    int64_t count = 0;
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        if (g->seen[i] || !starts_with(safetensors_at(g->file, i)->name, prefix)) continue;
        g->seen[i] = 1;
        count++;
    }
    if (count == 0) return;
    printf("  %s* (%lld tensors)  skipped: %s\n", prefix, (long long)count, reason);
    g->skipped += count;
}

void golden_finish(Golden *g) {
    for (int64_t i = 0; i < safetensors_count(g->file); i++) {
        if (g->seen[i]) continue;
        printf("  %-42s nobody knows this tensor  FAIL\n", safetensors_at(g->file, i)->name);
        g->failed++;
    }
}
