#include "datasets/tar.h"

#include <stdbool.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/image.h"
#include "datasets/tar_header.h"

struct Tar {
    FileMap map; /* empty for tar_parse */
    char *path;
    TarMember *members;
    int64_t count, capacity;
    char *names; /* all member names, one after the other; members point into it once it is complete
                  */
    size_t names_used, names_capacity;
    int64_t passed_over;
};

/* What the archive says about the next member ahead of its header. */
typedef struct Pending {
    TarText name; /* GNU long name or PAX path */
    bool has_size;
    uint64_t size; /* PAX size */
    bool sparse;   /* its data is not the file's bytes */
} Pending;

typedef struct Cursor {
    Tar *tar;
    const unsigned char *data;
    size_t size, at;
    const char *shown; /* printable archive name */
    Pending pending;
} Cursor;

static Status corrupt(const Cursor *c, size_t at, const char *what) {
    return status_set(STATUS_DATA, "%s: bad tar at byte %zu: %s", c->shown, at, what);
}

static Status append_name(Tar *t, TarText text) {
    size_t need = t->names_used + text.length + 1;
    if (need > t->names_capacity) {
        size_t capacity = need * 2 > 4096 ? need * 2 : 4096;
        void *block = t->names;
        TRY(mem_grow(&block, (int64_t)capacity, 1, "tar member names"));
        t->names = block;
        t->names_capacity = capacity;
    }
    memcpy(t->names + t->names_used, text.start, text.length);
    t->names[t->names_used + text.length] = '\0';
    t->names_used = need;
    return STATUS_OK;
}

static Status append_member(Tar *t, TarText name, const unsigned char *data, size_t size) {
    if (t->count == t->capacity) {
        int64_t capacity = t->capacity > 0 ? 2 * t->capacity : 64;
        void *block = t->members;
        TRY(mem_grow(&block, capacity, sizeof(TarMember), "tar index"));
        t->members = block;
        t->capacity = capacity;
    }
    TRY(append_name(t, name));
    t->members[t->count++] = (TarMember){NULL, data, size};
    return STATUS_OK;
}

/* The block grows while names are added: pointers are set at the end. */
static void set_name_pointers(Tar *t) {
    const char *name = t->names;
    for (int64_t i = 0; i < t->count; i++) {
        t->members[i].name = name;
        name += strlen(name) + 1;
    }
}

static TarText strip_dot_slash(TarText name) {
    for (;;) {
        if (name.length >= 2 && name.start[0] == '.' && name.start[1] == '/') {
            name.start += 2;
            name.length -= 2;
        } else if (name.length >= 1 && name.start[0] == '/') {
            name.start++;
            name.length--;
        } else {
            return name;
        }
    }
}

static Status check_name(const Cursor *c, size_t at, TarText name) {
    if (name.length == 0) return corrupt(c, at, "a member without a name");
    if (memchr(name.start, '\0', name.length) != NULL) {
        return corrupt(c, at, "a member name that holds a NUL byte");
    }
    const char *end = name.start + name.length;
    for (const char *part = name.start; part < end;) {
        const char *slash = memchr(part, '/', (size_t)(end - part));
        const char *stop = slash != NULL ? slash : end;
        if (stop - part == 2 && part[0] == '.' && part[1] == '.') {
            return corrupt(c, at, "a member name with '..' in it");
        }
        part = stop + 1;
    }
    return STATUS_OK;
}

static Status take_pax(Cursor *c, size_t at, const unsigned char *data, size_t size) {
    TarText rest = {(const char *)data, size};
    TarText key, value;
    while (rest.length > 0) {
        if (!tar_pax_record(&rest, &key, &value)) {
            return corrupt(c, at, "a malformed PAX record");
        }
        if (tar_text_is(key, "path")) c->pending.name = value;
        if (tar_text_is(key, "size")) {
            if (!tar_decimal(value, &c->pending.size)) return corrupt(c, at, "a bad PAX size");
            c->pending.has_size = true;
        }
        if (key.length > 11 && memcmp(key.start, "GNU.sparse.", 11) == 0) c->pending.sparse = true;
    }
    return STATUS_OK;
}

/* One header and its data; moves the cursor behind both. */
static Status take_member(Cursor *c) {
    size_t at = c->at;
    const unsigned char *header = c->data + at;
    uint64_t stored;
    if (!tar_checksum_ok(header)) {
        return corrupt(c, at, at == 0 ? "not a tar header (checksum)" : "header checksum is wrong");
    }
    if (!tar_number(header + TAR_SIZE_OFFSET, TAR_SIZE_LENGTH, &stored)) {
        return corrupt(c, at, "the size field is not a number");
    }
    char type = (char)header[TAR_TYPE_OFFSET];
    bool extra = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    if (c->pending.has_size && !extra) stored = c->pending.size;
    bool has_data = extra || !tar_type_is_empty(type);
    size_t left = c->size - at - TAR_BLOCK;
    if (has_data && stored > left) {
        return corrupt(c, at,
                       "a member larger than the rest of the file: the archive is truncated");
    }
    size_t size = has_data ? (size_t)stored : 0;
    const unsigned char *data = header + TAR_BLOCK;
    size_t padded = (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    if (padded > left) return corrupt(c, at, "the last member is not padded: truncated archive");
    c->at = at + TAR_BLOCK + padded;
    if (type == 'x') return take_pax(c, at, data, size);
    if (type == 'L') {
        c->pending.name = tar_field((const char *)data, size);
        return STATUS_OK;
    }
    if (extra) return STATUS_OK; /* long link names and global headers say nothing about files */
    Pending pending = c->pending;
    c->pending = (Pending){0};
    char joined[TAR_JOINED_NAME];
    TarText name = pending.name.start != NULL ? pending.name : tar_header_name(header, joined);
    name = strip_dot_slash(name);
    if (!tar_type_is_file(type) || pending.sparse) {
        c->tar->passed_over++;
        return STATUS_OK;
    }
    TRY(check_name(c, at, name));
    if (name.start[name.length - 1] == '/') { /* a folder as pre-POSIX archives write it */
        c->tar->passed_over++;
        return STATUS_OK;
    }
    return append_member(c->tar, name, data, size);
}

/* A block of zeros ends the archive (POSIX asks for two; one at the end of the file is common). */
static Status take_all(Cursor *c) {
    enum { LOOKS = 4096, SECONDS = 10 }; /* reading headers of a large archive may take minutes */
    double told = seconds_now();
    for (int64_t n = 1; c->size - c->at >= TAR_BLOCK; n++) {
        if (tar_block_is_zero(c->data + c->at)) return STATUS_OK;
        TRY(take_member(c));
        if (n % LOOKS != 0 || seconds_now() - told < SECONDS) continue;
        told = seconds_now();
        log_info("%s: reading its index, %.0f %%", c->shown, 100 * (double)c->at / (double)c->size);
    }
    if (c->size - c->at > 0) {
        return corrupt(c, c->at, "the file ends inside a block: the archive is truncated");
    }
    return corrupt(c, c->at, "no end-of-archive block: the archive is truncated");
}

static Status refuse_other(const char *shown, const unsigned char *data, size_t size) {
    const char *kind = image_kind(data, size);
    if (size >= 2 && data[0] == 0x1F && data[1] == 0x8B) {
        return status_set(
            STATUS_DATA,
            "%s: gzip-compressed; members can only be read in place from a plain tar: "
            "gunzip it first (gunzip -k FILE)",
            shown);
    }
    return status_set(STATUS_DATA, "%s: not a tar archive, but %s", shown, kind);
}

static bool looks_like_tar(const unsigned char *data, size_t size) {
    return size >= TAR_BLOCK && (tar_checksum_ok(data) || tar_block_is_zero(data));
}

static Status parse(Tar *t, const unsigned char *data, size_t size) {
    char shown[600];
    text_printable(t->path, shown, sizeof shown);
    if (!looks_like_tar(data, size)) {
        bool damaged = size > 262 && memcmp(data + 257, "ustar", 5) == 0;
        if (!damaged) return refuse_other(shown, data, size);
    }
    Cursor c = {.tar = t, .data = data, .size = size, .shown = shown};
    TRY(take_all(&c));
    set_name_pointers(t);
    return STATUS_OK;
}

static Status tar_new(const char *name, Tar **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(Tar), "tar index"));
    Tar *t = block;
    Status s = mem_string(&t->path, name);
    if (s != STATUS_OK) {
        mem_free(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

Status tar_parse(const unsigned char *data, size_t size, const char *name, Tar **out) {
    Tar *t;
    *out = NULL;
    TRY(tar_new(name, &t));
    Status s = parse(t, data, size);
    if (s != STATUS_OK) {
        tar_close(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

Status tar_open(const char *path, Tar **out) {
    Tar *t;
    *out = NULL;
    TRY(tar_new(path, &t));
    Status s = file_map(path, &t->map);
    if (s == STATUS_OK) s = parse(t, t->map.data, t->map.size);
    if (s != STATUS_OK) {
        tar_close(t);
        return s;
    }
    *out = t;
    return STATUS_OK;
}

void tar_close(Tar *t) {
    if (t == NULL) return;
    file_unmap(&t->map);
    mem_free(t->path);
    mem_free(t->members);
    mem_free(t->names);
    mem_free(t);
}

int64_t tar_count(const Tar *t) {
    return t->count;
}

const TarMember *tar_at(const Tar *t, int64_t i) {
    return &t->members[i];
}

const char *tar_path(const Tar *t) {
    return t->path;
}

int64_t tar_passed_over(const Tar *t) {
    return t->passed_over;
}
