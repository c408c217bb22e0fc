/* A folder as model hubs have it: model.safetensors, config.json with the keys of timm, README.md.
 */
#ifndef TTV_TOOLS_HUB_FOLDER_H
#define TTV_TOOLS_HUB_FOLDER_H

#include "core/safetensors.h"

typedef struct HubFolder {
    char *config, *readme; /* texts of the two files */
} HubFolder;

/* Takes everything from the metadata of a classifier's weights file; STATUS_DATA when it does not
 * say what it holds. `path` is for messages. */
Status hub_folder_describe(const SafeFile *file, const char *path, HubFolder *out);
/* Refuses to write over either file, unless `overwrite`. */
Status hub_folder_check(const char *folder, bool overwrite);
/* Writes both texts into a folder that exists. */
Status hub_folder_write(const HubFolder *h, const char *folder);
void hub_folder_free(HubFolder *h);

#endif
