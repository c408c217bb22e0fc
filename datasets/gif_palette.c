/* 256 colours for a picture: exact when it has no more, else boxes split where they vary most. */
#include <limits.h>
#include <string.h>

#include "datasets/gif_internal.h"

/* ---- few colours ---- */

static int slot_of(const GifPalette *p, uint32_t key) {
    uint32_t at = (key * 2654435761u) >> 22;
    while (p->keys[at] != 0 && p->keys[at] != key) at = (at + 1) % GIF_TABLE;
    return (int)at;
}

static uint32_t key_of(const uint8_t *pixel) {
    return (((uint32_t)pixel[0] << 16) | ((uint32_t)pixel[1] << 8) | pixel[2]) + 1;
}

/* False: there are more than 256. */
static bool take_exact(GifPalette *p, const Image *frame, uint8_t *indices) {
    memset(p->keys, 0, sizeof p->keys);
    p->count = 0;
    for (int64_t i = 0; i < frame->width * frame->height; i++) {
        const uint8_t *pixel = frame->pixels + 3 * i;
        const uint32_t key = key_of(pixel);
        const int slot = slot_of(p, key);
        if (p->keys[slot] == 0) {
            if (p->count == GIF_COLORS) return false;
            p->keys[slot] = key;
            p->values[slot] = (uint8_t)p->count;
            memcpy(p->colors[p->count++], pixel, 3);
        }
        indices[i] = p->values[slot];
    }
    return true;
}

/* ---- many colours ---- */

/* Cells order[first .. first + size) and how far their colours scatter along the worst axis. */
typedef struct Box {
    int32_t first, size;
    int axis;
    double mean, scatter; /* scatter: sum of squared distances from the mean, 0 for one cell */
} Box;

static int cell_of(const uint8_t *pixel) {
    return (pixel[0] >> 3) << 10 | (pixel[1] >> 3) << 5 | pixel[2] >> 3;
}

static double cell_level(const GifPalette *p, int32_t cell, int axis) {
    return (double)p->cells[cell].sum[axis] / (double)p->cells[cell].count;
}

static void measure(const GifPalette *p, Box *b) {
    b->scatter = 0;
    b->axis = 0;
    for (int axis = 0; axis < 3; axis++) {
        double n = 0, sum = 0, square = 0;
        for (int32_t i = b->first; i < b->first + b->size; i++) {
            const GifCell *c = &p->cells[p->order[i]];
            n += (double)c->count;
            sum += (double)c->sum[axis];
            square += (double)c->sum[axis] * cell_level(p, p->order[i], axis);
        }
        const double scatter = square - sum * sum / n;
        if (axis > 0 && scatter <= b->scatter) continue;
        b->scatter = scatter;
        b->axis = axis;
        b->mean = sum / n;
    }
    if (b->size < 2) b->scatter = 0;
}

/* Cells below the mean go to the front; false when they all fall on one side. */
static bool split(GifPalette *p, Box *b, Box *rest) {
    int32_t low = b->first, high = b->first + b->size;
    while (low < high) {
        if (cell_level(p, p->order[low], b->axis) < b->mean) {
            low++;
        } else {
            const int32_t swap = p->order[--high];
            p->order[high] = p->order[low];
            p->order[low] = swap;
        }
    }
    *rest = (Box){low, b->first + b->size - low, 0, 0, 0};
    if (low == b->first || rest->size == 0) return false;
    b->size = low - b->first;
    measure(p, b);
    measure(p, rest);
    return true;
}

static void box_color(const GifPalette *p, const Box *b, uint8_t color[3]) {
    for (int axis = 0; axis < 3; axis++) {
        int64_t n = 0, sum = 0;
        for (int32_t i = b->first; i < b->first + b->size; i++) {
            n += p->cells[p->order[i]].count;
            sum += p->cells[p->order[i]].sum[axis];
        }
        color[axis] = (uint8_t)((sum + n / 2) / n);
    }
}

static void split_boxes(GifPalette *p, int32_t cells) {
    Box boxes[GIF_COLORS] = {{0, cells, 0, 0, 0}};
    int count = 1;
    measure(p, &boxes[0]);
    while (count < GIF_COLORS) {
        int worst = 0;
        for (int i = 1; i < count; i++)
            if (boxes[i].scatter > boxes[worst].scatter) worst = i;
        if (!(boxes[worst].scatter > 0)) break;
        if (split(p, &boxes[worst], &boxes[count]))
            count++;
        else
            boxes[worst].scatter = 0;
    }
    for (int i = 0; i < count; i++) box_color(p, &boxes[i], p->colors[i]);
    p->count = count;
}

static void take_boxes(GifPalette *p, const Image *frame) {
    int32_t cells = 0;
    memset(p->cells, 0, sizeof p->cells);
    for (int64_t i = 0; i < frame->width * frame->height; i++) {
        const uint8_t *pixel = frame->pixels + 3 * i;
        GifCell *c = &p->cells[cell_of(pixel)];
        c->count++;
        for (int k = 0; k < 3; k++) c->sum[k] += pixel[k];
    }
    for (int32_t i = 0; i < GIF_CELLS; i++)
        if (p->cells[i].count > 0) p->order[cells++] = i;
    split_boxes(p, cells);
    memset(p->nearest, -1, sizeof p->nearest);
}

/* The palette's colour next to the middle of the pixel's cell; asked once for each cell. */
static int nearest_color(GifPalette *p, const uint8_t *pixel) {
    const int cell = cell_of(pixel);
    if (p->nearest[cell] >= 0) return p->nearest[cell];
    int best = 0, least = INT_MAX;
    for (int i = 0; i < p->count; i++) {
        int distance = 0;
        for (int k = 0; k < 3; k++) {
            const int d = (pixel[k] & ~7) + 4 - p->colors[i][k];
            distance += d * d;
        }
        if (distance < least) {
            least = distance;
            best = i;
        }
    }
    p->nearest[cell] = (int16_t)best;
    return best;
}

/* Floyd and Steinberg's weights 7, 3, 5, 1 of 16, rows from left to right; errors are sixteenths.
 */
static void diffuse(GifPalette *p, const Image *frame, int *errors, uint8_t *indices) {
    const int64_t stride = (frame->width + 2) * 3;
    int *now = errors, *next = errors + stride;
    memset(now, 0, (size_t)stride * sizeof *now);
    for (int64_t y = 0; y < frame->height; y++) {
        memset(next, 0, (size_t)stride * sizeof *next);
        for (int64_t x = 0; x < frame->width; x++) {
            uint8_t wanted[3];
            int *e = now + 3 * (x + 1), *below = next + 3 * (x + 1);
            for (int k = 0; k < 3; k++) {
                const int v = frame->pixels[3 * (y * frame->width + x) + k] + e[k] / 16;
                wanted[k] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
            }
            const int index = nearest_color(p, wanted);
            indices[y * frame->width + x] = (uint8_t)index;
            for (int k = 0; k < 3; k++) {
                const int off = wanted[k] - p->colors[index][k];
                e[k + 3] += 7 * off;
                below[k - 3] += 3 * off;
                below[k] += 5 * off;
                below[k + 3] += off;
            }
        }
        int *swap = now;
        now = next;
        next = swap;
    }
}

void gif_quantise(GifPalette *p, const Image *frame, int *errors, uint8_t *indices) {
    if (take_exact(p, frame, indices)) return;
    take_boxes(p, frame);
    diffuse(p, frame, errors, indices);
}
