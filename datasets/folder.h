/* ImageFolder data sets: class folders on disk, inside tar files, or a flat folder with a labels
 * file.
 *
 *   root/train/<class>/<image>, root/val/<class>/<image>     (also root/<class>/... with split "")
 *   root may be a tar of such a tree, a comma list of tars (parts of one tree), or a folder of tars
 *   whose names hold the split as a word; braces are written out ("train-{000..127}.tar"). A tar of
 *   tars is one of class folders. .tar.gz is refused with the command that unpacks it.
 *   WebDataset shards: KEY.jpg beside KEY.cls or KEY.json (folder_shards.c)
 *   flat val/ with a labels file: "name index", "name wnid", LOC_val_solution.csv
 *
 * Class index = byte-order rank of the folder name (or `class_order` natural | file). Names
 * starting with a dot are ignored, symlinks keep the link's class, dangling links are reported, an
 * empty class keeps its index and warns. users_expect.md section 5 traps are errors before step 1.
 */
#ifndef TTV_DATASETS_FOLDER_H
#define TTV_DATASETS_FOLDER_H

#include "core/config.h"
#include "core/status.h"
#include "datasets/image.h"

typedef enum ClassOrder { CLASS_ORDER_BYTE, CLASS_ORDER_NATURAL, CLASS_ORDER_FILE } ClassOrder;

/* Section [data]. */
typedef struct DataConfig {
    char root[CONFIG_TEXT];
    char train_split[CONFIG_TEXT], val_split[CONFIG_TEXT];
    char val_labels[CONFIG_TEXT];  /* labels file of a flat val folder */
    char class_map[CONFIG_TEXT];   /* file: one class folder name per line, the index order */
    char class_names[CONFIG_TEXT]; /* optional file: folder<TAB>readable name */
    int class_order;
    int64_t train_limit, val_limit; /* use only the first n of a fixed shuffle; 0: all */
    int on_corrupt;                 /* 0 skip, 1 fail */
    double max_corrupt;             /* share of samples; above it the run fails (0.01) */
    int64_t max_pixels;
    bool plausible;        /* refuse headers that claim more pixels than the file can hold */
    bool exif_orientation; /* apply in train/eval (default: ignore) */
    bool strict_decode;
    bool follow_symlinks;
} DataConfig;
extern const Option data_options[];

/* The share that a validation split such as "10%" holds back of the training images; 0: the name of
 * a folder. */
double data_holdout(const char *split);

/* What the section says about decoding. */
ImageOptions data_image_options(const DataConfig *c);

typedef struct Dataset Dataset;

/* Class list: names in index order. */
typedef struct ClassList {
    char **names;    /* folder names */
    char **readable; /* or NULL */
    int64_t count;
} ClassList;
void class_list_free(ClassList *c);
Status class_list_copy(ClassList *dst, const ClassList *src);

/* Opens a split; where c->val_split is a share ("10%"), that split is part of the training images,
 * and the training split the rest of them. `classes` empty (count 0): the split defines the class
 * list and fills it; otherwise folders are matched against it and any difference is reported. */
Status dataset_open(const DataConfig *c, const char *split, ClassList *classes, Dataset **out);
void dataset_close(Dataset *d);

/* Whether the root seems to have that split; also where it cannot be read, so that opening it tells
 * why. Fails for want of memory only. */
Status dataset_has_split(const char *root, const char *split, bool *found);

int64_t dataset_count(const Dataset *d);
const char *dataset_name(const Dataset *d, int64_t i); /* path, or "archive.tar:member" */
int64_t dataset_label(const Dataset *d, int64_t i);
/* The file's bytes: *owned tells whether to mem_free them (members of a mapped tar are not owned).
 * Thread-safe. */
Status dataset_bytes(const Dataset *d, int64_t i, const void **bytes, size_t *size, bool *owned);

/* Numbers of the scan, for `ttv data check` and messages. */
typedef struct DatasetReport {
    int64_t images, classes, empty_classes, hidden_skipped, other_files, dangling_links;
} DatasetReport;
DatasetReport dataset_report(const Dataset *d);

#endif
