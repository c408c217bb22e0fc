/* Finding the run that --resume means, for every command that trains. */
#ifndef TTV_TOOLS_RUN_RESUME_H
#define TTV_TOOLS_RUN_RESUME_H

#include "tools/run_folder.h"

/* Decides by settings.run.resume whether a run is continued; if so, opens (locks) its folder, takes
 * over the values of its config.ini that `inherited` lists (see config_overlay) and nobody set now,
 * and sets *resuming and settings.run.output. */
Status run_resume_find(RunFolder *r, Config *config, const char *inherited, bool *resuming);

#endif
