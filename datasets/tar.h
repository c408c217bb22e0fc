/* Read-only index of a tar file (ustar, GNU long names, PAX paths), memory-mapped: members are read
 * in place. */
#ifndef TTV_DATASETS_TAR_H
#define TTV_DATASETS_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct TarMember {
    const char *name; /* path inside the archive */
    const unsigned char *data;
    size_t size;
} TarMember;

typedef struct Tar Tar;

/* Regular files only; folders, links and specials are passed over (counted). Bad checksums, sizes
 * beyond the end, names with ".." or NUL, and truncation are errors with the byte offset. */
Status tar_open(const char *path, Tar **out);
Status tar_parse(const unsigned char *data, size_t size, const char *name,
                 Tar **out); /* tests, fuzzing */
void tar_close(Tar *t);
int64_t tar_count(const Tar *t);
const TarMember *tar_at(const Tar *t, int64_t i);
const char *tar_path(const Tar *t);
int64_t tar_passed_over(const Tar *t); /* folders, links, specials, sparse files */

#endif
