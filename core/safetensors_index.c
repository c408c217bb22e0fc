/* Sharded checkpoints: `*.safetensors.index.json` with a weight_map from tensor to local file. */
#include "core/safetensors_internal.h"

#include <stdlib.h>
#include <string.h>

#include "core/json_scan.h"
#include "core/memory.h"

enum { MAX_SHARDS = 100000 };

typedef struct Mapping { /* one line of weight_map */
    const char *tensor, *file;
    int shard;
} Mapping;

typedef struct Index {
    char *text;
    size_t size;
    char *strings; /* decoded names, one block */
    Mapping *map;
    int64_t count;
} Index;

static int by_file(const void *a, const void *b) {
    const Mapping *x = a, *y = b;
    int order = strcmp(x->file, y->file);
    return order != 0 ? order : strcmp(x->tensor, y->tensor);
}

static int by_tensor(const void *a, const void *b) {
    const Mapping *x = a, *y = b;
    return strcmp(x->tensor, y->tensor);
}

/* Leaves the cursor in front of weight_map's value. */
static Status find_weight_map(const Index *x, JsonCursor *c) {
    char key[16];
    *c = (JsonCursor){x->text, x->text + x->size};
    if (json_peek(c) != '{') return status_set(STATUS_DATA, "the index is not a JSON object");
    json_enter(c);
    while (json_more(c)) {
        key[0] = '\0';
        if (json_string_span(c) <= sizeof key) {
            json_take_string(c, key);
        } else {
            json_skip_key(c);
        }
        if (strcmp(key, "weight_map") != 0) {
            json_skip(c);
            continue;
        }
        if (json_peek(c) == '{') return STATUS_OK;
        return status_set(STATUS_DATA, "weight_map is not an object");
    }
    return status_set(STATUS_DATA, "weight_map is missing");
}

static Status read_weight_map(Index *x) {
    JsonCursor start, c;
    TRY(find_weight_map(x, &start));
    c = start;
    json_enter(&c);
    for (; json_more(&c); x->count++) {
        json_skip_key(&c);
        if (json_peek(&c) != '"') {
            return status_set(STATUS_DATA, "weight_map holds a value that is not a string");
        }
        json_skip(&c);
    }
    void *block;
    TRY(mem_alloc(&block, x->count, sizeof(Mapping), "a shard index"));
    x->map = block;
    /* Decoded strings with their NUL are never longer than the quoted text. */
    TRY(mem_alloc(&block, c.at - start.at, 1, "a shard index"));
    char *next = x->strings = block;
    json_enter(&start);
    for (int64_t i = 0; json_more(&start); i++) {
        x->map[i].tensor = next;
        next += json_take_string(&start, next) + 1;
        x->map[i].file = next;
        next += json_take_string(&start, next) + 1;
    }
    return STATUS_OK;
}

/* Only plain names beside the index: an index must not reach other folders. */
static Status check_local(const char *file) {
    static const char ending[] = ".safetensors";
    size_t length = strlen(file), tail = sizeof ending - 1;
    bool plain = strpbrk(file, "/\\") == NULL && file[0] != '.';
    if (plain && length > tail && strcmp(file + length - tail, ending) == 0) return STATUS_OK;
    char shown[SAFE_SHOWN];
    return status_set(STATUS_DATA,
                      "shard name '%s' is refused: expected a file beside the index that ends in "
                      ".safetensors",
                      text_printable(file, shown, sizeof shown));
}

/* Numbers the distinct files; x->map is sorted by file. */
static Status number_shards(Index *x, int *shards) {
    *shards = 0;
    for (int64_t i = 0; i < x->count; i++) {
        if (i == 0 || strcmp(x->map[i].file, x->map[i - 1].file) != 0) {
            TRY(check_local(x->map[i].file));
            if (++*shards > MAX_SHARDS) return status_set(STATUS_DATA, "more than 100000 shards");
        }
        x->map[i].shard = *shards - 1;
    }
    if (*shards == 0) return status_set(STATUS_DATA, "weight_map is empty");
    return STATUS_OK;
}

static Status open_shards(SafeFile *f, const Index *x, const char *index_path, int shards) {
    void *block;
    TRY(mem_alloc(&block, shards, sizeof(SafeShard), "shards"));
    f->shards = block;
    f->shard_count = shards;
    const char *slash = strrchr(index_path, '/');
    char *folder;
    TRY(mem_string_n(&folder, slash != NULL ? index_path : ".",
                     slash != NULL ? (size_t)(slash + 1 - index_path) : 1));
    Status s = STATUS_OK;
    for (int64_t i = 0; i < x->count && s == STATUS_OK; i++) {
        if (i > 0 && x->map[i].shard == x->map[i - 1].shard) continue;
        char *path;
        s = path_join(&path, folder, x->map[i].file);
        if (s != STATUS_OK) break;
        s = safe_shard_open(f, x->map[i].shard, path);
        mem_free(path);
    }
    mem_free(folder);
    return s;
}

static Status mismatch(const char *tensor, const char *file, const char *reason) {
    char shown[SAFE_SHOWN], shown_file[SAFE_SHOWN];
    return status_set(STATUS_DATA, "tensor '%s' %s '%s'",
                      text_printable(tensor, shown, sizeof shown), reason,
                      text_printable(file, shown_file, sizeof shown_file));
}

/* Both lists sorted by (tensor, shard) must be the same. */
static Status compare_lists(const SafeFile *f, const Index *x) {
    int64_t i = 0, j = 0;
    while (i < f->count || j < x->count) {
        const SafeEntry *e = i < f->count ? f->by_name[i] : NULL;
        const Mapping *m = j < x->count ? &x->map[j] : NULL;
        int order = e == NULL ? 1 : m == NULL ? -1 : strcmp(e->name, m->tensor);
        if (order == 0) order = (e->shard > m->shard) - (e->shard < m->shard);
        if (order < 0) {
            return mismatch(e->name, f->shards[e->shard].path,
                            "is not placed by weight_map in the shard that holds it,");
        }
        if (order > 0)
            return mismatch(m->tensor, m->file, "is listed by weight_map but missing in");
        i++;
        j++;
    }
    return STATUS_OK;
}

static Status index_open(SafeFile *f, Index *x, const char *path) {
    int shards;
    TRY(json_check(x->text, x->size, "index"));
    TRY(read_weight_map(x));
    qsort(x->map, (size_t)x->count, sizeof(Mapping), by_file);
    TRY(number_shards(x, &shards));
    TRY(open_shards(f, x, path, shards));
    TRY(safe_names_sort(f));
    qsort(x->map, (size_t)x->count, sizeof(Mapping), by_tensor);
    return compare_lists(f, x);
}

Status safe_index_open(SafeFile *f, const char *path) {
    Index x = {0};
    TRY(file_read(path, SAFETENSORS_MAX_HEADER, &x.text, &x.size));
    char shown[SAFE_PATH_SHOWN];
    Status s = index_open(f, &x, path);
    mem_free(x.map);
    mem_free(x.strings);
    mem_free(x.text);
    return status_context(s, "%s", text_printable(path, shown, sizeof shown));
}
