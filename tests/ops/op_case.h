/* The op table: one list of cases, several modes.
 *
 * A case is a slot name, sizes and a body. The body declares tensors, calls the slot through CALL
 * and, where the mode asks for it, fills in what a naive double-precision version expects. The
 * harness does the rest: guard bytes around every tensor, inputs that must stay untouched, outputs
 * that start as NaN (set) or as random values (add), both dtypes, every combination of Grad modes,
 * repeated runs with equal bits.
 *
 *   reference  one device against the double-precision version
 *   parity     CUDA against the CPU, through the same case
 *   bench      time of the call
 */
#ifndef TTV_TESTS_OP_CASE_H
#define TTV_TESTS_OP_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "kernels/kernels.h"

#define CASE_PARAMETERS 8
#define RUN_TENSORS     16

enum {
    IN_F32 = 1, /* the dtypes of act tensors to run with */
    IN_BF16 = 2,
    IN_BOTH = 3,
    ONLY_BENCH = 4,  /* too large for the naive version */
    ANY_THREADS = 8, /* same bits whatever the number of CPU threads */
    ONLY_CARDS = 16, /* for the number of blocks of a card: smaller cases show a CPU as much */
};

typedef struct Run Run;
typedef struct OpCase {
    const char *slot;
    void (*body)(Run *r);
    int64_t p[CASE_PARAMETERS];
    unsigned flags;
    double tolerance; /* factor on the usual tolerance; 0: 1 */
} OpCase;

typedef enum Role { ROLE_INPUT, ROLE_OUTPUT, ROLE_ADD, ROLE_IN_PLACE } Role;

/* One tensor of a run: on the device between guard bytes, and its host copies. */
typedef struct RunTensor {
    const char *name;
    Tensor t; /* on the device */
    Role role;
    void *region;    /* on the device: guard, data, guard */
    uint8_t *before; /* host image of the region */
    uint8_t *after;
    double *values;   /* values before the call */
    double *expected; /* of outputs */
} RunTensor;

struct Run {
    const OpCase *item;
    Device *device;
    const Kernels *k;
    const int64_t *p; /* parameters of the case */
    DType act;
    int grad_mode;   /* which Grad outputs are none, set, add */
    int grads;       /* Grad outputs declared so far */
    bool reference;  /* fill in the expected values */
    int64_t repeats; /* times that CALL runs */
    clockid_t clock; /* what the bench reads */
    double seconds;  /* of one call */
    double bytes,
        flops;        /* moved and done by one call, for the bench; bytes: all tensors by default */
    double cancelled; /* norm of terms that cancel: errors are relative to this as well */
    bool coarse;      /* set by a body: F32 outputs come from operands rounded to BF16 */
    uint64_t random;
    Status status;
    RunTensor tensors[RUN_TENSORS];
    int count;
};

/* ---- declared by a body, before CALL; data pointers are the device's ---- */

/* Normal random values of the given spread around 0. */
Tensor input(Run *r, const char *name, DType dtype, int rank, const int64_t *shape, double spread);
/* Values chosen by the body: fill(i, user) for element i. */
Tensor input_of(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                double (*fill)(int64_t i, void *user), void *user);
Tensor output(Run *r, const char *name, DType dtype, int rank, const int64_t *shape);
/* An input that is overwritten, in whole or in part. */
Tensor in_place(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                double spread);
Tensor in_place_of(Run *r, const char *name, DType dtype, int rank, const int64_t *shape,
                   double (*fill)(int64_t i, void *user), void *user);
/* None, set or add by the run's grad mode. Expected values are without what add starts from. */
Grad gradient(Run *r, const char *name, DType dtype, int rank, const int64_t *shape);
/* For a slot that writes a part of its output: as in_place, so that expected values are those
 * afterwards. */
Grad gradient_in_place(Run *r, const char *name, DType dtype, int rank, const int64_t *shape);

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                       \
        __VA_ARGS__                                                                                \
    }

/* Runs the slot: once, or timed. */
void call_begin(Run *r);
bool call_again(Run *r);
#define CALL(r, slot, ...)                                                                         \
    do {                                                                                           \
        for (call_begin(r); call_again(r);)                                                        \
            if ((r)->status == STATUS_OK) (r)->status = (r)->k->slot((r)->device, __VA_ARGS__);    \
    } while (0)

/* ---- for the naive version ---- */

/* Values of an input as doubles, exactly as the kernel sees them (rounded to its dtype). */
const double *values(Run *r, Tensor t);
/* Where to put the expected values of an output; zeroed. NULL for a Grad that is none. */
double *expected(Run *r, Tensor t);

/* Uniform in [0,1) and normal, from the run's own stream. */
double random_uniform(Run *r);
double random_normal(Run *r);

/* The tables, one per topic; each ends with slot == NULL. */
extern const OpCase cases_elementwise[], cases_matmul[], cases_norm[], cases_dwconv[],
    cases_tokens[], cases_prepare[], cases_loss[], cases_optim[], cases_vittt[], cases_vittt_dwc[],
    cases_lact[], cases_newton_schulz[];
extern const OpCase cases_decay[], cases_attention[], cases_fast_weights[], cases_weight_step[],
    cases_chunk[], cases_view[], cases_stages[], cases_norm_fold[], cases_token_basis[];

/* Scalar functions in double precision (vittt.md 0). */
double sigma(double x);
double unary_reference(UnaryKind f, double x);

#endif
