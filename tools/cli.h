/* What every command of `ttv` shares: one table per command, parsed with the option tables of
 * core/config.h, so that --help, the parser, completion and the tests cannot drift apart.
 *
 * tools/ is the only room with stdout, stderr, exit codes and signals. Data goes to stdout, messages to stderr.
 */
#ifndef TTV_TOOLS_CLI_H
#define TTV_TOOLS_CLI_H

#include "core/config.h"
#include "core/status.h"

/* Results of a command that are no Status: 1 is "negative result" (data check found faults). */
enum { EXIT_NEGATIVE = 1 };

typedef struct Command {
    const char *name;     /* "train", "data check" */
    const char *aliases;  /* "cls train|vittt train", may be NULL */
    const char *summary;  /* one line for `ttv help` */
    const char *synopsis; /* "ttv classify [flags] PATH..." */
    const char *examples; /* leads --help */
    const char *letters;  /* one-letter flags: "b=batch-size j=workers o=output" */
    /* The command's sections with their value structs (static storage); *count of them. Sections are parsed
     * from -c/--config FILE, --set section.key=value and flags. Flags common to all commands (help, verbose,
     * quiet, color, no-progress, json where it applies) come from common_options. */
    const Section *(*sections)(int *count);
    /* Positionals are what remains. Returns the exit code. Report errors with cli_fail(). */
    int (*run)(Config *config, int argc, char **argv);
} Command;

/* The commands, in help order; NULL-terminated. */
extern const Command *const commands[];
extern const Command command_train, command_eval, command_classify, command_inspect, command_data_check,
    command_bench;

/* Section [common] of every command; values in `common`. */
typedef struct CommonOptions {
    bool json;        /* --json: machine-readable result on stdout */
    bool quiet;       /* -q: errors only */
    bool verbose;     /* -v: debug notes too */
    int color;        /* auto, always, never */
    bool progress;    /* --no-progress */
    char device[CONFIG_TEXT]; /* --device cpu | cuda | cuda:N */
    int precision;    /* --precision fp32 | tf32 | bf16 */
    int64_t threads;  /* --threads: OpenMP threads of the CPU backend; 0: all */
} CommonOptions;
extern CommonOptions common;
extern const Option common_options[];

/* Prints "ttv: error: <message>" to stderr and returns the status' exit code. */
int cli_fail(Status s);
/* STATUS_USAGE with a message, and the hint "see 'ttv <command> --help'". */
int cli_usage(const Command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* stdout with checked writes: a full disk or /dev/full ends with exit code 4, a broken pipe silently with 141. */
void out_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void out_text(const char *text);
void out_path(const char *path); /* escaped with text_printable when stdout is a terminal, raw otherwise */
/* Flushes; returns the exit code to use instead of `code` when writing failed. */
int out_finish(int code);

/* Progress: one rewriting line on a terminal, a plain line every `every_s` seconds otherwise; quiet: none. */
void progress_line(double every_s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void progress_end(void);

/* Device of --device/--precision/--threads, or an error. *act: dtype of activations. */
struct Device;
Status cli_device(struct Device **device, int *act_dtype);

#endif
