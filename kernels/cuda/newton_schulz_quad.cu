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
#include "kernels/cuda/newton_schulz_order.cuh"
#include "kernels/cuda/newton_schulz_list.cuh"
#include "kernels/cuda/newton_schulz_quad.cuh"

#define THREADS     384
#define STAGES      4
#define STAGE_BYTES ((BOXES + 2) * TILE_BYTES) /* of b, of a */
#define STAGING     (2 * TILE_BYTES)           /* of a maker: two boxes that take turns */
#define AHEAD       2                          /* quads that are dealt before they are needed */
#define SHARED      (STAGES * STAGE_BYTES + 2 * STAGING + 1024 + 256)

#if HAVE_SM90A

/* ---- shared memory -------------------------------------------------------------------------- */

/* Addresses of shared memory. Barriers of a stage: full, empty. Of each staging box of a maker:
 * `staged`, it holds a result; `taken`, that has been read. Of the quads dealt: given, read. */
typedef struct Ring {
    Shared data, staging, full, empty, staged, taken, given, read, quads;
} Ring;

static __device__ __forceinline__ Shared stage_at(const Ring &r, int slot) {
    return r.data + (unsigned)slot % STAGES * STAGE_BYTES;
}
static __device__ __forceinline__ Shared full_at(const Ring &r, int slot) {
    return r.full + 8 * ((unsigned)slot % STAGES);
}
static __device__ __forceinline__ Shared empty_at(const Ring &r, int slot) {
    return r.empty + 8 * ((unsigned)slot % STAGES);
}
static __device__ __forceinline__ int round_of(int slot) {
    return (unsigned)slot / STAGES & 1;
}

/* The place of the i-th quad dealt, and the parity of its barriers. */
static __device__ __forceinline__ int place_of(int i) {
    return (unsigned)i % AHEAD;
}
static __device__ __forceinline__ int parity_of(int i) {
    return (unsigned)i / AHEAD & 1;
}

/* ---- who does what -------------------------------------------------------------------------- */

/* Clusters take the next quad of the list when they need one. One thread of a cluster does so, two
 * ahead, waits until its operands are there, and tells both blocks; everybody there reads all of
 * them. */
#define READERS 11 /* of a block: copier, writers, warps of makers */

static __device__ void dealer_run(const Ring &r, const Chain &c) {
    const int clusters = gridDim.x / CLUSTER;
    int set = blockIdx.x / CLUSTER;
    for (int i = 0; set < c.sets; i++) {
        const int at = place_of(i);
        uint32_t low = 0, high = 0;
        barrier_wait(r.read + 8 * at, parity_of(i) ^ 1);
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
    const int at = place_of(i);
    uint32_t low, high;
    Quad q;
    barrier_wait(r.given + 8 * at, parity_of(i));
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(r.quads + 8 * at)
                 : "memory");
    if (warp) __syncwarp();
    if ((!warp || threadIdx.x % 32 == 0) && high != ~0u) /* which it never is: once it is here */
        barrier_arrive_at(r.read + 8 * at, 0);
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
        const int addends = addend_stages(p, q);
        asm volatile("fence.proxy.async;" ::: "memory"); /* what the dealer has seen is there */
#pragma unroll 1
        for (int i = 0; i < p.terms; i++) term_fetch(r, c, q, rank, i, slot);
        for (int i = 0; i < addends; i++) addend_fetch(r, c, q, rank, slot++, 2 * i);
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

/* What a maker has come to: quads, stages, and passes over its staging boxes. */
typedef struct Count {
    int quads, slot, passes;
} Count;

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

static __device__ __forceinline__ void stage_release(const Ring &r, int slot) {
    const int lane = threadIdx.x & 31;
    if (lane < CLUSTER) barrier_arrive_at(empty_at(r, slot), lane);
}

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
    for (int i = 0, k = 0; i < stages; i++, n.slot++) {
        barrier_wait(full_at(r, n.slot), round_of(n.slot));
        k_multiply(sum, stage_at(r, n.slot), m, k, i > 0);
        wgmma_wait<1>(); /* the stage before has been read */
        if (i > 0) stage_release(r, n.slot - 1);
        if (f.next < f.boxes) box_write(f, r, which, n);
        k = k + DEPTH == depth ? 0 : k + DEPTH;
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
    sends_fence(); /* reads wait behind stores of others, an arrival does not */
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
    f.mirrored = mirrored_of(q, strip);
    if (p.power == 2) rate *= rate;
    if (p.carry)
        strip_carry(sum, p.carry + first, p.columns, f.boxes, rate * p.alpha, rate * p.kappa);
    else if (rate * p.alpha != 1.0f)
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

static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.full = r.staging + 2 * STAGING;
    r.empty = r.full + 8 * STAGES;
    r.staged = r.empty + 8 * STAGES;
    r.taken = r.staged + 32;
    r.given = r.taken + 32;
    r.read = r.given + 8 * AHEAD;
    r.quads = r.read + 8 * AHEAD;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) {
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
