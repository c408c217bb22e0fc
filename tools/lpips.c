#include "tools/lpips.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/safetensors.h"
#include "kernels/kernels.h"

/* Convolutions of VGG16 that LPIPS reads: number in torchvision's `features`, channels, slice. A
 * slice ends with the ReLU behind its last convolution; the next begins with a pooling. */
enum { LAYERS = 13, SLICES = 5, TILE = 1 << 22 /* floats of unrolled windows at a time */ };
static const struct {
    int number, inputs, outputs, slice;
} layers[LAYERS] = {{0, 3, 64, 1},     {2, 64, 64, 1},    {5, 64, 128, 2},   {7, 128, 128, 2},
                    {10, 128, 256, 3}, {12, 256, 256, 3}, {14, 256, 256, 3}, {17, 256, 512, 4},
                    {19, 512, 512, 4}, {21, 512, 512, 4}, {24, 512, 512, 5}, {26, 512, 512, 5},
                    {28, 512, 512, 5}};
static const int slice_channels[SLICES] = {64, 128, 256, 512, 512};

/* Of inputs 2 x - 1. */
static const double shift[3] = {-0.030, -0.088, -0.188}, scale[3] = {0.458, 0.448, 0.450};

struct Lpips {
    Device *device;
    float *weights[LAYERS]; /* [outputs, 3, 3, inputs] */
    float *biases[LAYERS];
    float *lins[SLICES]; /* [channels] */
    float *unrolled;     /* windows as rows */
};

/* ---- weights ---- */

static const SafeEntry *find_layer(const SafeFile *f, int layer, const char *kind, char *name,
                                   size_t size) {
    snprintf(name, size, "net.slice%d.%d.%s", layers[layer].slice, layers[layer].number, kind);
    const SafeEntry *e = safetensors_find(f, name);
    if (e) return e;
    snprintf(name, size, "features.%d.%s", layers[layer].number, kind);
    return safetensors_find(f, name);
}

/* Values of a tensor of `rank` given sides, new memory. */
static Status read_values(const SafeFile *f, const SafeEntry *e, const char *name, int rank,
                          const int64_t *shape, float **out) {
    int64_t count = 1;
    void *block;
    if (!e)
        return status_set(STATUS_DATA, "%s: tensor '%s' is missing: not the weights of LPIPS (VGG)",
                          safetensors_path(f), name);
    bool fits = e->rank == rank;
    for (int i = 0; i < rank; i++) {
        fits = fits && e->shape[i] == shape[i];
        count *= shape[i];
    }
    if (!fits)
        return status_set(STATUS_DATA,
                          "%s: tensor '%s' has not the %d sides of LPIPS (VGG), %" PRId64 " values",
                          safetensors_path(f), name, rank, count);
    TRY(mem_alloc(&block, count, sizeof(float), "weights of LPIPS"));
    *out = block; /* the caller's from here on */
    TRY(status_context(safetensors_read(e, tensor_1d(block, DTYPE_F32, count)), "%s", name));
    for (int64_t i = 0; i < count; i++)
        if (!isfinite((*out)[i]))
            return status_set(STATUS_DATA, "%s: tensor '%s' holds a value that is not finite",
                              safetensors_path(f), name);
    return STATUS_OK;
}

/* [out, in, 3, 3] as [out, 3, 3, in]: a window's channels lie together. */
static Status read_layer(Lpips *l, const SafeFile *f, int layer) {
    const int64_t n = layers[layer].outputs, m = layers[layer].inputs;
    float *stored = NULL;
    char name[64];
    void *block;
    TRY(mem_alloc(&block, n * m, 9 * sizeof(float), "weights of LPIPS"));
    l->weights[layer] = block;
    const SafeEntry *e = find_layer(f, layer, "weight", name, sizeof name);
    Status s = read_values(f, e, name, 4, (int64_t[]){n, m, 3, 3}, &stored);
    for (int64_t i = 0; s == STATUS_OK && i < n; i++)
        for (int64_t c = 0; c < m; c++)
            for (int64_t k = 0; k < 9; k++)
                l->weights[layer][(i * 9 + k) * m + c] = stored[(i * m + c) * 9 + k];
    mem_free(stored);
    TRY(s);
    e = find_layer(f, layer, "bias", name, sizeof name);
    return read_values(f, e, name, 1, &n, &l->biases[layer]);
}

static Status read_lin(Lpips *l, const SafeFile *f, int slice) {
    const int64_t n = slice_channels[slice];
    char name[64];
    snprintf(name, sizeof name, "lin%d.model.1.weight", slice);
    TRY(read_values(f, safetensors_find(f, name), name, 4, (int64_t[]){1, n, 1, 1},
                    &l->lins[slice]));
    for (int64_t i = 0; i < n; i++)
        if (l->lins[slice][i] < 0)
            return status_set(STATUS_DATA, "%s: tensor '%s' holds a negative weight",
                              safetensors_path(f), name);
    return STATUS_OK;
}

static Status read_all(Lpips *l, const SafeFile *f) {
    void *block;
    for (int i = 0; i < LAYERS; i++) TRY(read_layer(l, f, i));
    for (int i = 0; i < SLICES; i++) TRY(read_lin(l, f, i));
    TRY(mem_alloc(&block, TILE, sizeof(float), "windows of LPIPS"));
    l->unrolled = block;
    return device_open("cpu", &l->device);
}

Status lpips_open(const char *path, Lpips **out) {
    SafeFile *f;
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(Lpips), "LPIPS"));
    Lpips *l = block;
    Status s = safetensors_open(path, &f);
    if (s == STATUS_OK) {
        s = read_all(l, f);
        safetensors_close(f);
    }
    if (s == STATUS_OK)
        *out = l;
    else
        lpips_close(l);
    return s;
}

void lpips_close(Lpips *l) {
    if (!l) return;
    for (int i = 0; i < LAYERS; i++) mem_free(l->weights[i]), mem_free(l->biases[i]);
    for (int i = 0; i < SLICES; i++) mem_free(l->lins[i]);
    mem_free(l->unrolled);
    if (l->device) device_close(l->device);
    mem_free(l);
}

/* ---- features ---- */

/* Activations [height, width, channels]. */
typedef struct Plane {
    int64_t height, width, channels;
    float *values;
} Plane;

static void to_plane(const float *rgb, Plane *p) {
    for (int64_t i = 0; i < p->height * p->width; i++)
        for (int c = 0; c < 3; c++)
            p->values[3 * i + c] = (float)((2 * (double)rgb[3 * i + c] - 1 - shift[c]) / scale[c]);
}

/* The 3x3 window about pixel (y, x), zeros outside. */
static void unroll(const Plane *p, int64_t y, int64_t x, float *to) {
    for (int64_t r = y - 1; r <= y + 1; r++)
        for (int64_t c = x - 1; c <= x + 1; c++, to += p->channels) {
            const bool inside = r >= 0 && r < p->height && c >= 0 && c < p->width;
            if (inside)
                memcpy(to, p->values + (r * p->width + c) * p->channels,
                       (size_t)p->channels * sizeof *to);
            else
                memset(to, 0, (size_t)p->channels * sizeof *to);
        }
}

/* max(0, windows W' + b), as many pixels at a time as the tile has room for. */
static Status convolve(Lpips *l, int layer, const Plane *in, Plane *out) {
    const int64_t taps = 9 * in->channels, n = layers[layer].outputs;
    const int64_t pixels = in->height * in->width, most = TILE / taps;
    const Tensor w = tensor_2d(l->weights[layer], DTYPE_F32, n, taps);
    *out = (Plane){in->height, in->width, n, out->values};
    for (int64_t from = 0; from < pixels; from += most) {
        const int64_t count = pixels - from < most ? pixels - from : most;
        float *y = out->values + from * n;
        for (int64_t i = 0; i < count; i++)
            unroll(in, (from + i) / in->width, (from + i) % in->width, l->unrolled + i * taps);
        const Grad c = {tensor_2d(y, DTYPE_F32, count, n), false};
        arena_reset(&l->device->scratch);
        TRY(l->device->k->matmul(l->device, c, tensor_2d(l->unrolled, DTYPE_F32, count, taps),
                                 false, w, true, 1));
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = 0; k < n; k++)
                y[i * n + k] = fmaxf(0, y[i * n + k] + l->biases[layer][k]);
    }
    return STATUS_OK;
}

/* Largest of 2x2, a last odd row or column dropped. */
static void pool(const Plane *in, Plane *out) {
    const int64_t c = in->channels;
    *out = (Plane){in->height / 2, in->width / 2, c, out->values};
    for (int64_t y = 0; y < out->height; y++)
        for (int64_t x = 0; x < out->width; x++) {
            const float *a = in->values + (2 * y * in->width + 2 * x) * c;
            const float *b = a + in->width * c;
            float *to = out->values + (y * out->width + x) * c;
            for (int64_t i = 0; i < c; i++)
                to[i] = fmaxf(fmaxf(a[i], a[i + c]), fmaxf(b[i], b[i + c]));
        }
}

/* Mean over pixels of sum_c w_c (a_c / |a| - b_c / |b|)^2. */
static double distance(const Plane *a, const Plane *b, const float *w) {
    double total = 0;
    for (int64_t i = 0; i < a->height * a->width; i++) {
        const float *x = a->values + i * a->channels, *y = b->values + i * a->channels;
        double nx = 0, ny = 0, sum = 0;
        for (int64_t c = 0; c < a->channels; c++) {
            nx += (double)x[c] * (double)x[c];
            ny += (double)y[c] * (double)y[c];
        }
        nx = 1 / (sqrt(nx) + 1e-10); /* the package's eps */
        ny = 1 / (sqrt(ny) + 1e-10);
        for (int64_t c = 0; c < a->channels; c++) {
            const double d = (double)x[c] * nx - (double)y[c] * ny;
            sum += (double)w[c] * d * d;
        }
        total += sum;
    }
    return total / (double)(a->height * a->width);
}

/* Both pictures go through the layers side by side; planes[p][0] is what picture p has so far. */
static Status run_layers(Lpips *l, Plane planes[2][2], double *out) {
    *out = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        const int slice = layers[layer].slice;
        const bool begins = layer > 0 && layers[layer - 1].slice != slice;
        const bool ends = layer + 1 == LAYERS || layers[layer + 1].slice != slice;
        for (int p = 0; p < 2; p++) {
            for (int step = begins ? 0 : 1; step < 2; step++) {
                Plane *in = &planes[p][0], *to = &planes[p][1];
                if (step == 0)
                    pool(in, to);
                else
                    TRY(convolve(l, layer, in, to));
                const Plane swap = *in;
                *in = *to;
                *to = swap;
            }
        }
        if (ends) *out += distance(&planes[0][0], &planes[1][0], l->lins[slice - 1]);
    }
    return STATUS_OK;
}

Status lpips_distance(Lpips *l, const float *a, const float *b, int64_t height, int64_t width,
                      double *out) {
    if (height < LPIPS_SIDE || width < LPIPS_SIDE)
        return status_set(STATUS_DATA, "%" PRId64 "x%" PRId64 " pixels: LPIPS needs %d each way",
                          width, height, LPIPS_SIDE);
    const int64_t size = height * width * slice_channels[0]; /* no later plane is larger */
    void *block;
    TRY(mem_alloc(&block, 4 * size, sizeof(float), "features of LPIPS"));
    float *values = block;
    Plane planes[2][2];
    for (int p = 0; p < 2; p++)
        for (int k = 0; k < 2; k++)
            planes[p][k] = (Plane){height, width, 3, values + (2 * p + k) * size};
    to_plane(a, &planes[0][0]);
    to_plane(b, &planes[1][0]);
    Status s = run_layers(l, planes, out);
    mem_free(block);
    return s;
}
