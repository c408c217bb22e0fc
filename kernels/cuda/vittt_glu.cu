/* GLU branch of the ViTTT mixer (vittt.md 2.1, 3.1) for any head width, in F32 arithmetic: a block
 * per (sample, head), tiles of tokens. The formulas one by one; the tensor-core kernels are checked
 * against these. Matrices of a block live in shared memory when they fit, else in scratch. */
#include "kernels/cuda/glu.cuh"

#define THREADS     256
#define STATE_COUNT 8 /* d x d matrices of the backward; the forward has 4 */
#define TILE_COUNT  9 /* tile x d matrices of the backward; the forward has 4 */

/* Work memory of a block: `state` holds d x d matrices, `tile` matrices of `rows` tokens. */
typedef struct GluPlan {
    int rows;
    int64_t floats; /* per block */
    float *memory;  /* NULL: shared memory */
} GluPlan;

/* A matrix element by (row, column): e.g. a transpose swaps the steps. */
typedef struct View {
    const float *p;
    int row, column;
} View;

static __device__ __forceinline__ View view(const float *p, int d) {
    return {p, d, 1};
}
static __device__ __forceinline__ View turned(const float *p, int d) {
    return {p, 1, d};
}

/* out[m,n] (+)= alpha a[m,k] b[k,n], `out` with pitch n. 4 x 4 results per thread at a time;
 * columns of one thread lie n/4 apart, so that neighbouring threads read neighbouring words. */
static __device__ void block_product(float *out, View a, View b, int m, int n, int k, float alpha,
                                     bool add) {
    const int across = (n + 3) / 4, down = (m + 3) / 4;
    for (int item = threadIdx.x; item < across * down; item += THREADS) {
        const int m0 = item / across * 4, n0 = item % across;
        const float *ap[4], *bp[4];
        float sum[4][4] = {};
#pragma unroll
        for (int q = 0; q < 4; q++) {
            ap[q] = a.p + (m0 + q < m ? m0 + q : m - 1) * a.row;
            bp[q] = b.p + (n0 + q * across < n ? n0 + q * across : n - 1) * b.column;
        }
        for (int i = 0; i < k; i++) {
#pragma unroll
            for (int q = 0; q < 4; q++)
#pragma unroll
                for (int r = 0; r < 4; r++) sum[q][r] += ap[q][i * a.column] * bp[r][i * b.row];
        }
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int row = m0 + q, column = n0 + r * across;
                if (row >= m || column >= n) continue;
                float *at = out + row * n + column;
                *at = add ? *at + alpha * sum[q][r] : alpha * sum[q][r];
            }
    }
}

static __device__ void matrix_load(float *out, const float *in, int n) {
    for (int i = threadIdx.x; i < n; i += THREADS) out[i] = in[i];
}

/* Tokens first .. first+rows-1 of one head's channels; rows past the end are zero. */
template <typename T>
static __device__ void tile_load(float *out, const T *in, int64_t pitch, int first, int rows,
                                 int tokens, int d) {
    for (int i = threadIdx.x; i < rows * d; i += THREADS) {
        const int t = first + i / d;
        out[i] = t < tokens ? to_float(in[t * pitch + i % d]) : 0.0f;
    }
}
template <typename T>
static __device__ void tile_store(T *out, const float *in, int64_t pitch, int first, int rows,
                                  int tokens, int d) {
    for (int i = threadIdx.x; i < rows * d; i += THREADS) {
        const int t = first + i / d;
        if (t < tokens) from_float(out + t * pitch + i % d, in[i]);
    }
}

/* w -= softnorm(g), column by column. */
static __device__ void inner_step(float *w, const float *g, int d) {
    for (int j = threadIdx.x; j < d; j += THREADS) {
        float square = 0;
        for (int i = 0; i < d; i++) square += g[i * d + j] * g[i * d + j];
        const float r = 1.0f / (sqrtf(square) + 1.0f);
        for (int i = 0; i < d; i++) w[i * d + j] -= r * g[i * d + j];
    }
}

/* dw' -> dG, in place (vittt.md 3.1). */
static __device__ void inner_step_backward(float *dw, const float *g, int d) {
    for (int j = threadIdx.x; j < d; j += THREADS) {
        float square = 0, t = 0;
        for (int i = 0; i < d; i++) {
            square += g[i * d + j] * g[i * d + j];
            t -= g[i * d + j] * dw[i * d + j];
        }
        const float n = sqrtf(square), r = 1.0f / (n + 1.0f);
        const float back = n > 0 ? r * r * t / n : 0.0f;
        for (int i = 0; i < d; i++) dw[i * d + j] = -r * dw[i * d + j] - back * g[i * d + j];
    }
}

static __device__ float *work_memory(const GluPlan &plan, float *shared) {
    return plan.memory ? plan.memory + blockIdx.x * plan.floats : shared;
}

/* ---- forward -------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    glu_kernel(T *cat, const T *qkv, GluArgs a, GluPlan plan) {
    extern __shared__ float shared[];
    const int d = a.head_dim, dd = d * d, rows = plan.rows, n = rows * d, wide = a.heads * d;
    float *w1 = work_memory(plan, shared), *w2 = w1 + dd, *g1 = w2 + dd, *g2 = g1 + dd;
    float *x = g2 + dd, *v = x + n, *z1 = v + n, *z2 = z1 + n;
    for (int64_t item = blockIdx.x; item < a.batch * a.heads; item += gridDim.x) {
        const int64_t b = item / a.heads;
        const int h = (int)(item % a.heads);
        const T *q_in = qkv + b * a.tokens * a.pitch + h * d, *k_in = q_in + wide,
                *v_in = k_in + wide;
        __syncthreads();
        matrix_load(w1, a.w1 + h * dd, dd);
        matrix_load(w2, a.w2 + h * dd, dd);
        for (int first = 0; first < a.tokens; first += rows) {
            __syncthreads();
            tile_load(x, k_in, a.pitch, first, rows, a.tokens, d);
            tile_load(v, v_in, a.pitch, first, rows, a.tokens, d);
            __syncthreads();
            block_product(z1, view(x, d), view(w1, d), rows, d, d, 1.0f, false);
            block_product(z2, view(x, d), view(w2, d), rows, d, d, 1.0f, false);
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += THREADS) { /* V A and V Z1 D; -c comes later */
                float s, s1, s2;
                silu_all(z2[i], &s, &s1, &s2);
                z2[i] = v[i] * z1[i] * s1;
                z1[i] = v[i] * s;
            }
            __syncthreads();
            block_product(g1, turned(x, d), view(z1, d), d, d, rows, -a.c, first > 0);
            block_product(g2, turned(x, d), view(z2, d), d, d, rows, -a.c, first > 0);
        }
        __syncthreads();
        if (a.g) matrix_load(a.g + item * 2 * dd, g1, 2 * dd);
        inner_step(w1, g1, d);
        inner_step(w2, g2, d);
        for (int first = 0; first < a.tokens; first += rows) {
            __syncthreads();
            tile_load(x, q_in, a.pitch, first, rows, a.tokens, d);
            __syncthreads();
            block_product(z1, view(x, d), view(w1, d), rows, d, d, 1.0f, false);
            block_product(z2, view(x, d), view(w2, d), rows, d, d, 1.0f, false);
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += THREADS) z1[i] *= z2[i] * logistic(z2[i]);
            __syncthreads();
            tile_store(cat + b * a.tokens * a.cat_pitch + h * d, z1, a.cat_pitch, first, rows,
                       a.tokens, d);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Names of a backward block's matrices. */
typedef struct GluBack {
    float *w1, *w2, *u1, *u2, *g1, *g2, *d1, *d2;     /* W, W', G, dW' then dG */
    float *x, *o, *a1, *a2, *b1, *b2, *e1, *e2, *out; /* tiles */
} GluBack;

static __device__ GluBack back_names(float *m, int dd, int n) {
    GluBack k;
    k.w1 = m, k.w2 = m + dd, k.u1 = m + 2 * dd, k.u2 = m + 3 * dd;
    k.g1 = m + 4 * dd, k.g2 = m + 5 * dd, k.d1 = m + 6 * dd, k.d2 = m + 7 * dd;
    float *t = m + STATE_COUNT * dd;
    k.x = t, k.o = t + n, k.a1 = t + 2 * n, k.a2 = t + 3 * n, k.b1 = t + 4 * n, k.b2 = t + 5 * n;
    k.e1 = t + 6 * n, k.e2 = t + 7 * n, k.out = t + 8 * n;
    return k;
}

/* Through O = Y1 silu(Y2), Y = Q W': dQ to memory, dW' in d1, d2. */
template <typename T>
static __device__ void read_backward(const GluBack &k, T *dq, const T *q_in, const T *do_in,
                                     const GluArgs &a, int rows) {
    const int d = a.head_dim, n = rows * d;
    for (int first = 0; first < a.tokens; first += rows) {
        __syncthreads();
        tile_load(k.x, q_in, a.pitch, first, rows, a.tokens, d);
        tile_load(k.o, do_in, a.cat_pitch, first, rows, a.tokens, d);
        __syncthreads();
        block_product(k.a1, view(k.x, d), view(k.u1, d), rows, d, d, 1.0f, false);
        block_product(k.a2, view(k.x, d), view(k.u2, d), rows, d, d, 1.0f, false);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            float s, s1, s2;
            silu_all(k.a2[i], &s, &s1, &s2);
            k.b1[i] = k.o[i] * s;
            k.b2[i] = k.o[i] * k.a1[i] * s1;
        }
        __syncthreads();
        block_product(k.d1, turned(k.x, d), view(k.b1, d), d, d, rows, 1.0f, first > 0);
        block_product(k.d2, turned(k.x, d), view(k.b2, d), d, d, rows, 1.0f, first > 0);
        block_product(k.out, view(k.b1, d), turned(k.u1, d), rows, d, d, 1.0f, false);
        __syncthreads();
        block_product(k.out, view(k.b2, d), turned(k.u2, d), rows, d, d, 1.0f, true);
        __syncthreads();
        tile_store(dq, k.out, a.pitch, first, rows, a.tokens, d);
    }
    __syncthreads();
}

/* Through G = K'(E A), K'(E Z1 D): dK, dV to memory, K' dZ added to dw. All terms but dW' carry the
 * factor of E = -c V, which is applied to the sums. */
template <typename T>
static __device__ void write_backward(const GluBack &k, T *dk, T *dv, float *dw, const T *k_in,
                                      const T *v_in, const GluArgs &a, int rows) {
    const int d = a.head_dim, n = rows * d;
    for (int first = 0; first < a.tokens; first += rows) {
        __syncthreads();
        tile_load(k.x, k_in, a.pitch, first, rows, a.tokens, d);
        tile_load(k.o, v_in, a.pitch, first, rows, a.tokens, d);
        __syncthreads();
        block_product(k.a1, view(k.x, d), view(k.w1, d), rows, d, d, 1.0f, false);
        block_product(k.a2, view(k.x, d), view(k.w2, d), rows, d, d, 1.0f, false);
        block_product(k.b1, view(k.x, d), view(k.d1, d), rows, d, d, 1.0f, false);
        block_product(k.b2, view(k.x, d), view(k.d2, d), rows, d, d, 1.0f, false);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            float s, s1, s2;
            silu_all(k.a2[i], &s, &s1, &s2);
            const float z1 = k.a1[i], p1 = k.b1[i], p2 = k.b2[i], v = k.o[i];
            k.e1[i] = v * s;                          /* P1 */
            k.e2[i] = v * z1 * s1;                    /* P2 */
            k.a1[i] = p2 * v * s1;                    /* dZ1 */
            k.a2[i] = p1 * v * s1 + p2 * v * z1 * s2; /* dZ2 */
            k.out[i] = -a.c * (p1 * s + p2 * z1 * s1);
        }
        __syncthreads();
        tile_store(dv, k.out, a.pitch, first, rows, a.tokens, d);
        if (dw) {
            block_product(dw, turned(k.x, d), view(k.a1, d), d, d, rows, -a.c, true);
            block_product(dw + a.heads * d * d, turned(k.x, d), view(k.a2, d), d, d, rows, -a.c,
                          true);
        }
        block_product(k.b1, view(k.e1, d), turned(k.d1, d), rows, d, d, -a.c, false);
        __syncthreads();
        block_product(k.b1, view(k.e2, d), turned(k.d2, d), rows, d, d, -a.c, true);
        __syncthreads();
        block_product(k.b1, view(k.a1, d), turned(k.w1, d), rows, d, d, -a.c, true);
        __syncthreads();
        block_product(k.b1, view(k.a2, d), turned(k.w2, d), rows, d, d, -a.c, true);
        __syncthreads();
        tile_store(dk, k.b1, a.pitch, first, rows, a.tokens, d);
    }
    __syncthreads();
}

/* Block (part, head): samples part, part + parts, ...; its share of dw1, dw2 adds up in dw_partial.
 */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    glu_backward_kernel(T *dqkv, const T *dcat, const T *qkv, GluArgs a, GluPlan plan) {
    extern __shared__ float shared[];
    const int d = a.head_dim, dd = d * d, wide = a.heads * d;
    const int h = blockIdx.x % a.heads, part = blockIdx.x / a.heads;
    const GluBack k = back_names(work_memory(plan, shared), dd, plan.rows * d);
    float *dw = a.dw_partial ? a.dw_partial + ((int64_t)part * 2 * a.heads + h) * dd : NULL;
    for (int64_t b = part; b < a.batch; b += a.parts) {
        const int64_t in = b * a.tokens * a.pitch + h * d;
        __syncthreads();
        matrix_load(k.w1, a.w1 + h * dd, dd);
        matrix_load(k.w2, a.w2 + h * dd, dd);
        matrix_load(k.u1, a.w1 + h * dd, dd);
        matrix_load(k.u2, a.w2 + h * dd, dd);
        matrix_load(k.g1, a.g + (b * a.heads + h) * 2 * dd, 2 * dd);
        __syncthreads();
        inner_step(k.u1, k.g1, d);
        inner_step(k.u2, k.g2, d);
        read_backward(k, dqkv + in, qkv + in, dcat + b * a.tokens * a.cat_pitch + h * d, a,
                      plan.rows);
        if (dw) {
            const bool first = b == part;
            float *dw2 = dw + (int64_t)a.heads * dd;
            for (int i = threadIdx.x; i < dd; i += THREADS) {
                dw[i] = first ? k.d1[i] : dw[i] + k.d1[i];
                dw2[i] = first ? k.d2[i] : dw2[i] + k.d2[i];
            }
        }
        __syncthreads();
        inner_step_backward(k.d1, k.g1, d);
        inner_step_backward(k.d2, k.g2, d);
        write_backward(k, dqkv + in + wide, dqkv + in + 2 * wide, dw, qkv + in + wide,
                       qkv + in + 2 * wide, a, plan.rows);
    }
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* Rows per tile and place of the work memory, for `blocks` blocks. */
static Status glu_plan(Device *d, int head_dim, int states, int tiles, int64_t blocks,
                       GluPlan *plan, size_t *shared) {
    const int64_t dd = (int64_t)head_dim * head_dim;
    *shared = 0;
    plan->memory = NULL;
    for (plan->rows = 32; plan->rows >= 8; plan->rows /= 2) {
        plan->floats = states * dd + (int64_t)tiles * plan->rows * head_dim;
        if (plan->floats * sizeof(float) > backend_of(d)->smem_limit) continue;
        *shared = plan->floats * sizeof(float);
        return STATUS_OK;
    }
    plan->rows = 32;
    plan->floats = states * dd + (int64_t)tiles * plan->rows * head_dim;
    return scratch_take(d, sizeof(float) * plan->floats * blocks, (void **)&plan->memory);
}

template <typename T> static Status glu_any_forward(Device *d, GluArgs a, Tensor cat, Tensor qkv) {
    const int64_t items = a.batch * a.heads, most = 4 * backend_of(d)->sm_count;
    const int64_t blocks = items < most ? items : most;
    GluPlan plan;
    size_t shared;
    TRY(glu_plan(d, a.head_dim, 4, 4, blocks, &plan, &shared));
    CUDA_TRY(cudaFuncSetAttribute(glu_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)shared),
             "vittt_glu");
    glu_kernel<T><<<(unsigned)blocks, THREADS, shared, stream_of(d)>>>(
        (T *)cat.data, (const T *)qkv.data, a, plan);
    return launched("vittt_glu");
}

template <typename T>
static Status glu_any_backward(Device *d, GluArgs a, Tensor dqkv, Tensor dcat, Tensor qkv) {
    const int64_t blocks = (int64_t)a.parts * a.heads;
    GluPlan plan;
    size_t shared;
    TRY(glu_plan(d, a.head_dim, STATE_COUNT, TILE_COUNT, blocks, &plan, &shared));
    CUDA_TRY(cudaFuncSetAttribute(glu_backward_kernel<T>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
             "vittt_glu_backward");
    glu_backward_kernel<T><<<(unsigned)blocks, THREADS, shared, stream_of(d)>>>(
        (T *)dqkv.data, (const T *)dcat.data, (const T *)qkv.data, a, plan);
    return launched("vittt_glu_backward");
}

extern "C" Status vittt_glu_cuda(Device *d, VitttShape s, Tensor cat, Tensor g, Tensor qkv,
                                 Tensor w1, Tensor w2) {
    const GluArgs a = glu_args(s, w1, w2, g);
    if (cat.dtype != qkv.dtype) return refuse_dtype("vittt_glu", cat.dtype);
    if (glu_mma_fits(d, s, qkv.dtype, cat.data, qkv.data)) return glu_mma_forward(d, a, cat, qkv);
    Status status = STATUS_OK;
    WITH_ACT("vittt_glu", qkv.dtype, T, status = glu_any_forward<T>(d, a, cat, qkv));
    scratch_done(d);
    return status;
}

static Status glu_backward_run(Device *d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2,
                               Tensor dcat, Tensor qkv, GluArgs a) {
    const bool mma =
        glu_mma_fits(d, s, qkv.dtype, dcat.data, qkv.data) && is_aligned(dqkv.data, 16);
    const int64_t dd = s.head_dim * s.head_dim, most = ceil_div(backend_of(d)->sm_count, s.heads);
    a.parts = mma ? glu_mma_parts(d, a) : (int)(most < s.batch ? most : s.batch);
    if (!tensor_is_none(dw1.t) || !tensor_is_none(dw2.t))
        TRY(scratch_take(d, sizeof(float) * a.parts * s.heads * 2 * dd, (void **)&a.dw_partial));
    if (mma) {
        TRY(glu_mma_backward(d, a, dqkv, dcat, qkv));
    } else {
        WITH_ACT("vittt_glu_backward", qkv.dtype, T,
                 TRY(glu_any_backward<T>(d, a, dqkv, dcat, qkv)));
    }
    const int64_t n = s.heads * dd;
    return reduce_partials_two(d, dw1, dw2, a.dw_partial, a.dw_partial + n, a.parts, 2 * n);
}

extern "C" Status vittt_glu_backward_cuda(Device *d, VitttShape s, Tensor dqkv, Grad dw1, Grad dw2,
                                          Tensor dcat, Tensor qkv, Tensor g, Tensor w1, Tensor w2) {
    if (dqkv.dtype != qkv.dtype || dcat.dtype != qkv.dtype)
        return refuse_dtype("vittt_glu_backward", dcat.dtype);
    const Status status = glu_backward_run(d, s, dqkv, dw1, dw2, dcat, qkv, glu_args(s, w1, w2, g));
    scratch_done(d);
    return status;
}
