/* Splits against each other: identical files, and class folders that differ. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tools/data_scan.h"

/* ---- identical files ---- */

typedef struct Key {
    int64_t bytes;
    uint32_t crc;
    int32_t split;
    int64_t sample;
} Key;

static int compare_keys(const void *a, const void *b) {
    const Key *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    if (x->crc != y->crc) return x->crc < y->crc ? -1 : 1;
    if (x->split != y->split) return x->split < y->split ? -1 : 1;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

static const char *key_name(const SplitScan *splits, const Key *k) {
    return dataset_name(splits[k->split].dataset, k->sample);
}

static const char *key_class(const SplitScan *splits, const Key *k) {
    const SplitScan *s = &splits[k->split];
    return s->classes.names[dataset_label(s->dataset, k->sample)];
}

/* CRCs agree by chance once in 2^32: the bytes decide. */
static Status same_bytes(const SplitScan *splits, const Key *a, const Key *b, bool *same) {
    const void *data[2] = {NULL, NULL};
    const Key *keys[2] = {a, b};
    size_t size[2] = {0, 0};
    bool owned[2] = {false, false};
    Status s = STATUS_OK;
    for (int i = 0; i < 2 && s == STATUS_OK; i++)
        s = dataset_bytes(splits[keys[i]->split].dataset, keys[i]->sample, &data[i], &size[i],
                          &owned[i]);
    *same = s == STATUS_OK && size[0] == size[1] && memcmp(data[0], data[1], size[0]) == 0;
    for (int i = 0; i < 2; i++)
        if (owned[i]) mem_free((void *)(uintptr_t)data[i]);
    return s;
}

static Status compare_pair(const SplitScan *splits, const Key *first, const Key *k, Duplicates *out,
                           Findings *faults) {
    bool same;
    TRY(same_bytes(splits, first, k, &same));
    if (!same) return STATUS_OK;
    const char *names[2] = {key_name(splits, first), key_name(splits, k)};
    const char *classes[2] = {key_class(splits, first), key_class(splits, k)};
    if (strcmp(classes[0], classes[1]) != 0) {
        out->conflicts++;
        findings_add(faults, "%s (class '%s') and %s (class '%s') are the same picture", names[0],
                     classes[0], names[1], classes[1]);
    } else if (first->split != k->split) {
        findings_add(faults, "%s is in %s and, as %s, in %s", names[1], splits[k->split].name,
                     names[0], splits[first->split].name);
    }
    if (first->split != k->split)
        out->across++;
    else
        out->within++;
    return STATUS_OK;
}

static Key *collect_keys(const SplitScan *splits, int count, Key *keys, int64_t *total) {
    int64_t n = 0;
    for (int s = 0; s < count; s++)
        for (int64_t i = 0; i < splits[s].count; i++)
            if (!splits[s].samples[i].error) /* broken files are reported already */
                keys[n++] = (Key){splits[s].samples[i].bytes, splits[s].samples[i].crc, s, i};
    qsort(keys, (size_t)n, sizeof *keys, compare_keys);
    *total = n;
    return keys;
}

Status find_duplicates(const SplitScan *splits, int count, Duplicates *out, Findings *faults) {
    int64_t capacity = 0, total;
    void *memory;
    *out = (Duplicates){0};
    for (int s = 0; s < count; s++) capacity += splits[s].count;
    TRY(mem_alloc(&memory, capacity, sizeof(Key), "file hashes"));
    const Key *keys = collect_keys(splits, count, memory, &total);
    Status s = STATUS_OK;
    for (int64_t first = 0, i = 1; i < total && s == STATUS_OK; i++) {
        if (keys[i].bytes != keys[first].bytes || keys[i].crc != keys[first].crc)
            first = i;
        else
            s = compare_pair(splits, &keys[first], &keys[i], out, faults);
    }
    mem_free(memory);
    return s;
}

/* ---- class folders ---- */

static void report_missing(const SplitScan *has, const SplitScan *lacks, Findings *faults) {
    /* Class lists may be ordered by a file: search, do not merge. */
    for (int64_t i = 0; i < has->classes.count; i++) {
        bool found = false;
        for (int64_t k = 0; k < lacks->classes.count && !found; k++)
            found = strcmp(has->classes.names[i], lacks->classes.names[k]) == 0;
        if (!found)
            findings_add(faults, "class '%s' is in %s, but not in %s", has->classes.names[i],
                         has->name, lacks->name);
    }
}

void compare_classes(const SplitScan *a, const SplitScan *b, Findings *faults) {
    report_missing(a, b, faults);
    report_missing(b, a, faults);
}
