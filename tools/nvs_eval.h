/* `ttv nvs eval`: what it scores and how it tells. Behind cmd_nvs_eval.c. */
#ifndef TTV_TOOLS_NVS_EVAL_H
#define TTV_TOOLS_NVS_EVAL_H

#include "datasets/view_sample.h"
#include "tools/lpips.h"
#include "tools/nvs_baselines.h"
#include "tools/nvs_model.h"

/* What a rank tells of the scene that it scored. */
typedef struct NvsEvalReport {
    int64_t status, fatal; /* fatal: no fault of the scene */
    char message[512];
    Score scores[NVS_METHODS * VIEW_MAX]; /* [method * targets + target] */
} NvsEvalReport;

typedef struct NvsEval {
    NvsModel model;
    SceneSet *set;
    EvalIndex index;
    ViewOptions view;
    ViewScratch scratch;
    uint8_t *pixels, *rendered, *baseline; /* of one sample; of one view */
    ScoreSummary (*scenes)[NVS_METHODS];   /* of every entry; n = 0: not scored */
    Score **scores; /* of every entry's views, [method * targets + target]; NULL: not scored */
    double psnr[NVS_METHODS], ssim[NVS_METHODS]; /* mean over scenes of their means; NAN: none */
    double lpips[NVS_METHODS];
    double psnr_error[NVS_METHODS]; /* standard error of that mean; NAN below two scenes */
    const char *checkpoint, *root, *split, *index_file; /* for the report; "": a generated index */
    Lpips *network;            /* NULL: no weights were given, and LPIPS is not computed */
    float *planes;             /* two views in 0..1, for LPIPS */
    NvsEvalReport *mine, *all; /* `all`: one of each rank */
    int64_t evaluated, views;
    bool per_view;    /* a row of the table for each view, too */
    const char *save; /* folder for pictures; "": none are kept */
} NvsEval;

/* Scores every entry that is ready, each rank some of them, and leaves all scores on all ranks,
 * with the same bits whatever their number; those that cannot be loaded or rendered become
 * EVAL_FAILED. */
Status nvs_eval_run(NvsEval *e);
/* All that it took, the model, the scenes and the network too. */
void nvs_eval_free(NvsEval *e);

/* ---- nvs_eval_save.c ---- */

/* Views of the scene that was rendered last: targets as truth/<scene>/<frame>.png and the same
 * below render/, inputs below input/. */
Status nvs_eval_save(const NvsEval *e, const ViewSample *s);

/* ---- nvs_eval_page.c ---- */

/* index.html in the folder of the pictures, after all were saved. */
Status nvs_eval_page(const NvsEval *e);

/* ---- nvs_eval_report.c ---- */

enum { EVAL_REASONS = 20 };
/* Names on stderr what cannot be evaluated, and why: the first `most`; `where` all are. */
void eval_index_print_reasons(const EvalIndex *x, int64_t most, const char *where);
void nvs_eval_print_text(const NvsEval *e);
Status nvs_eval_print_json(const NvsEval *e);

#endif
