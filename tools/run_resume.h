/* Finding the run that --resume means, for every command that trains. */
#ifndef TTV_TOOLS_RUN_RESUME_H
#define TTV_TOOLS_RUN_RESUME_H

#include "tools/run_folder.h"

/* Decides by settings.run.resume whether a run is continued; if so, opens (locks) its folder, takes
 * over the values of its config.ini that `inherited` lists (see config_overlay) and nobody set now,
 * and sets *resuming and settings.run.output. STATUS_DATA where another network of the same tensors
 * is asked for (a mixer, a variant). */
Status run_resume_find(RunFolder *r, Config *config, const char *inherited, bool *resuming);

/* Where a checkpoint is a run folder, its config.ini says where its data was and how splits are
 * named: takes over what these sections lack. */
Status run_take_data(Config *config, const char *checkpoint, const char *sections);
/* Says of a failure to open those data whose they are. */
Status run_data_context(Status s);

/* Before anything of the folder changes: can a checkpoint's state go on with these options, whose
 * data come by `batch` samples, or `times` as many? */
Status run_resume_check(const TrainOptions *o, const TrainState *s, int64_t batch, int64_t times);

#endif
