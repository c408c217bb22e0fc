/* The ViTTT classifier: parameters in published order, stochastic depth, forward pass. */
#include "vision/vittt.h"

#include <math.h>
#include <stdio.h>

#include "core/memory.h"
#include "core/rng.h"
#include "vision/model_params.h"

#define NORM_EPS       1e-6f
#define STAGE_NORM_EPS 1e-5f /* of the blocks of a hierarchical model */

/* ---- parameters --------------------------------------------------------------------------- */

/* Name, sizes and map of a block. */
typedef struct BlockPlace {
    char prefix[64];
    int64_t width, heads, side;
} BlockPlace;

static BlockPlace plain_place(const VitttConfig *c, int64_t index) {
    BlockPlace at = {.width = c->width, .heads = c->heads, .side = c->image_size / c->patch};
    snprintf(at.prefix, sizeof at.prefix, "blocks.%lld.", (long long)index);
    return at;
}

static BlockPlace stage_place(const Vittt *m, int64_t stage, int64_t index) {
    const HierStages *s = &m->hier.stages;
    BlockPlace at = {.width = s->width[stage],
                     .heads = s->heads[stage],
                     .side = m->config.image_size / (HIER_REDUCTION >> (HIER_STAGES - 1 - stage))};
    snprintf(at.prefix, sizeof at.prefix, "layers.%lld.blocks.%lld.", (long long)stage,
             (long long)index);
    return at;
}

static Status add_mixer(VitttBlock *b, Params *p, const VitttConfig *c, const BlockPlace *at) {
    char prefix[80];
    snprintf(prefix, sizeof prefix, "%sattn.", at->prefix);
    SequenceSpec sequence;
    VitttVariant variant;
    TRY(vittt_config_mixer(c, &sequence, &variant));
    if (sequence.kind != SEQUENCE_NONE)
        return sequence_mixer_register(&b->sequence, p, prefix, at->width, at->heads, &sequence);
    Var *rope = NULL;
    if (c->rope)
        rope = model_param(p, at->prefix, "rope.rotations", (Init){INIT_ROTATIONS, 0}, PARAM_BUFFER,
                           4, (int64_t[]){at->side, at->side, at->width / 2, 2});
    TRY(vittt_mixer_register(&b->mixer, p, prefix, at->width, at->heads));
    b->mixer.rope = rope;
    b->mixer.variant = variant;
    b->mixer.form = (VitttForm)c->form;
    return STATUS_OK;
}

/* index: among all blocks. */
static Status add_block(VitttBlock *b, Params *p, const VitttConfig *c, int64_t index,
                        const BlockPlace *at) {
    const int64_t w = at->width, hidden = c->mlp_ratio * w;
    const char *prefix = at->prefix;
    const bool local = vittt_is_hierarchical(c);
    b->eps = local ? STAGE_NORM_EPS : NORM_EPS;
    model_conv(p, prefix, "cpe", 0, (int64_t[]){w, 1, 3, 3}, &b->cpe_w, &b->cpe_b);
    model_norm(p, prefix, "norm1", w, &b->norm1_w, &b->norm1_b);
    TRY(add_mixer(b, p, c, at));
    model_norm(p, prefix, "norm2", w, &b->norm2_w, &b->norm2_b);
    model_linear(p, prefix, "mlp.fc1", PARAM_MATMUL, hidden, w, &b->fc1_w, &b->fc1_b);
    if (local)
        model_conv(p, prefix, "mlp.dwc", 0, (int64_t[]){hidden, 1, 3, 3}, &b->dwc_w, &b->dwc_b);
    model_linear(p, prefix, "mlp.fc2", PARAM_MATMUL, w, hidden, &b->fc2_w, &b->fc2_b);
    /* PyTorch forms the rates in float32 (vittt.md 4.1). */
    b->drop_path =
        c->depth > 1 ? (float)(c->drop_path * (double)index / (double)(c->depth - 1)) : 0;
    return p->status;
}

static Status register_stages(Vittt *m, Params *p) {
    Hier *h = &m->hier;
    int64_t index = 0;
    TRY(hier_stages_parse(m->config.stages, &h->stages));
    TRY(hier_register_stem(h, p));
    for (int64_t stage = 0; stage < HIER_STAGES; stage++) {
        for (int64_t i = 0; i < h->stages.blocks[stage]; i++, index++) {
            const BlockPlace at = stage_place(m, stage, i);
            TRY(add_block(&m->blocks[index], p, &m->config, index, &at));
        }
        if (stage + 1 < HIER_STAGES) TRY(hier_register_merge(h, p, stage));
    }
    return hier_register_norm(h, p);
}

static Status register_plain(Vittt *m, Params *p) {
    const VitttConfig *c = &m->config;
    if (c->stem_depth > 0)
        TRY(stem_register(&m->stem, p, c->stem_depth, c->stem_width, c->width, c->patch));
    else
        model_conv(p, "", "patch_embed.proj", PARAM_MATMUL,
                   (int64_t[]){c->width, 3, c->patch, c->patch}, &m->patch_w, &m->patch_b);
    for (int64_t i = 0; i < c->depth; i++) {
        const BlockPlace at = plain_place(c, i);
        TRY(add_block(&m->blocks[i], p, c, i, &at));
    }
    model_norm(p, "", "norm", c->width, &m->norm_w, &m->norm_b);
    return p->status;
}

static Status register_all(Vittt *m, Params *p) {
    const VitttConfig *c = &m->config;
    TRY(vittt_is_hierarchical(c) ? register_stages(m, p) : register_plain(m, p));
    /* The head reads F32 means, so its weight needs no BF16 shadow. */
    model_linear(p, "", "head", 0, c->classes, c->width, &m->head_w, &m->head_b);
    return p->status;
}

Status vittt_new(const VitttConfig *c, Params *p, Vittt **out) {
    TRY(vittt_config_check(c));
    Vittt *m;
    TRY(mem_alloc((void **)&m, 1, sizeof *m, "a ViTTT model"));
    m->config = *c;
    m->params = p;
    Status s =
        mem_alloc((void **)&m->blocks, c->depth, sizeof *m->blocks, "the blocks of a ViTTT model");
    if (s == STATUS_OK)
        s = mem_alloc((void **)&m->passes, c->depth, sizeof *m->passes,
                      "the blocks of a ViTTT model");
    if (s == STATUS_OK) s = register_all(m, p);
    if (s != STATUS_OK) {
        vittt_free(m);
        return s;
    }
    *out = m;
    return STATUS_OK;
}

void vittt_free(Vittt *m) {
    if (!m) return;
    mem_free(m->blocks);
    mem_free(m->passes);
    mem_free(m->drop_host);
    mem_free(m);
}

/* ---- stochastic depth --------------------------------------------------------------------- */

/* Takes room for `batch` samples; a larger batch later takes it anew. */
static Status reserve_drop_scale(Vittt *m, Device *d, int64_t batch) {
    if (batch <= m->max_batch) return STATUS_OK;
    const int64_t rows = 2 * m->config.depth;
    TRY(mem_grow((void **)&m->drop_host, rows * batch, sizeof *m->drop_host,
                 "stochastic depth scales"));
    if (!tensor_is_none(m->drop_scale))
        arena_give(&d->state, m->drop_scale.data, tensor_bytes(m->drop_scale));
    m->drop_scale = tensor_none();
    m->max_batch = 0;
    TRY(arena_tensor(&d->state, DTYPE_F32, 2, (int64_t[]){rows, batch}, &m->drop_scale));
    m->max_batch = batch;
    return STATUS_OK;
}

Status vittt_stage_drop_path(Vittt *m, Device *d, uint64_t seed, int64_t step, int64_t micro,
                             int64_t batch) {
    if (m->config.drop_path <= 0) return STATUS_OK;
    TRY(reserve_drop_scale(m, d, batch));
    for (int64_t branch = 0; branch < 2 * m->config.depth; branch++) {
        const double keep = 1.0 - m->blocks[branch / 2].drop_path;
        Rng r = rng_stream(seed, RNG_DROP_PATH, (uint64_t)step,
                           (uint64_t)micro * 65536 + (uint64_t)branch);
        float *row = m->drop_host + branch * m->max_batch;
        int64_t drawn = 0;
        double uniform = 0;
        for (int64_t i = 0; i < m->max_batch; i++) {
            const int64_t position = shard_position(m->shard, m->max_batch, i);
            for (; drawn <= position; drawn++) uniform = rng_uniform(&r);
            row[i] = (float)(floor(keep + uniform) / keep);
        }
    }
    return device_stage(d, m->drop_scale, m->drop_host);
}

Status vittt_draw_drop_path(Vittt *m, Device *d, uint64_t seed, int64_t step, int64_t micro,
                            int64_t batch) {
    TRY(vittt_stage_drop_path(m, d, seed, step, micro, batch));
    return device_commit(d);
}

/* The scales of one branch, none where every sample keeps it. */
static Tensor drop_row(const Vittt *m, int64_t branch, int64_t batch, bool training) {
    if (!training || m->blocks[branch / 2].drop_path <= 0) return tensor_none();
    return tensor_1d((float *)m->drop_scale.data + branch * m->max_batch, DTYPE_F32, batch);
}

/* ---- forward ------------------------------------------------------------------------------ */

bool vittt_is_hierarchical(const VitttConfig *c) {
    return c->stages[0] != '\0';
}

int64_t vittt_input_patch(const VitttConfig *c) {
    if (vittt_is_hierarchical(c)) return 0;
    return c->stem_depth > 0 ? c->patch / 2 : c->patch;
}

int64_t vittt_block_side(const Vittt *m, int64_t index, int64_t image_size) {
    if (!vittt_is_hierarchical(&m->config)) return image_size / m->config.patch;
    int64_t stage = 0, end = m->hier.stages.blocks[0];
    while (stage + 1 < HIER_STAGES && index >= end) end += m->hier.stages.blocks[++stage];
    return image_size / (HIER_REDUCTION >> (HIER_STAGES - 1 - stage));
}

const char *vittt_unused_tensors(const VitttConfig *c) {
    return vittt_is_hierarchical(c) ? "*.num_batches_tracked" : NULL;
}

static Var *patch_embed(const Vittt *m, Tape *t, Var *patches, int64_t height, int64_t width) {
    const VitttConfig *c = &m->config;
    if (c->stem_depth > 0) return stem_forward(&m->stem, t, patches, height, width);
    Var *w = op_view(t, m->patch_w, 2, (int64_t[]){c->width, 3 * c->patch * c->patch});
    Var *x = op_linear(t, patches, w, m->patch_b);
    tape_drop(t, patches);
    return x;
}

/* One layer, where the device multiplies `rows` rows by it in one kernel. */
static Status fold(Device *d, NormFold *f, const Var *w, const Var *b, const Var *gain,
                   const Var *shift, int64_t rows) {
    const Tensor v = w->value;
    if (v.dtype != DTYPE_BF16 || !device_folds_norms(d, rows, v.shape[0], v.shape[1]))
        return STATUS_OK;
    return norm_fold(d, f, w, b, gain, shift);
}

Status vittt_fold(Vittt *m, Device *d, int64_t batch) {
    if (vittt_is_hierarchical(&m->config)) return STATUS_OK;
    const int64_t side = m->config.image_size / m->config.patch, rows = batch * side * side;
    for (int64_t i = 0; i < m->config.depth; i++) {
        VitttBlock *b = &m->blocks[i];
        if (b->sequence.kind != SEQUENCE_NONE) continue;
        TRY(fold(d, &b->fold1, b->mixer.qkv_w, b->mixer.qkv_b, b->norm1_w, b->norm1_b, rows));
        TRY(fold(d, &b->fold2, b->fc1_w, b->fc1_b, b->norm2_w, b->norm2_b, rows));
    }
    m->folded_at = m->params->changes;
    return STATUS_OK;
}

/* The block with either norm, or both, within the product behind it; x ends here. *out (NULL: not
 * wanted): the statistics of the result, with `second` alone. */
static Var *block_folded(const VitttBlock *b, Tape *t, Var *x, int64_t height, int64_t width,
                         bool first, bool second, Var **out) {
    Var *placed, *n1 = NULL, *stats1 = NULL, *stats2 = NULL;
    if (first)
        placed = op_cpe_stats(t, x, height, width, b->cpe_w, b->cpe_b, b->eps, &stats1);
    else
        n1 = op_cpe_norm(t, x, height, width, b->cpe_w, b->cpe_b, b->norm1_w, b->norm1_b, b->eps,
                         &placed);
    tape_drop(t, x);
    const VitttFolds folds = {first ? &b->fold1 : NULL, stats1, second ? &stats2 : NULL, b->eps};
    x = vittt_mixer_join_folded(&b->mixer, t, first ? placed : n1, height, width, placed, &folds);
    if (first) tape_drop(t, stats1);
    if (!first) tape_drop(t, n1);
    tape_drop(t, placed);
    if (second) {
        Var *y = op_mlp_folded(t, x, stats2, &b->fold2, b->fc2_w, b->fc2_b, b->eps, out);
        tape_drop(t, stats2);
        tape_drop(t, x);
        return y;
    }
    Var *n2 = op_layernorm(t, x, b->norm2_w, b->norm2_b, b->eps);
    Var *y = op_mlp_residual(t, n2, b->fc1_w, b->fc1_b, b->fc2_w, b->fc2_b, x, tensor_none());
    tape_drop(t, n2);
    tape_drop(t, x);
    return y;
}

static Var *block_forward(const Vittt *m, int64_t index, Tape *t, Var *x, int64_t height,
                          int64_t width, bool training, Var **stats) {
    const VitttBlock *b = &m->blocks[index];
    const int64_t rows = x->value.shape[0] * height * width;
    const bool current = !training && m->folded_at == m->params->changes;
    const bool first = current && norm_folds(t, &b->fold1, rows);
    const bool second = current && norm_folds(t, &b->fold2, rows);
    if (first || second) return block_folded(b, t, x, height, width, first, second, stats);
    const int64_t batch = x->value.shape[0];
    Var *placed;
    Var *n1 = op_cpe_norm(t, x, height, width, b->cpe_w, b->cpe_b, b->norm1_w, b->norm1_b, b->eps,
                          &placed);
    tape_drop(t, x);
    const Tensor scale = drop_row(m, 2 * index, batch, training);
    x = b->sequence.kind == SEQUENCE_NONE
            ? vittt_mixer_join(&b->mixer, t, n1, height, width, placed, scale)
            : sequence_mixer_join(&b->sequence, t, n1, placed, scale);
    tape_drop(t, n1);
    tape_drop(t, placed);
    Var *n2 = op_layernorm(t, x, b->norm2_w, b->norm2_b, b->eps);
    const Tensor scale2 = drop_row(m, 2 * index + 1, batch, training);
    const LocalMlp local = {b->fc1_w, b->fc1_b, b->dwc_w, b->dwc_b, b->fc2_w, b->fc2_b};
    Var *y = b->dwc_w ? op_local_mlp_residual(t, n2, height, width, &local, x, scale2)
                      : op_mlp_residual(t, n2, b->fc1_w, b->fc1_b, b->fc2_w, b->fc2_b, x, scale2);
    tape_drop(t, n2);
    tape_drop(t, x);
    return y;
}

static Var *block_pass(void *user, Tape *t, Var *x) {
    const VitttPass *p = user;
    return block_forward(p->model, p->index, t, x, p->height, p->width, p->training, p->stats);
}

/* Rotary positions are a table for one size. */
static Status check_size(const Vittt *m, int64_t height, int64_t width) {
    const int64_t side = m->config.image_size;
    if (!m->config.rope || (height == side && width == side)) return STATUS_OK;
    return status_set(
        STATUS_DATA,
        "ViTTT: an image of %lld x %lld pixels, but this model's rotary positions are "
        "for %lld x %lld",
        (long long)height, (long long)width, (long long)side, (long long)side);
}

static Status check_image(const Vittt *m, Tensor image) {
    const int64_t p = m->config.patch;
    char text[64];
    if (image.rank == 4 && image.shape[3] == 3 && image.shape[0] >= 1 && image.shape[1] >= p &&
        image.shape[2] >= p && image.shape[1] % p == 0 && image.shape[2] % p == 0)
        return STATUS_OK;
    return status_set(STATUS_DATA,
                      "ViTTT: image is %s, expected [B, H, W, 3] with H and W multiples of the "
                      "patch %lld",
                      tensor_shape_text(image, text, sizeof text), (long long)p);
}

static Status check_map(const Vittt *m, Tensor image, int64_t height, int64_t width) {
    const int64_t p = m->config.patch;
    char text[64];
    if (height >= 1 && width >= 1 && image.rank == 4 && image.shape[0] >= 1 &&
        image.shape[1] == p * height && image.shape[2] == p * width && image.shape[3] == 3)
        return STATUS_OK;
    return status_set(STATUS_DATA, "ViTTT: the image is %s, expected [B, %lld, %lld, 3]",
                      tensor_shape_text(image, text, sizeof text), (long long)(p * height),
                      (long long)(p * width));
}

static Status check_tokens(const Vittt *m, Tensor patches, int64_t height, int64_t width) {
    const int64_t p = vittt_input_patch(&m->config), finer = m->config.patch / p;
    char text[64];
    if (patches.rank != 3 || height < 1 || width < 1 || patches.shape[0] < 1 ||
        patches.shape[1] != finer * height * finer * width || patches.shape[2] != 3 * p * p)
        return status_set(STATUS_DATA, "ViTTT: patches are %s, expected [B, %lld*%lld, %lld]",
                          tensor_shape_text(patches, text, sizeof text),
                          (long long)(finer * height), (long long)(finer * width),
                          (long long)(3 * p * p));
    return STATUS_OK;
}

static Status check_patches(const Vittt *m, const Tape *t, Tensor patches, int64_t height,
                            int64_t width, bool training) {
    TRY(vittt_is_hierarchical(&m->config) ? check_map(m, patches, height, width)
                                          : check_tokens(m, patches, height, width));
    TRY(check_size(m, height * m->config.patch, width * m->config.patch));
    if (training && m->config.drop_path > 0 && patches.shape[0] > m->max_batch &&
        tape_device(t)->kind != DEVICE_DRY)
        return status_set(STATUS_INTERNAL,
                          "ViTTT: stochastic depth was drawn for %lld samples, the batch has %lld",
                          (long long)m->max_batch, (long long)patches.shape[0]);
    return STATUS_OK;
}

/* Block `index` on its map; x ends here. */
static Var *run_block(Vittt *m, Tape *t, Var *x, int64_t index, int64_t height, int64_t width,
                      bool training, Var **stats) {
    VitttPass *pass = &m->passes[index];
    *pass = (VitttPass){m, index, height, width, training, stats};
    return m->config.recompute ? tape_recompute(t, x, block_pass, pass) : block_pass(pass, t, x);
}

static Var *mean_of(Tape *t, Var *normed) {
    Var *features = op_mean_tokens(t, normed);
    tape_drop(t, normed);
    return features;
}

static Var *plain_forward(Vittt *m, Tape *t, Var *patches, int64_t height, int64_t width,
                          bool training) {
    Var *x = patch_embed(m, t, patches, height, width), *stats = NULL;
    for (int64_t i = 0; i < m->config.depth; i++)
        x = run_block(m, t, x, i, height, width, training, i + 1 < m->config.depth ? NULL : &stats);
    Var *features = stats ? op_norm_mean_tokens(t, x, stats, m->norm_w, m->norm_b)
                          : mean_of(t, op_layernorm(t, x, m->norm_w, m->norm_b, NORM_EPS));
    if (stats) tape_drop(t, stats);
    tape_drop(t, x);
    return features;
}

/* height, width: of the last stage's map. */
static Var *stages_forward(Vittt *m, Tape *t, Var *image, int64_t height, int64_t width,
                           bool training) {
    const Hier *h = &m->hier;
    int64_t index = 0;
    Var *x = hier_stem(h, t, image, training);
    for (int64_t stage = 0; stage < HIER_STAGES; stage++) {
        const int64_t finer = HIER_STAGES - 1 - stage;
        for (int64_t i = 0; i < h->stages.blocks[stage]; i++)
            x = run_block(m, t, x, index++, height << finer, width << finer, training, NULL);
        if (finer > 0) x = hier_merge(h, t, stage, x, height << finer, width << finer, training);
    }
    Var *normed = hier_norm(&h->norm, t, x, false, training);
    tape_drop(t, x);
    return mean_of(t, normed);
}

Var *vittt_forward_patches(Vittt *m, Tape *t, Var *patches, int64_t height, int64_t width,
                           bool training) {
    Status s = tape_status(t);
    if (s == STATUS_OK) s = check_patches(m, t, patches->value, height, width, training);
    if (s != STATUS_OK) return tape_fail(t, s);
    Var *features = vittt_is_hierarchical(&m->config)
                        ? stages_forward(m, t, patches, height, width, training)
                        : plain_forward(m, t, patches, height, width, training);
    Var *logits = op_linear(t, features, m->head_w, m->head_b);
    tape_drop(t, features);
    return logits;
}

Var *vittt_forward(Vittt *m, Tape *t, Var *image, bool training) {
    Status s = tape_status(t);
    if (s == STATUS_OK) s = check_image(m, image->value);
    if (s != STATUS_OK) return tape_fail(t, s);
    const int64_t p = m->config.patch, input = vittt_input_patch(&m->config);
    return vittt_forward_patches(m, t, input > 0 ? op_patchify(t, image, input) : image,
                                 image->value.shape[1] / p, image->value.shape[2] / p, training);
}
