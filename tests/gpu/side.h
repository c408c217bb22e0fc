/* One side of a comparison: a device with a ViTTT, its optimiser and a task of random pictures, as
 * a training process would have them. Two sides that are given the same numbers see the same
 * weights, pictures and draws.
 *
 * The first failure ends the program: side_* print what went wrong and exit 1.
 */
#ifndef TTV_TESTS_GPU_SIDE_H
#define TTV_TESTS_GPU_SIDE_H

#include "datasets/mix.h"
#include "nn/train.h"
#include "vision/vittt.h"

typedef struct Side {
    Device *d;
    Params params;
    Vittt *model;
    AdamW optim;
    Ema ema;
    Tape *tape;
    TrainState state;
    int64_t batch, next; /* next: samples handed out so far */
    Tensor pixels, samples, mix, targets;
    uint8_t *host_pixels;
    int32_t *host_samples;
    float *host_targets;
    double *losses; /* of training steps, by step; `steps` of them */
    int64_t steps;
} Side;

/* Values of a pass or of a trained state, on the host. */
typedef struct Values {
    int64_t count;
    float *v;
} Values;

typedef struct SideOptions {
    const char *device; /* as device_open takes it */
    DType act;
    bool tf32;
    int form;              /* VitttForm */
    double spoil;          /* factor on one weight matrix: to see that the comparison can fail */
    const char *weight;    /* which; NULL: the last of the second block's MLP */
    const Values *weights; /* of another side as it was opened; NULL: drawn here */
} SideOptions;

Side *side_open(const VitttConfig *c, int64_t batch, int64_t steps, const SideOptions *o);
void side_close(Side *s);

/* One pass with recorded gradients; logits and the flat gradient block. */
void side_pass(Side *s, Values *logits, Values *gradients, double *loss);

/* Logits of `batch` pictures in a pass that records nothing. fold: with layer norms within products
 * (vittt_fold). */
typedef struct Folds {
    int done, promised; /* norms within products; of device_folds_norms */
} Folds;
Values side_scores(Side *s, int64_t batch, bool fold, Folds *folds);

/* Trains up to step `until` of a run of s->steps steps and saves in `folder`; resume: goes on from
 * what lies there. */
void side_train(Side *s, const char *folder, int64_t until, bool resume, bool no_graphs);

Values side_pull(Side *s, Tensor block);
void values_free(Values *v);

/* |got - want| / max(|want|, floor); infinite when anything is not finite. */
double values_distance(const float *got, const float *want, int64_t count, double floor);
double values_norm(const float *v, int64_t count);

/* Ends the program with the thread's message unless s is STATUS_OK. */
void must(Status s, const char *doing);

#endif
