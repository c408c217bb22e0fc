/* Checkpoint -> running model. The description travels in the file's metadata (model_io.h). */
#include "tools/model_io.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "tools/cli.h"
#include "tools/model_meta.h"

/* Has the user said anything about [model] that describes a network? */
static bool user_describes(const Config *user) {
    return user &&
           (config_is_set(user, "model", "preset") || config_is_set(user, "model", "width"));
}

/* Copies what the user set in a section over the values of `own`. */
static Status apply_user(Config *own, const Config *user, const char *section_name) {
    Section section = section_of(section_name);
    for (const Option *o = section.options; user && o->key; o++) {
        char value[CONFIG_TEXT + 8], assignment[CONFIG_TEXT + 128];
        if (!config_is_set(user, section_name, o->key)) continue;
        option_plain_text(o, section.values, value, sizeof value);
        snprintf(assignment, sizeof assignment, "%s.%s=%s", section_name, o->key, value);
        TRY(config_set(own, assignment, "command line"));
    }
    return STATUS_OK;
}

/* A file that says what it holds cannot be another model because a flag says so. */
static Status check_preset(const VitttConfig *stored, const Config *user, const char *path) {
    if (!user || !config_is_set(user, "model", "preset")) return STATUS_OK;
    VitttConfig wanted = settings.model;
    TRY(vittt_config_resolve(&wanted, user));
    if (strcmp(wanted.preset, stored->preset) == 0 && wanted.width == stored->width &&
        wanted.depth == stored->depth && wanted.heads == stored->heads &&
        wanted.patch == stored->patch && strcmp(wanted.stages, stored->stages) == 0)
        return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s holds a %s (width %lld, depth %lld, heads %lld, patch %lld), not the %s "
                      "(width %lld, depth %lld, heads %lld, patch %lld) that the options ask for",
                      path, stored->preset, (long long)stored->width, (long long)stored->depth,
                      (long long)stored->heads, (long long)stored->patch, wanted.preset,
                      (long long)wanted.width, (long long)wanted.depth, (long long)wanted.heads,
                      (long long)wanted.patch);
}

/* Weights run with other sizes and mixers, but seldom as well: it is for the user to know. */
static void tell_changes(const VitttConfig *now, const VitttConfig *then, const char *path) {
    if (now->image_size != then->image_size)
        note("%s was trained on pictures of %lldx%lld pixels, it runs on %lldx%lld: another "
             "accuracy is to be expected",
             path, (long long)then->image_size, (long long)then->image_size,
             (long long)now->image_size, (long long)now->image_size);
    if (strcmp(now->mixer, then->mixer) != 0)
        note("%s was trained with model.mixer = %s, it runs with %s", path, then->mixer,
             now->mixer);
    if (now->steps != then->steps)
        note("%s was trained with model.steps = %lld, it runs with %lld", path,
             (long long)then->steps, (long long)now->steps);
}

Status model_tell_origin(const VitttConfig *now, const SafeFile *file, const char *path) {
    VitttConfig then;
    Section section = section_of("model");
    Config *config;
    section.values = &then;
    if (!safetensors_meta(file, "ttv.config")) return STATUS_OK;
    TRY(model_meta_config(file, section, &config));
    tell_changes(now, &then, path);
    config_free(config);
    return STATUS_OK;
}

static Status describe_with(Model *m, Config *own, const char *text, const Config *user) {
    if (text) {
        TRY(config_read_text(own, text, strlen(text), m->path, true));
        TRY(check_preset(&m->config, user, m->path));
    } else if (!user_describes(user)) {
        return status_set(
            STATUS_USAGE,
            "%s does not say which model it holds (no ttv.config in its metadata): name it "
            "with --model or a configuration file (-c)",
            m->path);
    }
    const VitttConfig then = m->config;
    TRY(apply_user(own, user, "model"));
    TRY(apply_user(own, user, "preprocess"));
    TRY(vittt_config_resolve(&m->config, own));
    if (text) tell_changes(&m->config, &then, m->path);
    m->preprocess.image_size = m->config.image_size;
    return STATUS_OK;
}

/* Fills m->config and m->preprocess from the metadata and the user's options. */
static Status describe(Model *m, const SafeFile *file, const Config *user) {
    Section list[2] = {section_of("model"), section_of("preprocess")};
    list[0].values = &m->config;
    list[1].values = &m->preprocess;
    Config *own;
    TRY(config_new(list, 2, &own));
    Status s = describe_with(m, own, safetensors_meta(file, "ttv.config"), user);
    config_free(own);
    return s;
}

static Status build(Model *m, bool training) {
    m->training = training;
    TRY(mem_string(&m->name, m->config.preset));
    params_init(&m->params, m->device);
    TRY(vittt_new(&m->config, &m->params, &m->vittt));
    return params_build(&m->params, m->act, training);
}

static Status open_device(Model *m) {
    int act;
    TRY(cli_device(&m->device, &act));
    m->act = (DType)act;
    return STATUS_OK;
}

static Status load(Model *m, const SafeFile *file, const Config *user) {
    const char *model = safetensors_meta(file, "ttv.model");
    if (model)
        return status_set(STATUS_DATA,
                          "%s holds a model of another kind (%s), no classifier: novel views are "
                          "scored by 'ttv nvs eval' and rendered by 'ttv nvs render'",
                          m->path, model);
    const char *kind = safetensors_meta(file, "ttv.weights");
    m->averaged = kind && strcmp(kind, "ema") == 0;
    TRY(describe(m, file, user));
    TRY(model_meta_classes(file, m->path, m->config.classes, &m->classes));
    TRY(open_device(m));
    TRY(build(m, false));
    TRY(params_load(&m->params, file, vittt_unused_tensors(&m->config)));
    return params_refresh(&m->params);
}

Status model_open(Model *m, const char *checkpoint, WeightsChoice choice, const Config *user) {
    *m = (Model){0};
    Status s = weights_resolve(checkpoint, choice, &m->path);
    SafeFile *file = NULL;
    if (s == STATUS_OK) s = safetensors_open(m->path, &file);
    if (s == STATUS_OK) s = load(m, file, user);
    if (file) safetensors_close(file);
    if (s != STATUS_OK) model_close(m);
    return s;
}

static Status create(Model *m, const Config *user, int64_t classes, bool training, uint64_t seed) {
    m->config = settings.model;
    m->preprocess = settings.preprocess;
    TRY(vittt_config_resolve(&m->config, user));
    if (classes > 0) m->config.classes = classes;
    m->preprocess.image_size = m->config.image_size;
    TRY(open_device(m));
    TRY(build(m, training));
    TRY(params_initialise(&m->params, seed));
    return params_refresh(&m->params);
}

Status model_create(Model *m, const Config *user, int64_t classes, bool training, uint64_t seed) {
    *m = (Model){0};
    Status s = create(m, user, classes, training, seed);
    if (s != STATUS_OK) model_close(m);
    return s;
}

void model_close(Model *m) {
    vittt_free(m->vittt);
    if (m->params.device) params_free(&m->params);
    if (m->device) device_close(m->device);
    class_list_free(&m->classes);
    mem_free(m->path);
    mem_free(m->name);
    *m = (Model){0};
}

Status model_open_data(const Model *m, ClassList *classes, Dataset **data) {
    if (!*settings.data.root)
        return status_set(STATUS_USAGE,
                          "no data: give --data-dir DIR, or [data] root in a file (-c)");
    if (m->classes.count > 0) TRY(class_list_copy(classes, &m->classes));
    TRY(dataset_open(&settings.data, settings.data.val_split, classes, data));
    if (classes->count == m->config.classes) return STATUS_OK;
    return status_set(STATUS_DATA, "%s has %lld classes, but the model has %lld",
                      settings.data.root, (long long)classes->count, (long long)m->config.classes);
}

const char *model_class_folder(const Model *m, int64_t i, char *buffer, size_t size) {
    if (i >= 0 && i < m->classes.count && m->classes.names) return m->classes.names[i];
    snprintf(buffer, size, "%lld", (long long)i);
    return buffer;
}

const char *model_class_name(const Model *m, int64_t i, char *buffer, size_t size) {
    if (i >= 0 && i < m->classes.count && m->classes.readable && m->classes.readable[i])
        return m->classes.readable[i];
    return model_class_folder(m, i, buffer, size);
}
