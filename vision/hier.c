/* Stem and merging layers of the hierarchical ViTTT. */
#include "vision/hier.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vision/model_params.h"

#define NORM_EPS 1e-5f

/* ---- sizes -------------------------------------------------------------------------------- */

/* A whole number and, unless it is 0, the sign behind it; NULL when they are not there. */
static const char *read_size(const char *text, char sign, int64_t *out) {
    char *end;
    if (!text || *text < '0' || *text > '9') return NULL;
    *out = strtoll(text, &end, 10);
    if (*out < 1 || *out > 65536) return NULL;
    if (!sign) return end;
    return *end == sign ? end + 1 : NULL;
}

Status hier_stages_parse(const char *text, HierStages *out) {
    const char *at = text;
    for (int i = 0; i < HIER_STAGES; i++) {
        while (at && *at == ' ') at++;
        at = read_size(at, 'x', &out->width[i]);
        at = read_size(at, 'x', &out->blocks[i]);
        at = read_size(at, i + 1 < HIER_STAGES ? ',' : '\0', &out->heads[i]);
        if (!at)
            return status_set(STATUS_USAGE,
                              "[model] stages '%.100s': stage %d is not WIDTHxBLOCKSxHEADS; "
                              "expected four of them, separated by commas",
                              text, i + 1);
        if (out->width[i] % out->heads[i] != 0 || out->width[i] % 4 != 0)
            return status_set(STATUS_USAGE,
                              "[model] stages: width %lld of stage %d is not a multiple of its "
                              "%lld heads and of 4",
                              (long long)out->width[i], i + 1, (long long)out->heads[i]);
    }
    while (*at == ' ') at++;
    if (*at == '\0') return STATUS_OK;
    if (*at == ',')
        return status_set(STATUS_USAGE, "[model] stages '%.100s': more than four stages", text);
    return status_set(STATUS_USAGE,
                      "[model] stages '%.100s': '%.20s' behind stage 4, expected nothing", text,
                      at);
}

int64_t hier_stages_depth(const HierStages *s) {
    int64_t depth = 0;
    for (int i = 0; i < HIER_STAGES; i++) depth += s->blocks[i];
    return depth;
}

/* ---- parameters --------------------------------------------------------------------------- */

static void add_norm(HierNorm *n, Params *p, const char *prefix, const char *name,
                     int64_t channels) {
    const Init zero = {INIT_ZERO, 0}, one = {INIT_ONE, 0};
    char leaf[64];
    model_norm(p, prefix, name, channels, &n->w, &n->b);
    snprintf(leaf, sizeof leaf, "%s.running_mean", name);
    n->mean = model_param(p, prefix, leaf, zero, PARAM_BUFFER, 1, &channels);
    snprintf(leaf, sizeof leaf, "%s.running_var", name);
    n->var = model_param(p, prefix, leaf, one, PARAM_BUFFER, 1, &channels);
}

/* Channels into and out of the i-th convolution of the stem. */
static void stem_channels(const HierStages *s, int i, int64_t *in, int64_t *out) {
    const int64_t e = s->width[0];
    *in = i == 0 ? 3 : i < 4 ? e / 2 : 4 * e;
    *out = i < 3 ? e / 2 : i == 3 ? 4 * e : e;
}

Status hier_register_stem(Hier *h, Params *p) {
    for (int i = 0; i < HIER_STEM; i++) {
        int64_t in, out;
        char prefix[64];
        stem_channels(&h->stages, i, &in, &out);
        const int64_t side = i < 4 ? 3 : 1, shape[] = {out, in, side, side};
        const float bound = 1.0f / sqrtf((float)(in * side * side));
        snprintf(prefix, sizeof prefix, "patch_embed.conv.%d.", i);
        h->stem_w[i] = model_param(p, prefix, "conv.weight", (Init){INIT_UNIFORM, bound},
                                   PARAM_MATMUL, 4, shape);
        add_norm(&h->stem_norm[i], p, prefix, "norm", out);
    }
    return p->status;
}

Status hier_register_merge(Hier *h, Params *p, int64_t stage) {
    HierMerge *m = &h->merge[stage];
    const int64_t in = h->stages.width[stage], out = h->stages.width[stage + 1];
    const int64_t wide = HIER_RATIO * out;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "layers.%" PRId64 ".downsample.conv.", stage);
    model_conv(p, prefix, "0.conv", PARAM_MATMUL, (int64_t[]){wide, in, 1, 1}, &m->in_w, &m->in_b);
    model_conv(p, prefix, "1.conv", 0, (int64_t[]){wide, 1, 3, 3}, &m->conv_w, &m->conv_b);
    model_conv(p, prefix, "2.conv", PARAM_MATMUL, (int64_t[]){out, wide, 1, 1}, &m->out_w,
               &m->out_b);
    add_norm(&m->norm, p, prefix, "2.norm", out);
    return p->status;
}

Status hier_register_norm(Hier *h, Params *p) {
    add_norm(&h->norm, p, "", "norm", h->stages.width[HIER_STAGES - 1]);
    return p->status;
}

/* ---- forward ------------------------------------------------------------------------------ */

Var *hier_norm(const HierNorm *n, Tape *t, Var *x, bool relu, bool training) {
    return op_batchnorm(t, x, n->w, n->b, n->mean, n->var, NORM_EPS, relu, training);
}

/* A 1x1 convolution's weight as a matrix. */
static Var *matrix(Tape *t, Var *w) {
    return op_view(t, w, 2, (int64_t[]){w->value.shape[0], w->value.shape[1]});
}

Var *hier_stem(const Hier *h, Tape *t, Var *image, bool training) {
    Var *x = image;
    for (int i = 0; i < HIER_STEM; i++) {
        Var *y = i < 4 ? op_conv3(t, x, h->stem_w[i], i == 0 || i == 3 ? 2 : 1)
                       : op_linear(t, x, matrix(t, h->stem_w[i]), NULL);
        tape_drop(t, x);
        x = hier_norm(&h->stem_norm[i], t, y, i < 4, training);
        tape_drop(t, y);
    }
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *s = x->value.shape;
    return op_view(t, x, 3, (int64_t[]){s[0], s[1] * s[2], s[3]});
}

Var *hier_merge(const Hier *h, Tape *t, int64_t stage, Var *x, int64_t height, int64_t width,
                bool training) {
    const HierMerge *m = &h->merge[stage];
    Var *wide = op_linear(t, x, matrix(t, m->in_w), m->in_b);
    tape_drop(t, x);
    if (tape_poison(t)) return tape_poison(t);
    const int64_t batch = wide->value.shape[0], channels = tensor_last(wide->value);
    Var *down = op_dwconv_down(t, op_view(t, wide, 4, (int64_t[]){batch, height, width, channels}),
                               m->conv_w, m->conv_b);
    tape_drop(t, wide);
    Var *y = op_linear(t, down, matrix(t, m->out_w), m->out_b);
    tape_drop(t, down);
    Var *normed = hier_norm(&m->norm, t, y, false, training);
    tape_drop(t, y);
    if (tape_poison(t)) return tape_poison(t);
    const int64_t *s = normed->value.shape;
    return op_view(t, normed, 3, (int64_t[]){s[0], s[1] * s[2], s[3]});
}

int64_t hier_macs(const HierStages *s, int64_t side) {
    int64_t macs = 0, places = side * side / 4;
    for (int i = 0; i < HIER_STEM; i++) {
        int64_t in, out;
        stem_channels(s, i, &in, &out);
        if (i == 3) places /= 4;
        macs += places * in * out * (i < 4 ? 9 : 1);
    }
    for (int i = 0; i + 1 < HIER_STAGES; i++) {
        const int64_t wide = HIER_RATIO * s->width[i + 1];
        macs += places * wide * s->width[i];
        places /= 4;
        macs += places * wide * (9 + s->width[i + 1]);
    }
    return macs;
}
