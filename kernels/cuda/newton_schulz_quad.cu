/* A chain by quads of 256 x 256: the kernel of newton_schulz_chain.cuh where there are enough of
 * them.
 *
 * The two blocks of a cluster share a quad. A block has two makers, each with a strip of 64 rows
 * and all 256 columns, so that it fetches 128 rows of a and half of b for 128 x 256 results; tiles
 * of 128 x 128 ask half as much again of the second-level cache, and a quarter more of shared
 * memory. Of a quad on the diagonal of a symmetric result a strip has only the columns up to the
 * diagonal; blocks take strips 0 and 3, and 1 and 2, which is the same work. Quads at the end of a
 * matrix have fewer strips and columns.
 *
 * A maker keeps its finished strip in registers, rounded, and writes it box by box between the
 * first stages of its next quad.
 */
#include "kernels/cuda/newton_schulz_order.cuh"
#include "kernels/cuda/newton_schulz_quad.cuh"

#define THREADS     384
#define STAGES      4
#define BOXES       4                          /* across a quad */
#define STAGE_BYTES ((BOXES + 2) * TILE_BYTES) /* of b, of a */
#define STAGING     (2 * TILE_BYTES)           /* of a maker: a box and its mirror image */
#define SHARED      (STAGES * STAGE_BYTES + 2 * STAGING + 1024 + 256)

#if HAVE_SM90A

/* ---- where a quad is ------------------------------------------------------------------------ */

typedef struct Quad {
    int phase, matrix, row, column;
    int strips, boxes; /* down and across, 4 but at the end of a matrix */
    bool diagonal;     /* of a symmetric result */
    bool real;
} Quad;

static __device__ Quad quad_of(const Chain &c, int set) {
    const int whole = c.group * c.sets_each, group = set / whole, first = group * c.group;
    const int size = min(c.group, c.n - first);
    int left = set - group * whole, i = 0;
    Quad q = {};
    while (left >= size * c.phase[q.phase].sets) left -= size * c.phase[q.phase++].sets;
    const Phase &p = c.phase[q.phase];
    q.matrix = first + left / p.sets;
    left %= p.sets;
    if (p.symmetric) {
        while (left > i) left -= ++i;
    } else {
        const int across = (p.columns + QUAD - 1) / QUAD;
        i = left / across;
        left %= across;
    }
    q.row = i * QUAD;
    q.column = left * QUAD;
    q.diagonal = p.symmetric && i == left;
    return q;
}

/* The strip of maker `which` of block `rank`; there may be none. */
static __device__ __forceinline__ int strip_of(const Quad &q, int rank, int which) {
    if (!q.diagonal) return rank + 2 * which;
    return rank == 0 ? 3 * which : 1 + which;
}

/* Boxes of a strip that are wanted, and those of them that have a mirror image elsewhere. */
static __device__ __forceinline__ int boxes_of(const Quad &q, int strip) {
    if (strip >= q.strips) return 0;
    return q.diagonal ? strip + 1 : q.boxes;
}
static __device__ __forceinline__ int mirrored_of(const Phase &p, const Quad &q, int strip) {
    if (strip >= q.strips || !p.symmetric) return 0;
    return q.diagonal ? strip : q.boxes;
}

/* Rows of a are among those of b. */
static __device__ __forceinline__ bool is_within(const Phase &p, const Quad &q) {
    return q.diagonal && p.terms == 1 && p.a[0] == p.b[0];
}

static __device__ __forceinline__ int stages_of(const Phase &p) {
    return p.terms * (p.depth / DEPTH);
}

/* Stages that bring s, two boxes a maker. */
static __device__ __forceinline__ int addend_stages(const Phase &p, const Quad &q) {
    return p.s != NOBODY ? (q.boxes + 1) / 2 : 0;
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses of shared memory. Barriers of a stage: full, empty. Of each maker: `staged`, the
 * staging boxes hold a result; `taken`, it has been read. Of the quads dealt: given, read. */
typedef struct Ring {
    Shared data, staging, full, empty, staged, taken, given, read, quads;
} Ring;

static __device__ __forceinline__ Shared stage_at(const Ring &r, int slot) {
    return r.data + slot % STAGES * STAGE_BYTES;
}
static __device__ __forceinline__ Shared full_at(const Ring &r, int slot) {
    return r.full + 8 * (slot % STAGES);
}
static __device__ __forceinline__ Shared empty_at(const Ring &r, int slot) {
    return r.empty + 8 * (slot % STAGES);
}
static __device__ __forceinline__ int round_of(int slot) {
    return slot / STAGES & 1;
}

/* ---- who does what -------------------------------------------------------------------------- */

/* Clusters take the next quad of the list when they need one. One thread of a cluster does so, two
 * ahead, waits until its operands are there, and tells both blocks; everybody there reads all of
 * them. */
#define AHEAD   2
#define READERS 11 /* of a block: copier, writers, warps of makers */

static __device__ void dealer_run(const Ring &r, const Chain &c) {
    const int clusters = gridDim.x / CLUSTER;
    int set = blockIdx.x / CLUSTER;
    for (int i = 0; set < c.sets; i++) {
        const int at = i % AHEAD;
        uint32_t low = 0, high = 0;
        barrier_wait(r.read + 8 * at, i / AHEAD & 1 ^ 1);
        if (i > 0) set = clusters + atomicAdd(c.taken, 1);
        if (set < c.sets) {
            const Quad q = quad_of(c, set);
            low = (uint32_t)(q.phase | q.matrix << 8);
            high = (uint32_t)(q.row / QUAD | q.column / QUAD << 8 | q.diagonal << 24 | 1 << 25);
            while (!is_ready(c, q.phase, q.matrix)) continue;
        }
        for (int rank = 0; rank < CLUSTER; rank++)
            asm volatile(
                "{\n.reg .b32 to, barrier;\n.reg .b64 quad;\n"
                "mapa.shared::cluster.u32 to, %0, %2;\n"
                "mapa.shared::cluster.u32 barrier, %1, %2;\n"
                "mov.b64 quad, {%3, %4};\n"
                "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [barrier], 8;\n"
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], quad, [barrier];\n"
                "}\n" ::"r"(r.quads + 8 * at),
                "r"(r.given + 8 * at), "r"(rank), "r"(low), "r"(high)
                : "memory");
    }
}

/* The i-th quad of the cluster, not real at the end; for whole warps, or single threads of others.
 */
static __device__ __forceinline__ Quad quad_next(const Ring &r, const Chain &c, int i, bool warp) {
    const int at = i % AHEAD;
    uint32_t low, high;
    Quad q;
    barrier_wait(r.given + 8 * at, i / AHEAD & 1);
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(r.quads + 8 * at)
                 : "memory");
    if (warp) __syncwarp();
    if (!warp || threadIdx.x % 32 == 0) barrier_arrive_at(r.read + 8 * at, 0);
    q.phase = low & 0xff, q.matrix = low >> 8;
    q.row = (int)(high & 0xff) * QUAD, q.column = (int)(high >> 8 & 0xffff) * QUAD;
    q.diagonal = high >> 24 & 1;
    q.real = high >> 25 & 1;
    q.strips = min((c.r - q.row) / BOX, 4);
    q.boxes = min((c.phase[q.phase].columns - q.column) / BOX, BOXES);
    return q;
}

/* ---- fetching ------------------------------------------------------------------------------- */

/* The stage that is next to be filled, with `boxes` boxes. */
static __device__ __forceinline__ Shared stage_take(const Ring &r, int slot, int boxes) {
    barrier_wait(empty_at(r, slot), round_of(slot) ^ 1);
    barrier_expect(full_at(r, slot), boxes * TILE_BYTES);
    return stage_at(r, slot);
}

/* The blocks share b, of which each brings two boxes. */
static __device__ __forceinline__ void operands_fetch(const Ring &r, const Chain &c, const Quad &q,
                                                      int rank, int slot, int i) {
    const Phase &p = c.phase[q.phase];
    const int y = q.matrix * c.r, per_term = p.depth / DEPTH, term = i >= per_term;
    const int k = (i - term * per_term) * DEPTH;
    const CUtensorMap *a = &c.map[p.a[term]], *b = &c.map[p.b[term]];
    int strips = 0;
    if (!is_within(p, q))
        strips = (strip_of(q, rank, 0) < q.strips) + (strip_of(q, rank, 1) < q.strips);
    const Shared to = stage_take(r, slot, q.boxes + strips), full = full_at(r, slot);
    for (int j = 0; j < strips; j++)
        box_fetch(to + (BOXES + j) * TILE_BYTES, a, k, y + q.row + strip_of(q, rank, j) * BOX,
                  full);
    for (int j = 2 * rank; j < min(2 * rank + 2, q.boxes); j++) {
        const int column = q.column + j * BOX;
        box_fetch_all(to + j * TILE_BYTES, b, p.turned ? column : k, p.turned ? y + k : y + column,
                      full, 3);
    }
}

/* Boxes `first` and the next one of s for both makers. */
static __device__ __forceinline__ void addend_fetch(const Ring &r, const Chain &c, const Quad &q,
                                                    int rank, int slot, int first) {
    const int strips = (strip_of(q, rank, 0) < q.strips) + (strip_of(q, rank, 1) < q.strips);
    const int boxes = min(q.boxes - first, 2);
    const Shared to = stage_take(r, slot, strips * boxes), full = full_at(r, slot);
    for (int j = 0; j < strips; j++)
        for (int i = 0; i < boxes; i++)
            box_fetch(to + (2 * j + i) * TILE_BYTES, &c.map[c.phase[q.phase].s],
                      q.column + (first + i) * BOX,
                      q.matrix * c.r + q.row + strip_of(q, rank, j) * BOX, full);
}

static __device__ void copier_run(const Ring &r, const Chain &c, int rank) {
    int slot = 0, count = 0;
    for (Quad q; (q = quad_next(r, c, count++, false)).real;) {
        const Phase &p = c.phase[q.phase];
        const int stages = stages_of(p), addends = addend_stages(p, q);
        asm volatile("fence.proxy.async;" ::: "memory"); /* what the dealer has seen is there */
        for (int i = 0; i < stages; i++) operands_fetch(r, c, q, rank, slot++, i);
        for (int i = 0; i < addends; i++) addend_fetch(r, c, q, rank, slot++, 2 * i);
    }
}

/* ---- results -------------------------------------------------------------------------------- */

/* Writes the strips of a maker. */
static __device__ void writer_run(const Ring &r, const Chain &c, int rank, int which) {
    const Shared staging = r.staging + which * STAGING;
    int passes = 0, count = 0;
    for (Quad q; (q = quad_next(r, c, count++, false)).real;) {
        const Phase &p = c.phase[q.phase];
        if (p.out == NOBODY) continue;
        const CUtensorMap *map = &c.map[p.out];
        const int strip = strip_of(q, rank, which), boxes = boxes_of(q, strip);
        const int mirrored = mirrored_of(p, q, strip);
        const int y = q.matrix * c.r, row = q.row + strip * BOX;
        for (int i = 0; i < boxes; i++) {
            const int column = q.column + i * BOX;
            barrier_wait(r.staged + 8 * which, passes++ & 1);
            box_store(map, column, y + row, staging);
            if (i < mirrored) box_store(map, row, y + column, staging + TILE_BYTES);
            boxes_commit();
            boxes_wait_read();
            barrier_arrive(r.taken + 8 * which);
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

/* What a maker has come to: quads, stages, and passes over its staging boxes. */
typedef struct Count {
    int quads, slot, passes;
} Count;

static __device__ __forceinline__ void box_write(Finished &f, const Ring &r, int which, Count &n) {
    const Shared to = r.staging + which * STAGING;
    const int box = f.next++;
    const bool mirrored = box < f.mirrored;
    barrier_wait(r.taken + 8 * which, n.passes++ & 1 ^ 1);
    if (box == 0) box_stage<0>(f.packed, to, mirrored);
    if (box == 1) box_stage<1>(f.packed, to, mirrored);
    if (box == 2) box_stage<2>(f.packed, to, mirrored);
    if (box == 3) box_stage<3>(f.packed, to, mirrored);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_arrive(r.staged + 8 * which);
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

static __device__ __forceinline__ void stage_release(const Ring &r, int slot) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(empty_at(r, slot), lane);
}

/* The products of a strip; boxes of the one before are written while the first stages run. */
static __device__ __forceinline__ void strip_multiply(float (&sum)[128], Finished &f, const Ring &r,
                                                      int stages, int way, int a_box, int which,
                                                      Count &n) {
    boxes_write_until(f, r, full_at(r, n.slot), round_of(n.slot), which, n);
    for (int i = 0; i < stages; i++, n.slot++) {
        const Shared at = stage_at(r, n.slot);
        barrier_wait(full_at(r, n.slot), round_of(n.slot));
        stage_multiply(sum, operand_straight(at + a_box * TILE_BYTES),
                       way > BOXES ? operand_turned(at) : operand_straight(at), i > 0, way);
        wgmma_wait<1>(); /* the stage before has been read */
        if (i > 0) stage_release(r, n.slot - 1);
        if (f.next < f.boxes) box_write(f, r, which, n);
    }
    wgmma_wait<0>();
    stage_release(r, n.slot - 1);
    while (f.next < f.boxes) box_write(f, r, which, n);
}

/* Adds beta s to boxes FIRST and the next one. */
template <int FIRST>
static __device__ __forceinline__ void addend_take(float (&sum)[128], const Ring &r, float beta,
                                                   int which, Count &n) {
    barrier_wait(full_at(r, n.slot), round_of(n.slot));
    boxes_add<FIRST>(sum, stage_at(r, n.slot) + which * 2 * TILE_BYTES, beta);
    __syncwarp();
    stage_release(r, n.slot++);
}

/* From sums to what is written. */
static __device__ __forceinline__ void strip_finish(float (&sum)[128], Finished &f, const Ring &r,
                                                    const Chain &c, const Quad &q, int strip,
                                                    int which, Count &n) {
    const Phase &p = c.phase[q.phase];
    const int64_t first = (int64_t)(q.matrix * c.r + q.row + strip * BOX) * p.columns + q.column;
    float rate = p.power > 0 ? c.rates[q.matrix] : 1.0f;
    f.next = 0;
    f.boxes = boxes_of(q, strip);
    f.mirrored = mirrored_of(p, q, strip);
    if (p.power == 2) rate *= rate;
    if (p.carry)
        strip_carry(sum, p.carry + first, p.columns, f.boxes, rate * p.alpha, rate * p.kappa);
    else
        strip_scale(sum, rate * p.alpha);
    if (p.s != NOBODY) {
        addend_take<0>(sum, r, rate * p.beta, which, n);
        if (q.boxes > 2) addend_take<2>(sum, r, rate * p.beta, which, n);
    }
    if (p.gamma != 0.0f && q.diagonal) strip_identity(sum, strip, rate * p.gamma);
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
        boxes_write_until(f, r, r.given + n.quads % AHEAD * 8, n.quads / AHEAD & 1, which, n);
        const Quad q = quad_next(r, c, n.quads++, true);
        if (!q.real) break;
        const Phase &p = c.phase[q.phase];
        const int strip = strip_of(q, rank, which), boxes = boxes_of(q, strip);
        strip_multiply(sum, f, r, stages_of(p), p.turned && boxes ? BOXES + boxes : boxes,
                       is_within(p, q) ? strip : BOXES + which, which, n);
        strip_finish(sum, f, r, c, q, strip, which, n);
    }
    while (f.next < f.boxes) box_write(f, r, which, n);
}

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.full = r.staging + 2 * STAGING;
    r.empty = r.full + 8 * STAGES;
    r.staged = r.empty + 8 * STAGES;
    r.taken = r.staged + 16;
    r.given = r.taken + 16;
    r.read = r.given + 8 * AHEAD;
    r.quads = r.read + 8 * AHEAD;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(r.staged + 8 * i, 128);
            barrier_init(r.taken + 8 * i, 1);
        }
        for (int i = 0; i < AHEAD; i++) {
            barrier_init(r.given + 8 * i, 1);
            barrier_init(r.read + 8 * i, READERS * CLUSTER);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 8 * CLUSTER); /* the warps of all makers */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

__global__ void __launch_bounds__(THREADS, 1) quad_kernel(const __grid_constant__ Chain c) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init(shared_address(memory));
    const int role = threadIdx.x / 128, rank = cluster_rank();
    if (role == 0) {
        registers_down<40>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0) {
            copier_run(r, c, rank);
        } else if (threadIdx.x % 32 == 0 && warp < 3) {
            writer_run(r, c, rank, warp - 1);
        } else if (threadIdx.x == 96 && rank == 0) {
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
