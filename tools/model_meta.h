/* Configuration and class lists in checkpoint metadata, label files: behind model_io.h, for tools/
 * only. */
#ifndef TTV_TOOLS_MODEL_META_H
#define TTV_TOOLS_MODEL_META_H

#include "tools/model_io.h"

/* What ttv.config of `file` says of a section, over the defaults; those alone where there is none.
 * *out (config_free) knows which keys it named. */
Status model_meta_config(const SafeFile *file, Section section, Config **out);

/* ttv.classes and ttv.class_names of `file`; count 0 when absent. STATUS_DATA when the number is
 * not `classes` or the JSON is no array of strings. */
Status model_meta_classes(const SafeFile *file, const char *path, int64_t classes, ClassList *out);

#endif
