/* The one way from 8-bit pixels to class scores: eval, classify, the validation during training and
 * bench all run this.
 */
#ifndef TTV_TOOLS_PREDICT_H
#define TTV_TOOLS_PREDICT_H

#include "tools/model_io.h"

/* Test-time averaging: whose scores are averaged. */
typedef enum Tta {
    TTA_NONE,
    TTA_FLIP,  /* the picture and its mirror image: 2 views */
    TTA_SHIFT, /* both, moved by -1, 0 and 1 pixels in either direction: 18 views */
} Tta;
#define TTA_CHOICES "none|flip|shift"

typedef struct Predictor {
    const Model *model;
    Tape *tape;
    Tensor pixels; /* U8 [batch,S,S,3] in the weights arena */
    int64_t batch;
    Tta tta;
    uint8_t *view; /* one view of the batch and its scores, on the host */
    float *view_scores;
    double *sums;          /* over the views */
    const uint8_t *barred; /* [classes], borrowed: their scores become -infinity; NULL: none */
} Predictor;

/* `batch`: the largest count that predict() will get. The model must outlive the predictor. */
Status predictor_open(Predictor *p, const Model *m, int64_t batch);
void predictor_close(Predictor *p);
/* From now on predict() gives the mean over the views of `tta`. The mean is that of the logits, in
 * the views' fixed order: softmax of it is the normalised geometric mean of their probabilities. */
Status predictor_average(Predictor *p, Tta tta);
int64_t tta_views(Tta tta);
const char *tta_name(Tta tta);
/* View `index` (0: the pictures as they are) of [count,S,S,3]; pixels from beyond an edge are those
 * inside it, mirrored, the edge itself not repeated (as shift_fill = mirror does in training). */
void tta_view(uint8_t *view, const uint8_t *pixels, int64_t count, int64_t size, int64_t index);

/* pixels [count,S,S,3], as preprocess_apply leaves them -> logits [count,classes], on the host. */
Status predict(Predictor *p, const uint8_t *pixels, int64_t count, float *logits);

/* Whether no score is NaN or +infinity (-infinity: a class that is barred). */
bool scores_are_numbers(const float *logits, int64_t classes);
/* probs = softmax(logits), summed in double; may be the same memory. */
void softmax_row(const float *logits, int64_t classes, float *probs);
/* -log softmax(logits)[label]. */
double loss_row(const float *logits, int64_t classes, int64_t label);
/* Indices of the k largest scores, best first; equal scores: lower index first; NaN last. k <=
 * classes. */
void top_k(const float *scores, int64_t classes, int64_t k, int64_t *indices);
/* Number of classes that come before `label` in the order of top_k: 0 = top-1. */
int64_t label_rank(const float *scores, int64_t classes, int64_t label);

/* Exact sums over scored images. */
typedef struct Score {
    int64_t scored, top1, top5, left_out;
    int64_t
        not_finite; /* scored images whose loss is no number: weights or precision are at fault */
    double loss_sum;
} Score;
/* Fails where there are any: what was counted of them is chance. */
Status score_check(const Score *s);
/* What a row of logits adds to the sums. */
typedef struct ImageScore {
    double loss;
    int32_t rank;  /* of the label (label_rank); */
    int32_t valid; /* 0: left out */
} ImageScore;
void score_images(ImageScore *out, const float *logits, int64_t count, int64_t classes,
                  const int64_t *labels, const uint8_t *valid);
void score_join(Score *s, const ImageScore *images, int64_t count);
/* Adds a batch of logits; rows with valid[i] == 0 count as left out. valid NULL: all valid. */
void score_add(Score *s, const float *logits, int64_t count, int64_t classes, const int64_t *labels,
               const uint8_t *valid);

#endif
