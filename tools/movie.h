/* MP4 through the program ffmpeg, which is run without a shell and fed through a pipe. */
#ifndef TTV_TOOLS_MOVIE_H
#define TTV_TOOLS_MOVIE_H

#include <stdint.h>

#include "core/status.h"

/* STATUS_IO when there is no ffmpeg in PATH: ask before any work. */
Status movie_check(void);
/* Frames [count, height, width, 3] of 8-bit RGB. Odd sides get a row or column more: video stores
 * colours for 2x2 pixels. The file is written beside `path` and renamed once ffmpeg ended well;
 * STATUS_IO with what it said otherwise, nothing is left behind then. */
Status movie_write(const char *path, const uint8_t *frames, int64_t count, int64_t width,
                   int64_t height, double fps);

#endif
