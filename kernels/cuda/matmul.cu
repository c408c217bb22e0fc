/* The product slots on top of gemm.cu: batched with broadcast, linear and its gradients. */
#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_dw.cuh"
#include "kernels/cuda/gemm_fused.cuh"

#define COLUMN_LANES 8

/* ---- matmul --------------------------------------------------------------------------------- */

/* A loop dimension: how often, and by how many elements each operand moves (0: broadcast or
 * summed). */
typedef struct Loop {
    int64_t count, a, b, c;
} Loop;

static int64_t leading(Tensor t, int from_last) {
    const int i = t.rank - 3 - from_last;
    return i >= 0 ? t.shape[i] : 1;
}

/* The two batch dimensions, inner first; joined into one where all operands move alike. */
static void loops_of(Loop loop[2], Tensor a, Tensor b, Tensor c) {
    int64_t step[3];
    const Tensor t[3] = {a, b, c};
    for (int i = 0; i < 3; i++) step[i] = t[i].shape[t[i].rank - 2] * t[i].shape[t[i].rank - 1];
    for (int l = 0; l < 2; l++) {
        const int64_t na = leading(a, l), nb = leading(b, l), nc = leading(c, l);
        const int64_t most = na > nb ? na : nb;
        loop[l].count = most > nc ? most : nc;
        loop[l].a = na > 1 ? step[0] : 0;
        loop[l].b = nb > 1 ? step[1] : 0;
        loop[l].c = nc > 1 ? step[2] : 0;
        step[0] *= na;
        step[1] *= nb;
        step[2] *= nc;
    }
    const bool joins = loop[1].a == loop[0].count * loop[0].a &&
                       loop[1].b == loop[0].count * loop[0].b &&
                       loop[1].c == loop[0].count * loop[0].c;
    if (joins) {
        loop[0].count *= loop[1].count;
        loop[1].count = 1;
    }
    /* products of one call must not meet in c; of the rest the longer loop goes into the call */
    const bool sums0 = loop[0].c == 0 && loop[0].count > 1,
               sums1 = loop[1].c == 0 && loop[1].count > 1;
    if ((sums0 && !sums1) || (sums0 == sums1 && loop[1].count > loop[0].count)) {
        const Loop t0 = loop[0];
        loop[0] = loop[1];
        loop[1] = t0;
    }
}

static void gemm_move(GemmCall *g, int64_t a, int64_t b, int64_t c) {
    g->a = (const char *)g->a + a * (int64_t)dtype_size(g->in);
    g->b = (const char *)g->b + b * (int64_t)dtype_size(g->in);
    g->c = (char *)g->c + c * (int64_t)dtype_size(g->out);
}

static Status matmul_loops(Device *d, GemmCall base, const Loop loop[2]) {
    const bool sums0 = loop[0].c == 0 && loop[0].count > 1;
    const int64_t inner = sums0 ? loop[0].count : 1;
    base.batch = sums0 ? 1 : loop[0].count;
    base.step_a = loop[0].a, base.step_b = loop[0].b, base.step_c = loop[0].c;
    for (int64_t j = 0; j < loop[1].count; j++) {
        for (int64_t i = 0; i < inner; i++) {
            GemmCall g = base;
            gemm_move(&g, j * loop[1].a + i * loop[0].a, j * loop[1].b + i * loop[0].b,
                      j * loop[1].c);
            g.add = base.add || i > 0 || (j > 0 && loop[1].c == 0);
            TRY(gemm_run(d, &g));
        }
    }
    return STATUS_OK;
}

/* Many small products that are summed, the gradient of weights which all samples share: one batch
 * of products into memory of their own and one sum over it, instead of a launch for each. Products
 * that fill the card, and sums over the inner dimension alone, are left to the loops. */
#define SUMMED_APART_FLOP  1e8
#define SUMMED_APART_BYTES ((int64_t)128 << 20)

static bool sums_apart(Tensor a, Tensor b, Tensor c, int64_t k, int64_t counts[2], bool *inner) {
    const int64_t m = c.shape[c.rank - 2], n = c.shape[c.rank - 1];
    for (int l = 0; l < 2; l++) {
        const int64_t na = leading(a, l), nb = leading(b, l);
        counts[l] = na > nb ? na : nb;
    }
    *inner = leading(c, 0) == 1 && counts[0] > 1;
    const int64_t outer = leading(c, 1) == 1 ? counts[1] : 1;
    const bool whole = outer > 1 || (*inner && counts[1] <= 1);
    return whole && outer * (*inner ? counts[0] : 1) >= 4 &&
           2.0 * (double)m * (double)n * (double)k <= SUMMED_APART_FLOP &&
           counts[0] * counts[1] * m * n * (int64_t)sizeof(float) <= SUMMED_APART_BYTES;
}

static Status matmul_apart(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha,
                           const int64_t counts[2], bool inner, int64_t k) {
    const int64_t m = c.t.shape[c.t.rank - 2], n = c.t.shape[c.t.rank - 1];
    const int64_t shape[4] = {counts[1], counts[0], m, n};
    void *memory;
    TRY(scratch_take(d, (size_t)(counts[0] * counts[1] * m * n) * sizeof(float), &memory));
    const Tensor each = tensor_of(memory, DTYPE_F32, 4, shape);
    Loop loop[2];
    loops_of(loop, a, b, each);
    GemmCall g = gemm_call(m, n, k, a.data, ta, b.data, tb, each.data, a.dtype, each.dtype, false);
    g.alpha = alpha;
    TRY(matmul_loops(d, g, loop));
    const int64_t kept = inner ? m * n : counts[0] * m * n;
    Tensor sum = c.t;
    const bool detour = c.t.dtype != DTYPE_F32;
    if (detour) {
        TRY(scratch_take(d, (size_t)kept * sizeof(float), &memory));
        sum = tensor_of(memory, DTYPE_F32, c.t.rank, c.t.shape);
    }
    const Grad to = {sum, c.add && !detour};
    TRY(reduce_partials(d, to, (const float *)each.data, tensor_count(each) / kept, kept, 1.0f));
    return detour ? copy_cuda(d, c, sum, 1.0f) : STATUS_OK;
}

/* y [m,n] = x [m,k] w; y NULL where the types are others than BF16. */
static FewCall few_call(Tensor y, Tensor x, Tensor w, int64_t m, int64_t n, int64_t k) {
    FewCall f = {};
    f.m = m, f.n = n, f.k = k;
    f.a = x.data, f.b = w.data;
    if (x.dtype == DTYPE_BF16 && y.dtype == DTYPE_BF16) f.y = y.data;
    return f;
}

static Status matmul_run(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb, float alpha) {
    Loop loop[2];
    loops_of(loop, a, b, c.t);
    const int64_t m = c.t.shape[c.t.rank - 2], n = c.t.shape[c.t.rank - 1];
    const int64_t k = a.shape[a.rank - (ta ? 2 : 1)];
    int64_t counts[2];
    bool inner;
    if (sums_apart(a, b, c.t, k, counts, &inner))
        return matmul_apart(d, c, a, ta, b, tb, alpha, counts, inner, k);
    Tensor target = c.t;
    const bool sums =
        (loop[0].c == 0 && loop[0].count > 1) || (loop[1].c == 0 && loop[1].count > 1);
    const bool detour = sums && c.t.dtype == DTYPE_BF16; /* sums are kept in F32 */
    if (detour) {
        void *memory;
        TRY(scratch_take(d, sizeof(float) * tensor_count(c.t), &memory));
        target = tensor_of(memory, DTYPE_F32, c.t.rank, c.t.shape);
    }
    if (loop[0].count == 1 && loop[1].count == 1 && !ta && !c.add && alpha == 1.0f) {
        FewCall f = few_call(target, a, b, m, n, k);
        f.turned = !tb;
        if (f.y && few_rows_fits(d, &f)) return few_rows(d, &f, NULL);
    }
    GemmCall g = gemm_call(m, n, k, a.data, ta, b.data, tb, target.data, a.dtype, target.dtype,
                           c.add && !detour);
    g.alpha = alpha;
    TRY(matmul_loops(d, g, loop));
    return detour ? copy_cuda(d, c, target, 1.0f) : STATUS_OK;
}

extern "C" Status matmul_cuda(Device *d, Grad c, Tensor a, bool ta, Tensor b, bool tb,
                              float alpha) {
    if (tensor_is_none(c.t) || tensor_count(c.t) == 0) return STATUS_OK;
    if (a.dtype != b.dtype || (a.dtype != DTYPE_F32 && a.dtype != DTYPE_BF16))
        return refuse_dtype("matmul", b.dtype);
    const Status status = matmul_run(d, c, a, ta, b, tb, alpha);
    scratch_done(d);
    return status;
}

/* ---- linear --------------------------------------------------------------------------------- */

/* BF16 on Hopper: one kernel for the product and what follows. Where nothing follows, not even a
 * bias, cuBLASLt is faster: 65,536 rows, 768 inputs, 2,304 outputs .311 against .346 ms, 768
 * outputs .112 against .125 (one H200 at 700 W). */
static FusedCall linear_fused(Tensor y, Tensor a, Tensor w, FusedKind kind) {
    FusedCall f = {};
    f.m = tensor_rows(a), f.n = tensor_last(y), f.k = tensor_last(a);
    f.a = a.data, f.b = w.data, f.y = y.data;
    f.kind = kind;
    return f;
}

static Status linear_run(Device *d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias,
                         Activation act) {
    const int64_t inputs = tensor_last(w), outputs = w.shape[0];
    FewCall few = few_call(y, x, w, tensor_rows(x), outputs, inputs);
    few.bias = (const float *)bias.data;
    few.gelu = act == ACT_GELU;
    if (few.y && tensor_is_none(pre) && few_rows_fits(d, &few)) return few_rows(d, &few, NULL);
    const bool more = act == ACT_GELU || !tensor_is_none(bias);
    if (x.dtype == DTYPE_BF16 && y.dtype == DTYPE_BF16 && more &&
        (act == ACT_GELU || tensor_is_none(pre))) {
        FusedCall f = linear_fused(y, x, w, act == ACT_GELU ? FUSED_GELU : FUSED_PLAIN);
        f.other = pre.data;
        f.bias = (const float *)bias.data;
        if (gemm_fused_fits(d, &f)) return gemm_fused(d, &f);
    }
    const Tensor before = act == ACT_GELU && !tensor_is_none(pre) ? pre : y;
    GemmCall g = gemm_call(tensor_rows(x), outputs, inputs, x.data, false, w.data, true,
                           before.data, x.dtype, before.dtype, false);
    g.bias = (const float *)bias.data;
    TRY(gemm_run(d, &g));
    if (act == ACT_NONE && !tensor_is_none(pre)) TRY(copy_cuda(d, grad_set(pre), y, 1.0f));
    return act == ACT_GELU ? unary_cuda(d, grad_set(y), UNARY_GELU, before) : STATUS_OK;
}

extern "C" Status linear_cuda(Device *d, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor bias,
                              Activation act) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (w.dtype != x.dtype) return refuse_dtype("linear", w.dtype);
    const Status status = linear_run(d, y, pre, x, w, bias, act);
    scratch_done(d);
    return status;
}

/* With a scale only the kernel of our own does it in one pass: cuBLASLt's factors are those of the
 * whole product. */
static Status linear_residual_run(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias,
                                  Tensor residual, Tensor scale) {
    const int64_t rows = tensor_rows(x), outputs = w.shape[0];
    if (x.dtype == DTYPE_BF16 && y.dtype == DTYPE_BF16) {
        FusedCall f = linear_fused(y, x, w, FUSED_RESIDUAL);
        f.other = residual.data;
        f.bias = (const float *)bias.data;
        f.scale = (const float *)scale.data;
        if (f.scale) f.rows_per_scale = rows / tensor_count(scale);
        if (gemm_fused_fits(d, &f)) return gemm_fused(d, &f);
    }
    GemmCall g = gemm_call(rows, outputs, tensor_last(w), x.data, false, w.data, true, y.data,
                           x.dtype, y.dtype, true);
    g.bias = (const float *)bias.data;
    FewCall few = few_call(y, x, w, rows, outputs, tensor_last(w));
    few.bias = (const float *)bias.data;
    few.residual = residual.data;
    if (few.y && tensor_is_none(scale) && few_rows_fits(d, &few)) return few_rows(d, &few, NULL);
    if (tensor_is_none(scale)) {
        g.from = residual.data == y.data ? NULL : residual.data;
        return gemm_run(d, &g);
    }
    Tensor branch = y;
    if (residual.data == y.data) {
        void *memory;
        TRY(scratch_take(d, tensor_bytes(y), &memory));
        branch = tensor_of(memory, y.dtype, y.rank, y.shape);
    }
    g.c = branch.data;
    g.add = false;
    TRY(gemm_run(d, &g));
    const int64_t count = tensor_count(scale), shape[2] = {count, tensor_count(y) / count};
    return residual_cuda(d, tensor_view(y, 2, shape), tensor_view(residual, 2, shape),
                         tensor_view(branch, 2, shape), scale);
}

extern "C" Status linear_residual_cuda(Device *d, Tensor y, Tensor x, Tensor w, Tensor bias,
                                       Tensor residual, Tensor scale) {
    if (tensor_count(y) == 0) return STATUS_OK;
    if (w.dtype != x.dtype || y.dtype != residual.dtype)
        return refuse_dtype("linear_residual", w.dtype);
    const Status status = linear_residual_run(d, y, x, w, bias, residual, scale);
    scratch_done(d);
    return status;
}

/* partial[blockIdx.y][columns]: rows blockIdx.y*8 + lane, stepping by 8 gridDim.y. */
template <typename T, int V>
__global__ void __launch_bounds__(32 * COLUMN_LANES)
    column_sum_kernel(float *partial, const T *x, int64_t rows, int64_t columns) {
    __shared__ float sums[COLUMN_LANES][32][V];
    const int64_t c = ((int64_t)blockIdx.x * 32 + threadIdx.x) * V;
    float sum[V] = {};
    if (c < columns) {
#pragma unroll 4
        for (int64_t r = (int64_t)blockIdx.y * COLUMN_LANES + threadIdx.y; r < rows;
             r += (int64_t)gridDim.y * COLUMN_LANES) {
            float v[V];
            pack_load<T, V>(v, x + r * columns + c);
#pragma unroll
            for (int i = 0; i < V; i++) sum[i] += v[i];
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++) sums[threadIdx.y][threadIdx.x][i] = sum[i];
    __syncthreads();
    if (threadIdx.y >= V || c >= columns) return;
    const int i = threadIdx.y;
    float total = 0;
    for (int lane = 0; lane < COLUMN_LANES; lane++) total += sums[lane][threadIdx.x][i];
    partial[(int64_t)blockIdx.y * columns + c + i] = total;
}

static Status column_sum(Device *d, Grad out, Tensor x) {
    const int64_t rows = tensor_rows(x), columns = tensor_last(x);
    const int V = 16 / (int)dtype_size(x.dtype);
    const bool packed = columns % V == 0 && is_aligned(x.data, 16);
    const int64_t across = ceil_div(columns, packed ? 32 * V : 32);
    const int64_t want = ceil_div(8 * backend_of(d)->sm_count, across);
    const int64_t most = ceil_div(rows, COLUMN_LANES);
    const int64_t parts = want < most ? want : most;
    float *partial;
    TRY(scratch_take(d, sizeof(float) * parts * columns, (void **)&partial));
    const dim3 grid((unsigned)across, (unsigned)parts), block(32, COLUMN_LANES);
    WITH_ACT("linear_dw", x.dtype, T,
             if (packed) column_sum_kernel<T, 16 / sizeof(T)>
             <<<grid, block, 0, stream_of(d)>>>(partial, (const T *)x.data, rows, columns);
             else column_sum_kernel<T, 1>
             <<<grid, block, 0, stream_of(d)>>>(partial, (const T *)x.data, rows, columns));
    TRY(launched("linear_dw"));
    return reduce_partials(d, out, partial, parts, columns, 1.0f);
}

/* dx and its column sums in one kernel; *done false where that does not fit. */
static Status linear_dx_fused(Device *d, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre,
                              bool *done) {
    FusedCall f = linear_fused(dx.t, dy, w, FUSED_DGELU);
    const int64_t parts = gemm_fused_sums(f.m);
    f.other = pre.data;
    *done = !dx.add && dy.dtype == DTYPE_BF16 && dx.t.dtype == DTYPE_BF16 && gemm_fused_fits(d, &f);
    if (!*done) return STATUS_OK;
    if (!tensor_is_none(sums.t))
        TRY(scratch_take(d, sizeof(float) * parts * f.n, (void **)&f.sums));
    TRY(gemm_fused(d, &f));
    const int64_t shape[2] = {parts, f.n};
    return f.sums ? column_sum(d, sums, tensor_of(f.sums, DTYPE_F32, 2, shape)) : STATUS_OK;
}

static Status linear_dx_apart(Device *d, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre,
                              Activation act) {
    const int64_t inputs = tensor_last(w), outputs = w.shape[0];
    Tensor before = dx.t;
    if (act == ACT_GELU && dx.add) {
        void *memory;
        TRY(scratch_take(d, tensor_bytes(dx.t), &memory));
        before = tensor_of(memory, dx.t.dtype, dx.t.rank, dx.t.shape);
    }
    const GemmCall g = gemm_call(tensor_rows(dy), inputs, outputs, dy.data, false, w.data, false,
                                 before.data, dy.dtype, before.dtype, act == ACT_NONE && dx.add);
    TRY(gemm_run(d, &g));
    if (act == ACT_GELU) TRY(unary_mul_cuda(d, dx, UNARY_DGELU, pre, before));
    return tensor_is_none(sums.t) ? STATUS_OK : column_sum(d, sums, dx.t);
}

extern "C" Status linear_dx_cuda(Device *d, Grad dx, Grad sums, Tensor dy, Tensor w, Tensor pre,
                                 Activation act) {
    if (tensor_is_none(dx.t) || tensor_count(dx.t) == 0) return STATUS_OK;
    if (w.dtype != dy.dtype) return refuse_dtype("linear_dx", w.dtype);
    if (!tensor_is_none(sums.t) && dx.add)
        return status_set(STATUS_INTERNAL, "linear_dx: sums of a gradient that adds up");
    bool done = false;
    Status status = act == ACT_GELU ? linear_dx_fused(d, dx, sums, dy, w, pre, &done) : STATUS_OK;
    if (status == STATUS_OK && !done) status = linear_dx_apart(d, dx, sums, dy, w, pre, act);
    scratch_done(d);
    return status;
}

/* By the kernel written for Hopper; *done false where that does not fit. Chosen by the sizes alone,
 * so that a weight gets the same gradient whether the bias wants one or not. */
static Status linear_dw_own(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x, bool *done) {
    DwCall g = {};
    g.rows = tensor_rows(x), g.outputs = tensor_last(dy), g.inputs = tensor_last(x);
    g.dy = dy.data, g.x = x.data;
    g.dw = (float *)dw.t.data, g.add = dw.add;
    g.dbias = (float *)dbias.t.data, g.add_bias = dbias.add;
    *done = x.dtype == DTYPE_BF16 && dw.t.data && gemm_dw_fits(d, &g);
    return *done ? gemm_dw(d, &g) : STATUS_OK;
}

/* cuBLASLt offers the bias gradient as a by-product of the weight product (BGRADB), but it costs
 * that product more (0.04 to 0.14 ms at the sizes of ViTTT-B, batch 256) than reading dy again
 * (0.02 to 0.08 ms). */
static Status linear_dw_apart(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x) {
    const int64_t inputs = tensor_last(x), outputs = tensor_last(dy);
    if (!tensor_is_none(dw.t)) {
        const GemmCall g = gemm_call(outputs, inputs, tensor_rows(x), dy.data, true, x.data, false,
                                     dw.t.data, x.dtype, DTYPE_F32, dw.add);
        TRY(gemm_run(d, &g));
    }
    return tensor_is_none(dbias.t) ? STATUS_OK : column_sum(d, dbias, dy);
}

extern "C" Status linear_dw_cuda(Device *d, Grad dw, Grad dbias, Tensor dy, Tensor x) {
    if (x.dtype != dy.dtype) return refuse_dtype("linear_dw", x.dtype);
    bool done;
    Status status = linear_dw_own(d, dw, dbias, dy, x, &done);
    if (status == STATUS_OK && !done) status = linear_dw_apart(d, dw, dbias, dy, x);
    scratch_done(d);
    return status;
}
