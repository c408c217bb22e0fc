/* Products of few rows: a block has one tile of 64 or 128 rows, and of the depth a share; the
 * blocks of a cluster share it and join their sums in a fixed order.
 *
 * One warp copies tiles of a and b through a ring in shared memory; one or two warpgroups multiply
 * and write.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/few_rows_tile.cuh"

#if HAVE_SM90A

/* Element pairs of the thread: parts of 8 columns, rows r and r + 8. */
typedef struct Place {
    int row, column, pitch;
} Place;

template <int COUNT>
static __device__ __forceinline__ void residual_get(uint32_t (&x)[COUNT][2], const FewArgs &g,
                                                    const Place &at) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half, c = at.column + 8 * j;
            x[j][half] = 0;
            if (row < g.m && c < g.n)
                x[j][half] =
                    *reinterpret_cast<const uint32_t *>(g.residual + (int64_t)row * g.n + c);
        }
}

/* A pair of y: bias, rounding, function, residual. */
template <int END>
static __device__ __forceinline__ uint32_t pair_of(float u, float v, const float2 &bias,
                                                   uint32_t residual) {
    u += bias.x;
    v += bias.y;
    if (END == END_RESIDUAL) return pack2(u + low_of(residual), v + high_of(residual));
    const uint32_t p = pack2(u, v);
    if (END == END_GELU) return pack2(gelu_quick(low_of(p)), gelu_quick(high_of(p)));
    if (END == END_SILU)
        return pack2(low_of(p) * logistic(low_of(p)), high_of(p) * logistic(high_of(p)));
    return p;
}

/* Writes the thread's pairs; `total`: sums of the values and squares of both rows. */
template <int COUNT, int END>
static __device__ __forceinline__ void finish(const float *sum, const uint32_t (&x)[COUNT][2],
                                              const FewArgs &g, const Place &at,
                                              const float (&factor)[2], float2 (&total)[2]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int c = at.column + 8 * j;
        if (c >= g.n) continue; /* n is a multiple of 8 */
        float2 bias = make_float2(0, 0), w = make_float2(1, 1);
        if (g.bias) bias = *reinterpret_cast<const float2 *>(g.bias + c);
        if (END == END_COLUMN) w = *reinterpret_cast<const float2 *>(g.column_w + c);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half;
            const float scale = END == END_RESIDUAL ? factor[half] : 1.0f;
            uint32_t y = pair_of<END>(scale * sum[4 * j + 2 * half],
                                      scale * sum[4 * j + 2 * half + 1], bias, x[j][half]);
            if (END != END_PLAIN && END != END_GELU) {
                const float low = low_of(y), high = high_of(y);
                total[half].x += low + high;
                total[half].y = fmaf(low, low, fmaf(high, high, total[half].y));
                if (END == END_COLUMN) y = pack2(low * w.x, high * w.y);
            }
            if (row < g.m) *reinterpret_cast<uint32_t *>(g.y + (int64_t)row * g.n + c) = y;
        }
    }
}

/* Sums of the thread's rows over the block's columns, to part `part`. */
static __device__ __forceinline__ void totals_put(const FewArgs &g, const float2 (&total)[2],
                                                  const Place &at, int part, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float2 all = make_float2(quad_sum(total[half].x), quad_sum(total[half].y));
        const int row = at.row + 8 * half;
        if ((lane & 3) == 0 && row < g.m) g.sums_out[(int64_t)part * g.m + row] = all;
    }
}

/* The same of a gate: COUNT parts of the left half, then as many of the right one. */
template <int COUNT>
static __device__ __forceinline__ void finish_gate(const float *sum, const FewArgs &g,
                                                   const Place &at, const float (&factor)[2]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half, i = 4 * j + 2 * half, k = i + 4 * COUNT;
            const uint32_t a = pack2(factor[half] * sum[i], factor[half] * sum[i + 1]);
            const uint32_t b = pack2(factor[half] * sum[k], factor[half] * sum[k + 1]);
            const uint32_t y = pack2(low_of(a) * logistic(low_of(a)) * low_of(b),
                                     high_of(a) * logistic(high_of(a)) * high_of(b));
            if (row < g.m)
                *reinterpret_cast<uint32_t *>(g.y + (int64_t)row * at.pitch + at.column + 8 * j) =
                    y;
        }
}

template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
static __device__ __forceinline__ void work(const FewArgs &g, const Share &s, float2 *rows,
                                            int part) {
    const int COUNT = WIDTH / 8 / SPLIT;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    const int r = 64 * group + 16 * warp + (lane >> 2), share = FORM == FORM_GATE ? 4 : 8;
    const Place at = {s.m0 + r, s.n0 + share * COUNT * part + 2 * (lane & 3),
                      FORM == FORM_GATE ? g.n / 2 : g.n};
    float sum[WIDTH / 2], factor[2] = {1, 1};
    uint32_t x[COUNT][2];
    if (END == END_RESIDUAL) residual_get(x, g, at);
    const bool scaled = (END == END_RESIDUAL || END == END_GATE) && g.rate != FEW_PLAIN;
    if (scaled) {
        rows_get<64 * GROUPS>(rows, g, s.m0, threadIdx.x);
        meet<128 * GROUPS>(1);
    }
    multiply<GROUPS, WIDTH, FORM>(sum, s, group);
    if (SPLIT > 1) join<GROUPS, WIDTH, SPLIT, FORM>(sum, s.data, part);
    if (scaled) {
        factor[0] = rows[r].x;
        factor[1] = rows[r + 8].x;
    }
    if constexpr (END == END_GATE) {
        finish_gate<COUNT / 2>(sum, g, at, factor);
    } else {
        float2 total[2] = {};
        finish<COUNT, END>(sum, x, g, at, factor, total);
        if (END != END_PLAIN && END != END_GELU && g.sums_out)
            totals_put(g, total, at, blockIdx.x * SPLIT + part, lane);
    }
}

#endif

template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
__global__ void __launch_bounds__(FewShape<GROUPS, WIDTH, FORM>::threads, 1)
    few_rows_kernel(FewArgs g, const __grid_constant__ CUtensorMap a,
                    const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    typedef FewShape<GROUPS, WIDTH, FORM> S;
    extern __shared__ char memory[];
    __shared__ float2 rows[64 * GROUPS];
    __shared__ __align__(16) float norm_w[FORM == FORM_NORM ? MOST_DEPTH : 4];
    const int part = SPLIT > 1 ? cluster_rank() : 0, steps = (g.k + 63) / 64;
    const int copier = S::makers + S::norms;
    Share s;
    s.m0 = blockIdx.y * 64 * GROUPS, s.n0 = blockIdx.x * (FORM == FORM_GATE ? WIDTH / 2 : WIDTH);
    s.first = steps * part / SPLIT, s.last = steps * (part + 1) / SPLIT;
    s.data = (shared_address(memory) + 1023) & ~1023u;
    s.full = s.data + S::stages * S::stage_bytes;
    s.empty = s.full + 8 * S::stages;
    s.ready = s.empty + 8 * S::stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::stages; i++) {
            barrier_init(s.full + 8 * i, 1);
            barrier_init(s.empty + 8 * i, 4 * GROUPS);
            barrier_init(s.ready + 8 * i, 128);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x == copier && blockIdx.y == 0) weights_ahead<WIDTH, FORM>(g, s, &b);
    __syncthreads();
    chain_wait();
    if (threadIdx.x < S::makers) {
        work<GROUPS, WIDTH, SPLIT, FORM, END>(g, s, rows, part);
    } else if (threadIdx.x < copier) {
        if constexpr (FORM == FORM_NORM) {
            const int thread = threadIdx.x - S::makers;
#pragma unroll
            for (int c = thread; c < MOST_DEPTH; c += 128) norm_w[c] = c < g.k ? g.norm_w[c] : 0;
            rows_get<64>(rows, g, s.m0, thread);
            meet<128>(2);
            norm_tiles<WIDTH>(s, rows, norm_w, thread);
        }
    } else {
        if (threadIdx.x == copier) copy_tiles<GROUPS, WIDTH, FORM>(g, s, &a, &b);
        __syncwarp();
        if (SPLIT > 1) cluster_sync(); /* as in join() */
    }
    if (SPLIT > 1) cluster_sync(); /* no block ends while another reads its sums */
#endif
}

/* ---- host ---- */

typedef void (*FewKernel)(FewArgs, CUtensorMap, CUtensorMap);

typedef struct FewPlan {
    FewKernel kernel;
    int groups, width, split, form, end, threads, shared;
} FewPlan;

#define PLAN(GROUPS, WIDTH, SPLIT, FORM, END)                                                      \
    {                                                                                              \
        few_rows_kernel<GROUPS, WIDTH, SPLIT, FORM, END>, GROUPS, WIDTH, SPLIT, FORM, END,         \
            FewShape<GROUPS, WIDTH, FORM>::threads, FewShape<GROUPS, WIDTH, FORM>::shared          \
    }
#define STRAIGHT(END)                                                                              \
    PLAN(1, 32, 1, FORM_STRAIGHT, END), PLAN(1, 48, 1, FORM_STRAIGHT, END),                        \
        PLAN(2, 48, 1, FORM_STRAIGHT, END), PLAN(1, 48, 2, FORM_STRAIGHT, END)
#define NORM(END)                                                                                  \
    PLAN(1, 32, 1, FORM_NORM, END), PLAN(1, 48, 1, FORM_NORM, END), PLAN(1, 96, 1, FORM_NORM, END)
#define TURNED(END) PLAN(1, 64, 1, FORM_TURNED, END), PLAN(1, 64, 2, FORM_TURNED, END)

static const FewPlan plans[] = {
    STRAIGHT(END_PLAIN),
    STRAIGHT(END_GELU),
    STRAIGHT(END_RESIDUAL),
    NORM(END_PLAIN),
    NORM(END_GELU),
    NORM(END_SILU),
    TURNED(END_PLAIN),
    TURNED(END_COLUMN),
    PLAN(1, 128, 2, FORM_GATE, END_GATE),
    PLAN(1, 128, 1, FORM_GATE, END_GATE),
};
enum { PLANS = sizeof plans / sizeof *plans };

static int form_of(const FewCall *g) {
    if (g->rate == FEW_LAYER_NORM) return FORM_NORM;
    return g->gate ? FORM_GATE : g->turned ? FORM_TURNED : FORM_STRAIGHT;
}
static int end_of(const FewCall *g) {
    if (g->gate) return END_GATE;
    if (g->residual) return END_RESIDUAL;
    return g->column_w ? END_COLUMN : g->silu ? END_SILU : g->gelu ? END_GELU : END_PLAIN;
}

/* cuBLASLt is as fast from here on (H200): its tiles fill the card. */
static bool is_few(const FewCall *g) {
    return g->m <= 320 || (g->m <= 512 && g->n <= 1024 && g->k <= 1024);
}

bool few_rows_fits(Device *d, const FewCall *g) {
    const bool special = g->rate == FEW_LAYER_NORM ? !g->turned && g->k <= MOST_DEPTH
                                                   : !g->gate || (g->turned && g->n % 128 == 0);
    return backend_of(d)->sm90a && is_few(g) && special && g->n >= 64 && g->k >= 64 &&
           g->n % 8 == 0 && g->k % 8 == 0 && g->n < 1 << 20 && g->k < 1 << 20 &&
           is_aligned(g->a, 16) && is_aligned(g->b, 16) && is_aligned(g->y, 16) &&
           is_aligned(g->residual, 16) && is_aligned(g->bias, 8) && is_aligned(g->column_w, 8);
}

static dim3 plan_grid(const FewPlan *p, const FewCall *g) {
    const int64_t columns = p->form == FORM_GATE ? g->n / 2 : g->n;
    const int64_t width = p->form == FORM_GATE ? p->width / 2 : p->width;
    return dim3((unsigned)ceil_div(columns, width), (unsigned)ceil_div(g->m, 64 * p->groups),
                (unsigned)p->split);
}

/* Estimated microseconds, fitted to an H200: what a multiprocessor brings in, and what comes with
 * every kernel and with joining sums. */
static double plan_cost(const FewPlan *p, const FewCall *g, int sm_count) {
    const dim3 grid = plan_grid(p, g);
    const int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    const int64_t steps = ceil_div(ceil_div(g->k, 64), p->split);
    const double bytes = (double)(64 * p->groups + p->width) * 128.0 * (double)steps;
    const double join = p->split == 1 ? 0 : p->split == 2 ? 0.8 : 2.0;
    return 1.85 + 8.2e-6 * bytes * (double)ceil_div(blocks, sm_count) + join +
           (p->groups > 1 ? 0.3 : 0);
}

static const FewPlan *plan_for(Device *d, const FewCall *g) {
    const FewPlan *best = NULL;
    double least = 0;
    for (int i = 0; i < PLANS; i++) {
        const FewPlan *p = &plans[i];
        const dim3 grid = plan_grid(p, g);
        if (p->form != form_of(g) || p->end != end_of(g) || ceil_div(g->k, 64) < p->split ||
            (g->sums_out && grid.x * grid.z > FEW_PARTS))
            continue;
        const double cost = plan_cost(p, g, backend_of(d)->sm_count);
        if (best && cost >= least) continue;
        best = p;
        least = cost;
    }
    return best;
}

static FewArgs args_of(const FewCall *g) {
    FewArgs a = {};
    a.m = (int)g->m, a.n = (int)g->n, a.k = (int)g->k;
    a.y = (bf16 *)g->y, a.residual = (const bf16 *)g->residual;
    a.bias = g->bias, a.norm_w = g->norm_w, a.column_w = g->column_w;
    a.sums = (const float2 *)g->sums, a.sums_out = (float2 *)g->sums_out;
    a.parts = g->parts, a.rate = g->rate, a.eps = g->eps, a.inverse = 1.0f / (float)g->k;
    return a;
}

Status few_rows(Device *d, const FewCall *g, int *parts) {
    const FewPlan *p = plan_for(d, g);
    if (!p) return status_set(STATUS_INTERNAL, "a product of few rows: no kernel for it");
    const dim3 grid = plan_grid(p, g);
    CUtensorMap a, b;
    TRY(map_matrix(&a, g->a, g->m, g->k, 64 * p->groups));
    if (g->turned)
        TRY(map_matrix(&b, g->b, g->k, g->n, 64));
    else
        TRY(map_matrix(&b, g->b, g->n, g->k, p->width));
    CUDA_TRY(cudaFuncSetAttribute((const void *)p->kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, p->shared),
             "a product of few rows");
    ChainConfig c;
    chain_config(&c, d, grid, dim3(p->threads), (size_t)p->shared, true, (unsigned)p->split);
    CUDA_TRY(cudaLaunchKernelEx(&c.config, p->kernel, args_of(g), a, b), "a product of few rows");
    if (parts) *parts = (int)(grid.x * grid.z);
    return STATUS_OK;
}
