/* 3x3 convolutions of 32 or 48 channels to as many, stride 1, on tensor cores: a tile of 16 x 16
 * places with the pixels around it lies in shared memory; each tap is a product of the tile, moved
 * by the tap, with a matrix of channels by channels.
 *
 * Rows of shared memory are one pixel (or one output channel of a tap's matrix) of CH channels and
 * 16 bytes more, so that eight of them touch all 32 banks.
 */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/places.cuh"

#define TILE       16         /* places along a side */
#define AROUND     (TILE + 2) /* pixels */
#define THREADS    256        /* a warp: two rows of places */
#define DW_THREADS 288        /* a warp: one tap */

template <int CH> struct Rows {
    static constexpr int BYTES = 2 * CH + 16;
    static constexpr int MAP = AROUND * AROUND * BYTES, INNER = TILE * TILE * BYTES;
    static constexpr int WEIGHTS = 9 * CH * BYTES;
};

typedef struct Tiles {
    int64_t count;
    int down, across;
} Tiles;

static Tiles tiles_of(const Places &p) {
    const int down = (int)ceil_div(p.height, TILE), across = (int)ceil_div(p.width, TILE);
    return {p.batch * down * across, down, across};
}

/* First place of a tile. */
typedef struct Corner {
    int64_t sample;
    int row, column;
} Corner;

static __device__ __forceinline__ Corner corner_of(const Tiles &t, int64_t tile) {
    const int each = t.down * t.across, within = (int)(tile % each);
    return {tile / each, within / t.across * TILE, within % t.across * TILE};
}

/* SIDE x SIDE pixels from (row, column) on, zeros outside the map, on their way to shared memory.
 */
template <int CH, int SIDE>
static __device__ __forceinline__ void tile_fetch(Shared to, const bf16 *x, const Places &p,
                                                  int64_t sample, int row, int column) {
    constexpr int PARTS = CH / 8;
    for (int i = threadIdx.x; i < SIDE * SIDE * PARTS; i += blockDim.x) {
        const int pixel = i / PARTS, part = i % PARTS;
        const int h = row + pixel / SIDE, w = column + pixel % SIDE;
        const bool inside = h >= 0 && h < p.height && w >= 0 && w < p.width;
        const int64_t at = (sample * p.height + (inside ? h : 0)) * p.width + (inside ? w : 0);
        copy_chunk(to + pixel * Rows<CH>::BYTES + part * 16, x + at * CH + part * 8, inside);
    }
    copies_commit();
}

/* Matrices [tap][output][input] of w[CH][CH][9]; turned: outputs and inputs exchanged, taps in
 * reverse. */
template <int CH>
static __device__ __forceinline__ void weights_fetch(char *to, const bf16 *w, bool turned) {
    for (int i = threadIdx.x; i < 9 * CH * CH; i += blockDim.x) {
        const int first = i / 9 / CH, second = i / 9 % CH, tap = i % 9;
        const int output = turned ? second : first, input = turned ? first : second;
        const int row = (turned ? 8 - tap : tap) * CH + output;
        *reinterpret_cast<bf16 *>(to + row * Rows<CH>::BYTES + 2 * input) = w[i];
    }
}

/* acc of two rows of 16 places, for all outputs. */
template <int CH>
static __device__ __forceinline__ void tile_product(float (&acc)[2][CH / 8][4], Shared map,
                                                    Shared weights) {
    constexpr int BYTES = Rows<CH>::BYTES;
    const int lane = threadIdx.x & 31, row = 2 * (threadIdx.x >> 5);
    /* A: places below each other, then the other half of the inputs. B: inputs beside each other,
     * then the next eight outputs. */
    const Shared a_lane = map + (lane & 15) * BYTES + (lane >> 4) * 16;
    const Shared b_lane =
        weights + (((lane >> 4) << 3) + (lane & 7)) * BYTES + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        const Shared at = a_lane + ((row + tap / 3) * AROUND + tap % 3) * BYTES;
#pragma unroll
        for (int k = 0; k < CH / 16; k++) {
            uint32_t a[2][4], b[4];
            matrix_get(a[0], at + 32 * k);
            matrix_get(a[1], at + AROUND * BYTES + 32 * k);
#pragma unroll
            for (int n = 0; n < CH / 16; n++) {
                matrix_get(b, b_lane + (tap * CH + 16 * n) * BYTES + 32 * k);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    mma(acc[r][2 * n], a[r], b[0], b[1]);
                    mma(acc[r][2 * n + 1], a[r], b[2], b[3]);
                }
            }
        }
    }
}

template <int CH>
static __device__ __forceinline__ void tile_put(bf16 *y, const float (&acc)[2][CH / 8][4],
                                                const Places &p, const Corner &c, bool add) {
    const int lane = threadIdx.x & 31, row = c.row + 2 * (threadIdx.x >> 5);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int h = row + r, w = c.column + (lane >> 2) + 8 * half;
            if (h >= p.height || w >= p.width) continue;
            bf16 *to = y + ((c.sample * p.height + h) * p.width + w) * CH + 2 * (lane & 3);
#pragma unroll
            for (int n = 0; n < CH / 8; n++) {
                float v[2] = {acc[r][n][2 * half], acc[r][n][2 * half + 1]};
                pack_put<bf16, 2>(to + 8 * n, v, add);
            }
        }
}

template <int CH>
__global__ void __launch_bounds__(THREADS)
    conv3_kernel(bf16 *y, const bf16 *x, const bf16 *w, Places p, Tiles t, bool turned, bool add) {
    extern __shared__ __align__(16) char shared[];
    const Shared map = shared_address(shared), weights = map + Rows<CH>::MAP;
    weights_fetch<CH>(shared + Rows<CH>::MAP, w, turned);
    for (int64_t tile = blockIdx.x; tile < t.count; tile += gridDim.x) {
        const Corner c = corner_of(t, tile);
        tile_fetch<CH, AROUND>(map, x, p, c.sample, c.row - 1, c.column - 1);
        copies_wait<0>();
        __syncthreads();
        float acc[2][CH / 8][4] = {};
        tile_product<CH>(acc, map, weights);
        tile_put<CH>(y, acc, p, c, add);
        __syncthreads();
    }
}

/* partial[blockIdx.x][CH][CH][9], over the block's tiles. Warp = tap: outputs by inputs, places are
 * the inner dimension; places beyond the map have dy = 0. */
template <int CH>
__global__ void __launch_bounds__(DW_THREADS)
    conv3_dw_kernel(float *partial, const bf16 *dy, const bf16 *x, Places p, Tiles t) {
    constexpr int BYTES = Rows<CH>::BYTES;
    extern __shared__ __align__(16) char shared[];
    const Shared map = shared_address(shared), inner = map + Rows<CH>::MAP;
    const int lane = threadIdx.x & 31, tap = threadIdx.x >> 5, low = lane & 7, j = lane >> 3;
    /* A from dy [place][output]: outputs beside each other, then the next eight places. B from x
     * [place][input]: places below each other, then the next eight inputs. */
    const Shared a_lane = inner + ((j >> 1) * 8 + low) * BYTES + (j & 1) * 16;
    const Shared b_lane =
        map + (tap / 3 * AROUND + tap % 3 + (j & 1) * 8 + low) * BYTES + (j >> 1) * 16;
    float acc[CH / 16][CH / 8][4] = {};
    for (int64_t tile = blockIdx.x; tile < t.count; tile += gridDim.x) {
        const Corner c = corner_of(t, tile);
        tile_fetch<CH, AROUND>(map, x, p, c.sample, c.row - 1, c.column - 1);
        tile_fetch<CH, TILE>(inner, dy, p, c.sample, c.row, c.column);
        copies_wait<0>();
        __syncthreads();
        for (int row = 0; row < TILE; row++) {
            uint32_t a[CH / 16][4], b[4];
#pragma unroll
            for (int m = 0; m < CH / 16; m++)
                matrix_get_turned(a[m], a_lane + row * TILE * BYTES + 32 * m);
#pragma unroll
            for (int n = 0; n < CH / 16; n++) {
                matrix_get_turned(b, b_lane + row * AROUND * BYTES + 32 * n);
#pragma unroll
                for (int m = 0; m < CH / 16; m++) {
                    mma(acc[m][2 * n], a[m], b[0], b[1]);
                    mma(acc[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
    float *out = partial + (int64_t)blockIdx.x * 9 * CH * CH + tap;
#pragma unroll
    for (int m = 0; m < CH / 16; m++)
#pragma unroll
        for (int n = 0; n < CH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int output = 16 * m + (lane >> 2) + 8 * (i >> 1);
                const int input = 8 * n + 2 * (lane & 3) + (i & 1);
                out[(output * CH + input) * 9] = acc[m][n][i];
            }
}

/* ---- calls ---------------------------------------------------------------------------------- */

bool conv3_mma_fits(Device *d, const Places *p, int64_t outputs, DType act) {
    return backend_of(d)->compute >= 80 && act == DTYPE_BF16 && p->stride == 1 &&
           outputs == p->channels && (p->channels == 32 || p->channels == 48);
}

/* Blocks that live as long as the kernel. */
static unsigned blocks_for(Device *d, const Tiles &t, int per_sm) {
    const int64_t most = (int64_t)per_sm * backend_of(d)->sm_count;
    return (unsigned)(t.count < most ? t.count : most);
}

template <int CH>
static Status conv3_launch(Device *d, Grad y, Tensor x, Tensor w, const Places &p, bool turned) {
    const Tiles t = tiles_of(p);
    const int bytes = Rows<CH>::MAP + Rows<CH>::WEIGHTS;
    CUDA_TRY(
        cudaFuncSetAttribute(conv3_kernel<CH>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "conv3");
    conv3_kernel<CH><<<blocks_for(d, t, CH > 32 ? 2 : 4), THREADS, bytes, stream_of(d)>>>(
        (bf16 *)y.t.data, (const bf16 *)x.data, (const bf16 *)w.data, p, t, turned, y.add);
    return launched("conv3");
}

/* Copies are of 16 bytes. */
static Status check_aligned(const void *a, const void *b) {
    if (is_aligned(a, 16) && is_aligned(b, 16)) return STATUS_OK;
    return status_set(STATUS_INTERNAL, "conv3 on CUDA: a map is not aligned to 16 bytes");
}

Status conv3_mma(Device *d, Grad y, Tensor x, Tensor w, const Places &p, bool turned) {
    TRY(check_aligned(y.t.data, x.data));
    return p.channels == 32 ? conv3_launch<32>(d, y, x, w, p, turned)
                            : conv3_launch<48>(d, y, x, w, p, turned);
}

template <int CH>
static Status dw_launch(Device *d, float *partial, unsigned blocks, Tensor dy, Tensor x,
                        const Places &p) {
    const int bytes = Rows<CH>::MAP + Rows<CH>::INNER;
    CUDA_TRY(cudaFuncSetAttribute(conv3_dw_kernel<CH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  bytes),
             "conv3_backward");
    conv3_dw_kernel<CH><<<blocks, DW_THREADS, bytes, stream_of(d)>>>(
        partial, (const bf16 *)dy.data, (const bf16 *)x.data, p, tiles_of(p));
    return launched("conv3_backward");
}

Status conv3_mma_dw(Device *d, Grad dw, Tensor dy, Tensor x, const Places &p) {
    const unsigned blocks = blocks_for(d, tiles_of(p), 2);
    const int64_t each = 9 * (int64_t)p.channels * p.channels;
    float *partial;
    TRY(check_aligned(dy.data, x.data));
    TRY(scratch_take(d, sizeof(float) * (size_t)each * blocks, (void **)&partial));
    Status s = p.channels == 32 ? dw_launch<32>(d, partial, blocks, dy, x, p)
                                : dw_launch<48>(d, partial, blocks, dy, x, p);
    if (s == STATUS_OK) s = reduce_partials(d, dw, partial, blocks, each, 1.0f);
    scratch_done(d);
    return s;
}
