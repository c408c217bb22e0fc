/* Results of `ttv bench ttt`: lines or JSON as they come, in the end a table and a plot. */
#ifndef TTV_TOOLS_BENCH_TTT_H
#define TTV_TOOLS_BENCH_TTT_H

#include "tools/bench_profile.h"
#include "ttt/chunked.h"

enum { TTT_ROWS = 512 };

typedef struct TttRow {
    int variant;
    ChunkedForm form;
    int64_t tokens;
    double seconds, tokens_per_s, flops_per_s, bytes_per_s;
    int64_t memory; /* bytes of tensors at the peak, inputs among them */
} TttRow;

typedef struct TttTable {
    const BenchOptions *options;
    TttRow rows[TTT_ROWS];
    int count;
} TttTable;

extern const char *const ttt_forms[2]; /* names of ChunkedForm */

/* Prints the row, with its profile (or NULL), and keeps it. STATUS_USAGE: the table is full. */
Status ttt_report(Bench *b, TttTable *t, const TttRow *row, const Profile *profile);
/* <output>.csv, and <output>.png: milliseconds against length, both logarithmic, a line per variant
 * and form, and beside them the slope of what grows with the length. */
Status ttt_write(const TttTable *t);

#endif
