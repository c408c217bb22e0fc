/* Draws of what happens to training images on the device (op_image_prepare): per batch mixup or
 * cutmix, per sample flip and random erasing; and the targets that belong to them (vittt.md 7.3,
 * 7.4 step 6).
 *
 * Pure functions of a random stream: who keys it by (seed, epoch, batch) or (seed, epoch, sample)
 * gets the same draws with any number of threads and after a resume.
 */
#ifndef TTV_DATASETS_MIX_H
#define TTV_DATASETS_MIX_H

#include "datasets/transform.h"

/* Half-open rows [top, top+height) and columns [left, left+width); height 0: no box. */
typedef struct MixBox {
    int64_t top, left, height, width;
} MixBox;

/* Every sample of a batch meets its partner, the batch in reverse order. */
typedef struct BatchMix {
    double pixels; /* share of the own picture outside of `cut`: 1 for cutmix */
    double target; /* share of the own label */
    MixBox cut;    /* where the partner shows */
} BatchMix;

typedef struct SampleMix {
    bool flip;
    MixBox erased;
    uint32_t key[2]; /* of the noise in it */
} SampleMix;

/* Neither mixed nor erased nor flipped. */
BatchMix batch_mix_none(void);

/* Whether the section mixes batches at all. */
bool batch_mix_wanted(const Augment *a);
/* For a batch of images of `size` x `size`. */
BatchMix batch_mix_draw(const Augment *a, int64_t size, Rng *rng);
SampleMix sample_mix_draw(const Augment *a, int64_t size, Rng *rng);

/* Box of side int(size sqrt(1 - lambda)) around a centre pixel, cut off at the edges. */
MixBox cutmix_box(int64_t size, double lambda, int64_t row, int64_t column);

/* Rows of [count, classes]: on = 1 - smoothing + smoothing/classes at the label, off =
 * smoothing/classes elsewhere; `share` of the own row and the rest of the partner's. Each sums
 * to 1. */
void mix_targets(float *rows, const int64_t *labels, int64_t count, int64_t classes,
                 double smoothing, double share);

/* The numbers as the kernel image_prepare takes them: of a batch, and of each sample. */
enum { MIX_NUMBERS = 8 };
void batch_mix_write(const BatchMix *m, float out[MIX_NUMBERS]);
void sample_mix_write(const SampleMix *m, int32_t out[MIX_NUMBERS]);

#endif
