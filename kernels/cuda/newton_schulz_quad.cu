/* A chain by quads of 256 x 256: the kernel of newton_schulz_chain.cuh where there are enough of
 * them.
 *
 * The two blocks of a cluster share a quad. A block has two makers, each with a strip of 64 rows
 * and all 256 columns, so that it fetches 128 rows of a and half of b for 128 x 256 results; tiles
 * of 128 x 128 ask half as much again of the second-level cache, and a quarter more of shared
 * memory. Of a quad on the diagonal of a symmetric result a strip has only the columns up to the
 * diagonal; blocks take strips 0 and 3, and 1 and 2, which is the same work. Quads above the
 * diagonal are neither computed nor written: products read those below it, turned. Quads at the end
 * of a matrix have fewer strips and columns.
 *
 * A maker keeps its finished strip in registers, rounded, and writes it box by box between the
 * first stages of its next quad.
 */
#include "kernels/cuda/newton_schulz_quad_end.cuh"

#define THREADS 384
#define SHARED  (STAGES * STAGE_BYTES + 2 * STAGING + 1024 + 256)

#if HAVE_SM90A

/* ---- fetching ------------------------------------------------------------------------------- */

/* The stage that is next to be filled, with `boxes` boxes. */
static __device__ __forceinline__ Shared stage_take(const Ring &r, int slot, int boxes) {
    barrier_wait(empty_at(r, slot), round_of(slot) ^ 1);
    barrier_expect(full_at(r, slot), boxes * TILE_BYTES);
    return stage_at(r, slot);
}

/* Operands of one term. The blocks share b, of which each brings two boxes. One thread does this
 * for all makers, so whatever stays the same is found before. */
static __device__ __forceinline__ void term_fetch(const Ring &r, const Chain &c, const Quad &q,
                                                  int rank, int term, int &slot) {
    const Phase &p = c.phase[q.phase];
    const CUtensorMap *a = &c.map[p.a[term]], *b = &c.map[p.b[term]];
    const int y = q.matrix * c.r, upper = strip_of(q, rank, 0), lower = strip_of(q, rank, 1);
    const int upper_at = q.row + upper * BOX, lower_at = q.row + lower * BOX;
    const int strips = is_within(p, q) ? 0 : (upper < q.strips) + (lower < q.strips);
    const int boxes = q.boxes - 2 * rank, column = q.column + 2 * rank * BOX, depth = p.depth;
    const int a_turned = turned_from(p, q.row), b_turned = p.turned ? 0 : turned_from(p, q.column);
#pragma unroll 1 /* more would need registers that the copier does not have */
    for (int k = 0; k < depth; k += DEPTH, slot++) {
        const Shared to = stage_take(r, slot, q.boxes + strips), full = full_at(r, slot);
        const Shared a_to = to + BOXES * TILE_BYTES, b_to = to + 2 * rank * TILE_BYTES;
        const bool a_over = k >= a_turned, b_over = k >= b_turned;
        const int x = b_over ? column : k, down = y + (b_over ? k : column);
        if (strips > 0)
            box_fetch(a_to, a, a_over ? upper_at : k, y + (a_over ? k : upper_at), full);
        if (boxes > 0) box_fetch_all(b_to, b, x, down, full, 3);
        if (boxes > 1)
            box_fetch_all(b_to + TILE_BYTES, b, b_over ? x + BOX : x, b_over ? down : down + BOX,
                          full, 3);
        if (strips > 1)
            box_fetch(a_to + TILE_BYTES, a, a_over ? lower_at : k, y + (a_over ? k : lower_at),
                      full);
    }
}

/* Boxes `first` and the next one of s for both makers. */
static __device__ __forceinline__ void addend_fetch(const Ring &r, const Chain &c, const Quad &q,
                                                    int rank, int slot, int s, int first) {
    const int strips = (strip_of(q, rank, 0) < q.strips) + (strip_of(q, rank, 1) < q.strips);
    const int boxes = min(q.boxes - first, 2);
    const Shared to = stage_take(r, slot, strips * boxes), full = full_at(r, slot);
    for (int j = 0; j < strips; j++)
        for (int i = 0; i < boxes; i++)
            box_fetch(to + (2 * j + i) * TILE_BYTES, &c.map[s], q.column + (first + i) * BOX,
                      q.matrix * c.r + q.row + strip_of(q, rank, j) * BOX, full);
}

static __device__ void copier_run(const Ring &r, const Chain &c, int rank) {
    int slot = 0, count = 0;
    for (Quad q; (q = quad_next(r, c, count++, false)).real;) {
        const Phase &p = c.phase[q.phase];
        const int addends = addend_stages(p, q);
        asm volatile("fence.proxy.async;" ::: "memory"); /* what the dealer has seen is there */
#pragma unroll 1
        for (int i = 0; i < p.terms; i++) term_fetch(r, c, q, rank, i, slot);
        for (int i = 0; i < addends; i++) addend_fetch(r, c, q, rank, slot++, p.s, 2 * i);
        for (int i = 0; i < second_stages(p, q); i++)
            addend_fetch(r, c, q, rank, slot++, p.second, 2 * i);
    }
}

/* ---- results -------------------------------------------------------------------------------- */

/* Barriers of the staging box of a pass. */
static __device__ __forceinline__ int pass_at(int which, int pass) {
    return 8 * (2 * which + (pass & 1));
}

/* Sends the box of a pass to (x, y); then the box before it, of the same quad, has been read. */
static __device__ __forceinline__ void pass_send(const Ring &r, const CUtensorMap *map, int x,
                                                 int y, int which, int pass, bool first) {
    barrier_wait(r.staged + pass_at(which, pass), pass >> 1 & 1);
    box_store(map, x, y, r.staging + which * STAGING + (pass & 1) * TILE_BYTES);
    boxes_commit();
    if (first) return;
    boxes_wait_read_but_one();
    barrier_arrive(r.taken + pass_at(which, pass - 1));
}

/* Writes the strips of a maker. */
static __device__ void writer_run(const Ring &r, const Chain &c, int rank, int which) {
    int pass = 0, count = 0;
    for (Quad q; (q = quad_next(r, c, count++, false)).real;) {
        const Phase &p = c.phase[q.phase];
        if (p.out == NOBODY) continue;
        const CUtensorMap *map = &c.map[p.out];
        const int strip = strip_of(q, rank, which), boxes = boxes_of(q, strip);
        const int mirrored = mirrored_of(q, strip);
        const int y = q.matrix * c.r, row = q.row + strip * BOX;
        for (int i = 0; i < boxes; i++) {
            const int column = q.column + i * BOX;
            pass_send(r, map, column, y + row, which, pass++, i == 0);
            if (i < mirrored) pass_send(r, map, row, y + column, which, pass++, false);
        }
        if (boxes > 0) {
            boxes_wait_read();
            barrier_arrive(r.taken + pass_at(which, pass - 1));
        }
        boxes_wait();
        done_add(c, q.phase, q.matrix);
    }
}

/* A finished strip, rounded: boxes `next` to `boxes` - 1 are still to be written, and the first
 * `mirrored` twice. */
typedef struct Finished {
    uint32_t packed[64];
    int next, boxes, mirrored;
} Finished;

template <bool MIRRORED>
static __device__ __forceinline__ void pass_write(const Finished &f, const Ring &r, int box,
                                                  int which, Count &n) {
    const int at = pass_at(which, n.passes);
    barrier_wait(r.taken + at, n.passes >> 1 & 1 ^ 1);
    box_stage<MIRRORED>(f.packed, box, r.staging + which * STAGING + (n.passes & 1) * TILE_BYTES);
    sends_fence();
    barrier_arrive(r.staged + at);
    n.passes++;
}

static __device__ __forceinline__ void box_write(Finished &f, const Ring &r, int which, Count &n) {
    const int box = f.next++;
    pass_write<false>(f, r, box, which, n);
    if (box < f.mirrored) pass_write<true>(f, r, box, which, n);
}

/* Whether a barrier's phase is over, the same answer for all threads of the maker. */
static __device__ __forceinline__ bool is_over(Shared barrier, int parity, int which) {
    int all;
    asm volatile("{\n.reg .pred p, q;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "barrier.cta.red.and.pred q, %3, 128, p;\nselp.b32 %0, 1, 0, q;\n}\n"
                 : "=r"(all)
                 : "r"(barrier), "r"(parity), "r"(1 + which)
                 : "memory");
    return all;
}

/* Writes boxes as long as the barrier's phase is not over: it may be that others wait for these
 * very boxes. */
static __device__ __forceinline__ void boxes_write_until(Finished &f, const Ring &r, Shared barrier,
                                                         int parity, int which, Count &n) {
    while (f.next < f.boxes && !is_over(barrier, parity, which)) box_write(f, r, which, n);
}

/* ---- makers --------------------------------------------------------------------------------- */

/* How a maker multiplies: `a_box`, where its rows are in a stage; `boxes` of b; the k of a term
 * from which each operand is turned. */
typedef struct Manner {
    int a_box, boxes, a_turned, b_turned;
} Manner;

static __device__ __forceinline__ Manner manner_of(const Phase &p, const Quad &q, int strip,
                                                   int which) {
    Manner m;
    m.a_box = is_within(p, q) ? strip : BOXES + which;
    m.boxes = boxes_of(q, strip);
    m.a_turned = turned_from(p, q.row);
    m.b_turned = p.turned ? 0 : turned_from(p, q.column);
    return m;
}

/* The products of a stage at k of its term. */
static __device__ __forceinline__ void k_multiply(float (&sum)[128], Shared at, const Manner &m,
                                                  int k, bool keep) {
    const bool a_over = k >= m.a_turned, b_over = k >= m.b_turned;
    const Shared a_at = at + m.a_box * TILE_BYTES;
    const int way = m.boxes + (a_over ? 2 * BOXES : b_over ? BOXES : 0);
    stage_multiply(sum, a_over ? operand_turned(a_at) : operand_straight(a_at),
                   b_over ? operand_turned(at) : operand_straight(at), keep, m.boxes ? way : 0);
}

/* The products of a strip; boxes of the one before are written while the first stages run. */
static __device__ __forceinline__ void strip_multiply(float (&sum)[128], Finished &f, const Ring &r,
                                                      const Phase &p, const Manner &m, int which,
                                                      Count &n) {
    const int stages = stages_of(p), depth = p.depth;
    boxes_write_until(f, r, full_at(r, n.slot), round_of(n.slot), which, n);
    if (stages == 0) strip_clear(sum); /* nothing but what is added */
    for (int i = 0, k = 0; i < stages; i++, n.slot++) {
        barrier_wait(full_at(r, n.slot), round_of(n.slot));
        k_multiply(sum, stage_at(r, n.slot), m, k, i > 0);
        wgmma_wait<1>(); /* the stage before has been read */
        if (i > 0) stage_release(r, n.slot - 1);
        if (f.next < f.boxes) box_write(f, r, which, n);
        k = k + DEPTH == depth ? 0 : k + DEPTH;
    }
    wgmma_wait<0>();
    if (stages > 0) stage_release(r, n.slot - 1);
    while (f.next < f.boxes) box_write(f, r, which, n);
}

/* From sums to what is written. */
static __device__ __forceinline__ void strip_finish(float (&sum)[128], Finished &f, const Ring &r,
                                                    const Chain &c, const Quad &q, int strip,
                                                    int which, Count &n) {
    const Phase &p = c.phase[q.phase];
    const int64_t first = (int64_t)(q.matrix * c.r + q.row + strip * BOX) * p.columns + q.column;
    const Scales scale = scales_of(c, q);
    f.next = 0;
    f.boxes = boxes_of(q, strip);
    f.mirrored = mirrored_of(q, strip);
    if (p.carry)
        strip_carry(sum, p.carry + first, p.columns, f.boxes, scale.sums * p.alpha,
                    scale.sums * p.kappa);
    else if (scale.sums * p.alpha != 1.0f)
        strip_scale(sum, scale.sums * p.alpha);
    if (p.dots) {
        strip_dot(sum, r, c, q, strip, f.boxes, which, n);
    } else if (p.s != NOBODY) {
        addend_take<0>(sum, r, scale.added * p.beta, which, n);
        if (q.boxes > 2) addend_take<2>(sum, r, scale.added * p.beta, which, n);
    }
    if (p.second != NOBODY) {
        addend_take<0>(sum, r, scale.second, which, n);
        if (q.boxes > 2) addend_take<2>(sum, r, scale.second, which, n);
    }
    if (p.gamma != 0.0f && q.diagonal) strip_identity(sum, strip, scale.diagonal * p.gamma);
    if (p.wide) strip_put_wide(sum, p.wide + first, p.columns, f.boxes);
    if (p.out == NOBODY) f.boxes = 0;
    strip_pack(f.packed, sum);
}

static __device__ __forceinline__ void maker_run(const Ring &r, const Chain &c, int rank,
                                                 int which) {
    Finished f;
    float sum[128];
    Count n = {0, 0, 0};
    f.next = f.boxes = 0;
    for (;;) {
        boxes_write_until(f, r, r.given + 8 * place_of(n.quads), parity_of(n.quads), which, n);
        const Quad q = quad_next(r, c, n.quads++, true);
        if (!q.real) break;
        const Phase &p = c.phase[q.phase];
        const int strip = strip_of(q, rank, which);
        strip_multiply(sum, f, r, p, manner_of(p, q, strip, which), which, n);
        strip_finish(sum, f, r, c, q, strip, which, n);
    }
    while (f.next < f.boxes) box_write(f, r, which, n);
}

#endif

__global__ void __launch_bounds__(THREADS, 1) quad_kernel(const __grid_constant__ Chain c) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = threadIdx.x / 128, rank = cluster_rank();
    if (role == 0) {
        registers_down<40>();
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (is_elected()) {
            if (warp == 0)
                copier_run(r, c, rank);
            else if (warp < 3)
                writer_run(r, c, rank, warp - 1);
            else if (rank == 0)
                dealer_run(r, c);
        }
    } else {
        registers_up<232>();
        maker_run(r, c, rank, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

Status quad_launch(Device *d, const Chain *c) {
    return chain_start(d, c, (const void *)quad_kernel, THREADS, SHARED);
}
