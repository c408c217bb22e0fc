/* Will a training run fit on the device? Worked out before anything of the batch's size is taken
 * (nn/plan.h), and told the same way by every command that trains.
 */
#ifndef TTV_TOOLS_MEMORY_PLAN_H
#define TTV_TOOLS_MEMORY_PLAN_H

#include "core/json.h"
#include "nn/plan.h"

/* Bytes on the device, before step 1. */
typedef struct MemoryPlan {
    StepPlan step;       /* of --batch-size */
    size_t sample_bytes; /* held for each sample outside of the step */
    size_t need;         /* of a step with its batches */
    int64_t largest;     /* batch that fits, with a little to spare; 0: none */
} MemoryPlan;

Status memory_plan(const PlanTask *task, int64_t batch, size_t sample_bytes, MemoryPlan *out);

/* STATUS_MEMORY, when a step does not fit, names need, free memory and the largest batch; `more` is
 * said behind that, e.g. which flag saves memory ("": nothing). */
Status memory_plan_check(const MemoryPlan *p, const Device *d, const char *more);

/* What a plan tells of any model: the keys device, activations, checkpoint_bytes and memory, an
 * object of bytes. */
void memory_plan_json(const MemoryPlan *p, const Params *params, const Device *d, DType act,
                      size_t average, JsonWriter *w);

/* In words, on stderr. `average`: bytes of averaged weights, part of the state. */
void memory_plan_print(const MemoryPlan *p, size_t average, bool recompute);

#endif
