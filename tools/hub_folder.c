#include "tools/hub_folder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "tools/model_meta.h"
#include "tools/sections.h"
#include "tools/weights_out.h"

typedef struct Card {
    VitttConfig model;
    Preprocess preprocess;
    ClassList classes;
    int64_t parameters;
    const SafeFile *file;
} Card;

static Status read_config(Card *c, const char *path) {
    Section list[2] = {section_of("model"), section_of("preprocess")};
    const char *text = safetensors_meta(c->file, "ttv.config");
    Config *config;
    if (!text || safetensors_meta(c->file, "ttv.model"))
        return status_set(STATUS_DATA,
                          "%s: a folder of a hub is for classifiers that ttv trained; name a file "
                          "to write the weights alone",
                          path);
    list[0].values = &c->model;
    list[1].values = &c->preprocess;
    TRY(config_new(list, 2, &config));
    Status s = config_read_text(config, text, strlen(text), path, true);
    if (s == STATUS_OK) s = vittt_config_resolve(&c->model, config);
    config_free(config);
    c->preprocess.image_size = c->model.image_size;
    return s;
}

/* ---- config.json ---- */

static void three(JsonWriter *w, const char *key, const double x[3]) {
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < 3; i++) json_number(w, x[i]);
    json_end_array(w);
}

static void put_labels(JsonWriter *w, const ClassList *l) {
    if (l->count == 0) return;
    json_key(w, "label_names");
    json_begin_array(w);
    for (int64_t i = 0; i < l->count; i++) json_string(w, l->names[i]);
    json_end_array(w);
    if (!l->readable) return;
    json_key(w, "label_descriptions");
    json_begin_object(w);
    for (int64_t i = 0; i < l->count; i++) json_pair_string(w, l->names[i], l->readable[i]);
    json_end_object(w);
}

static void put_preprocessing(JsonWriter *w, const Card *c) {
    static const char *const filters[] = {"bilinear", "bicubic", "lanczos"};
    static const char *const crops[] = {"center", "squash", "border"};
    const Preprocess *p = &c->preprocess;
    json_key(w, "pretrained_cfg");
    json_begin_object(w);
    json_pair_int(w, "num_classes", c->model.classes);
    json_key(w, "input_size");
    json_begin_array(w);
    json_int(w, 3);
    json_int(w, p->image_size);
    json_int(w, p->image_size);
    json_end_array(w);
    json_pair_bool(w, "fixed_input_size", c->model.rope);
    json_pair_string(w, "interpolation", filters[p->filter]);
    json_pair_number(w, "crop_pct", p->crop_pct);
    json_pair_string(w, "crop_mode", crops[p->crop_mode]);
    three(w, "mean", p->mean);
    three(w, "std", p->std);
    json_end_object(w);
}

static void put_config(JsonWriter *w, const Card *c) {
    const VitttConfig *m = &c->model;
    json_begin_object(w);
    json_pair_string(w, "architecture", m->preset);
    json_pair_int(w, "num_classes", m->classes);
    json_pair_int(w, "num_features", m->width);
    json_key(w, "model_args");
    json_begin_object(w);
    json_pair_int(w, "img_size", m->image_size);
    json_pair_int(w, "patch_size", m->patch);
    json_pair_int(w, "embed_dim", m->width);
    json_pair_int(w, "depth", m->depth);
    json_pair_int(w, "num_heads", m->heads);
    json_pair_int(w, "mlp_ratio", m->mlp_ratio);
    json_pair_string(w, "mixer", m->mixer);
    if (m->stages[0]) json_pair_string(w, "stages", m->stages);
    json_end_object(w);
    put_labels(w, &c->classes);
    put_preprocessing(w, c);
    json_end_object(w);
}

/* ---- README.md ---- */

typedef struct Text {
    char *at;
    size_t left;
} Text;

__attribute__((format(printf, 2, 3))) static void add(Text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : (size_t)n < t->left ? (size_t)n : t->left - 1;
    t->at += used;
    t->left -= used;
}

static void add_meta(Text *t, const Card *c, const char *key, const char *what) {
    const char *value = safetensors_meta(c->file, key);
    if (value) add(t, "| %s | %.100s |\n", what, value);
}

static void put_readme(Text *t, const Card *c) {
    char preprocessing[512];
    preprocess_text(&c->preprocess, preprocessing, sizeof preprocessing);
    add(t, "# %s, %lld classes\n\n", c->model.preset, (long long)c->model.classes);
    add(t, "A classifier of pictures whose token mixer is test-time training (ViTTT).\n\n");
    add(t, "| | |\n| --- | --- |\n| model | %s: width %lld, depth %lld, heads %lld, patch %lld |\n",
        c->model.preset, (long long)c->model.width, (long long)c->model.depth,
        (long long)c->model.heads, (long long)c->model.patch);
    add(t, "| numbers in its tensors | %lld |\n| pictures | %s |\n", (long long)c->parameters,
        preprocessing);
    add_meta(t, c, "ttv.step", "step");
    add_meta(t, c, "ttv.epoch", "epoch");
    add_meta(t, c, "ttv.weights", "weights");
    add_meta(t, c, "ttv.top1_raw", "top-1 of the validation, weights, %");
    add_meta(t, c, "ttv.top1_ema", "top-1 of the validation, averaged weights, %");
    add_meta(t, c, "ttv.train_images", "training images");
    add(t, "\nWhat it was trained on, what it may be used for and under which terms is for its "
           "author to say here.\n\n```sh\nttv classify --checkpoint . picture.jpg\nttv eval "
           "--checkpoint . --data-dir DATA\n```\n");
}

/* ---- both ---- */

static Status describe(Card *c, const char *path, HubFolder *out) {
    enum { README_BYTES = 8192 };
    JsonWriter w;
    void *readme;
    TRY(read_config(c, path));
    TRY(model_meta_classes(c->file, path, c->model.classes, &c->classes));
    for (int64_t i = 0; i < safetensors_count(c->file); i++) {
        const SafeEntry *e = safetensors_at(c->file, i);
        int64_t n = 1;
        for (int k = 0; k < e->rank; k++) n *= e->shape[k];
        c->parameters += n;
    }
    TRY(mem_alloc(&readme, README_BYTES, 1, "README.md"));
    out->readme = readme;
    Text text = {readme, README_BYTES};
    put_readme(&text, c);
    json_writer_init(&w);
    put_config(&w, c);
    Status s = w.status;
    if (s == STATUS_OK) s = mem_string(&out->config, w.text);
    json_writer_free(&w);
    return s;
}

Status hub_folder_describe(const SafeFile *file, const char *path, HubFolder *out) {
    Card card = {.file = file};
    *out = (HubFolder){0};
    Status s = describe(&card, path, out);
    class_list_free(&card.classes);
    if (s != STATUS_OK) hub_folder_free(out);
    return s;
}

static Status write_text(const char *folder, const char *name, const char *text) {
    char *path;
    TRY(path_join(&path, folder, name));
    Status s = file_write_atomic(path, text, strlen(text));
    mem_free(path);
    return s;
}

static Status check_name(const char *folder, const char *name, bool overwrite) {
    char *path;
    TRY(path_join(&path, folder, name));
    const Status s = weights_out_check(path, overwrite);
    mem_free(path);
    return s;
}

Status hub_folder_check(const char *folder, bool overwrite) {
    TRY(check_name(folder, "config.json", overwrite));
    return check_name(folder, "README.md", overwrite);
}

Status hub_folder_write(const HubFolder *h, const char *folder) {
    TRY(write_text(folder, "config.json", h->config));
    return write_text(folder, "README.md", h->readme);
}

void hub_folder_free(HubFolder *h) {
    mem_free(h->config);
    mem_free(h->readme);
    *h = (HubFolder){0};
}
