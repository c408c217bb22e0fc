/* The configuration sections that training, scoring and classifying share, each with one static
 * value struct, so that a file written for one command is understood by all.
 *
 *   [model] vision/vittt.h   [data] datasets/folder.h   [preprocess], [augment]
 * datasets/transform.h [loader] [optim] [train] [run] [dist] here
 */
#ifndef TTV_TOOLS_SECTIONS_H
#define TTV_TOOLS_SECTIONS_H

#include "core/config.h"
#include "datasets/folder.h"
#include "datasets/transform.h"
#include "vision/vittt.h"

/* Section [loader]. */
typedef struct LoaderConfig {
    int64_t batch_size; /* images a micro-step */
    int64_t workers;    /* decoding threads; 0: one per processor */
    int64_t prefetch;   /* batches ahead */
} LoaderConfig;

/* Section [optim]: vittt.md 7. lr, warm-up start and floor scale with the batch unless lr is given.
 */
typedef struct OptimConfig {
    double lr; /* 0: lr_base * batch * grad_accum_steps / lr_base_size */
    double lr_base, lr_base_size;
    double warmup_lr, min_lr; /* for lr == lr_base; scaled like it */
    double warmup_epochs;
    double weight_decay, beta1, beta2, eps, clip_grad;
    int matrices; /* 0 adamw, 1 muon */
    double muon_momentum;
} OptimConfig;

/* Section [train]. */
typedef struct TrainConfig {
    int64_t epochs, max_steps, grad_accum_steps, seed;
    double smoothing;
    double fraction;     /* share of the training images */
    double time_limit_s; /* 0: none */
    double val_interval; /* epochs */
    int64_t patience;    /* validations without a new best; 0: off */
    int64_t log_interval, give_up_after;
    bool augment; /* --no-aug: the evaluation transform */
    bool overfit_batch;
    bool model_ema;
    double model_ema_decay;
    double mesa, mesa_start; /* self-distillation (tools/teacher.h); 0: off */
    char initial_checkpoint[CONFIG_TEXT];
} TrainConfig;

/* Section [run]. */
typedef struct RunConfig {
    char output[CONFIG_TEXT];      /* run folder */
    char resume[CONFIG_TEXT];      /* none, auto, last, or a run folder */
    char tensorboard[CONFIG_TEXT]; /* folder for event files; "": none */
    bool exist_ok, dry_run;
    int64_t save_every; /* optimiser steps; 0: every epoch */
    double save_minutes;
    int64_t checkpoint_hist;
} RunConfig;

/* Section [dist]: several processes, one a card, that do one thing together. */
typedef struct DistConfig {
    int64_t ranks; /* processes that this one starts; 0: as many as --device lists cards */
    int64_t nodes, node_rank; /* hosts on which that is done, and which of them this is */
    char rdzv[CONFIG_TEXT];   /* HOST:PORT where rank 0 of several hosts listens */
    int64_t port;             /* 0: MASTER_PORT + 1 */
    double join_timeout_s, timeout_s;
} DistConfig;

typedef struct Settings {
    VitttConfig model;
    DataConfig data;
    Preprocess preprocess;
    Augment augment;
    LoaderConfig loader;
    OptimConfig optim;
    TrainConfig train;
    RunConfig run;
    DistConfig dist;
} Settings;
extern Settings settings;

/* The section of that name, bound to `settings`; for building a command's list:
 *     static const Section *sections(int *count) {
 *         static Section list[3];
 *         list[0] = section_of("model"); ...
 * The name of the result is NULL when there is no such section. */
Section section_of(const char *name);
/* The listed sections ("model data loader") into list; returns their number. */
int sections_fill(Section *list, int capacity, const char *names);

/* A value as config_set takes it: strings raw, without the quotes of a file. */
void option_plain_text(const Option *o, const void *values, char *out, size_t size);

/* Takes values of stored INI text for those options that nobody has set in `config`; `name` is
 * their origin. `keys` lists what is taken: "data common.device -train.max_steps". `changed` (may
 * be NULL) hears of listed keys that were set to something else. */
typedef void (*OverlayChange)(const char *section, const char *key, const char *stored,
                              const char *now);
Status config_overlay(Config *config, const char *text, size_t size, const char *name,
                      const char *keys, OverlayChange changed);

#endif
