/* Two ways from pixels to tokens: the patch embedding of vittt.md 4.1, or in its place a stem of
 * convolutions at twice the resolution of the tokens, for small pictures whose patches of 2 or 4
 * pixels leave a linear embedding little to look at.
 *
 * stem, S channels, patch p: convolution of p/2 pixels (3 -> S, stride p/2), then `stem_depth`
 * blocks z = z + dwconv3x3(z);  z = z + fc2(gelu(fc1(norm(z))))     (4 S hidden channels) then norm
 * and a 2 x 2 convolution with stride 2 (S -> width). No batch statistics: samples do not mix, and
 * training and evaluation compute the same.
 */
#ifndef TTV_VISION_STEM_H
#define TTV_VISION_STEM_H

#include "nn/ops.h"
#include "nn/params.h"

enum { STEM_MAX_DEPTH = 16, STEM_RATIO = 4 };

typedef struct StemBlock {
    Var *conv_w, *conv_b, *norm_w, *norm_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
} StemBlock;

typedef struct Stem {
    int64_t depth, channels, width, patch;
    Var *proj_w, *proj_b, *norm_w, *norm_b;
    /* The 2 x 2 convolution by the rows that it reads: [width, 2 S] for the upper pair of places
     * and for the lower one. */
    Var *upper_w, *upper_b, *lower_w;
    StemBlock blocks[STEM_MAX_DEPTH];
} Stem;

/* Registers stem.proj, stem.blocks.N, stem.norm and stem.merge in `p`. patch even, depth >= 1. */
Status stem_register(Stem *s, Params *p, int64_t depth, int64_t channels, int64_t width,
                     int64_t patch);
/* patches [B, 2 height * 2 width, 3 (p/2)^2] -> tokens [B, height * width, width of the model]. */
Var *stem_forward(const Stem *s, Tape *t, Var *patches, int64_t height, int64_t width);
/* Multiply-adds of one picture of n tokens. */
int64_t stem_macs(int64_t depth, int64_t channels, int64_t width, int64_t patch, int64_t n);

#endif
