/* Factor and inverse of slot token_basis on Hopper, from the Gram matrix.
 *
 * Blocks of a cluster share a matrix, a warp has two strips of 16 rows of it. Column after column
 * of 64: strips below the diagonal take what stands in S less the products of the columns before,
 * are multiplied by the inverse of the diagonal block and are rows of R; strips above are columns
 * of the inverse, which obey the same recurrence from zero. With Y_t the inverse of R_tt, X = R^-1'
 * and sums over the block columns k before t:
 *
 *   R_it = (S_it - sum R_ik R_tk') Y_t'
 *   X_jt = -(sum X_jk R_tk') Y_t'
 *
 * So each warp does one thing, and all read row t of R from shared memory.
 *
 * Four more warps factor the diagonal block, in every block of the cluster for itself. Meanwhile
 * the others sum the next column as far as it is known, so that only its last product is left when
 * the diagonal is done; row t + 1 of that product goes from block to block directly. Warps that
 * hand something on arrive at an mbarrier: a cluster's own barrier would cost a fence of the whole
 * card for every thread.
 *
 * S is scaled by its diagonal to SCALE^2 there, so that FP16 holds every number (parts.cuh). A
 * strip's block of S becomes its block of R or X, in the same place.
 */
#include "kernels/cuda/token_basis.cuh"
#include "kernels/cuda/token_basis_block.cuh"
#include "kernels/cuda/token_basis_parts.cuh"

#define SCALE       16.0f
#define LEAST       (0.5f * TOKEN_SHIFT * SCALE * SCALE)
#define SMALLEST    (2.0f * TOKEN_LEAST * TOKEN_LEAST / TOKEN_SHIFT) /* diagonal: the same pivot */
#define WARPS       8
#define PAIR        2            /* strips of a warp */
#define OWNERS      (32 * WARPS) /* threads that have strips */
#define THREADS     (OWNERS + WORKERS)
#define HELD        6 /* known blocks of row t in shared memory at a time; one more: the last */
#define STRIP_BYTES (IMAGE * 16)
#define ROW_BYTES   ((HELD + 1) * 4 * STRIP_BYTES)
#define SPACE_AT    (ROW_BYTES + 4 * STRIP_BYTES)
#define BARRIERS_AT (SPACE_AT + 2 * (int)sizeof(BlockSpace))
#define STAGED_AT   (BARRIERS_AT + 64) /* of a warp: what goes to memory in whole rows */
#define STAGE_BYTES 2048
#define RATES_AT    (STAGED_AT + WARPS * STAGE_BYTES)

typedef struct FactorArgs {
    bf16 *r, *inv, *rest;
    uint4 *s; /* [matrix][strip][block][IMAGE]: S, then parts */
    int n;
} FactorArgs;

static __host__ __device__ int cluster_size(int n) {
    return n <= 512 ? 2 : 4;
}

#if HAVE_SM90A

/* What a warp knows of its strip, and of the block's memory. */
typedef struct Strip {
    int at, row, block; /* first strip, its first row, its block of rows */
    bool has;
    uint4 *all, *own[PAIR]; /* images: of the matrix; of the strips, this lane's chunk */
    float *rates;           /* [n] what rows and columns of S are multiplied by */
    uint4 *shared;          /* row t of R, then Y_t: images [block][strip of four] */
    uint4 *y;
    BlockSpace *space; /* two, by turns */
    Shared staged;
    Shared diagonal; /* two barriers: C of column t is here */
    Shared last;     /* its parts of row t + 1 are */
    Shared stored;   /* the cluster's parts of column t are in memory */
    Shared free;     /* all warps of the cluster are done with column t's shared memory */
    int64_t matrix;  /* n n elements */
} Strip;

/* A strip's block as an operand. */
typedef struct Parts {
    uint4 high[4], low[4];
} Parts;

/* Element (i, i) of S lies in the fragment of one lane. */
static __device__ __forceinline__ void strip_rates(const FactorArgs &a, const Strip &w) {
    const float *s = (const float *)w.all;
    for (int i = threadIdx.x; i < a.n; i += THREADS) {
        const int64_t image = (int64_t)(i / STRIP) * (a.n / SIDE) + i / SIDE;
        const int column = i % SIDE, lane = 4 * (i % 8) + column % 8 / 2;
        const int at = (column / 8 * 32 + lane) * 4 + i % STRIP / 8 * 2 + column % 2;
        w.rates[i] = SCALE * rsqrtf(fmaxf(s[image * IMAGE * 4 + at], SMALLEST));
    }
}

/* sum = -S, or 0 above the diagonal. */
static __device__ __forceinline__ void strip_begin(Sums &sum, const Strip &w, int p, int t) {
    const int lane = threadIdx.x & 31, row = w.row + STRIP * p + lane / 4;
    const int column = SIDE * t + 2 * (lane & 3);
    const float4 *s = (const float4 *)w.own[p] + t * IMAGE;
    const bool real = w.block >= t;
    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = real ? s[32 * i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float up = -w.rates[row], down = -w.rates[row + 8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 rate = *(const float2 *)(w.rates + column + 8 * i);
        sum[i][0] = v[i].x * (up * rate.x), sum[i][1] = v[i].y * (up * rate.y);
        sum[i][2] = v[i].z * (down * rate.x), sum[i][3] = v[i].w * (down * rate.y);
    }
    if (w.block != t) return;
#pragma unroll
    for (int i = 0; i < 8; i++) { /* the shift, where row and column are the same */
        const int at = row - column - 8 * i;
        if (at == 0) sum[i][0] *= 1.0f + TOKEN_SHIFT;
        if (at == 1) sum[i][1] *= 1.0f + TOKEN_SHIFT;
        if (at == -8) sum[i][2] *= 1.0f + TOKEN_SHIFT;
        if (at == -7) sum[i][3] *= 1.0f + TOKEN_SHIFT;
    }
}

/* Blocks k0 to k0 + many - 1 of row t into shared memory, by the owners. */
static __device__ __forceinline__ void row_fetch(const FactorArgs &a, const Strip &w, int t, int k0,
                                                 int many) {
    const int blocks = a.n / SIDE;
    const uint4 *from = w.all + (4 * t * blocks + k0) * IMAGE;
    const Shared to = shared_address(w.shared);
    const int strip = threadIdx.x / (OWNERS / 4), first = threadIdx.x % (OWNERS / 4);
    for (int i = first; i < many * IMAGE; i += OWNERS / 4)
        copy_chunk(to + 16 * ((i / IMAGE * 4 + strip) * IMAGE + i % IMAGE),
                   from + (int64_t)strip * blocks * IMAGE + i, true);
    copies_commit();
}

/* sum += tiles of the strips times those of row t at b, turned. */
static __device__ __forceinline__ void tiles_add(Sums (&sum)[PAIR], const uint4 (&high)[PAIR],
                                                 const uint4 (&low)[PAIR], const uint4 *b) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float(*const to[PAIR])[4] = {sum[0] + 2 * j, sum[1] + 2 * j};
        tiles_multiply<PAIR, 1, IMAGE>(to, high, low, b + j * IMAGE);
    }
}
static __device__ __forceinline__ const uint4 *row_block(const Strip &w, int place) {
    return w.shared + place * 4 * IMAGE + (threadIdx.x & 31);
}

/* A tile of both strips as operands. */
typedef struct Tiles {
    uint4 high[PAIR], low[PAIR];
} Tiles;

static __device__ __forceinline__ Tiles tiles_load(const Strip &w, int k, int i) {
    Tiles v;
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
        v.high[p] = chunk_turn(w.own[p][k * IMAGE + 32 * i]);
        v.low[p] = chunk_turn(w.own[p][k * IMAGE + LOW + 32 * i]);
    }
    return v;
}

/* Blocks first to end - 1 of the strips times those of row t, of which `place` is the first; each
 * tile is on its way while the one before is multiplied. */
static __device__ __forceinline__ void strips_add(Sums (&sum)[PAIR], const Strip &w, int first,
                                                  int end, int place) {
    const uint4 *b = row_block(w, place);
    Tiles now[2];
    if (first < end) now[0] = tiles_load(w, first, 0);
#pragma unroll 1
    for (int k = first; k < end; k++, b += 4 * IMAGE) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i < 3)
                now[(i + 1) & 1] = tiles_load(w, k, i + 1);
            else if (k + 1 < end)
                now[0] = tiles_load(w, k + 1, 0);
            tiles_add(sum, now[i & 1].high, now[i & 1].low, b + 32 * i);
        }
    }
}

/* Column t as far as columns before t - 1 go; the first of row t are on their way. */
static __device__ __forceinline__ void strips_sum(Sums (&sum)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t) {
    const int begin = w.block < t ? w.block : 0;
#pragma unroll
    for (int p = 0; p < PAIR; p++)
        if (w.has) strip_begin(sum[p], w, p, t);
    for (int k0 = 0; k0 < t - 1; k0 += HELD) {
        const int end = k0 + HELD < t - 1 ? k0 + HELD : t - 1;
        if (k0 > 0) {
            meet(2, OWNERS);
            row_fetch(a, w, t, k0, end - k0);
        }
        copies_wait<0>();
        meet(2, OWNERS);
        if (!w.has) continue;
        const int first = begin > k0 ? begin : k0;
        strips_add(sum, w, first, end, first - k0);
    }
}

static __device__ __forceinline__ Shared there(Shared at, int rank) {
    Shared remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
    return remote;
}

/* What the warp's lanes stored in the cluster's memory comes before its arrival at a barrier of all
 * blocks. */
static __device__ __forceinline__ void shared_arrive(Shared barrier, int size) {
    __syncwarp();
    if ((threadIdx.x & 31) > 0) return;
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
#pragma unroll 1
    for (int rank = 0; rank < size; rank++)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         there(barrier, rank))
                     : "memory");
}

/* C of the diagonal block into the memory of all blocks of the cluster. */
static __device__ __forceinline__ void diagonal_share(const Sums (&sum)[PAIR], const Strip &w,
                                                      int t, int size) {
    const int lane = threadIdx.x & 31, row = (w.at & 3) * STRIP + lane / 4;
    const Shared to = shared_address(w.space[t & 1].c + row * PITCH + 2 * (lane & 3));
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 16 * PAIR; i++) {
            const float *v = sum[i / 16][i % 16 / 2] + 2 * (i & 1);
            asm volatile(
                "st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(
                    remote + 4 * ((STRIP * (i / 16) + 8 * (i & 1)) * PITCH + 8 * (i % 16 / 2))),
                "f"(-v[0]), "f"(-v[1])
                : "memory");
        }
    }
    shared_arrive(w.diagonal + 8 * (t & 1), size);
}

/* The strips' block of row t + 1 likewise. */
static __device__ __forceinline__ void last_share(const Parts (&v)[PAIR], const Strip &w,
                                                  int size) {
    const Shared to = shared_address(row_block(w, HELD) + (w.at & 3) * IMAGE);
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) {
        const Shared remote = there(to, rank);
#pragma unroll
        for (int i = 0; i < 8 * PAIR; i++) {
            const Parts &p = v[i / 8];
            const uint4 o = chunk_turn(i % 8 < 4 ? p.high[i & 3] : p.low[i & 3]);
            asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                             remote + STRIP_BYTES * (i / 8) + 512 * (i % 8)),
                         "r"(o.x), "r"(o.y), "r"(o.z), "r"(o.w)
                         : "memory");
        }
    }
    shared_arrive(w.last, size);
}

/* Y_t as images of B, by the owners. */
static __device__ __forceinline__ void inverse_image(const Strip &w, int t) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = threadIdx.x / 32; i < 16; i += WARPS) {
        const int tile = i & 3, strip = i / 4;
        const float *y =
            w.space[t & 1].y + (STRIP * strip + lane / 4) * PITCH + 16 * tile + 2 * (lane & 3);
        uint4 high, low;
        parts_of(high.x, low.x, y[0], y[1]);
        parts_of(high.y, low.y, y[8 * PITCH], y[8 * PITCH + 1]);
        parts_of(high.z, low.z, y[8], y[9]);
        parts_of(high.w, low.w, y[8 * PITCH + 8], y[8 * PITCH + 9]);
        w.y[strip * IMAGE + 32 * tile + lane] = chunk_turn(high);
        w.y[strip * IMAGE + LOW + 32 * tile + lane] = chunk_turn(low);
    }
}

/* The strip of a diagonal block: its rows of Y_t'. */
static __device__ __forceinline__ void diagonal_parts(Parts &p, const Strip &w, int strip, int t) {
    const int lane = threadIdx.x & 31, base = ((w.at + strip) & 3) * STRIP;
    const float *y = w.space[t & 1].y + 2 * (lane & 3) * PITCH + base + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *k = y + 16 * i * PITCH;
        parts_of(p.high[i].x, p.low[i].x, k[0], k[PITCH]);
        parts_of(p.high[i].y, p.low[i].y, k[8], k[PITCH + 8]);
        parts_of(p.high[i].z, p.low[i].z, k[8 * PITCH], k[9 * PITCH]);
        parts_of(p.high[i].w, p.low[i].w, k[8 * PITCH + 8], k[9 * PITCH + 8]);
    }
}

/* The warp's rows of the diagonal block of r, inv and rest. */
static __device__ __forceinline__ void diagonal_put(const FactorArgs &a, const Strip &w, int t) {
    const int lane = threadIdx.x & 31, base = (w.at & 3) * STRIP;
    const float *y = w.space[t & 1].y + 2 * lane, *c = w.space[t & 1].c + 2 * lane;
    const float *rates = w.rates + SIDE * t;
    const float2 right = *(const float2 *)(rates + 2 * lane);
#pragma unroll 2
    for (int i = base; i < base + PAIR * STRIP; i++) {
        const int64_t at = w.matrix + (SIDE * t + i) * a.n + SIDE * t + 2 * lane;
        const float2 f = *(const float2 *)(c + i * PITCH), v = *(const float2 *)(y + i * PITCH);
        const float back = 1.0f / rates[i], v0 = v.x * right.x, v1 = v.y * right.y;
        const uint32_t high = pack2(v0, v1);
        *(uint32_t *)(a.r + at) = pack2(f.x * back, f.y * back);
        *(uint32_t *)(a.inv + at) = high;
        *(uint32_t *)(a.rest + at) = pack2(v0 - low_of(high), v1 - high_of(high));
    }
}

/* v = -sum Y_t', 16 columns at a time from the last ones on: those need all parts of the sum. */
static __device__ __forceinline__ void strips_turn(Parts (&v)[PAIR], const Sums (&sum)[PAIR],
                                                   const Strip &w, int t) {
    const uint4 *y = w.y + (threadIdx.x & 31);
#pragma unroll
    for (int p = 0; p < PAIR; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile_parts(v[p].high[i], v[p].low[i], sum[p][2 * i], sum[p][2 * i + 1], -1.0f);
#pragma unroll
    for (int j = 3; j >= 0; j--) {
        float out[PAIR][2][4] = {};
        float(*const to[PAIR])[4] = {out[0], out[1]};
#pragma unroll
        for (int i = 0; i <= j; i++) {
            const uint4 high[PAIR] = {v[0].high[i], v[1].high[i]},
                        low[PAIR] = {v[0].low[i], v[1].low[i]};
            tiles_multiply<PAIR, 1, IMAGE>(to, high, low, y + j * IMAGE + 32 * i);
        }
        float2 left = make_float2(1.0f, 1.0f), right = left;
        if (w.block > t) { /* R has nothing below a pivot that was held */
            const float *kept = w.space[t & 1].kept + 16 * j + 2 * (threadIdx.x & 3);
            left = *(const float2 *)kept, right = *(const float2 *)(kept + 8);
        }
#pragma unroll
        for (int p = 0; p < PAIR; p++) {
            float(&a)[4] = out[p][0], (&b)[4] = out[p][1];
            a[0] *= left.x, a[1] *= left.y, a[2] *= left.x, a[3] *= left.y;
            b[0] *= right.x, b[1] *= right.y, b[2] *= right.x, b[3] *= right.y;
            tile_parts(v[p].high[j], v[p].low[j], a, b, 1.0f);
        }
    }
}

/* rate x two values. */
static __device__ __forceinline__ float2 whole(uint32_t high, uint32_t low, float rate) {
    const float2 h = __half22float2(*reinterpret_cast<const __half2 *>(&high)),
                 l = __half22float2(*reinterpret_cast<const __half2 *>(&low));
    return make_float2((h.x + l.x) * rate, (h.y + l.y) * rate);
}

static __device__ __forceinline__ void word_stage(Shared at, uint32_t v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

/* BF16 pairs of half a strip, as its parts lie, and what rounding took away. */
typedef struct Words {
    uint32_t high[8], rest[8];
} Words;

static __device__ __forceinline__ void word_make(Words &o, int i, uint32_t high, uint32_t low,
                                                 float rate) {
    const float2 v = whole(high, low, rate);
    o.high[i] = pack2(v.x, v.y);
    o.rest[i] = pack2(v.x - low_of(o.high[i]), v.y - high_of(o.high[i]));
}

static __device__ __forceinline__ void words_make(Words &o, const Parts &v, int half, float up,
                                                  float down) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint4 h = v.high[2 * half + j], l = v.low[2 * half + j];
        word_make(o, 4 * j, h.x, l.x, up);
        word_make(o, 4 * j + 1, h.y, l.y, down);
        word_make(o, 4 * j + 2, h.z, l.z, up);
        word_make(o, 4 * j + 3, h.w, l.w, down);
    }
}

/* 32 x 32 elements to memory through the warp's stage: half of both strips of R; or of X turned,
 * columns of the inverse. */
static __device__ __forceinline__ void square_put(bf16 *to, int n, Shared staged,
                                                  const uint32_t (&a)[8], const uint32_t (&b)[8],
                                                  bool turn) {
    const int lane = threadIdx.x & 31, r = lane / 4;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int p = i / 8, j = i % 8;
        uint32_t v = p == 0 ? a[j] : b[j];
        if (turn) v = turned(v);
        const int row = turn ? 8 * (j / 2) + r : 16 * p + 8 * (j & 1) + r;
        const int chunk = turn ? 2 * p + (j & 1) : j / 2;
        word_stage(staged + 64 * row + ((chunk ^ (row >> 1 & 3)) << 4) + 4 * (lane & 3), v);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 8 * i + r, chunk = lane & 3;
        *(uint4 *)(to + row * n + 8 * chunk) =
            shared_chunk(staged + 64 * row + ((chunk ^ (row >> 1 & 3)) << 4));
    }
    __syncwarp();
}

/* The strips' blocks of r, or of inv and rest. */
static __device__ __forceinline__ void strips_put(const Parts (&v)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t) {
    const bool turn = w.block < t;
    const float *rates = w.rates + w.row + (threadIdx.x & 31) / 4;
    float up[PAIR], down[PAIR];
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
        up[p] = rates[STRIP * p], down[p] = rates[STRIP * p + 8];
        if (!turn) up[p] = 1.0f / up[p], down[p] = 1.0f / down[p];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Words o[PAIR];
#pragma unroll
        for (int p = 0; p < PAIR; p++) words_make(o[p], v[p], half, up[p], down[p]);
        const int column = SIDE * t + 32 * half;
        const int64_t at = w.matrix + (turn ? column * a.n + w.row : w.row * a.n + column);
        square_put((turn ? a.inv : a.r) + at, a.n, w.staged, o[0].high, o[1].high, turn);
        if (turn) square_put(a.rest + at, a.n, w.staged, o[0].rest, o[1].rest, true);
    }
}

static __device__ __forceinline__ Strip strip_init(const FactorArgs &a, uint8_t *memory, int rank,
                                                   int size) {
    const int blocks = a.n / SIDE, g = blockIdx.x / size;
    Strip w;
    w.at = PAIR * (threadIdx.x / 32 * size + rank);
    w.has = threadIdx.x < OWNERS && w.at < a.n / STRIP;
    w.row = w.at * STRIP, w.block = w.at / 4;
    w.matrix = (int64_t)g * a.n * a.n;
    w.all = a.s + (int64_t)g * (a.n / STRIP) * blocks * IMAGE;
    for (int p = 0; p < PAIR; p++)
        w.own[p] = w.all + (w.at + p) * blocks * IMAGE + (threadIdx.x & 31);
    w.shared = (uint4 *)memory;
    w.y = (uint4 *)(memory + ROW_BYTES);
    w.space = (BlockSpace *)(memory + SPACE_AT);
    w.rates = (float *)(memory + RATES_AT);
    w.staged = shared_address(memory + STAGED_AT + threadIdx.x / 32 * STAGE_BYTES);
    w.diagonal = shared_address(memory + BARRIERS_AT);
    w.last = w.diagonal + 16, w.stored = w.last + 8, w.free = w.stored + 8;
    return w;
}

/* Column t is in memory: says one thread for all owners to all blocks. */
static __device__ __forceinline__ void column_stored(const Strip &w, int size) {
    meet(2, OWNERS);
    if (threadIdx.x > 0) return;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#pragma unroll 1
    for (int rank = 0; rank < size; rank++)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         there(w.stored, rank))
                     : "memory");
}

/* next += the last product, of column t. */
static __device__ __forceinline__ void last_add(Sums (&next)[PAIR], const Parts (&v)[PAIR],
                                                const Strip &w, int t, bool more, int size) {
    if (more) {

        barrier_wait(w.last, t & 1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 high[PAIR] = {v[0].high[i], v[1].high[i]},
                        low[PAIR] = {v[0].low[i], v[1].low[i]};
            tiles_add(next, high, low, row_block(w, HELD) + 32 * i);
        }
    }
    __syncwarp();
    if ((threadIdx.x & 31) > 0) return;
#pragma unroll 1
    for (int rank = 0; rank < size; rank++) barrier_arrive_at(w.free, rank);
}

/* Column t, whose sums are known: v = the strips' blocks of R or X. */
static __device__ __forceinline__ void column_turn(Parts (&v)[PAIR], const Sums (&sum)[PAIR],
                                                   const Strip &w, int t, int size) {
    meet(3, THREADS);
    inverse_image(w, t);
    meet(2, OWNERS);
    if (t > 0) barrier_wait(w.free, (t - 1) & 1);
    if (w.block == t) {
#pragma unroll
        for (int p = 0; p < PAIR; p++) diagonal_parts(v[p], w, p, t);
    } else {
        strips_turn(v, sum, w, t);
    }
    if (w.has && w.block == t + 1) last_share(v, w, size);
}

/* ... to memory. */
static __device__ __forceinline__ void column_put(const Parts (&v)[PAIR], const FactorArgs &a,
                                                  const Strip &w, int t, int size) {
#pragma unroll
    for (int p = 0; p < PAIR; p++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (!w.has) continue;
            w.own[p][t * IMAGE + 32 * i] = chunk_turn(v[p].high[i]);
            w.own[p][t * IMAGE + LOW + 32 * i] = chunk_turn(v[p].low[i]);
        }
    }
    column_stored(w, size);
    if (t + 2 < a.n / SIDE) { /* what the next sums read, while results are written */
        barrier_wait(w.stored, t & 1);
        row_fetch(a, w, t + 2, 0, t + 1 < HELD ? t + 1 : HELD);
    }
    if (w.has && w.block != t) strips_put(v, a, w, t);
}

/* What the owners do: sums of column t, then the column before, then what the sums lack of it. */
static __device__ __forceinline__ void owners_run(const FactorArgs &a, const Strip &w, int size) {
    const int blocks = a.n / SIDE;
    Sums sum[PAIR] = {};
#pragma unroll 1
    for (int t = 0; t <= blocks; t++) {
        Sums next[PAIR] = {};
        Parts v[PAIR];
        if (t < blocks) strips_sum(next, a, w, t);
        if (t > 0) {
            column_turn(v, sum, w, t - 1, size);
            if (w.has && w.block == t - 1) diagonal_put(a, w, t - 1);
            last_add(next, v, w, t - 1, t < blocks, size);
        }
        if (w.has && w.block == t) diagonal_share(next, w, t, size);
        if (t > 0) column_put(v, a, w, t - 1, size);
#pragma unroll
        for (int p = 0; p < PAIR; p++)
#pragma unroll
            for (int i = 0; i < 32; i++) sum[p][i / 4][i % 4] = next[p][i / 4][i % 4];
    }
}

/* What the others do. */
static __device__ __forceinline__ void diagonal_run(const Strip &w, int t) {
    const Shared here = w.diagonal + 8 * (t & 1);

    barrier_wait(here, t / 2 & 1);
    block_factor(w.space + (t & 1), LEAST);
    meet(3, THREADS);
}

static __device__ __forceinline__ void barriers_init(const Strip &w, int size) {
    if (threadIdx.x > 0) return;
    barrier_init(w.diagonal, SIDE / STRIP / PAIR); /* warps that have a block's strips */
    barrier_init(w.diagonal + 8, SIDE / STRIP / PAIR);
    barrier_init(w.last, SIDE / STRIP / PAIR);
    barrier_init(w.stored, size);
    barrier_init(w.free, size * WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

#endif

__global__ void __launch_bounds__(THREADS, 1) factor_kernel(const FactorArgs a) {
#if HAVE_SM90A
    extern __shared__ __align__(16) uint8_t memory[];
    const int size = cluster_size(a.n), rank = cluster_rank();
    const Strip w = strip_init(a, memory, rank, size);
    strip_rates(a, w);
    barriers_init(w, size);
    cluster_sync(); /* no block's shared memory is written to before that block has begun */
    const int blocks = a.n / SIDE;
    if (threadIdx.x >= OWNERS) {
        registers_down<72>();
#pragma unroll 1
        for (int t = 0; t < blocks; t++) diagonal_run(w, t);
    } else {
        registers_up<216>();
        owners_run(a, w, size);
    }
    cluster_sync(); /* no block ends while another may write to its memory */
#endif
}

Status basis_factor(Device *d, BasisSizes b, bf16 *r, bf16 *inv, bf16 *rest, float *s) {
    const FactorArgs a = {r, inv, rest, (uint4 *)s, b.n};
    const int bytes = RATES_AT + (int)sizeof(float) * b.n, size = cluster_size(b.n);
    CUDA_TRY(
        cudaFuncSetAttribute(factor_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "token_basis");
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(b.count * size)), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)bytes, config.stream = stream_of(d);
    config.attrs = &attribute, config.numAttrs = 1;
    CUDA_TRY(cudaLaunchKernelEx(&config, factor_kernel, a), "token_basis");
    return launched("token_basis");
}
