/* YUV4MPEG2 (.y4m): uncompressed video that encoders and players take without options. */
#ifndef TTV_DATASETS_Y4M_H
#define TTV_DATASETS_Y4M_H

#include <stdint.h>

#include "core/status.h"

/* Frames [count, height, width, 3] of 8-bit RGB as BT.601 with studio swing (Y 16 to 235, Cb and Cr
 * 16 to 240), which is what players take for granted here; chroma is the mean of 2x2 pixels, of
 * what there is of them at an odd edge (C420jpeg). fps above 0, at most 1000, kept to thousandths.
 * Written completely or not at all. */
Status y4m_write(const char *path, const uint8_t *frames, int64_t count, int64_t width,
                 int64_t height, double fps);

#endif
