/* Section [nvs_model]: the sizes of lact_nvs.md 1, custom sizes, and their checks. */
#include "nvs/lact_nvs.h"

#include <stdio.h>
#include <string.h>

#define FIELD(name) offsetof(LactNvsConfig, name)

const Option lact_nvs_options[] = {
    {"preset", OPTION_STRING, FIELD(preset), "l12_d768_ttt1x", 0, 0, NULL, "nvs-model",
     "l12_d768_ttt1x, l24_d768_ttt2x, l24_d768_ttt4x, l14_d768_ttt2x, or custom (every size from "
     "its own key)"},
    {"height", OPTION_INT, FIELD(height), "128", 1, 16384, NULL, "view-height",
     "height of a view, pixels; a multiple of the patch"},
    {"view_width", OPTION_INT, FIELD(view_width), "128", 1, 16384, NULL, "view-width",
     "width of a view, pixels; a multiple of the patch"},
    {"patch", OPTION_INT, FIELD(patch), "8", 1, 1024, NULL, NULL, "patch side, pixels"},
    {"width", OPTION_INT, FIELD(width), "768", 1, 65536, NULL, NULL,
     "channels of the residual stream; a multiple of head_width and fast_heads"},
    {"layers", OPTION_INT, FIELD(layers), "12", 1, 1024, NULL, NULL, "number of blocks"},
    {"head_width", OPTION_INT, FIELD(head_width), "64", 1, 4096, NULL, NULL,
     "channels of an attention head"},
    {"fast_heads", OPTION_INT, FIELD(fast_heads), "1", 1, 4096, NULL, NULL, "fast-weight heads"},
    {"inter_multi", OPTION_INT, FIELD(inter_multi), "1", 1, 64, NULL, NULL,
     "hidden channels of the fast weights per channel of a head"},
    {"variant", OPTION_STRING, FIELD(variant), "base", 0, 0, NULL, NULL,
     "fast-weight layer: base, V1, V2, V3, V4, V5, V6, ascent, query_is_key"},
    {"poses", OPTION_CHOICE, FIELD(poses), "all", 0, 0, "all|inputs|none", "poses",
     "views whose mean pose is the origin: all (benchmarks), inputs, or none (poses as they are)"},
    {"pose_margin", OPTION_FLOAT, FIELD(pose_margin), "1.35", 0, 1000, NULL, NULL,
     "positions are scaled to 1/pose_margin at most: 1.35 for RealEstate10K, 1 in LaCT's scenes"},
    {"recompute", OPTION_BOOL, FIELD(recompute), "false", 0, 0, NULL, "recompute",
     "training computes each block twice instead of keeping its activations"},
    {"frugal", OPTION_BOOL, FIELD(frugal), "true", 0, 0, NULL, "frugal",
     "training computes the hidden values of the MLPs again: an eighth less memory, 1 % of the "
     "time"},
    {"span", OPTION_BOOL, FIELD(span), "true", 0, 0, NULL, "span",
     "in bf16, steps of few tokens are orthogonalised within their span: less work, less rounding"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

typedef struct Preset {
    const char *name;
    int64_t layers, inter_multi;
} Preset;

static const Preset presets[] = {
    {"l12_d768_ttt1x", 12, 1}, /* the RealEstate10K baseline */
    {"l24_d768_ttt2x", 24, 2},
    {"l24_d768_ttt4x", 24, 4},
    {"l14_d768_ttt2x", 14, 2},
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

const char *lact_nvs_preset_name(int i) {
    return i >= 0 && i < PRESETS ? presets[i].name : NULL;
}

static Status unknown_preset(const char *name) {
    const char *names[PRESETS + 1];
    for (int i = 0; i < PRESETS; i++) names[i] = presets[i].name;
    names[PRESETS] = "custom";
    const char *near = nearest_name(name, names, PRESETS + 1);
    if (near)
        return status_set(STATUS_USAGE,
                          "[nvs_model] preset '%.100s' is unknown; did you mean '%s'?", name, near);
    return status_set(STATUS_USAGE,
                      "[nvs_model] preset '%.100s' is unknown; there are l12_d768_ttt1x, "
                      "l24_d768_ttt2x, l24_d768_ttt4x, l14_d768_ttt2x and custom",
                      name);
}

static Status check_multiple(const char *key, int64_t value, const char *of, int64_t unit) {
    if (value % unit == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "[nvs_model] %s %lld is not a multiple of %s %lld", key,
                      (long long)value, of, (long long)unit);
}

Status lact_nvs_config_check(const LactNvsConfig *c) {
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"height", c->height},         {"view_width", c->view_width},
                 {"patch", c->patch},           {"width", c->width},
                 {"layers", c->layers},         {"head_width", c->head_width},
                 {"fast_heads", c->fast_heads}, {"inter_multi", c->inter_multi}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < 1)
            return status_set(STATUS_USAGE, "[nvs_model] %s is %lld, expected at least 1",
                              sizes[i].key, (long long)sizes[i].value);
    }
    TRY(check_multiple("height", c->height, "patch", c->patch));
    TRY(check_multiple("view_width", c->view_width, "patch", c->patch));
    TRY(check_multiple("width", c->width, "head_width", c->head_width));
    TRY(check_multiple("width", c->width, "fast_heads", c->fast_heads));
    if (c->poses < POSES_ALL || c->poses > POSES_NONE)
        return status_set(STATUS_USAGE, "[nvs_model] poses is %d, expected 0, 1 or 2", c->poses);
    if (!(c->pose_margin > 0))
        return status_set(STATUS_USAGE, "[nvs_model] pose_margin is %g, expected above 0",
                          c->pose_margin);
    LactVariant variant;
    TRY(status_context(lact_variant_by_name(c->variant, &variant), "[nvs_model]"));
    if (variant.linear && c->inter_multi != 1)
        return status_set(STATUS_USAGE, "[nvs_model] variant %s needs inter_multi 1, not %lld",
                          c->variant, (long long)c->inter_multi);
    return STATUS_OK;
}

Status lact_nvs_config_resolve(LactNvsConfig *c, const Config *source) {
    const Preset *preset = NULL;
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(c->preset, presets[i].name) == 0) preset = &presets[i];
    if (!preset && strcmp(c->preset, "custom") != 0) return unknown_preset(c->preset);
    if (preset) {
        const struct {
            const char *key;
            int64_t *field, value;
        } sizes[] = {{"patch", &c->patch, 8},
                     {"width", &c->width, 768},
                     {"layers", &c->layers, preset->layers},
                     {"head_width", &c->head_width, 64},
                     {"fast_heads", &c->fast_heads, 1},
                     {"inter_multi", &c->inter_multi, preset->inter_multi}};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            if (!source || !config_is_set(source, "nvs_model", sizes[i].key))
                *sizes[i].field = sizes[i].value;
        }
    }
    return lact_nvs_config_check(c);
}
