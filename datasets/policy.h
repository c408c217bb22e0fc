/* Augmentation policies: a few Pillow operations of random kind and strength on each training
 * picture.
 *
 *   none
 *   rand-m9-mstd0.5-inc1   RandAugment as vittt.md 7.4 step 4 has it: `n` (2) operations, drawn
 * with replacement from 15, each done with probability `p` (0.5), magnitude N(m, mstd) cut to [0,
 * 10]; inc1: a larger magnitude always changes more trivial                TrivialAugment (Mueller
 * and Hutter 2021), "wide": one of 14 operations, its strength uniform over 31 steps
 */
#ifndef TTV_DATASETS_POLICY_H
#define TTV_DATASETS_POLICY_H

#include <stdbool.h>

#include "core/rng.h"
#include "core/status.h"
#include "datasets/affine.h"

typedef enum PolicyKind { POLICY_NONE, POLICY_RAND, POLICY_TRIVIAL } PolicyKind;

enum { POLICY_MAX_OPS = 8 };

typedef struct Policy {
    PolicyKind kind;
    double magnitude, spread, chance; /* m, mstd, p */
    int ops;                          /* n */
    bool increasing;                  /* inc */
} Policy;

typedef enum PolicyOpKind {
    OP_IDENTITY,
    OP_AUTO_CONTRAST,
    OP_EQUALIZE,
    OP_INVERT,
    OP_ROTATE,       /* degrees */
    OP_POSTERIZE,    /* bits kept */
    OP_SOLARIZE,     /* threshold */
    OP_SOLARIZE_ADD, /* levels */
    OP_COLOR,        /* factor, as of the next three */
    OP_CONTRAST,
    OP_BRIGHTNESS,
    OP_SHARPNESS,
    OP_SHEAR_X, /* pixels per pixel */
    OP_SHEAR_Y,
    OP_TRANSLATE_X, /* pixels */
    OP_TRANSLATE_Y,
    OP_KINDS
} PolicyOpKind;

typedef struct PolicyOp {
    PolicyOpKind kind;
    double value;
} PolicyOp;

/* How pictures are moved. */
typedef struct PolicyStyle {
    AffineFilter filter;
    uint8_t fill[3];
} PolicyStyle;

/* STATUS_USAGE names what is wrong and the policies that there are. */
Status policy_parse(const char *text, Policy *out);

/* The operations for one picture of side x side; returns how many. Draws in a fixed order. */
int policy_draw(const Policy *p, int64_t side, Rng *rng, PolicyOp ops[POLICY_MAX_OPS]);

/* Bytes of `work` below, which is aligned for integers. */
size_t policy_work_bytes(int64_t side);
void policy_apply(const PolicyOp *op, uint8_t *rgb, int64_t side, const PolicyStyle *style,
                  void *work);

/* "Rotate", "ShearX", ... */
const char *policy_op_name(PolicyOpKind kind);

#endif
