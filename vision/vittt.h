/* The ViTTT image classifier, plain and hierarchical (vittt.md sections 1, 4, 5, 6): a hierarchical
 * one is described by [model] stages, and `width`, `heads` then are those of the last stage,
 * `depth` counts all blocks, `patch` is 32, what the stages divide the picture by.
 *
 * Ownership: the parameters live in the caller's Params, drop_scale in the device's state arena;
 * the model itself holds descriptions. Threads: one at a time, like its Device.
 */
#ifndef TTV_VISION_VITTT_H
#define TTV_VISION_VITTT_H

#include "core/config.h"
#include "core/shard.h"
#include "nn/ops.h"
#include "nn/params.h"
#include "ttt/sequence_mixer.h"
#include "ttt/vittt_mixer.h"
#include "vision/hier.h"
#include "vision/stem.h"

/* Section [model] of a configuration. */
typedef struct VitttConfig {
    char preset[CONFIG_TEXT]; /* a name of vittt_preset_name(), or "custom" */
    int64_t image_size, patch, width, depth, heads, mlp_ratio, classes;
    double drop_path;           /* rate of the last block */
    char mixer[CONFIG_TEXT];    /* a variant (ttt/vittt_mixer.h) or ttt/sequence_mixer.h's names */
    int form;                   /* VitttForm */
    int64_t steps;              /* inner steps; 0: 1 */
    int64_t chunk;              /* of a graph mixer, tokens; 0: the mixer's own */
    int visibility, scan, loss; /* of a graph mixer: 0 its own, else 1 + GraphVisibility, ... */
    bool recompute;             /* training keeps the input of each block only */
    int64_t stem_depth;         /* blocks of a stem of convolutions (vision/stem.h); 0: patches */
    int64_t stem_width;         /* its channels */
    char stages[CONFIG_TEXT];   /* of a hierarchical model (vision/hier.h); "": a plain one */
    bool rope;                  /* rotary positions of q and k: for one size of pictures alone */
} VitttConfig;
extern const Option vittt_options[];

/* The i-th preset's name, NULL past the end. */
const char *vittt_preset_name(int i);
/* Fills width, depth, ... from `preset` for keys that the configuration did not set itself; accepts
 * vittt_tiny, vittt-t, vittt_t, ... and leaves the full name in c->preset; checks that the sizes
 * fit. `source`: where section [model] was read from, NULL when nothing was set. STATUS_USAGE with
 * the nearest name or the sizes that do not fit. */
Status vittt_config_resolve(VitttConfig *c, const Config *source);
/* The mixer that [model] asks for: *sequence with kind SEQUENCE_NONE, then *variant. STATUS_USAGE
 * for unknown names and rules that do not go together. */
Status vittt_config_mixer(const VitttConfig *c, SequenceSpec *sequence, VitttVariant *variant);
/* The checks alone, for a configuration that is resolved already. */
Status vittt_config_check(const VitttConfig *c);

typedef struct VitttBlock {
    Var *cpe_w, *cpe_b, *norm1_w, *norm1_b, *norm2_w, *norm2_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
    Var *dwc_w, *dwc_b;    /* 3x3 convolution inside the MLP of a hierarchical model */
    float eps;             /* of both norms */
    NormFold fold1, fold2; /* norm1 within mixer.qkv, norm2 within fc1 (vittt_fold) */
    VitttMixer mixer;
    SequenceMixer sequence; /* in its place where its kind is not SEQUENCE_NONE */
    double drop_path;       /* rate of this block */
} VitttBlock;

/* One block of a forward pass that is to be run again in the backward. */
typedef struct VitttPass {
    const struct Vittt *model;
    int64_t index, height, width; /* of the block's map */
    bool training;
    Var **stats; /* of the result, where a norm within a product wants them; NULL: none does */
} VitttPass;

typedef struct Vittt {
    VitttConfig config;
    Var *patch_w, *patch_b, *norm_w, *norm_b, *head_w, *head_b;
    Stem stem; /* in place of patch_w, patch_b when config.stem_depth > 0 */
    Hier hier; /* in place of patch_w, patch_b, norm_w, norm_b of a hierarchical model */
    VitttBlock *blocks;
    VitttPass *passes; /* of the last forward, one for each block */
    const Params *params;
    uint64_t folded_at; /* params->changes when vittt_fold ran: later the folded weights are old */
    /* Stochastic depth, none until drawn: F32 [2*depth, max_batch] on the device, one row per
     * branch; and the same on the host. */
    Tensor drop_scale;
    float *drop_host;
    int64_t max_batch;
    Shard shard; /* of the batch, where several ranks train: its samples have the draws that they
                    have with one */
} Vittt;

/* Registers all parameters (published names and order) in `p`; call params_build afterwards. */
Status vittt_new(const VitttConfig *c, Params *p, Vittt **out);
void vittt_free(Vittt *m);

/* Stochastic-depth scales for one micro-step into drop_scale, keyed by (seed, step, micro); a no-op
 * when drop_path is 0. */
Status vittt_draw_drop_path(Vittt *m, Device *d, uint64_t seed, int64_t step, int64_t micro,
                            int64_t batch);
/* The same for a coming step: they are there after device_commit(). */
Status vittt_stage_drop_path(Vittt *m, Device *d, uint64_t seed, int64_t step, int64_t micro,
                             int64_t batch);

/* Folds the norms of the blocks into the products behind them (nn/ops.h), for passes that record
 * nothing over weights that stay as they are: where the device gains by it with batches of `batch`
 * images; elsewhere it changes nothing. Once more when weights have changed (params_refresh,
 * adamw): until then passes keep the norms apart. The folded weights lie in d->weights, 103 MB for
 * ViTTT-B. */
Status vittt_fold(Vittt *m, Device *d, int64_t batch);

/* image [B,H,W,3] normalised, act dtype -> logits F32 [B,classes]. Any H, W that are multiples of
 * the patch; with rotary positions, the configured size alone. training: stochastic depth as drawn,
 * and batch norms by the batch, which moves the statistics that they keep. */
Var *vittt_forward(Vittt *m, Tape *t, Var *image, bool training);

bool vittt_is_hierarchical(const VitttConfig *c);

/* Side of the patches that a forward pass starts from: the patch, or half of it with a stem; 0: a
 * hierarchical model starts from the image itself, [B,H,W,3] (as the image ops count too). */
int64_t vittt_input_patch(const VitttConfig *c);
/* The same from the image's patches of q = vittt_input_patch pixels, [B, tokens, 3*q*q]
 * (op_patchify; the image ops make them at once), four times as many with a stem; height, width: of
 * the map of tokens, of the last ones with stages. */
Var *vittt_forward_patches(Vittt *m, Tape *t, Var *patches, int64_t height, int64_t width,
                           bool training);

/* Pixels along a side of block `index`'s map, for images of image_size pixels. */
int64_t vittt_block_side(const Vittt *m, int64_t index, int64_t image_size);

/* Tensors of published checkpoints that the model does without, as params_load takes them; NULL:
 * none. (Batch norms of hierarchical models count their batches.) */
const char *vittt_unused_tensors(const VitttConfig *c);

/* Multiply-adds of one image of the configured size (the count of vittt.md 1; base mixer in its
 * state form). */
int64_t vittt_macs(const VitttConfig *c);

#endif
