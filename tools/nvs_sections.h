/* The configuration sections of `ttv nvs`: [nvs_model] (nvs/lact_nvs.h), [scenes] and [nvs_train].
 * section_of() of tools/sections.h finds them too. */
#ifndef TTV_TOOLS_NVS_SECTIONS_H
#define TTV_TOOLS_NVS_SECTIONS_H

#include "datasets/view_sample.h"
#include "nvs/lact_nvs.h"

/* Section [scenes]. */
typedef struct ScenesConfig {
    char root[CONFIG_TEXT];     /* folders or tar files, commas between */
    char val_root[CONFIG_TEXT]; /* "": root */
    char split[CONFIG_TEXT], val_split[CONFIG_TEXT];
    int64_t gap_min, gap_max, inputs, targets;
    bool clamp, inside;
    int64_t val_scenes; /* at most */
    int64_t cache_mb, workers;
} ScenesConfig;

/* Section [nvs_train]: lact_nvs.md 7. */
typedef struct NvsTrainConfig {
    int64_t batch_size, grad_accum_steps, steps, max_steps, seed, warmup_steps;
    double lr, weight_decay, beta1, beta2, eps, clip_grad, skip_norm;
    int64_t val_interval, log_interval, give_up_after; /* steps */
    double time_limit_s;
} NvsTrainConfig;

typedef struct NvsSettings {
    LactNvsConfig model;
    ScenesConfig scenes;
    NvsTrainConfig train;
} NvsSettings;
extern NvsSettings nvs_settings;
extern const Option scenes_options[], nvs_train_options[];

/* [scenes] as a recipe, checked. */
Status scenes_recipe(ViewRecipe *out);

#endif
