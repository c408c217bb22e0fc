/* Blocks of LaCT-NVS for the few tokens of one view: nine kernels a block. Norms, unit vectors and
 * gates are parts of the products around them: a product leaves sums of its rows, the one behind
 * makes row factors of them.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/few_rows.cuh"
extern "C" {
#include "kernels/view_blocks.h"
}

/* Sums that a product left: `normal` of x, `other` of what comes before a unit vector or a norm. */
typedef struct ViewSums {
    float *normal, *other;
    int normal_parts, other_parts;
} ViewSums;

static FewCall call_of(const void *x, int64_t rows, Tensor w, void *y) {
    FewCall g = {};
    g.m = rows, g.n = w.shape[0], g.k = w.shape[1];
    g.a = x, g.b = w.data, g.y = y;
    g.steady = true;
    return g;
}

/* w of one sample and head, [k,n]. */
static FewCall turned_call(const void *x, int64_t rows, Tensor w, void *y) {
    FewCall g = {};
    g.m = rows, g.n = w.shape[3], g.k = w.shape[2];
    g.a = x, g.b = w.data, g.y = y;
    g.steady = true;
    g.turned = true;
    return g;
}

/* y = w LN(x) of an x of which sums are there, and u = x norm_w. */
static FewCall norm_call(const ViewSums *s, const void *u, int64_t rows, Tensor w, Tensor norm_w,
                         float eps, void *y) {
    FewCall g = call_of(u, rows, w, y);
    g.rate = FEW_LAYER_NORM;
    g.norm_w = (const float *)norm_w.data;
    g.sums = s->normal;
    g.parts = s->normal_parts;
    g.eps = eps;
    return g;
}

/* x += w y, with sums of x and, where a norm follows, u = x norm_w. */
static Status residual_call(Device *d, ViewSums *s, FewCall g, Tensor x, Tensor u,
                            const Tensor *norm_w) {
    g.residual = x.data;
    g.y = x.data;
    g.sums_out = s->normal;
    if (norm_w) {
        g.weighed = u.data;
        g.column_w = (const float *)norm_w->data;
    }
    return few_rows(d, &g, &s->normal_parts);
}

static Status attend(Device *d, ViewSums *s, Tensor x, const ViewBlock *b, const ViewForm *f) {
    const int64_t rows = tensor_rows(x), width = tensor_last(x), l = f->window;
    const Tensor packed = tensor_3d(f->wide.data, x.dtype, rows / l, l, 3 * width);
    if (s->normal_parts > 0) {
        const FewCall g =
            norm_call(s, f->u.data, rows, b->qkv_w, b->norm_w[0], f->norm_eps, packed.data);
        TRY(few_rows(d, &g, NULL));
    } else { /* nobody has left sums */
        TRY(layernorm_cuda(d, f->u, tensor_none(), x, b->norm_w[0], f->zeros, f->norm_eps));
        const FewCall g = call_of(f->u.data, rows, b->qkv_w, packed.data);
        TRY(few_rows(d, &g, NULL));
    }
    TRY(attention_cuda(d, tensor_view3(f->o, rows / l, l, width), tensor_none(), packed,
                       b->q_norm_w, b->k_norm_w, f->heads, f->head_eps));
    return residual_call(d, s, call_of(f->o.data, rows, b->proj_w, NULL), x, f->u, &b->norm_w[1]);
}

static Status read(Device *d, ViewSums *s, Tensor x, const ViewBlock *b, const ViewForm *f) {
    const int64_t rows = tensor_rows(x);
    FewCall q = norm_call(s, f->u.data, rows, b->query_w, b->norm_w[1], f->norm_eps, f->o.data);
    q.silu = true;
    q.sums_out = s->other;
    TRY(few_rows(d, &q, &s->other_parts));
    FewCall gate = turned_call(f->o.data, rows, b->gates, f->wide.data);
    gate.gate = true;
    gate.rate = FEW_UNIT;
    gate.sums = s->other, gate.parts = s->other_parts, gate.eps = f->unit_offset;
    TRY(few_rows(d, &gate, NULL));
    FewCall back = turned_call(f->wide.data, rows, b->back, f->u.data);
    back.column_w = (const float *)b->out_norm_w.data;
    back.sums_out = s->other;
    TRY(few_rows(d, &back, &s->other_parts));
    FewCall out = call_of(f->u.data, rows, b->out_w, NULL);
    out.rate = FEW_RMS;
    out.sums = s->other, out.parts = s->other_parts, out.eps = f->out_eps;
    return residual_call(d, s, out, x, f->o, &b->norm_w[2]);
}

static Status feed_forward(Device *d, ViewSums *s, Tensor x, const ViewBlock *b, const Tensor *next,
                           const ViewForm *f) {
    const int64_t rows = tensor_rows(x);
    FewCall g = norm_call(s, f->o.data, rows, b->fc_w, b->norm_w[2], f->norm_eps, f->wide.data);
    g.gelu = true;
    TRY(few_rows(d, &g, NULL));
    return residual_call(d, s, call_of(f->wide.data, rows, b->fc_out_w, NULL), x, f->u, next);
}

/* Whether every product suits the kernel: one sample, one head of fast weights. */
static bool block_fits(Device *d, Tensor x, const ViewBlock *b, const ViewForm *f) {
    const int64_t rows = tensor_rows(x);
    if (x.dtype != DTYPE_BF16 || x.shape[0] != 1 || b->back.shape[0] != 1 ||
        b->gates.shape[0] != 1 || b->back.shape[1] != 1 || rows == 0)
        return false;
    const ViewSums s = {};
    FewCall gate = turned_call(f->o.data, rows, b->gates, f->wide.data);
    gate.gate = true;
    const FewCall all[] = {
        norm_call(&s, f->u.data, rows, b->qkv_w, b->norm_w[0], 0, f->wide.data),
        call_of(f->u.data, rows, b->qkv_w, f->wide.data),
        call_of(f->o.data, rows, b->proj_w, x.data),
        norm_call(&s, f->u.data, rows, b->query_w, b->norm_w[1], 0, f->o.data),
        gate,
        turned_call(f->wide.data, rows, b->back, f->o.data),
        call_of(f->o.data, rows, b->out_w, x.data),
        norm_call(&s, f->o.data, rows, b->fc_w, b->norm_w[2], 0, f->wide.data),
        call_of(f->wide.data, rows, b->fc_out_w, x.data),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!few_rows_fits(d, &all[i])) return false;
    for (int i = 0; i < 3; i++)
        if (!is_aligned(b->norm_w[i].data, 8)) return false;
    return is_aligned(b->out_norm_w.data, 8);
}

static FewCall colours_call(const ViewSums *s, int64_t rows, const ViewForm *f) {
    FewCall g =
        norm_call(s, f->u.data, rows, f->colours_w, f->end_norm_w, f->norm_eps, f->colours.data);
    g.sigmoid = true;
    return g;
}

static bool colours_fit(Device *d, Tensor x, const ViewForm *f) {
    const ViewSums s = {};
    if (tensor_is_none(f->colours) || !is_aligned(f->end_norm_w.data, 8)) return false;
    const FewCall g = colours_call(&s, tensor_rows(x), f);
    return few_rows_fits(d, &g);
}

static Status run(Device *d, Tensor x, int count, const ViewBlock *block, const ViewForm *form) {
    ViewSums s = {};
    const int64_t rows = tensor_rows(x);
    const size_t bytes = sizeof(float) * 2 * FEW_PARTS * rows;
    TRY(scratch_take(d, bytes, (void **)&s.normal));
    TRY(scratch_take(d, bytes, (void **)&s.other));
    const Tensor flat = tensor_view2(x, rows, tensor_last(x));
    const bool end = colours_fit(d, x, form);
    for (int i = 0; i < count; i++) {
        const Tensor *next = i + 1 < count ? &block[i + 1].norm_w[0]
                             : end         ? &form->end_norm_w
                                           : NULL;
        TRY(attend(d, &s, flat, &block[i], form));
        TRY(read(d, &s, flat, &block[i], form));
        TRY(feed_forward(d, &s, flat, &block[i], next, form));
    }
    if (tensor_is_none(form->colours)) return STATUS_OK;
    if (!end || count == 0) return view_colours_composed(d, x, form);
    const FewCall g = colours_call(&s, rows, form);
    return few_rows(d, &g, NULL);
}

extern "C" Status view_blocks_cuda(Device *d, Tensor x, int count, const ViewBlock *block,
                                   const ViewForm *form) {
    if (tensor_count(x) == 0) return STATUS_OK;
    for (int i = 0; i < count; i++)
        if (!block_fits(d, x, &block[i], form))
            return view_blocks_composed(d, x, count, block, form);
    const Status status = run(d, x, count, block, form);
    scratch_done(d);
    return status;
}
