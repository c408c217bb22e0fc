/* Maps [B,H,W,C] that pass through shared memory row by row (Hopper).
 *
 * All channels of a row of the map are one run of memory, which the copy engine brings with one
 * instruction. A block works through units: bands of rows of one sample, with the neighbouring
 * rows (halo) above and below. One thread feeds the rows into a ring, in order; everybody else
 * waits at a row's barrier before the first use, and the block meets before rows are given up.
 */
#ifndef TTV_KERNELS_CUDA_ROWRING_CUH
#define TTV_KERNELS_CUDA_ROWRING_CUH

#include "kernels/cuda/wgmma.cuh"

/* How maps are cut. */
typedef struct RowCut {
    int units, bands, rows; /* samples * bands; bands of a map; rows of a band */
    int height, width, channels;
    int row_bytes;
} RowCut;

/* Rows that one unit makes: [begin, end), and which it reads: [top, bottom). */
typedef struct RowUnit {
    int sample, begin, end, top, bottom;
} RowUnit;

static __host__ __device__ __forceinline__ RowUnit row_unit(const RowCut &c, int unit, int halo) {
    RowUnit u;
    u.sample = unit / c.bands;
    u.begin = unit % c.bands * c.rows;
    u.end = u.begin + c.rows < c.height ? u.begin + c.rows : c.height;
    u.top = u.begin > halo ? u.begin - halo : 0;
    u.bottom = u.end + halo < c.height ? u.end + halo : c.height;
    return u;
}

/* Bands so that `blocks` blocks, which take turns at the units, end early and at the same time: a
 * unit costs its rows and two more for the start. */
static inline RowCut row_cut(Tensor x, int64_t blocks) {
    RowCut c = {};
    c.height = (int)x.shape[1];
    c.width = (int)x.shape[2];
    c.channels = (int)x.shape[3];
    c.row_bytes = (int)(x.shape[2] * x.shape[3] * (int64_t)dtype_size(x.dtype));
    int64_t least = 0;
    for (int bands = 1; bands <= c.height; bands++) {
        const int64_t rows = ceil_div(c.height, bands), real = ceil_div(c.height, rows);
        const int64_t cost = ceil_div(x.shape[0] * real, blocks) * (rows + 2);
        if (least && cost >= least) continue;
        least = cost;
        c.rows = (int)rows;
        c.bands = (int)real;
    }
    c.units = (int)x.shape[0] * c.bands;
    return c;
}

#if HAVE_SM90A

/* A ring in shared memory and the one barrier of each of its rows. */
typedef struct RowRing {
    Shared data, full;
    int slots;
} RowRing;

/* The next row to be brought (one thread). */
typedef struct RowFeed {
    const char *from; /* of the tensor */
    int unit, row, bottom, slot, halo;
} RowFeed;

static __device__ __forceinline__ void bytes_fetch(Shared to, const void *from, int bytes,
                                                   Shared barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void feed_unit(RowFeed &f, const RowCut &c) {
    const RowUnit u = row_unit(c, f.unit, f.halo);
    f.row = u.top;
    f.bottom = u.bottom;
}

static __device__ __forceinline__ RowFeed feed_init(const void *from, const RowCut &c, int halo) {
    RowFeed f = {(const char *)from, (int)blockIdx.x, 0, 0, 0, halo};
    if (f.unit < c.units) feed_unit(f, c);
    return f;
}

/* Brings `count` more rows, whose slots are free. */
static __device__ __forceinline__ void feed_rows(RowFeed &f, const RowRing &r, const RowCut &c,
                                                 int count) {
    for (; count > 0 && f.unit < c.units; count--) {
        const int64_t at = (int64_t)(f.unit / c.bands) * c.height + f.row;
        const Shared barrier = r.full + 8 * f.slot;
        barrier_expect(barrier, c.row_bytes);
        bytes_fetch(r.data + f.slot * c.row_bytes, f.from + at * c.row_bytes, c.row_bytes, barrier);
        f.slot = f.slot + 1 == r.slots ? 0 : f.slot + 1;
        if (++f.row < f.bottom) continue;
        f.unit += gridDim.x;
        if (f.unit < c.units) feed_unit(f, c);
    }
}

/* One thread, before the block meets. */
static __device__ __forceinline__ void ring_init(const RowRing &r) {
    for (int i = 0; i < r.slots; i++) barrier_init(r.full + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Where a reader is: the slot of row `row`, and the rows of the unit below `arrived` are there. */
typedef struct RowReader {
    int slot, row;         /* of the middle row */
    int wait_slot, parity; /* of the next row to wait for */
    int arrived;
} RowReader;

/* The next unit: its first row lies behind the last one of the unit before. */
static __device__ __forceinline__ void reader_unit(RowReader &a, const RowUnit &u) {
    a.slot = a.wait_slot;
    a.row = a.arrived = u.top;
}

/* Waits until the rows below `end` are there. */
static __device__ __forceinline__ void reader_wait(RowReader &a, const RowRing &r, int end) {
    for (; a.arrived < end; a.arrived++) {
        barrier_wait(r.full + 8 * a.wait_slot, a.parity);
        if (++a.wait_slot == r.slots) {
            a.wait_slot = 0;
            a.parity ^= 1;
        }
    }
}

/* Makes `row` (the same or the next) the middle one. */
static __device__ __forceinline__ void reader_move(RowReader &a, const RowRing &r, int row) {
    for (; a.row < row; a.row++) a.slot = a.slot + 1 == r.slots ? 0 : a.slot + 1;
}

static __device__ __forceinline__ int slot_before(const RowRing &r, int slot) {
    return slot == 0 ? r.slots - 1 : slot - 1;
}
static __device__ __forceinline__ int slot_after(const RowRing &r, int slot) {
    return slot + 1 == r.slots ? 0 : slot + 1;
}

#endif /* HAVE_SM90A */

#endif
