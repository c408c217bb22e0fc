/* The ViTTT mixer: parameters, the two projections, and the choice of a form. */
#include "ttt/vittt_mixer.h"

#include <stdio.h>

#include "ttt/vittt_forms.h"

Status vittt_mixer_register(VitttMixer *m, Params *p, const char *prefix, int64_t width,
                            int64_t heads) {
    if (width < 1 || heads < 1 || width % heads != 0)
        return status_set(STATUS_USAGE, "%s: width %lld is not a multiple of %lld heads", prefix,
                          (long long)width, (long long)heads);
    const int64_t c = width, d = width / heads;
    const Init normal = {INIT_NORMAL, 0.02f}, zero = {INIT_ZERO, 0};
    const struct {
        const char *name;
        Var **var;
        int rank, flags;
        Init init;
        int64_t shape[4];
    } wanted[] = {
        {"w1", &m->w1, 4, 0, normal, {1, heads, d, d}},
        {"w2", &m->w2, 4, 0, normal, {1, heads, d, d}},
        {"w3", &m->w3, 4, 0, normal, {d, 1, 3, 3}},
        {"qkv.weight", &m->qkv_w, 2, PARAM_MATMUL, normal, {3 * c + 3 * d, c}},
        {"qkv.bias", &m->qkv_b, 1, 0, zero, {3 * c + 3 * d}},
        {"proj.weight", &m->proj_w, 2, PARAM_MATMUL, normal, {c, c + d}},
        {"proj.bias", &m->proj_b, 1, 0, zero, {c}},
    };
    *m = (VitttMixer){.width = width, .heads = heads};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", prefix, wanted[i].name);
        int flags = wanted[i].flags | (params_decays(name, wanted[i].rank) ? PARAM_DECAY : 0);
        *wanted[i].var =
            params_add(p, name, wanted[i].rank, wanted[i].shape, wanted[i].init, flags);
    }
    return p->status;
}

/* Packed projections with the queries of both branches replaced; `qkv` ends here. */
static Var *swap_queries(const VitttMixer *m, Tape *t, Var *qkv) {
    const int64_t c = m->width, d = c / m->heads;
    Var *glu = query_swap(t, qkv, m->swap, (QueryPlace){0, c, m->heads, d});
    drop(t, qkv);
    Var *both = query_swap(t, glu, m->swap, (QueryPlace){3 * c, 3 * c + d, 1, d});
    drop(t, glu);
    return both;
}

/* Both branches of packed projections, which end here unless a trace keeps them. */
static Var *mixer_inner(const VitttMixer *m, Tape *t, Var *qkv, int64_t height, int64_t width) {
    if (m->rope) {
        Var *turned = op_rope(t, qkv, m->rope);
        tape_release(t, qkv);
        qkv = turned;
    }
    if (m->swap) qkv = swap_queries(m, t, qkv);
    Var *cat;
    if (m->trace) *m->trace = (VitttTrace){0};
    if (m->form == VITTT_FUSED && vittt_variant_is_base(m->variant)) {
        const VitttShape s = {qkv->value.shape[0], height, width, m->heads, m->width / m->heads};
        cat = op_vittt_inner(t, qkv, m->w1, m->w2, m->w3, s);
    } else {
        cat = vittt_inner_composed(m, t, qkv, height, width);
    }
    if (m->trace) {
        m->trace->qkv = qkv;
    } else {
        drop(t, qkv);
    }
    return cat;
}

static Status check_input(const VitttMixer *m, Tape *t, const Var *x, int64_t height,
                          int64_t width) {
    TRY(tape_status(t));
    const Tensor *v = &x->value;
    char text[64];
    if (v->rank == 3 && v->shape[1] == height * width && v->shape[2] == m->width) return STATUS_OK;
    return status_set(STATUS_DATA, "ViTTT mixer: input is %s, expected [B, %lld*%lld, %lld]",
                      tensor_shape_text(*v, text, sizeof text), (long long)height, (long long)width,
                      (long long)m->width);
}

static void end_inner(const VitttMixer *m, Tape *t, Var *cat) {
    if (m->trace) {
        m->trace->cat = cat;
    } else {
        drop(t, cat);
    }
}

Var *vittt_mixer_join(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width,
                      Var *residual, Tensor scale) {
    const Status s = check_input(m, t, x, height, width);
    if (s != STATUS_OK) return tape_fail(t, s);
    Var *cat = mixer_inner(m, t, op_linear(t, x, m->qkv_w, m->qkv_b), height, width);
    Var *y = residual ? op_linear_residual(t, cat, m->proj_w, m->proj_b, residual, scale)
                      : op_linear(t, cat, m->proj_w, m->proj_b);
    end_inner(m, t, cat);
    return y;
}

Var *vittt_mixer_join_folded(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width,
                             Var *residual, const VitttFolds *f) {
    const Status s = check_input(m, t, x, height, width);
    if (s != STATUS_OK) return tape_fail(t, s);
    Var *qkv =
        f->qkv ? op_linear_folded(t, x, f->stats, f->qkv) : op_linear(t, x, m->qkv_w, m->qkv_b);
    Var *cat = mixer_inner(m, t, qkv, height, width);
    Var *y =
        f->out_stats
            ? op_linear_residual_stats(t, cat, m->proj_w, m->proj_b, residual, f->eps, f->out_stats)
            : op_linear_residual(t, cat, m->proj_w, m->proj_b, residual, tensor_none());
    end_inner(m, t, cat);
    return y;
}

Var *vittt_mixer_forward(const VitttMixer *m, Tape *t, Var *x, int64_t height, int64_t width) {
    return vittt_mixer_join(m, t, x, height, width, NULL, tensor_none());
}
