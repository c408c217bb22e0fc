/* Which picture is scored against which: two files, two folders, or a list. */
#ifndef TTV_TOOLS_SCORE_PAIRS_H
#define TTV_TOOLS_SCORE_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct ScorePair {
    char *a, *b; /* paths */
} ScorePair;

typedef struct ScorePairs {
    ScorePair *items;
    int64_t count, capacity;
    char **missing; /* paths without a partner */
    int64_t missing_count, missing_capacity;
    bool many; /* folders or a list, even when they hold one pair */
} ScorePairs;

typedef enum PairBy { PAIR_BY_NAME, PAIR_BY_ORDER } PairBy;

/* Two files, or the pictures of two folders. By name: the same path below the folder, else the same
 * path but for the ending, where only one on each side has it. By order: byte order of the names;
 * both must hold as many. `out` must be zero; free it in any case. */
Status score_pairs_of(char *a, char *b, PairBy by, bool recursive, ScorePairs *out);
/* Lines "A<TAB>B", more columns ignored, blank lines and those that begin with # passed over; names
 * are relative to the list's folder. */
Status score_pairs_read(const char *list, ScorePairs *out);
void score_pairs_free(ScorePairs *p);

#endif
