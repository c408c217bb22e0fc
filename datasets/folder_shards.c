/* WebDataset shards: tar files in which the members of a sample follow each other and share their
 * name up to its first dot, KEY.jpg beside KEY.cls (a class index or name) or KEY.json ("label" or
 * "cls" in it). Class names of indices come from data.class_map or a file classes.txt beside the
 * shards. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

enum { SHOWN = 300, MAX_LABEL = 256, MAX_JSON = 1 << 20 };

typedef enum Part { PART_OTHER, PART_IMAGE, PART_CLASS, PART_JSON } Part;

/* Length of a sample's key in a member's name: its folders and the last part up to the first dot.
 */
static size_t key_length(const char *name) {
    const char *slash = strrchr(name, '/');
    const char *base = slash != NULL ? slash + 1 : name;
    return (size_t)(base - name) + strcspn(base, ".");
}

static Part part_of(const char *name) {
    static const char *const images[] = {".jpg", ".jpeg", ".png"};
    const char *suffix = name + key_length(name);
    if (strcasecmp(suffix, ".cls") == 0 || strcasecmp(suffix, ".cls.txt") == 0) return PART_CLASS;
    if (strcasecmp(suffix, ".json") == 0) return PART_JSON;
    for (size_t i = 0; i < sizeof images / sizeof images[0]; i++)
        if (strcasecmp(suffix, images[i]) == 0) return PART_IMAGE;
    return PART_OTHER;
}

static bool same_key(const char *a, const char *b) {
    size_t length = key_length(a);
    return length == key_length(b) && memcmp(a, b, length) == 0;
}

bool shard_has_labels(const Tar *t, const char *folder, size_t length) {
    const char *last = NULL; /* the member in front, when it is a picture or JSON */
    for (int64_t i = 0; i < tar_count(t); i++) {
        const char *name = tar_at(t, i)->name;
        if (length > 0 && strncmp(name, folder, length) != 0) continue;
        Part part = part_of(name);
        if (part == PART_CLASS) return true;
        /* In a tree of class folders JSON may lie beside pictures for other reasons. */
        bool flat = strchr(name + length, '/') == NULL;
        if (!flat || part == PART_OTHER) {
            last = NULL;
        } else if (last != NULL && part_of(last) != part && same_key(last, name)) {
            return true;
        } else {
            last = name;
        }
    }
    return false;
}

/* ---- the label of one sample ---- */

typedef struct Shard {
    Scan *scan;
    const Tar *tar;
    const char *prefix; /* of names that are shown */
    const char *folder; /* of the members that count: its first `length` bytes */
    size_t length;
    int32_t archive;
} Shard;

static Status bad_sample(const Shard *h, int64_t member, const char *what) {
    char shown[SHOWN], name[SHOWN];
    return status_set(STATUS_DATA, "%s%s: %s", text_printable(h->prefix, shown, sizeof shown),
                      text_printable(tar_at(h->tar, member)->name + h->length, name, sizeof name),
                      what);
}

static bool take_text(const TarMember *m, char out[MAX_LABEL]) {
    const unsigned char *start = m->data, *end = m->data + m->size;
    while (start < end && isspace(*start)) start++;
    while (end > start && isspace(end[-1])) end--;
    size_t length = (size_t)(end - start);
    if (length == 0 || length >= MAX_LABEL || memchr(start, '\0', length) != NULL) return false;
    memcpy(out, start, length);
    out[length] = '\0';
    return true;
}

static bool take_item(const cJSON *tree, const char *key, char out[MAX_LABEL]) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(tree, key);
    if (cJSON_IsNumber(item)) {
        double v = item->valuedouble;
        if (!(v >= 0 && v < 1e9) || v != (double)(int64_t)v) return false;
        snprintf(out, MAX_LABEL, "%lld", (long long)v);
        return true;
    }
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0') return false;
    return snprintf(out, MAX_LABEL, "%s", item->valuestring) < MAX_LABEL;
}

static Status take_json(const TarMember *m, char out[MAX_LABEL], bool *found) {
    cJSON *tree;
    *found = false;
    TRY(json_parse((const char *)m->data, m->size < MAX_JSON ? m->size : MAX_JSON, "JSON", &tree));
    *found = take_item(tree, "label", out) || take_item(tree, "cls", out);
    json_free(tree);
    return STATUS_OK;
}

/* Members of the sample at hand; -1: none. */
typedef struct Sample {
    const char *key; /* the name of one of them; NULL: no sample */
    int64_t image, label;
    Part kind; /* of the label */
} Sample;

static Status label_of_sample(const Shard *h, const Sample *sample, size_t *text) {
    char label[MAX_LABEL];
    bool found;
    if (sample->label < 0)
        return bad_sample(h, sample->image, "neither .cls nor .json of its name lies beside it");
    const TarMember *m = tar_at(h->tar, sample->label);
    if (sample->kind == PART_CLASS) {
        found = take_text(m, label);
    } else if (take_json(m, label, &found) != STATUS_OK) {
        char why[SHOWN];
        snprintf(why, sizeof why, "%s", status_message());
        return bad_sample(h, sample->label, why);
    }
    if (found) return pool_add(&h->scan->pool, label, "", "", text);
    return bad_sample(h, sample->label,
                      sample->kind == PART_CLASS
                          ? "one class index or name is expected"
                          : "no \"label\" or \"cls\" with a class index or name in it");
}

static Status add_sample(const Shard *h, const Sample *sample) {
    Scan *s = h->scan;
    const int64_t before = s->count;
    size_t text;
    if (sample->key == NULL) return STATUS_OK;
    if (sample->image < 0) {
        s->report.other_files++;
        return STATUS_OK;
    }
    TRY(scan_add(s, h->prefix, tar_at(h->tar, sample->image)->name + h->length, h->archive,
                 sample->image));
    if (s->count == before) return STATUS_OK; /* hidden */
    TRY(label_of_sample(h, sample, &text));
    s->files[before].label_text = text;
    return STATUS_OK;
}

static Status take_member(const Shard *h, int64_t i, Sample *sample) {
    const Part part = part_of(tar_at(h->tar, i)->name);
    if (part == PART_OTHER) {
        h->scan->report.other_files++;
    } else if (part == PART_IMAGE) {
        if (sample->image >= 0) return bad_sample(h, i, "a second picture of one sample");
        sample->image = i;
    } else if (sample->label < 0 || part == PART_CLASS) { /* .cls before .json */
        sample->label = i;
        sample->kind = part;
    }
    return STATUS_OK;
}

Status shard_add(Scan *s, const Tar *t, const char *prefix, const char *folder, size_t length,
                 int32_t archive) {
    const Shard h = {s, t, prefix, folder, length, archive};
    const Sample none = {.image = -1, .label = -1};
    Sample sample = none;
    for (int64_t i = 0; i < tar_count(t); i++) {
        const char *name = tar_at(t, i)->name;
        if (length > 0 && strncmp(name, folder, length) != 0) continue;
        if (sample.key == NULL || !same_key(sample.key, name)) {
            TRY(add_sample(&h, &sample));
            sample = none;
            sample.key = name;
        }
        TRY(take_member(&h, i, &sample));
    }
    return add_sample(&h, &sample);
}

/* ---- labels of all ---- */

static const char *label_text(const Scan *s, int64_t i) {
    return s->pool.text + s->files[i].label_text;
}

static Status bad_class(const Scan *s, int64_t i, const ClassList *l, const char *of) {
    char shown[SHOWN], label[64];
    return status_set(STATUS_DATA, "%s: class %s is none of the %lld classes ('%s', ...)%s",
                      text_printable(scan_name(s, &s->files[i]), shown, sizeof shown),
                      text_printable(label_text(s, i), label, sizeof label), (long long)l->count,
                      l->names[0], of);
}

/* Names of the indices; count 0: nothing tells them. */
static Status read_map(const Scan *s, const DataConfig *c, ClassList *map) {
    char *path, *folder;
    *map = (ClassList){0};
    if (c->class_map[0] != '\0') return class_map_read(c->class_map, map);
    const char *archive = tar_path(s->archives[0]), *slash = strrchr(archive, '/');
    TRY(mem_string_n(&folder, slash != NULL ? archive : ".",
                     slash != NULL ? (size_t)(slash + 1 - archive) : 1));
    Status status = path_join(&path, folder, "classes.txt");
    mem_free(folder);
    if (status != STATUS_OK) return status;
    if (file_exists(path)) status = class_map_read(path, map);
    mem_free(path);
    return status;
}

/* What the labels are: all of them indices, up to *max. */
static Status look_at_labels(const Scan *s, bool *numeric, int64_t *min, int64_t *max) {
    *numeric = true;
    *min = INT64_MAX;
    *max = -1;
    for (int64_t i = 0; i < s->count; i++) {
        int64_t v;
        char shown[SHOWN];
        if (s->files[i].label_text == 0)
            return status_set(STATUS_DATA,
                              "%s: has no label of its own, others of this split have (WebDataset "
                              "shards and class folders do not mix)",
                              text_printable(scan_name(s, &s->files[i]), shown, sizeof shown));
        if (!class_parse_index(label_text(s, i), &v)) {
            *numeric = false;
            continue;
        }
        if (v < *min) *min = v;
        if (v > *max) *max = v;
    }
    return STATUS_OK;
}

static Status new_classes(const Scan *s, const DataConfig *c, bool numeric, int64_t min,
                          int64_t max, const ClassList *map, ClassList *out) {
    void *block;
    if (numeric && map->count > 0) return class_list_copy(out, map);
    if (numeric && min > 0)
        return status_set(STATUS_DATA,
                          "%s: class indices run from %lld to %lld; they are expected to begin at "
                          "0 (--class-map FILE names all classes)",
                          s->place, (long long)min, (long long)max);
    if (numeric) return classes_numbered(max + 1, s->place, out);
    TRY(mem_alloc(&block, s->count, sizeof(char *), "class names"));
    const char **names = block;
    for (int64_t i = 0; i < s->count; i++) names[i] = label_text(s, i);
    Status status = classes_from_names(c, names, s->count, out);
    mem_free(block);
    return status;
}

/* An index is one of `map` where there is one, and the class is found by its name. */
static Status set_labels(Scan *s, bool numeric, const ClassList *map, const ClassList *classes,
                         const ClassIndex *x) {
    for (int64_t i = 0; i < s->count; i++) {
        const char *name = label_text(s, i);
        int64_t label = -1;
        if (numeric) {
            class_parse_index(name, &label);
            const ClassList *of = map->count > 0 ? map : classes;
            if (label >= of->count)
                return bad_class(s, i, of, map->count > 0 ? " of the class list" : "");
            name = of->names[label];
        }
        if (!numeric || map->count > 0) label = class_find(x, name, strlen(name));
        if (label < 0) return bad_class(s, i, classes, numeric ? " by its name" : "");
        s->files[i].label = label;
    }
    return STATUS_OK;
}

/* Classes called 0, 1, 10, 2, ...: is 2 a name or a place? */
static void warn_ambiguous(const Scan *s, const ClassList *l) {
    for (int64_t i = 0; i < l->count; i++) {
        int64_t value;
        if (!class_parse_index(l->names[i], &value) || value == i) continue;
        char shown[SHOWN];
        log_warn("%s: its class indices are taken as places in the class list (%lld is '%s'), not "
                 "as names; --class-map FILE says otherwise",
                 text_printable(s->place, shown, sizeof shown), (long long)i, l->names[i]);
        return;
    }
}

static Status label_shards(Scan *s, const DataConfig *c, const ClassList *map, ClassList *classes) {
    bool numeric;
    int64_t min, max;
    ClassIndex x;
    TRY(look_at_labels(s, &numeric, &min, &max));
    if (classes->count == 0) TRY(new_classes(s, c, numeric, min, max, map, classes));
    if (numeric && map->count == 0) warn_ambiguous(s, classes);
    TRY(class_index_new(classes, &x));
    Status status = set_labels(s, numeric, map, classes, &x);
    class_index_free(&x);
    if (status == STATUS_OK) status = count_used_classes(s, classes->count);
    return status;
}

Status classes_from_shards(Scan *s, const DataConfig *c, ClassList *classes) {
    ClassList map = {0};
    const bool fresh = classes->count == 0;
    Status status = read_map(s, c, &map);
    if (status == STATUS_OK) status = label_shards(s, c, &map, classes);
    class_list_free(&map);
    if (status != STATUS_OK && fresh) class_list_free(classes);
    return status;
}
