/* Labels in pictures: a fixed bitmap font of 5x7 dots (5x8 with descenders) in cells of 6x8, made
 * for this program. Characters without a glyph are drawn as a box, UTF-8 sequences as one.
 */
#ifndef TTV_DATASETS_FONT_H
#define TTV_DATASETS_FONT_H

#include <stdbool.h>
#include <stdint.h>

enum { FONT_WIDTH = 6, FONT_HEIGHT = 8 };

/* Whether dot (x, y) of the cell is set. */
bool font_dot(unsigned char letter, int x, int y);

#endif
