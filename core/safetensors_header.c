/* One safetensors image: prefix, JSON header, and the proof that the tensors tile the buffer. */
#include "core/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/json_scan.h"
#include "core/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data is little-endian");

enum { MAX_RANK = sizeof((SafeEntry *)0)->shape / sizeof(int64_t), DTYPE_TEXT = 16 };

typedef struct Header {
    SafeFile *f;
    int shard;
    const unsigned char *buffer; /* tensor data */
    size_t buffer_size;
    JsonCursor cursor;
    char *names; /* next free byte of the shard's block */
    SafeEntry *next;
} Header;

static bool starts_with(const unsigned char *data, size_t size, const char *text, size_t length) {
    return size >= length && memcmp(data, text, length) == 0;
}

static bool is_html(const unsigned char *data, size_t size) {
    size_t i = 0;
    while (i < size && (data[i] == ' ' || data[i] == '\n' || data[i] == '\r' || data[i] == '\t'))
        i++;
    const char *at = (const char *)data + i;
    size_t left = size - i;
    return (left >= 5 && strncasecmp(at, "<html", 5) == 0) ||
           (left >= 9 && strncasecmp(at, "<!doctype", 9) == 0) ||
           (left >= 5 && strncasecmp(at, "<?xml", 5) == 0);
}

/* What a file that is no safetensors file seems to be; NULL when unknown. */
static const char *foreign_kind(const unsigned char *data, size_t size) {
    if (size == 0) return "the file is empty";
    if (starts_with(data, size, "version https://git-lfs", 23)) {
        return "a Git LFS pointer, not the file itself (fetch it with 'git lfs pull')";
    }
    if (starts_with(data, size, "PK\x03\x04", 4)) {
        return "a zip archive, as PyTorch writes .pt and .pth files; convert it to safetensors "
               "(scripts/vittt_from_pth.py)";
    }
    if (size >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5) {
        return "a Python pickle, as old PyTorch .pth files are; convert it to safetensors "
               "(scripts/vittt_from_pth.py)";
    }
    if (size >= 512 && memcmp(data + 257, "ustar", 5) == 0) return "a tar archive, no checkpoint";
    if (starts_with(data, size, "\x1f\x8b", 2)) return "gzip-compressed; unpack it first";
    if (is_html(data, size)) return "an HTML or XML page; was a download refused?";
    if (data[0] == '{') return "JSON text, not a safetensors file";
    return NULL;
}

static Status check_prefix(const unsigned char *data, size_t size, size_t *header_size) {
    uint64_t length = 0;
    if (size >= 8) memcpy(&length, data, 8);
    bool plausible = size > 8 && length <= SAFETENSORS_MAX_HEADER && length <= size - 8;
    if (plausible && length > 0 && data[8] == '{') {
        *header_size = (size_t)length;
        return STATUS_OK;
    }
    const char *kind = foreign_kind(data, size);
    if (kind != NULL) return status_set(STATUS_DATA, "%s", kind);
    if (size < 8) {
        return status_set(STATUS_DATA, "%zu bytes; a safetensors file has at least 8 (truncated?)",
                          size);
    }
    if (length > SAFETENSORS_MAX_HEADER) {
        return status_set(STATUS_DATA,
                          "header of %llu bytes; at most %d are accepted (no "
                          "safetensors file, or damaged)",
                          (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    }
    if (length > size - 8) {
        return status_set(STATUS_DATA, "header of %llu bytes, but only %zu follow (truncated?)",
                          (unsigned long long)length, size - 8);
    }
    return status_set(STATUS_DATA, "the header does not start with '{'");
}

static Status name_fault(const char *name, const char *reason) {
    char shown[SAFE_SHOWN];
    return status_set(STATUS_DATA, "tensor '%s': %s", text_printable(name, shown, sizeof shown),
                      reason);
}

static char *take_name(Header *h) {
    char *name = h->names;
    h->names += json_take_string(&h->cursor, name) + 1;
    return name;
}

/* The reserved key, as everybody writes it; written with escapes it is refused as a tensor's name.
 */
static bool at_meta_key(JsonCursor *c) {
    static const char quoted[] = "\"__metadata__\"";
    return json_string_span(c) == sizeof quoted - 1 &&
           memcmp(c->at, quoted, sizeof quoted - 1) == 0;
}

static Status measure_meta(JsonCursor *c, size_t *name_bytes, int64_t *meta) {
    if (json_peek(c) != '{') return status_set(STATUS_DATA, "__metadata__ is not an object");
    json_enter(c);
    while (json_more(c)) {
        *name_bytes += json_string_span(c);
        json_skip_key(c);
        if (json_peek(c) != '"') {
            return status_set(STATUS_DATA, "__metadata__ holds a value that is not a string");
        }
        *name_bytes += json_string_span(c);
        json_skip(c);
        (*meta)++;
    }
    return STATUS_OK;
}

/* Bytes of strings that take_name() will decode, and the number of entries. */
static Status measure(JsonCursor c, size_t *name_bytes, int64_t *tensors, int64_t *meta) {
    *name_bytes = 1;
    *tensors = *meta = 0;
    json_enter(&c);
    while (json_more(&c)) {
        bool is_meta = at_meta_key(&c);
        *name_bytes += json_string_span(&c);
        json_skip_key(&c);
        if (is_meta) {
            TRY(measure_meta(&c, name_bytes, meta));
        } else {
            json_skip(&c);
            (*tensors)++;
        }
    }
    return STATUS_OK;
}

static Status parse_dtype(Header *h, SafeEntry *e) {
    static const char *const known_elsewhere[] = {
        "BOOL", "I8", "I16", "U16", "U32", "U64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "C64"};
    char text[DTYPE_TEXT] = "", shown[DTYPE_TEXT * 4], reason[160];
    if (json_peek(&h->cursor) != '"') return name_fault(e->name, "dtype is not a string");
    if (json_string_span(&h->cursor) > DTYPE_TEXT) return name_fault(e->name, "unknown dtype");
    json_take_string(&h->cursor, text);
    for (int d = DTYPE_F32; d <= DTYPE_U8; d++) {
        if (strcmp(text, dtype_name((DType)d)) != 0) continue;
        e->dtype = (DType)d;
        return STATUS_OK;
    }
    const char *word = "unknown";
    for (size_t i = 0; i < sizeof known_elsewhere / sizeof *known_elsewhere; i++) {
        if (strcmp(text, known_elsewhere[i]) == 0) word = "not supported";
    }
    snprintf(reason, sizeof reason, "dtype %s is %s (supported: F32, F16, BF16, F64, I64, I32, U8)",
             text_printable(text, shown, sizeof shown), word);
    return name_fault(e->name, reason);
}

static Status parse_shape(Header *h, SafeEntry *e) {
    if (json_peek(&h->cursor) != '[') return name_fault(e->name, "shape is not an array");
    json_enter(&h->cursor);
    while (json_more(&h->cursor)) {
        if (e->rank == MAX_RANK) return name_fault(e->name, "more than 8 dimensions");
        int64_t n;
        if (!json_take_int(&h->cursor, &n) || n < 0) {
            return name_fault(e->name, "a dimension is not a whole number of 0 or more");
        }
        e->shape[e->rank++] = n;
    }
    return STATUS_OK;
}

static Status parse_offsets(Header *h, SafeEntry *e) {
    int64_t offset[2];
    int count = 0;
    if (json_peek(&h->cursor) != '[') return name_fault(e->name, "data_offsets is not an array");
    json_enter(&h->cursor);
    while (json_more(&h->cursor)) {
        if (count == 2 || !json_take_int(&h->cursor, &offset[count]) || offset[count] < 0) {
            return name_fault(e->name, "data_offsets are not two whole numbers of 0 or more");
        }
        count++;
    }
    if (count != 2) return name_fault(e->name, "data_offsets are not two whole numbers");
    if (offset[0] > offset[1]) return name_fault(e->name, "data_offsets run backwards");
    if ((uint64_t)offset[1] > h->buffer_size) {
        char reason[128];
        snprintf(reason, sizeof reason,
                 "data ends at byte %lld, but the file holds only %zu bytes of data (truncated?)",
                 (long long)offset[1], h->buffer_size);
        return name_fault(e->name, reason);
    }
    e->data = h->buffer + offset[0];
    e->bytes = (size_t)(offset[1] - offset[0]);
    return STATUS_OK;
}

static Status check_size(const SafeEntry *e) {
    char reason[160];
    int64_t count, bytes;
    Status s = shape_count(e->rank, e->shape, &count);
    if (s == STATUS_OK && __builtin_mul_overflow(count, (int64_t)dtype_size(e->dtype), &bytes)) {
        s = status_set(STATUS_DATA, "the number of bytes overflows 64 bits");
    }
    if (s != STATUS_OK) {
        char shown[SAFE_SHOWN];
        return status_context(s, "tensor '%s'", text_printable(e->name, shown, sizeof shown));
    }
    if ((uint64_t)bytes == e->bytes) return STATUS_OK;
    snprintf(reason, sizeof reason,
             "data_offsets span %zu bytes, but %lld elements of %s need %lld", e->bytes,
             (long long)count, dtype_name(e->dtype), (long long)bytes);
    return name_fault(e->name, reason);
}

static Status parse_tensor(Header *h, SafeEntry *e) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    char key[16];
    int seen = 0;
    if (json_peek(&h->cursor) != '{') return name_fault(e->name, "its entry is not an object");
    json_enter(&h->cursor);
    while (json_more(&h->cursor)) {
        if (json_string_span(&h->cursor) > sizeof key) {
            return name_fault(e->name, "a key other than dtype, shape, data_offsets");
        }
        json_take_string(&h->cursor, key);
        int which = 0;
        while (which < 3 && strcmp(key, keys[which]) != 0) which++;
        if (which == 3) return name_fault(e->name, "a key other than dtype, shape, data_offsets");
        seen |= 1 << which;
        TRY(which == 0 ? parse_dtype(h, e) : which == 1 ? parse_shape(h, e) : parse_offsets(h, e));
    }
    for (int i = 0; i < 3; i++) {
        char reason[32];
        snprintf(reason, sizeof reason, "%s is missing", keys[i]);
        if ((seen & 1 << i) == 0) return name_fault(e->name, reason);
    }
    return check_size(e);
}

/* The metadata of shards after the first is checked by measure() and dropped. */
static void parse_meta(Header *h) {
    if (h->shard != 0) {
        json_skip(&h->cursor);
        return;
    }
    json_enter(&h->cursor);
    while (json_more(&h->cursor)) {
        SafeMeta *m = &h->f->meta[h->f->meta_count++];
        m->key = take_name(h);
        m->value = take_name(h);
    }
}

static Status parse_entries(Header *h) {
    json_enter(&h->cursor);
    while (json_more(&h->cursor)) {
        if (at_meta_key(&h->cursor)) {
            json_skip_key(&h->cursor);
            parse_meta(h);
            continue;
        }
        char *name = take_name(h);
        if (strcmp(name, "__metadata__") == 0) return name_fault(name, "the name is reserved");
        SafeEntry *e = h->next++;
        *e = (SafeEntry){.name = name, .shard = h->shard};
        TRY(parse_tensor(h, e));
    }
    return STATUS_OK;
}

/* By place; empty tensors before the one that begins where they stand, then by name. */
static int entry_compare(const void *a, const void *b) {
    const SafeEntry *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static Status check_tiling(const Header *h, const SafeEntry *entries, int64_t count) {
    char reason[128];
    const unsigned char *at = h->buffer;
    for (int64_t i = 0; i < count; i++) {
        const SafeEntry *e = &entries[i];
        if (e->data != at) {
            snprintf(reason, sizeof reason,
                     "its data begins at byte %zu, but the one before ends at %zu (%s)",
                     (size_t)(e->data - h->buffer), (size_t)(at - h->buffer),
                     e->data < at ? "overlap" : "hole");
            return name_fault(e->name, reason);
        }
        at += e->bytes;
    }
    size_t left = (size_t)(h->buffer + h->buffer_size - at);
    if (left == 0) return STATUS_OK;
    return status_set(STATUS_DATA, "%zu bytes follow after the last tensor's data", left);
}

static Status reserve(Header *h, size_t name_bytes, int64_t tensors, int64_t meta) {
    SafeFile *f = h->f;
    void *block;
    TRY(mem_alloc(&block, (int64_t)name_bytes, 1, "tensor names"));
    h->names = f->shards[h->shard].names = block;
    block = f->entries;
    TRY(mem_grow(&block, f->count + tensors, sizeof(SafeEntry), "tensor entries"));
    f->entries = block;
    h->next = f->entries + f->count;
    if (h->shard != 0) return STATUS_OK;
    TRY(mem_alloc(&block, meta, sizeof(SafeMeta), "metadata"));
    f->meta = block;
    return STATUS_OK;
}

Status safe_header_parse(SafeFile *f, int shard, const unsigned char *data, size_t size) {
    size_t header_size = 0;
    TRY(check_prefix(data, size, &header_size));
    const char *text = (const char *)data + 8;
    size_t text_size = header_size;
    while (text[text_size - 1] == ' ') text_size--;
    if (text[text_size - 1] != '}') {
        return status_set(STATUS_DATA, "the header does not end in '}' and spaces (truncated?)");
    }
    TRY(json_check(text, text_size, "header"));
    Header h = {.f = f,
                .shard = shard,
                .buffer = data + 8 + header_size,
                .buffer_size = size - 8 - header_size,
                .cursor = {text, text + text_size}};
    size_t name_bytes;
    int64_t tensors, meta;
    TRY(measure(h.cursor, &name_bytes, &tensors, &meta));
    TRY(reserve(&h, name_bytes, tensors, meta));
    TRY(parse_entries(&h));
    SafeEntry *entries = f->entries + f->count;
    qsort(entries, (size_t)tensors, sizeof *entries, entry_compare);
    TRY(check_tiling(&h, entries, tensors));
    f->count += tensors;
    return STATUS_OK;
}
