/* What every command of `ttv` shares: one table per command, parsed with the option tables of
 * core/config.h, so that --help, the parser, completion and the tests cannot drift apart.
 *
 * tools/ is the only room with stdout, stderr, exit codes and signals. Data goes to stdout,
 * messages to stderr. Exit codes: 0 ok, 1 negative result, 2 usage, 3 bad input, 4 I/O, 5 device or
 * memory, 6 numeric, 75 stopped and saved, 130/143 after SIGINT/SIGTERM, 141 broken pipe.
 */
#ifndef TTV_TOOLS_CLI_H
#define TTV_TOOLS_CLI_H

#include "core/config.h"
#include "core/json.h"
#include "core/status.h"

/* Results of a command that are no Status: 1 is "negative result" (data check found faults). */
enum { EXIT_NEGATIVE = 1 };

typedef struct Command {
    const char *name;     /* "train", "data check" */
    const char *aliases;  /* "cls train|vittt train", may be NULL */
    const char *summary;  /* one line for `ttv help` */
    const char *synopsis; /* "ttv classify [flags] PATH..." */
    const char *examples; /* leads --help; lines that end in newline */
    const char *letters;  /* one-letter flags: "b=batch-size j=workers o=output"; may be NULL */
    /* The command's sections with their value structs (static storage); *count of them. Sections
     * are parsed from -c/--config FILE, --set section.key=value and flags. The section [common]
     * (below) is added by the framework. */
    const Section *(*sections)(int *count);
    /* Sections that a configuration file may hold but that offer no flags here (a training file
     * given to eval): their keys are checked all the same. May be NULL. See sections.h. */
    const Section *(*hidden)(int *count);
    /* Positionals are what remains. Returns the exit code. Report errors with cli_fail(). */
    int (*run)(Config *config, int argc, char **argv);
} Command;

/* The commands, in help order; NULL-terminated. */
extern const Command *const commands[];
extern const Command command_train, command_eval, command_classify, command_inspect, command_export,
    command_ckpt_average, command_ckpt_diff, command_ckpt_prune, command_data_check,
    command_data_stat, command_data_pack, command_data_index, command_data_synth, command_nvs_train,
    command_nvs_eval, command_nvs_render, command_psnr, command_bench, command_ttt_verify,
    command_ttt_probe, command_plot, command_doctor, command_models, command_completion,
    command_man;

/* auto: bf16 on CUDA, fp32 on the CPU. */
typedef enum Precision { PRECISION_AUTO, PRECISION_FP32, PRECISION_TF32, PRECISION_BF16 } Precision;

/* --log-format: of stderr. */
typedef enum LogFormat { LOG_FORMAT_TEXT, LOG_FORMAT_JSON } LogFormat;

/* Section [common] of every command; values in `common`. */
typedef struct CommonOptions {
    bool json;                /* --json: machine-readable result on stdout */
    bool quiet;               /* -q: errors only */
    bool verbose;             /* -v: debug notes too */
    int color;                /* auto, always, never */
    bool progress;            /* --no-progress */
    int log_format;           /* LogFormat */
    char device[CONFIG_TEXT]; /* --device cpu | cuda | cuda:N | cuda:N,M,... (tools/ranks.h) */
    int precision;            /* --precision fp32 | tf32 | bf16 */
    int64_t threads;          /* --threads: OpenMP threads of the CPU backend; 0: all */
} CommonOptions;
extern CommonOptions common;
extern const Option common_options[];

/* ---- cli.c ---- */

/* The program's arguments, to start it once more. */
extern char **cli_argv;

/* Whole program: finds the command, parses, runs, flushes; the exit code. */
int cli_main(int argc, char **argv);

/* The command whose name, or other name, most of the first words are (*words of them), or NULL. */
const Command *cli_find_command(int argc, char **argv, int *words);
/* Prints "ttv: error: <message>" to stderr and returns the status' exit code. */
int cli_fail(Status s);
/* Prints a usage message and the hint "see 'ttv <command> --help'"; returns 2. */
int cli_usage(const Command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The device of --device/--threads/--precision, or an error. *act: DType of activations. */
struct Device;
Status cli_device(struct Device **device, int *act_dtype);

/* ---- cli_parse.c ---- */

/* What the command line of one command asked for besides its options. */
typedef struct Arguments {
    bool help, help_all, version, print_config;
    char **positional; /* borrowed strings */
    int count;
} Arguments;

/* The command's sections, [common] and hidden sections as one Config; the first *shown sections (of
 * those that config_each walks) offer flags. */
Status cli_config(const Command *c, Config **config, int *shown);
/* Fills `config` from -c files, then TTV_* variables, then --set and flags in their order. */
Status cli_parse(const Command *c, Config *config, int argc, char **argv, Arguments *out);
void arguments_free(Arguments *a);
/* The option that a visible flag of the command names, or NULL; *section is set. */
const Option *cli_find_flag(const Command *c, const char *flag, Section *section);
/* The one-letter alias of a flag, 0 when there is none. */
char cli_letter_of(const Command *c, const char *flag);

/* ---- cli_help.c ---- */

/* The short help of the program: stdout when asked for, stderr after a mistake. */
void help_program(bool asked);
/* Help of a command on stdout. all: also keys without a flag, with limits and section.key names. */
void help_command(const Command *c, bool all);
/* The commands of a first word such as "nvs", stdout or stderr as above; false: there are none. */
bool help_family(const char *word, bool asked);
bool help_knows_family(const char *word);
/* Version, backends, libraries: lines, or one JSON object. */
void help_version(bool json);

/* ---- cli_output.c ---- */

/* stdout with checked writes: a full disk or /dev/full ends with exit code 4, a broken pipe
 * silently with 141. */
void out_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
void out_text(const char *text);
void out_bytes(const void *data, size_t size);
/* Ends a JSON result: a line with the writer's text, unless the command failed (`s`) or the writer
 * did; frees the writer. Returns the first failure. */
Status out_json(JsonWriter *w, Status s);
void out_path(const char *path); /* escaped with text_printable on a terminal, raw otherwise */
/* A write failed already: a long loop may end early. */
bool out_failed(void);
/* Flushes; returns the exit code to use instead of `code` when writing failed. */
int out_finish(int code);

/* Refuses a folder to write into that holds something (hidden names aside); `advice` ends the
 * message. One that is not there is made by the caller. */
Status out_folder_check(const char *path, const char *advice);

/* A plain line on stderr (newline added), unless --quiet. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An error line on stderr in any case. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* --log-format json: stderr is one object a line, {"time", "level", "message"}; level error,
 * warning, info, progress, or record: then "record" in place of the message, a line of
 * metrics.jsonl. Other ranks than 0 add "rank". */
bool output_is_json(void);
void output_record(const char *record); /* nothing where stderr is text */
void output_progress(const char *text); /* a plain line, or an object */

/* From now on notes, warnings and errors also go to this file (log.txt); NULL: no more. */
struct _IO_FILE;
void output_tee(struct _IO_FILE *file);
/* Installs the log sink, ignores SIGPIPE and SIGXFSZ. json: the arguments ask for --log-format
 * json. Called by cli_main. */
void output_start(bool json);

/* This process is rank `rank` of several: above 0 it has nothing to say on stdout and no notes, and
 * its errors and warnings name it. */
void output_rank(int rank);
/* Errors, too, are another rank's to tell: all know of this one. */
void output_hush(void);
bool output_is_mine(void); /* rank 0, or the only process */

/* ---- cli_progress.c ---- */

/* Progress on stderr: one rewriting line on a terminal, a plain line every `every_s` seconds
 * otherwise (0: each call); nothing with --quiet or --no-progress. */
void progress_line(double every_s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What is left, as [hours:]minutes:seconds; "-" where it is not known. */
void progress_eta(double seconds, char *out, size_t size);
/* Wipes the line before other output (cli_output does it itself). */
void progress_clear(void);
void progress_end(void);

/* ---- cli_signals.c ---- */

/* SIGINT, SIGTERM and SIGUSR1 call `request` (async-signal-safe); a second SIGINT ends the process
 * at once. */
void signals_catch(void (*request)(void));
/* Two of one kind within so many seconds are one that came twice. */
#define SIGNAL_SAME_S 0.1
/* Exit code after a stop: 130, 143, 75 for SIGUSR1; 0 when no signal came. */
int signals_exit_code(void);

#endif
