/* What a hierarchical ViTTT (vittt.md 4.2) has beside its blocks: the stem of convolutions, the
 * merging layers between its four stages, and their batch norms.
 *
 * stem, e = width of the first stage: 3x3 convolutions 3 -> e/2 (stride 2), e/2 -> e/2, e/2 -> e/2,
 * e/2 -> 4e (stride 2), 1x1 4e -> e, none with a bias, each with a batch norm, all but the last
 * with relu. Merging, Co = next width: 1x1 C -> 4Co, relu, depthwise 3x3 with stride 2, relu,
 * 1x1 4Co -> Co, batch norm. Statistics seen are buffers among the parameters: saved, loaded and
 * averaged like weights, moved by each training pass.
 */
#ifndef TTV_VISION_HIER_H
#define TTV_VISION_HIER_H

#include "nn/ops.h"
#include "nn/params.h"

enum { HIER_STAGES = 4, HIER_STEM = 5, HIER_RATIO = 4, HIER_REDUCTION = 32 };

/* Width, blocks and heads of each stage. */
typedef struct HierStages {
    int64_t width[HIER_STAGES], blocks[HIER_STAGES], heads[HIER_STAGES];
} HierStages;

/* "64x1x2,128x3x4,320x9x10,512x4x16": width x blocks x heads of each stage. STATUS_USAGE names the
 * stage that is no such triple, or whose sizes do not fit. */
Status hier_stages_parse(const char *text, HierStages *out);
int64_t hier_stages_depth(const HierStages *s);

typedef struct HierNorm {
    Var *w, *b, *mean, *var;
} HierNorm;

typedef struct HierMerge {
    Var *in_w, *in_b, *conv_w, *conv_b, *out_w, *out_b;
    HierNorm norm;
} HierMerge;

typedef struct Hier {
    HierStages stages;
    Var *stem_w[HIER_STEM];
    HierNorm stem_norm[HIER_STEM];
    HierMerge merge[HIER_STAGES - 1];
    HierNorm norm; /* behind the last stage */
} Hier;

/* Published names: patch_embed.conv.N, layers.N.downsample.conv.N, norm; in the order of calls. */
Status hier_register_stem(Hier *h, Params *p);
Status hier_register_merge(Hier *h, Params *p, int64_t stage);
Status hier_register_norm(Hier *h, Params *p);

/* image [B,H,W,3] -> tokens [B,(H/4)(W/4),e]. */
Var *hier_stem(const Hier *h, Tape *t, Var *image, bool training);
/* Tokens of stage `stage` on a map of height x width -> those of the next one, on half of it. */
Var *hier_merge(const Hier *h, Tape *t, int64_t stage, Var *x, int64_t height, int64_t width,
                bool training);
Var *hier_norm(const HierNorm *n, Tape *t, Var *x, bool relu, bool training);

/* Multiply-adds of stem and merging for an image of side x side pixels. */
int64_t hier_macs(const HierStages *s, int64_t side);

#endif
