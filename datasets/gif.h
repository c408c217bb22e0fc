/* Animated GIF: at most 256 colours a frame, so it is lossy for photographs (apng.h is not). Each
 * frame has its own palette: its colours themselves when they are few enough, else boxes of equal
 * variance with diffused errors. Written completely or not at all. */
#ifndef TTV_DATASETS_GIF_H
#define TTV_DATASETS_GIF_H

#include "datasets/image.h"

typedef struct GifWriter GifWriter;

typedef struct GifOptions {
    int64_t width, height; /* at most 65,535 */
    double fps; /* above 0, at most 1000. Players count in hundredths of a second and take less
                   than two of them for none: beyond 50 a second the animation is slower */
    int loops;  /* 0: for ever */
} GifOptions;

Status gif_open(const char *path, const GifOptions *o, GifWriter **out);
/* STATUS_DATA for another size. */
Status gif_frame(GifWriter *w, const Image *frame);
/* STATUS_DATA when there was no frame. Frees w in every case. */
Status gif_commit(GifWriter *w);
void gif_abort(GifWriter *w); /* NULL is allowed */

#endif
