/* Preprocessing: the one path that eval and classify share, and the training augmentation.
 *
 * Both end in 8-bit RGB [S,S,3]; normalisation happens on the device. */
#ifndef TTV_DATASETS_TRANSFORM_H
#define TTV_DATASETS_TRANSFORM_H

#include "core/config.h"
#include "core/rng.h"
#include "datasets/image.h"
#include "datasets/policy.h"
#include "datasets/resize.h"

typedef enum CropMode { CROP_CENTER, CROP_SQUASH, CROP_BORDER } CropMode;

/* Section [preprocess]; stored in the checkpoint. */
typedef struct Preprocess {
    int64_t image_size; /* S; set from the model */
    double crop_pct;    /* 0.875: resize the short side to int(S / crop_pct), centre crop S */
    int crop_mode;      /* CropMode */
    int filter;         /* Filter */
    double mean[3], std[3];
} Preprocess;
extern const Option preprocess_options[];

/* What comes in where a picture was shifted. */
typedef enum ShiftFill { SHIFT_BLACK, SHIFT_MIRROR } ShiftFill;

/* Section [augment]. */
typedef struct Augment {
    bool random_resized_crop;    /* otherwise: pad-and-shift of up to `shift` pixels after an eval
                                    resize */
    double scale_min, scale_max; /* area share */
    double ratio_min, ratio_max; /* aspect */
    double flip;                 /* probability of a horizontal flip */
    double jitter;               /* brightness, contrast, saturation factor 1 +- jitter; 0: off */
    int64_t shift;               /* pixels */
    int shift_fill;              /* ShiftFill */
    char policy[CONFIG_TEXT];    /* datasets/policy.h; empty: none. Without one, jitter counts */
    /* On the device, drawn by datasets/mix.h (which draws the flip of a training run too). */
    double mixup, cutmix;     /* alpha of Beta(alpha, alpha); 0: off */
    double mixup_prob;        /* of mixing a batch */
    double mixup_switch_prob; /* of cutmix where both are on */
    int64_t mixup_off_epoch;  /* from this epoch on nothing is mixed; 0: never */
    double reprob;            /* random erasing */
} Augment;
extern const Option augment_options[];

/* src -> dst[S,S,3]: vittt.md section 8, steps 3 and 4 for CROP_CENTER. */
Status preprocess_apply(const Preprocess *p, const Image *src, uint8_t *dst,
                        ResizeScratch *scratch);
/* One line that says exactly what preprocess_apply does, e.g. "resize short side 256 bicubic,
 * centre crop 224, ..." */
void preprocess_text(const Preprocess *p, char *text, size_t size);
/* vittt.md 7.4 steps 2 to 4, or colour jitter; draws from rng in a fixed order. */
Status augment_apply(const Augment *a, const Preprocess *p, const Image *src, Rng *rng,
                     uint8_t *dst, ResizeScratch *scratch);

/* STATUS_USAGE when limits of the section contradict each other (an option table sees one key at a
 * time) or the policy is none. */
Status augment_check(const Augment *a);

/* Whether pictures are to be flipped before other things are done to them on the host (a policy),
 * so that the device, which comes later, cannot do it. */
bool augment_flips_first(const Augment *a);
/* How a policy moves pictures: RandAugment with the filter of `p` (bilinear, else bicubic) and its
 * mean colour, TrivialAugment with the nearest pixel and black, as published. */
PolicyStyle augment_style(const Policy *policy, const Preprocess *p);

/* The crop that augment_apply draws first, in a width x height image (without random_resized_crop:
 * all of it). */
ImageRegion augment_region(const Augment *a, int64_t width, int64_t height, Rng *rng);

#endif
