#include "datasets/folder.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "datasets/folder_internal.h"

#define FIELD(f) offsetof(DataConfig, f)

enum { SHOWN = 300 };

const Option data_options[] = {
    {"root", OPTION_STRING, FIELD(root), "", 0, 0, NULL, "data-dir",
     "folder with <split>/<class>/<image>, a tar file of one, or tar files or WebDataset shards "
     "(a.tar,b.tar or 'train-{000..127}.tar')"},
    {"train_split", OPTION_STRING, FIELD(train_split), "train", 0, 0, NULL, "train-split",
     "folder name of the training images"},
    {"val_split", OPTION_STRING, FIELD(val_split), "val", 0, 0, NULL, "val-split",
     "folder name of the validation images, or a share such as 10%: so much of each class of the "
     "training images is held back; empty: class folders lie directly in the root"},
    {"val_labels", OPTION_STRING, FIELD(val_labels), "", 0, 0, NULL, "val-labels",
     "labels file of a flat validation folder: 'name index', 'name class-folder' or CSV"},
    {"class_map", OPTION_STRING, FIELD(class_map), "", 0, 0, NULL, "class-map",
     "file with one class folder name a line: the order of the class indices"},
    {"class_names", OPTION_STRING, FIELD(class_names), "", 0, 0, NULL, "class-names",
     "file with 'folder<TAB>readable name' lines"},
    {"class_order", OPTION_CHOICE, FIELD(class_order), "byte", 0, 0, "byte|natural|file",
     "class-order", "order of class folders: byte (0, 1, 10, 2), natural (0, 1, 2, 10), class_map"},
    {"train_limit", OPTION_INT, FIELD(train_limit), "0", 0, 1e15, NULL, "train-num-samples",
     "use only so many training images, of a fixed shuffle; 0: all"},
    {"val_limit", OPTION_INT, FIELD(val_limit), "0", 0, 1e15, NULL, "val-num-samples",
     "use only so many validation images, of a fixed shuffle; 0: all"},
    {"on_corrupt", OPTION_CHOICE, FIELD(on_corrupt), "skip", 0, 0, "skip|fail", "on-corrupt",
     "what an unreadable image does: skip (counted and named) or fail"},
    {"max_corrupt", OPTION_FLOAT, FIELD(max_corrupt), "0.01", 0, 1, NULL, "max-corrupt",
     "share of unreadable images above which skip turns into fail"},
    {"max_pixels", OPTION_INT, FIELD(max_pixels), "178956970", 1, 1e12, NULL, "max-image-pixels",
     "larger images are refused before they are decoded"},
    {"plausible", OPTION_BOOL, FIELD(plausible), "true", 0, 0, NULL, "plausible-sizes",
     "refuse images whose header claims more pixels than so many bytes can usually hold"},
    {"exif_orientation", OPTION_BOOL, FIELD(exif_orientation), "false", 0, 0, NULL,
     "exif-orientation", "turn images as their EXIF tag says in training and evaluation"},
    {"strict_decode", OPTION_BOOL, FIELD(strict_decode), "true", 0, 0, NULL, "strict-decode",
     "damaged image data is an error; false: keep what could be decoded"},
    {"follow_symlinks", OPTION_BOOL, FIELD(follow_symlinks), "true", 0, 0, NULL, "follow-symlinks",
     "follow symbolic links; the class is the link's folder"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

ImageOptions data_image_options(const DataConfig *c) {
    ImageOptions o = image_options_default();
    o.max_pixels = c->max_pixels;
    o.check_plausible = c->plausible;
    o.apply_orientation = c->exif_orientation;
    o.strict = c->strict_decode;
    return o;
}

struct Dataset {
    Scan scan;
};

/* Shards may each count their samples from 0. */
static int by_path(const void *a, const void *b, void *user) {
    const Found *x = a, *y = b;
    int order = strcmp(scan_inside(user, a), scan_inside(user, b));
    if (order != 0 || x->label_text == 0 || y->label_text == 0) return order;
    return x->archive < y->archive ? -1 : x->archive > y->archive;
}

static int by_label_and_path(const void *a, const void *b, void *user) {
    const Found *x = a, *y = b;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    return by_path(a, b, user);
}

/* Byte order of paths is label order already unless classes are ordered otherwise. */
static void sort_by_label(Scan *s) {
    int64_t i = 1;
    while (i < s->count && s->files[i - 1].label <= s->files[i].label) i++;
    if (i < s->count) {
        qsort_r(s->files, (size_t)s->count, sizeof(Found), by_label_and_path, s);
    }
}

/* The scan comes in the order of the file system; from here on it is that of the names. */
static Status sort_by_path(Scan *s) {
    qsort_r(s->files, (size_t)s->count, sizeof(Found), by_path, s);
    for (int64_t i = 1; i < s->count; i++) {
        if (by_path(&s->files[i - 1], &s->files[i], s) != 0) continue;
        char one[SHOWN], two[SHOWN];
        return status_set(STATUS_DATA, "the same image twice: %s and %s",
                          text_printable(scan_name(s, &s->files[i - 1]), one, sizeof one),
                          text_printable(scan_name(s, &s->files[i]), two, sizeof two));
    }
    return STATUS_OK;
}

static int64_t nested_count(const Scan *s) {
    int64_t nested = 0;
    for (int64_t i = 0; i < s->count; i++) nested += class_length(scan_inside(s, &s->files[i])) > 0;
    return nested;
}

static Status no_images(const Scan *s, const char *split) {
    char shown[SHOWN];
    return status_set(STATUS_DATA,
                      "%s: no images for split '%s' (%lld class folders, %lld other files, %lld "
                      "hidden entries)",
                      text_printable(s->place, shown, sizeof shown), split,
                      (long long)s->folder_count, (long long)s->report.other_files,
                      (long long)s->report.hidden_skipped);
}

/* The labels file of a flat split: as configured, or Kaggle's where it lies by custom. */
static Status flat_labels_path(const Scan *s, const DataConfig *c, const char *split, char **out) {
    *out = NULL;
    if (strcmp(split, c->val_split) == 0) {
        if (c->val_labels[0] != '\0') return mem_string(out, c->val_labels);
        TRY(path_join(out, c->root, "LOC_val_solution.csv"));
        if (file_exists(*out)) return STATUS_OK;
        mem_free(*out);
        *out = NULL;
    }
    char shown[SHOWN];
    return status_set(STATUS_DATA,
                      "%s: %lld images of split '%s' lie flat, without class folders: no labels; "
                      "sort them into class folders, or give a labels file with 'name class' lines "
                      "for the validation split (data.val_labels, --val-labels)",
                      text_printable(s->place, shown, sizeof shown), (long long)s->count, split);
}

static Status label_flat(Scan *s, const DataConfig *c, const char *split, ClassList *classes) {
    char *path;
    TRY(flat_labels_path(s, c, split, &path));
    Status status = classes_from_labels(s, c, path, classes);
    mem_free(path);
    return status;
}

static Status label_nested(Scan *s, const DataConfig *c, const char *split, ClassList *classes) {
    char shown[SHOWN];
    text_printable(s->place, shown, sizeof shown);
    if (strcmp(split, c->val_split) == 0 && c->val_labels[0] != '\0') {
        log_warn("%s: has class folders; the labels file %s is not used", shown, c->val_labels);
    }
    int64_t beside = s->count - nested_count(s);
    if (beside > 0) {
        log_warn("%s: %lld images lie beside the class folders and are not used", shown,
                 (long long)beside);
    }
    return classes_from_folders(s, c, classes);
}

static int64_t limit_of(const DataConfig *c, const char *split) {
    if (strcmp(split, c->train_split) == 0) return c->train_limit;
    return strcmp(split, c->val_split) == 0 ? c->val_limit : 0;
}

/* Keeps `limit` files, chosen by a shuffle that never changes, in their order. */
static Status apply_limit(Scan *s, int64_t limit) {
    if (limit <= 0 || limit >= s->count) return STATUS_OK;
    void *order, *chosen;
    TRY(mem_alloc(&order, s->count, sizeof(int64_t), "choice of samples"));
    Status status = mem_alloc(&chosen, s->count, 1, "choice of samples");
    if (status == STATUS_OK) {
        Rng rng = rng_stream(0, RNG_SHUFFLE, UINT32_MAX, 0);
        rng_permutation(&rng, order, s->count);
        for (int64_t i = 0; i < limit; i++) ((uint8_t *)chosen)[((int64_t *)order)[i]] = 1;
        int64_t kept = 0;
        for (int64_t i = 0; i < s->count; i++) {
            if (((uint8_t *)chosen)[i]) s->files[kept++] = s->files[i];
        }
        s->count = kept;
    }
    mem_free(order);
    mem_free(chosen);
    return status;
}

static bool has_own_labels(const Scan *s) {
    for (int64_t i = 0; i < s->count; i++)
        if (s->files[i].label_text != 0) return true;
    return false;
}

static Status label_split(Scan *s, const DataConfig *c, const char *split, ClassList *classes) {
    if (s->count == 0) return no_images(s, split);
    TRY(sort_by_path(s));
    if (has_own_labels(s)) {
        TRY(classes_from_shards(s, c, classes));
    } else {
        TRY(nested_count(s) > 0 ? label_nested(s, c, split, classes)
                                : label_flat(s, c, split, classes));
    }
    if (s->count == 0) return no_images(s, split);
    sort_by_label(s);
    const double share = data_holdout(c->val_split);
    const bool held = strcmp(split, c->val_split) == 0;
    if (share > 0 && (held || strcmp(split, c->train_split) == 0)) TRY(scan_divide(s, share, held));
    if (s->count == 0) return no_images(s, split);
    TRY(apply_limit(s, limit_of(c, split)));
    s->report.images = s->count;
    return classes_add_readable(c, classes);
}

Status dataset_open(const DataConfig *c, const char *split, ClassList *classes, Dataset **out) {
    void *block;
    bool fresh = classes->count == 0;
    *out = NULL;
    TRY(mem_alloc(&block, 1, sizeof(Dataset), "data set"));
    Dataset *d = block;
    const bool held = data_holdout(c->val_split) > 0 && strcmp(split, c->val_split) == 0;
    Status s = scan_source(&d->scan, c, held ? c->train_split : split);
    if (s == STATUS_OK) s = label_split(&d->scan, c, split, classes);
    if (s != STATUS_OK) {
        dataset_close(d);
        if (fresh) class_list_free(classes);
        return s;
    }
    *out = d;
    return STATUS_OK;
}

void dataset_close(Dataset *d) {
    if (d == NULL) return;
    scan_free(&d->scan);
    mem_free(d);
}

int64_t dataset_count(const Dataset *d) {
    return d->scan.count;
}

const char *dataset_name(const Dataset *d, int64_t i) {
    return scan_name(&d->scan, &d->scan.files[i]);
}

int64_t dataset_label(const Dataset *d, int64_t i) {
    return d->scan.files[i].label;
}

Status dataset_bytes(const Dataset *d, int64_t i, const void **bytes, size_t *size, bool *owned) {
    const Found *f = &d->scan.files[i];
    *bytes = NULL;
    *size = 0;
    *owned = f->archive < 0;
    if (*owned) {
        char *data;
        TRY(file_read(scan_name(&d->scan, f), IMAGE_MAX_FILE_BYTES, &data, size));
        *bytes = data;
        return STATUS_OK;
    }
    const TarMember *m = tar_at(d->scan.archives[f->archive], f->member);
    *bytes = m->data;
    *size = m->size;
    return STATUS_OK;
}

DatasetReport dataset_report(const Dataset *d) {
    return d->scan.report;
}
