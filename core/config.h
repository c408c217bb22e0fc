/* Strict INI configuration driven by option tables.
 *
 * One table per section describes every key: type, place in a struct, default, limits, help. The
 * same table parses files, `--set section.key=value`, command-line flags, prints --help and the
 * resolved copy. Unknown, duplicate and ill-typed keys are fatal: "configs/x.ini:14: unknown key
 * 'deph' in [model]; did you mean 'depth'?".
 *
 * Files: `key = value` lines under `[section]`; a comment starts with ; or # at the line's begin or
 * behind a blank; a value in double quotes may hold anything (escapes \" \\ \n \t \xNN). At most 1
 * MiB, no NUL byte. Faults in files are STATUS_DATA, in --set and flags STATUS_USAGE.
 */
#ifndef TTV_CORE_CONFIG_H
#define TTV_CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "core/status.h"

typedef enum OptionType {
    OPTION_BOOL,   /* bool */
    OPTION_INT,    /* int64_t */
    OPTION_FLOAT,  /* double */
    OPTION_STRING, /* char[CONFIG_TEXT]; longer values are refused */
    OPTION_CHOICE, /* int: index into `choices` */
} OptionType;

#define CONFIG_TEXT 1024

typedef struct Option {
    const char *key;
    OptionType type;
    size_t offset;       /* of the field in the section's struct */
    const char *initial; /* default as text, parsed like a value in a file */
    double min, max;     /* for INT and FLOAT; both 0: no limit */
    const char *choices; /* CHOICE: "fp32|tf32|bf16" */
    const char *flag;    /* command-line flag without dashes, e.g. "batch-size"; NULL: only --set */
    const char *help;    /* one line, units named */
} Option;

typedef struct Section {
    const char *name;
    const Option *options; /* ends with key == NULL */
    void *values;          /* the struct that the offsets point into */
} Section;

/* A configuration: the sections that a command understands. Remembers where each value came from.
 */
typedef struct Config Config;

/* All values are set to their defaults. `sections` is copied; tables and structs must outlive it.
 */
Status config_new(const Section *sections, int count, Config **out);
void config_free(Config *c);

/* Reads an INI file over the current values. `include = other.ini` (top, before any section) is
 * relative to the file. */
Status config_read_file(Config *c, const char *path);

/* Reads INI text (from checkpoint metadata); `name` stands for the path in messages. Keys of
 * sections that this Config does not have are skipped when `skip_unknown_sections`. */
Status config_read_text(Config *c, const char *text, size_t size, const char *name,
                        bool skip_unknown_sections);

/* "section.key=value", from --set; `origin` e.g. "--set". */
Status config_set(Config *c, const char *assignment, const char *origin);

/* By flag name ("batch-size"): STATUS_USAGE when no option has that flag. value NULL: a boolean set
 * to true, or to false through "no-<flag>". */
Status config_set_flag(Config *c, const char *flag, const char *value);

/* Whether a key was set by anyone (file, flag) rather than left at its default. */
bool config_is_set(const Config *c, const char *section, const char *key);

/* The resolved configuration as INI text (mem_free), each line with its origin as a comment when
 * `origins`. Reading it back gives the same values. */
Status config_write(const Config *c, bool origins, char **text);

/* One value as text, as it would stand in a file. */
void option_value_text(const Option *o, const void *values, char *out, size_t size);

/* Calls visit() for every option, in table order (help, completion, man pages, tests). */
void config_each(const Config *c, void (*visit)(void *user, const Section *s, const Option *o),
                 void *user);

/* The candidate nearest to `word` by edit distance, or NULL when none is near. */
const char *nearest_name(const char *word, const char *const *candidates, int count);

#endif
