/* Option tables of [scenes] and [nvs_train]. */
#include "tools/nvs_sections.h"

#include <stddef.h>

NvsSettings nvs_settings;

#define SCENES(field) offsetof(ScenesConfig, field)
#define TRAIN(field)  offsetof(NvsTrainConfig, field)

const Option scenes_options[] = {
    {"root", OPTION_STRING, SCENES(root), "", 0, 0, NULL, "data-dir",
     "posed scenes: folders or tar files, with commas between"},
    {"val_root", OPTION_STRING, SCENES(val_root), "", 0, 0, NULL, "val-dir",
     "scenes of the validation; empty: those of --data-dir"},
    {"split", OPTION_STRING, SCENES(split), "train", 0, 0, NULL, "train-split",
     "split to train on; empty: all"},
    {"val_split", OPTION_STRING, SCENES(val_split), "test", 0, 0, NULL, "val-split",
     "split of the validation; none: no validation"},
    {"val_index", OPTION_STRING, SCENES(val_index), "", 0, 0, NULL, "val-index",
     "JSON of the validation's scenes with context and target frames; empty: one is generated, "
     "with "
     "gaps, inputs and targets as in training"},
    {"gap_min", OPTION_INT, SCENES(gap_min), "25", 1, 1e6, NULL, "gap-min",
     "least frames between the first and the last view of a sample"},
    {"gap_max", OPTION_INT, SCENES(gap_max), "192", 1, 1e6, NULL, "gap-max",
     "most frames between the first and the last view of a sample"},
    {"inputs", OPTION_INT, SCENES(inputs), "2", 1, VIEW_MAX - 1, NULL, "inputs",
     "input views of a sample"},
    {"targets", OPTION_INT, SCENES(targets), "6", 1, VIEW_MAX - 1, NULL, "targets",
     "target views of a sample"},
    {"clamp", OPTION_BOOL, SCENES(clamp), "false", 0, 0, NULL, "gap-clamp",
     "short scenes: gaps up to what they have, instead of leaving them out"},
    {"inside", OPTION_BOOL, SCENES(inside), "false", 0, 0, NULL, "targets-inside",
     "targets strictly between the inputs"},
    {"turn_max", OPTION_FLOAT, SCENES(turn_max), "0", 0, 180, NULL, "turn-max",
     "most degrees between the first and the last camera of a sample; 0: any"},
    {"crop", OPTION_BOOL, SCENES(crop), "false", 0, 0, NULL, "vary-crop",
     "samples are cropped at one of five places instead of the centre"},
    {"tint", OPTION_FLOAT, SCENES(tint), "0", 0, 1, NULL, "tint",
     "colours of a sample vary: gamma and gains of exp(-tint) to exp(tint)"},
    {"mirror", OPTION_FLOAT, SCENES(mirror), "0", 0, 1, NULL, "mirror",
     "share of the samples that are mirrored: pictures and cameras"},
    {"synthetic", OPTION_FLOAT, SCENES(synthetic), "0", 0, 1, NULL, "synthetic-share",
     "share of the samples that come from synthetic scenes; 0: every scene counts alike"},
    {"val_scenes", OPTION_INT, SCENES(val_scenes), "8", 1, 1e6, NULL, "val-scenes",
     "most scenes of a validation: the first by name"},
    {"cache_mb", OPTION_INT, SCENES(cache_mb), "256", 0, 1e6, NULL, NULL,
     "decoded training views to keep, MB"},
    {"on_corrupt", OPTION_CHOICE, SCENES(on_corrupt), "skip", 0, 0, "skip|fail", "on-corrupt",
     "scenes with faulty camera files, pictures that cannot be used: leave them out (counted and "
     "named), or fail"},
    {"workers", OPTION_INT, SCENES(workers), "0", 0, 256, NULL, "workers",
     "decoding threads; 0: one per processor; results do not depend on it"},
    {0},
};

const Option nvs_train_options[] = {
    {"batch_size", OPTION_INT, TRAIN(batch_size), "32", 1, 65536, NULL, "batch-size",
     "samples per micro-step"},
    {"grad_accum_steps", OPTION_INT, TRAIN(grad_accum_steps), "1", 1, 65536, NULL,
     "grad-accum-steps", "micro-steps per optimiser step"},
    {"steps", OPTION_INT, TRAIN(steps), "20000", 1, 1e9, NULL, "steps",
     "optimiser steps of the whole run: the schedule's length"},
    {"max_steps", OPTION_INT, TRAIN(max_steps), "0", 0, 1e15, NULL, "max-steps",
     "stop and save after this many steps; 0: off (the schedule keeps its length)"},
    {"time_limit_s", OPTION_FLOAT, TRAIN(time_limit_s), "0", 0, 1e9, NULL, "time-limit",
     "stop and save after this many seconds; 0: off"},
    {"seed", OPTION_INT, TRAIN(seed), "77", 0, 9.0e15, NULL, "seed",
     "of every random stream: weights, scenes, views"},
    {"warmup_steps", OPTION_INT, TRAIN(warmup_steps), "3000", 0, 1e9, NULL, "warmup-steps",
     "steps of linear warm-up from 0; then a cosine to 0"},
    {"lr", OPTION_FLOAT, TRAIN(lr), "4e-4", 0, 100, NULL, "lr", "learning rate after the warm-up"},
    {"weight_decay", OPTION_FLOAT, TRAIN(weight_decay), "0.05", 0, 10, NULL, "weight-decay",
     "AdamW decay of tensors with two axes or more, fast weights too"},
    {"beta1", OPTION_FLOAT, TRAIN(beta1), "0.9", 0, 0.999999, NULL, NULL,
     "AdamW decay of the first moment"},
    {"beta2", OPTION_FLOAT, TRAIN(beta2), "0.95", 0, 0.9999999, NULL, NULL,
     "AdamW decay of the second moment"},
    {"eps", OPTION_FLOAT, TRAIN(eps), "1e-8", 1e-30, 1, NULL, NULL, "AdamW epsilon"},
    {"clip_grad", OPTION_FLOAT, TRAIN(clip_grad), "1", 0, 1e9, NULL, "clip-grad",
     "global L2 norm that gradients are clipped to; 0: off"},
    {"skip_norm", OPTION_FLOAT, TRAIN(skip_norm), "4", 0, 1e9, NULL, "skip-norm",
     "a step whose gradient norm, before clipping, is above this changes nothing; 0: off"},
    {"val_interval", OPTION_INT, TRAIN(val_interval), "1000", 0, 1e9, NULL, "val-interval",
     "steps between validations; 0: only at the end"},
    {"patience", OPTION_INT, TRAIN(patience), "0", 0, 1e6, NULL, "patience",
     "validations in a row without a new best that end the run; 0: off"},
    {"log_interval", OPTION_INT, TRAIN(log_interval), "50", 1, 1e9, NULL, "log-interval",
     "steps between rows of metrics.jsonl and metrics.csv"},
    {"give_up_after", OPTION_INT, TRAIN(give_up_after), "10", 1, 1e9, NULL, NULL,
     "non-finite steps in a row that end the run; of steps above skip_norm, ten times as many"},
    {"model_ema", OPTION_BOOL, TRAIN(model_ema), "false", 0, 0, NULL, "model-ema",
     "average the weights over the steps, too; both are validated and saved, and the best "
     "checkpoint is the one where the better of the two has its highest PSNR"},
    {"model_ema_decay", OPTION_FLOAT, TRAIN(model_ema_decay), "0.999", 0, 0.9999999, NULL,
     "model-ema-decay", "average = decay average + (1 - decay) weights, every step"},
    {"initial_checkpoint", OPTION_STRING, TRAIN(initial_checkpoint), "", 0, 0, NULL,
     "initial-checkpoint",
     "start from these weights: of a run, or official ones as safetensors (names may begin with "
     "module. and _orig_mod.)"},
    {0},
};

Status scenes_recipe(ViewRecipe *out) {
    const ScenesConfig *c = &nvs_settings.scenes;
    *out = (ViewRecipe){.gap_min = c->gap_min,
                        .gap_max = c->gap_max,
                        .inputs = c->inputs,
                        .targets = c->targets,
                        .clamp = c->clamp,
                        .inside = c->inside,
                        .turn_max = c->turn_max,
                        .crop = c->crop,
                        .tint = c->tint,
                        .mirror = c->mirror,
                        .synthetic = c->synthetic};
    if (c->inputs + c->targets > VIEW_MAX)
        return status_set(STATUS_USAGE,
                          "%lld inputs and %lld targets: a sample has at most %d views",
                          (long long)c->inputs, (long long)c->targets, (int)VIEW_MAX);
    return view_recipe_check(out);
}
