/* The kernel of newton_schulz_chain.cuh, and its launch. */
#include "kernels/cuda/newton_schulz_chain.cuh"
#include "kernels/cuda/wgmma.cuh"

#define CLUSTER     2
#define DEPTH       64 /* k per stage */
#define STAGES      5
#define STAGE_BYTES (4 * TILE_BYTES)
#define THREADS     384
#define SHARED      (STAGES * STAGE_BYTES + 2 * STAGE_BYTES + 1024 + 256)

#if HAVE_SM90A

/* ---- where a tile is ------------------------------------------------------------------------ */

typedef struct Spot {
    int phase, matrix, row, column;
    bool real; /* not only there to keep a cluster in step */
} Spot;

/* The tile of block `rank` in a set: 64 HALVES rows. */
template <int HALVES> static __device__ Spot spot_of(const Chain &c, int set, int rank) {
    const int whole = c.group * c.sets_each, group = set / whole, first = group * c.group;
    const int size = min(c.group, c.n - first);
    int left = set - group * whole;
    Spot s;
    s.phase = 0;
    while (left >= size * c.phase[s.phase].sets) left -= size * c.phase[s.phase++].sets;
    const Phase &p = c.phase[s.phase];
    s.matrix = first + left / p.sets;
    left %= p.sets;
    if (p.symmetric) {
        const int own = c.cover[left][rank];
        s.real = own != NOBODY;
        s.row = (s.real ? own : c.cover[left][0]) * HALVES * BOX;
        s.column = c.cover[left][CLUSTER] * TILE;
    } else {
        s.row = (left / p.across * CLUSTER + rank) * HALVES * BOX;
        s.column = left % p.across * TILE;
        s.real = s.row < c.r;
    }
    return s;
}

/* Whether a tile of a symmetric result has a mirror image elsewhere. */
static __device__ __forceinline__ bool is_mirrored(const Phase &p, const Spot &s) {
    return p.symmetric && s.row / TILE != s.column / TILE;
}

static __device__ __forceinline__ int stages_of(const Phase &p) {
    return p.terms * (p.depth / DEPTH);
}

/* ---- order between tiles -------------------------------------------------------------------- */

/* Whether the tile's operands are there, which the copy engine may read then. */
static __device__ __forceinline__ bool is_ready(const Chain &c, const Spot &s) {
    if (s.phase == 0) return true;
    const int *done = c.done + (s.phase - 1) * c.n + s.matrix;
    int count;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(done) : "memory");
    if (count < c.phase[s.phase - 1].tiles) return false;
    asm volatile("fence.proxy.async;" ::: "memory");
    return true;
}

/* After the copy engine has written all of this thread's boxes. */
static __device__ __forceinline__ void done_add(int *done) {
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(done) : "memory");
}

/* ---- copies --------------------------------------------------------------------------------- */

static __device__ __forceinline__ void box_store(const CUtensorMap *map, int x, int y,
                                                 Shared from) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(from)
        : "memory");
}
static __device__ __forceinline__ void boxes_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Shared memory may be written again. */
static __device__ __forceinline__ void boxes_wait_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
static __device__ __forceinline__ void boxes_wait(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Addresses of shared memory. Barriers of a stage: full, empty. Of each maker: `turn`, the other
 * one has waited for all its stages; `loaded`, the staging tile holds s; `staged`, it holds a
 * result; `taken`, that result has been read. */
typedef struct Ring {
    Shared data, staging, full, empty, turn, loaded, staged, taken;
} Ring;

/* The blocks of a cluster have the same tile column: each fetches half of b for both. The next tile
 * is looked up while stages are in flight. */
template <int HALVES> static __device__ void copier_run(const Ring &r, const Chain &c, int rank) {
    const int step = gridDim.x / CLUSTER;
    int slot = 0, set = blockIdx.x / CLUSTER;
    Spot s = spot_of<HALVES>(c, set, rank), next = s;
    bool ready = false;
    for (; set < c.sets; set += step, s = next) {
        const Phase &p = c.phase[s.phase];
        const int y = s.matrix * c.r, per_term = p.depth / DEPTH, stages = stages_of(p);
        while (!ready) ready = is_ready(c, s);
        ready = false;
        for (int i = 0; i < stages; i++, slot++) {
            if (i == stages / 2 && set + step < c.sets) next = spot_of<HALVES>(c, set + step, rank);
            if (i == stages - 1 && set + step < c.sets) ready = is_ready(c, next);
            const int stage = slot % STAGES, term = i >= per_term;
            const int k = (i - term * per_term) * DEPTH;
            const CUtensorMap *a = &c.map[p.a[term]], *b = &c.map[p.b[term]];
            const Shared full = r.full + 8 * stage, to = r.data + stage * STAGE_BYTES;
            barrier_wait(r.empty + 8 * stage, slot / STAGES & 1 ^ 1);
            barrier_expect(full, (HALVES + 2) * TILE_BYTES);
#pragma unroll
            for (int j = 0; j < HALVES; j++)
                box_fetch(to + j * TILE_BYTES, a, k, y + s.row + j * BOX, full);
            const int column = s.column + rank * BOX;
            box_fetch_all(to + (2 + rank) * TILE_BYTES, b, p.turned ? column : k,
                          p.turned ? y + k : y + column, full, 3);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------- */

#define D8(i)                                                                                      \
    "%" #i "0, %" #i "1, %" #i "2, %" #i "3, %" #i "4, %" #i "5, %" #i "6, %" #i "7, %" #i         \
    "8, %" #i "9, "
#define LOW                                                                                        \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " D8(1) D8(2) D8(3) D8(4) D8(5) "%60, %61, %62, "    \
                                                                              "%63}"
#define HIGH                                                                                       \
    "{%64, %65, %66, %67, %68, %69, " D8(7) D8(8) D8(9) D8(10) D8(11) "%120, %121, %122, %123, "   \
                                                                      "%124, %125, %126, %127}"
#define ONE(p, turned)                                                                             \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LOW ", a0, b0, " p                    \
    ", 1, 1, 0, " turned ";\n"
/* 16 k of both halves; `step`: from one 16 k of b to the next, in units of 16 bytes. */
#define PAIR(p, turned)                                                                            \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " LOW ", a0, b0, " p                    \
    ", 1, 1, 0, " turned ";\n"                                                                     \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " HIGH ", a1, b0, " p                   \
    ", 1, 1, 0, " turned ";\n"
#define NEXT(step)     "add.s64 a0, a0, 2;\nadd.s64 a1, a1, 2;\nadd.s64 b0, b0, " step ";\n"
#define NEXT_ONE(step) "add.s64 a0, a0, 2;\nadd.s64 b0, b0, " step ";\n"
#define STAGE_ONE(step, turned)                                                                    \
    "wgmma.fence.sync.aligned;\n" ONE("keep", turned) NEXT_ONE(step) ONE("1", turned)              \
        NEXT_ONE(step) ONE("1", turned) NEXT_ONE(step)                                             \
            ONE("1", turned) "wgmma.commit_group.sync.aligned;\n"
#define STAGE(step, turned)                                                                        \
    "wgmma.fence.sync.aligned;\n" PAIR("keep", turned) NEXT(step) PAIR("1", turned) NEXT(step)     \
        PAIR("1", turned) NEXT(step) PAIR("1", turned) "wgmma.commit_group.sync.aligned;\n"
#define EIGHT(h, i)                                                                                \
    "+f"(sum[h][i]), "+f"(sum[h][i + 1]), "+f"(sum[h][i + 2]), "+f"(sum[h][i + 3]),                \
        "+f"(sum[h][i + 4]), "+f"(sum[h][i + 5]), "+f"(sum[h][i + 6]), "+f"(sum[h][i + 7])
#define ALL(h)                                                                                     \
    EIGHT(h, 0), EIGHT(h, 8), EIGHT(h, 16), EIGHT(h, 24), EIGHT(h, 32), EIGHT(h, 40),              \
        EIGHT(h, 48), EIGHT(h, 56)

/* The products of a stage, both ways that b may lie in one statement: a choice in C would join two
 * sets of accumulators afterwards, and the compiler would wait for each product. */
static __device__ __forceinline__ void stage_multiply(float (&sum)[2][64], uint64_t a0, uint64_t a1,
                                                      uint64_t b, int keep, int turned) {
    asm volatile("{\n.reg .pred keep, turned;\n.reg .b64 a0, a1, b0;\n"
                 "setp.ne.b32 keep, %131, 0;\nsetp.ne.b32 turned, %132, 0;\n"
                 "mov.b64 a0, %128;\nmov.b64 a1, %129;\nmov.b64 b0, %130;\n"
                 "@turned bra.uni turned_over;\n" STAGE("2", "0") "bra over;\n"
                                                                  "turned_over:\n" STAGE(
                                                                      "128", "1") "over:\n}\n"
                 : ALL(0), ALL(1)
                 : "l"(a0), "l"(a1), "l"(b), "r"(keep), "r"(turned));
}

static __device__ __forceinline__ void stage_multiply(float (&sum)[1][64], uint64_t a, uint64_t,
                                                      uint64_t b, int keep, int turned) {
    asm volatile("{\n.reg .pred keep, turned;\n.reg .b64 a0, b0;\n"
                 "setp.ne.b32 keep, %66, 0;\nsetp.ne.b32 turned, %67, 0;\n"
                 "mov.b64 a0, %64;\nmov.b64 b0, %65;\n"
                 "@turned bra.uni turned_over;\n" STAGE_ONE("2", "0") "bra over;\n"
                                                                      "turned_over:\n" STAGE_ONE(
                                                                          "128", "1") "over:\n}\n"
                 : ALL(0)
                 : "l"(a), "l"(b), "r"(keep), "r"(turned));
}

/* sum[half]: rows 64 half to 64 half + 63 of the tile. Barriers of stages tell odd rounds from even
 * ones, no more, so a maker begins to wait for its stages when the other one has no more to wait
 * for. */
template <int HALVES>
static __device__ __forceinline__ void tile_multiply(float (&sum)[HALVES][64], const Ring &r,
                                                     int slot, int stages, int turned,
                                                     Shared other) {
    const int lane = threadIdx.x & 31;
    Shared before = 0;
    for (int i = 0; i < stages; i++, slot++) {
        const int stage = slot % STAGES;
        const Shared at = r.data + stage * STAGE_BYTES, b_at = at + 2 * TILE_BYTES;
        barrier_wait(r.full + 8 * stage, slot / STAGES & 1);
        stage_multiply(sum, operand_straight(at), operand_straight(at + TILE_BYTES),
                       turned ? operand_turned(b_at) : operand_straight(b_at), i > 0, turned);
        wgmma_wait<1>(); /* the stage before has been read */
        if (before && lane < CLUSTER) barrier_arrive_at(before, lane);
        before = r.empty + 8 * stage;
    }
    if (lane == 0) barrier_arrive(other);
    wgmma_wait<0>();
    if (lane < CLUSTER) barrier_arrive_at(before, lane);
}

/* ---- results -------------------------------------------------------------------------------- */

/* Accumulators 4 j + 2 e and the next one of half h are row 64 h + 16 warp + 8 e + lane / 4 and
 * columns 8 j + 2 (lane % 4) and the next one. */

/* Part of the matrix of half h and group j of 8 columns, as an offset of the first element;
 * negative beyond the matrix, which ends where 64 rows or columns end. */
static __device__ __forceinline__ int64_t part_at(const Chain &c, const Phase &p, const Spot &s,
                                                  int h, int j) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int row = s.row + h * BOX, column = s.column + 8 * j;
    if (row >= c.r || s.column + j / 8 * BOX >= p.columns) return -1;
    return ((int64_t)s.matrix * c.r + row + first) * p.columns + column + lane % 4 * 2;
}

/* sum <- alpha sum + kappa carry */
template <int HALVES>
static __device__ __forceinline__ void tile_carry(float (&sum)[HALVES][64], const Chain &c,
                                                  const Phase &p, const Spot &s, float alpha,
                                                  float kappa) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t at = part_at(c, p, s, h, j);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *v = &sum[h][4 * j + 2 * e];
                float2 old = make_float2(0.0f, 0.0f);
                if (at >= 0) /* past the first-level cache, which knows nothing of other blocks */
                    old =
                        __ldcg(reinterpret_cast<const float2 *>(p.carry + at + 8 * e * p.columns));
                v[0] = alpha * v[0] + kappa * old.x;
                v[1] = alpha * v[1] + kappa * old.y;
            }
        }
    }
}

template <int HALVES>
static __device__ __forceinline__ void tile_scale(float (&sum)[HALVES][64], float alpha) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 64; i++) sum[h][i] *= alpha;
    }
}

/* sum <- sum + gamma I; `down`: the tile's first row, seen from the row of its first column. */
template <int HALVES>
static __device__ __forceinline__ void tile_identity(float (&sum)[HALVES][64], int down,
                                                     float gamma) {
    const int lane = threadIdx.x & 31, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 64; i++) {
            const int row = down + h * BOX + first + (i & 2) * 4;
            if (row == i / 4 * 8 + lane % 4 * 2 + (i & 1)) sum[h][i] += gamma;
        }
    }
}

template <int HALVES>
static __device__ __forceinline__ void tile_put_wide(const float (&sum)[HALVES][64], const Chain &c,
                                                     const Phase &p, const Spot &s) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t at = part_at(c, p, s, h, j);
            if (at < 0) continue;
#pragma unroll
            for (int e = 0; e < 2; e++)
                *reinterpret_cast<float2 *>(p.wide + at + 8 * e * p.columns) =
                    make_float2(sum[h][4 * j + 2 * e], sum[h][4 * j + 2 * e + 1]);
        }
    }
}

/* Eight neighbouring elements of the staging tile, four boxes of 64 x 64. */
static __device__ __forceinline__ Shared staging_at(Shared staging, int row, int column) {
    const Shared box = staging + ((row >> 6) * 2 + (column >> 6)) * TILE_BYTES;
    return tile_at(box, row & 63, column >> 3 & 7);
}

/* sum <- sum + beta s, s from the staging tile: each warp reads the part that it writes later. */
template <int HALVES>
static __device__ __forceinline__ void tile_add(float (&sum)[HALVES][64], Shared staging,
                                                float beta) {
    const int l = threadIdx.x & 31, row0 = threadIdx.x / 32 % 4 * 16;
    const int below = (l >> 3 & 1) * 8, right = (l >> 4) * 8, line = l & 7;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t f[4];
            matrix_get(f, staging_at(staging, h * 64 + row0 + below + line, 16 * i + right));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum[h][8 * i + 2 * k] += beta * low_of(f[k]);
                sum[h][8 * i + 2 * k + 1] += beta * high_of(f[k]);
            }
        }
    }
}

/* Rounds the warp's part into the staging tile, as it is or mirrored. */
template <bool MIRRORED, int HALVES>
static __device__ __forceinline__ void tile_stage(const float (&sum)[HALVES][64], Shared staging) {
    const int l = threadIdx.x & 31, row0 = threadIdx.x / 32 % 4 * 16;
    const int below = (l >> 3 & 1) * 8, right = (l >> 4) * 8, line = l & 7;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *v = &sum[h][8 * i];
            const uint32_t f0 = pack2(v[0], v[1]), f1 = pack2(v[2], v[3]);
            const uint32_t f2 = pack2(v[4], v[5]), f3 = pack2(v[6], v[7]);
            if (MIRRORED) {
                const Shared at = staging_at(staging, 16 * i + right + line, h * 64 + row0 + below);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                    "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                    : "memory");
            } else {
                const Shared at = staging_at(staging, h * 64 + row0 + below + line, 16 * i + right);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                    "r"(f0), "r"(f1), "r"(f2), "r"(f3)
                    : "memory");
            }
        }
    }
}

/* down x right boxes of the staging tile, those that lie in the matrix, to rows from `row`, columns
 * from `column`. */
static __device__ __forceinline__ void staging_store(const CUtensorMap *map, Shared staging,
                                                     int down, int right, int y, int row,
                                                     int column, int rows, int columns) {
    for (int i = 0; i < down; i++)
        for (int j = 0; j < right; j++)
            if (row + i * BOX < rows && column + j * BOX < columns)
                box_store(map, column + j * BOX, y + row + i * BOX,
                          staging + (2 * i + j) * TILE_BYTES);
    boxes_commit();
}

/* Writes the tiles of a maker, and before that brings what is added to them. */
template <int HALVES>
static __device__ void writer_run(const Ring &r, const Chain &c, int rank, int which) {
    const Shared staging = r.staging + which * STAGE_BYTES, loaded = r.loaded + 8 * which;
    const Shared staged = r.staged + 8 * which, taken = r.taken + 8 * which;
    const int clusters = gridDim.x / CLUSTER;
    int passes = 0;
    for (int set = blockIdx.x / CLUSTER + which * clusters; set < c.sets; set += 2 * clusters) {
        const Spot s = spot_of<HALVES>(c, set, rank);
        const Phase &p = c.phase[s.phase];
        const int y = s.matrix * c.r;
        if (!s.real) continue;
        if (p.s != NOBODY) {
            while (!is_ready(c, s)) continue;
            barrier_expect(loaded, 2 * HALVES * TILE_BYTES);
            for (int i = 0; i < 2 * HALVES; i++)
                box_fetch(staging + i * TILE_BYTES, &c.map[p.s], s.column + i % 2 * BOX,
                          y + s.row + i / 2 * BOX, loaded);
        }
        barrier_wait(staged, passes++ & 1);
        if (p.out != NOBODY)
            staging_store(&c.map[p.out], staging, HALVES, 2, y, s.row, s.column, c.r, p.columns);
        boxes_wait_read();
        barrier_arrive(taken);
        if (is_mirrored(p, s)) {
            barrier_wait(staged, passes++ & 1);
            staging_store(&c.map[p.out], staging, 2, HALVES, y, s.column, s.row, c.r, p.columns);
            boxes_wait_read();
            barrier_arrive(taken);
        }
        boxes_wait();
        done_add(c.done + s.phase * c.n + s.matrix);
    }
}

/* The staging tile is the copy engine's, to read and to write. */
static __device__ __forceinline__ void staging_pass(Shared staged) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_arrive(staged);
}

/* What a maker has seen of the barriers between it and its writer. */
typedef struct Seen {
    int passes, loads;
} Seen;

template <int HALVES>
static __device__ __forceinline__ void tile_finish(float (&sum)[HALVES][64], const Ring &r,
                                                   const Chain &c, const Spot &s, int which,
                                                   Seen &seen) {
    const Phase &p = c.phase[s.phase];
    const Shared staging = r.staging + which * STAGE_BYTES;
    const Shared staged = r.staged + 8 * which, taken = r.taken + 8 * which;
    float rate = p.power > 0 ? c.rates[s.matrix] : 1.0f;
    if (p.power == 2) rate *= rate;
    if (p.carry)
        tile_carry(sum, c, p, s, rate * p.alpha, rate * p.kappa);
    else
        tile_scale(sum, rate * p.alpha);
    barrier_wait(taken, seen.passes++ & 1 ^ 1);
    if (p.s != NOBODY) {
        barrier_wait(r.loaded + 8 * which, seen.loads++ & 1);
        tile_add(sum, staging, rate * p.beta);
    }
    if (p.gamma != 0.0f && s.row / TILE == s.column / TILE)
        tile_identity(sum, s.row - s.column, rate * p.gamma);
    if (p.wide) tile_put_wide(sum, c, p, s);
    if (p.out != NOBODY) tile_stage<false, HALVES>(sum, staging);
    staging_pass(staged);
    if (!is_mirrored(p, s)) return;
    barrier_wait(taken, seen.passes++ & 1 ^ 1);
    tile_stage<true, HALVES>(sum, staging);
    staging_pass(staged);
}

template <int HALVES>
static __device__ __forceinline__ void maker_run(const Ring &r, const Chain &c, int rank,
                                                 int which) {
    int slot = 0, turn = 0, round = which ^ 1;
    Seen seen = {0, 0};
    for (int set = blockIdx.x / CLUSTER; set < c.sets; set += gridDim.x / CLUSTER, turn ^= 1) {
        const Spot s = spot_of<HALVES>(c, set, rank);
        const Phase &p = c.phase[s.phase];
        const int stages = stages_of(p);
        if (turn == which) {
            float sum[HALVES][64];
            barrier_wait(r.turn + 8 * which, round);
            tile_multiply<HALVES>(sum, r, slot, stages, p.turned, r.turn + 8 * (which ^ 1));
            round ^= 1;
            if (s.real) tile_finish(sum, r, c, s, which, seen);
        }
        slot += stages;
    }
}

template <int HALVES> static __device__ __forceinline__ Ring ring_init(Shared memory) {
    Ring r;
    r.data = (memory + 1023) & ~1023u;
    r.staging = r.data + STAGES * STAGE_BYTES;
    r.full = r.staging + 2 * STAGE_BYTES;
    r.empty = r.full + 8 * STAGES;
    r.turn = r.empty + 8 * STAGES;
    r.loaded = r.turn + 16, r.staged = r.loaded + 16, r.taken = r.staged + 16;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            barrier_init(r.turn + 8 * i, 4); /* a maker's warps */
            barrier_init(r.loaded + 8 * i, 1);
            barrier_init(r.staged + 8 * i, 128);
            barrier_init(r.taken + 8 * i, 1);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4 * CLUSTER); /* the warps of the makers at it */
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    return r;
}

#endif

template <int HALVES>
__global__ void __launch_bounds__(THREADS, 1) chain_kernel(const __grid_constant__ Chain c) {
#if HAVE_SM90A
    extern __shared__ char memory[];
    const Ring r = ring_init<HALVES>(shared_address(memory));
    const int role = threadIdx.x / 128, rank = cluster_rank();
    if (role == 0) {
        registers_down<56>();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x == 0) {
            copier_run<HALVES>(r, c, rank);
        } else if (threadIdx.x % 32 == 0 && warp < 3) {
            writer_run<HALVES>(r, c, rank, warp - 1);
        }
    } else {
        registers_up<224>();
        maker_run<HALVES>(r, c, rank, role - 1);
    }
    __syncwarp();
    cluster_sync(); /* no block ends while the other may still write to it */
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int HALVES> static Status launch(Device *d, const Chain *c) {
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int most = 0;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.blockDim = dim3(THREADS);
    config.gridDim = dim3((unsigned)(backend_of(d)->sm_count / CLUSTER * CLUSTER));
    config.dynamicSmemBytes = SHARED;
    config.stream = stream_of(d);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUDA_TRY(cudaFuncSetAttribute(chain_kernel<HALVES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED),
             "newton_schulz");
    CUDA_TRY(cudaOccupancyMaxActiveClusters(&most, chain_kernel<HALVES>, &config), "newton_schulz");
    if (most > backend_of(d)->sm_count / CLUSTER) most = backend_of(d)->sm_count / CLUSTER;
    if (most < 1) return status_set(STATUS_DEVICE, "newton_schulz: no room for a cluster");
    if (most > c->sets) most = c->sets;
    config.gridDim = dim3((unsigned)(most * CLUSTER));
    CUDA_TRY(cudaLaunchKernelEx(&config, chain_kernel<HALVES>, *c), "newton_schulz");
    return STATUS_OK;
}

Status chain_launch(Device *d, const Chain *c, int halves) {
    return halves == 2 ? launch<2>(d, c) : launch<1>(d, c);
}
