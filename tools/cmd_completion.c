/* ttv completion: a script for the shell, from the tables that parse. */
#include <stdio.h>
#include <string.h>

#include "tools/cli.h"

/* ---- what is offered ---- */

typedef struct Walk {
    const Command *command;
    int left; /* sections that still offer flags */
    const char *section;
    void (*flag)(const Command *c, const Option *o);
} Walk;

static void visit(void *user, const Section *s, const Option *o) {
    Walk *w = user;
    if (!w->section || strcmp(w->section, s->name) != 0) {
        w->left -= w->section != NULL;
        w->section = s->name;
    }
    if (w->left > 0 && o->flag) w->flag(w->command, o);
}

static Status each_flag(const Command *c, void (*flag)(const Command *c, const Option *o)) {
    Config *config;
    Walk w = {.command = c, .flag = flag};
    TRY(cli_config(c, &config, &w.left));
    config_each(config, visit, &w);
    config_free(config);
    return STATUS_OK;
}

/* "nvs render" and its aliases as patterns of a case, with `behind` at the end of each. */
static void put_patterns(const Command *c, const char *behind) {
    out_printf("'%s%s'", c->name, behind);
    for (const char *p = c->aliases; p && *p;) {
        const size_t n = strcspn(p, "|");
        out_printf("|'%.*s%s'", (int)n, p, behind);
        p += n + (p[n] == '|');
    }
}

static void put_flag(const Command *c, const Option *o) {
    (void)c;
    out_printf(" --%s", o->flag);
    if (o->type == OPTION_BOOL) out_printf(" --no-%s", o->flag);
}

/* Values of a choice, with blanks for its bars. */
static void put_choices(const Command *c, const Option *o) {
    if (o->type != OPTION_CHOICE) return;
    char flag[160];
    snprintf(flag, sizeof flag, " --%s", o->flag);
    out_text("    ");
    put_patterns(c, flag);
    out_text(") values='");
    for (const char *p = o->choices; *p; p++) out_printf("%c", *p == '|' ? ' ' : *p);
    out_text("' ;;\n");
}

/* ---- bash ---- */

static bool has_space(const char *text) {
    return strchr(text, ' ') != NULL;
}

/* First words: each once, in the order of help. */
static void put_words(void) {
    for (int i = 0; commands[i]; i++) {
        const size_t n = strcspn(commands[i]->name, " ");
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = strcspn(commands[k]->name, " ") == n &&
                   strncmp(commands[k]->name, commands[i]->name, n) == 0;
        if (!seen) out_printf(" %.*s", (int)n, commands[i]->name);
    }
}

/* Second words of commands that have two. */
static void put_seconds(void) {
    for (int i = 0; commands[i]; i++) {
        const size_t n = strcspn(commands[i]->name, " ");
        bool seen = !has_space(commands[i]->name);
        for (int k = 0; k < i && !seen; k++)
            seen = has_space(commands[k]->name) &&
                   strncmp(commands[k]->name, commands[i]->name, n + 1) == 0;
        if (seen) continue;
        out_printf("    '%.*s') seconds='", (int)n, commands[i]->name);
        for (int k = i; commands[k]; k++)
            if (strncmp(commands[k]->name, commands[i]->name, n + 1) == 0)
                out_printf("%s%s", k == i ? "" : " ", commands[k]->name + n + 1);
        out_text("' ;;\n");
    }
}

static const char bash_head[] =
    "# bash completion of ttv, written by `ttv completion bash`: source it, or put it into\n"
    "# ~/.local/share/bash-completion/completions/ttv.\n"
    "_ttv() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=1\n"
    "    local command seconds= flags= values=\n"
    "    COMPREPLY=()\n"
    "    [ \"$cur\" != = ] || cur=\n"
    "    [ \"$prev\" != = ] || prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    [ \"${COMP_WORDS[1]}\" != help ] || at=2\n"
    "    if [ \"$COMP_CWORD\" -le \"$at\" ]; then\n"
    "        COMPREPLY=($(compgen -W '";

static const char bash_flags[] = "    esac\n"
                                 "    if [ -n \"$values\" ]; then\n"
                                 "        COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
                                 "        return\n"
                                 "    fi\n"
                                 "    [ \"${cur#-}\" != \"$cur\" ] || return 0\n"
                                 "    case $command in\n";

static const char bash_tail[] =
    "    esac\n"
    "    [ -z \"$flags\" ] || flags=\"$flags --help --help-all --version --print-config --config "
    "--set\"\n"
    "    COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
    "}\n"
    "complete -o default -o bashdefault -F _ttv ttv\n";

static Status put_bash(void) {
    out_text(bash_head);
    put_words();
    out_text(" help version' -- \"$cur\"))\n        return\n    fi\n"
             "    command=${COMP_WORDS[at]}\n"
             "    case $command in\n");
    put_seconds();
    out_text("    completion) seconds=bash ;;\n"
             "    esac\n"
             "    if [ -n \"$seconds\" ] && [ \"$COMP_CWORD\" -eq $((at + 1)) ]; then\n"
             "        COMPREPLY=($(compgen -W \"$seconds\" -- \"$cur\"))\n"
             "        [ \"${#COMPREPLY[@]}\" -eq 0 ] || return 0\n"
             "    fi\n"
             "    case \"${COMP_WORDS[at]} ${COMP_WORDS[at+1]}\" in\n    ");
    for (int i = 0, n = 0; commands[i]; i++) {
        if (!has_space(commands[i]->name) &&
            !(commands[i]->aliases && has_space(commands[i]->aliases)))
            continue;
        if (n++ > 0) out_text("|");
        put_patterns(commands[i], "");
    }
    out_text(") command=\"${COMP_WORDS[at]} ${COMP_WORDS[at+1]}\" ;;\n    esac\n"
             "    case \"$command $prev\" in\n");
    for (int i = 0; commands[i]; i++) TRY(each_flag(commands[i], put_choices));
    out_text(bash_flags);
    for (int i = 0; commands[i]; i++) {
        out_text("    ");
        put_patterns(commands[i], "");
        out_text(") flags='");
        TRY(each_flag(commands[i], put_flag));
        out_text("' ;;\n");
    }
    out_text(bash_tail);
    return STATUS_OK;
}

/* ---- the command ---- */

static const Section *no_sections(int *count) {
    *count = 0;
    return NULL;
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    if (argc != 1 || strcmp(argv[0], "bash") != 0)
        return cli_usage(&command_completion, "the name of a shell is expected: bash");
    Status s = put_bash();
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_completion = {
    .name = "completion",
    .summary = "completion of commands, flags and their values for a shell",
    .synopsis = "ttv completion bash",
    .examples = "  source <(ttv completion bash)\n",
    .sections = no_sections,
    .run = run,
};
