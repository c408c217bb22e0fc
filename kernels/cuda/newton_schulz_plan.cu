/* Chains written down: which products, of which matrices, in which order (newton_schulz_chain.cuh).
 */
#include <string.h>

#include "kernels/cuda/newton_schulz_chain.cuh"

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* A BF16 matrix [rows, columns] in boxes of 64 x 64. */
static Status map_boxes(CUtensorMap *map, const void *p, int64_t rows, int64_t columns) {
    static EncodeTiled encode; /* the driver's function: the same for all devices */
    if (!encode) {
        void *entry = NULL;
        cudaDriverEntryPointQueryResult found;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found),
                 "looking for cuTensorMapEncodeTiled");
        if (!entry) return status_set(STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        encode = (EncodeTiled)entry;
    }
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * sizeof(bf16)};
    const cuuint32_t box[2] = {BOX, BOX}, step[2] = {1, 1};
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, size, pitch, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing a matrix to the copy engine: error %d", code);
    return STATUS_OK;
}

/* A chain being written down. */
typedef struct Plan {
    const Iteration *it;
    Chain *c;
    int maps, halves, covers, covered; /* covered: tiles of a symmetric result */
    bool folded; /* aX is in the product, B having a I in it, instead of coming from F32 values */
} Plan;

/* The number of a map of n matrices [r, columns], at p or in scratch. */
static Status plan_matrix(Plan *plan, const void *p, int64_t columns, int *number) {
    const Iteration *it = plan->it;
    const int64_t rows = it->n * it->r;
    if (!p) TRY(scratch_take(it->d, sizeof(bf16) * rows * columns, (void **)&p));
    *number = plan->maps++;
    return map_boxes(&plan->c->map[*number], p, rows, columns);
}

/* The next phase, with alpha 1 and one term; symmetric: of columns r. */
static Phase *plan_phase(Plan *plan, int out, int a, int b, int64_t depth, bool symmetric) {
    Chain *c = plan->c;
    Phase *p = &c->phase[c->phases++];
    const int down = (int)ceil_div(c->r, plan->halves * BOX);
    p->a[0] = (uint8_t)a, p->b[0] = (uint8_t)b, p->out = (uint8_t)out;
    p->terms = 1;
    p->s = NOBODY;
    p->symmetric = symmetric;
    p->turned = !symmetric;
    p->depth = (int)depth;
    p->columns = (int)(symmetric ? plan->it->r : plan->it->c);
    p->across = (int)ceil_div(p->columns, TILE);
    p->tiles = symmetric ? plan->covered : down * p->across;
    p->sets = symmetric ? plan->covers : (int)ceil_div(down, 2) * p->across;
    p->alpha = 1.0f;
    c->sets_each += p->sets;
    return p;
}

static void phase_second(Phase *p, int a, int b) {
    p->a[1] = (uint8_t)a, p->b[1] = (uint8_t)b;
    p->terms = 2;
}

static void phase_add(Phase *p, int s, float beta) {
    p->s = (uint8_t)s;
    p->beta = beta;
}

/* The power of the rate that a product with X of step k lacks. */
static int power_of(const Plan *plan, int k, int power) {
    return k == 0 && plan->it->rates ? power : 0;
}

/* A = XX', B = bA + cAA of step k. */
static void plan_polynomial(Plan *plan, int a, int b, int x, int k) {
    const float *triple = plan->it->s->triple[k];
    plan_phase(plan, a, x, x, plan->it->c, true)->power = power_of(plan, k, 2);
    Phase *p = plan_phase(plan, b, a, a, plan->it->r, true);
    p->alpha = triple[2];
    phase_add(p, a, triple[1]);
    if (plan->folded) p->gamma = triple[0];
}

/* X of step k + 1 in `to`, and in F32 in `wide`, where X of step k lies in F32 too. */
static Phase *plan_step(Plan *plan, int to, int b, int x, int k, float *wide) {
    Phase *p = plan_phase(plan, to, b, x, plan->it->r, false);
    p->power = power_of(plan, k, 1);
    if (plan->folded) return p;
    p->wide = wide;
    p->carry = k == 0 ? plan->it->carry : wide;
    p->kappa = plan->it->s->triple[k][0];
    return p;
}

/* The F32 values beside X, which a step replaces in place. */
static Status plan_wide(Plan *plan, float **wide) {
    const Iteration *it = plan->it;
    *wide = NULL;
    if (plan->folded || it->s->steps < 2) return STATUS_OK;
    return scratch_take(it->d, sizeof(float) * it->n * it->r * it->c, (void **)wide);
}

static void cover_put(Plan *plan, int first, int second, int column) {
    uint8_t *set = plan->c->cover[plan->covers++];
    set[0] = (uint8_t)first, set[1] = (uint8_t)second, set[2] = (uint8_t)column;
    plan->covered += second == NOBODY ? 1 : 2;
}

/* Tiles on and below the diagonal, in sets of two with a tile column in common: results are
 * symmetric, so tile (i, j) may be computed as (j, i). Of each pair of columns one tile of the last
 * row is left; those pair up along that row. */
static void cover_pairs(Plan *plan) {
    const int side = (int)ceil_div(plan->c->r, TILE);
    int spare = NOBODY;
    for (int j = 0; j < side; j++) {
        int i = j;
        for (; i + 1 < side; i += 2) cover_put(plan, i, i + 1, j);
        if (i >= side) continue;
        if (spare == NOBODY) { /* tile (side - 1, j) */
            spare = j;
        } else {
            cover_put(plan, spare, j, side - 1);
            spare = NOBODY;
        }
    }
    if (spare != NOBODY) cover_put(plan, spare, NOBODY, side - 1);
}

/* The same with tiles of 64 rows. */
static void cover_halves(Plan *plan) {
    const int side = plan->c->r / BOX;
    for (int j = 0; 2 * j < side; j++)
        for (int i = 2 * j; i < side; i += 2) cover_put(plan, i, i + 1 < side ? i + 1 : NOBODY, j);
}

/* Sets of the first phase that a group has at least, which is 12 matrices of 768 x 768: enough that
 * few tiles wait, few enough that much of what a phase writes is still in the second-level cache
 * when the next one reads it (96 matrices, H200: 2.25, 1.99, 2.11, 2.15 ms with groups of 8, 12,
 * 24, 48). */
#define GROUP_SETS 132

static Status plan_run(Plan *plan) {
    Chain *c = plan->c;
    Device *d = plan->it->d;
    const size_t bytes = sizeof(int) * (size_t)(c->phases * c->n);
    c->group = (int)ceil_div(GROUP_SETS, c->phase[0].sets);
    if (c->group > c->n) c->group = c->n;
    c->sets = c->n * c->sets_each;
    TRY(scratch_take(d, bytes, (void **)&c->done));
    CUDA_TRY(cudaMemsetAsync(c->done, 0, bytes, stream_of(d)), "newton_schulz");
    return chain_launch(d, c, plan->halves);
}

bool chain_fits(const Iteration *it) {
    return backend_of(it->d)->sm90a && it->type == DTYPE_BF16 && it->r % BOX == 0 &&
           it->c % BOX == 0 && it->r <= 2048 && it->n * it->r < INT32_MAX;
}

/* Tiles of 64 rows where those of 128 would leave multiprocessors without work. Without F32 values
 * beside X there is nothing to add that BF16 has not lost already: B takes a I in. */
static void plan_init(Plan *plan, Chain *c, const Iteration *it) {
    const int64_t sets = it->n * ceil_div(it->r, 2 * TILE) * ceil_div(it->c, TILE);
    memset(plan, 0, sizeof *plan);
    memset(c, 0, sizeof *c);
    plan->it = it;
    plan->c = c;
    plan->halves = sets <= backend_of(it->d)->sm_count / 2 ? 1 : 2;
    plan->folded = !it->carry;
    c->n = (int)it->n, c->r = (int)it->r;
    c->rates = it->rates;
    if (plan->halves == 1)
        cover_halves(plan);
    else
        cover_pairs(plan);
}

Status iterate_chain(const Iteration *it, void *u, DType type, const void *x) {
    Chain c;
    Plan plan;
    Phase *end = NULL;
    float *wide;
    int from, spare[2], a, b, last;
    plan_init(&plan, &c, it);
    TRY(plan_matrix(&plan, x, it->c, &from));
    for (int i = 0; i < 2; i++) TRY(plan_matrix(&plan, NULL, it->c, &spare[i]));
    TRY(plan_matrix(&plan, NULL, it->r, &a));
    TRY(plan_matrix(&plan, NULL, it->r, &b));
    TRY(plan_wide(&plan, &wide));
    for (int k = 0; k < it->s->steps; k++) {
        plan_polynomial(&plan, a, b, from, k);
        end = plan_step(&plan, spare[k % 2], b, from, k, wide);
        from = spare[k % 2];
    }
    if (type == DTYPE_F32) {
        end->out = NOBODY;
        end->wide = (float *)u;
    } else {
        TRY(plan_matrix(&plan, u, it->c, &last));
        end->out = (uint8_t)last;
        end->wide = NULL;
    }
    return plan_run(&plan);
}

/* Numbers of the maps of a backward. */
typedef struct Kept {
    int x[NEWTON_SCHULZ_MOST], a[NEWTON_SCHULZ_MOST], b[NEWTON_SCHULZ_MOST], h, q;
    int d[3]; /* the gradient at the end, and two that take turns */
} Kept;

static Status keep(Plan *plan, Kept *m, const void *dx, const void *x) {
    const int64_t r = plan->it->r, c = plan->it->c;
    for (int k = 0; k < plan->it->s->steps; k++) {
        TRY(plan_matrix(plan, k == 0 ? x : NULL, c, &m->x[k]));
        TRY(plan_matrix(plan, NULL, r, &m->a[k]));
        TRY(plan_matrix(plan, NULL, r, &m->b[k]));
    }
    TRY(plan_matrix(plan, NULL, r, &m->h));
    TRY(plan_matrix(plan, NULL, r, &m->q));
    TRY(plan_matrix(plan, dx, c, &m->d[0]));
    TRY(plan_matrix(plan, NULL, c, &m->d[1]));
    return plan_matrix(plan, NULL, c, &m->d[2]);
}

/* dX before step k in `to` from dX after it in `d`. */
static Phase *plan_step_back(Plan *plan, const Kept *m, int k, int d, int to) {
    const int x = m->x[k];
    const float *triple = plan->it->s->triple[k];
    Phase *p = plan_phase(plan, m->h, d, x, plan->it->c, true);
    phase_second(p, x, d);
    p->power = power_of(plan, k, 1);
    p = plan_phase(plan, m->q, m->h, m->a[k], plan->it->r, true);
    phase_second(p, m->a[k], m->h);
    p->alpha = triple[2];
    phase_add(p, m->h, triple[1]);
    p->power = power_of(plan, k, 1); /* Q is multiplied by X alone */
    p = plan_phase(plan, to, m->b[k], d, plan->it->r, false);
    phase_second(p, m->q, x);
    if (!plan->folded) phase_add(p, d, triple[0]);
    return p;
}

Status iterate_chain_backward(const Iteration *it, float *dx0, const void *dx, const void *x) {
    Chain c;
    Plan plan;
    Kept m;
    float *wide;
    const int steps = it->s->steps;
    plan_init(&plan, &c, it);
    TRY(keep(&plan, &m, dx, x));
    TRY(plan_wide(&plan, &wide));
    for (int k = 0; k < steps; k++) {
        plan_polynomial(&plan, m.a[k], m.b[k], m.x[k], k);
        if (k + 1 == steps) break;
        Phase *p = plan_step(&plan, m.x[k + 1], m.b[k], m.x[k], k, wide);
        if (k + 2 == steps) p->wide = NULL; /* no further step */
    }
    int from = m.d[0];
    for (int k = steps - 1; k >= 0; k--) {
        const int to = m.d[1 + k % 2];
        Phase *p = plan_step_back(&plan, &m, k, from, to);
        if (k == 0) p->wide = dx0, p->out = NOBODY;
        from = to;
    }
    return plan_run(&plan);
}
