/* ttv man: the manual page, from the tables that parse. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli.h"
#include "version.h"

/* ---- roff ---- */

/* Backslashes and dashes as they are meant; a line may not begin with a dot or a quote. */
static void put_text(const char *text) {
    bool begins = true;
    for (const char *p = text; *p; p++) {
        if (begins && (*p == '.' || *p == '\'')) out_text("\\&");
        if (*p == '\\')
            out_text("\\e");
        else if (*p == '-')
            out_text("\\-");
        else
            out_bytes(p, 1);
        begins = *p == '\n';
    }
}

static void put_heading(const char *macro, const char *text) {
    out_printf("%s \"", macro);
    put_text(text);
    out_text("\"\n");
}

/* Lines that are shown as they are. */
static void put_lines(const char *text) {
    out_text(".nf\n");
    put_text(text);
    if (text[0] && text[strlen(text) - 1] != '\n') out_text("\n");
    out_text(".fi\n");
}

static const char *type_word(const Option *o) {
    switch (o->type) {
    case OPTION_INT:
        return "N";
    case OPTION_FLOAT:
        return "X";
    case OPTION_STRING:
        return "TEXT";
    case OPTION_CHOICE:
        return o->choices;
    case OPTION_BOOL:
        break;
    }
    return "";
}

/* Behind the help of an option: its limits, its default. */
static void put_bounds(const Option *o) {
    if (o->min != 0 || o->max != 0) {
        char limits[80];
        snprintf(limits, sizeof limits, " (%g to %g)", o->min, o->max);
        put_text(limits);
    }
    if (o->initial && *o->initial) {
        out_text(" [");
        put_text(o->initial);
        out_text("]");
    }
}

static void put_option(const Command *c, const Option *o) {
    const char letter = cli_letter_of(c, o->flag);
    out_text(".TP\n");
    if (letter) out_printf("\\fB\\-%c\\fR, ", letter);
    out_text(o->type == OPTION_BOOL ? "\\fB\\-\\-[no\\-]" : "\\fB\\-\\-");
    put_text(o->flag);
    out_text("\\fR");
    if (o->type != OPTION_BOOL) {
        out_text(" \\fI");
        put_text(type_word(o));
        out_text("\\fR");
    }
    out_text("\n");
    put_text(o->help);
    put_bounds(o);
    out_text("\n");
}

/* ---- sections ---- */

typedef struct Walk {
    const Command *command;
    int left; /* sections to print */
    const char *section;
} Walk;

static void visit(void *user, const Section *s, const Option *o) {
    Walk *w = user;
    if (!w->section || strcmp(w->section, s->name) != 0) {
        w->left -= w->section != NULL;
        w->section = s->name;
    }
    if (w->left > 0 && o->flag) put_option(w->command, o);
}

/* All but the last section with flags, which is [common]. */
static Status put_options(const Command *c) {
    Config *config;
    Walk w = {.command = c};
    TRY(cli_config(c, &config, &w.left));
    w.left--;
    if (w.left > 0) config_each(config, visit, &w);
    config_free(config);
    return STATUS_OK;
}

static void put_aliases(const Command *c) {
    if (!c->aliases) return;
    out_text(".PP\nAlso called: ");
    for (const char *p = c->aliases; *p; p++) out_text(*p == '|' ? ", " : (char[]){*p, 0});
    out_text("\n");
}

static Status put_command(const Command *c) {
    put_heading(".SS", c->name);
    put_text(c->summary);
    out_text("\n.PP\n");
    put_lines(c->synopsis);
    out_text(".PP\n");
    put_lines(c->examples);
    put_aliases(c);
    return put_options(c);
}

static void put_common(void) {
    out_text(".SH COMMON OPTIONS\n");
    for (const Option *o = common_options; o->key; o++)
        if (o->flag) put_option(commands[0], o);
    static const char *const builtin[][2] = {
        {"\\fB\\-c\\fR, \\fB\\-\\-config\\fR \\fIFILE\\fR",
         "read an INI file first (may be repeated)"},
        {"\\fB\\-\\-set\\fR \\fISECTION.KEY=VALUE\\fR", "any key of a configuration file"},
        {"\\fB\\-\\-print\\-config\\fR", "print all values with their origin, then stop"},
        {"\\fB\\-h\\fR, \\fB\\-\\-help\\fR, \\fB\\-\\-help\\-all\\fR",
         "help of a command; every key"},
        {"\\fB\\-V\\fR, \\fB\\-\\-version\\fR", "version, backends, libraries"},
    };
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++)
        out_printf(".TP\n%s\n%s\n", builtin[i][0], builtin[i][1]);
    out_text(".PP\nThe later of a flag and \\fB\\-\\-set\\fR wins, over the variable TTV_FLAG "
             "(TTV_BATCH_SIZE "
             "stands for \\fB\\-\\-batch\\-size\\fR), that over a file.\n");
}

static void put_exit_codes(void) {
    static const char *const codes[][2] = {
        {"0", "done"},
        {"1", "a negative result: faults were found, a score is below its floor"},
        {"2", "usage: flag, value, or combination"},
        {"3", "bad input"},
        {"4", "the system refused: missing file, full disk, missing program"},
        {"5", "device or memory"},
        {"6", "numeric: training does not go on; scores or colours are not finite"},
        {"75", "stopped and saved, or another rank was lost: try again"},
        {"130, 143", "SIGINT, SIGTERM after saving"},
        {"141", "the reader of standard output went away"},
    };
    out_text(".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        out_printf(".TP\n%s\n%s\n", codes[i][0], codes[i][1]);
}

static Status put_page(void) {
    out_text(".TH TTV 1 \"\" \"ttv " TTV_VERSION "\" \"User Commands\"\n.nh\n.ad l\n"
             ".SH NAME\nttv \\- trains and runs vision models with test\\-time\\-training mixers\n"
             ".SH SYNOPSIS\n\\fBttv\\fR \\fICOMMAND\\fR [flags] [arguments]\n.PP\n"
             "\\fBttv help\\fR [\\fICOMMAND\\fR]\n.SH COMMANDS\n");
    for (int i = 0; commands[i]; i++) TRY(put_command(commands[i]));
    put_common();
    put_exit_codes();
    return STATUS_OK;
}

/* The page of one command: ttv-data-check(1). */
static Status put_page_of(const Command *c) {
    char title[64] = "ttv-";
    size_t n = strlen(title);
    for (const char *p = c->name; *p && n + 1 < sizeof title; p++)
        title[n++] = *p == ' ' ? '-' : *p;
    title[n] = '\0';
    out_text(".TH \"");
    for (const char *p = title; *p; p++) out_text((char[]){(char)toupper((unsigned char)*p), 0});
    out_text("\" 1 \"\" \"ttv " TTV_VERSION "\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n");
    put_text(title);
    out_text(" \\- ");
    put_text(c->summary);
    out_text("\n.SH SYNOPSIS\n");
    put_lines(c->synopsis);
    put_aliases(c);
    out_text(".SH EXAMPLES\n");
    put_lines(c->examples);
    out_text(".SH OPTIONS\n");
    TRY(put_options(c));
    put_common();
    put_exit_codes();
    out_text(".SH SEE ALSO\n\\fBttv\\fR(1)\n");
    return STATUS_OK;
}

/* ---- ttv-config(5) ---- */

enum { MOST_SECTIONS = 64 };

typedef struct Keys {
    const char *seen[MOST_SECTIONS]; /* sections of earlier commands */
    int count;
    const char *section; /* being printed; NULL: none */
    const Command *command;
} Keys;

static bool is_new(Keys *k, const char *name) {
    for (int i = 0; i < k->count; i++)
        if (strcmp(k->seen[i], name) == 0) return k->section && strcmp(k->section, name) == 0;
    if (k->count == MOST_SECTIONS) return false;
    k->seen[k->count++] = k->section = name;
    char heading[80];
    snprintf(heading, sizeof heading, "[%s]", name);
    put_heading(".SS", heading);
    out_text("In \\fBttv ");
    put_text(k->command->name);
    out_text(" \\-\\-help\\-all\\fR, too.\n");
    return true;
}

static void visit_key(void *user, const Section *s, const Option *o) {
    if (!is_new(user, s->name)) return;
    out_text(".TP\n\\fB");
    put_text(o->key);
    out_text("\\fR = \\fI");
    put_text(o->type == OPTION_BOOL ? "true|false" : type_word(o));
    out_text("\\fR\n");
    put_text(o->help);
    put_bounds(o);
    if (o->flag) {
        out_text(" \\fB\\-\\-");
        put_text(o->flag);
        out_text("\\fR");
    }
    out_text("\n");
}

/* Every section of every command once: a file for one command is understood by those that share
 * them. */
static Status put_config_page(void) {
    Keys k = {.count = 0};
    out_text(
        ".TH TTV-CONFIG 5 \"\" \"ttv " TTV_VERSION "\" \"File Formats\"\n.nh\n.ad l\n"
        ".SH NAME\nttv\\-config \\- configuration files of ttv\n.SH DESCRIPTION\n"
        "Lines KEY = VALUE below headings [SECTION]; a semicolon behind a blank begins a "
        "comment. \\fB\\-c\\fR \\fIFILE\\fR reads one, and may be repeated: the later file "
        "wins. A key may also be set by \\fB\\-\\-set\\fR \\fISECTION.KEY=VALUE\\fR, most of them "
        "by a flag (below, behind their text) and by the variable of its name "
        "(TTV_BATCH_SIZE).\n.PP\n"
        "Who wins: a flag or \\fB\\-\\-set\\fR (the later one), then the environment, then "
        "files, then the default, which stands in brackets. Unknown, doubled or ill\\-typed "
        "keys are errors with file, line and the nearest name. "
        "\\fB\\-\\-print\\-config\\fR prints all values with their origin as such a file; the "
        "config.ini of a run folder is one, too.\n.SH SECTIONS\n");
    for (int i = 0; commands[i]; i++) {
        Config *config;
        k.section = NULL;
        k.command = commands[i];
        TRY(cli_config(commands[i], &config, NULL));
        config_each(config, visit_key, &k);
        config_free(config);
    }
    out_text(".SH SEE ALSO\n\\fBttv\\fR(1), \\fBttv\\-data\\fR(5), \\fBttv\\-scenes\\fR(5), "
             "\\fBttv\\-checkpoint\\fR(5)\n");
    return STATUS_OK;
}

/* ---- the command ---- */

static int no_command(int argc, char **argv) {
    char name[256] = "";
    if (argc == 1 && help_knows_family(argv[0])) {
        complain("'%s' is the first word of several commands:", argv[0]);
        help_family(argv[0], false);
        return 2;
    }
    for (int i = 0; i < argc; i++) {
        const size_t n = strlen(name);
        snprintf(name + n, sizeof name - n, "%s%s", n ? " " : "", argv[i]);
    }
    return cli_usage(&command_man, "there is no command '%s'", name);
}

static const Section *no_sections(int *count) {
    *count = 0;
    return NULL;
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    int words;
    if (argc == 1 && strcmp(argv[0], "config") == 0) {
        Status s = put_config_page();
        return s == STATUS_OK ? 0 : cli_fail(s);
    }
    const Command *one = cli_find_command(argc, argv, &words);
    if (words != argc) return no_command(argc, argv);
    Status s = one ? put_page_of(one) : put_page();
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_man = {
    .name = "man",
    .summary = "the manual page of this program, or of a command, in roff",
    .synopsis = "ttv man [COMMAND|config]",
    .examples = "  ttv man | man -l -\n"
                "  ttv man nvs render | man -l -\n"
                "  ttv man config | man -l -     ttv-config(5): every section and key of a file\n",
    .sections = no_sections,
    .run = run,
};
