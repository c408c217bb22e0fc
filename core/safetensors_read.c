/* The public reading side: open, look up, convert. */
#include "core/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

static int name_compare(const void *a, const void *b) {
    const SafeEntry *x = *(const SafeEntry *const *)a, *y = *(const SafeEntry *const *)b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->shard > y->shard) - (x->shard < y->shard);
}

Status safe_names_sort(SafeFile *f) {
    void *block;
    TRY(mem_alloc(&block, f->count, sizeof *f->by_name, "tensor names"));
    f->by_name = block;
    for (int64_t i = 0; i < f->count; i++) f->by_name[i] = &f->entries[i];
    qsort(f->by_name, (size_t)f->count, sizeof *f->by_name, name_compare);
    return STATUS_OK;
}

Status safe_shard_open(SafeFile *f, int shard, const char *path) {
    char shown[SAFE_PATH_SHOWN];
    SafeShard *s = &f->shards[shard];
    TRY(mem_string(&s->path, path));
    TRY(file_map(path, &s->map));
    return status_context(safe_header_parse(f, shard, s->map.data, s->map.size), "%s",
                          text_printable(path, shown, sizeof shown));
}

static Status new_file(const char *path, SafeFile **out) {
    void *block;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(SafeFile), "a safetensors file"));
    SafeFile *f = block;
    Status s = mem_string(&f->path, path);
    if (s != STATUS_OK) {
        mem_free(f);
        return s;
    }
    *out = f;
    return STATUS_OK;
}

static Status one_shard(SafeFile *f) {
    void *block;
    TRY(mem_alloc(&block, 1, sizeof(SafeShard), "a safetensors file"));
    f->shards = block;
    f->shard_count = 1;
    return STATUS_OK;
}

static bool is_index(const char *path) {
    static const char ending[] = ".index.json";
    size_t length = strlen(path), tail = sizeof ending - 1;
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

static Status open_file(SafeFile *f) {
    if (is_index(f->path)) return safe_index_open(f, f->path);
    TRY(one_shard(f));
    TRY(safe_shard_open(f, 0, f->path));
    return safe_names_sort(f);
}

/* A folder's model.safetensors, or else its index, in *out. */
static Status file_in_folder(const char *folder, char **out) {
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    for (int i = 0; i < 2; i++) {
        TRY(path_join(out, folder, names[i]));
        if (file_exists(*out)) return STATUS_OK;
        mem_free(*out);
        *out = NULL;
    }
    char shown[SAFE_PATH_SHOWN];
    return status_set(STATUS_DATA, "folder '%s' holds neither %s nor %s",
                      text_printable(folder, shown, sizeof shown), names[0], names[1]);
}

Status safetensors_open(const char *path, SafeFile **out) {
    char *inner = NULL;
    *out = NULL;
    if (file_is_folder(path)) TRY(file_in_folder(path, &inner));
    SafeFile *f;
    Status s = new_file(inner != NULL ? inner : path, &f);
    mem_free(inner);
    if (s != STATUS_OK) return s;
    s = open_file(f);
    if (s != STATUS_OK) {
        safetensors_close(f);
        return s;
    }
    *out = f;
    return STATUS_OK;
}

static Status parse_image(SafeFile *f, const unsigned char *data, size_t size) {
    TRY(one_shard(f));
    TRY(safe_header_parse(f, 0, data, size));
    return safe_names_sort(f);
}

Status safetensors_parse(const unsigned char *data, size_t size, const char *name, SafeFile **out) {
    SafeFile *f;
    *out = NULL;
    TRY(new_file(name, &f));
    Status s = parse_image(f, data, size);
    if (s != STATUS_OK) {
        char shown[SAFE_PATH_SHOWN];
        safetensors_close(f);
        return status_context(s, "%s", text_printable(name, shown, sizeof shown));
    }
    *out = f;
    return STATUS_OK;
}

void safetensors_close(SafeFile *f) {
    if (f == NULL) return;
    for (int i = 0; i < f->shard_count; i++) {
        file_unmap(&f->shards[i].map);
        mem_free(f->shards[i].path);
        mem_free(f->shards[i].names);
    }
    mem_free(f->shards);
    mem_free(f->entries);
    mem_free(f->by_name);
    mem_free(f->meta);
    mem_free(f->path);
    mem_free(f);
}

int64_t safetensors_count(const SafeFile *f) {
    return f->count;
}

const SafeEntry *safetensors_at(const SafeFile *f, int64_t i) {
    return i >= 0 && i < f->count ? &f->entries[i] : NULL;
}

/* Names keep their order, having lost the same bytes. */
bool safetensors_strip(SafeFile *f, const char *prefix) {
    const size_t size = strlen(prefix);
    for (int64_t i = 0; i < f->count; i++)
        if (strncmp(f->entries[i].name, prefix, size) != 0 || !f->entries[i].name[size])
            return false;
    for (int64_t i = 0; i < f->count; i++) f->entries[i].name += size;
    return f->count > 0;
}

const SafeEntry *safetensors_find(const SafeFile *f, const char *name) {
    int64_t low = 0, high = f->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(f->by_name[middle]->name, name);
        if (order == 0) return f->by_name[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

const char *safetensors_path(const SafeFile *f) {
    return f->path;
}

const char *safetensors_meta(const SafeFile *f, const char *key) {
    for (int64_t i = 0; i < f->meta_count; i++) {
        if (strcmp(f->meta[i].key, key) == 0) return f->meta[i].value;
    }
    return NULL;
}

int64_t safetensors_meta_count(const SafeFile *f) {
    return f->meta_count;
}

void safetensors_meta_at(const SafeFile *f, int64_t i, const char **key, const char **value) {
    bool inside = i >= 0 && i < f->meta_count;
    *key = inside ? f->meta[i].key : NULL;
    *value = inside ? f->meta[i].value : NULL;
}

/* Element i of unaligned data as a double: exact for all four types. */
static double element(DType dtype, const unsigned char *data, int64_t i) {
    float f;
    double d;
    uint16_t h;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(&f, data + 4 * i, 4);
        return f;
    case DTYPE_F64:
        memcpy(&d, data + 8 * i, 8);
        return d;
    case DTYPE_BF16:
        memcpy(&h, data + 2 * i, 2);
        return f32_from_bf16(h);
    default:
        memcpy(&h, data + 2 * i, 2);
        return f32_from_f16(h);
    }
}

static bool is_float(DType dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

Status safetensors_read(const SafeEntry *e, Tensor dst) {
    char shown[SAFE_SHOWN];
    int64_t count = (int64_t)(e->bytes / dtype_size(e->dtype));
    text_printable(e->name, shown, sizeof shown);
    if (count != tensor_count(dst)) {
        return status_set(STATUS_DATA, "tensor '%s' has %lld elements; expected %lld", shown,
                          (long long)count, (long long)tensor_count(dst));
    }
    if (count == 0) return STATUS_OK;
    if (dst.dtype == e->dtype) {
        memcpy(dst.data, e->data, e->bytes);
        return STATUS_OK;
    }
    if (!is_float(e->dtype) || (dst.dtype != DTYPE_F32 && dst.dtype != DTYPE_F64)) {
        return status_set(STATUS_DATA, "tensor '%s' is %s, which does not convert to %s", shown,
                          dtype_name(e->dtype), dtype_name(dst.dtype));
    }
    if (dst.dtype == DTYPE_F32) {
        float *out = dst.data;
        for (int64_t i = 0; i < count; i++) out[i] = (float)element(e->dtype, e->data, i);
    } else {
        double *out = dst.data;
        for (int64_t i = 0; i < count; i++) out[i] = element(e->dtype, e->data, i);
    }
    return STATUS_OK;
}
