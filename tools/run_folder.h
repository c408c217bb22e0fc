/* The folder of one training run:
 *
 *   config.ini     resolved configuration, each value with its origin
 *   metrics.jsonl  one JSON object a line     metrics.csv  the same numbers, fixed columns
 *   log.txt        what stderr said           lock         pid and host while a process works here
 *   checkpoints/, last.json, best.json ...    nn/checkpoint.h
 *
 * Beside it, where --tensorboard names a folder, the same numbers as event files (event_file.h) in
 * a folder of the run's name there.
 *
 * A folder is never overwritten: a taken name gets -2, -3, ... A resumed run first drops the rows
 * beyond the step that it resumes from, so that every step stands in the files once.
 */
#ifndef TTV_TOOLS_RUN_FOLDER_H
#define TTV_TOOLS_RUN_FOLDER_H

#include <stdio.h>

#include "core/config.h"
#include "nn/train.h"
#include "tools/event_file.h"

enum { RUN_KINDS = 8 };

/* Columns of metrics.csv after kind, step, epoch, loss, lr, grad_norm, <rate>, wait_share and
 * step_ms. */
typedef struct RunColumns {
    const char *rate;              /* "images_per_s" */
    const char *const *validation; /* what a validation measures; NULL at the end. "seconds" is
                                      filled in for every row */
} RunColumns;

typedef struct RunFolder {
    char *path;
    int lock;            /* file descriptor, -1: none */
    const char *resumed; /* the manifest gone on from: "last", or "best" where that is lost */
    FILE *log, *jsonl, *csv;
    RunColumns columns;      /* set before run_folder_start */
    const char *tensorboard; /* likewise, borrowed: folder for event files; NULL or "": none */
    EventFile *events;
    Status status; /* first failure of a metrics file; training goes on */
    struct {
        char kind[16];
        int64_t step; /* newest row of that kind kept at a resume */
    } kept[RUN_KINDS];
} RunFolder;

/* Makes the folder for event files, "": none; before run_folder_create, so that a refusal leaves no
 * empty run folder behind. */
Status run_folder_check_events(const char *tensorboard);
/* A new folder `wanted`, or `wanted`-2, ...; an empty folder is taken as it is. exist_ok: `wanted`
 * itself, unless it holds a checkpoint. */
Status run_folder_create(RunFolder *r, const char *wanted, bool exist_ok);
/* An existing folder; refused while another process holds its lock. */
Status run_folder_open(RunFolder *r, const char *path);

/* Opens log.txt and the metrics files; resumed_step < 0: a new run. */
Status run_folder_start(RunFolder *r, int64_t resumed_step);
Status run_folder_write_config(const RunFolder *r, const Config *c);

/* Adds the event to the metrics files; `values` of columns.validation in their order (NAN: an empty
 * field), NULL when nothing was validated. */
void run_folder_event(RunFolder *r, const TrainEvent *e, const double *values);

/* Closes files, gives the lock back. */
void run_folder_close(RunFolder *r);

/* Bytes of one checkpoint; STATUS_IO when the disk of `path` has no room for it. */
uint64_t run_checkpoint_bytes(const Params *p, bool average);
Status run_check_disk(const char *path, const Params *p, bool average);

/* Bytes free for an ordinary user on the file system that holds `path` or its nearest existing
 * parent. */
Status disk_free(const char *path, uint64_t *bytes);

#endif
