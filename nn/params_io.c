/* Parameters from and to safetensors files. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "nn/params.h"
#include "nn/params_blocks.h"

#define LISTED    8   /* names of each kind in a message */
#define LIST_TEXT 320 /* bytes of each list: three of them fit into a status message */

/* A list of names that grows to LISTED, then counts. */
typedef struct NameList {
    char text[LIST_TEXT];
    size_t used;
    int64_t count, listed;
} NameList;

static void list_name(NameList *l, const char *name) {
    char plain[160];
    text_printable(name, plain, sizeof plain);
    size_t need = strlen(plain) + 2;
    l->count++;
    if (l->listed == LISTED || l->listed + 1 < l->count || l->used + need >= sizeof l->text) return;
    l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s%s",
                                l->listed ? ", " : "", plain);
    l->listed++;
}

static size_t print_list(char *out, size_t size, size_t used, const char *title,
                         const NameList *l) {
    if (l->count == 0 || used >= size) return used;
    int n = snprintf(out + used, size - used, "%s%s%s%s", used ? "; " : "", title,
                     l->listed ? ": " : "", l->text);
    used += n > 0 ? (size_t)n : 0;
    if (l->count > l->listed && used < size) {
        n = snprintf(out + used, size - used, "%s%lld%s", l->listed ? " and " : ": ",
                     (long long)(l->count - l->listed), l->listed ? " more" : "");
        used += n > 0 ? (size_t)n : 0;
    }
    return used;
}

/* ---- reading ---------------------------------------------------------------------------- */

/* `*` stands for any run of characters; the pattern ends at a comma or NUL. */
static bool glob_matches(const char *pattern, const char *name) {
    const char *star = NULL, *retry = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == *name && *pattern != ',') {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0' || *pattern == ',';
}

static bool is_ignored(const char *ignore, const char *name) {
    while (ignore && *ignore) {
        while (*ignore == ' ') ignore++;
        if (glob_matches(ignore, name)) return true;
        const char *comma = strchr(ignore, ',');
        ignore = comma ? comma + 1 : NULL;
    }
    return false;
}

static bool is_float(DType d) {
    return d == DTYPE_F32 || d == DTYPE_BF16 || d == DTYPE_F16 || d == DTYPE_F64;
}

static bool entry_fits(const SafeEntry *e, Tensor t) {
    if (!is_float(e->dtype) || e->rank != t.rank) return false;
    for (int i = 0; i < t.rank; i++)
        if (e->shape[i] != t.shape[i]) return false;
    return true;
}

static void list_misfit(NameList *l, const char *name, const SafeEntry *e, Tensor expected) {
    char text[256], want[96], have[160] = "[";
    size_t used = 1;
    for (int i = 0; i < e->rank && used < sizeof have; i++)
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%lld", i ? ", " : "",
                                 (long long)e->shape[i]);
    snprintf(text, sizeof text, "%s %s] %s, expected %s", name, have, dtype_name(e->dtype),
             tensor_shape_text(expected, want, sizeof want));
    list_name(l, text);
}

/* Compares names and shapes before anything is touched. */
static Status check_entries(Params *p, const SafeFile *f, const char *ignore) {
    NameList missing = {0}, unknown = {0}, misfit = {0};
    for (int64_t i = 0; i < p->count; i++) {
        const SafeEntry *e = safetensors_find(f, p->items[i]->name);
        if (!e)
            list_name(&missing, p->items[i]->name);
        else if (!entry_fits(e, p->items[i]->master))
            list_misfit(&misfit, p->items[i]->name, e, p->items[i]->master);
    }
    for (int64_t i = 0; i < safetensors_count(f); i++) {
        const char *name = safetensors_at(f, i)->name;
        if (!params_find(p, name) && !is_ignored(ignore, name)) list_name(&unknown, name);
    }
    if (missing.count + unknown.count + misfit.count == 0) return STATUS_OK;
    char text[1024];
    size_t used = print_list(text, sizeof text, 0, "missing", &missing);
    used = print_list(text, sizeof text, used, "wrong shape or type", &misfit);
    print_list(text, sizeof text, used, "not in the model", &unknown);
    return status_set(STATUS_DATA, "the tensors do not fit the model: %s", text);
}

static Status load_entries(Params *p, const SafeFile *f, float *host) {
    for (int64_t i = 0; i < p->count; i++) {
        Param *item = p->items[i];
        Tensor dst = item->master;
        dst.data = host;
        const SafeEntry *e = safetensors_find(f, item->name);
        TRY(status_context(safetensors_read(e, dst), "%s", item->name));
        TRY(device_push(p->device, item->master, host));
    }
    return params_refresh(p);
}

Status params_load(Params *p, const SafeFile *f, const char *ignore) {
    Status s = check_entries(p, f, ignore);
    void *host = NULL;
    if (s == STATUS_OK) s = mem_alloc(&host, params_largest(p), sizeof(float), "weights");
    if (s == STATUS_OK) s = load_entries(p, f, host);
    mem_free(host);
    return status_context(s, "%s", safetensors_path(f));
}

/* ---- writing ---------------------------------------------------------------------------- */

Status params_save(Params *p, const char *path, const SafeMeta *meta, int64_t meta_count) {
    FlatBlock weights = {"", p->master};
    return params_write_blocks(p, path, &weights, 1, meta, meta_count);
}

Status params_check_finite(Params *p) {
    void *memory;
    TRY(mem_alloc(&memory, params_largest(p), sizeof(float), "weights to check"));
    const float *x = memory;
    Status s = STATUS_OK;
    for (int64_t i = 0; i < p->count && s == STATUS_OK; i++) {
        s = device_pull(p->device, memory, p->items[i]->master);
        int64_t count = tensor_count(p->items[i]->master), bad = 0;
        for (int64_t j = 0; s == STATUS_OK && j < count; j++) bad += !isfinite(x[j]);
        if (bad > 0)
            s = status_set(STATUS_NUMERIC, "%s: %lld of %lld values are not finite",
                           p->items[i]->name, (long long)bad, (long long)count);
    }
    mem_free(memory);
    return s;
}
