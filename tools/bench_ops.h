/* The table of `ttv bench ops`; for bench_ops*.c only. */
#ifndef TTV_TOOLS_BENCH_OPS_H
#define TTV_TOOLS_BENCH_OPS_H

#include "tools/bench.h"

enum { CASE_TENSORS = 9, CASE_SETS = 48 };

typedef struct OpRun {
    const struct OpCase *op;
    Device *device;
    const Kernels *k;
    VitttShape shape;
    Tensor *t; /* of the set whose turn it is */
    Tensor sets[CASE_SETS][CASE_TENSORS];
    int64_t set_count, calls;
    int64_t patch;
    double flops, bytes; /* of one call */
} OpRun;

typedef struct OpCase {
    const char *slot, *note, *tensors; /* the text is read by bench_ops_cases.c's rules */
    Status (*run)(OpRun *r);
} OpCase;

/* Case i of all, NULL behind the last. */
const OpCase *op_case(int i);

/* Those of bench_ops_plain.c, which come first. */
extern const OpCase op_cases_plain[];
extern const int op_cases_plain_count;

#endif
