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

static __device__ __forceinline__ constexpr bool leaves_sums(int end) {
    return end == END_SILU || end == END_RESIDUAL || end == END_COLUMN;
}

/* What a product's rows are multiplied by and, of a norm, which part of the columns' shifts is
 * added. */
typedef struct Factors {
    float2 row[2];      /* of rows r and r + 8 */
    const float *shift; /* [4][WIDTH], to be summed, of the block's columns */
} Factors;

/* Writes the thread's pairs; `total`: sums of the values and squares of both rows. */
template <int COUNT, int FORM, int END>
static __device__ __forceinline__ void finish(const float *sum, const uint32_t (&x)[COUNT][2],
                                              const FewArgs &g, const Place &at, int n0,
                                              const Factors &f, float2 (&total)[2]) {
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int c = at.column + 8 * j;
        if (c >= g.n) continue; /* n is a multiple of 8 */
        float2 bias = make_float2(0, 0), w = make_float2(1, 1), shift = make_float2(0, 0);
        if (g.bias) bias = *reinterpret_cast<const float2 *>(g.bias + c);
        if (END == END_COLUMN || (END == END_RESIDUAL && g.weighed))
            w = *reinterpret_cast<const float2 *>(g.column_w + c);
        if (FORM == FORM_NORM) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 part =
                    *reinterpret_cast<const float2 *>(f.shift + i * 8 * COUNT + c - n0);
                shift.x += part.x;
                shift.y += part.y;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half;
            float u = sum[4 * j + 2 * half], v = sum[4 * j + 2 * half + 1];
            if (END == END_RESIDUAL || FORM == FORM_NORM) {
                u = fmaf(u, f.row[half].x, f.row[half].y * shift.x);
                v = fmaf(v, f.row[half].x, f.row[half].y * shift.y);
            }
            if (END == END_SIGMOID) {
                if (row < g.m)
                    *reinterpret_cast<float2 *>((float *)g.y + (int64_t)row * g.n + c) =
                        make_float2(logistic(u + bias.x), logistic(v + bias.y));
                continue;
            }
            uint32_t y = pair_of<END>(u, v, bias, x[j][half]);
            if (leaves_sums(END)) {
                const float low = low_of(y), high = high_of(y);
                total[half].x += low + high;
                total[half].y = fmaf(low, low, fmaf(high, high, total[half].y));
                if (END == END_COLUMN) y = pack2(low * w.x, high * w.y);
                if (END == END_RESIDUAL && g.weighed && row < g.m)
                    *reinterpret_cast<uint32_t *>(g.weighed + (int64_t)row * g.n + c) =
                        pack2(low * w.x, high * w.y);
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
                                                   const Place &at, const Factors &f) {
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = at.row + 8 * half, i = 4 * j + 2 * half, k = i + 4 * COUNT;
            const uint32_t a = pack2(f.row[half].x * sum[i], f.row[half].x * sum[i + 1]);
            const uint32_t b = pack2(f.row[half].x * sum[k], f.row[half].x * sum[k + 1]);
            const uint32_t y = pack2(low_of(a) * logistic(low_of(a)) * low_of(b),
                                     high_of(a) * logistic(high_of(a)) * high_of(b));
            if (row < g.m)
                *reinterpret_cast<uint32_t *>(g.y + (int64_t)row * at.pitch + at.column + 8 * j) =
                    y;
        }
}

/* Whether rows have factors. */
template <int FORM, int END> static __device__ __forceinline__ bool has_factors(const FewArgs &g) {
    return FORM == FORM_NORM || ((END == END_RESIDUAL || END == END_GATE) && g.rate != FEW_PLAIN);
}

template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
static __device__ __forceinline__ void work(const FewArgs &g, const Share &s, const float2 *rows,
                                            const float *shift, int part) {
    const int COUNT = WIDTH / 8 / SPLIT;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    const int r = 64 * group + 16 * warp + (lane >> 2), share = FORM == FORM_GATE ? 4 : 8;
    const Place at = {s.m0 + r, s.n0 + share * COUNT * part + 2 * (lane & 3),
                      FORM == FORM_GATE ? g.n / 2 : g.n};
    float sum[WIDTH / 2];
    Factors f = {{make_float2(1, 0), make_float2(1, 0)}, shift};
    uint32_t x[COUNT][2];
    if (END == END_RESIDUAL) residual_get(x, g, at);
    multiply<GROUPS, WIDTH, FORM, END>(sum, s, group);
    if (SPLIT > 1) join<GROUPS, WIDTH, SPLIT, FORM>(sum, s.data, part);
    if (has_factors<FORM, END>(g)) {
        meet<128 * GROUPS + 128>(2);
        f.row[0] = rows[r];
        f.row[1] = rows[r + 8];
    }
    if constexpr (END == END_GATE) {
        finish_gate<COUNT / 2>(sum, g, at, f);
    } else {
        float2 total[2] = {};
        finish<COUNT, FORM, END>(sum, x, g, at, s.n0, f, total);
        if (leaves_sums(END) && g.sums_out)
            totals_put(g, total, at, blockIdx.x * SPLIT + part, lane);
    }
}

/* Factors of rows, and shifts of columns: what can be done before the kernels in front have ended
 * comes first. */
template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
static __device__ __forceinline__ void help(const FewArgs &g, const Share &s, float2 *rows,
                                            float *shift, ShiftTable &table, int thread) {
    const int warp = thread / 32, lane = thread & 31;
    float sum[WIDTH / 8][4] = {};
    Turn turn = {0, 0};
    int t = s.first;
    if constexpr (FORM == FORM_NORM) {
        shift_table(table, g, thread);
        meet<128>(3);
        const int stages = FewShape<GROUPS, WIDTH, FORM, END>::stages;
        const int there = g.steady ? min(stages, s.last - s.first) : 0;
        shifts_add<WIDTH, END>(sum, s, table, t, t + there, turn, warp, lane);
        t += there;
    }
    const bool wanted = has_factors<FORM, END>(g);
    if (wanted) {
        chain_only_wait();
#pragma unroll
        for (int i = 0; i < GROUPS; i++) rows_get<64>(rows + 64 * i, g, s.m0 + 64 * i, thread);
    }
    if constexpr (FORM == FORM_NORM) {
        shifts_add<WIDTH, END>(sum, s, table, t, s.last, turn, warp, lane);
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            if (lane < 4)
                *reinterpret_cast<float2 *>(shift + warp * WIDTH + 8 * j + 2 * lane) =
                    make_float2(sum[j][0] + sum[j][2], sum[j][1] + sum[j][3]);
    }
    if (SPLIT > 1) cluster_sync(); /* as in join() */
    if (wanted) meet<128 * GROUPS + 128>(2);
}

#endif

template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
__global__ void __launch_bounds__(FewShape<GROUPS, WIDTH, FORM, END>::threads, GROUPS == 1 ? 2 : 1)
    few_rows_kernel(FewArgs g, const __grid_constant__ CUtensorMap a,
                    const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    typedef FewShape<GROUPS, WIDTH, FORM, END> S;
    extern __shared__ char memory[];
    __shared__ float2 rows[64 * GROUPS];
    __shared__ __align__(16) ShiftTable table;
    __shared__ __align__(16) float shift[FORM == FORM_NORM ? 4 * WIDTH : 4];
    const int part = SPLIT > 1 ? cluster_rank() : 0, steps = (g.k + 63) / 64;
    const int copier = S::makers + S::helpers;
    Share s;
    s.m0 = blockIdx.y * 64 * GROUPS, s.n0 = blockIdx.x * (FORM == FORM_GATE ? WIDTH / 2 : WIDTH);
    s.first = steps * part / SPLIT, s.last = steps * (part + 1) / SPLIT;
    s.data = (shared_address(memory) + 1023) & ~1023u;
    s.full = s.data + S::stages * S::stage_bytes;
    s.empty = s.full + 8 * S::stages;
    s.weights = s.empty + 8 * S::stages;
    int there = 0;
    if (threadIdx.x == copier) {
        map_ahead(&a);
        map_ahead(&b);
        for (int i = 0; i < S::stages; i++) {
            barrier_init(s.full + 8 * i, 1);
            barrier_init(s.empty + 8 * i, 4 * GROUPS + (FORM == FORM_NORM ? 4 : 0));
            barrier_init(s.weights + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        if (g.steady) there = weights_first<GROUPS, WIDTH, FORM, END>(g, s, &b);
        if (blockIdx.y == 0) weights_ahead<WIDTH, FORM>(g, s, &b, s.first + there);
    }
    __syncthreads();
    if (threadIdx.x < S::makers) {
        chain_wait();
        work<GROUPS, WIDTH, SPLIT, FORM, END>(g, s, rows, shift, part);
    } else if (threadIdx.x < copier) {
        help<GROUPS, WIDTH, SPLIT, FORM, END>(g, s, rows, shift, table, threadIdx.x - S::makers);
    } else {
        chain_only_wait();
        if (threadIdx.x == copier) copy_tiles<GROUPS, WIDTH, FORM, END>(g, s, &a, &b, there);
        __syncwarp();
        if (SPLIT > 1) cluster_sync();
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
            FewShape<GROUPS, WIDTH, FORM, END>::threads,                                           \
            FewShape<GROUPS, WIDTH, FORM, END>::shared                                             \
    }
#define STRAIGHT(END)                                                                              \
    PLAN(1, 32, 1, FORM_STRAIGHT, END), PLAN(1, 48, 1, FORM_STRAIGHT, END),                        \
        PLAN(2, 48, 1, FORM_STRAIGHT, END), PLAN(1, 48, 2, FORM_STRAIGHT, END),                    \
        PLAN(1, 80, 1, FORM_STRAIGHT, END)
#define NORM(END)                                                                                  \
    PLAN(1, 32, 1, FORM_NORM, END), PLAN(1, 48, 1, FORM_NORM, END),                                \
        PLAN(1, 80, 1, FORM_NORM, END), PLAN(1, 96, 1, FORM_NORM, END)
#define TURNED(END) PLAN(1, 64, 1, FORM_TURNED, END), PLAN(1, 64, 2, FORM_TURNED, END)

static const FewPlan plans[] = {
    STRAIGHT(END_PLAIN),
    STRAIGHT(END_GELU),
    STRAIGHT(END_RESIDUAL),
    NORM(END_PLAIN),
    NORM(END_GELU),
    NORM(END_SILU),
    PLAN(1, 32, 1, FORM_NORM, END_SIGMOID),
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
    if (g->sigmoid) return END_SIGMOID;
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
    a.weighed = (bf16 *)g->weighed;
    a.sums = (const float2 *)g->sums, a.sums_out = (float2 *)g->sums_out;
    a.steady = g->steady;
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
