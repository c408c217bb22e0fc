/* Private to datasets/gif*.c. */
#ifndef TTV_DATASETS_GIF_INTERNAL_H
#define TTV_DATASETS_GIF_INTERNAL_H

#include "datasets/image.h"

enum { GIF_COLORS = 256, GIF_CELLS = 32 * 32 * 32, GIF_TABLE = 1024 };

/* Colours that fall into one cell of 8x8x8 levels. */
typedef struct GifCell {
    int64_t count, sum[3];
} GifCell;

/* Work memory of gif_quantise(). */
typedef struct GifPalette {
    uint8_t colors[GIF_COLORS][3];
    int count;
    uint32_t keys[GIF_TABLE]; /* few colours: hash of colour + 1, 0 is free */
    uint8_t values[GIF_TABLE];
    GifCell cells[GIF_CELLS]; /* many */
    int32_t order[GIF_CELLS]; /* occupied cells, box by box */
    int16_t nearest[GIF_CELLS];
} GifPalette;

/* Palette and indices[width * height] of a frame; errors: [2, width + 2, 3] for diffusion. */
void gif_quantise(GifPalette *p, const Image *frame, int *errors, uint8_t *indices);

#endif
