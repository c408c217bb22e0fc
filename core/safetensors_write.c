/* The writing side: header first, then each tensor's bytes straight from its memory. */
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/memory.h"
#include "core/utf8.h"

enum { SHOWN = 160, PATH_SHOWN = 480 };

static Status item_fault(const char *name, const char *reason) {
    char shown[SHOWN];
    return status_set(STATUS_INTERNAL, "tensor '%s': %s", text_printable(name, shown, sizeof shown),
                      reason);
}

static bool is_utf8(const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        size_t length = utf8_length((const unsigned char *)text, left);
        if (length == 0) return false;
        text += length;
        left -= length;
    }
    return true;
}

static int name_compare(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Status check_unique(const char **names, int64_t count, const char *what) {
    char shown[SHOWN];
    qsort(names, (size_t)count, sizeof *names, name_compare);
    for (int64_t i = 1; i < count; i++) {
        if (strcmp(names[i], names[i - 1]) != 0) continue;
        return status_set(STATUS_INTERNAL, "two %s are called '%s'", what,
                          text_printable(names[i], shown, sizeof shown));
    }
    return STATUS_OK;
}

static Status check_names(const SafeItem *items, int64_t item_count, const SafeMeta *meta,
                          int64_t meta_count) {
    void *block;
    TRY(mem_alloc(&block, item_count + meta_count, sizeof(char *), "tensor names"));
    const char **names = block;
    for (int64_t i = 0; i < item_count; i++) names[i] = items[i].name;
    Status s = check_unique(names, item_count, "tensors");
    for (int64_t i = 0; i < meta_count; i++) names[i] = meta[i].key;
    if (s == STATUS_OK) s = check_unique(names, meta_count, "metadata entries");
    mem_free(block);
    return s;
}

static Status check_items(const SafeItem *items, int64_t count, uint64_t *total) {
    *total = 0;
    for (int64_t i = 0; i < count; i++) {
        const SafeItem *item = &items[i];
        int64_t elements;
        if (!is_utf8(item->name)) return item_fault(item->name, "its name is not UTF-8");
        if (strcmp(item->name, "__metadata__") == 0) return item_fault(item->name, "reserved name");
        if (shape_count(item->t.rank, item->t.shape, &elements) != STATUS_OK) {
            return item_fault(item->name, status_message());
        }
        if (elements > 0 && item->t.data == NULL) return item_fault(item->name, "it has no data");
        *total += tensor_bytes(item->t);
    }
    return STATUS_OK;
}

static void write_tensor_entry(JsonWriter *w, const SafeItem *item, uint64_t begin) {
    json_key(w, item->name);
    json_begin_object(w);
    json_pair_string(w, "dtype", dtype_name(item->t.dtype));
    json_key(w, "shape");
    json_begin_array(w);
    for (int i = 0; i < item->t.rank; i++) json_int(w, item->t.shape[i]);
    json_end_array(w);
    json_key(w, "data_offsets");
    json_begin_array(w);
    json_int(w, (int64_t)begin);
    json_int(w, (int64_t)(begin + tensor_bytes(item->t)));
    json_end_array(w);
    json_end_object(w);
}

static void write_header(JsonWriter *w, const SafeItem *items, int64_t item_count,
                         const SafeMeta *meta, int64_t meta_count) {
    uint64_t begin = 0;
    json_begin_object(w);
    if (meta_count > 0) {
        json_key(w, "__metadata__");
        json_begin_object(w);
        for (int64_t i = 0; i < meta_count; i++) json_pair_string(w, meta[i].key, meta[i].value);
        json_end_object(w);
    }
    for (int64_t i = 0; i < item_count; i++) {
        write_tensor_entry(w, &items[i], begin);
        begin += tensor_bytes(items[i].t);
    }
    json_end_object(w);
}

static Status write_body(FileWriter *w, const JsonWriter *header, const SafeItem *items,
                         int64_t item_count, uint64_t total) {
    static const char spaces[] = "       ";
    size_t padding = (8 - header->length % 8) % 8; /* the data then begins at a multiple of 8 */
    uint64_t length = header->length + padding;
    if (length > SAFETENSORS_MAX_HEADER) {
        return status_set(STATUS_DATA, "the header needs %llu bytes; at most %d are possible",
                          (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    }
    TRY(file_writer_expect(w, 8 + length + total));
    TRY(file_writer_write(w, &length, 8));
    TRY(file_writer_write(w, header->text, header->length));
    TRY(file_writer_write(w, spaces, padding));
    for (int64_t i = 0; i < item_count; i++) {
        TRY(file_writer_write(w, items[i].t.data, tensor_bytes(items[i].t)));
    }
    return STATUS_OK;
}

static Status write_file(const char *path, const JsonWriter *header, const SafeItem *items,
                         int64_t item_count, uint64_t total) {
    FileWriter *w;
    TRY(file_writer_open(path, &w));
    Status s = write_body(w, header, items, item_count, total);
    if (s == STATUS_OK) return file_writer_commit(w);
    file_writer_abort(w);
    return s;
}

Status safetensors_write(const char *path, const SafeItem *items, int64_t item_count,
                         const SafeMeta *meta, int64_t meta_count) {
    char shown[PATH_SHOWN];
    uint64_t total;
    Status s = check_items(items, item_count, &total);
    if (s == STATUS_OK) s = check_names(items, item_count, meta, meta_count);
    if (s != STATUS_OK) {
        return status_context(s, "cannot write '%s'", text_printable(path, shown, sizeof shown));
    }
    JsonWriter header;
    json_writer_init(&header);
    write_header(&header, items, item_count, meta, meta_count);
    s = header.status;
    if (s == STATUS_OK) s = write_file(path, &header, items, item_count, total);
    json_writer_free(&header);
    return s;
}
