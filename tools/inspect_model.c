/* Which network is it? Sizes are read from shapes; then every tensor is compared with the list that
 * such a network registers itself (vision/vittt.c), so this file knows no names but a few.
 */
#include "tools/inspect.h"

#include <stdio.h>
#include <string.h>

#include "nvs/lact_nvs.h"
#include "tools/model_meta.h"

/* Dimension i of a named tensor of that rank; 0 when there is none. */
static int64_t dimension(const SafeFile *f, const char *name, int rank, int i) {
    const SafeEntry *e = safetensors_find(f, name);
    return e && e->rank == rank ? e->shape[i] : 0;
}

static int64_t count_blocks(const SafeFile *f, const char *before, const char *leaf) {
    char name[64];
    int64_t depth = 0;
    do snprintf(name, sizeof name, "%sblocks.%lld.%s", before, (long long)depth++, leaf);
    while (safetensors_find(f, name));
    return depth - 1;
}

static bool is_state(const SafeFile *f) {
    return safetensors_count(f) > 0 &&
           strncmp(safetensors_at(f, 0)->name, "optim.", strlen("optim.")) == 0;
}

static void name_preset(VitttConfig *c) {
    for (int i = 0; vittt_preset_name(i); i++) {
        VitttConfig p = *c;
        snprintf(p.preset, sizeof p.preset, "%s", vittt_preset_name(i));
        p.stages[0] = '\0';
        p.image_size = 224;
        if (vittt_config_resolve(&p, NULL) == STATUS_OK && p.width == c->width &&
            p.depth == c->depth && p.heads == c->heads && p.patch == c->patch &&
            p.mlp_ratio == c->mlp_ratio && strcmp(p.stages, c->stages) == 0)
            snprintf(c->preset, sizeof c->preset, "%s", p.preset);
    }
}

Recognised recognise(const SafeFile *f) {
    Recognised r = {MODEL_UNKNOWN, {.preset = "custom", .mixer = "base"}};
    VitttConfig *c = &r.config;
    if (is_state(f)) {
        r.kind = MODEL_STATE;
        return r;
    }
    const char *format = safetensors_meta(f, "ttv.format");
    if (format && strncmp(format, "lact-scene", strlen("lact-scene")) == 0) {
        r.kind = MODEL_SCENE;
        return r;
    }
    if (safetensors_find(f, "layers.0.blocks.0.attn.w1")) {
        r.kind = MODEL_HIERARCHICAL;
        recognise_stages(f, c);
        if (c->depth > 0) name_preset(c);
        return r;
    }
    if (dimension(f, "input_linear.weight", 2, 0) &&
        safetensors_find(f, "blocks.0.module_list.1.f.w0")) {
        r.kind = MODEL_NVS;
        return r;
    }
    if ((dimension(f, "patch_embed.proj.weight", 4, 0) || dimension(f, "stem.proj.weight", 4, 0)) &&
        !dimension(f, "blocks.0.attn.w1", 4, 1) && safetensors_find(f, "blocks.0.mlp.fc1.weight")) {
        r.kind = MODEL_SEQUENCE;
        return r;
    }
    c->width = dimension(f, "patch_embed.proj.weight", 4, 0);
    c->patch = dimension(f, "patch_embed.proj.weight", 4, 2);
    c->stem_width = dimension(f, "stem.proj.weight", 4, 0);
    if (c->stem_width > 0) {
        c->width = dimension(f, "stem.merge.upper.weight", 2, 0);
        c->patch = 2 * dimension(f, "stem.proj.weight", 4, 2);
        c->stem_depth = count_blocks(f, "stem.", "conv.weight");
        if (c->stem_depth < 1 || c->stem_depth > STEM_MAX_DEPTH) return r;
    }
    c->heads = dimension(f, "blocks.0.attn.w1", 4, 1);
    c->classes = dimension(f, "head.weight", 2, 0);
    c->depth = count_blocks(f, "", "attn.w1");
    if (c->width <= 0 || c->patch <= 0 || c->heads <= 0 || c->classes <= 0 || c->depth <= 0)
        return r;
    c->mlp_ratio = dimension(f, "blocks.0.mlp.fc1.weight", 2, 0) / c->width;
    if (c->mlp_ratio <= 0 || c->width % c->heads != 0) return r;
    r.kind = MODEL_VITTT;
    if (c->stem_depth == 0) name_preset(c);
    return r;
}

static const char *stages_name(const VitttConfig *c) {
    static const char *const names[][2] = {{"vittt_h_tiny", "H-ViTTT-T"},
                                           {"vittt_h_small", "H-ViTTT-S"},
                                           {"vittt_h_base", "H-ViTTT-B"}};
    if (c->depth == 0) return "parts of a hierarchical ViTTT (H-ViTTT), tensors not compared";
    for (int i = 0; i < 3; i++)
        if (strcmp(c->preset, names[i][0]) == 0) return names[i][1];
    return "hierarchical ViTTT (H-ViTTT) of custom size";
}

const char *recognised_name(const Recognised *r) {
    switch (r->kind) {
    case MODEL_UNKNOWN:
        return "no ViTTT";
    case MODEL_HIERARCHICAL:
        return stages_name(&r->config);
    case MODEL_SEQUENCE:
        return "ViTTT blocks with another mixer (LaCT or a graph)";
    case MODEL_NVS:
        return "LaCT-NVS (novel views)";
    case MODEL_STATE:
        return "optimiser state of a training run";
    case MODEL_SCENE:
        return "a reconstructed scene (nvs render --load-scene)";
    case MODEL_VITTT:
        break;
    }
    const char *preset = r->config.preset;
    if (strcmp(preset, "vittt_tiny") == 0) return "ViTTT-T";
    if (strcmp(preset, "vittt_small") == 0) return "ViTTT-S";
    if (strcmp(preset, "vittt_base") == 0) return "ViTTT-B";
    return "ViTTT of custom size";
}

static bool same_shape(const SafeEntry *e, Tensor t) {
    if (e->rank != t.rank) return false;
    for (int i = 0; i < t.rank; i++)
        if (e->shape[i] != t.shape[i]) return false;
    return true;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void compare(Params *p, const SafeFile *f, Findings *faults) {
    char found[128], wanted[128];
    for (int64_t i = 0; i < p->count; i++) {
        const SafeEntry *e = safetensors_find(f, p->items[i]->name);
        tensor_shape_text(p->items[i]->master, wanted, sizeof wanted);
        if (!e)
            findings_add(faults, "tensor '%s' %s is missing", p->items[i]->name, wanted);
        else if (!same_shape(e, p->items[i]->master))
            findings_add(faults, "tensor '%s' is %s, expected %s", e->name,
                         entry_shape_text(e, found, sizeof found), wanted);
    }
    for (int64_t i = 0; i < safetensors_count(f); i++) {
        const SafeEntry *e = safetensors_at(f, i);
        /* Counters of batches, which published checkpoints of hierarchical models hold. */
        if (!params_find(p, e->name) && !ends_with(e->name, ".norm.num_batches_tracked") &&
            strcmp(e->name, "norm.num_batches_tracked") != 0)
            findings_add(faults, "tensor '%.200s' %s is unknown to the model", e->name,
                         entry_shape_text(e, found, sizeof found));
    }
}

static Status compare_vittt(const VitttConfig *c, const SafeFile *f, Findings *faults) {
    Params p;
    Vittt *model = NULL;
    params_init(&p, NULL); /* only registered, never built: no device is needed */
    Status s = vittt_new(c, &p, &model);
    if (s == STATUS_OK) compare(&p, f, faults);
    vittt_free(model);
    params_free(&p);
    return s;
}

static Status compare_nvs(const LactNvsConfig *c, const SafeFile *f, Findings *faults) {
    Params p;
    LactNvs *model = NULL;
    params_init(&p, NULL);
    Status s = lact_nvs_new(c, &p, &model);
    if (s == STATUS_OK) compare(&p, f, faults);
    if (model) lact_nvs_free(model);
    params_free(&p);
    return s;
}

static Status check_nvs(const SafeFile *f, Findings *faults) {
    LactNvsConfig c;
    Config *config;
    TRY(model_meta_config(f, (Section){"nvs_model", lact_nvs_options, &c}, &config));
    Status s = STATUS_OK;
    if (!safetensors_meta(f, "ttv.config")) s = lact_nvs_config_from_weights(&c, f);
    if (s == STATUS_OK) s = compare_nvs(&c, f, faults);
    config_free(config);
    return s;
}

static Status check_sequence(const SafeFile *f, Findings *faults) {
    VitttConfig c;
    Config *config;
    TRY(model_meta_config(f, (Section){"model", vittt_options, &c}, &config));
    Status s = vittt_config_resolve(&c, config);
    if (s == STATUS_OK) s = compare_vittt(&c, f, faults);
    config_free(config);
    return s;
}

static Status check_kind(const Recognised *r, const SafeFile *f, Findings *faults, bool *compared) {
    const bool stages = r->kind == MODEL_HIERARCHICAL && r->config.depth > 0;
    VitttConfig c = r->config;
    *compared = true;
    if (r->kind == MODEL_NVS) return check_nvs(f, faults);
    if (r->kind == MODEL_SEQUENCE && safetensors_meta(f, "ttv.config"))
        return check_sequence(f, faults);
    if (r->kind == MODEL_VITTT) c.image_size = c.patch; /* no parameter depends on it */
    if (r->kind == MODEL_VITTT || stages) return compare_vittt(&c, f, faults);
    *compared = false;
    return STATUS_OK;
}

Status recognised_check(const Recognised *r, const SafeFile *f, Findings *faults, bool *compared) {
    const Status s = check_kind(r, f, faults, compared);
    if (s != STATUS_DATA && s != STATUS_USAGE) return s;
    findings_add(faults, "%s", status_message()); /* what the file says makes no model */
    return STATUS_OK;
}
