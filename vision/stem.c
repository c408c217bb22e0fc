/* The convolutional stem: pixels at half the patch, merged two by two into tokens. */
#include "vision/stem.h"

#include <math.h>
#include <stdio.h>

#include "vision/model_params.h"

#define NORM_EPS 1e-6f

static void add_block(StemBlock *b, Params *p, int64_t index, int64_t s) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "stem.blocks.%lld.", (long long)index);
    model_conv(p, prefix, "conv", 0, (int64_t[]){s, 1, 3, 3}, &b->conv_w, &b->conv_b);
    model_norm(p, prefix, "norm", s, &b->norm_w, &b->norm_b);
    model_linear(p, prefix, "mlp.fc1", PARAM_MATMUL, STEM_RATIO * s, s, &b->fc1_w, &b->fc1_b);
    model_linear(p, prefix, "mlp.fc2", PARAM_MATMUL, s, STEM_RATIO * s, &b->fc2_w, &b->fc2_b);
}

Status stem_register(Stem *s, Params *p, int64_t depth, int64_t channels, int64_t width,
                     int64_t patch) {
    *s = (Stem){.depth = depth, .channels = channels, .width = width, .patch = patch / 2};
    model_conv(p, "", "stem.proj", PARAM_MATMUL, (int64_t[]){channels, 3, s->patch, s->patch},
               &s->proj_w, &s->proj_b);
    for (int64_t i = 0; i < depth; i++) add_block(&s->blocks[i], p, i, channels);
    model_norm(p, "", "stem.norm", channels, &s->norm_w, &s->norm_b);
    /* a convolution's start over all four places that an output reads */
    const Init start = {INIT_UNIFORM, 1.0f / sqrtf((float)(4 * channels))};
    const int64_t half[2] = {width, 2 * channels};
    s->upper_w = model_param(p, "stem.merge.", "upper.weight", start, PARAM_MATMUL, 2, half);
    s->upper_b = model_param(p, "stem.merge.", "upper.bias", start, 0, 1, half);
    s->lower_w = model_param(p, "stem.merge.", "lower.weight", start, PARAM_MATMUL, 2, half);
    return p->status;
}

static Var *block_forward(const StemBlock *b, Tape *t, Var *x, int64_t height, int64_t width) {
    Var *sum;
    Var *n = op_cpe_norm(t, x, height, width, b->conv_w, b->conv_b, b->norm_w, b->norm_b, NORM_EPS,
                         &sum);
    tape_drop(t, x);
    Var *y = op_mlp_residual(t, n, b->fc1_w, b->fc1_b, b->fc2_w, b->fc2_b, sum, tensor_none());
    tape_drop(t, n);
    tape_drop(t, sum);
    return y;
}

/* Two neighbours of one row lie side by side, so that a pair is one vector of 2 S by a view alone;
 * of each pair of rows, `width` such vectors are the upper one's, and as many the lower one's. */
static Var *merge(const Stem *s, Tape *t, Var *x, int64_t height, int64_t width) {
    const int64_t batch = x->value.shape[0], c = 2 * s->channels;
    Var *rows = op_view(t, x, 3, (int64_t[]){batch * height, 2 * width, c});
    Var *upper = op_slice_tokens(t, rows, 0, width);
    Var *lower = op_slice_tokens(t, rows, width, width);
    tape_drop(t, x);
    Var *half = op_linear(t, upper, s->upper_w, s->upper_b);
    tape_drop(t, upper);
    Var *y = op_linear_residual(t, lower, s->lower_w, NULL, half, tensor_none());
    tape_drop(t, lower);
    tape_drop(t, half);
    return op_view(t, y, 3, (int64_t[]){batch, height * width, s->width});
}

Var *stem_forward(const Stem *s, Tape *t, Var *patches, int64_t height, int64_t width) {
    const int64_t inputs = 3 * s->patch * s->patch;
    Var *w = op_view(t, s->proj_w, 2, (int64_t[]){s->channels, inputs});
    Var *x = op_linear(t, patches, w, s->proj_b);
    tape_drop(t, patches);
    for (int64_t i = 0; i < s->depth; i++)
        x = block_forward(&s->blocks[i], t, x, 2 * height, 2 * width);
    Var *normed = op_layernorm(t, x, s->norm_w, s->norm_b, NORM_EPS);
    tape_drop(t, x);
    return merge(s, t, normed, height, width);
}

int64_t stem_macs(int64_t depth, int64_t channels, int64_t width, int64_t patch, int64_t n) {
    const int64_t places = 4 * n, pixels = 3 * (patch / 2) * (patch / 2);
    return places * channels * (pixels + depth * (9 + 2 * STEM_RATIO * channels) + width);
}
