/* cuBLASLt plans: descriptors, the choice of an algorithm, the cache. */
#include <string.h>

#include "kernels/cuda/blas.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_slots.cuh"

#define WORKSPACE_BYTES ((size_t)64 << 20)
#define CANDIDATES      8
#define ROUNDS          4      /* of comparing; the first is not counted */
#define ROUND_MS        1.0f   /* of one candidate in a round */
#define MOST_RUNS       16     /* in that time */
#define WORTH_TIMING    1e9    /* FLOP: smaller products take the first proposal */
#define BETTER          0.985f /* of the first proposal's time: nearer ones are noise */

typedef struct GemmKey {
    int64_t m, n, k, lda, ldb, ldc, batch, step_a, step_b, step_c;
    int32_t ta, tb, add, in, out, bias, tf32;
    int32_t align_a, align_b, align_c, align_from;
} GemmKey;

typedef struct GemmPlan {
    GemmKey key;
    bool supported;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} GemmPlan;

struct GemmCache {
    cublasLtHandle_t handle;
    void *workspace;
    GemmSlots slots; /* of products that need no more */
    GemmPlan *plans;
    int64_t count, capacity;
    cudaEvent_t start, stop;
};

static Status blas_fault(cublasStatus_t code, const char *doing) {
    return status_set(STATUS_DEVICE, "cuBLASLt: %s: %s", doing, blas.GetStatusString(code));
}

#define BLAS_TRY(call, doing)                                                                      \
    do {                                                                                           \
        const cublasStatus_t blas_code_ = (call);                                                  \
        if (blas_code_ != CUBLAS_STATUS_SUCCESS) return blas_fault(blas_code_, doing);             \
    } while (0)

Status gemm_open(Device *d, GemmCache **out) {
    (void)d;
    GemmCache *cache;
    TRY(mem_alloc((void **)&cache, 1, sizeof *cache, "cuBLASLt plans"));
    *out = cache;
    TRY(blas_load());
    BLAS_TRY(blas.Create(&cache->handle), "opening");
    CUDA_TRY(cudaMalloc(&cache->workspace, WORKSPACE_BYTES), "workspace of cuBLASLt");
    TRY(slots_open(&cache->slots));
    CUDA_TRY(cudaEventCreate(&cache->start), "creating an event");
    CUDA_TRY(cudaEventCreate(&cache->stop), "creating an event");
    return STATUS_OK;
}

static void plan_free(GemmPlan *p) {
    if (p->op) (void)blas.MatmulDescDestroy(p->op);
    if (p->a) (void)blas.MatrixLayoutDestroy(p->a);
    if (p->b) (void)blas.MatrixLayoutDestroy(p->b);
    if (p->c) (void)blas.MatrixLayoutDestroy(p->c);
    p->op = NULL;
    p->a = p->b = p->c = NULL;
}

void gemm_close(GemmCache *cache) {
    if (!cache) return;
    for (int64_t i = 0; i < cache->count; i++) plan_free(&cache->plans[i]);
    mem_free(cache->plans);
    if (cache->start) (void)cudaEventDestroy(cache->start);
    if (cache->stop) (void)cudaEventDestroy(cache->stop);
    if (cache->workspace) (void)cudaFree(cache->workspace);
    slots_close(&cache->slots);
    if (cache->handle) (void)blas.Destroy(cache->handle);
    mem_free(cache);
}

GemmCall gemm_call(int64_t m, int64_t n, int64_t k, const void *a, bool ta, const void *b, bool tb,
                   void *c, DType in, DType out, bool add) {
    GemmCall g = {};
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = c;
    g.ta = ta, g.tb = tb, g.add = add;
    g.lda = ta ? m : k;
    g.ldb = tb ? k : n;
    g.ldc = n;
    g.batch = 1;
    g.in = in, g.out = out;
    g.alpha = 1.0f;
    return g;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

/* Row-major c = op(a) op(b) is column-major c' = op(b)' op(a)': cuBLASLt's first operand is our b.
 */

static cudaDataType_t cuda_type(DType t) {
    return t == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static Status op_set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what,
                     const void *value, size_t size) {
    BLAS_TRY(blas.MatmulDescSetAttribute(op, what, value, size), "describing a product");
    return STATUS_OK;
}

static Status layout_new(cublasLtMatrixLayout_t *out, DType type, int64_t rows, int64_t columns,
                         int64_t pitch, int64_t batch, int64_t step) {
    const int32_t count = (int32_t)batch;
    /* a pitch below the row's length is legal for one-row matrices only */
    BLAS_TRY(blas.MatrixLayoutCreate(out, cuda_type(type), (uint64_t)columns, (uint64_t)rows,
                                     pitch > columns ? pitch : columns),
             "describing a matrix");
    BLAS_TRY(blas.MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof count),
             "describing a matrix");
    BLAS_TRY(blas.MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                           sizeof step),
             "describing a matrix");
    return STATUS_OK;
}

/* The bias has the type of c: cuBLASLt knows no F32 bias for a BF16 result. */
static Status plan_bias(const GemmPlan *p, const void *bias) {
    if (!p->key.bias) return STATUS_OK;
    return op_set(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static Status plan_describe(GemmPlan *p, const GemmCall *g) {
    const GemmKey *k = &p->key;
    const cublasComputeType_t compute = k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t first = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue =
        k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    BLAS_TRY(blas.MatmulDescCreate(&p->op, compute, CUDA_R_32F), "describing a product");
    TRY(op_set(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(op_set(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(op_set(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (k->bias) {
        const cudaDataType_t type = cuda_type(g->out);
        TRY(op_set(p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
        TRY(plan_bias(p, g->bias));
    }
    TRY(layout_new(&p->b, g->in, g->tb ? g->n : g->k, g->tb ? g->k : g->n, g->ldb, g->batch,
                   g->step_b));
    TRY(layout_new(&p->a, g->in, g->ta ? g->k : g->m, g->ta ? g->m : g->k, g->lda, g->batch,
                   g->step_a));
    return layout_new(&p->c, g->out, g->m, g->n, g->ldc, g->batch, g->step_c);
}

typedef struct Workspace {
    void *memory;
    size_t bytes;
} Workspace;

static cublasStatus_t plan_execute(GemmCache *cache, const GemmPlan *p, const GemmCall *g,
                                   const cublasLtMatmulAlgo_t *algo, void *result, Workspace w,
                                   cudaStream_t stream) {
    const float beta = g->add ? 1.0f : 0.0f;
    return blas.Matmul(cache->handle, p->op, &g->alpha, g->b, p->b, g->a, p->a, &beta,
                       g->from ? g->from : g->c, p->c, result, p->c, algo, w.memory, w.bytes,
                       stream);
}

static Workspace workspace_large(const GemmCache *cache) {
    return (Workspace){cache->workspace, WORKSPACE_BYTES};
}

/* ---- choice --------------------------------------------------------------------------------- */

static int alignment_of(const void *p) {
    int align = 256;
    while (align > 1 && !is_aligned(p, (size_t)align)) align /= 2;
    return align;
}

static Status plan_propose(GemmCache *cache, GemmPlan *p, cublasLtMatmulHeuristicResult_t *found,
                           int *count) {
    cublasLtMatmulPreference_t wish = NULL;
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align_first = (uint32_t)p->key.align_b, align_second = (uint32_t)p->key.align_a;
    const uint32_t align_c = (uint32_t)p->key.align_from, align_d = (uint32_t)p->key.align_c;
    *count = 0;
    BLAS_TRY(blas.MatmulPreferenceCreate(&wish), "asking for algorithms");
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_first, sizeof align_first},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_second, sizeof align_second},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d},
    };
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0] && code == CUBLAS_STATUS_SUCCESS; i++)
        code = blas.MatmulPreferenceSetAttribute(wish, wishes[i].what, wishes[i].value,
                                                 wishes[i].size);
    if (code == CUBLAS_STATUS_SUCCESS) {
        code = blas.MatmulAlgoGetHeuristic(cache->handle, p->op, p->b, p->a, p->c, p->c, wish,
                                           CANDIDATES, found, count);
        if (code != CUBLAS_STATUS_SUCCESS) *count = 0; /* nothing for this call */
        code = CUBLAS_STATUS_SUCCESS;
    }
    (void)blas.MatmulPreferenceDestroy(wish);
    BLAS_TRY(code, "asking for algorithms");
    return STATUS_OK;
}

/* differs[0] = 1 when any word differs: every writer writes the same value. */
__global__ void compare_kernel(int *differs, const uint16_t *a, const uint16_t *b, int64_t n) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        if (a[i] != b[i]) differs[0] = 1;
}

/* Results of two candidates side by side; memory of its own, given back after the choice. */
typedef struct Trial {
    char *memory;
    char *result[2];
    int *differs;
    size_t bytes;
} Trial;

static bool trial_open(Trial *t, const GemmCall *g) {
    const int64_t extent = (g->batch - 1) * g->step_c + (g->m - 1) * g->ldc + g->n;
    t->bytes = (size_t)extent * dtype_size(g->out);
    const size_t part = (t->bytes + 255) / 256 * 256;
    if (cudaMalloc((void **)&t->memory, 2 * part + 256) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    for (int i = 0; i < 2; i++) t->result[i] = t->memory + i * part;
    t->differs = (int *)(t->memory + 2 * part);
    return true;
}

/* Runs the candidate `runs` times into trial side `side`; time of a run in *ms, negative if it
 * fails.
 */
static Status trial_run(GemmCache *cache, GemmPlan *p, const GemmCall *g, Trial *t, int side,
                        const cublasLtMatmulAlgo_t *algo, int runs, cudaStream_t stream,
                        float *ms) {
    *ms = -1.0f;
    CUDA_TRY(cudaEventRecord(cache->start, stream), "comparing algorithms");
    for (int run = 0; run < runs; run++)
        if (plan_execute(cache, p, g, algo, t->result[side], workspace_large(cache), stream) !=
            CUBLAS_STATUS_SUCCESS)
            return STATUS_OK;
    CUDA_TRY(cudaEventRecord(cache->stop, stream), "comparing algorithms");
    CUDA_TRY(cudaEventSynchronize(cache->stop), "comparing algorithms");
    CUDA_TRY(cudaEventElapsedTime(ms, cache->start, cache->stop), "comparing algorithms");
    *ms /= (float)runs;
    return STATUS_OK;
}

static Status trial_equal(Trial *t, cudaStream_t stream, bool *equal) {
    int differs = 0;
    CUDA_TRY(cudaMemsetAsync(t->differs, 0, sizeof(int), stream), "comparing algorithms");
    compare_kernel<<<256, 256, 0, stream>>>(t->differs, (uint16_t *)t->result[0],
                                            (uint16_t *)t->result[1], (int64_t)(t->bytes / 2));
    CUDA_TRY(cudaMemcpyAsync(&differs, t->differs, sizeof(int), cudaMemcpyDeviceToHost, stream),
             "comparing algorithms");
    CUDA_TRY(cudaStreamSynchronize(stream), "comparing algorithms");
    *equal = !differs;
    return STATUS_OK;
}

/* Which candidates run and agree with candidate 0. */
static Status plan_agree(GemmCache *cache, GemmPlan *p, const GemmCall *g, Trial *t,
                         const cublasLtMatmulHeuristicResult_t *found, int count,
                         cudaStream_t stream, bool *agrees) {
    for (int i = 0; i < count; i++) {
        const int side = i > 0;
        float ms = -1.0f;
        CUDA_TRY(cudaMemsetAsync(t->result[side], 0, t->bytes, stream), "comparing algorithms");
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            TRY(trial_run(cache, p, g, t, side, &found[i].algo, 1, stream, &ms));
        agrees[i] = ms >= 0;
        if (i > 0 && agrees[i]) TRY(trial_equal(t, stream, &agrees[i]));
    }
    return STATUS_OK;
}

/* Index of the fastest candidate that agrees with candidate 0. They take turns, so that a card
 * whose clock falls as it warms up treats them alike. */
static Status plan_time(GemmCache *cache, GemmPlan *p, const GemmCall *g, Trial *t,
                        const cublasLtMatmulHeuristicResult_t *found, int count,
                        cudaStream_t stream, int *best) {
    bool agrees[CANDIDATES] = {};
    float sum[CANDIDATES] = {}, ms;
    *best = 0;
    TRY(plan_agree(cache, p, g, t, found, count, stream, agrees));
    if (!agrees[0]) return STATUS_OK;
    TRY(trial_run(cache, p, g, t, 0, &found[0].algo, 1, stream, &ms));
    const int fit = ms > 0 ? (int)(ROUND_MS / ms) : MOST_RUNS;
    const int runs = fit < 1 ? 1 : fit > MOST_RUNS ? MOST_RUNS : fit;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            if (!agrees[i]) continue;
            TRY(trial_run(cache, p, g, t, 1, &found[i].algo, runs, stream, &ms));
            if (round > 0) sum[i] += ms;
        }
    for (int i = 1; i < count; i++)
        if (agrees[i] && sum[i] < sum[*best] && sum[i] < BETTER * sum[0]) *best = i;
    return STATUS_OK;
}

static Status plan_choose(GemmCache *cache, GemmPlan *p, const GemmCall *g, cudaStream_t stream) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count, best = 0;
    TRY(plan_propose(cache, p, found, &count));
    p->supported = count > 0 && found[0].state == CUBLAS_STATUS_SUCCESS;
    if (!p->supported) return STATUS_OK;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &capture);
    const double flop = 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
    Trial trial = {};
    if (flop >= WORTH_TIMING && count > 1 && capture == cudaStreamCaptureStatusNone &&
        trial_open(&trial, g)) {
        const Status status = plan_time(cache, p, g, &trial, found, count, stream, &best);
        (void)cudaStreamSynchronize(stream);
        (void)cudaFree(trial.memory);
        TRY(status);
    }
    p->algo = found[best].algo;
    p->workspace = found[best].workspaceSize;
    return STATUS_OK;
}

/* ---- cache ---------------------------------------------------------------------------------- */

static GemmKey key_of(Device *d, const GemmCall *g) {
    GemmKey k;
    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k, k.lda = g->lda, k.ldb = g->ldb, k.ldc = g->ldc;
    k.batch = g->batch, k.step_a = g->step_a, k.step_b = g->step_b, k.step_c = g->step_c;
    k.ta = g->ta, k.tb = g->tb, k.add = g->add, k.in = g->in, k.out = g->out;
    k.bias = g->bias != NULL;
    k.tf32 = g->in == DTYPE_F32 && d->allow_tf32;
    k.align_a = alignment_of(g->a), k.align_b = alignment_of(g->b), k.align_c = alignment_of(g->c);
    k.align_from = g->from ? alignment_of(g->from) : k.align_c;
    return k;
}

static Status plan_make(GemmCache *cache, GemmPlan *p, const GemmCall *g, cudaStream_t stream) {
    Status status = plan_describe(p, g);
    if (status == STATUS_OK) status = plan_choose(cache, p, g, stream);
    if (status != STATUS_OK || !p->supported) plan_free(p);
    return status;
}

static Status plan_get(Device *d, const GemmCall *g, GemmPlan **out) {
    GemmCache *cache = backend_of(d)->gemm;
    const GemmKey key = key_of(d, g);
    for (int64_t i = 0; i < cache->count; i++) {
        if (memcmp(&cache->plans[i].key, &key, sizeof key) == 0) {
            *out = &cache->plans[i];
            return STATUS_OK;
        }
    }
    if (cache->count == cache->capacity) {
        const int64_t capacity = cache->capacity ? 2 * cache->capacity : 64;
        TRY(mem_grow((void **)&cache->plans, capacity, sizeof(GemmPlan), "cuBLASLt plans"));
        cache->capacity = capacity;
    }
    GemmPlan plan = {};
    plan.key = key;
    TRY(plan_make(cache, &plan, g, stream_of(d)));
    cache->plans[cache->count] = plan;
    *out = &cache->plans[cache->count++];
    return STATUS_OK;
}

/* `bias` rounded to BF16, in scratch. */
static Status bias_rounded(Device *d, const float *bias, int64_t n, const void **out) {
    void *rounded;
    TRY(scratch_take(d, sizeof(bf16) * n, &rounded));
    *out = rounded;
    return copy_cuda(d, grad_set(tensor_1d(rounded, DTYPE_BF16, n)),
                     tensor_1d((void *)bias, DTYPE_F32, n), 1.0f);
}

Status gemm_run(Device *d, const GemmCall *g) {
    if (g->m == 0 || g->n == 0 || g->batch == 0) return STATUS_OK;
    GemmCache *cache = backend_of(d)->gemm;
    GemmPlan *plan;
    TRY(plan_get(d, g, &plan));
    if (!plan->supported) return gemm_simple(d, g);
    const void *bias = g->bias;
    if (bias && g->out == DTYPE_BF16) TRY(bias_rounded(d, g->bias, g->n, &bias));
    TRY(plan_bias(plan, bias));
    const bool little = plan->workspace <= SLOT_BYTES;
    const Workspace w =
        little ? (Workspace){slots_take(&cache->slots), SLOT_BYTES} : workspace_large(cache);
    BLAS_TRY(plan_execute(cache, plan, g, &plan->algo, g->c, w, stream_of(d)), "a matrix product");
    return STATUS_OK;
}

void gemm_record(GemmCache *cache) {
    slots_begin(&cache->slots);
}

Status gemm_recorded(GemmCache *cache, cudaGraph_t graph) {
    return slots_hoist(&cache->slots, graph);
}
