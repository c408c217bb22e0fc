/* Options that commands on posed scenes share: one table of each kind, whose rows stand in the
 * section of the command, so that keys and help are the same everywhere.
 */
#ifndef TTV_TOOLS_NVS_OPTIONS_H
#define TTV_TOOLS_NVS_OPTIONS_H

#include <stddef.h>

#include "core/config.h"
#include "datasets/view_sample.h"
#include "tools/model_io.h"

/* What to run, and the scenes to run it on. */
typedef struct NvsInput {
    char checkpoint[CONFIG_TEXT], root[CONFIG_TEXT], split[CONFIG_TEXT];
    int weights; /* WeightsChoice */
} NvsInput;

/* clang-format off: tables */

/* Rows of an Option table whose value struct has the NvsInput `input`. */
#define NVS_INPUT_OPTIONS(Type, split_default)                                                     \
    {"checkpoint",                                                                                 \
     OPTION_STRING,                                                                                \
     offsetof(Type, input.checkpoint),                                                             \
     "",                                                                                           \
     0,                                                                                            \
     0,                                                                                            \
     NULL,                                                                                         \
     "checkpoint",                                                                                 \
     "weights file or run folder (its best, else its last)"},                                      \
        {"weights", OPTION_CHOICE, offsetof(Type, input.weights), "auto", 0, 0, WEIGHTS_CHOICES,   \
         "weights", WEIGHTS_HELP},                                                                 \
        {"root",                                                                                   \
         OPTION_STRING,                                                                            \
         offsetof(Type, input.root),                                                               \
         "",                                                                                       \
         0,                                                                                        \
         0,                                                                                        \
         NULL,                                                                                     \
         "data-dir",                                                                               \
         "posed scenes: folders or tar files, with commas between"},                               \
    {                                                                                              \
        "split", OPTION_STRING, offsetof(Type, input.split), split_default, 0, 0, NULL, "split",   \
            "split; empty: all"                                                                    \
    }

/* clang-format on */

/* Which views of the scenes: an index file, or one that is generated. */
typedef struct NvsIndex {
    char index[CONFIG_TEXT], write_index[CONFIG_TEXT];
    double turn_max;
    int64_t gap_min, gap_max, inputs, targets;
} NvsIndex;

/* clang-format off: tables */

/* The same of an NvsIndex `views`. */
#define NVS_INDEX_OPTIONS(Type)                                                                    \
    {"index",                                                                                      \
     OPTION_STRING,                                                                                \
     offsetof(Type, views.index),                                                                  \
     "",                                                                                           \
     0,                                                                                            \
     0,                                                                                            \
     NULL,                                                                                         \
     "index",                                                                                      \
     "JSON of scenes with context and target frames; empty: one is generated"},                    \
        {"write_index", OPTION_STRING, offsetof(Type, views.write_index),   "", 0, 0,              \
         NULL,          "write-index", "write the index that was used here"},                      \
        {"gap_min",                                                                                \
         OPTION_INT,                                                                               \
         offsetof(Type, views.gap_min),                                                            \
         "25",                                                                                     \
         1,                                                                                        \
         1e6,                                                                                      \
         NULL,                                                                                     \
         "gap-min",                                                                                \
         "generated index: least frames between first and last view, less in shorter scenes"},     \
        {"gap_max", OPTION_INT, offsetof(Type, views.gap_max),                                     \
         "192",     1,          1e6,                                                               \
         NULL,      "gap-max",  "generated index: most frames between first and last view"},       \
        {"inputs", OPTION_INT, offsetof(Type, views.inputs),                                       \
         "2",      2,          VIEW_MAX - 1,                                                       \
         NULL,     "inputs",   "generated index: input views of a scene"},                         \
        {"targets", OPTION_INT, offsetof(Type, views.targets),                                     \
         "3",       1,          VIEW_MAX - 1,                                                      \
         NULL,      "targets",  "generated index: target views of a scene"},                       \
    {                                                                                              \
        "turn_max", OPTION_FLOAT, offsetof(Type, views.turn_max), "0", 0, 180, NULL, "turn-max",   \
            "generated index: most degrees between the first and the last camera; 0: any"          \
    }

/* clang-format on */

/* The index that these options ask for, looked up in `set`, and written where asked. STATUS_USAGE
 * for options that contradict each other. eval_index_free() also after a failure. */
Status nvs_index_find(const NvsIndex *o, uint64_t seed, const SceneSet *set, EvalIndex *out);

#endif
