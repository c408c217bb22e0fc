/* The LaCT-NVS model: parameters under their official names, and the three passes. */
#include "nvs/lact_nvs.h"

#include <math.h>
#include <stdio.h>

#include "core/memory.h"

#define LAYER_EPS 1e-5f
/* PyTorch's "None": the F32 epsilon (lact_nvs.md 3.2). */
#define HEAD_EPS 1.1920929e-7f
/* Blocks at the end whose hidden values are kept even so: they are all that fits into the memory
 * that the recipe is given (docs/performance_nvs.md). */
#define HIDDEN_KEPT 6

/* ---- parameters --------------------------------------------------------------------------- */

static Var *add_vector(Params *p, const char *prefix, const char *name, int64_t n) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return params_add(p, full, 1, &n, (Init){INIT_ONE, 0}, 0);
}

static Var *add_matrix(Params *p, const char *prefix, const char *name, int64_t rows,
                       int64_t columns, float deviation) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return params_add(p, full, 2, (int64_t[]){rows, columns}, (Init){INIT_NORMAL, deviation},
                      PARAM_MATMUL | PARAM_DECAY);
}

static Status add_block(LactNvsBlock *b, Params *p, const LactNvsConfig *c, int64_t index,
                        LactVariant variant) {
    const int64_t d = c->width;
    /* Three residual branches a block (section 6). */
    const float proj = 0.02f / sqrtf(3.0f * (float)c->layers);
    char norm[3][64], f[3][64];
    for (int k = 0; k < 3; k++) {
        snprintf(f[k], sizeof f[k], "blocks.%lld.module_list.%d.f.", (long long)index, k);
        snprintf(norm[k], sizeof norm[k], "blocks.%lld.module_list.%d.", (long long)index, k);
    }
    b->norm_w[0] = add_vector(p, norm[0], "ln.weight", d);
    b->qkv_w = add_matrix(p, f[0], "to_qkv.weight", 3 * d, d, 0.02f);
    b->proj_w = add_matrix(p, f[0], "c_proj.weight", d, d, proj);
    b->q_norm_w = add_vector(p, f[0], "q_norm.weight", c->head_width);
    b->k_norm_w = add_vector(p, f[0], "k_norm.weight", c->head_width);
    b->norm_w[1] = add_vector(p, norm[1], "ln.weight", d);
    TRY(lact_register(&b->ttt, p, f[1], d, c->fast_heads, c->inter_multi, variant, proj));
    b->ttt.span = c->span ? LACT_SPAN_AUTO : LACT_SPAN_NEVER;
    b->norm_w[2] = add_vector(p, norm[2], "ln.weight", d);
    b->fc_w = add_matrix(p, f[2], "c_fc.weight", 4 * d, d, 0.02f);
    b->fc_proj_w = add_matrix(p, f[2], "c_proj.weight", d, 4 * d, proj);
    return p->status;
}

static Status register_all(LactNvs *m, Params *p) {
    const LactNvsConfig *c = &m->config;
    const int64_t d = c->width, pixels = c->patch * c->patch;
    LactVariant variant;
    TRY(lact_variant_by_name(c->variant, &variant));
    m->input_w = add_matrix(p, "", "input_linear.weight", d, VIEW_CHANNELS * pixels, 0.02f);
    m->input_norm_w = add_vector(p, "", "input_layernorm.weight", d);
    for (int64_t i = 0; i < c->layers; i++) TRY(add_block(&m->blocks[i], p, c, i, variant));
    m->output_norm_w = add_vector(p, "", "image_token_decoder.0.weight", d);
    m->output_w = add_matrix(p, "", "image_token_decoder.1.weight", 3 * pixels, d, 0.02f);
    return p->status;
}

Status lact_nvs_new(const LactNvsConfig *c, Params *p, LactNvs **out) {
    TRY(lact_nvs_config_check(c));
    LactNvs *m;
    TRY(mem_alloc((void **)&m, 1, sizeof *m, "a LaCT-NVS model"));
    m->config = *c;
    const char *what = "the blocks of a LaCT-NVS model";
    Status s = mem_alloc((void **)&m->blocks, c->layers, sizeof *m->blocks, what);
    if (s == STATUS_OK) s = mem_alloc((void **)&m->passes, c->layers, sizeof *m->passes, what);
    if (s == STATUS_OK) s = mem_alloc((void **)&m->views, c->layers, sizeof *m->views, what);
    if (s == STATUS_OK) s = register_all(m, p);
    if (s != STATUS_OK) {
        lact_nvs_free(m);
        return s;
    }
    *out = m;
    return STATUS_OK;
}

void lact_nvs_free(LactNvs *m) {
    if (!m) return;
    mem_free(m->blocks);
    mem_free(m->passes);
    mem_free(m->views);
    mem_free(m);
}

int64_t lact_nvs_view_tokens(const LactNvs *m) {
    const LactNvsConfig *c = &m->config;
    return c->height / c->patch * (c->view_width / c->patch);
}

int64_t lact_nvs_token_size(const LactNvs *m) {
    return VIEW_CHANNELS * m->config.patch * m->config.patch;
}

/* ---- parts of a block --------------------------------------------------------------------- */

/* x + Attn(LN(x)), softmax(q k'/sqrt(head_width)) v within each view; x [B,V*l,d] ends here. */
static Var *attend(const LactNvs *m, const LactNvsBlock *b, Tape *t, Var *x) {
    if (tape_poison(t)) return tape_poison(t);
    const LactNvsConfig *c = &m->config;
    const int64_t l = lact_nvs_view_tokens(m), *s = x->value.shape;
    const int64_t heads = c->width / c->head_width;
    Var *packed = op_norm_linear(t, x, b->norm_w[0], NULL, LAYER_EPS, b->qkv_w, NULL);
    Var *windows = op_view(t, packed, 3, (int64_t[]){s[0] * s[1] / l, l, 3 * s[2]});
    Var *q_norm = b->q_norm_w;
    if (b->swap) { /* keys in the place of queries are normed as keys are */
        const QueryPlace place = {0, c->width, heads, c->head_width};
        Var *other = query_swap(t, windows, b->swap, place);
        tape_drop(t, packed);
        packed = windows = other;
        if (b->swap->kind == QUERY_KEYS) q_norm = b->k_norm_w;
    }
    Var *o = op_attention(t, windows, q_norm, b->k_norm_w, heads, HEAD_EPS);
    tape_drop(t, packed);
    Var *y = op_linear_residual(t, o, b->proj_w, NULL, x, tensor_none());
    tape_drop(t, o);
    tape_drop(t, x);
    return y;
}

/* x + MLP(LN(x)); x ends here. */
static Var *feed_forward(const LactNvsBlock *b, Tape *t, Var *x) {
    Var *y = op_norm_mlp(t, x, b->norm_w[2], NULL, LAYER_EPS, b->fc_w, NULL, b->fc_proj_w, NULL);
    tape_drop(t, x);
    return y;
}

static Var *fast_norm(const LactNvsBlock *b, Tape *t, Var *x) {
    return op_layernorm(t, x, b->norm_w[1], NULL, LAYER_EPS);
}

/* ---- blocks ------------------------------------------------------------------------------- */

/* Tokens [B,m,d], of which the first `writing` write and all read. */
static Var *block_forward(const LactNvs *m, int64_t index, Tape *t, Var *x, int64_t writing,
                          LactFast *fast) {
    const LactNvsBlock *b = &m->blocks[index];
    x = attend(m, b, t, x);
    Var *y = lact_forward_normed(&b->ttt, t, x, (LactNorm){b->norm_w[1], LAYER_EPS}, writing, fast);
    tape_drop(t, x);
    return feed_forward(b, t, y);
}

/* Tokens that only read. */
static Var *block_read(const LactNvs *m, int64_t index, Tape *t, Var *x, LactFast fast) {
    const LactNvsBlock *b = &m->blocks[index];
    x = attend(m, b, t, x);
    Var *u = fast_norm(b, t, x);
    Var *y = lact_read(&b->ttt, t, u, x, fast);
    tape_drop(t, u);
    tape_drop(t, x);
    return feed_forward(b, t, y);
}

/* Tokens of the last block that only write; what else they would do reaches no output. */
static LactFast block_write(const LactNvs *m, int64_t index, Tape *t, Var *x) {
    const LactNvsBlock *b = &m->blocks[index];
    x = attend(m, b, t, x);
    Var *u = fast_norm(b, t, x);
    tape_drop(t, x);
    LactFast fast = lact_write(&b->ttt, t, u);
    tape_drop(t, u);
    return fast;
}

/* The last block of a joint pass, [B,m,d] -> [B,m-writing,d]: the input tokens write, the target
 * tokens read. *fast as in lact_forward. */
static Var *block_last(const LactNvs *m, Tape *t, Var *x, int64_t writing, LactFast *fast) {
    if (tape_poison(t)) return tape_poison(t);
    const int64_t last = m->config.layers - 1, reading = x->value.shape[1] - writing;
    Var *inputs = op_slice_tokens(t, x, 0, writing);
    Var *targets = op_slice_tokens(t, x, writing, reading);
    if (tape_poison(t)) return tape_poison(t);
    tape_release(t, x); /* both are copies */
    LactFast written = block_write(m, last, t, inputs);
    Var *y = block_read(m, last, t, targets, written);
    if (fast) {
        *fast = written;
    } else {
        lact_fast_drop(t, written);
    }
    return y;
}

static Var *run_block(const LactNvsPass *p, Tape *t, Var *x, LactFast *fast) {
    if (p->index == p->model->config.layers - 1)
        return block_last(p->model, t, x, p->writing, fast);
    return block_forward(p->model, p->index, t, x, p->writing, fast);
}

static Var *block_pass(void *user, Tape *t, Var *x) {
    return run_block(user, t, x, NULL);
}

/* ---- passes ------------------------------------------------------------------------------- */

static Var *embed(const LactNvs *m, Tape *t, Var *tokens) {
    Var *in = op_cast(t, tokens, tape_act(t));
    Var *x = op_linear(t, in, m->input_w, NULL);
    if (in != tokens) tape_drop(t, in);
    Var *y = op_layernorm(t, x, m->input_norm_w, NULL, LAYER_EPS);
    tape_drop(t, x);
    return y;
}

/* x ends here. */
static Var *decode(const LactNvs *m, Tape *t, Var *x) {
    Var *u = op_layernorm(t, x, m->output_norm_w, NULL, LAYER_EPS);
    tape_drop(t, x);
    Var *z = op_linear(t, u, m->output_w, NULL);
    tape_drop(t, u);
    Var *wide = op_cast(t, z, DTYPE_F32);
    if (wide != z) tape_drop(t, z);
    Var *rgb = op_sigmoid(t, wide);
    tape_drop(t, wide);
    return rgb;
}

/* Tokens [B, V*l, 12 p^2] of at least `views` views; F32, or the pass's activations. */
static Status check_tokens(const LactNvs *m, const Tape *t, Tensor x, int64_t views) {
    const int64_t l = lact_nvs_view_tokens(m);
    char text[64];
    const bool act = x.dtype == DTYPE_F32 || x.dtype == tape_act(t);
    if (x.rank == 3 && act && x.shape[1] % l == 0 && x.shape[1] >= views * l &&
        x.shape[2] == lact_nvs_token_size(m))
        return STATUS_OK;
    return status_set(STATUS_DATA,
                      "LaCT-NVS: tokens are %s %s, expected F32 [B, views*%lld, %lld] of at least "
                      "%lld views",
                      tensor_shape_text(x, text, sizeof text), dtype_name(x.dtype), (long long)l,
                      (long long)lact_nvs_token_size(m), (long long)views);
}

static Status store_fast(LactState *state, Tape *t, int64_t layer, LactFast fast) {
    TRY(tape_status(t));
    TRY(lact_state_store(state, layer, fast));
    lact_fast_drop(t, fast);
    return STATUS_OK;
}

static TapeThrift thrift_of(const LactNvs *m, int64_t block, bool recompute) {
    if (!m->config.frugal) return TAPE_LAVISH;
    const bool early = block < m->config.layers - HIDDEN_KEPT;
    return recompute || early ? TAPE_FRUGAL : TAPE_NORMS_AGAIN;
}

Var *lact_nvs_forward(LactNvs *m, Tape *t, Var *tokens, int64_t inputs, LactState *state) {
    Status s = tape_status(t);
    if (s == STATUS_OK && inputs < 1) s = status_set(STATUS_DATA, "LaCT-NVS: no input view");
    if (s == STATUS_OK) s = check_tokens(m, t, tokens->value, inputs + 1);
    if (s == STATUS_OK && state) s = lact_nvs_state_check(m, state);
    const bool recompute = m->config.recompute && tape_recording(t);
    if (s == STATUS_OK && state && recompute)
        s = status_set(STATUS_USAGE, "LaCT-NVS: fast weights are not kept when blocks are computed "
                                     "twice");
    if (s != STATUS_OK) return tape_fail(t, s);
    Var *x = embed(m, t, tokens);
    for (int64_t i = 0; i < m->config.layers; i++) {
        LactFast fast;
        m->passes[i] = (LactNvsPass){m, i, inputs * lact_nvs_view_tokens(m)};
        tape_set_thrift(t, thrift_of(m, i, recompute));
        x = recompute ? tape_recompute(t, x, block_pass, &m->passes[i])
                      : run_block(&m->passes[i], t, x, state ? &fast : NULL);
        if (state && (s = store_fast(state, t, i, fast)) != STATUS_OK) return tape_fail(t, s);
    }
    return decode(m, t, x);
}

/* Blocks of reconstruction that write their fast weights where the state has them. */
static Status reconstruct_in_place(LactNvs *m, Tape *t, Var *x, LactState *state) {
    const int64_t last = m->config.layers - 1;
    for (int64_t i = 0; i <= last; i++) {
        const LactNvsBlock *b = &m->blocks[i];
        LactWeights to;
        TRY(lact_state_room(state, t, i, &to));
        x = attend(m, b, t, x);
        Var *u = fast_norm(b, t, x);
        if (i == last) {
            tape_drop(t, x);
            lact_write_into(&b->ttt, t, u, to);
            tape_drop(t, u);
            break;
        }
        Var *y = lact_into(&b->ttt, t, u, x, to);
        tape_drop(t, u);
        tape_drop(t, x);
        x = feed_forward(b, t, y);
    }
    return tape_status(t);
}

static bool writes_in_place(const LactNvs *m, const Tape *t, const LactState *state,
                            int64_t scenes) {
    for (int64_t i = 0; i < m->config.layers; i++)
        if (m->blocks[i].swap || !lact_into_fits(&m->blocks[i].ttt, t)) return false;
    return state->batch == scenes;
}

Status lact_reconstruct(LactNvs *m, Tape *t, Var *tokens, LactState *state) {
    TRY(tape_status(t));
    TRY(check_tokens(m, t, tokens->value, 1));
    TRY(lact_nvs_state_check(m, state));
    const int64_t writing = tokens->value.shape[1], scenes = tokens->value.shape[0];
    Var *x = embed(m, t, tokens);
    if (writes_in_place(m, t, state, scenes)) return reconstruct_in_place(m, t, x, state);
    const int64_t last = m->config.layers - 1;
    for (int64_t i = 0; i < last; i++) {
        LactFast fast;
        x = block_forward(m, i, t, x, writing, &fast);
        TRY(store_fast(state, t, i, fast));
    }
    return store_fast(state, t, last, block_write(m, last, t, x));
}

/* Fills m->views; false when some block is more than its weights. */
static bool view_weights(LactNvs *m, Tape *t, const LactState *state, ViewForm *form) {
    for (int64_t i = 0; i < m->config.layers; i++) {
        const LactNvsBlock *b = &m->blocks[i];
        ViewBlock *v = &m->views[i];
        if (b->swap || !lact_read_weights(&b->ttt, lact_state_fast(state, t, i), v, form))
            return false;
        for (int j = 0; j < 3; j++) v->norm_w[j] = b->norm_w[j]->value;
        v->qkv_w = b->qkv_w->value, v->proj_w = b->proj_w->value;
        v->q_norm_w = b->q_norm_w->value, v->k_norm_w = b->k_norm_w->value;
        v->fc_w = b->fc_w->value, v->fc_out_w = b->fc_proj_w->value;
    }
    form->heads = m->config.width / m->config.head_width;
    form->window = lact_nvs_view_tokens(m);
    form->norm_eps = LAYER_EPS, form->head_eps = HEAD_EPS;
    return true;
}

Var *lact_render(LactNvs *m, Tape *t, Var *tokens, const LactState *state) {
    Status s = tape_status(t);
    if (s == STATUS_OK) s = check_tokens(m, t, tokens->value, 1);
    if (s == STATUS_OK) s = lact_nvs_state_check(m, state);
    if (s == STATUS_OK && state->batch != tokens->value.shape[0])
        s = status_set(STATUS_DATA, "LaCT-NVS: views of %lld scenes, the state holds %lld",
                       (long long)tokens->value.shape[0], (long long)state->batch);
    if (s != STATUS_OK) return tape_fail(t, s);
    Var *x = embed(m, t, tokens);
    ViewForm form = {0};
    if (!tape_recording(t) && view_weights(m, t, state, &form)) {
        form.end_norm_w = m->output_norm_w->value;
        form.colours_w = m->output_w->value;
        Var *rgb = op_view_blocks(t, x, (int)m->config.layers, m->views, form);
        tape_drop(t, x);
        return rgb;
    }
    for (int64_t i = 0; i < m->config.layers; i++)
        x = block_read(m, i, t, x, lact_state_fast(state, t, i));
    return decode(m, t, x);
}

/* ---- states ------------------------------------------------------------------------------- */

Status lact_nvs_state_new(const LactNvs *m, Device *d, int64_t batch, LactState **out) {
    const LactNvsConfig *c = &m->config;
    const int64_t e = c->width / c->fast_heads;
    return lact_state_new(d, c->layers, batch, c->fast_heads, e, e * c->inter_multi, out);
}

Status lact_nvs_state_check(const LactNvs *m, const LactState *s) {
    const LactNvsConfig *c = &m->config;
    const int64_t e = c->width / c->fast_heads, h = e * c->inter_multi;
    if (s->layers == c->layers && s->heads == c->fast_heads && s->head_dim == e && s->hidden == h)
        return STATUS_OK;
    return status_set(
        STATUS_DATA,
        "fast weights are of %lld layers, %lld heads, %lld x %lld; the model has %lld "
        "layers, %lld heads, %lld x %lld",
        (long long)s->layers, (long long)s->heads, (long long)s->head_dim, (long long)s->hidden,
        (long long)c->layers, (long long)c->fast_heads, (long long)e, (long long)h);
}
