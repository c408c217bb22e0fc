/* Pieces of products of few rows (few_rows.cu): the ring of tiles, products, joined sums. */
#ifndef TTV_KERNELS_CUDA_FEW_ROWS_TILE_CUH
#define TTV_KERNELS_CUDA_FEW_ROWS_TILE_CUH

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"

#define RING_BYTES (108 * 1024) /* two kernels find room on a multiprocessor */
#define BARRIERS   256          /* bytes */
#define MOST_DEPTH 1024         /* of a layer norm */
#define AT_ONCE    16           /* partial sums of a thread */

typedef struct FewArgs {
    int m, n, k;
    bf16 *y;
    const bf16 *residual;
    const float *bias, *norm_w, *column_w;
    bf16 *weighed; /* END_RESIDUAL: y times column_w, or NULL */
    const float2 *sums;
    float2 *sums_out;
    int parts, rate; /* FewRate */
    bool steady;     /* what is a parameter has been written long ago */
    float eps, inverse;
} FewArgs;

/* What a kernel is made for. */
typedef enum FewForm {
    FORM_STRAIGHT, /* b [n,k] */
    FORM_TURNED,   /* b [k,n] */
    FORM_GATE,     /* turned, columns of both halves */
    FORM_NORM,     /* straight, rows shifted and scaled as a layer norm does */
} FewForm;

/* What is done with sums. */
typedef enum FewEnd {
    END_PLAIN,
    END_GELU,
    END_SILU,     /* leaves sums */
    END_RESIDUAL, /* times row factors, and leaves sums and a weighed copy */
    END_COLUMN,   /* times factors of the columns when sums are taken */
    END_SIGMOID,  /* to F32 */
    END_GATE,     /* of both halves, times row factors */
} FewEnd;

/* A block has 64 GROUPS rows and WIDTH columns; the SPLIT blocks of a cluster share the depth. */
template <int GROUPS, int WIDTH, int SPLIT, int FORM, int END> struct FewShape {
    static const int groups = GROUPS, width = WIDTH, split = SPLIT, form = FORM, end = END;
    static const bool turned = FORM == FORM_TURNED || FORM == FORM_GATE, norm = FORM == FORM_NORM;
    static const int makers = 128 * GROUPS; /* threads that multiply */
    /* that make factors of rows, and a norm's shifts of columns */
    static const int helpers = norm || END == END_GATE || END == END_RESIDUAL ? 128 : 0;
    static const int threads = makers + helpers + 64; /* and a warp each that copies a and b */
    static const int a_bytes = GROUPS * TILE_BYTES, b_bytes = WIDTH * 128;
    static const int stage_bytes = a_bytes + b_bytes;
    static const int fit = RING_BYTES / stage_bytes;
    static const int stages = fit > 8 ? 8 : fit;
    static const int shared = stages * stage_bytes + BARRIERS + 1024;
};

#if HAVE_SM90A

/* ---- one product instruction, 64 x WIDTH x 16 ---- */

#define NAMES_40 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_48 NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"

template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[16], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES_16
                 "}, %16, %17, p, 1, 1, 0, %19;\n}\n"
                 : SUMS_8(0), SUMS_8(8)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[24], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" NAMES_24
                 "}, %24, %25, p, 1, 1, 0, %27;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, %32, %33, p, 1, 1, 0, %35;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[40], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" NAMES_40
                 "}, %40, %41, p, 1, 1, 0, %43;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[48], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NAMES_48
                 "}, %48, %49, p, 1, 1, 0, %51;\n}\n"
                 : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24), SUMS_8(32), SUMS_8(40)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    wgmma<TURNED>(d, a, b, keep);
}

/* ---- between the blocks of a cluster ---- */

static __device__ __forceinline__ void sums_put(Shared at, const float *v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

/* Adds what lies at the same address of block `rank`. */
static __device__ __forceinline__ void sums_add(float (&v)[4], Shared at, int rank) {
    float x[4];
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [remote];\n}\n"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(at), "r"(rank)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] += x[i];
}

/* ---- roles ---- */

/* What a block has: rows and columns of a tile, steps of 64 k. */
typedef struct Share {
    int m0, n0, first, last;
    Shared data, full, empty; /* barriers of the stages: a and b are there; both are used up */
    Shared weights;           /* of a norm: b is there, full: a is */
} Share;

/* Where in the ring a role is. */
typedef struct Turn {
    int stage, phase;
} Turn;

template <typename S> static __device__ __forceinline__ void turn_next(Turn &t) {
    if (++t.stage == S::stages) {
        t.stage = 0;
        t.phase ^= 1;
    }
}

/* Steps that find the ring empty. */
template <typename S> static __device__ __forceinline__ int first_steps(const Share &s) {
    return min(s.last - s.first, S::stages);
}

/* First column of box j of b. */
template <typename S>
static __device__ __forceinline__ int box_column(const FewArgs &g, const Share &s, int j) {
    return S::form == FORM_GATE ? j * (g.n / 2) + s.n0 : s.n0 + 64 * j;
}

/* Boxes of b from step t on, to the L2 cache. */
template <typename S>
static __device__ __forceinline__ void weights_ahead(const FewArgs &g, const Share &s,
                                                     const CUtensorMap *b, int t) {
    for (; t < s.last; t++) {
        if (S::turned) {
            for (int j = 0; j < S::width / 64; j++) box_ahead(b, box_column<S>(g, s, j), 64 * t);
        } else {
            box_ahead(b, 64 * t, s.n0);
        }
    }
}

template <typename S>
static __device__ __forceinline__ void weights_fetch(const FewArgs &g, const Share &s,
                                                     const CUtensorMap *b, int stage, int t) {
    const Shared to = s.data + stage * S::stage_bytes + S::a_bytes;
    const Shared there = (S::norm ? s.weights : s.full) + 8 * stage;
    barrier_expect(there, S::b_bytes);
    if (S::turned) {
#pragma unroll
        for (int j = 0; j < S::width / 64; j++)
            box_fetch(to + j * TILE_BYTES, b, box_column<S>(g, s, j), 64 * t, there);
    } else {
        box_fetch(to, b, 64 * t, s.n0, there);
    }
}

/* Brings b, of which nothing may be read before the wait unless it is steady. */
template <typename S>
static __device__ __forceinline__ void copy_weights(const FewArgs &g, const Share &s,
                                                    const CUtensorMap *b) {
    const int ahead = first_steps<S>(s);
    const bool speaks = blockIdx.y == 0; /* one block of those with the same columns */
    if (!g.steady) {
        if (speaks) weights_ahead<S>(g, s, b, s.first);
        chain_only_wait();
    }
    for (int i = 0; i < ahead; i++) weights_fetch<S>(g, s, b, i, s.first + i);
    if (g.steady && speaks) weights_ahead<S>(g, s, b, s.first + ahead);
    Turn turn = {0, 0};
    for (int t = s.first + ahead; t < s.last; t++, turn_next<S>(turn)) {
        barrier_wait(s.empty + 8 * turn.stage, turn.phase);
        weights_fetch<S>(g, s, b, turn.stage, t);
    }
}

/* Brings a. */
template <typename S>
static __device__ __forceinline__ void copy_rows(const Share &s, const CUtensorMap *a) {
    const int ahead = first_steps<S>(s);
    for (int i = 0; i < ahead; i++) barrier_expect(s.full + 8 * i, S::a_bytes);
    chain_only_wait();
    Turn turn = {0, 1}; /* the first round finds the stages empty */
    for (int t = s.first; t < s.last; t++, turn_next<S>(turn)) {
        const Shared full = s.full + 8 * turn.stage;
        if (t >= s.first + ahead) {
            barrier_wait(s.empty + 8 * turn.stage, turn.phase);
            barrier_expect(full, S::a_bytes);
        }
        box_fetch(s.data + turn.stage * S::stage_bytes, a, 64 * t, s.m0, full);
    }
}

template <typename S>
static __device__ __forceinline__ void multiply(float (&sum)[S::width / 2], const Share &s,
                                                int group) {
    const int lane = threadIdx.x & 31, TURNED = S::turned;
    Turn turn = {0, 0};
    Shared before = 0;
    for (int t = s.first; t < s.last; t++, turn_next<S>(turn)) {
        const Shared at = s.data + turn.stage * S::stage_bytes;
        if (S::norm) barrier_wait(s.weights + 8 * turn.stage, turn.phase);
        barrier_wait(s.full + 8 * turn.stage, turn.phase);
        const uint64_t a = operand_straight(at + group * TILE_BYTES);
        const uint64_t b =
            TURNED ? operand_turned(at + S::a_bytes) : operand_straight(at + S::a_bytes);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; i++)
            few_wgmma<TURNED>(sum, a + 2 * i, b + i * (TURNED ? 2048 >> 4 : 2), t > s.first || i);
        wgmma_commit();
        wgmma_wait<1>();
        if (before && lane == 0) barrier_arrive(before);
        before = s.empty + 8 * turn.stage;
    }
    wgmma_wait<0>();
}

/* A barrier of `THREADS` threads. */
template <int THREADS> static __device__ __forceinline__ void meet(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

/* The block's share of the sums of all blocks that share the depth: COUNT parts of 8 columns, in
 * place of what `sum` begins with. A gate's share is half of each half. */
template <typename S>
static __device__ __forceinline__ void join(float (&sum)[S::width / 2], const Share &s, int part) {
    const int COUNT = S::width / 8 / S::split;
    const bool gate = S::form == FORM_GATE;
    meet<S::makers>(1); /* the ring is not read any more */
#pragma unroll
    for (int j = 0; j < S::width / 8; j++)
        sums_put(s.data + (j * S::makers + threadIdx.x) * 16, &sum[4 * j]);
    cluster_sync();
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
        const int half = gate && c >= COUNT / 2;
        const int j =
            gate ? half * (S::width / 16 - COUNT / 2) + COUNT / 2 * part + c : COUNT * part + c;
        float v[4] = {};
#pragma unroll
        for (int rank = 0; rank < S::split; rank++)
            sums_add(v, s.data + (j * S::makers + threadIdx.x) * 16, rank);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[4 * c + i] = v[i];
    }
}

/* Factors of ROWS rows from m0 on, by twice as many threads, from partial sums: of a layer norm
 * what x is multiplied by and what is added then. */
template <int ROWS>
static __device__ __forceinline__ void rows_get(float2 *rows, const FewArgs &g, int m0,
                                                int thread) {
    const int r = thread / 2, row = m0 + r < g.m ? m0 + r : g.m - 1;
    float2 sum = make_float2(0, 0);
    for (int first = thread & 1; first < g.parts; first += 2 * AT_ONCE) {
        float2 x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) { /* all under way before the first is added */
            const int p = first + 2 * i;
            x[i] = make_float2(0, 0);
            if (p < g.parts) x[i] = g.sums[(int64_t)p * g.m + row];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sum.x += x[i].x;
            sum.y += x[i].y;
        }
    }
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, 1);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, 1);
    const float mean = sum.x * g.inverse, square = sum.y * g.inverse;
    float2 f = make_float2(0, 0);
    if (g.rate == FEW_LAYER_NORM) {
        f.x = rsqrtf(fmaxf(square - mean * mean, 0.0f) + g.eps);
        f.y = -mean * f.x;
    } else if (g.rate == FEW_UNIT) {
        f.x = 1.0f / (sqrtf(sum.y) + g.eps);
    } else {
        f.x = rsqrtf(square + g.eps);
    }
    if ((thread & 1) == 0) rows[r] = f;
}

#endif

#endif
