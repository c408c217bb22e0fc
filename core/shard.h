/* Which samples of a batch are a rank's own, when several processes train one model.
 *
 * A batch of ranks * local samples is drawn alike on every rank; each takes `local` of them. Mixup
 * and cutmix pair sample i with its mirror, batch - 1 - i: with an even `local` a rank takes as
 * many from the front as mirrors of them from the back, so that every pair lies on one rank and is
 * mirrored there, too. With an odd one it takes consecutive samples.
 */
#ifndef TTV_CORE_SHARD_H
#define TTV_CORE_SHARD_H

#include <stdint.h>

typedef struct Shard {
    int64_t rank, ranks; /* ranks 0 or 1: everything */
} Shard;

static inline int64_t shard_ranks(Shard s) {
    return s.ranks > 1 ? s.ranks : 1;
}

/* Position in the batch of the rank's i-th sample of `local`; grows with i, and is at least i. */
static inline int64_t shard_position(Shard s, int64_t local, int64_t i) {
    const int64_t half = local / 2;
    if (s.ranks <= 1) return i;
    if (local % 2 != 0) return s.rank * local + i;
    if (i < half) return s.rank * half + i;
    return s.ranks * local - (s.rank + 1) * half + (i - half);
}

#endif
