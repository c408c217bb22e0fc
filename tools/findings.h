/* A list of lines that describe faults: the first FINDINGS_KEPT are kept, all are counted. */
#ifndef TTV_TOOLS_FINDINGS_H
#define TTV_TOOLS_FINDINGS_H

#include "core/json.h"

enum { FINDINGS_KEPT = 1000 };

typedef struct Findings {
    char **lines;
    int64_t count;
    Status status; /* sticky: a line could not be kept (memory) */
} Findings;

void findings_add(Findings *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void findings_free(Findings *f);

/* "  fault: ..." lines on stdout, safe for a terminal; at most `most` (0: all kept) and how many
 * more. */
void findings_print(const Findings *f, int64_t most);
/* Adds "fault_count" and "faults" to an object. */
void findings_json(const Findings *f, JsonWriter *w);

#endif
