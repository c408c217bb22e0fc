/* Command lines: --flag=value, --flag value, --no-flag, -x value, -xvalue, --set section.key=value,
 * -c FILE,
 * -- . Every flag comes from an option table. */
#include "tools/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "tools/sections.h"

enum { MAX_SECTIONS = 24, MAX_NAMES = 256 };

/* Flags of every command that are no options. */
static const char *const builtin_flags[] = {"help",   "help-all", "version", "print-config",
                                            "config", "set",      NULL};

typedef enum Pass { PASS_FILES, PASS_FLAGS } Pass;

/* ---- tables ---- */

static int append(Section *list, int count, const Section *more, int n) {
    for (int i = 0; i < n && count < MAX_SECTIONS; i++) list[count++] = more[i];
    return count;
}

/* The sections with flags: the command's own and [common]. */
static int visible_sections(const Command *c, Section *list) {
    int n = 0, count = 0;
    const Section *own = c->sections(&n);
    count = append(list, count, own, n);
    Section shared = {"common", common_options, &common};
    return append(list, count, &shared, 1);
}

/* A training file names the ranks of its run; another command may read it. */
static int append_dist(Section *list, int count) {
    const Section dist = section_of("dist");
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, dist.name) == 0) return count;
    return append(list, count, &dist, 1);
}

Status cli_config(const Command *c, Config **config, int *shown) {
    Section list[MAX_SECTIONS];
    int count = visible_sections(c, list);
    if (shown) *shown = count;
    if (c->hidden) {
        int n = 0;
        const Section *hidden = c->hidden(&n);
        count = append(list, count, hidden, n);
        count = append_dist(list, count);
    }
    return config_new(list, count, config);
}

const Option *cli_find_flag(const Command *c, const char *flag, Section *section) {
    Section list[MAX_SECTIONS];
    int count = visible_sections(c, list);
    for (int i = 0; i < count; i++)
        for (const Option *o = list[i].options; o->key; o++)
            if (o->flag && strcmp(o->flag, flag) == 0) {
                if (section) *section = list[i];
                return o;
            }
    return NULL;
}

/* `letters` is "b=batch-size j=workers"; those of every command come behind. */
static const char *const common_letters = "h=help V=version c=config q=quiet v=verbose";

static bool letter_in(const char *letters, char letter, char *flag, size_t size) {
    for (const char *p = letters; p && *p;) {
        size_t n = strcspn(p, " ");
        if (n > 2 && p[0] == letter && n - 2 < size) {
            memcpy(flag, p + 2, n - 2);
            flag[n - 2] = 0;
            return true;
        }
        p += n;
        p += strspn(p, " ");
    }
    return false;
}

static bool flag_of_letter(const Command *c, char letter, char *flag, size_t size) {
    return letter_in(c->letters, letter, flag, size) ||
           letter_in(common_letters, letter, flag, size);
}

static char letter_for(const char *letters, const char *flag) {
    size_t length = strlen(flag);
    for (const char *p = letters; p && *p;) {
        size_t n = strcspn(p, " ");
        if (n == length + 2 && strncmp(p + 2, flag, length) == 0) return p[0];
        p += n;
        p += strspn(p, " ");
    }
    return 0;
}

char cli_letter_of(const Command *c, const char *flag) {
    char letter = letter_for(c->letters, flag);
    return letter ? letter : letter_for(common_letters, flag);
}

static bool is_builtin(const char *flag) {
    for (int i = 0; builtin_flags[i]; i++)
        if (strcmp(builtin_flags[i], flag) == 0) return true;
    return false;
}

/* ---- messages ---- */

/* What tools of this field call a flag, and what it is called here; nearness would not find it. */
static const char *const elsewhere[][2] = {
    {"actckpt", "grad-checkpointing"},
    {"actckpt", "recompute"},
    {"amp-dtype", "precision"},
    {"auto-augment", "aa"},
    {"bs-per-gpu", "batch-size"},
    {"camera-dir", "data-dir"},
    {"data-path", "data-dir"},
    {"ema-decay", "model-ema-decay"},
    {"experiment", "output"},
    {"finetune", "initial-checkpoint"},
    {"global-batch-size", "batch-size"},
    {"grad-clip", "clip-grad"},
    {"image-size", "img-size"},
    {"imgsz", "img-size"},
    {"label-smoothing", "smoothing"},
    {"lpips", "lpips-weights"},
    {"master-addr", "rdzv"},
    {"master-port", "rdzv-port"},
    {"max-gap", "gap-max"},
    {"min-gap", "gap-min"},
    {"name", "output"},
    {"nnodes", "nodes"},
    {"nproc-per-node", "ranks"},
    {"num-frames", "frames"},
    {"num-input-views", "inputs"},
    {"num-target-views", "targets"},
    {"num-workers", "workers"},
    {"output-dir", "output"},
    {"pretrained-path", "initial-checkpoint"},
    {"pretrained-path", "checkpoint"},
    {"rdzv-endpoint", "rdzv"},
    {"re10k-dir", "data-dir"},
    {"recovery-interval", "save-every"},
    {"scene-pose-normalize", "poses"},
    {"skip-grad-norm", "skip-norm"},
    {"target-views", "targets"},
    {"use-ema", "model-ema"},
    {"use-ema", "weights"},
    {"warmup", "warmup-epochs"},
    {"warmup", "warmup-steps"},
    {"wd", "weight-decay"},
};

/* Where the answer is no other flag: what to do instead. */
static const struct Advice {
    const char *flag, *command; /* the beginning of the commands' names */
    const char *text;
} advice[] = {
    {"cache", "", "pictures are read in place; 'ttv data pack' makes few large files of many"},
    {"compare", "nvs render", "views listed with --targets are compared with their pictures"},
    {"contact-sheet", "nvs render", "sheet.png is always written"},
    {"deterministic", "", "every run is: the same seed gives the same bits"},
    {"error-map", "nvs render", "views listed with --targets get one"},
    {"eval-metric", "", "the best checkpoint is the one with the highest top-1, or PSNR"},
    {"fullname", "", "paths are written as they were given"},
    {"image-shape", "nvs", "--view-height and --view-width are the size"},
    {"lpips-start", "nvs train", "the loss is the mean squared error"},
    {"lpips-weight", "nvs train", "the loss is the mean squared error; 'nvs eval' has LPIPS"},
    {"mean", "", "it is --set preprocess.mean_r=X (mean_g, mean_b)"},
    {"no-input", "", "nothing is ever asked"},
    {"baseline-epsilon", "nvs",
     "cameras in one place are no fault; --gap-min and --turn-max choose pairs"},
    {"max-fov", "nvs",
     "every field of view is taken; 'data check' tells intrinsics that cannot be"},
    {"no-tf32", "", "it is --precision fp32"},
    {"no-resume-opt", "", "--initial-checkpoint takes weights without the optimiser's state"},
    {"num-all-views", "nvs", "--inputs and --targets are their numbers"},
    {"opt", "", "AdamW is the optimiser; --matrices muon gives matrices to Muon"},
    {"plain", "", "output is plain where it is no terminal; --json is for programs"},
    {"ratio", "", "they are --ratio-min and --ratio-max"},
    {"scale", "", "they are --scale-min and --scale-max"},
    {"square-crop", "nvs", "pictures are cropped to --view-width x --view-height"},
    {"std", "", "it is --set preprocess.std_r=X (std_g, std_b)"},
    {"tf32", "", "it is --precision tf32"},
    {"tta", "classify", "'ttv eval' has it"},
};

/* A word typed with underscores, or with dashes where a key has underscores. */
static bool same_name(const char *typed, const char *name) {
    for (; *typed && *name; typed++, name++)
        if (*typed != *name && !(strchr("-_", *typed) && strchr("-_", *name))) return false;
    return *typed == *name;
}

static const char *name_elsewhere(const Command *c, const char *flag) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (same_name(flag, elsewhere[i][0]) && cli_find_flag(c, elsewhere[i][1], NULL))
            return elsewhere[i][1];
    return NULL;
}

static const char *advice_on(const Command *c, const char *flag) {
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        const char *of = advice[i].command;
        if (same_name(flag, advice[i].flag) && strncmp(c->name, of, strlen(of)) == 0)
            return advice[i].text;
    }
    return NULL;
}

/* A flag of [data] where that section offers none but counts all the same: limits of pictures. */
static const Option *data_elsewhere(const Command *c, const char *flag) {
    int n = 0;
    const Section *hidden = c->hidden ? c->hidden(&n) : NULL;
    for (int i = 0; i < n; i++)
        for (const Option *o = hidden[i].options; strcmp(hidden[i].name, "data") == 0 && o->key;
             o++)
            if (o->flag && same_name(flag, o->flag)) return o;
    return NULL;
}

static Status unknown_flag(const Command *c, const char *flag) {
    Section list[MAX_SECTIONS];
    const char *names[MAX_NAMES];
    int count = visible_sections(c, list), n = 0;
    const bool negated = strncmp(flag, "no-", 3) == 0;
    const char *near = name_elsewhere(c, flag);
    for (int i = 0; builtin_flags[i]; i++) names[n++] = builtin_flags[i];
    for (int i = 0; i < count; i++)
        for (const Option *o = list[i].options; o->key && n < MAX_NAMES; o++) {
            if (o->flag) names[n++] = o->flag;
            if (!o->flag && same_name(flag, o->key))
                return status_set(STATUS_USAGE, "unknown flag --%s; that key is --set %s.%s=VALUE",
                                  flag, list[i].name, o->key);
        }
    const Option *data = data_elsewhere(c, negated ? flag + 3 : flag);
    if (data && !near)
        return status_set(STATUS_USAGE, "unknown flag --%s; here it is --set data.%s=%s", flag,
                          data->key, negated ? "false" : "VALUE");
    const char *text = advice_on(c, flag);
    if (!text && negated) text = advice_on(c, flag + 3);
    if (!near && text) return status_set(STATUS_USAGE, "unknown flag --%s; %s", flag, text);
    if (!near) near = nearest_name(negated ? flag + 3 : flag, names, n);
    if (near)
        return status_set(STATUS_USAGE, "unknown flag --%s; did you mean --%s%s?", flag,
                          negated ? "no-" : "", near);
    return status_set(STATUS_USAGE, "unknown flag --%s", flag);
}

/* ---- one flag ---- */

typedef struct Walk {
    const Command *command;
    Config *config;
    Arguments *out;
    Pass pass;
    int argc, at;
    char **argv;
} Walk;

/* The value of a flag: behind '=', or the next word. */
static Status take_value(Walk *w, const char *flag, const char *attached, const char **value) {
    if (attached) {
        *value = attached;
        return STATUS_OK;
    }
    if (w->at + 1 >= w->argc) return status_set(STATUS_USAGE, "--%s needs a value", flag);
    *value = w->argv[++w->at];
    return STATUS_OK;
}

static Status builtin(Walk *w, const char *flag, const char *attached) {
    if (strcmp(flag, "config") == 0 || strcmp(flag, "set") == 0) {
        bool file = flag[0] == 'c';
        const char *value = NULL;
        TRY(take_value(w, flag, attached, &value));
        if (file && w->pass == PASS_FILES) return config_read_file(w->config, value);
        if (!file && w->pass == PASS_FLAGS) return config_set(w->config, value, "--set");
        return STATUS_OK;
    }
    if (attached) return status_set(STATUS_USAGE, "--%s takes no value", flag);
    if (strcmp(flag, "help") == 0) w->out->help = true;
    if (strcmp(flag, "help-all") == 0) w->out->help_all = true;
    if (strcmp(flag, "version") == 0) w->out->version = true;
    if (strcmp(flag, "print-config") == 0) w->out->print_config = true;
    return STATUS_OK;
}

static Status long_flag(Walk *w, const char *flag, const char *attached) {
    if (is_builtin(flag)) return builtin(w, flag, attached);
    const char *value = NULL;
    const Option *o = cli_find_flag(w->command, flag, NULL);
    if (!o && strncmp(flag, "no-", 3) == 0) {
        o = cli_find_flag(w->command, flag + 3, NULL);
        if (!o || o->type != OPTION_BOOL) return unknown_flag(w->command, flag);
        if (attached) return status_set(STATUS_USAGE, "--%s takes no value", flag);
        value = "false";
    } else if (!o) {
        return unknown_flag(w->command, flag);
    } else if (o->type != OPTION_BOOL) {
        TRY(take_value(w, flag, attached, &value));
    } else {
        value = attached;
    }
    if (w->pass != PASS_FLAGS) return STATUS_OK;
    return config_set_flag(w->config, o->flag, value);
}

static Status long_word(Walk *w, const char *word) {
    char flag[128];
    size_t n = strcspn(word, "=");
    if (n == 0 || n >= sizeof flag) return status_set(STATUS_USAGE, "malformed flag '--%s'", word);
    memcpy(flag, word, n);
    flag[n] = 0;
    return long_flag(w, flag, word[n] == '=' ? word + n + 1 : NULL);
}

static Status short_word(Walk *w, const char *word) {
    char flag[128];
    if (!flag_of_letter(w->command, word[1], flag, sizeof flag))
        return status_set(STATUS_USAGE,
                          "unknown flag %s (a name that starts with '-' goes behind '--')", word);
    const Option *o = cli_find_flag(w->command, flag, NULL);
    bool takes = o ? o->type != OPTION_BOOL : strcmp(flag, "config") == 0;
    if (!takes && word[2])
        return status_set(STATUS_USAGE, "-%c takes no value: '%s'", word[1], word);
    return long_flag(w, flag, word[2] ? word + 2 + (word[2] == '=') : NULL);
}

static Status walk(Walk *w) {
    bool ended = false;
    for (w->at = 0; w->at < w->argc; w->at++) {
        char *word = w->argv[w->at];
        if (ended || word[0] != '-' || word[1] == 0) {
            if (w->pass == PASS_FLAGS) w->out->positional[w->out->count++] = word;
        } else if (strcmp(word, "--") == 0) {
            ended = true;
        } else if (word[1] == '-') {
            TRY(long_word(w, word + 2));
        } else {
            TRY(short_word(w, word));
        }
    }
    return STATUS_OK;
}

/* ---- environment: TTV_BATCH_SIZE stands for --batch-size ---- */

static Status read_environment(const Command *c, Config *config) {
    Section list[MAX_SECTIONS];
    int count = visible_sections(c, list);
    for (int i = 0; i < count; i++)
        for (const Option *o = list[i].options; o->key; o++) {
            if (!o->flag) continue;
            char name[160], origin[192], assignment[CONFIG_TEXT + 256];
            int n = snprintf(name, sizeof name, "TTV_%s", o->flag);
            for (int k = 4; k < n && name[k]; k++)
                name[k] = name[k] == '-' ? '_' : (char)toupper((unsigned char)name[k]);
            const char *value = getenv(name);
            if (!value) continue;
            if (strlen(value) >= CONFIG_TEXT)
                return status_set(STATUS_USAGE, "environment variable %s is too long", name);
            snprintf(origin, sizeof origin, "environment %s", name);
            snprintf(assignment, sizeof assignment, "%s.%s=%s", list[i].name, o->key, value);
            TRY(config_set(config, assignment, origin));
        }
    return STATUS_OK;
}

Status cli_parse(const Command *c, Config *config, int argc, char **argv, Arguments *out) {
    *out = (Arguments){0};
    void *words;
    TRY(mem_alloc(&words, argc + 1, sizeof(char *), "command line"));
    out->positional = words;
    Walk w = {c, config, out, PASS_FILES, argc, 0, argv};
    TRY(walk(&w));
    if (out->help || out->help_all || out->version) return STATUS_OK;
    TRY(read_environment(c, config));
    w.pass = PASS_FLAGS;
    return walk(&w);
}

void arguments_free(Arguments *a) {
    mem_free(a->positional);
    *a = (Arguments){0};
}
