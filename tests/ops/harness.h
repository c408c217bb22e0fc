/* What main needs of the harness: see op_case.h. */
#ifndef TTV_TESTS_OPS_HARNESS_H
#define TTV_TESTS_OPS_HARNESS_H

#include "op_case.h"

/* Grad modes: all set, all add, all none, then three mixtures. */
#define GRAD_MODES       6
#define GRAD_MODES_PLAIN 3

/* CLOCK_MONOTONIC, or the time of this process alone: on a busy machine, with OMP_NUM_THREADS=1. */
extern clockid_t bench_clock;

/* Runs a case once; r->status and the host copies of all tensors are filled. False: it could not
 * run (message printed). run_end frees everything. */
bool run_case(Run *r, const OpCase *item, Device *device, DType act, int grad_mode, bool reference,
              int64_t repeats);
void run_end(Run *r);

/* Guard bytes, untouched inputs, empty scratch; prints what is wrong. */
bool run_is_clean(const Run *r);
/* Outputs against the expected values, or against those of another run. */
bool run_matches_reference(const Run *r);
bool run_matches_run(const Run *r, const Run *other);
/* All bytes equal. */
bool run_same_bits(const Run *a, const Run *b);

void run_label(const Run *r, char *text, size_t size);

#endif
