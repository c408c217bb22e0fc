#include "tools/event_file.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/crc32c.h"
#include "core/file.h"
#include "core/memory.h"

enum {
    VARINT = 0,
    FIXED64 = 1,
    BYTES = 2,
    FIXED32 = 5,
    LONGEST_TAG = 100,
    RECORD_ROOM = 4096,
    HEAD_ROOM = 32, /* of an Event: wall time, step and the head of what follows */
    NAME_ROOM = 160
};

typedef struct Bytes {
    unsigned char data[RECORD_ROOM];
    size_t size;
} Bytes;

struct EventFile {
    FILE *file;
    char *path;
    Bytes summary; /* of the record in the making */
};

/* ---- protocol buffers ---- */

/* The caller knows that there is room. */
static void put(Bytes *b, const void *data, size_t size) {
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_varint(Bytes *b, uint64_t x) {
    do {
        const unsigned char byte = (unsigned char)(x & 0x7f) | (x > 0x7f ? 0x80 : 0);
        put(b, &byte, 1);
        x >>= 7;
    } while (x > 0);
}

static void put_fixed(Bytes *b, uint64_t bits, int bytes) {
    for (int i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)(bits >> 8 * i);
        put(b, &byte, 1);
    }
}

static void put_key(Bytes *b, int field, int type) {
    put_varint(b, (uint64_t)(field << 3 | type));
}

static void put_message(Bytes *b, int field, const void *data, size_t size) {
    put_key(b, field, BYTES);
    put_varint(b, size);
    put(b, data, size);
}

static Bytes event_begin(int64_t step) {
    Bytes b = {.size = 0};
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &seconds, sizeof bits);
    put_key(&b, 1, FIXED64);
    put_fixed(&b, bits, 8);
    put_key(&b, 2, VARINT);
    put_varint(&b, (uint64_t)step);
    return b;
}

/* ---- records ---- */

static uint32_t masked(const void *data, size_t size) {
    const uint32_t crc = crc32c(0, data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static Status write_record(EventFile *e, const Bytes *data) {
    Bytes head = {.size = 0}, tail = {.size = 0};
    put_fixed(&head, data->size, 8);
    put_fixed(&head, masked(head.data, 8), 4);
    put_fixed(&tail, masked(data->data, data->size), 4);
    if (fwrite(head.data, 1, head.size, e->file) == head.size &&
        fwrite(data->data, 1, data->size, e->file) == data->size &&
        fwrite(tail.data, 1, tail.size, e->file) == tail.size && fflush(e->file) == 0)
        return STATUS_OK;
    return status_errno("%s", e->path);
}

void event_file_add(EventFile *e, const char *tag, double value) {
    Bytes item = {.size = 0};
    const size_t length = strnlen(tag, LONGEST_TAG);
    const float narrow = (float)value;
    uint32_t bits;
    if (!isfinite(narrow) || e->summary.size + LONGEST_TAG + 2 * HEAD_ROOM > RECORD_ROOM) return;
    memcpy(&bits, &narrow, sizeof bits);
    put_message(&item, 1, tag, length);
    put_key(&item, 2, FIXED32);
    put_fixed(&item, bits, 4);
    put_message(&e->summary, 1, item.data, item.size);
}

Status event_file_flush(EventFile *e, int64_t step) {
    if (e->summary.size == 0) return STATUS_OK;
    Bytes event = event_begin(step);
    put_message(&event, 5, e->summary.data, e->summary.size);
    e->summary.size = 0;
    return write_record(e, &event);
}

/* ---- files ---- */

#define PREFIX "events.out.tfevents."

/* Readers order the files of a folder by name, in which the second stands first: one that no file
 * has yet, so that two short runs in a row stay in their order. */
static long long next_second(const char *folder) {
    long long second = (long long)time(NULL);
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        const long long taken = strtoll(entry->d_name + strlen(PREFIX), NULL, 10);
        if (taken >= second && taken < LLONG_MAX) second = taken + 1;
    }
    if (dir) (void)closedir(dir);
    return second;
}

static Status open_file(const char *folder, EventFile *e) {
    char host[64] = "host", name[NAME_ROOM];
    (void)gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++)
        if (*c == '/') *c = '_';
    snprintf(name, sizeof name, PREFIX "%010lld.%s.%ld.0", next_second(folder), host,
             (long)getpid());
    TRY(path_join(&e->path, folder, name));
    e->file = fopen(e->path, "wxe");
    return e->file ? STATUS_OK : status_errno("%s", e->path);
}

static Status begin(EventFile *e, int64_t first_step) {
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {1 << 3 | VARINT, 1}; /* SessionLog {status: START} */
    Bytes first = event_begin(0), session = event_begin(first_step);
    put_message(&first, 3, version, sizeof version - 1);
    put_message(&session, 7, start, sizeof start);
    TRY(write_record(e, &first));
    return write_record(e, &session);
}

Status event_file_open(const char *folder, int64_t first_step, EventFile **out) {
    void *memory;
    *out = NULL;
    TRY(file_make_folder(folder));
    TRY(mem_alloc(&memory, 1, sizeof(EventFile), "event file"));
    EventFile *e = memory;
    Status s = open_file(folder, e);
    if (s == STATUS_OK) s = begin(e, first_step);
    if (s == STATUS_OK) {
        *out = e;
        return STATUS_OK;
    }
    (void)event_file_close(e);
    return s;
}

Status event_file_close(EventFile *e) {
    if (!e) return STATUS_OK;
    const Status s = e->file && fclose(e->file) != 0 ? status_errno("%s", e->path) : STATUS_OK;
    mem_free(e->path);
    mem_free(e);
    return s;
}
