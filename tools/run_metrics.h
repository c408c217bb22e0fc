/* metrics.jsonl and metrics.csv of a run folder: behind run_folder.h. */
#ifndef TTV_TOOLS_RUN_METRICS_H
#define TTV_TOOLS_RUN_METRICS_H

#include "tools/run_folder.h"

/* Drops rows beyond `step` (all with step < 0, when the files exist) and torn last lines; remembers
 * the newest kept step of each kind. */
Status metrics_trim(RunFolder *r, int64_t step);
/* Writes the CSV heading into an empty file. */
Status metrics_begin(RunFolder *r);

#endif
