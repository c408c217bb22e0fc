#include "tools/confusion.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/compose.h"
#include "datasets/font.h"
#include "tools/csv.h"
#include "tools/predict.h"

Status confusion_init(Confusion *c, int64_t classes) {
    void *block;
    TRY(mem_alloc(&block, classes * classes, sizeof(int64_t), "confusion of classes"));
    *c = (Confusion){classes, block};
    return STATUS_OK;
}

void confusion_free(Confusion *c) {
    mem_free(c->counts);
    *c = (Confusion){0};
}

void confusion_add(Confusion *c, const HostBatch *b, const float *logits) {
    for (int64_t i = 0; c->counts && i < b->count; i++) {
        int64_t best;
        if (b->valid && !b->valid[i]) continue;
        top_k(logits + i * c->classes, c->classes, 1, &best);
        c->counts[b->labels[i] * c->classes + best]++;
    }
}

/* ---- numbers of one class ---- */

typedef struct ClassScore {
    int64_t images, correct, predicted, confused, confused_count; /* confused -1: with none */
} ClassScore;

static ClassScore score_of(const Confusion *c, int64_t class) {
    const int64_t *row = c->counts + class * c->classes;
    ClassScore s = {.correct = row[class], .confused = -1};
    for (int64_t k = 0; k < c->classes; k++) {
        s.images += row[k];
        s.predicted += c->counts[k * c->classes + class];
        if (k == class || row[k] <= s.confused_count) continue;
        s.confused = k;
        s.confused_count = row[k];
    }
    return s;
}

double confusion_balanced(const Confusion *c) {
    double sum = 0;
    int64_t seen = 0;
    for (int64_t k = 0; k < c->classes; k++) {
        const ClassScore s = score_of(c, k);
        if (s.images == 0) continue;
        sum += (double)s.correct / (double)s.images;
        seen++;
    }
    return seen > 0 ? sum / (double)seen : NAN;
}

/* ---- the table ---- */

/* ",0.75", or "," where there is nothing to divide by. */
static Status put_share(FileWriter *w, int64_t part, int64_t whole) {
    char text[40] = ",";
    if (whole > 0) snprintf(text, sizeof text, ",%.9g", (double)part / (double)whole);
    return file_writer_write(w, text, strlen(text));
}

static Status put_class(FileWriter *w, const Confusion *c, const ClassList *names, int64_t class) {
    const ClassScore s = score_of(c, class);
    char text[96];
    snprintf(text, sizeof text, "%lld,", (long long)class);
    TRY(file_writer_write(w, text, strlen(text)));
    TRY(csv_field_write(w, names->names[class]));
    snprintf(text, sizeof text, ",%lld,%lld", (long long)s.images, (long long)s.correct);
    TRY(file_writer_write(w, text, strlen(text)));
    TRY(put_share(w, s.correct, s.images));
    snprintf(text, sizeof text, ",%lld", (long long)s.predicted);
    TRY(file_writer_write(w, text, strlen(text)));
    TRY(put_share(w, s.correct, s.predicted));
    TRY(file_writer_write(w, ",", 1));
    if (s.confused >= 0) TRY(csv_field_write(w, names->names[s.confused]));
    snprintf(text, sizeof text, ",%lld\r\n", (long long)s.confused_count);
    return file_writer_write(w, text, strlen(text));
}

Status confusion_write_csv(const Confusion *c, const ClassList *names, const char *path) {
    static const char heading[] = "class,name,images,correct,accuracy,predicted,precision,"
                                  "most_confused,most_confused_count\r\n";
    FileWriter *w;
    TRY(file_writer_open(path, &w));
    Status s = file_writer_write(w, heading, sizeof heading - 1);
    for (int64_t k = 0; s == STATUS_OK && k < c->classes; k++) s = put_class(w, c, names, k);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

/* ---- the picture ---- */

enum {
    LEFT = 110,
    TOP = 62,
    BORDER = 8,
    SMALLEST = 1,
    LARGEST = 34,
    WISHED = 680,
    NAMED = 8,   /* pixels of a cell from which on rows have names */
    COUNTED = 22 /* and cells their numbers */
};

static const Color ink = {40, 40, 40};

static int64_t cell_side(int64_t classes) {
    const int64_t side = WISHED / classes;
    return side < SMALLEST ? SMALLEST : side > LARGEST ? LARGEST : side;
}

static void fill(Image *canvas, int64_t x0, int64_t y0, int64_t side, double share) {
    for (int64_t y = y0; y < y0 + side; y++) {
        uint8_t *to = canvas->pixels + (y * canvas->width + x0) * 3;
        for (int64_t x = 0; x < side; x++, to += 3) {
            to[0] = (uint8_t)lround(247 - 239 * share);
            to[1] = (uint8_t)lround(251 - 203 * share);
            to[2] = (uint8_t)lround(255 - 148 * share);
        }
    }
}

/* In the middle of a cell; numbers that do not fit are left to the shade. */
static void write_count(Image *canvas, int64_t x, int64_t y, int64_t side, int64_t count,
                        bool dark) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)count);
    const int64_t width = canvas_text_width(text, 1);
    if (count == 0 || width > side) return;
    canvas_text(canvas, x + (side - width + 1) / 2, y + side / 2 - 4, 1,
                dark ? (Color){255, 255, 255} : ink, text);
}

/* As much of a name as fits into `width` pixels. */
static void short_name(const char *name, int64_t width, char label[96]) {
    text_printable(name, label, 96);
    int64_t fits = width / FONT_WIDTH;
    if ((int64_t)strlen(label) > fits) label[fits < 0 ? 0 : fits] = '\0';
}

static void draw_row(const Confusion *c, const ClassList *names, int64_t side, int64_t row,
                     Image *canvas) {
    const int64_t images = score_of(c, row).images, y = TOP + row * side;
    char label[96];
    if (side >= NAMED) {
        short_name(names->names[row], LEFT - BORDER - 6, label);
        canvas_text(canvas, LEFT - 6 - canvas_text_width(label, 1), y + side / 2 - 4, 1, ink,
                    label);
    }
    for (int64_t k = 0; k < c->classes; k++) {
        const int64_t count = c->counts[row * c->classes + k], x = LEFT + k * side;
        const double share = images > 0 ? (double)count / (double)images : 0;
        fill(canvas, x, y, side, share);
        if (side >= COUNTED) write_count(canvas, x, y, side, count, share > 0.5);
    }
}

static void draw(const Confusion *c, const ClassList *names, int64_t side, Image *canvas) {
    char label[96];
    canvas_text(canvas, BORDER, BORDER, 2, ink, "Confusion of classes");
    canvas_text(canvas, BORDER, BORDER + 20, 1, ink,
                "rows: true class, columns: prediction; shade: share of the row, 0 to 1");
    for (int64_t k = 0; side >= COUNTED && k < c->classes; k++) {
        short_name(names->names[k], side - 2, label);
        canvas_text(canvas, LEFT + k * side + (side - canvas_text_width(label, 1)) / 2, TOP - 12, 1,
                    ink, label);
    }
    for (int64_t row = 0; row < c->classes; row++) draw_row(c, names, side, row, canvas);
}

Status confusion_write_png(const Confusion *c, const ClassList *names, const char *path) {
    const int64_t side = cell_side(c->classes), matrix = side * c->classes;
    const int64_t width = LEFT + matrix + BORDER, least = 2 * BORDER + 71 * FONT_WIDTH;
    Image canvas;
    void *bytes;
    size_t size;
    TRY(canvas_new(width < least ? least : width, TOP + matrix + BORDER, (Color){255, 255, 255},
                   &canvas));
    draw(c, names, side, &canvas);
    Status s = image_encode_png(&canvas, &bytes, &size);
    image_free(&canvas);
    if (s != STATUS_OK) return s;
    s = file_write_atomic(path, bytes, size);
    mem_free(bytes);
    return s;
}
