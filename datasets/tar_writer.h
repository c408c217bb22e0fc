/* Writes a tar file (ustar) through core/file.h, so that it is there as a whole or not at all. */
#ifndef TTV_DATASETS_TAR_WRITER_H
#define TTV_DATASETS_TAR_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct TarWriter TarWriter;

Status tar_writer_open(const char *path, TarWriter **out);
/* A regular file of mode 0644 and time 0: the same members give the same bytes. Names of up to 100
 * bytes, members below 8 GiB (STATUS_USAGE). */
Status tar_writer_add(TarWriter *w, const char *name, const void *data, size_t size);
uint64_t tar_writer_bytes(const TarWriter *w); /* so far, without the end of the archive */
Status tar_writer_commit(TarWriter *w);        /* frees w in every case */
void tar_writer_abort(TarWriter *w);           /* NULL is allowed */

#endif
