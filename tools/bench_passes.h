/* Whole passes that `ttv bench step` measures; for bench_*.c only.
 *
 * Passes marked "recorded" are graphs, as in nn/train_pass.c, over data that lies on the device:
 * what a loader that keeps up would let the device reach. They exist where a device can record.
 */
#ifndef TTV_TOOLS_BENCH_PASSES_H
#define TTV_TOOLS_BENCH_PASSES_H

#include "tools/bench_profile.h"

enum { PASSES = 8 };

/* What one measurement says. */
typedef struct PassResult {
    const char *what, *unit; /* unit: of what the batch counts, "images" */
    int64_t batch;
    double seconds, macs; /* multiply-adds of the pass */
    bool profiled;
    Profile profile;
} PassResult;

/* Bytes of a device's arenas. */
typedef struct PassMemory {
    const char *name[4];
    int64_t peak[4], total, reserved;
    int64_t late_growths; /* calls to the device's allocator after the first pass */
} PassMemory;

typedef struct PassResults {
    PassResult pass[PASSES];
    int count;
    int64_t parameters;
    PassMemory classify, train;
} PassResults;

PassResult *pass_add(PassResults *r, const char *what, int64_t batch, double macs);
void pass_memory(const Device *d, PassMemory *out);
int64_t pass_growths(const Device *d);
/* One line, or an object under `what`. */
void pass_report(const Bench *b, const PassResult *r);
/* Of training also whether it is planned: nothing is allocated after step 1. */
void pass_report_memory(const Bench *b, const char *key, const PassMemory *m, bool training);

/* classify_one and classify: 8-bit pixels on the host to scores on the host, as `ttv classify` does
 * it, with batch 1 and --batch-size. forward_one and forward: recorded. */
Status bench_classify(Bench *b, PassResults *out);

/* train: forward, backward, clipping, AdamW; recorded where possible, and then also train_eager
 * (call by call) and train_fed (recorded, with a new batch from the host's memory staged during
 * each step, and the loss and gradient norm read after it, as nn/train_step.c does). */
Status bench_train(Bench *b, PassResults *out);

#endif
