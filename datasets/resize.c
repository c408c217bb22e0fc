#include "datasets/resize.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/resize_passes.h"

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double lanczos(double x) {
    return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

typedef struct Kernel {
    double (*weight)(double x);
    double support;
} Kernel;

static const Kernel kernels[] = {
    [FILTER_BILINEAR] = {bilinear, 1.0},
    [FILTER_BICUBIC] = {bicubic, 2.0},
    [FILTER_LANCZOS] = {lanczos, 3.0},
};

/* One direction: output i of [first, first+count) is the weighted sum of inputs [start[i],
 * start[i]+taps[i]). */
typedef struct Axis {
    int64_t in, out;      /* full sizes */
    int64_t first, count; /* the window of the output that is wanted */
    int64_t stride;       /* weights per output */
    bool copy;            /* size unchanged: the pass is skipped */
    int32_t *start, *taps, *weights;
} Axis;

static double axis_support(const Axis *a, const Kernel *k) {
    double scale = (double)a->in / (double)a->out;
    return k->support * (scale < 1.0 ? 1.0 : scale);
}

static size_t axis_bytes(const Axis *a) {
    return (size_t)a->count * (size_t)(a->stride + 2) * sizeof(int32_t);
}

/* vittt.md 8.3. `real` holds the weights of one output. */
static void axis_fill(Axis *a, const Kernel *k, double *real) {
    double scale = (double)a->in / (double)a->out;
    double stretch = scale < 1.0 ? 1.0 : scale;
    double support = axis_support(a, k), shrink = 1.0 / stretch;
    for (int64_t i = 0; i < a->count; i++) {
        double centre = ((double)(a->first + i) + 0.5) * scale;
        int64_t from = (int64_t)(centre - support + 0.5), to = (int64_t)(centre + support + 0.5);
        if (from < 0) from = 0;
        if (to > a->in) to = a->in;
        double sum = 0.0;
        for (int64_t j = from; j < to; j++) {
            double w = k->weight(((double)j - centre + 0.5) * shrink);
            real[j - from] = w;
            sum += w;
        }
        int32_t *fixed = a->weights + i * a->stride;
        for (int64_t j = 0; j < to - from; j++) {
            double w = (sum != 0.0 ? real[j] / sum : real[j]) * (1 << RESIZE_FRACTION_BITS);
            fixed[j] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
        }
        a->start[i] = (int32_t)from;
        a->taps[i] = (int32_t)(to - from);
    }
}

Status resize_scratch_reserve(ResizeScratch *s, size_t bytes) {
    if (s->bytes >= bytes) return STATUS_OK;
    void *block = NULL;
    resize_scratch_free(s);
    TRY(mem_grow(&block, (int64_t)bytes, 1, "resize work memory"));
    *s = (ResizeScratch){block, bytes};
    return STATUS_OK;
}

void resize_scratch_free(ResizeScratch *s) {
    mem_free(s->memory);
    *s = (ResizeScratch){0};
}

static Axis axis_of(int64_t in, int64_t out, int64_t first, int64_t count, const Kernel *k) {
    Axis a = {.in = in, .out = out, .first = first, .count = count, .copy = in == out};
    a.stride = (int64_t)ceil(axis_support(&a, k)) * 2 + 1;
    if (a.stride > in) a.stride = in;
    return a;
}

/* Cuts `bytes` (rounded to whole cache lines) off the front of *memory. */
static void *carve(uint8_t **memory, size_t bytes) {
    void *block = *memory;
    *memory += (bytes + 63) & ~(size_t)63;
    return block;
}

static void axis_place(Axis *a, uint8_t **memory) {
    a->weights = carve(memory, axis_bytes(a));
    a->start = a->weights + a->count * a->stride;
    a->taps = a->start + a->count;
}

static ResizeTaps axis_taps(const Axis *a) {
    return (ResizeTaps){a->count, a->stride, a->start, a->taps, a->weights};
}

/* Without a horizontal pass, the vertical one reads the source itself. */
static void run_passes(const Axis *h, const Axis *v, const uint8_t *src, int64_t pitch,
                       uint8_t *dst, uint8_t *middle, uint8_t *work) {
    int64_t row_bytes = h->count * 3;
    int64_t top = v->copy ? v->first : v->start[0];
    int64_t bottom = v->copy ? v->first + v->count : v->start[v->count - 1] + v->taps[v->count - 1];
    const uint8_t *rows = src + top * pitch;
    if (h->copy) {
        rows += h->first * 3;
    } else {
        uint8_t *target = v->copy ? dst : middle;
        ResizeTaps taps = axis_taps(h);
        horizontal_pass(&taps, rows, pitch, bottom - top, target, work);
        rows = target;
        pitch = row_bytes;
    }
    if (!v->copy) {
        ResizeTaps taps = axis_taps(v);
        vertical_pass(&taps, rows, pitch, top, row_bytes, dst);
    } else if (h->copy) {
        for (int64_t y = 0; y < v->count; y++) {
            memcpy(dst + y * row_bytes, rows + y * pitch, (size_t)row_bytes);
        }
    }
}

static bool inside(int64_t first, int64_t count, int64_t size) {
    return first >= 0 && count > 0 && count <= size && first <= size - count;
}

Status resize_window(const Image *src, ImageRegion box, Filter filter, int64_t full_w,
                     int64_t full_h, ImageRegion window, uint8_t *dst, ResizeScratch *scratch) {
    const int64_t largest = (int64_t)1 << 40; /* exact in doubles with room to spare */
    if (!inside(box.left, box.width, src->width) || !inside(box.top, box.height, src->height) ||
        full_w > largest || full_h > largest || !inside(window.left, window.width, full_w) ||
        !inside(window.top, window.height, full_h)) {
        return status_set(STATUS_INTERNAL,
                          "resize of box %lldx%lld in %lldx%lld to %lldx%lld: outside the image",
                          (long long)box.width, (long long)box.height, (long long)src->width,
                          (long long)src->height, (long long)full_w, (long long)full_h);
    }
    const Kernel *k = &kernels[filter];
    Axis h = axis_of(box.width, full_w, window.left, window.width, k);
    Axis v = axis_of(box.height, full_h, window.top, window.height, k);
    size_t real_bytes = (size_t)(h.stride > v.stride ? h.stride : v.stride) * sizeof(double);
    size_t middle_bytes = (size_t)(box.height * window.width) * 3;
    size_t work_bytes = horizontal_pass_bytes(box.width, window.width);
    TRY(resize_scratch_reserve(scratch, axis_bytes(&h) + axis_bytes(&v) + real_bytes +
                                            middle_bytes + work_bytes + 5 * 64));
    uint8_t *memory = scratch->memory;
    axis_place(&h, &memory);
    axis_place(&v, &memory);
    double *real = carve(&memory, real_bytes);
    uint8_t *middle = carve(&memory, middle_bytes);
    if (!h.copy) axis_fill(&h, k, real);
    if (!v.copy) axis_fill(&v, k, real);
    run_passes(&h, &v, src->pixels + (box.top * src->width + box.left) * 3, src->width * 3, dst,
               middle, carve(&memory, work_bytes));
    return STATUS_OK;
}

Status resize_box(const Image *src, int64_t left, int64_t top, int64_t box_w, int64_t box_h,
                  Filter filter, uint8_t *dst, int64_t out_w, int64_t out_h,
                  ResizeScratch *scratch) {
    return resize_window(src, (ImageRegion){left, top, box_w, box_h}, filter, out_w, out_h,
                         (ImageRegion){0, 0, out_w, out_h}, dst, scratch);
}
