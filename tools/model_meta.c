/* Metadata of a checkpoint: configuration text and class lists; label files. */
#include "tools/model_meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/memory.h"

enum { MAX_LABEL_BYTES = 64 << 20 };

/* ---- reading ---- */

Status model_meta_config(const SafeFile *file, Section section, Config **out) {
    const char *text = safetensors_meta(file, "ttv.config");
    TRY(config_new(&section, 1, out));
    if (!text) return STATUS_OK;
    Status s = config_read_text(*out, text, strlen(text), safetensors_path(file), true);
    if (s != STATUS_OK) config_free(*out);
    return s;
}

static void strings_free(char **list, int64_t count) {
    for (int64_t i = 0; list && i < count; i++) mem_free(list[i]);
    mem_free(list);
}

static Status strings_from_json(const char *text, const char *name, char ***out, int64_t *count) {
    struct cJSON *array = NULL;
    void *memory = NULL;
    TRY(json_parse(text, strlen(text), name, &array));
    int64_t n = cJSON_IsArray(array) ? cJSON_GetArraySize(array) : -1;
    Status s = n < 0 ? status_set(STATUS_DATA, "%s is no JSON array", name)
                     : mem_alloc(&memory, n, sizeof(char *), "class names");
    char **list = memory;
    int64_t i = 0;
    cJSON *item = n > 0 ? array->child : NULL;
    for (; item && s == STATUS_OK; item = item->next, i++)
        s = cJSON_IsString(item)
                ? mem_string(&list[i], item->valuestring)
                : status_set(STATUS_DATA, "%s: item %lld is no string", name, (long long)i);
    json_free(array);
    if (s != STATUS_OK) {
        strings_free(list, n);
        return s;
    }
    *out = list;
    *count = n;
    return STATUS_OK;
}

static Status meta_strings(const SafeFile *file, const char *path, const char *key, int64_t classes,
                           char ***out) {
    const char *text = safetensors_meta(file, key);
    *out = NULL;
    if (!text) return STATUS_OK;
    char name[1024];
    int64_t count = 0;
    snprintf(name, sizeof name, "%s: metadata %s", path, key);
    TRY(strings_from_json(text, name, out, &count));
    if (count == classes) return STATUS_OK;
    strings_free(*out, count);
    *out = NULL;
    return status_set(STATUS_DATA, "%s holds %lld names, but the model has %lld classes", name,
                      (long long)count, (long long)classes);
}

Status model_meta_classes(const SafeFile *file, const char *path, int64_t classes, ClassList *out) {
    *out = (ClassList){0};
    TRY(meta_strings(file, path, "ttv.classes", classes, &out->names));
    if (!out->names) return STATUS_OK;
    out->count = classes;
    return meta_strings(file, path, "ttv.class_names", classes, &out->readable);
}

/* ---- writing ---- */

static Status add_owned(ModelMeta *meta, const char *key, char *value) {
    meta->items[meta->count] = (SafeMeta){key, value};
    meta->owned[meta->count++] = value;
    return STATUS_OK;
}

static Status add_strings(ModelMeta *meta, const char *key, char *const *list, int64_t count) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_array(&w);
    for (int64_t i = 0; i < count; i++) json_string(&w, list[i] ? list[i] : "");
    json_end_array(&w);
    if (w.status != STATUS_OK) {
        json_writer_free(&w);
        return w.status;
    }
    char *copy = NULL;
    Status s = mem_string(&copy, w.text);
    json_writer_free(&w);
    TRY(s);
    return add_owned(meta, key, copy);
}

/* INI text of the two sections. A Config of copies: creating one sets the defaults first. */
static Status add_config(const Model *m, ModelMeta *meta) {
    VitttConfig model;
    Preprocess preprocess;
    Section list[2] = {section_of("model"), section_of("preprocess")};
    list[0].values = &model;
    list[1].values = &preprocess;
    Config *config;
    TRY(config_new(list, 2, &config));
    model = m->config;
    preprocess = m->preprocess;
    char *text = NULL;
    Status s = config_write(config, false, &text);
    config_free(config);
    TRY(s);
    return add_owned(meta, "ttv.config", text);
}

Status model_meta(const Model *m, ModelMeta *out) {
    *out = (ModelMeta){0};
    out->items[out->count++] =
        (SafeMeta){"format", "pt"}; /* what loaders of other tools look for */
    Status s = add_config(m, out);
    if (s == STATUS_OK && m->classes.count > 0)
        s = add_strings(out, "ttv.classes", m->classes.names, m->classes.count);
    if (s == STATUS_OK && m->classes.readable)
        s = add_strings(out, "ttv.class_names", m->classes.readable, m->classes.count);
    if (s != STATUS_OK) model_meta_free(out);
    return s;
}

void model_meta_free(ModelMeta *meta) {
    for (int64_t i = 0; i < meta->count; i++) mem_free(meta->owned[i]);
    *meta = (ModelMeta){0};
}

/* ---- label files ---- */

/* The next line without its end (LF or CRLF), NUL-terminated in place; NULL at the end. */
static char *next_line(char **at) {
    char *line = *at;
    if (!*line) return NULL;
    char *end = line + strcspn(line, "\n");
    *at = *end ? end + 1 : end;
    *end = 0;
    if (end > line && end[-1] == '\r') end[-1] = 0;
    return line;
}

static int64_t folder_index(const Model *m, const char *folder) {
    for (int64_t i = 0; i < m->classes.count; i++)
        if (strcmp(m->classes.names[i], folder) == 0) return i;
    return -1;
}

/* What stands before the tab: a class folder, or an index. -1: neither. */
static int64_t class_before_tab(const Model *m, const char *text) {
    int64_t index = folder_index(m, text);
    size_t digits = strspn(text, "0123456789");
    if (index >= 0 || digits == 0 || digits > 9 || text[digits]) return index;
    return strtol(text, NULL, 10);
}

/* One line into list[index]; what stands before a tab says which, otherwise the line's number. */
static Status take_label(const Model *m, const char *path, int64_t number, char *line,
                         char **list) {
    int64_t index = number;
    char *tab = strchr(line, '\t');
    if (tab) {
        *tab = 0;
        index = class_before_tab(m, line);
    }
    /* A list of more classes than this model knows is fine; the caller counts. */
    if (index < 0 || index >= m->config.classes) return STATUS_OK;
    if (list[index])
        return status_set(STATUS_DATA, "%s:%lld: class %lld is named twice", path,
                          (long long)number + 1, (long long)index);
    return mem_string(&list[index], tab ? tab + 1 : line);
}

static Status read_lines(const Model *m, const char *path, char *text, char **list) {
    int64_t lines = 0, named = 0;
    for (char *at = text, *line; (line = next_line(&at));) {
        if (!*line) continue;
        TRY(take_label(m, path, lines, line, list));
        lines++;
    }
    for (int64_t i = 0; i < m->config.classes; i++) named += list[i] != NULL;
    if (named == m->config.classes && (lines == named || m->classes.count > 0)) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s names %lld classes in %lld lines, but the model has %lld classes", path,
                      (long long)named, (long long)lines, (long long)m->config.classes);
}

/* Folder names must exist for the readable ones to hang on: numbers where the file had none. */
static Status ensure_folders(Model *m) {
    if (m->classes.count > 0) return STATUS_OK;
    void *memory;
    TRY(mem_alloc(&memory, m->config.classes, sizeof(char *), "class names"));
    m->classes.names = memory;
    m->classes.count = m->config.classes;
    for (int64_t i = 0; i < m->classes.count; i++) {
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)i);
        TRY(mem_string(&m->classes.names[i], number));
    }
    return STATUS_OK;
}

Status model_read_labels(Model *m, const char *path) {
    char *text;
    size_t size;
    void *memory = NULL;
    TRY(file_read(path, MAX_LABEL_BYTES, &text, &size));
    Status s = mem_alloc(&memory, m->config.classes, sizeof(char *), "class names");
    if (s == STATUS_OK && strlen(text) != size)
        s = status_set(STATUS_DATA, "%s holds a NUL byte: this is no list of names", path);
    if (s == STATUS_OK) s = read_lines(m, path, text, memory);
    mem_free(text);
    if (s == STATUS_OK) s = ensure_folders(m);
    if (s != STATUS_OK) {
        strings_free(memory, m->config.classes);
        return s;
    }
    if (m->classes.readable) strings_free(m->classes.readable, m->classes.count);
    m->classes.readable = memory;
    return STATUS_OK;
}
