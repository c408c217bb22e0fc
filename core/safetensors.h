/* safetensors: a strict reader (memory-mapped) and an atomic writer.
 *
 * Rules (each with a test): u64 little-endian header length, 8 <= file, length <= 100,000,000 and
 * within the file; the header is a UTF-8 JSON object that starts with '{' and may end in spaces;
 * `__metadata__` maps strings to strings; no duplicate keys; every tensor has exactly dtype, shape,
 * data_offsets; begin <= end; the tensors tile the buffer without hole or overlap; the last end is
 * the file's end; size == product(shape) * dtype, overflow-checked. Data may be unaligned in the
 * file: use safetensors_read, or check alignment before using `data` in place. A Git LFS pointer,
 * zip, pickle (also a .pth), HTML page or gzip is named as what it is.
 */
#ifndef TTV_CORE_SAFETENSORS_H
#define TTV_CORE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/file.h"
#include "core/status.h"
#include "core/tensor.h"

#define SAFETENSORS_MAX_HEADER 100000000

typedef struct SafeEntry {
    const char *name;
    DType dtype;
    int rank; /* files may hold rank up to 8; only rank <= 4 converts to a Tensor */
    int64_t shape[8];
    const unsigned char *data; /* inside the map; may be unaligned */
    size_t bytes;
    int shard; /* index of the file it lives in */
} SafeEntry;

typedef struct SafeFile SafeFile;

/* Opens `x.safetensors`, a folder holding `model.safetensors`, or a shard index
 * `*.safetensors.index.json` (shard names must be local, end in .safetensors, exist, and hold
 * exactly the tensors that weight_map says). Errors name path and reason. */
Status safetensors_open(const char *path, SafeFile **out);
/* Parses a file image in memory (fuzz entry, tests); `data` must outlive the SafeFile. */
Status safetensors_parse(const unsigned char *data, size_t size, const char *name, SafeFile **out);
void safetensors_close(SafeFile *f);

int64_t safetensors_count(const SafeFile *f);
const SafeEntry *safetensors_at(const SafeFile *f, int64_t i); /* in file order (by data offset) */
const SafeEntry *safetensors_find(const SafeFile *f, const char *name); /* NULL: absent */
const char *safetensors_path(const SafeFile *f);
/* Takes `prefix` from every name when all of them begin with it: wrappers of models add some
 * ("module."). Whether it did. */
bool safetensors_strip(SafeFile *f, const char *prefix);

/* Metadata value or NULL; enumeration by index. */
const char *safetensors_meta(const SafeFile *f, const char *key);
int64_t safetensors_meta_count(const SafeFile *f);
void safetensors_meta_at(const SafeFile *f, int64_t i, const char **key, const char **value);

/* Copies an entry into dst (contiguous host memory, dst.dtype F32, F64 or the entry's own dtype;
 * other pairs are refused); the counts must agree. Converts F16/BF16/F64/F32 to F32 or F64. */
Status safetensors_read(const SafeEntry *e, Tensor dst);

/* Writing. Tensors are written in the order given; the header is padded with spaces to 8 bytes. */
typedef struct SafeMeta {
    const char *key, *value;
} SafeMeta;
typedef struct SafeItem {
    const char *name;
    Tensor t; /* host memory */
} SafeItem;

Status safetensors_write(const char *path, const SafeItem *items, int64_t item_count,
                         const SafeMeta *meta, int64_t meta_count);

#endif
