/* Gradient mode of the op table: every op of nn/ops.h against finite differences.
 *
 * A case names an op, its inputs and how to build it. The scalar is L = sum(r * y) with random r.
 * Each case runs with its inputs used once (gradients are set) and twice (they accumulate), with
 * only one input wanting a gradient, and in BF16 against F32.
 */
#ifndef TTV_TESTS_OPS_GRADIENT_H
#define TTV_TESTS_OPS_GRADIENT_H

#include "nn/ops.h"

#define CASE_INPUTS 6

typedef enum InputKind {
    INPUT_ACT = 1, /* activation: BF16 in the BF16 run */
    INPUT_WEIGHT,  /* matmul parameter: BF16 shadow, F32 gradient */
    INPUT_F32,     /* parameter that stays F32 */
    INPUT_FIXED,   /* F32, no gradient wanted (targets, scales) */
} InputKind;

typedef struct CaseInput {
    InputKind kind;
    int rank;
    int64_t shape[4];
    double scale; /* values are N(0, scale^2); 0: positive, of sum 1 along the last dimension */
} CaseInput;

typedef struct GradientCase {
    const char *op;      /* name in nn/ops.h without op_ */
    const char *variant; /* what is special about it */
    Var *(*build)(Tape *t, Var *const *in);
    CaseInput in[CASE_INPUTS]; /* ends with kind 0 */
    double step;               /* of the differences; 0: the default */
    double bf16_tolerance;     /* 0: the default; negative: no BF16 run (F32 only by contract) */
} GradientCase;

/* Case i of all, NULL behind the last. */
const GradientCase *gradient_case(int i);

/* Checks that fit no case; each returns the number of failures and prints them. */
int check_patchify_refuses(Device *d);
int check_cast(Device *d);
int check_detach(Device *d);

#endif
