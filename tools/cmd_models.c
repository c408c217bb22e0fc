/* ttv models: the networks that have names, with their sizes. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "kernels/device.h"
#include "nvs/lact_nvs.h"
#include "tools/cli.h"
#include "vision/vittt.h"

typedef struct Row {
    const char *name, *flag; /* the flag that takes the name */
    int64_t parameters, width, depth, image_width, image_height;
    double gmacs; /* of one picture; 0: not counted */
} Row;

static const Section *no_sections(int *count) {
    *count = 0;
    return NULL;
}

/* On a device that pretends: names and shapes are all that is needed. */
static Status vittt_row(Device *d, const char *name, Row *out) {
    VitttConfig c = {.image_size = 224, .classes = 1000, .mixer = "base"};
    Params p;
    Vittt *m = NULL;
    snprintf(c.preset, sizeof c.preset, "%s", name);
    TRY(vittt_config_resolve(&c, NULL));
    params_init(&p, d);
    Status s = vittt_new(&c, &p, &m);
    *out = (Row){name,    "train --model", p.total,      c.width,
                 c.depth, c.image_size,    c.image_size, (double)vittt_macs(&c) / 1e9};
    if (s == STATUS_OK) vittt_free(m);
    params_free(&p);
    return s;
}

static Status lact_row(Device *d, const char *name, Row *out) {
    LactNvsConfig c;
    Config *config;
    const Section section = {"nvs_model", lact_nvs_options, &c};
    Params p;
    LactNvs *m = NULL;
    TRY(config_new(&section, 1, &config)); /* the defaults of all other keys */
    snprintf(c.preset, sizeof c.preset, "%s", name);
    Status s = lact_nvs_config_resolve(&c, config);
    config_free(config);
    TRY(s);
    params_init(&p, d);
    s = lact_nvs_new(&c, &p, &m);
    *out =
        (Row){name, "nvs train --nvs-model", p.total, c.width, c.layers, c.view_width, c.height, 0};
    if (s == STATUS_OK) lact_nvs_free(m);
    params_free(&p);
    return s;
}

static void put_text(const Row *r) {
    char gmacs[32] = "";
    if (r->gmacs > 0) snprintf(gmacs, sizeof gmacs, "%.2f GMAC", r->gmacs);
    out_printf("%-16s %11lld parameters  %4lld x %-3lld %4lldx%-4lld %11s  ttv %s %s\n", r->name,
               (long long)r->parameters, (long long)r->width, (long long)r->depth,
               (long long)r->image_width, (long long)r->image_height, gmacs, r->flag, r->name);
}

static void put_json(JsonWriter *w, const Row *r) {
    json_begin_object(w);
    json_pair_string(w, "name", r->name);
    json_pair_int(w, "parameters", r->parameters);
    json_pair_int(w, "width", r->width);
    json_pair_int(w, "depth", r->depth);
    json_pair_int(w, "image_width", r->image_width);
    json_pair_int(w, "image_height", r->image_height);
    json_pair_number(w, "gmacs", r->gmacs > 0 ? r->gmacs : NAN);
    json_pair_string(w, "flag", r->flag);
    json_end_object(w);
}

/* ---- which of them ---- */

static const char *(*const name_of[])(int) = {vittt_preset_name, lact_nvs_preset_name};

/* Names may be written as --model and --nvs-model take them. */
static bool is_called(const char *name, const char *word) {
    VitttConfig c = {.image_size = 224, .classes = 1000, .mixer = "base"};
    snprintf(c.preset, sizeof c.preset, "%s", word);
    if (vittt_config_resolve(&c, NULL) == STATUS_OK) return strcmp(c.preset, name) == 0;
    if (strncmp(word, "lact_nvs_", strlen("lact_nvs_")) == 0) word += strlen("lact_nvs_");
    return strcmp(word, name) == 0;
}

static bool is_wanted(const char *name, int argc, char **argv) {
    bool wanted = argc == 0;
    for (int i = 0; i < argc && !wanted; i++)
        wanted = fnmatch(argv[i], name, 0) == 0 || is_called(name, argv[i]);
    return wanted;
}

/* Every word names something: a list that lacks what was asked for would mislead. */
static int check_words(int argc, char **argv) {
    enum { MOST = 32 };
    const char *names[MOST];
    int count = 0;
    for (int family = 0; family < 2; family++)
        for (int i = 0; name_of[family](i) && count < MOST; i++)
            names[count++] = name_of[family](i);
    for (int i = 0; i < argc; i++) {
        bool found = false;
        for (int n = 0; n < count; n++) found |= is_wanted(names[n], 1, argv + i);
        if (found) continue;
        const char *near = nearest_name(argv[i], names, count);
        return cli_usage(&command_models, "no network is called '%s'%s%s%s", argv[i],
                         near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return 0;
}

static Status list(Device *d, JsonWriter *w, int argc, char **argv) {
    Status (*const row_of[])(Device *, const char *, Row *) = {vittt_row, lact_row};
    for (int family = 0; family < 2; family++) {
        for (int i = 0; name_of[family](i); i++) {
            Row row;
            if (!is_wanted(name_of[family](i), argc, argv)) continue;
            TRY(row_of[family](d, name_of[family](i), &row));
            if (w)
                put_json(w, &row);
            else
                put_text(&row);
        }
    }
    return STATUS_OK;
}

static Status list_json(Device *d, int argc, char **argv) {
    JsonWriter w;
    json_writer_init(&w);
    json_begin_array(&w);
    Status s = list(d, &w, argc, argv);
    json_end_array(&w);
    return out_json(&w, s);
}

static int run(Config *config, int argc, char **argv) {
    (void)config;
    Device *d;
    const int code = check_words(argc, argv);
    if (code != 0) return code;
    Status s = device_open_dry(&d);
    if (s != STATUS_OK) return cli_fail(s);
    s = common.json ? list_json(d, argc, argv) : list(d, NULL, argc, argv);
    device_close(d);
    return s == STATUS_OK ? 0 : cli_fail(s);
}

const Command command_models = {
    .name = "models",
    .aliases = "model list|model info",
    .summary = "the networks that have names: parameters, width x depth, size of a picture",
    .synopsis = "ttv models [--json] [NAME|PATTERN...]",
    .examples = "  ttv models\n"
                "  ttv models 'vittt_h_*' l14_d768_ttt2x\n",
    .sections = no_sections,
    .run = run,
};
