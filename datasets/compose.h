/* Pictures made of pictures: contact sheets, comparisons, labels. */
#ifndef TTV_DATASETS_COMPOSE_H
#define TTV_DATASETS_COMPOSE_H

#include "datasets/image.h"

typedef struct Color {
    uint8_t red, green, blue;
} Color;

/* A picture of one colour; image_free(). STATUS_DATA when a side is not in 1..1,000,000. */
Status canvas_new(int64_t width, int64_t height, Color color, Image *out);
/* What lies outside the canvas is cut off. */
void canvas_paste(Image *canvas, const Image *picture, int64_t x, int64_t y);
/* A square picture of `side` pixels, each a block of pixels as large as it takes for `least`. */
Status picture_blocks(const uint8_t *pixels, int64_t side, int64_t least, Image *out);
/* One line of text with its upper left corner at (x, y), dots of `scale` pixels (datasets/font.h).
 */
void canvas_text(Image *canvas, int64_t x, int64_t y, int scale, Color color, const char *text);
/* Pixels that the line takes. */
int64_t canvas_text_width(const char *text, int scale);

typedef struct SheetOptions {
    int64_t columns; /* 0: as near to a square as it gets */
    int64_t margin;  /* around and between cells, in pixels */
    int text_scale;  /* of labels; 0: none are drawn */
    Color background, ink;
} SheetOptions;
/* Margin 4, text scale 1, light grey on dark. */
SheetOptions sheet_options_default(void);

/* A grid of pictures, row by row, each in the middle of a cell as large as the largest, its label
 * below, cut where the cell ends. `labels` may be NULL, as may each of them. STATUS_DATA when there
 * is no picture or the sheet would be larger than a PNG may be. */
Status contact_sheet(const Image *pictures, const char *const *labels, int64_t count,
                     const SheetOptions *o, Image *out);

/* Truth, render and where they differ (score_error_map(), white from `full` on), side by side with
 * labels; the third one tells the PSNR, as score_pictures() gives it. */
Status compare_sheet(const Image *truth, const Image *render, double full, const SheetOptions *o,
                     Image *out);

#endif
