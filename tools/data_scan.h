/* What `ttv data check` finds out about a split: every file decoded, counted, hashed. */
#ifndef TTV_TOOLS_DATA_SCAN_H
#define TTV_TOOLS_DATA_SCAN_H

#include "datasets/folder.h"
#include "datasets/image.h"
#include "tools/cli.h"
#include "tools/findings.h"

typedef struct Sample {
    int64_t bytes, width, height;
    uint32_t crc;   /* CRC-32C of the file */
    ImageInfo info; /* format NULL: not even the header could be read */
    char *error;    /* why it cannot be used; NULL: it decodes */
} Sample;

/* Smallest, median and largest of a number over the pictures that decode. */
typedef struct Spread {
    int64_t min, median, max;
} Spread;

typedef struct SplitScan {
    char *name; /* "train", "val", "" for the root itself */
    Dataset *dataset;
    ClassList classes;
    DatasetReport report;
    Sample *samples;
    int64_t count;
    int64_t *per_class;   /* images per class */
    int64_t fewest, most; /* class indices; -1: no class */
    int64_t corrupt, bytes;
    int64_t jpeg, png;
    int64_t grey, rgb, alpha, cmyk,
        deep;                    /* grey: one channel, PNG palettes included; deep: 16-bit */
    int64_t progressive, tagged; /* tagged: EXIF orientation other than 1 */
    Spread width, height;
} SplitScan;

/* [data] root from the one positional of a command; 0, or the exit code of a usage error. */
int data_take_root(const Command *c, int argc, char **argv);

/* Opens a split (class list of its own; a flat one takes the classes of `known`, which may be
 * NULL), decodes every file on `threads` threads, fills in the numbers. */
Status split_scan_open(SplitScan *s, const DataConfig *c, const char *name, const ClassList *known);
Status split_scan_decode(SplitScan *s, const DataConfig *c, int threads);
void split_scan_close(SplitScan *s);

/* Identical files. */
typedef struct Duplicates {
    int64_t across;    /* files of a later split that an earlier one holds too */
    int64_t within;    /* repeated files within one split */
    int64_t conflicts; /* files whose bytes carry another class elsewhere */
} Duplicates;
/* Compares hashes, then bytes. Files across splits and conflicting labels become findings. */
Status find_duplicates(const SplitScan *splits, int count, Duplicates *out, Findings *faults);

/* Class folders that one split has and the other lacks become findings. */
void compare_classes(const SplitScan *a, const SplitScan *b, Findings *faults);

#endif
