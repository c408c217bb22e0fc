/* How a data set is put together: scan (files and tars) -> classes -> labels. Private to datasets/.
 */
#ifndef TTV_DATASETS_FOLDER_INTERNAL_H
#define TTV_DATASETS_FOLDER_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "datasets/folder.h"
#include "datasets/tar.h"

/* Growing text; strings in it are named by offset, because it moves. */
typedef struct TextPool {
    char *text;
    size_t used, capacity;
} TextPool;
/* Adds the concatenation of three strings and a NUL; *offset is where it starts. */
Status pool_add(TextPool *p, const char *a, const char *b, const char *c, size_t *offset);

/* One image found. */
typedef struct Found {
    size_t name; /* in the pool: path, or archive:member */
    uint32_t
        inside; /* offset in the name: path below the split folder, "<class>/<file>" or "<file>" */
    int32_t archive; /* -1: a file of its own */
    int64_t member;
    int64_t label;
    size_t label_text; /* in the pool: what the shard says of it; 0: nothing (a name lies there) */
} Found;

typedef struct Scan {
    TextPool pool;
    Found *files;
    int64_t count, capacity;
    size_t *folders; /* class folders seen on disk, also empty ones: offsets in the pool */
    int64_t folder_count, folder_capacity;
    Tar **archives;
    int64_t archive_count, archive_capacity;
    DatasetReport report;
    char *place; /* the split folder or archive, for messages */
    double told; /* when the walk last said how far it is; 0: it has just begun */
} Scan;
void scan_free(Scan *s);

static inline const char *scan_name(const Scan *s, const Found *f) {
    return s->pool.text + f->name;
}
static inline const char *scan_inside(const Scan *s, const Found *f) {
    return s->pool.text + f->name + f->inside;
}

/* ---- folder_parts.c ---- */

typedef struct NameList {
    char **names;
    int64_t count, capacity;
} NameList;
bool has_image_suffix(const char *name); /* .jpg, .png, ... */
void name_list_free(NameList *l);
Status name_list_add(NameList *l, const char *name, size_t length);
/* The files that data.root names, {a,b} and {000..127} written out, in the order of the text. */
Status root_parts(const char *root, NameList *out);
/* Whether the name of a tar file holds the split as a word of its own: imagenet-train-000.tar. */
bool part_names_split(const char *path, const char *split);

/* ---- folder_scan.c ---- */

/* Adds an image, or counts it as hidden or other by its path below the split folder. */
Status scan_add(Scan *s, const char *prefix, const char *inside, int32_t archive, int64_t member);
Status scan_add_folder(Scan *s, const char *name);
/* Everything below a split folder on disk. */
Status scan_folder(Scan *s, const char *path, bool follow_symlinks);

/* ---- folder_source.c ---- */

/* Finds the split below config.root and scans it. */
Status scan_source(Scan *s, const DataConfig *c, const char *split);

/* ---- folder_tar.c ---- */

/* Members below `split` of a tar, at whatever depth it first occurs. `whole`: an archive of one
 * split, taken as it is when no such folder is in it. *found tells whether the archive had
 * anything. The tars in a tar are its class folders (ILSVRC2012_img_train.tar). */
Status scan_tar(Scan *s, const char *path, const char *split, bool whole, bool *found);

/* Whether a folder of that name is in the archive. */
Status tar_has_split(const char *path, const char *split, bool *found);

/* ---- folder_shards.c ---- */

/* Whether the members below `folder` (its first `length` bytes) are samples of a WebDataset shard:
 * pictures with a label beside them. */
bool shard_has_labels(const Tar *t, const char *folder, size_t length);
/* Adds its samples; scan_name is prefix + the rest of the member's name. */
Status shard_add(Scan *s, const Tar *t, const char *prefix, const char *folder, size_t length,
                 int32_t archive);
/* Labels a split of shards, fills an empty class list. */
Status classes_from_shards(Scan *s, const DataConfig *c, ClassList *classes);

/* ---- folder_holdout.c ---- */

/* Keeps the images that are held back, or the others. Files must be in the order of their labels.
 */
Status scan_divide(Scan *s, double share, bool keep_held);

/* ---- folder_classes.c ---- */

/* Length of the class part of "<class>/<file>"; 0 for a flat file. */
size_t class_length(const char *inside);
int class_compare_natural(const char *a, const char *b);
/* Class index of a folder name of `length` bytes; -1: unknown. */
typedef struct ClassIndex {
    const ClassList *list;
    int64_t *sorted; /* indices in byte order of names */
} ClassIndex;
Status class_index_new(const ClassList *list, ClassIndex *out);
void class_index_free(ClassIndex *x);
int64_t class_find(const ClassIndex *x, const char *name, size_t length);

/* The names in byte order, each once. */
Status class_names_unique(const char *const *names, int64_t count, ClassList *out);
bool class_names_are_numbers(const ClassList *l);
/* A class list out of folder names: in the configured order, or the one of class_map. */
Status classes_from_names(const DataConfig *c, const char *const *names, int64_t count,
                          ClassList *out);
/* Class names "0", "1", ... when nothing better is known; `what` asks for them, in messages. */
Status classes_numbered(int64_t count, const char *what, ClassList *out);
/* Index of a class as a text of at most 9 digits. */
bool class_parse_index(const char *text, int64_t *value);
/* The list in a file of one name a line. */
Status class_map_read(const char *path, ClassList *out);
/* Says so where the report has classes without images. */
void warn_empty_classes(const Scan *s);
/* How many classes have images goes into the report, with a warning. All files are labelled. */
Status count_used_classes(Scan *s, int64_t classes);
/* Readable names from c->class_names, when given and not yet known. */
Status classes_add_readable(const DataConfig *c, ClassList *classes);

/* ---- folder_match.c ---- */

/* Fills an empty class list from the scan, labels every found file. Files must be in path order. */
Status classes_from_folders(Scan *s, const DataConfig *c, ClassList *classes);

/* ---- folder_labels.c ---- */

/* Labels a flat split from a labels file; fills an empty class list. */
Status classes_from_labels(Scan *s, const DataConfig *c, const char *labels_path,
                           ClassList *classes);

/* ---- text_lines.c ---- */

/* Lines of a text file in memory, without line ends (also CRLF) and a UTF-8 mark. */
typedef struct TextLines {
    char *text; /* owned */
    char *next;
    char *end;
    int64_t number;  /* of the line returned last, from 1 */
    char shown[600]; /* printable path */
} TextLines;
Status text_lines_open(const char *path, TextLines *out);
/* NULL at the end. Lines are NUL-terminated in place; empty ones are returned too. */
char *text_lines_next(TextLines *t);
void text_lines_close(TextLines *t);

#endif
