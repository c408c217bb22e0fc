/* The result of `ttv data check` and its two reports. */
#ifndef TTV_TOOLS_DATA_CHECK_H
#define TTV_TOOLS_DATA_CHECK_H

#include "tools/data_scan.h"

enum { MAX_SPLITS = 16 };

typedef struct DataCheck {
    const char *root;
    SplitScan splits[MAX_SPLITS];
    int split_count;
    Duplicates duplicates;
    Findings faults;
} DataCheck;

/* At most `most` faults are listed (0: all). */
void data_check_print(const DataCheck *c, int64_t most);
/* One JSON object. */
Status data_check_json(const DataCheck *c, JsonWriter *w);

#endif
