/* The report of `ttv inspect`, as text and as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/memory.h"
#include "tools/cli.h"
#include "tools/inspect.h"

enum { DTYPES = DTYPE_U8 + 1, NAME_BYTES = 400, VALUE_BYTES = 160, CLASSES_SHOWN = 8 };

static void count_dtypes(const SafeFile *f, int64_t counts[DTYPES]) {
    memset(counts, 0, DTYPES * sizeof *counts);
    for (int64_t t = 0; t < safetensors_count(f); t++) counts[safetensors_at(f, t)->dtype]++;
}

static int64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static int shard_count(const SafeFile *f) {
    int last = 0;
    for (int64_t t = 0; t < safetensors_count(f); t++)
        if (safetensors_at(f, t)->shard > last) last = safetensors_at(f, t)->shard;
    return last + 1;
}

/* ---- text ---- */

/* 1234567 as "1,234,567". */
static const char *grouped(int64_t value, char *out, size_t size) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%" PRId64, value);
    size_t at = 0;
    for (int k = 0; k < n && at + 2 < size; k++) {
        out[at++] = digits[k];
        if ((n - 1 - k) % 3 == 0 && k + 1 < n) out[at++] = ',';
    }
    out[at] = '\0';
    return out;
}

/* Names and values come from the file: never raw to a terminal. */
static const char *safe(const char *text, char out[NAME_BYTES]) {
    return text_printable(text, out, NAME_BYTES);
}

static void print_model(const Recognised *r) {
    const VitttConfig *c = &r->config;
    out_printf("  model        %s", recognised_name(r));
    if (r->kind == MODEL_VITTT)
        out_printf(": width %lld, depth %lld, heads %lld, patch %lld, MLP ratio %lld, %lld classes",
                   (long long)c->width, (long long)c->depth, (long long)c->heads,
                   (long long)c->patch, (long long)c->mlp_ratio, (long long)c->classes);
    if (r->kind == MODEL_HIERARCHICAL && c->depth > 0)
        out_printf(": stages %s, MLP ratio %lld, %lld classes, %lld px%s", c->stages,
                   (long long)c->mlp_ratio, (long long)c->classes, (long long)c->image_size,
                   c->rope ? ", rotary positions" : "");
    if (r->kind == MODEL_VITTT && c->stem_depth > 0)
        out_printf(", stem of %lld blocks of %lld channels", (long long)c->stem_depth,
                   (long long)c->stem_width);
    out_text("\n");
}

static void print_dtypes(const SafeFile *f) {
    int64_t counts[DTYPES];
    const char *gap = " (";
    count_dtypes(f, counts);
    out_printf("  tensors      %lld", (long long)safetensors_count(f));
    for (int d = 0; d < DTYPES; d++) {
        if (counts[d] == 0) continue;
        out_printf("%s%lld %s", gap, (long long)counts[d], dtype_name((DType)d));
        gap = ", ";
    }
    out_text(*gap == ',' ? ")\n" : "\n");
}

/* A JSON list of names shortened to its first few; false: not such a list. */
static bool print_names(const char *key, const char *text) {
    struct cJSON *list;
    char name[NAME_BYTES];
    if (json_parse(text, strlen(text), key, &list) != STATUS_OK) return false;
    bool is_list = cJSON_IsArray(list);
    if (is_list) {
        int count = cJSON_GetArraySize(list), shown = 0;
        out_printf("    %s: %d names:", key, count);
        for (cJSON *item = list->child; item && shown < CLASSES_SHOWN; item = item->next, shown++)
            out_printf("%s %s", shown ? "," : "",
                       safe(cJSON_IsString(item) ? item->valuestring : "?", name));
        out_text(count > shown ? ", ...\n" : "\n");
    }
    json_free(list);
    return is_list;
}

/* The stored configuration, one line of it per line. */
static void print_config(const char *text) {
    char line[NAME_BYTES], shown[NAME_BYTES];
    out_text("    ttv.config:\n");
    while (*text) {
        size_t n = strcspn(text, "\n"), kept = n < sizeof line ? n : sizeof line - 1;
        memcpy(line, text, kept);
        line[kept] = '\0';
        if (kept > 0) out_printf("      %s\n", safe(line, shown));
        text += n + (text[n] == '\n');
    }
}

static void print_metadata(const SafeFile *f) {
    char name[NAME_BYTES], value[VALUE_BYTES];
    if (safetensors_meta_count(f) > 0) out_text("  metadata\n");
    for (int64_t m = 0; m < safetensors_meta_count(f); m++) {
        const char *key, *text;
        safetensors_meta_at(f, m, &key, &text);
        if (strcmp(key, "ttv.config") == 0) {
            print_config(text);
            continue;
        }
        if (strncmp(key, "ttv.class", strlen("ttv.class")) == 0 && print_names(key, text)) continue;
        text_printable(text, value, sizeof value);
        out_printf("    %s: %s%s\n", safe(key, name), value,
                   strlen(value) + 1 == sizeof value ? "..." : "");
    }
}

static void print_tensors(const Inspection *i, bool stats) {
    char name[NAME_BYTES], shape[128];
    out_printf("  %-40s %-5s %-20s %12s", "name", "dtype", "shape", "bytes");
    out_text(stats ? "          min          max         mean          std non-finite\n" : "\n");
    for (int64_t t = 0; t < safetensors_count(i->file) && !out_failed(); t++) {
        const SafeEntry *e = safetensors_at(i->file, t);
        out_printf("  %-40s %-5s %-20s %12zu", safe(e->name, name), dtype_name(e->dtype),
                   entry_shape_text(e, shape, sizeof shape), e->bytes);
        if (stats) {
            const TensorStats *s = &i->stats[t];
            out_printf(" %12.5g %12.5g %12.5g %12.5g %10lld", s->min, s->max, s->mean, s->std,
                       (long long)s->nonfinite);
        }
        out_text("\n");
    }
}

static void print_verdict(const Inspection *i) {
    findings_print(&i->faults, 0);
    if (i->faults.count > 0)
        out_printf("  NOT whole: %lld fault%s\n", (long long)i->faults.count,
                   i->faults.count == 1 ? "" : "s");
    else
        out_printf("  verified     %s\n",
                   i->compared ? "every tensor of the model is there, every value is finite"
                               : "the file is well-formed and every value is finite");
}

void inspection_print(const Inspection *i, bool tensors, bool stats) {
    char number[64];
    out_path(i->path);
    out_text("\n");
    if (i->file) {
        const char *file = safetensors_path(i->file);
        if (strcmp(file, i->path) != 0) {
            out_text("  file         ");
            out_path(file);
            out_text("\n");
        }
        print_model(&i->model);
        out_printf("  parameters   %s\n", grouped(i->parameters, number, sizeof number));
        print_dtypes(i->file);
        out_printf("  tensor bytes %s", grouped(i->bytes, number, sizeof number));
        if (shard_count(i->file) > 1)
            out_printf(" in %d shards\n", shard_count(i->file));
        else
            out_printf(" in a file of %s\n", grouped(file_bytes(file), number, sizeof number));
        if (i->stats)
            out_printf("  non-finite   %s\n", grouped(i->nonfinite, number, sizeof number));
        print_metadata(i->file);
        if (tensors) print_tensors(i, stats);
    }
    if (i->verified) print_verdict(i);
}

/* ---- JSON ---- */

static void json_model(JsonWriter *w, const Recognised *r) {
    static const char *const kinds[] = {
        [MODEL_UNKNOWN] = "unknown",      [MODEL_VITTT] = "vittt",
        [MODEL_HIERARCHICAL] = "h_vittt", [MODEL_SEQUENCE] = "vittt_sequence",
        [MODEL_NVS] = "lact_nvs",         [MODEL_STATE] = "state",
        [MODEL_SCENE] = "scene"};
    const VitttConfig *c = &r->config;
    json_key(w, "model");
    json_begin_object(w);
    json_pair_string(w, "kind", kinds[r->kind]);
    json_pair_string(w, "name", recognised_name(r));
    if (r->kind == MODEL_HIERARCHICAL && c->depth > 0) {
        json_pair_string(w, "stages", c->stages);
        json_pair_int(w, "image_size", c->image_size);
        json_pair_bool(w, "rope", c->rope);
    }
    if (r->kind == MODEL_VITTT || (r->kind == MODEL_HIERARCHICAL && c->depth > 0)) {
        json_pair_string(w, "preset", c->preset);
        json_pair_int(w, "width", c->width);
        json_pair_int(w, "depth", c->depth);
        json_pair_int(w, "heads", c->heads);
        json_pair_int(w, "patch", c->patch);
        json_pair_int(w, "stem_depth", c->stem_depth);
        if (c->stem_depth > 0) json_pair_int(w, "stem_width", c->stem_width);
        json_pair_int(w, "mlp_ratio", c->mlp_ratio);
        json_pair_int(w, "classes", c->classes);
    }
    json_end_object(w);
}

static void json_tensor(JsonWriter *w, const SafeEntry *e, const TensorStats *s) {
    json_begin_object(w);
    json_pair_string(w, "name", e->name);
    json_pair_string(w, "dtype", dtype_name(e->dtype));
    json_key(w, "shape");
    json_begin_array(w);
    for (int k = 0; k < e->rank; k++) json_int(w, e->shape[k]);
    json_end_array(w);
    json_pair_int(w, "bytes", (int64_t)e->bytes);
    if (s) {
        json_pair_number(w, "min", s->min);
        json_pair_number(w, "max", s->max);
        json_pair_number(w, "mean", s->mean);
        json_pair_number(w, "std", s->std);
        json_pair_int(w, "nonfinite", s->nonfinite);
    }
    json_end_object(w);
}

static void json_file(JsonWriter *w, const Inspection *i, bool tensors, bool stats) {
    int64_t counts[DTYPES];
    json_pair_string(w, "file", safetensors_path(i->file));
    json_pair_int(w, "file_bytes", file_bytes(safetensors_path(i->file)));
    json_pair_int(w, "shards", shard_count(i->file));
    json_model(w, &i->model);
    json_pair_int(w, "parameters", i->parameters);
    json_pair_int(w, "tensor_count", safetensors_count(i->file));
    json_pair_int(w, "tensor_bytes", i->bytes);
    if (i->stats) json_pair_int(w, "nonfinite", i->nonfinite);
    json_key(w, "dtypes");
    json_begin_object(w);
    count_dtypes(i->file, counts);
    for (int d = 0; d < DTYPES; d++)
        if (counts[d] > 0) json_pair_int(w, dtype_name((DType)d), counts[d]);
    json_end_object(w);
    json_key(w, "metadata");
    json_begin_object(w);
    for (int64_t m = 0; m < safetensors_meta_count(i->file); m++) {
        const char *key, *text;
        safetensors_meta_at(i->file, m, &key, &text);
        json_pair_string(w, key, text);
    }
    json_end_object(w);
    if (!tensors) return;
    json_key(w, "tensors");
    json_begin_array(w);
    for (int64_t t = 0; t < safetensors_count(i->file); t++)
        json_tensor(w, safetensors_at(i->file, t), stats ? &i->stats[t] : NULL);
    json_end_array(w);
}

Status inspection_json(const Inspection *i, bool tensors, bool stats, JsonWriter *w) {
    json_begin_object(w);
    json_pair_string(w, "path", i->path);
    json_pair_bool(w, "run_folder", i->run_folder);
    if (i->file) json_file(w, i, tensors, stats);
    if (i->verified) {
        json_pair_bool(w, "whole", i->faults.count == 0);
        json_pair_bool(w, "compared", i->compared);
        findings_json(&i->faults, w);
    }
    json_end_object(w);
    return w->status;
}
