/* Help and version, written from the same tables that parse. */
#include "tools/cli.h"

#include <stdio.h> /* before jpeglib.h, which needs FILE */
#include <string.h>

#include <jpeglib.h>
#include <png.h>

#if __has_include(<cjson/cJSON.h>)
#include <cjson/cJSON.h>
#endif
#if __has_include(<oneapi/dnnl/dnnl_version.h>)
#include <oneapi/dnnl/dnnl_version.h>
#endif

#include "version.h"

enum { COMMAND_COLUMN = 18, HELP_COLUMN = 34, HELP_WIDTH = 100 };

/* stream NULL: checked standard output. */
static void put_line(FILE *stream, const char *text) {
    if (stream)
        fputs(text, stream);
    else
        out_text(text);
}

/* Commands whose first word is `family`; NULL: all of them. */
static void put_commands(FILE *stream, const char *family) {
    char line[256];
    const size_t n = family ? strlen(family) : 0;
    for (int i = 0; commands[i]; i++) {
        if (family && (strncmp(commands[i]->name, family, n) != 0 || commands[i]->name[n] != ' '))
            continue;
        snprintf(line, sizeof line, "  %-*s %s\n", COMMAND_COLUMN, commands[i]->name,
                 commands[i]->summary);
        if (stream && output_is_json())
            note("ttv %s: %s", commands[i]->name, commands[i]->summary);
        else
            put_line(stream, line);
    }
}

void help_program(bool asked) {
    FILE *stream = asked ? NULL : stderr;
    char line[256];
    if (stream && output_is_json()) {
        complain("no command was given; see 'ttv help'");
        return;
    }
    put_line(stream,
             "ttv trains and runs vision models with test-time-training mixers.\n"
             "\n"
             "  ttv train -c configs/digits.ini          train on a folder of class folders\n"
             "  ttv eval --checkpoint runs/digits        top-1 and top-5 on the held-back images\n"
             "  ttv classify --checkpoint runs/digits a.png b.png\n"
             "\n"
             "commands:\n");
    put_commands(stream, NULL);
    snprintf(line, sizeof line, "  %-*s %s\n  %-*s %s\n", COMMAND_COLUMN, "help COMMAND",
             "flags and examples of a command", COMMAND_COLUMN, "version",
             "version, backends, libraries");
    put_line(stream, line);
}

bool help_knows_family(const char *word) {
    const size_t n = strlen(word);
    for (int i = 0; commands[i]; i++)
        if (strncmp(commands[i]->name, word, n) == 0 && commands[i]->name[n] == ' ') return true;
    return false;
}

bool help_family(const char *word, bool asked) {
    const bool known = help_knows_family(word);
    if (known) put_commands(asked ? NULL : stderr, word);
    return known;
}

static const char *type_word(const Option *o) {
    switch (o->type) {
    case OPTION_BOOL:
        return "";
    case OPTION_INT:
        return " N";
    case OPTION_FLOAT:
        return " X";
    case OPTION_STRING:
        return " TEXT";
    case OPTION_CHOICE:
        return "";
    }
    return "";
}

/* "  -b, --batch-size N" or, without a flag, "      --set loader.prefetch=N". */
static void option_left(const Command *c, const Section *s, const Option *o, char *out,
                        size_t size) {
    char value[160];
    if (o->type == OPTION_CHOICE)
        snprintf(value, sizeof value, " %s", o->choices);
    else
        snprintf(value, sizeof value, "%s", type_word(o));
    if (!o->flag) {
        snprintf(out, size, "      --set %s.%s=%s", s->name, o->key,
                 value[0] ? value + 1 : "true|false");
        return;
    }
    char letter = cli_letter_of(c, o->flag), alias[8] = "    ";
    if (letter) snprintf(alias, sizeof alias, "-%c, ", letter);
    snprintf(out, size, "  %s--%s%s%s", alias, o->type == OPTION_BOOL ? "[no-]" : "", o->flag,
             value);
}

/* Words of `text` in lines of HELP_WIDTH, the first starting at HELP_COLUMN. */
static void wrapped(const char *text) {
    int column = HELP_COLUMN;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + n > HELP_WIDTH) {
            out_printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            out_text(" ");
            column++;
        }
        out_bytes(text, (size_t)n);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    out_text("\n");
}

static void option_line(const Command *c, const Section *s, const Option *o, bool all) {
    char left[256], text[2048];
    if (!o->flag && !all) return;
    option_left(c, s, o, left, sizeof left);
    if ((int)strlen(left) < HELP_COLUMN - 1)
        out_printf("%-*s", HELP_COLUMN, left);
    else
        out_printf("%s\n%*s", left, HELP_COLUMN, "");
    int n = snprintf(text, sizeof text, "%s", o->help);
    if (all && (o->min != 0 || o->max != 0) && n < 1500)
        n += snprintf(text + n, sizeof text - (size_t)n, " (%g to %g)", o->min, o->max);
    if (all && o->flag && n < 1500)
        n += snprintf(text + n, sizeof text - (size_t)n, " (%s.%s)", s->name, o->key);
    if (o->initial && *o->initial && n < 1800)
        snprintf(text + n, sizeof text - (size_t)n, " [%s]", o->initial);
    wrapped(text);
}

typedef struct HelpWalk {
    const Command *command;
    bool all;
    int left; /* sections that still offer flags */
    const char *section;
} HelpWalk;

static void help_visit(void *user, const Section *s, const Option *o) {
    HelpWalk *w = user;
    if (!w->section || strcmp(w->section, s->name) != 0) {
        if (w->section) w->left--;
        w->section = s->name;
        if (w->left > 0) out_printf("\n[%s]\n", s->name);
    }
    if (w->left > 0) option_line(w->command, s, o, w->all);
}

void help_command(const Command *c, bool all) {
    Config *config;
    int shown;
    Status s = cli_config(c, &config, &shown);
    if (s != STATUS_OK) {
        cli_fail(s);
        return;
    }
    out_printf("%s\n\nexamples:\n%s\nusage: %s\n", c->summary, c->examples, c->synopsis);
    HelpWalk w = {c, all, shown, NULL};
    config_each(config, help_visit, &w);
    out_printf("\n%-*s%s\n", HELP_COLUMN, "  -c, --config FILE",
               "read an INI file first (may be repeated)");
    out_printf("%-*s%s\n", HELP_COLUMN, "      --set SECTION.KEY=VALUE",
               "any key of a configuration file");
    out_printf("%-*s%s\n", HELP_COLUMN, "      --print-config",
               "print all values with their origin, then stop");
    out_printf("%-*s%s\n", HELP_COLUMN, "  -h, --help", "this text");
    out_printf("%-*s%s\n", HELP_COLUMN, "      --help-all", "every key, with limits");
    out_printf("%-*s%s\n", HELP_COLUMN, "  -V, --version", "version, backends, libraries");
    out_text(
        "\nThe later of a flag and --set wins, over the variable TTV_<FLAG>, that over a file.\n"
        "Exit codes: 0 ok, 1 negative result, 2 usage, 3 bad input, 4 I/O or disk full, 5 "
        "device or "
        "memory,\n6 numeric, 75 stopped and saved, 130/143 SIGINT/SIGTERM after saving.\n");
    config_free(config);
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

#ifdef LIBJPEG_TURBO_VERSION
static const char jpeg_name[] = "libjpeg-turbo", jpeg_version[] = TEXT(LIBJPEG_TURBO_VERSION);
#else
static const char jpeg_name[] = "libjpeg", jpeg_version[] = TEXT(JPEG_LIB_VERSION);
#endif

typedef struct Library {
    const char *name;
    char version[32];
} Library;

/* With a NULL name behind the last. */
static void list_libraries(Library out[5]) {
    int n = 0;
    out[n++] = (Library){"libpng", PNG_LIBPNG_VER_STRING};
    out[n].name = jpeg_name;
    snprintf(out[n++].version, sizeof out->version, "%s", jpeg_version);
#ifdef CJSON_VERSION_MAJOR
    out[n].name = "cJSON";
    snprintf(out[n++].version, sizeof out->version, "%d.%d.%d", CJSON_VERSION_MAJOR,
             CJSON_VERSION_MINOR, CJSON_VERSION_PATCH);
#endif
#ifdef DNNL_VERSION_MAJOR
    if (strcmp(TTV_GEMM_BACKEND, "onednn") == 0) {
        out[n].name = "oneDNN";
        snprintf(out[n++].version, sizeof out->version, "%d.%d.%d", DNNL_VERSION_MAJOR,
                 DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
    }
#endif
    out[n].name = NULL;
}

static void version_json(const Library *libraries) {
    out_printf("{\"version\":\"%s\",\"git\":\"%s\",\"gemm\":\"%s\",\"cpu\":\"%s\",\"cuda\":",
               TTV_VERSION, TTV_GIT_ID, TTV_GEMM_BACKEND, TTV_CPU_ARCH);
    if (TTV_BUILT_WITH_CUDA)
        out_printf("\"%s\"", TTV_CUDA_ARCHITECTURES);
    else
        out_text("null");
    out_text(",\"libraries\":{");
    for (int i = 0; libraries[i].name; i++)
        out_printf("%s\"%s\":\"%s\"", i ? "," : "", libraries[i].name, libraries[i].version);
    out_text("}}\n");
}

void help_version(bool json) {
    Library libraries[5] = {0};
    list_libraries(libraries);
    if (json) {
        version_json(libraries);
        return;
    }
    out_printf("ttv %s (git %s)\n", TTV_VERSION, TTV_GIT_ID);
    out_printf("cpu: matrix products by %s, built for %s\n", TTV_GEMM_BACKEND, TTV_CPU_ARCH);
    if (TTV_BUILT_WITH_CUDA)
        out_printf("cuda: yes, architectures %s\n", TTV_CUDA_ARCHITECTURES);
    else
        out_text("cuda: no\n");
    out_text("libraries:");
    for (int i = 0; libraries[i].name; i++)
        out_printf("%s %s %s", i ? "," : "", libraries[i].name, libraries[i].version);
    out_text("\n");
}
