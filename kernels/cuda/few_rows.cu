/* Products of few rows: a block has one tile of 64 or 128 rows, and of the depth a share; the
 * blocks of a cluster share it and join their sums in a fixed order.
 *
 * A warp each copies tiles of a and of b through a ring in shared memory; one or two warpgroups
 * multiply and write, another makes factors of rows and shifts of columns where they are wanted.
 */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/few_rows_end.cuh"
#include "kernels/cuda/few_rows_norm.cuh"

#if HAVE_SM90A

/* Whether rows have factors. */
template <typename S> static __device__ __forceinline__ bool has_factors(const FewArgs &g) {
    return S::norm || ((S::end == END_RESIDUAL || S::end == END_GATE) && g.rate != FEW_PLAIN);
}

template <typename S>
static __device__ __forceinline__ void work(const FewArgs &g, const Share &s, const float2 *rows,
                                            const float *shift, int part) {
    const int COUNT = S::width / 8 / S::split, END = S::end;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    const int r = 64 * group + 16 * warp + (lane >> 2), share = S::form == FORM_GATE ? 4 : 8;
    const Place at = {s.m0 + r, s.n0 + share * COUNT * part + 2 * (lane & 3),
                      S::form == FORM_GATE ? g.n / 2 : g.n};
    float sum[S::width / 2];
    Factors f = {{make_float2(1, 0), make_float2(1, 0)}, shift};
    uint32_t x[COUNT][2];
    float2 w[COUNT];
    if (!g.steady) chain_wait();
    if (END == END_RESIDUAL || END == END_COLUMN) columns_get(w, g, at);
    if (g.steady) chain_wait();
    if (END == END_RESIDUAL) residual_get(x, g, at);
    multiply<S>(sum, s, group);
    if (S::split > 1) join<S>(sum, s, part);
    if (has_factors<S>(g)) {
        meet<S::makers + 128>(2);
        f.row[0] = rows[r];
        f.row[1] = rows[r + 8];
    }
    if constexpr (S::end == END_GATE) {
        finish_gate<COUNT / 2>(sum, g, at, f);
    } else {
        float2 total[2] = {};
        finish<COUNT, S::form, S::end>(sum, x, w, g, at, s.n0, f, total);
        if (leaves_sums(END) && g.sums_out)
            totals_put(g, total, at, blockIdx.x * S::split + part, lane);
    }
}

/* Factors of rows, and shifts of columns: what can be done before the kernels in front have ended
 * comes first. */
template <typename S>
static __device__ __forceinline__ void help(const FewArgs &g, const Share &s, float2 *rows,
                                            float *shift, ShiftTable &table, int thread) {
    const int warp = thread / 32, lane = thread & 31;
    float sum[S::width / 8][4] = {};
    Turn turn = {0, 0};
    int t = s.first;
    if constexpr (S::norm) {
        if (!g.steady) chain_only_wait();
        shift_table(table, g, warp, lane);
        const int ahead = g.steady ? first_steps<S>(s) : 0;
        shifts_add<S>(sum, s, table, t, t + ahead, turn, warp, lane);
        t += ahead;
    }
    const bool wanted = has_factors<S>(g);
    if (wanted) {
        chain_only_wait();
#pragma unroll
        for (int i = 0; i < S::groups; i++) rows_get<64>(rows + 64 * i, g, s.m0 + 64 * i, thread);
    }
    if constexpr (S::norm) {
        shifts_add<S>(sum, s, table, t, s.last, turn, warp, lane);
#pragma unroll
        for (int j = 0; j < S::width / 8; j++)
            if (lane < 4)
                *reinterpret_cast<float2 *>(shift + warp * S::width + 8 * j + 2 * lane) =
                    make_float2(sum[j][0] + sum[j][2], sum[j][1] + sum[j][3]);
    }
    if (S::split > 1) cluster_sync(); /* as in join() */
    if (wanted) meet<S::makers + 128>(2);
}

/* Which part of the product the block has, and where its ring lies. */
template <typename S>
static __device__ __forceinline__ Share share_of(const FewArgs &g, Shared memory, int part) {
    const int steps = (g.k + 63) / 64;
    Share s;
    s.m0 = blockIdx.y * 64 * S::groups;
    s.n0 = blockIdx.x * (S::form == FORM_GATE ? S::width / 2 : S::width);
    s.first = steps * part / S::split, s.last = steps * (part + 1) / S::split;
    s.data = (memory + 1023) & ~1023u;
    s.full = s.data + S::stages * S::stage_bytes;
    s.empty = s.full + 8 * S::stages;
    s.weights = s.empty + 8 * S::stages;
    return s;
}

#endif

template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END>
__global__ void __launch_bounds__((FewShape<GROUPS, WIDTH, SPLIT, FORM, END>::threads),
                                  GROUPS == 1 ? 2 : 1)
    few_rows_kernel(FewArgs g, const __grid_constant__ CUtensorMap a,
                    const __grid_constant__ CUtensorMap b) {
#if HAVE_SM90A
    typedef FewShape<GROUPS, WIDTH, SPLIT, FORM, END> S;
    extern __shared__ char memory[];
    __shared__ float2 rows[64 * GROUPS];
    __shared__ __align__(16) ShiftTable table;
    __shared__ __align__(16) float shift[S::norm ? 4 * WIDTH : 4];
    const int part = SPLIT > 1 ? cluster_rank() : 0;
    const Share s = share_of<S>(g, shared_address(memory), part);
    const int copier = S::makers + S::helpers; /* of a; the next warp's first copies b */
    if (threadIdx.x == copier + 32) {
        map_ahead(&b);
        map_ahead(&a);
        for (int i = 0; i < S::stages; i++) {
            barrier_init(s.full + 8 * i, S::norm ? 1 : 2);
            barrier_init(s.empty + 8 * i, 4 * GROUPS + (S::norm ? 4 : 0));
            barrier_init(s.weights + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < S::makers) {
        work<S>(g, s, rows, shift, part);
    } else if (threadIdx.x < copier) {
        help<S>(g, s, rows, shift, table, threadIdx.x - S::makers);
    } else {
        if (threadIdx.x == copier) copy_rows<S>(s, &a);
        if (threadIdx.x == copier + 32) copy_weights<S>(g, s, &b);
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
            FewShape<GROUPS, WIDTH, SPLIT, FORM, END>::threads,                                    \
            FewShape<GROUPS, WIDTH, SPLIT, FORM, END>::shared                                      \
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
    return g->m <= 320 || (g->m <= 512 && (g->n <= 1024 || g->gelu) && g->k <= 1024);
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

static bool plan_fits(const FewPlan *p, const FewCall *g) {
    const dim3 grid = plan_grid(p, g);
    return p->form == form_of(g) && p->end == end_of(g) && ceil_div(g->k, 64) >= p->split &&
           !(g->sums_out && grid.x * grid.z > FEW_PARTS);
}

static const FewPlan *plan_for(Device *d, const FewCall *g) {
    const FewPlan *best = NULL;
    double least = 0;
    for (int i = 0; i < PLANS; i++) {
        const FewPlan *p = &plans[i];
        if (!plan_fits(p, g)) continue;
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
    FewArgs args = args_of(g);
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
    CUDA_TRY(cudaLaunchKernelEx(&c.config, p->kernel, args, a, b), "a product of few rows");
    if (parts) *parts = (int)(grid.x * grid.z);
    return STATUS_OK;
}
