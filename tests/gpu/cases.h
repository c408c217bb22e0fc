/* Models that model_parity.c compares, and how far apart they may be. */
#ifndef TTV_TESTS_GPU_CASES_H
#define TTV_TESTS_GPU_CASES_H

#include "side.h"

typedef enum Precision { FP32, TF32, BF16, PRECISIONS } Precision;
extern const char *const precision_names[PRECISIONS];

/* Relative errors that pass, against the CPU in F32. `start`: of the pass's loss. Gradients: all as
 * one vector, and the worst parameter, against at least 1e-3 of the largest. `loss`: each of the
 * training steps. `update`: what the steps did to all weights; AdamW turns tiny gradients, whose
 * sign is noise, into steps of full size, so this grows faster than the rest, and is largest after
 * one step. Two to three times what an H200 showed at most in the models without stages (commit
 * 51517e3, F32: 5.3e-7, 1.2e-7, 9.8e-7 at worst, 1.9e-7, 1.6e-5; TF32: 5.6e-4, 2.9e-5, 1e-3;
 * BF16: 5.9e-3, 2e-4, 1e-2, 6.2e-4; update of one step on a CPU 7.5e-2). */
typedef struct Limits {
    double forward, start, whole, gradient, loss, update;
} Limits;

typedef struct Case {
    const char *name;
    VitttConfig config;
    int64_t batch;
    enum {
        CASE_PLAIN,
        CASE_SMALL,   /* also resumed and carried over to the other device */
        CASE_BY_NAME, /* runs where it is named, not with all */
    } kind;
} Case;

#define CASES 11
extern const Case cases[CASES];

const Limits *limits_of(const Case *c, Precision p);

#endif
