/* Chains written down: which products, of which matrices, in which order (newton_schulz_chain.cuh).
 */
#include <string.h>

#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/tensor_map.cuh"

/* A BF16 matrix [rows, columns], `pitch` elements from row to row, in boxes of 64 x 64. */
static Status map_boxes(CUtensorMap *map, const void *p, int64_t rows, int64_t columns,
                        int64_t pitch) {
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t bytes[1] = {(cuuint64_t)pitch * sizeof(bf16)};
    const cuuint32_t box[2] = {BOX, BOX};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, size, bytes, box,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/* A chain being written down. */
typedef struct Plan {
    const Iteration *it;
    Chain *c;
    int maps, covers, covered; /* covered: tiles of a symmetric result */
    int halves, others;        /* 64 rows of a tile of symmetric results, of others */
    bool quads;                /* newton_schulz_quad.cu */
    bool beside;               /* phases that do not wait for each other, matrix by matrix */
    bool folded; /* aX is in the product, B having a I in it, instead of coming from F32 values */
} Plan;

static Status plan_map(Plan *plan, const void *p, int64_t columns, int64_t pitch, int *number) {
    *number = plan->maps++;
    return map_boxes(&plan->c->map[*number], p, plan->it->n * plan->it->r, columns, pitch);
}

/* The number of a map of n matrices [r, columns], at p or in scratch. */
static Status plan_matrix(Plan *plan, const void *p, int64_t columns, int *number) {
    const Iteration *it = plan->it;
    if (!p) TRY(scratch_take(it->d, sizeof(bf16) * it->n * it->r * columns, (void **)&p));
    return plan_map(plan, p, columns, columns, number);
}

/* The next phase, with alpha 1 and one term; symmetric: of columns r. */
static Phase *plan_phase(Plan *plan, int out, int a, int b, int64_t depth, bool symmetric) {
    Chain *c = plan->c;
    Phase *p = &c->phase[c->phases++];
    const int halves = symmetric ? plan->halves : plan->others;
    const int down = (int)ceil_div(c->r, halves * BOX), side = (int)ceil_div(c->r, QUAD);
    p->a[0] = (uint8_t)a, p->b[0] = (uint8_t)b, p->out = (uint8_t)out;
    p->terms = 1;
    p->halves = (uint8_t)halves;
    p->s = p->second = NOBODY;
    p->symmetric = symmetric;
    p->turned = !symmetric;
    p->depth = (int)depth;
    p->columns = (int)(symmetric ? plan->it->r : plan->it->c);
    p->across = (int)ceil_div(p->columns, TILE);
    p->tiles = symmetric ? plan->covered : down * p->across;
    p->sets = symmetric ? plan->covers : (int)ceil_div(down, 2) * p->across;
    if (plan->quads) {
        p->sets = symmetric ? side * (side + 1) / 2 : side * (int)ceil_div(p->columns, QUAD);
        p->tiles = 2 * CLUSTER * p->sets; /* strips, real or not */
    }
    p->alpha = 1.0f;
    p->wait[0] = (uint8_t)(c->phases > 1 ? c->phases - 2 : NOBODY);
    p->wait[1] = NOBODY;
    c->sets_each += p->sets;
    return p;
}

static void phase_second(Phase *p, int a, int b) {
    p->a[1] = (uint8_t)a, p->b[1] = (uint8_t)b;
    p->terms = 2;
}

/* Phases that it waits for, instead of the one before. */
static void phase_wait(Phase *p, int first, int second) {
    p->wait[0] = (uint8_t)first, p->wait[1] = (uint8_t)second;
}

/* Phase `first` and the next one are done matrix by matrix. */
static void phase_beside(Chain *c, int first) {
    c->phase[first].beside = c->phase[first + 1].sets;
}

static void phase_add(Phase *p, int s, float beta) {
    p->s = (uint8_t)s;
    p->beta = beta;
}

/* The power of the rate that a product with X of step k lacks. */
static int power_of(const Plan *plan, int k, int power) {
    return k == 0 && plan->it->rates ? power : 0;
}

/* B = bA + cAA of step k, plus a I. */
static void plan_square(Plan *plan, int a, int b, int k) {
    const float *triple = plan->it->s->triple[k];
    Phase *p = plan_phase(plan, b, a, a, plan->it->r, true);
    p->low = true;
    p->alpha = triple[2];
    phase_add(p, a, triple[1]);
    if (plan->folded) p->gamma = triple[0];
}

/* A = XX' and B of step k. */
static void plan_polynomial(Plan *plan, int a, int b, int x, int k) {
    plan_phase(plan, a, x, x, plan->it->c, true)->power = power_of(plan, k, 2);
    plan_square(plan, a, b, k);
}

/* X of step k + 1 in `to`, and in F32 in `wide`, where X of step k lies in F32 too. */
static Phase *plan_step(Plan *plan, int to, int b, int x, int k, float *wide) {
    Phase *p = plan_phase(plan, to, b, x, plan->it->r, false);
    p->low = true;
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

/* A group has at least that many sets in its first phases, so that few wait for those before, and
 * that many bytes of X: fewer matrices wait more, many more find less in the second-level cache (96
 * matrices of 768 x 768 by quads, H200 at 700 W: forward 1.81, 1.76, 1.78 ms with groups of 32, 24,
 * 20; backward 4.90, 5.03, 4.85, 5.10 ms with groups of 32, 24, 16, 14). */
#define GROUP_SETS     132
#define GROUP_FORWARD  (27 << 20)
#define GROUP_BACKWARD (18 << 20) /* two phases at a time, three matrices beside each X */

static Status plan_run(Plan *plan) {
    Chain *c = plan->c;
    Device *d = plan->it->d;
    const size_t bytes = sizeof(int) * (size_t)(c->phases * c->n + 1);
    const int64_t bytes_each = plan->it->r * plan->it->c * (int64_t)sizeof(bf16);
    const int by_sets = (int)ceil_div(GROUP_SETS, c->phase[0].sets + c->phase[0].beside);
    const int by_bytes = (int)((plan->beside ? GROUP_BACKWARD : GROUP_FORWARD) / bytes_each);
    const int most = max(by_sets, by_bytes);
    const int groups = c->n > most ? (c->n + most / 2) / most : 1; /* of one size */
    c->group = (int)ceil_div(c->n, groups);
    c->late = plan->beside;
    c->sets = c->n * c->sets_each;
    TRY(scratch_take(d, bytes, (void **)&c->done));
    c->taken = c->done + c->phases * c->n;
    CUDA_TRY(cudaMemsetAsync(c->done, 0, bytes, stream_of(d)), "newton_schulz");
    return plan->quads ? quad_launch(d, c) : chain_launch(d, c, plan->halves);
}

bool chain_fits(const Iteration *it) {
    return backend_of(it->d)->sm90a && it->type == DTYPE_BF16 && it->r % BOX == 0 &&
           it->c % BOX == 0 && it->r <= 2048 && it->n * it->r < INT32_MAX;
}

/* Tiles of 64 rows where those of 128 would leave multiprocessors without work (12 matrices of 384,
 * H200: forward .108 instead of .127 ms), quads where clusters have at least two of a phase (by
 * fewer, 12 matrices of 384: .157 ms). Without F32 values beside X there is nothing to add that
 * BF16 has not lost already: B takes a I in. */
static void plan_init(Plan *plan, Chain *c, const Iteration *it) {
    const int64_t wide = it->n * ceil_div(it->r, 2 * TILE) * ceil_div(it->c, TILE);
    const int64_t narrow = it->n * ceil_div(it->r, TILE) * ceil_div(it->c, TILE);
    const int64_t side = ceil_div(it->r, QUAD), sm_count = backend_of(it->d)->sm_count;
    const int64_t clusters = sm_count / CLUSTER;
    memset(plan, 0, sizeof *plan);
    memset(c, 0, sizeof *c);
    plan->it = it;
    plan->c = c;
    plan->halves = 11 * wide <= 6 * sm_count ? 1 : 2;
    plan->quads = it->r >= QUAD && it->n * side * (side + 1) / 2 >= sm_count;
    if (plan->quads) plan->halves = 2;
    plan->others = plan->halves;
    if (3 * ceil_div(wide, clusters) < 2 * ceil_div(narrow, clusters)) plan->others = 2;
    plan->folded = !it->carry;
    c->n = (int)it->n, c->r = (int)it->r;
    c->rates = it->rates;
    if (plan->halves == 1)
        cover_halves(plan);
    else
        cover_pairs(plan);
}

/* The result of a phase goes to u, F32 or BF16. */
static Status plan_end(Plan *plan, int phase, void *u, DType type) {
    Phase *p = &plan->c->phase[phase];
    int last = NOBODY;
    if (type != DTYPE_F32) TRY(plan_matrix(plan, u, plan->it->c, &last));
    p->out = (uint8_t)last;
    p->wide = type == DTYPE_F32 ? (float *)u : NULL;
    return STATUS_OK;
}

Status iterate_chain(const Iteration *it, void *u, DType type, const void *x) {
    Chain c;
    Plan plan;
    float *wide;
    int from, spare[2], a, b;
    plan_init(&plan, &c, it);
    TRY(plan_matrix(&plan, x, it->c, &from));
    for (int i = 0; i < 2; i++) TRY(plan_matrix(&plan, NULL, it->c, &spare[i]));
    TRY(plan_matrix(&plan, NULL, it->r, &a));
    TRY(plan_matrix(&plan, NULL, it->r, &b));
    TRY(plan_wide(&plan, &wide));
    for (int k = 0; k < it->s->steps; k++) {
        plan_polynomial(&plan, a, b, from, k);
        plan_step(&plan, spare[k % 2], b, from, k, wide);
        from = spare[k % 2];
    }
    TRY(plan_end(&plan, c.phases - 1, u, type));
    return plan_run(&plan);
}

/* Inner products of phase `t`, dx0, and x, where its makers can find them: by quads, of x that is
 * nothing but BF16. */
static Status plan_dots(Plan *plan, int t, int x, Slope *o) {
    Phase *p = &plan->c->phase[t];
    o->dots = NULL;
    o->is_whole = false;
    if (!plan->quads || !plan->folded) return STATUS_OK;
    o->parts = p->sets * 16; /* strips of a quad, warps of a maker */
    TRY(scratch_take(plan->it->d, sizeof(float) * plan->it->n * o->parts, (void **)&o->dots));
    p->s = (uint8_t)x;
    p->dots = o->dots;
    return STATUS_OK;
}

/* The norm's slope, once a matrix has dx0 and its inner products, while dx0 is near: a phase
 * without products, dg = rate dx0 - rate^2 dot / norm x. */
static Status plan_whole(Plan *plan, int x, Slope *o) {
    Chain *c = plan->c;
    int dg;
    if (!o->dots || !o->dg || o->type != DTYPE_BF16) return STATUS_OK;
    const int dx0 = c->phase[c->phases - 1].out;
    TRY(plan_matrix(plan, o->dg, plan->it->c, &dg));
    Phase *p = plan_phase(plan, dg, dx0, dx0, plan->it->r, false);
    p->terms = 0;
    phase_add(p, dx0, 1.0f);
    p->second = (uint8_t)x;
    c->norms = o->norms;
    c->dots = o->dots;
    c->parts = o->parts;
    o->is_whole = true;
    return STATUS_OK;
}

/* Numbers of the maps of a backward, by step modulo 2 where two take turns. X and T after a step
 * lie where its A and H were. */
typedef struct Kept {
    int x[2], t[2], a[2], h[2], b, q;
} Kept;

static Status keep(Plan *plan, Kept *m) {
    const Iteration *it = plan->it;
    for (int k = 0; k < 4; k++) {
        void *room;
        TRY(scratch_take(it->d, sizeof(bf16) * it->n * it->r * it->c, &room));
        TRY(plan_map(plan, room, it->c, it->c, k < 2 ? &m->x[k] : &m->t[k - 2]));
        TRY(plan_map(plan, room, it->r, it->c, k < 2 ? &m->a[k] : &m->h[k - 2]));
    }
    TRY(plan_matrix(plan, NULL, it->r, &m->b));
    return plan_matrix(plan, NULL, it->r, &m->q);
}

/* Numbers of a step's phases. */
typedef struct Order {
    int a, h, b, q, x, t;
} Order;

/* H = TX' + XT' and Q = bH + c(HA + AH) of step k, T and X being x and t. */
static void plan_slope_h(Plan *plan, const Kept *m, int k, int x, int t) {
    Phase *p = plan_phase(plan, m->h[k % 2], t, x, plan->it->c, true);
    phase_second(p, x, t);
    p->power = power_of(plan, k, 1);
}

static void plan_slope_q(Plan *plan, const Kept *m, int k) {
    const float *triple = plan->it->s->triple[k];
    Phase *p = plan_phase(plan, m->q, m->h[k % 2], m->a[k % 2], plan->it->r, true);
    phase_second(p, m->a[k % 2], m->h[k % 2]);
    p->low = true;
    p->alpha = triple[2];
    phase_add(p, m->h[k % 2], triple[1]);
    p->power = power_of(plan, k, 1); /* Q is multiplied by X alone */
}

/* Step k of X and of the slope T along it. What a phase does not wait for itself, those before it
 * have waited for; that goes for matrices that are overwritten, too. The last X is of no use but to
 * who wants u. */
static void plan_step_both(Plan *plan, const Kept *m, int k, int x, int t, float *wide, bool wanted,
                           Order *o) {
    Chain *c = plan->c;
    const Order old = *o;
    const bool last = k + 1 == plan->it->s->steps && !wanted;
    const int a = m->a[k % 2], b = m->b;
    *o = (Order){c->phases,     c->phases + 1, c->phases + 2,
                 c->phases + 3, c->phases + 4, c->phases + (last ? 4 : 5)};
    plan_phase(plan, a, x, x, plan->it->c, true)->power = power_of(plan, k, 2);
    phase_wait(&c->phase[o->a], old.x, old.t);
    plan_slope_h(plan, m, k, x, t);
    phase_wait(&c->phase[o->h], old.x, old.t);
    plan_square(plan, a, b, k);
    phase_wait(&c->phase[o->b], o->a, NOBODY);
    plan_slope_q(plan, m, k);
    phase_wait(&c->phase[o->q], o->a, o->h);
    if (!last) {
        Phase *p = plan_step(plan, m->x[k % 2], b, x, k, wide);
        phase_wait(p, o->b, o->q);
        if (k + 2 == plan->it->s->steps && !wanted) p->wide = NULL; /* no further step */
    }
    Phase *p = plan_phase(plan, m->t[k % 2], b, t, plan->it->r, false);
    phase_second(p, m->q, x);
    p->low = true;
    phase_wait(p, o->b, o->q);
    if (!plan->folded) phase_add(p, t, plan->it->s->triple[k][0]);
    if (!plan->beside) return;
    phase_beside(c, o->a);
    phase_beside(c, o->b);
    if (!last) phase_beside(c, o->x);
}

/* The iteration is U f(S) V' of X = U S V', f odd, and the derivative of such a function is its own
 * transpose: the gradient is the slope along dx, which goes the way of X, so nothing is kept. */
Status iterate_chain_backward(const Iteration *it, Slope *s, const void *dx, const void *x) {
    const bool wanted = !tensor_is_none(s->u);
    Chain c;
    Plan plan;
    Kept m;
    Order o = {NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY};
    float *wide;
    int first, from, slope;
    plan_init(&plan, &c, it);
    plan.beside = plan.quads;
    TRY(plan_matrix(&plan, x, it->c, &first));
    from = first;
    TRY(plan_matrix(&plan, dx, it->c, &slope));
    TRY(keep(&plan, &m));
    TRY(plan_wide(&plan, &wide));
    for (int k = 0; k < it->s->steps; k++) {
        plan_step_both(&plan, &m, k, from, slope, wide, wanted, &o);
        from = m.x[k % 2], slope = m.t[k % 2];
    }
    TRY(plan_end(&plan, o.t, s->dx0, s->type));
    if (wanted) TRY(plan_end(&plan, o.x, s->u.data, s->u.dtype));
    TRY(plan_dots(&plan, o.t, first, s));
    TRY(plan_whole(&plan, first, s));
    return plan_run(&plan);
}
