/* Depthwise 3x3 on rows that come through a ring (rowring.cuh): what dwconv_norm.cu and
 * dwconv_backward.cu share.
 *
 * A thread has two channels and walks along a row; each value that it reads goes at once into the
 * three columns of outputs that it touches. Rows outside of the map are one pixel of zeros that is
 * read again and again.
 */
#ifndef TTV_KERNELS_CUDA_ROWTAPS_CUH
#define TTV_KERNELS_CUDA_ROWTAPS_CUH

#include "kernels/cuda/dwconv.cuh"
#include "kernels/cuda/rowring.cuh"

#define PAIR      2    /* channels of a thread */
#define MAX_LANES 384  /* threads for the channels of a row */
#define BLOCK_OWN 1024 /* shared memory that a block takes besides its own */

#if HAVE_SM90A

/* The thread's channels of three rows, at a column; a step is one column on. */
typedef struct ThreeRows {
    Shared at[3];
    int step[3];
} ThreeRows;

/* `zeros`: a pixel of them. */
static __device__ __forceinline__ ThreeRows three_rows(const RowReader &a, const RowRing &r,
                                                       const RowCut &c, Shared zeros, int row,
                                                       int pitch, int column, int lane_bytes) {
    ThreeRows t;
    const int slots[3] = {slot_before(r, a.slot), a.slot, slot_after(r, a.slot)};
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const bool there = row + k - 1 >= 0 && row + k - 1 < c.height;
        t.step[k] = there ? pitch : 0;
        t.at[k] = lane_bytes + (there ? r.data + slots[k] * c.row_bytes + column * pitch : zeros);
    }
    return t;
}

template <typename T> static __device__ __forceinline__ void pair_get(float (&v)[PAIR], Shared at) {
    if (sizeof(T) == sizeof(float)) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(at));
    } else {
        uint32_t raw;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(raw) : "r"(at));
        v[0] = __uint_as_float(raw << 16);
        v[1] = __uint_as_float(raw & 0xffff0000u);
    }
}

template <typename T>
static __device__ __forceinline__ void column_next(float (&now)[3][PAIR], ThreeRows &t) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
        pair_get<T>(now[k], t.at[k]);
        t.at[k] += t.step[k];
    }
}

/* The part of a column of inputs that is `SIDE` - 1 to the right of the output's. */
template <int SIDE>
static __device__ __forceinline__ void column_apply(float (&sum)[PAIR], const float (&w)[9][PAIR],
                                                    const float (&now)[3][PAIR]) {
#pragma unroll
    for (int r = 0; r < 3; r++)
#pragma unroll
        for (int v = 0; v < PAIR; v++) sum[v] += w[3 * r + SIDE][v] * now[r][v];
}

static __device__ __forceinline__ void pair_move(float (&to)[PAIR], const float (&from)[PAIR]) {
#pragma unroll
    for (int v = 0; v < PAIR; v++) to[v] = from[v];
}
static __device__ __forceinline__ void pair_zero(float (&v)[PAIR]) {
#pragma unroll
    for (int i = 0; i < PAIR; i++) v[i] = 0;
}

/* Zeros for the rows that are not there; before the block meets. */
static __device__ __forceinline__ void zeros_init(char *zeros, int bytes) {
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < bytes / 16;
         i += blockDim.x * blockDim.y)
        reinterpret_cast<uint4 *>(zeros)[i] = make_uint4(0, 0, 0, 0);
}

#endif /* HAVE_SM90A */

/* Threads for the channels of a row, whole warps; 0: too many, or rows that the copy engine cannot
 * take. */
static inline int row_lanes(Device *d, Tensor x) {
    const int64_t bytes = x.shape[3] * (int64_t)dtype_size(x.dtype);
    const int64_t lanes = ceil_div(x.shape[3], 32 * PAIR) * 32;
    const bool fits = backend_of(d)->sm90a && bytes % 16 == 0 && is_aligned(x.data, 16) &&
                      x.shape[0] * x.shape[1] < INT32_MAX / 2;
    return fits && lanes <= MAX_LANES ? (int)lanes : 0;
}

/* Rows of the ring: as many as leave room for `more` other rows, a pixel, and `resident` blocks in
 * all; at least 3, or 0. */
static inline int ring_slots(Device *d, Tensor x, int resident, int more, int most) {
    const int64_t pixel = x.shape[3] * (int64_t)dtype_size(x.dtype), row = x.shape[2] * pixel + 8;
    const int64_t room = (int64_t)backend_of(d)->smem_limit + BLOCK_OWN;
    for (; resident >= 1; resident--) {
        const int64_t slots = (room / resident - BLOCK_OWN - pixel) / row - more;
        if (slots >= (resident > 1 ? 4 : 3)) return (int)(slots < most ? slots : most);
    }
    return 0;
}

#endif
