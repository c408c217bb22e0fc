/* The program around the commands: finds the command, parses its line, runs it, flushes. */
#include "tools/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "kernels/device.h"
#include "tools/ranks.h"

CommonOptions common;
char **cli_argv;

const Option common_options[] = {
    {"json", OPTION_BOOL, offsetof(CommonOptions, json), "false", 0, 0, NULL, "json",
     "machine-readable result on standard output"},
    {"quiet", OPTION_BOOL, offsetof(CommonOptions, quiet), "false", 0, 0, NULL, "quiet",
     "errors only"},
    {"verbose", OPTION_BOOL, offsetof(CommonOptions, verbose), "false", 0, 0, NULL, "verbose",
     "also notes for the curious"},
    {"color", OPTION_CHOICE, offsetof(CommonOptions, color), "auto", 0, 0, "auto|always|never",
     "color", "colours on standard error"},
    {"progress", OPTION_BOOL, offsetof(CommonOptions, progress), "true", 0, 0, NULL, "progress",
     "progress on standard error (--no-progress: none)"},
    {"log_format", OPTION_CHOICE, offsetof(CommonOptions, log_format), "text", 0, 0, "text|json",
     "log-format", "of standard error; json: one object a line, with time and level"},
    {"device", OPTION_STRING, offsetof(CommonOptions, device), "cpu", 0, 0, NULL, "device",
     "cpu, cuda, cuda:N or, for several processes, cuda:N,M,..."},
    {"precision", OPTION_CHOICE, offsetof(CommonOptions, precision), "auto", 0, 0,
     "auto|fp32|tf32|bf16", "precision",
     "of activations and products; auto: bf16 on CUDA, fp32 on the CPU"},
    {"threads", OPTION_INT, offsetof(CommonOptions, threads), "0", 0, 4096, NULL, "threads",
     "threads of the CPU backend; 0: all"},
    {0},
};

/* ---- finding the command ---- */

/* Number of words of `name` when argv starts with them, else 0. */
static int words_match(const char *name, size_t length, int argc, char **argv) {
    int words = 0;
    for (size_t at = 0; at < length; words++) {
        size_t n = 0;
        while (at + n < length && name[at + n] != ' ') n++;
        if (words >= argc || strlen(argv[words]) != n || strncmp(argv[words], name + at, n) != 0)
            return 0;
        at += n + 1;
    }
    return words;
}

static int command_match(const Command *c, int argc, char **argv) {
    int best = words_match(c->name, strlen(c->name), argc, argv);
    for (const char *p = c->aliases; p && *p;) {
        size_t n = strcspn(p, "|");
        int words = words_match(p, n, argc, argv);
        if (words > best) best = words;
        p += n + (p[n] == '|');
    }
    return best;
}

const Command *cli_find_command(int argc, char **argv, int *words) {
    const Command *found = NULL;
    *words = 0;
    for (int i = 0; commands[i]; i++) {
        int n = command_match(commands[i], argc, argv);
        if (n > *words) {
            *words = n;
            found = commands[i];
        }
    }
    return found;
}

static int unknown_command(int argc, char **argv) {
    const char *names[64];
    char two[512] = "";
    int n = 0;
    for (int i = 0; commands[i] && n < 64; i++) names[n++] = commands[i]->name;
    if (argc > 1) snprintf(two, sizeof two, "%s %s", argv[0], argv[1]);
    const char *near = nearest_name(argv[0], names, n);
    const char *asked = argv[0];
    if (!near && *two && (near = nearest_name(two, names, n))) asked = two;
    if (near)
        complain("unknown command '%s'; did you mean '%s'?", asked, near);
    else if (argc == 1 && help_knows_family(argv[0]))
        complain("'%s' is the first word of several commands:", argv[0]);
    else
        complain("unknown command '%s'; see 'ttv help'", *two ? two : asked);
    if (!near) help_family(argv[0], false);
    return 2;
}

/* ---- errors ---- */

int cli_fail(Status s) {
    progress_end();
    complain("%s", *status_message() ? status_message() : status_name(s));
    return status_exit_code(s);
}

int cli_usage(const Command *c, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    progress_end();
    complain("%s", text);
    note("usage: %s", c->synopsis);
    note("see 'ttv %s --help'", c->name);
    return 2;
}

Status cli_device(Device **device, int *act_dtype) {
    char spec[CONFIG_TEXT];
    TRY(ranks_device(spec, sizeof spec));
    device_set_threads((int)ranks_threads(common.threads));
    TRY(ranks_device_opened(device_open(spec, device)));
    bool card = (*device)->kind != DEVICE_CPU;
    Precision precision = (Precision)common.precision;
    if (precision == PRECISION_AUTO) precision = card ? PRECISION_BF16 : PRECISION_FP32;
    (*device)->allow_tf32 = precision == PRECISION_TF32;
    *act_dtype = precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    return STATUS_OK;
}

/* ---- running ---- */

static int run_parsed(const Command *c, Config *config, const Arguments *a) {
    if (a->version) {
        help_version(common.json);
        return 0;
    }
    if (a->help || a->help_all) {
        help_command(c, a->help_all);
        return 0;
    }
    if (a->print_config) {
        char *text;
        Status s = config_write(config, true, &text);
        if (s != STATUS_OK) return cli_fail(s);
        out_text(text);
        mem_free(text);
        return 0;
    }
    return c->run(config, a->count, a->positional);
}

static int run_command(const Command *c, int argc, char **argv) {
    Config *config = NULL;
    Arguments arguments = {0};
    int code;
    Status s = cli_config(c, &config, NULL);
    if (s == STATUS_OK) s = cli_parse(c, config, argc, argv, &arguments);
    if (s == STATUS_USAGE)
        code = cli_usage(c, "%s", status_message());
    else if (s != STATUS_OK)
        code = cli_fail(s);
    else
        code = run_parsed(c, config, &arguments);
    progress_end();
    arguments_free(&arguments);
    config_free(config);
    return code;
}

static int run_version(int argc, char **argv) {
    const bool json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !json) {
        complain("unexpected argument '%s'; version takes --json and nothing else", argv[1]);
        return 2;
    }
    help_version(json);
    return 0;
}

static bool is_word(const char *word, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (strcmp(word, words[i]) == 0) return true;
    return false;
}

/* help [command], version, and the flags that stand in place of a command; -1: none of them. */
static int run_builtin(int argc, char **argv) {
    static const char *const versions[] = {"version", "--version", "-V", NULL};
    static const char *const flags[] = {"--help", "-h", "--help-all", NULL};
    if (is_word(argv[0], versions)) return run_version(argc, argv);
    if (argc == 2 && is_word(argv[1], flags) && help_family(argv[0], true)) return 0;
    if (strcmp(argv[0], "help") != 0 && !is_word(argv[0], flags)) return -1;
    if (argc == 1 || is_word(argv[1], flags)) {
        help_program(true);
        return 0;
    }
    int words;
    const Command *c = cli_find_command(argc - 1, argv + 1, &words);
    if (c)
        help_command(c, false);
    else if (argc != 2 || !help_family(argv[1], true))
        return unknown_command(argc - 1, argv + 1);
    return 0;
}

/* A mistake in an earlier argument is told in the format that a later one asks for. */
static bool json_is_asked(int argc, char **argv) {
    const char *asked = getenv("TTV_LOG_FORMAT");
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--log-format=", strlen("--log-format=")) == 0)
            asked = argv[i] + strlen("--log-format=");
        else if (strcmp(argv[i], "--log-format") == 0 && i + 1 < argc)
            asked = argv[i + 1];
    }
    return asked && strcmp(asked, "json") == 0;
}

int cli_main(int argc, char **argv) {
    common.progress = true; /* before the tables have set the defaults */
    output_start(json_is_asked(argc, argv));
    cli_argv = argv;
    if (argc < 2) {
        help_program(false);
        return 2;
    }
    int code = run_builtin(argc - 1, argv + 1);
    if (code < 0) {
        int words;
        const Command *c = cli_find_command(argc - 1, argv + 1, &words);
        code = c ? run_command(c, argc - 1 - words, argv + 1 + words)
                 : unknown_command(argc - 1, argv + 1);
    }
    return out_finish(code);
}
