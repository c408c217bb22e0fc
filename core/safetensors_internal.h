/* Shared by safetensors_*.c only. */
#ifndef TTV_CORE_SAFETENSORS_INTERNAL_H
#define TTV_CORE_SAFETENSORS_INTERNAL_H

#include "core/safetensors.h"

enum { SAFE_SHOWN = 160, SAFE_PATH_SHOWN = 480 }; /* bytes of a name, of a path in a message */

typedef struct SafeShard {
    FileMap map; /* empty for images in memory */
    char *path;
    char *names; /* decoded names and metadata, one block */
} SafeShard;

struct SafeFile {
    char *path;
    SafeShard *shards;
    int shard_count;
    SafeEntry *entries; /* by shard, then data offset */
    int64_t count;
    const SafeEntry **by_name; /* sorted by name, then shard */
    SafeMeta *meta;            /* of the first shard */
    int64_t meta_count;
};

/* Checks the image and appends its tensors (and, for shard 0, the metadata) to f. */
Status safe_header_parse(SafeFile *f, int shard, const unsigned char *data, size_t size);

/* Maps a file as shard number `shard` of f, whose array must have room, and parses it. */
Status safe_shard_open(SafeFile *f, int shard, const char *path);

/* Opens all shards that the index names and compares their tensors with weight_map. */
Status safe_index_open(SafeFile *f, const char *path);

/* Sorts by_name; to be called once, when all shards are parsed. */
Status safe_names_sort(SafeFile *f);

#endif
