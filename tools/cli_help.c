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

enum { HELP_COLUMN = 34, HELP_WIDTH = 100 };

void help_program(bool asked) {
    FILE *stream = asked ? NULL : stderr; /* NULL: checked standard output */
    char line[256];
    const char *head =
        "ttv trains and runs vision models with test-time-training mixers.\n"
        "\n"
        "  ttv train -c configs/digits.ini          train on a folder of class folders\n"
        "  ttv eval --checkpoint runs/digits        top-1 and top-5 on the held-back images\n"
        "  ttv classify --checkpoint runs/digits a.png b.png\n"
        "\n"
        "commands:\n";
    if (stream)
        fputs(head, stream);
    else
        out_text(head);
    for (int i = 0; commands[i]; i++) {
        snprintf(line, sizeof line, "  %-14s %s\n", commands[i]->name, commands[i]->summary);
        if (stream)
            fputs(line, stream);
        else
            out_text(line);
    }
    const char *tail = "  help COMMAND   flags and examples of a command\n"
                       "  version        version, backends, libraries\n";
    if (stream)
        fputs(tail, stream);
    else
        out_text(tail);
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
    out_text("\nA flag wins over --set, that over the variable TTV_<FLAG>, that over a file.\n"
             "Exit codes: 0 ok, 1 negative result, 2 usage, 3 bad input, 4 I/O or disk full, 5 "
             "device or "
             "memory,\n6 numeric, 75 stopped and saved, 130/143 SIGINT/SIGTERM after saving.\n");
    config_free(config);
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

void help_version(void) {
    out_printf("ttv %s (git %s)\n", TTV_VERSION, TTV_GIT_ID);
    out_printf("cpu: matrix products by %s, built for %s\n", TTV_GEMM_BACKEND, TTV_CPU_ARCH);
    if (TTV_BUILT_WITH_CUDA)
        out_printf("cuda: yes, architectures %s\n", TTV_CUDA_ARCHITECTURES);
    else
        out_text("cuda: no\n");
    out_text("libraries: libpng " PNG_LIBPNG_VER_STRING);
#ifdef LIBJPEG_TURBO_VERSION
    out_text(", libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION));
#else
    out_text(", libjpeg " TEXT(JPEG_LIB_VERSION));
#endif
#ifdef CJSON_VERSION_MAJOR
    out_printf(", cJSON %d.%d.%d", CJSON_VERSION_MAJOR, CJSON_VERSION_MINOR, CJSON_VERSION_PATCH);
#endif
#ifdef DNNL_VERSION_MAJOR
    if (strcmp(TTV_GEMM_BACKEND, "onednn") == 0)
        out_printf(", oneDNN %d.%d.%d", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
#endif
    out_text("\n");
}
