/* What `ttv nvs render` writes: frames, sheet, animations, comparisons, a page with all of it. */
#ifndef TTV_TOOLS_NVS_RENDER_OUTPUT_H
#define TTV_TOOLS_NVS_RENDER_OUTPUT_H

#include "datasets/score.h"
#include "tools/nvs_render.h"

typedef struct RenderOutput {
    const char *folder;
    double fps, error_full;
    bool apng, gif, mp4, y4m, html;
} RenderOutput;

/* Scores of the frames that have a picture, in the order of r->frames. */
typedef struct RenderScores {
    int64_t *views; /* [count] which of the rendered views it is */
    Score *scores;
    int64_t count;
    ScoreSummary summary;
} RenderScores;
void render_scores_free(RenderScores *s);

/* One of the rendered views, a borrowed picture. */
Image render_view(const NvsRender *r, int64_t i);
Image render_input(const NvsRender *r, int64_t i); /* of those that were read */

/* Frames, sheet and animations; comparisons when frames were listed, whose scores go to *scores and
 * to stdout. */
Status render_write(NvsRender *r, const RenderOutput *o, RenderScores *scores);

/* ---- nvs_page.c ---- */

/* page.html: input views, comparisons with a table of scores, all views, the animation; one file
 * that needs no other and no network. */
Status render_page(NvsRender *r, const RenderOutput *o, const RenderScores *scores);

#endif
