/* A contact sheet of what training sees: `ttv data check --augment-preview`. */
#ifndef TTV_TOOLS_AUGMENT_PREVIEW_H
#define TTV_TOOLS_AUGMENT_PREVIEW_H

#include "datasets/folder.h"

/* A PNG: one row for each of a few pictures spread over the data set, first as evaluation sees it,
 * then as [augment] makes it in the first epochs of a run with [train] seed. The flip is that of
 * the host; what the device does (mixing, erasing) is not shown. Pictures that do not decode are an
 * error. */
Status augment_preview_write(const Dataset *d, const ClassList *classes, const char *path);

#endif
