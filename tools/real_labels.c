#include "tools/real_labels.h"

#include <ctype.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "tools/predict.h"

enum { MAX_BYTES = 64 << 20, SHOWN = 300 };

/* ---- reading ---- */

static Status count_labels(const cJSON *list, const char *path, int64_t *images, int64_t *labels) {
    *images = *labels = 0;
    if (!cJSON_IsArray(list)) return status_set(STATUS_DATA, "%s: expected a JSON array", path);
    for (const cJSON *item = list->child; item; item = item->next) {
        if (!cJSON_IsArray(item))
            return status_set(STATUS_DATA, "%s: item %lld is no array of class indices", path,
                              (long long)*images);
        *labels += cJSON_GetArraySize(item);
        ++*images;
    }
    return *images > 0 ? STATUS_OK : status_set(STATUS_DATA, "%s: no labels in it", path);
}

static Status take_labels(RealLabels *r, const cJSON *list, const char *path, int64_t classes) {
    int64_t image = 0, used = 0;
    for (const cJSON *item = list->child; item; item = item->next) {
        r->first[image++] = used;
        for (const cJSON *label = item->child; label; label = label->next) {
            const double x = cJSON_IsNumber(label) ? label->valuedouble : -1;
            if (!(x >= 0 && x < (double)classes) || x != (double)(int64_t)x)
                return status_set(STATUS_DATA,
                                  "%s: item %lld: expected class indices from 0 to %lld", path,
                                  (long long)image - 1, (long long)classes - 1);
            r->labels[used++] = (int64_t)x;
        }
    }
    r->first[image] = used;
    r->images = image;
    return STATUS_OK;
}

static Status take_list(RealLabels *r, const cJSON *list, const char *path, int64_t classes) {
    int64_t images, labels;
    TRY(count_labels(list, path, &images, &labels));
    TRY(mem_alloc((void **)&r->first, images + 1, sizeof *r->first, "reassessed labels"));
    TRY(mem_alloc((void **)&r->labels, labels, sizeof *r->labels, "reassessed labels"));
    return take_labels(r, list, path, classes);
}

Status real_labels_open(RealLabels *r, const char *path, int64_t classes) {
    char *text;
    size_t size;
    cJSON *list = NULL;
    *r = (RealLabels){0};
    TRY(file_read(path, MAX_BYTES, &text, &size));
    Status s = json_parse(text, size, path, &list);
    mem_free(text);
    if (s == STATUS_OK) s = take_list(r, list, path, classes);
    if (list) json_free(list);
    if (s != STATUS_OK) real_labels_free(r);
    return s;
}

void real_labels_free(RealLabels *r) {
    mem_free(r->first);
    mem_free(r->labels);
    r->first = r->labels = NULL;
}

/* ---- scoring ---- */

/* The last number of the file's name, less one; -1: there is none. */
static int64_t image_index(const char *name) {
    const char *dot = strrchr(name, '.'), *end = dot ? dot : name + strlen(name), *at = end;
    int64_t number = 0;
    while (at > name && isdigit((unsigned char)at[-1]) && end - at < 18) at--;
    for (const char *c = at; c < end; c++) number = 10 * number + (*c - '0');
    return number - 1;
}

Status real_labels_fit(const RealLabels *r, const Dataset *d) {
    char shown[SHOWN];
    for (int64_t i = 0; i < dataset_count(d); i++) {
        const int64_t image = image_index(dataset_name(d, i));
        if (image >= 0 && image < r->images) continue;
        return status_set(STATUS_DATA,
                          "%s: expected a name that ends in a number from 1 to %lld, the number of "
                          "images that have reassessed labels",
                          text_printable(dataset_name(d, i), shown, sizeof shown),
                          (long long)r->images);
    }
    return STATUS_OK;
}

static bool is_right(const RealLabels *r, int64_t image, int64_t prediction) {
    for (int64_t k = r->first[image]; k < r->first[image + 1]; k++)
        if (r->labels[k] == prediction) return true;
    return false;
}

void real_labels_add(RealLabels *r, const Dataset *d, const HostBatch *b, const float *logits,
                     int64_t classes) {
    for (int64_t i = 0; i < b->count; i++) {
        int64_t prediction;
        if (b->valid && !b->valid[i]) continue;
        const int64_t image = image_index(dataset_name(d, b->samples[i]));
        top_k(logits + i * classes, classes, 1, &prediction);
        r->scored += r->first[image + 1] > r->first[image];
        r->right += is_right(r, image, prediction);
    }
}
