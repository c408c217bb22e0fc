/* LaCT-NVS (lact_nvs.md 1, 3, 6): posed input views in, any view out.
 *
 * Tokens of input views write the fast weights of every block; tokens of target views only read.
 * So a scene can be reconstructed once (LactState) and rendered from any camera, with the same
 * result as the joint forward pass of training. Tokens come from nvs/patches.h or op_view_tokens.
 *
 * Ownership: parameters live in the caller's Params; the model holds descriptions. Threads: one at
 * a time, like its Device.
 */
#ifndef TTV_NVS_LACT_NVS_H
#define TTV_NVS_LACT_NVS_H

#include "core/config.h"
#include "nvs/camera.h"
#include "nvs/patches.h"
#include "ttt/lact_state.h"

/* Section [nvs_model] of a configuration. */
typedef struct LactNvsConfig {
    char preset[CONFIG_TEXT];        /* a row of lact_nvs.md 1, or "custom" */
    int64_t height, view_width;      /* of a view, pixels; multiples of patch */
    int64_t patch, width, layers;    /* p, d */
    int64_t head_width;              /* of an attention head */
    int64_t fast_heads, inter_multi; /* H, h/e */
    char variant[CONFIG_TEXT];       /* ttt/lact.h */
    int poses;                       /* PoseRule */
    double pose_margin;
    bool recompute; /* training keeps the input of each block only */
    bool frugal;    /* training computes hidden values of the MLPs again, but for the last blocks */
    bool span;      /* Newton-Schulz in the span of the writing tokens where that is less work */
} LactNvsConfig;
extern const Option lact_nvs_options[];

/* The i-th preset's name, NULL past the end. */
const char *lact_nvs_preset_name(int i);
/* Fills sizes from `preset` for keys that the configuration did not set itself, then checks.
 * `source`: where section [nvs_model] was read from, NULL when nothing was set. STATUS_USAGE with
 * the nearest name or the sizes that do not fit. */
Status lact_nvs_config_resolve(LactNvsConfig *c, const Config *source);
Status lact_nvs_config_check(const LactNvsConfig *c);
/* Sizes from the shapes of a checkpoint without configuration, official ones included; its views'
 * size and its variant are not in there, except that query_is_key is told by the missing query
 * rows. Fields that the file says nothing about keep their value. STATUS_DATA names the tensor. */
Status lact_nvs_config_from_weights(LactNvsConfig *c, const SafeFile *f);

typedef struct LactNvsBlock {
    Var *norm_w[3]; /* before attention, fast weights, MLP */
    Var *qkv_w, *proj_w, *q_norm_w, *k_norm_w, *fc_w, *fc_proj_w;
    LactLayer ttt;
    const QuerySwap *swap; /* for study; optional, the caller's: other queries in the attention */
} LactNvsBlock;

/* One block of a forward pass that is to be run again in the backward. */
typedef struct LactNvsPass {
    const struct LactNvs *model;
    int64_t index, writing; /* tokens a sample that write */
} LactNvsPass;

typedef struct LactNvs {
    LactNvsConfig config;
    Var *input_w, *input_norm_w, *output_norm_w, *output_w;
    LactNvsBlock *blocks;
    LactNvsPass *passes;
    ViewBlock *views; /* the blocks as rendering reads them */
} LactNvs;

/* Registers all parameters (official names) in `p`; call params_build afterwards. */
Status lact_nvs_new(const LactNvsConfig *c, Params *p, LactNvs **out);
void lact_nvs_free(LactNvs *m);

/* Tokens of a view (l) and values of one of its tokens. */
int64_t lact_nvs_view_tokens(const LactNvs *m);
int64_t lact_nvs_token_size(const LactNvs *m); /* 12 p^2 */

/* Joint pass: tokens [B, V*l, 12 p^2], F32 or the tape's activations, the first `inputs` views
 * being input views -> patches F32 [B, (V-inputs)*l, 3 p^2] of the target views, 0..1. *state (may
 * be NULL; not with recompute while recording) receives the fast weights. */
Var *lact_nvs_forward(LactNvs *m, Tape *t, Var *tokens, int64_t inputs, LactState *state);

/* A state of the model's sizes for `batch` scenes. */
Status lact_nvs_state_new(const LactNvs *m, Device *d, int64_t batch, LactState **out);

/* Both in a pass without recording that the caller began (tape_reset(t, false)); tokens as above.
 * Input views alone write *state, which has room for B scenes. */
Status lact_reconstruct(LactNvs *m, Tape *t, Var *tokens, LactState *state);
/* Patches of target views from a state of B scenes; any number of views. */
Var *lact_render(LactNvs *m, Tape *t, Var *tokens, const LactState *state);

/* Whether a state belongs to models of these sizes; STATUS_DATA says what differs. */
Status lact_nvs_state_check(const LactNvs *m, const LactState *s);

#endif
