/* Option tables of [loader], [optim], [train] and [run], and the shared value structs. */
#include "tools/sections.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/peers.h"
#include "tools/cli.h"
#include "tools/nvs_sections.h"

Settings settings;

#define AT(type, field) offsetof(type, field)

static const Option loader_options[] = {
    {"batch_size", OPTION_INT, AT(LoaderConfig, batch_size), "128", 1, 65536, NULL, "batch-size",
     "images per micro-step, of all ranks together"},
    {"workers", OPTION_INT, AT(LoaderConfig, workers), "0", 0, 1024, NULL, "workers",
     "decoding threads; 0: one per processor, one less beside a card; results do not depend on it"},
    {"prefetch", OPTION_INT, AT(LoaderConfig, prefetch), "4", 1, 1024, NULL, NULL,
     "batches prepared ahead"},
    {0},
};

static const Option optim_options[] = {
    {"lr", OPTION_FLOAT, AT(OptimConfig, lr), "0", 0, 100, NULL, "lr",
     "learning rate; 0: lr_base * batch_size * grad_accum_steps / lr_base_size"},
    {"lr_base", OPTION_FLOAT, AT(OptimConfig, lr_base), "5e-4", 0, 100, NULL, "lr-base",
     "learning rate for lr_base_size images per step"},
    {"lr_base_size", OPTION_FLOAT, AT(OptimConfig, lr_base_size), "512", 1, 1e9, NULL,
     "lr-base-size", "images per step that lr_base is meant for"},
    {"warmup_lr", OPTION_FLOAT, AT(OptimConfig, warmup_lr), "5e-7", 0, 100, NULL, "warmup-lr",
     "start of the warm-up when lr is lr_base; scales with lr"},
    {"min_lr", OPTION_FLOAT, AT(OptimConfig, min_lr), "5e-6", 0, 100, NULL, "min-lr",
     "end of the cosine when lr is lr_base; scales with lr"},
    {"warmup_epochs", OPTION_FLOAT, AT(OptimConfig, warmup_epochs), "20", 0, 1e6, NULL,
     "warmup-epochs", "epochs of linear warm-up"},
    {"weight_decay", OPTION_FLOAT, AT(OptimConfig, weight_decay), "0.05", 0, 10, NULL,
     "weight-decay", "AdamW decay of matrices and kernels (not of 1-D parameters and biases)"},
    {"beta1", OPTION_FLOAT, AT(OptimConfig, beta1), "0.9", 0, 0.999999, NULL, NULL,
     "AdamW decay of the first moment"},
    {"beta2", OPTION_FLOAT, AT(OptimConfig, beta2), "0.999", 0, 0.9999999, NULL, NULL,
     "AdamW decay of the second moment"},
    {"eps", OPTION_FLOAT, AT(OptimConfig, eps), "1e-8", 1e-30, 1, NULL, NULL, "AdamW epsilon"},
    {"clip_grad", OPTION_FLOAT, AT(OptimConfig, clip_grad), "5", 0, 1e9, NULL, "clip-grad",
     "global L2 norm that gradients are clipped to; 0: off"},
    {"matrices", OPTION_CHOICE, AT(OptimConfig, matrices), "adamw", 0, 0, "adamw|muon", "matrices",
     "optimiser of the weight matrices in blocks and stem: AdamW, or Muon with the same rate and "
     "decay"},
    {"muon_momentum", OPTION_FLOAT, AT(OptimConfig, muon_momentum), "0.95", 0, 0.9999, NULL, NULL,
     "Muon's decay of the momentum"},
    {0},
};

static const Option train_options[] = {
    {"epochs", OPTION_INT, AT(TrainConfig, epochs), "300", 1, 1000000, NULL, "epochs",
     "passes over the training images"},
    {"max_steps", OPTION_INT, AT(TrainConfig, max_steps), "0", 0, 1e15, NULL, "max-steps",
     "stop and save after this many optimiser steps; 0: off (the schedule keeps its length)"},
    {"time_limit_s", OPTION_FLOAT, AT(TrainConfig, time_limit_s), "0", 0, 1e9, NULL, "time-limit",
     "stop and save after this many seconds; 0: off"},
    {"grad_accum_steps", OPTION_INT, AT(TrainConfig, grad_accum_steps), "1", 1, 65536, NULL,
     "grad-accum-steps", "micro-steps per optimiser step"},
    {"smoothing", OPTION_FLOAT, AT(TrainConfig, smoothing), "0.1", 0, 0.999, NULL, "smoothing",
     "label smoothing s: target 1-s+s/classes for the label, s/classes elsewhere"},
    {"seed", OPTION_INT, AT(TrainConfig, seed), "0", 0, 9.0e15, NULL, "seed",
     "of every random stream: weights, order, augmentation, stochastic depth"},
    {"fraction", OPTION_FLOAT, AT(TrainConfig, fraction), "1", 1e-9, 1, NULL, "fraction",
     "share of the training images that is used"},
    {"aug", OPTION_BOOL, AT(TrainConfig, augment), "true", 0, 0, NULL, "aug",
     "train on the evaluation transform, without augmentation"},
    {"val_interval", OPTION_FLOAT, AT(TrainConfig, val_interval), "1", 0, 1e6, NULL, "val-interval",
     "epochs between validations; 0: only at the end"},
    {"patience", OPTION_INT, AT(TrainConfig, patience), "0", 0, 1e6, NULL, "patience",
     "validations in a row without a new best that end the run; 0: off"},
    {"log_interval", OPTION_INT, AT(TrainConfig, log_interval), "50", 1, 1e9, NULL, "log-interval",
     "steps between rows of metrics.jsonl and metrics.csv"},
    {"give_up_after", OPTION_INT, AT(TrainConfig, give_up_after), "10", 1, 1e9, NULL, NULL,
     "non-finite steps in a row that end the run"},
    {"model_ema", OPTION_BOOL, AT(TrainConfig, model_ema), "false", 0, 0, NULL, "model-ema",
     "average the weights over the steps, too; both are validated and saved, and the best "
     "checkpoint is the one where the better of the two has its highest top-1"},
    {"model_ema_decay", OPTION_FLOAT, AT(TrainConfig, model_ema_decay), "0.9996", 0, 0.9999999,
     NULL, "model-ema-decay", "average = decay average + (1 - decay) weights, every step"},
    {"mesa", OPTION_FLOAT, AT(TrainConfig, mesa), "0", 0, 1000, NULL, "mesa",
     "self-distillation: the loss has this times the cross-entropy against the probabilities that "
     "the averaged weights give (needs --model-ema); 0: off"},
    {"mesa_start", OPTION_FLOAT, AT(TrainConfig, mesa_start), "0.25", 0, 1, NULL, "mesa-start",
     "share of the epochs that passes before that begins"},
    {"overfit_batch", OPTION_BOOL, AT(TrainConfig, overfit_batch), "false", 0, 0, NULL,
     "overfit-batch", "train on the first batch again and again (a check of the set-up)"},
    {"initial_checkpoint", OPTION_STRING, AT(TrainConfig, initial_checkpoint), "", 0, 0, NULL,
     "initial-checkpoint", "start from these weights; the head is left out when classes differ"},
    {0},
};

static const Option run_options[] = {
    {"output", OPTION_STRING, AT(RunConfig, output), "runs/train", 0, 0, NULL, "output",
     "run folder; when it exists, -2, -3, ... is appended"},
    {"resume", OPTION_STRING, AT(RunConfig, resume), "none", 0, 0, NULL, "resume",
     "none; last: continue the run in --output; auto: continue it if there is one; or a run "
     "folder"},
    {"exist_ok", OPTION_BOOL, AT(RunConfig, exist_ok), "false", 0, 0, NULL, "exist-ok",
     "start in an existing folder that holds no checkpoint"},
    {"save_every", OPTION_INT, AT(RunConfig, save_every), "0", 0, 1e15, NULL, "save-every",
     "optimiser steps between checkpoints; 0: every epoch, of novel views every val_interval steps "
     "(1000 without)"},
    {"save_minutes", OPTION_FLOAT, AT(RunConfig, save_minutes), "0", 0, 1e6, NULL, "save-minutes",
     "minutes between checkpoints; 0: off"},
    {"checkpoint_hist", OPTION_INT, AT(RunConfig, checkpoint_hist), "2", 0, 100000, NULL,
     "checkpoint-hist", "newest checkpoints kept besides last and best"},
    {"tensorboard", OPTION_STRING, AT(RunConfig, tensorboard), "", 0, 0, NULL, "tensorboard",
     "write the numbers of metrics.csv as TensorBoard's event files, too, into a folder of the "
     "run's "
     "name in this folder"},
    {"dry_run", OPTION_BOOL, AT(RunConfig, dry_run), "false", 0, 0, NULL, "dry-run",
     "check data, model and disk, print the plan, write nothing"},
    {0},
};

static const Option dist_options[] = {
    {"ranks", OPTION_INT, AT(DistConfig, ranks), "0", 0, PEERS_MAX, NULL, "ranks",
     "processes that share the work, on each host, each with a card or a part of the processors; "
     "0: one for each card that --device lists. Under torchrun, mpirun or srun: not needed"},
    {"nodes", OPTION_INT, AT(DistConfig, nodes), "1", 1, PEERS_MAX, NULL, "nodes",
     "hosts that share the work: the same command on each, with its own --node-rank"},
    {"node_rank", OPTION_INT, AT(DistConfig, node_rank), "0", 0, PEERS_MAX - 1, NULL, "node-rank",
     "which of --nodes this host is; 0 has rank 0, which writes and speaks"},
    {"rdzv", OPTION_STRING, AT(DistConfig, rdzv), "", 0, 0, NULL, "rdzv",
     "HOST or HOST:PORT of node 0, where the ranks of --nodes meet; without PORT at --rdzv-port, "
     "or 29500"},
    {"rdzv_port", OPTION_INT, AT(DistConfig, port), "0", 0, 65535, NULL, "rdzv-port",
     "where ranks of several hosts meet, on host MASTER_ADDR; 0: MASTER_PORT + 1"},
    {"rdzv_timeout_s", OPTION_FLOAT, AT(DistConfig, join_timeout_s), "300", 1, 1e6, NULL,
     "rdzv-timeout", "seconds in which all ranks have to come"},
    {"dist_timeout_s", OPTION_FLOAT, AT(DistConfig, timeout_s), "600", 1, 1e6, NULL, "dist-timeout",
     "seconds after which a rank that does not answer is given up, and the run with it"},
    {0},
};

/* Every section that can stand in a training file. */
static const struct {
    const char *name;
    const Option *options;
    void *values;
    size_t size;
} all_sections[] = {
    {"model", vittt_options, &settings.model, sizeof settings.model},
    {"data", data_options, &settings.data, sizeof settings.data},
    {"preprocess", preprocess_options, &settings.preprocess, sizeof settings.preprocess},
    {"augment", augment_options, &settings.augment, sizeof settings.augment},
    {"loader", loader_options, &settings.loader, sizeof settings.loader},
    {"optim", optim_options, &settings.optim, sizeof settings.optim},
    {"train", train_options, &settings.train, sizeof settings.train},
    {"run", run_options, &settings.run, sizeof settings.run},
    {"dist", dist_options, &settings.dist, sizeof settings.dist},
    {"nvs_model", lact_nvs_options, &nvs_settings.model, sizeof nvs_settings.model},
    {"scenes", scenes_options, &nvs_settings.scenes, sizeof nvs_settings.scenes},
    {"nvs_train", nvs_train_options, &nvs_settings.train, sizeof nvs_settings.train},
    {"common", common_options, &common, sizeof common},
};
enum { SECTIONS = sizeof all_sections / sizeof all_sections[0] };

Section section_of(const char *name) {
    for (int i = 0; i < SECTIONS; i++)
        if (strcmp(all_sections[i].name, name) == 0)
            return (Section){all_sections[i].name, all_sections[i].options, all_sections[i].values};
    return (Section){0};
}

int sections_fill(Section *list, int capacity, const char *names) {
    int count = 0;
    while (*names && count < capacity) {
        char name[32] = "";
        size_t n = strcspn(names, " ");
        if (n < sizeof name) memcpy(name, names, n);
        list[count++] = section_of(name);
        names += n;
        names += strspn(names, " ");
    }
    return count;
}

void option_plain_text(const Option *o, const void *values, char *out, size_t size) {
    if (o->type == OPTION_STRING)
        snprintf(out, size, "%s", (const char *)values + o->offset);
    else
        option_value_text(o, values, out, size);
}

/* ---- taking over a stored configuration ---- */

/* The stored text is read into structs of its own, so that typed and checked values come out. */
typedef struct Stored {
    Section list[SECTIONS];
    Config *config;
} Stored;

static Status stored_read(Stored *s, const char *text, size_t size, const char *name) {
    for (int i = 0; i < SECTIONS; i++) {
        void *values;
        TRY(mem_alloc(&values, 1, all_sections[i].size, "stored configuration"));
        s->list[i] = (Section){all_sections[i].name, all_sections[i].options, values};
    }
    TRY(config_new(s->list, SECTIONS, &s->config));
    return config_read_text(s->config, text, size, name, true);
}

static void stored_free(Stored *s) {
    config_free(s->config);
    for (int i = 0; i < SECTIONS; i++) mem_free(s->list[i].values);
}

/* Is section.key meant by a list like "data common.device -train.max_steps"? The last word that
 * fits decides. */
static bool listed(const char *list, const char *section, const char *key) {
    char full[128];
    bool yes = false;
    snprintf(full, sizeof full, "%s.%s", section, key);
    while (*list) {
        size_t n = strcspn(list, " ");
        bool minus = *list == '-';
        const char *word = list + minus;
        size_t length = n - minus;
        if ((strlen(section) == length && strncmp(word, section, length) == 0) ||
            (strlen(full) == length && strncmp(word, full, length) == 0))
            yes = !minus;
        list += n;
        list += strspn(list, " ");
    }
    return yes;
}

static Status overlay_option(Config *config, const Section *now, const Section *stored,
                             const Option *o, const char *name, OverlayChange changed) {
    char new_text[CONFIG_TEXT], old_text[CONFIG_TEXT], assignment[CONFIG_TEXT + 128];
    option_plain_text(o, stored->values, old_text, sizeof old_text);
    option_plain_text(o, now->values, new_text, sizeof new_text);
    if (config_is_set(config, now->name, o->key)) {
        if (changed && strcmp(new_text, old_text) != 0)
            changed(now->name, o->key, old_text, new_text);
        return STATUS_OK;
    }
    snprintf(assignment, sizeof assignment, "%s.%s=%s", now->name, o->key, old_text);
    return config_set(config, assignment, name);
}

Status config_overlay(Config *config, const char *text, size_t size, const char *name,
                      const char *keys, OverlayChange changed) {
    Stored stored = {0};
    Status s = stored_read(&stored, text, size, name);
    for (int i = 0; i < SECTIONS && s == STATUS_OK; i++) {
        Section now = section_of(all_sections[i].name);
        for (const Option *o = now.options; o->key && s == STATUS_OK; o++)
            if (listed(keys, now.name, o->key) && config_is_set(stored.config, now.name, o->key))
                s = overlay_option(config, &now, &stored.list[i], o, name, changed);
    }
    stored_free(&stored);
    return s;
}
