/* Grids of pictures with labels. */
#include "datasets/compose.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "datasets/font.h"
#include "datasets/score.h"

enum { MAX_SIDE = 1000000 };

/* ---- canvas ---- */

Status canvas_new(int64_t width, int64_t height, Color color, Image *out) {
    *out = (Image){0};
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE)
        return status_set(STATUS_DATA, "a canvas of %lld x %lld pixels cannot be made",
                          (long long)width, (long long)height);
    void *block;
    TRY(mem_alloc(&block, width * height, 3, "canvas"));
    *out = (Image){block, width, height};
    for (int64_t i = 0; i < width * height; i++)
        memcpy(out->pixels + i * 3, (uint8_t[3]){color.red, color.green, color.blue}, 3);
    return STATUS_OK;
}

Status picture_blocks(const uint8_t *pixels, int64_t side, int64_t least, Image *out) {
    const int64_t scale = (least + side - 1) / side, shown = side * scale;
    TRY(canvas_new(shown, shown, (Color){0, 0, 0}, out));
    for (int64_t i = 0; i < shown * shown; i++) {
        const int64_t y = i / shown / scale, x = i % shown / scale;
        memcpy(out->pixels + i * 3, pixels + (y * side + x) * 3, 3);
    }
    return STATUS_OK;
}

void canvas_paste(Image *canvas, const Image *picture, int64_t x, int64_t y) {
    int64_t left = x < 0 ? -x : 0, right = picture->width;
    if (right > canvas->width - x) right = canvas->width - x;
    if (left >= right) return;
    for (int64_t row = 0; row < picture->height; row++) {
        if (y + row < 0 || y + row >= canvas->height) continue;
        memcpy(canvas->pixels + ((y + row) * canvas->width + x + left) * 3,
               picture->pixels + (row * picture->width + left) * 3, (size_t)(right - left) * 3);
    }
}

static void fill_square(Image *canvas, int64_t x, int64_t y, int side, Color color) {
    for (int64_t v = y; v < y + side; v++) {
        for (int64_t u = x; u < x + side; u++) {
            if (u < 0 || v < 0 || u >= canvas->width || v >= canvas->height) continue;
            memcpy(canvas->pixels + (v * canvas->width + u) * 3,
                   (uint8_t[3]){color.red, color.green, color.blue}, 3);
        }
    }
}

/* Continuation bytes of UTF-8 belong to the box of their first byte. */
static bool is_start(char c) {
    return ((unsigned char)c & 0xC0) != 0x80;
}

int64_t canvas_text_width(const char *text, int scale) {
    int64_t letters = 0;
    for (; *text; text++) letters += is_start(*text);
    return letters * FONT_WIDTH * scale;
}

void canvas_text(Image *canvas, int64_t x, int64_t y, int scale, Color color, const char *text) {
    for (; *text; text++) {
        if (!is_start(*text)) continue;
        for (int v = 0; v < FONT_HEIGHT; v++)
            for (int u = 0; u < FONT_WIDTH; u++)
                if (font_dot((unsigned char)*text, u, v))
                    fill_square(canvas, x + u * scale, y + v * scale, scale, color);
        x += FONT_WIDTH * scale;
    }
}

/* ---- sheets ---- */

SheetOptions sheet_options_default(void) {
    return (SheetOptions){0, 4, 1, {32, 32, 32}, {220, 220, 220}};
}

typedef struct Grid {
    int64_t columns, rows, width, height; /* of a cell's picture */
    int64_t label;                        /* height of the strip below it */
} Grid;

static Grid grid_of(const Image *pictures, const char *const *labels, int64_t count,
                    const SheetOptions *o) {
    Grid g = {o->columns, 0, 0, 0, 0};
    if (g.columns < 1)
        for (g.columns = 1; g.columns * g.columns < count;) g.columns++;
    if (g.columns > count) g.columns = count;
    g.rows = (count + g.columns - 1) / g.columns;
    for (int64_t i = 0; i < count; i++) {
        if (pictures[i].width > g.width) g.width = pictures[i].width;
        if (pictures[i].height > g.height) g.height = pictures[i].height;
    }
    if (labels && o->text_scale > 0) g.label = (FONT_HEIGHT + 2) * (int64_t)o->text_scale;
    return g;
}

/* As much of the label as the cell is wide. */
static void draw_label(Image *canvas, int64_t x, int64_t y, int64_t width, const SheetOptions *o,
                       const char *label) {
    char text[256];
    int64_t letters = width / (FONT_WIDTH * (int64_t)o->text_scale);
    size_t n = 0;
    for (; label[n] && n + 1 < sizeof text; n++) {
        if (is_start(label[n]) && letters-- == 0) break;
        text[n] = label[n];
    }
    text[n] = '\0';
    canvas_text(canvas, x, y, o->text_scale, o->ink, text);
}

Status contact_sheet(const Image *pictures, const char *const *labels, int64_t count,
                     const SheetOptions *o, Image *out) {
    *out = (Image){0};
    if (count < 1) return status_set(STATUS_DATA, "a contact sheet needs a picture");
    Grid g = grid_of(pictures, labels, count, o);
    int64_t step_x = g.width + o->margin, step_y = g.height + g.label + o->margin;
    if (step_x > MAX_SIDE / g.columns || step_y > MAX_SIDE / g.rows)
        return status_set(STATUS_DATA,
                          "%lld pictures of %lld x %lld pixels: the sheet is too large",
                          (long long)count, (long long)g.width, (long long)g.height);
    TRY(canvas_new(g.columns * step_x + o->margin, g.rows * step_y + o->margin, o->background,
                   out));
    for (int64_t i = 0; i < count; i++) {
        int64_t x = o->margin + i % g.columns * step_x, y = o->margin + i / g.columns * step_y;
        const Image *p = pictures + i;
        canvas_paste(out, p, x + (g.width - p->width) / 2, y + (g.height - p->height) / 2);
        if (g.label > 0 && labels[i])
            draw_label(out, x, y + g.height + o->text_scale, g.width, o, labels[i]);
    }
    return STATUS_OK;
}

Status compare_sheet(const Image *truth, const Image *render, double full, const SheetOptions *o,
                     Image *out) {
    Picture a = picture_of_image(truth, "truth"), b = picture_of_image(render, "render");
    ScoreOptions plain = {0};
    Score score;
    *out = (Image){0};
    TRY(score_pictures(&a, &b, &plain, &score));
    Image row[3] = {*truth, *render, {0}};
    TRY(score_error_map(&a, &b, &plain, full, &row[2]));
    char text[64];
    if (isinf(score.psnr))
        snprintf(text, sizeof text, "identical");
    else
        snprintf(text, sizeof text, "%.2f dB", score.psnr);
    const char *const labels[3] = {"truth", "render", text};
    SheetOptions line = *o;
    line.columns = 3;
    Status s = contact_sheet(row, labels, 3, &line, out);
    image_free(&row[2]);
    return s;
}
