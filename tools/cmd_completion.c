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
    out_text("    completion) seconds='bash zsh fish' ;;\n"
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

/* ---- zsh: what bash gets, through zsh's own bridge ---- */

static Status put_zsh(void) {
    out_text(
        "#compdef ttv\n"
        "# zsh completion of ttv, written by `ttv completion zsh`: source it behind compinit.\n"
        "autoload -Uz +X bashcompinit && bashcompinit\n");
    return put_bash();
}

/* ---- fish: one line for each word and flag ---- */

/* In single quotes, where fish reads \' and \\. */
static void fish_quoted(const char *text) {
    out_text("'");
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') out_text("\\");
        out_bytes(text, 1);
    }
    out_text("'");
}

/* "nvs render" and its aliases as one list of quoted names. */
static void fish_names(const Command *c) {
    out_printf("\"__ttv_in '%s'", c->name);
    for (const char *p = c->aliases; p && *p;) {
        const size_t n = strcspn(p, "|");
        out_printf(" '%.*s'", (int)n, p);
        p += n + (p[n] == '|');
    }
    out_text("\"");
}

static void fish_flag(const Command *c, const Option *o) {
    const char letter = cli_letter_of(c, o->flag);
    out_text("complete -c ttv -n ");
    fish_names(c);
    out_printf(" -l %s", o->flag);
    if (letter) out_printf(" -s %c", letter);
    if (o->type != OPTION_BOOL) out_text(" -r");
    if (o->type == OPTION_CHOICE) {
        out_text(" -f -a '");
        for (const char *p = o->choices; *p; p++) out_printf("%c", *p == '|' ? ' ' : *p);
        out_text("'");
    }
    out_text(" -d ");
    fish_quoted(o->help);
    out_text("\n");
    if (o->type != OPTION_BOOL) return;
    out_text("complete -c ttv -n ");
    fish_names(c);
    out_printf(" -l no-%s\n", o->flag);
}

static void fish_word(const char *behind, size_t n, const char *word, const char *summary) {
    out_printf("complete -c ttv -f -n \"__ttv_at '%.*s'\" -a %s -d ", (int)n, behind, word);
    fish_quoted(summary);
    out_text("\n");
}

static Status put_fish(void) {
    out_text(
        "# fish completion of ttv, written by `ttv completion fish`: put it into\n"
        "# ~/.config/fish/completions/ttv.fish.\n"
        "function __ttv_at # WORDS: exactly these stand behind ttv\n"
        "    set -l words (commandline -opc)\n"
        "    test \"$words[2..-1]\" = \"$argv[1]\"\n"
        "end\n"
        "function __ttv_in # NAME...: the line begins with one of these commands\n"
        "    set -l words (commandline -opc)\n"
        "    for name in $argv\n"
        "        set -l wanted (string split ' ' $name)\n"
        "        set -l last (math (count $wanted) + 1)\n"
        "        test (count $words) -ge $last; and test \"$words[2..$last]\" = \"$name\"; and "
        "return 0\n"
        "    end\n"
        "    return 1\n"
        "end\n");
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name;
        const size_t n = strcspn(name, " ");
        char first[64];
        snprintf(first, sizeof first, "%.*s", (int)n, name);
        fish_word("", 0, first, name[n] ? "" : commands[i]->summary);
        fish_word("help", 4, first, name[n] ? "" : commands[i]->summary);
        if (name[n]) fish_word(name, n, name + n + 1, commands[i]->summary);
        TRY(each_flag(commands[i], fish_flag));
    }
    fish_word("", 0, "help", "flags and examples of a command");
    fish_word("", 0, "version", "version, backends, libraries");
    out_text("complete -c ttv -f -n \"__ttv_at completion\" -a 'bash zsh fish'\n"
             "complete -c ttv -l help -s h -d 'help of a command'\n"
             "complete -c ttv -l config -s c -r -d 'read an INI file first'\n"
             "complete -c ttv -l set -x -d 'SECTION.KEY=VALUE'\n"
             "complete -c ttv -l print-config -d 'print all values with their origin'\n");
    return STATUS_OK;
}

/* ---- the command ---- */

static const Section *no_sections(int *count) {
    *count = 0;
    return NULL;
}

static int run(Config *config, int argc, char **argv) {
    static const struct {
        const char *name;
        Status (*put)(void);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    (void)config;
    for (size_t i = 0; argc == 1 && i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(argv[0], shells[i].name) != 0) continue;
        Status s = shells[i].put();
        return s == STATUS_OK ? 0 : cli_fail(s);
    }
    return cli_usage(&command_completion, "the name of a shell is expected: bash, zsh or fish");
}

const Command command_completion = {
    .name = "completion",
    .summary = "completion of commands, flags and their values for a shell",
    .synopsis = "ttv completion bash|zsh|fish",
    .examples = "  source <(ttv completion bash)\n"
                "  ttv completion fish > ~/.config/fish/completions/ttv.fish\n",
    .sections = no_sections,
    .run = run,
};
