/* Files: whole reads, memory maps, and writes that either happen completely or not at all. */
#ifndef TTV_CORE_FILE_H
#define TTV_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/status.h"

/* Whole regular file into *data (mem_free), NUL-terminated one past *size. Refuses directories,
 * FIFOs and devices by name, and files above `max_bytes` (STATUS_DATA). */
Status file_read(const char *path, size_t max_bytes, char **data, size_t *size);

typedef struct FileMap {
    const unsigned char *data; /* NULL when the file is empty */
    size_t size;
} FileMap;

/* Read-only map of a regular file. Whoever shortens the file in place meanwhile kills the reader
 * with SIGBUS; replacing it by rename, as FileWriter does, is safe. */
Status file_map(const char *path, FileMap *map);
void file_unmap(FileMap *map);

/* Atomic replacement: write to `<path>.tmp-<pid>-<n>` in the same folder, then commit = flush,
 * fsync, close, rename over `path`, fsync the folder. Until commit returns STATUS_OK the old file
 * is untouched; abort (or a failed commit) removes the temporary. Errors name path, need and free
 * bytes. A link at `path` is followed; the permissions of the old file are kept. The first error is
 * sticky. One thread per writer. */
typedef struct FileWriter FileWriter;
Status file_writer_open(const char *path, FileWriter **out);
/* Announces the whole size before the first write: reserves the blocks where the file system can,
 * so that a full disk is found before any work, and messages tell the true need. */
Status file_writer_expect(FileWriter *w, uint64_t bytes);
Status file_writer_write(FileWriter *w, const void *data, size_t bytes);
Status file_writer_commit(FileWriter *w); /* frees w in every case */
void file_writer_abort(FileWriter *w);    /* NULL is allowed */

/* One call for small files. */
Status file_write_atomic(const char *path, const void *data, size_t bytes);

/* Removes left-over temporaries of a previous, killed process in `folder` (names *.tmp-<pid>-<n>
 * whose process is gone). */
Status file_clean_temporaries(const char *folder, int *removed);

Status file_make_folder(const char *path); /* mkdir -p */
bool file_exists(const char *path);
/* What stands at `path`, links followed: "regular file", "directory", "FIFO", ...; NULL when
 * nothing does. */
const char *file_kind(const char *path);
bool file_is_folder(const char *path);
Status file_sync_folder(const char *path);

/* out = a + "/" + b (mem_free). */
Status path_join(char **out, const char *a, const char *b);

/* `text` with control bytes, invalid UTF-8 and terminal escapes written as \xNN, safe to print.
 * Returns out, always NUL-terminated. */
char *text_printable(const char *text, char *out, size_t size);

#endif
