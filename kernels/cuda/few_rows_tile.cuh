/* Pieces of products of few rows (few_rows.cu): the ring of tiles, norms, products, joined sums. */
#ifndef TTV_KERNELS_CUDA_FEW_ROWS_TILE_CUH
#define TTV_KERNELS_CUDA_FEW_ROWS_TILE_CUH

#include "kernels/cuda/few_rows.cuh"
#include "kernels/cuda/wgmma.cuh"

#define RING_BYTES (108 * 1024) /* two kernels find room on a multiprocessor */
#define BARRIERS   256          /* bytes */
#define MOST_DEPTH 1024         /* of a layer norm */
#define AT_ONCE    16           /* partial sums of a thread */

/* Describes a BF16 matrix (gemm_ring.cuh). */
Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows);

typedef struct FewArgs {
    int m, n, k;
    bf16 *y;
    const bf16 *residual;
    const float *bias, *norm_w, *column_w;
    const float2 *sums;
    float2 *sums_out;
    int parts, rate; /* FewRate */
    float eps, inverse;
} FewArgs;

/* What a kernel is made for. */
typedef enum FewForm {
    FORM_STRAIGHT, /* b [n,k] */
    FORM_TURNED,   /* b [k,n] */
    FORM_GATE,     /* turned, columns of both halves */
    FORM_NORM,     /* straight, a is layer-normed */
} FewForm;

/* What is done with sums. */
typedef enum FewEnd {
    END_PLAIN,
    END_GELU,
    END_SILU,     /* leaves sums */
    END_RESIDUAL, /* times row factors, and leaves sums */
    END_COLUMN,   /* times factors of the columns when sums are taken */
    END_GATE,     /* of both halves, times row factors */
} FewEnd;

template <int GROUPS, int WIDTH, int FORM> struct FewShape {
    static const int makers = 128 * GROUPS;               /* threads that multiply */
    static const int norms = FORM == FORM_NORM ? 128 : 0; /* that norm a's rows */
    static const int threads = makers + norms + 32;       /* and one warp that copies */
    static const int a_bytes = GROUPS * TILE_BYTES;
    static const int stage_bytes = a_bytes + WIDTH * 128;
    static const int fit = RING_BYTES / stage_bytes;
    static const int stages = fit > 8 ? 8 : fit;
    static const int shared = stages * stage_bytes + BARRIERS + 1024;
};

#if HAVE_SM90A

/* ---- one product instruction, 64 x WIDTH x 16 ---- */

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[16], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, %16, %17, p, 1, 1, 0, %19;\n}\n"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[24], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23"
                 "}, %24, %25, p, 1, 1, 0, %27;\n}\n"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[32], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1, 0, %35;\n}\n"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20),
                   FOUR(d, 24), FOUR(d, 28)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[48], uint64_t a, uint64_t b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
                 "}, %48, %49, p, 1, 1, 0, %51;\n}\n"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20),
                   FOUR(d, 24), FOUR(d, 28), FOUR(d, 32), FOUR(d, 36), FOUR(d, 40), FOUR(d, 44)
                 : "l"(a), "l"(b), "r"(keep), "n"(TURNED));
}
template <int TURNED>
static __device__ __forceinline__ void few_wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    wgmma<TURNED>(d, a, b, keep);
}
#undef FOUR

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
    Shared ready;             /* of FORM_NORM: a is normed */
} Share;

/* First column of box j of b. */
template <int FORM>
static __device__ __forceinline__ int box_column(const FewArgs &g, const Share &s, int j) {
    return FORM == FORM_GATE ? j * (g.n / 2) + s.n0 : s.n0 + 64 * j;
}

template <int WIDTH, int FORM>
static __device__ __forceinline__ void weights_ahead(const FewArgs &g, const Share &s,
                                                     const CUtensorMap *b) {
    for (int t = s.first; t < s.last; t++) {
        if (FORM == FORM_TURNED || FORM == FORM_GATE) {
            for (int j = 0; j < WIDTH / 64; j++) box_ahead(b, box_column<FORM>(g, s, j), 64 * t);
        } else {
            box_ahead(b, 64 * t, s.n0);
        }
    }
}

template <int GROUPS, int WIDTH, int FORM>
static __device__ __forceinline__ void copy_tiles(const FewArgs &g, const Share &s,
                                                  const CUtensorMap *a, const CUtensorMap *b) {
    typedef FewShape<GROUPS, WIDTH, FORM> S;
    int stage = 0, phase = 1; /* the first round finds the stages empty */
    for (int t = s.first; t < s.last; t++) {
        const Shared to = s.data + stage * S::stage_bytes, full = s.full + 8 * stage;
        barrier_wait(s.empty + 8 * stage, phase);
        barrier_expect(full, S::stage_bytes);
        box_fetch(to, a, 64 * t, s.m0, full);
        if (FORM == FORM_TURNED || FORM == FORM_GATE) {
#pragma unroll
            for (int j = 0; j < WIDTH / 64; j++)
                box_fetch(to + S::a_bytes + j * TILE_BYTES, b, box_column<FORM>(g, s, j), 64 * t,
                          full);
        } else {
            box_fetch(to + S::a_bytes, b, 64 * t, s.n0, full);
        }
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* Norms 8 channels. */
static __device__ __forceinline__ uint4 chunk_norm(const uint4 &x, const float2 &r,
                                                   const float (&w)[8]) {
    const uint32_t in[4] = {x.x, x.y, x.z, x.w};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = pack2(fmaf(low_of(in[i]), r.x, r.y) * w[2 * i],
                       fmaf(high_of(in[i]), r.x, r.y) * w[2 * i + 1]);
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Norms a's tiles in place; a thread has chunk thread % 8 of rows thread / 8, + 16, + 32, + 48. */
template <int WIDTH>
static __device__ __forceinline__ void norm_tiles(const Share &s, const float2 *rows,
                                                  const float *norm_w, int thread) {
    typedef FewShape<1, WIDTH, FORM_NORM> S;
    const int chunk = thread % 8;
    float2 row[4];
#pragma unroll
    for (int i = 0; i < 4; i++) row[i] = rows[thread / 8 + 16 * i];
    int stage = 0, phase = 0;
    for (int t = s.first; t < s.last; t++) {
        const Shared at = s.data + stage * S::stage_bytes;
        float w[8];
        line_load<8>(w, norm_w + 64 * t + 8 * chunk);
        barrier_wait(s.full + 8 * stage, phase);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Shared place = tile_at(at, thread / 8 + 16 * i, chunk);
            uint4 x;
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                         : "r"(place)
                         : "memory");
            x = chunk_norm(x, row[i], w);
            asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(place), "r"(x.x), "r"(x.y),
                         "r"(x.z), "r"(x.w)
                         : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        barrier_arrive(s.ready + 8 * stage);
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
}

template <int GROUPS, int WIDTH, int FORM>
static __device__ __forceinline__ void multiply(float (&sum)[WIDTH / 2], const Share &s,
                                                int group) {
    typedef FewShape<GROUPS, WIDTH, FORM> S;
    const int lane = threadIdx.x & 31, TURNED = FORM == FORM_TURNED || FORM == FORM_GATE;
    const Shared there = FORM == FORM_NORM ? s.ready : s.full;
    int stage = 0, phase = 0;
    Shared before = 0;
    for (int t = s.first; t < s.last; t++) {
        const Shared at = s.data + stage * S::stage_bytes;
        barrier_wait(there + 8 * stage, phase);
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
        before = s.empty + 8 * stage;
        if (++stage == S::stages) {
            stage = 0;
            phase ^= 1;
        }
    }
    wgmma_wait<0>();
}

/* A barrier of `THREADS` threads. */
template <int THREADS> static __device__ __forceinline__ void meet(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

/* The block's share of the sums of all blocks of the cluster: COUNT parts of 8 columns, in place of
 * what `sum` begins with. A gate's share is half of each half. */
template <int GROUPS, int WIDTH, int SPLIT, int FORM>
static __device__ __forceinline__ void join(float (&sum)[WIDTH / 2], Shared data, int part) {
    const int threads = 128 * GROUPS, COUNT = WIDTH / 8 / SPLIT;
    meet<threads>(1); /* the ring is not read any more */
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j++)
        sums_put(data + (j * threads + threadIdx.x) * 16, &sum[4 * j]);
    cluster_sync();
#pragma unroll
    for (int g = 0; g < COUNT; g++) {
        const int half = FORM == FORM_GATE && g >= COUNT / 2;
        const int j = FORM == FORM_GATE ? half * (WIDTH / 16 - COUNT / 2) + COUNT / 2 * part + g
                                        : COUNT * part + g;
        float v[4] = {};
#pragma unroll
        for (int rank = 0; rank < SPLIT; rank++)
            sums_add(v, data + (j * threads + threadIdx.x) * 16, rank);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[4 * g + i] = v[i];
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
