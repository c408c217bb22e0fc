#include "datasets/tar_writer.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/tar_header.h"

enum { NAME_LENGTH = 100, CHECKSUM_OFFSET = 148, MAGIC_OFFSET = 257 };

struct TarWriter {
    FileWriter *file;
    uint64_t bytes;
};

static const unsigned char zeros[2 * TAR_BLOCK];

Status tar_writer_open(const char *path, TarWriter **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(TarWriter), "tar writer"));
    TarWriter *w = block;
    Status s = file_writer_open(path, &w->file);
    if (s != STATUS_OK) {
        mem_free(w);
        return s;
    }
    *out = w;
    return STATUS_OK;
}

static Status put(TarWriter *w, const void *data, size_t size) {
    w->bytes += size;
    return size > 0 ? file_writer_write(w->file, data, size) : STATUS_OK;
}

/* Every number is octal digits and a NUL; the checksum is taken with blanks in its own place. */
static void fill_header(char header[TAR_BLOCK], const char *name, size_t size) {
    unsigned sum = 0;
    memset(header, 0, TAR_BLOCK);
    memcpy(header, name, strlen(name));
    memcpy(header + 100, "0000644", 8);
    memcpy(header + 108, "0000000", 8);
    memcpy(header + 116, "0000000", 8);
    snprintf(header + TAR_SIZE_OFFSET, TAR_SIZE_LENGTH, "%011llo", (unsigned long long)size);
    memcpy(header + 136, "00000000000", 12);
    header[TAR_TYPE_OFFSET] = '0';
    memcpy(header + MAGIC_OFFSET, "ustar\00000", 8);
    memset(header + CHECKSUM_OFFSET, ' ', 8);
    for (int i = 0; i < TAR_BLOCK; i++) sum += (unsigned char)header[i];
    snprintf(header + CHECKSUM_OFFSET, 8, "%06o", sum);
}

Status tar_writer_add(TarWriter *w, const char *name, const void *data, size_t size) {
    char header[TAR_BLOCK];
    if (strlen(name) == 0 || strlen(name) > NAME_LENGTH)
        return status_set(STATUS_USAGE, "'%s': a member's name has 1 to %d bytes", name,
                          NAME_LENGTH);
    if ((uint64_t)size >> 33 != 0)
        return status_set(STATUS_USAGE, "'%s': %zu bytes are too many for a tar member", name,
                          size);
    fill_header(header, name, size);
    TRY(put(w, header, sizeof header));
    TRY(put(w, data, size));
    return put(w, zeros, (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

uint64_t tar_writer_bytes(const TarWriter *w) {
    return w->bytes;
}

Status tar_writer_commit(TarWriter *w) {
    Status s = put(w, zeros, sizeof zeros);
    FileWriter *file = w->file;
    mem_free(w);
    if (s == STATUS_OK) return file_writer_commit(file);
    file_writer_abort(file);
    return s;
}

void tar_writer_abort(TarWriter *w) {
    if (w == NULL) return;
    file_writer_abort(w->file);
    mem_free(w);
}
