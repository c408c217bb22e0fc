/* weight_step of many BF16 matrices that share few weights: a block stays on the card and takes 32
 * columns of a run of matrices, those of one weight one behind the other. The weight stays in its
 * registers, and so does the sum of the slopes; what comes next is on its way to shared memory
 * meanwhile. A team of blocks has the columns of a matrix at the same time: memory is slow where
 * neighbours in a row are asked for at different times.
 */
#include "kernels/cuda/weight_step.cuh"

#define LANES       64
#define WARPS       (LANES / 4)
#define HELD        12 /* rows of a lane: columns of 768 */
#define STEP_STAGES 3
#define BACK_STAGES 2

/* Item i: matrix i % each of the weight (i / each) % period of a part. */
typedef struct Run {
    int tiles, teams; /* blocks of a team, one for each tile of columns */
    int period, each, items;
    int most;       /* teams that can meet in one weight */
    float *partial; /* [weights of all parts][most][tiles][rows][COLUMNS] */
} Run;

typedef struct Item {
    int64_t matrix;
    int part, group, weight; /* group: the weight among those of all parts */
} Item;

static __device__ __forceinline__ Item item_at(const Run &r, int i) {
    Item t;
    t.group = i / r.each;
    t.weight = t.group % r.period;
    t.matrix = t.weight + (int64_t)r.period * (i % r.each);
    t.part = t.group / r.period;
    return t;
}

static __device__ __forceinline__ int run_begin(const Run &r, int team) {
    return (int)((int64_t)r.items * team / r.teams);
}

/* The team that has item i. */
static __device__ __forceinline__ int team_of(const Run &r, int i) {
    return (int)(((int64_t)(i + 1) * r.teams + r.items - 1) / r.items) - 1;
}

/* 32 columns of a matrix on their way to a tile. */
static __device__ __forceinline__ void tile_fetch(bf16 *tile, const bf16 *from, int64_t pitch,
                                                  int rows, int columns) {
    const int thread = threadIdx.y * (COLUMNS / 4) + threadIdx.x, part = thread % 4 * 8;
    for (int r = thread / 4; r < rows && part < columns; r += 2 * LANES)
        copy_chunk(shared_address(tile + r * COLUMNS + part), from + r * pitch + part, true);
}

static __device__ __forceinline__ void unpack(float (&v)[4], uint2 packed) {
    v[0] = low_of(packed.x), v[1] = high_of(packed.x);
    v[2] = low_of(packed.y), v[3] = high_of(packed.y);
}

/* The thread's part of a tile; zeros past its end. */
static __device__ __forceinline__ void tile_take(uint2 (&held)[HELD], const bf16 *tile, int rows,
                                                 bool real) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int r = threadIdx.y + k * LANES;
        held[k] = make_uint2(0, 0);
        if (real && r < rows)
            held[k] = *reinterpret_cast<const uint2 *>(tile + r * COLUMNS + threadIdx.x * 4);
    }
}

static __device__ __forceinline__ void step_fetch(const StepParts &parts, const Run &run,
                                                  bf16 *tiles, int first, int i, int end) {
    if (i < end) {
        const Item t = item_at(run, i);
        const StepPart p = part_number<StepPart>(parts, t.part);
        const Matrices s = p.s;
        const int column = blockIdx.x % run.tiles * COLUMNS;
        tile_fetch(tiles + (i - first) % STEP_STAGES * s.rows * COLUMNS,
                   (const bf16 *)p.u + t.matrix * s.rows * s.columns + column, s.columns, s.rows,
                   s.columns - column);
    }
    copies_commit();
}

/* The thread's part of a weight, zeros past its end, and the sums of its squares. */
static __device__ __forceinline__ void weight_take(float (&w)[HELD][4], float (&squares)[4],
                                                   const float *from, const Matrices &s,
                                                   bool real) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int r = threadIdx.y + k * LANES;
#pragma unroll
        for (int j = 0; j < 4; j++) w[k][j] = 0;
        if (real && r < s.rows) pack_load<float, 4>(w[k], from + (int64_t)r * s.columns);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) squares[j] = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
#pragma unroll
        for (int j = 0; j < 4; j++) squares[j] = fmaf(w[k][j], w[k][j], squares[j]);
    }
}

__global__ void __launch_bounds__(32 * WARPS, 1)
    weight_step_run_kernel(StepParts parts, Run run, float sign, float offset) {
    extern __shared__ __align__(16) bf16 tiles[]; /* [STEP_STAGES][rows][COLUMNS] */
    __shared__ float shared[WARPS][COLUMNS];
    const int team = blockIdx.x / run.tiles;
    const int first = run_begin(run, team), end = run_begin(run, team + 1);
    const int c = blockIdx.x % run.tiles * COLUMNS + threadIdx.x * 4;
    float w[HELD][4], kept[4];
    for (int i = 0; i < STEP_STAGES; i++) step_fetch(parts, run, tiles, first, first + i, end);
    for (int i = first, group = -1; i < end; i++) {
        const Item t = item_at(run, i);
        const StepPart p = part_number<StepPart>(parts, t.part);
        const Matrices s = p.s;
        const bool real = c < s.columns;
        if (t.group != group) {
            group = t.group;
            weight_take(w, kept, p.w + (int64_t)t.weight * s.rows * s.columns + c, s, real);
            column_sums<4, WARPS>(kept, shared);
        }
        copies_wait<STEP_STAGES - 1>();
        __syncthreads();
        uint2 u[HELD];
        tile_take(u, tiles + (i - first) % STEP_STAGES * s.rows * COLUMNS, s.rows, real);
        float moved[4] = {}, step[4], scale[4];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            unpack(step, u[k]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                step[j] = fmaf(sign, step[j], w[k][j]);
                moved[j] = fmaf(step[j], step[j], moved[j]);
            }
        }
        column_sums<4, WARPS>(moved, shared); /* all have read the tile */
        step_fetch(parts, run, tiles, first, i + STEP_STAGES, end);
        if (!real) continue;
        column_factors<4>(scale, p.stats ? p.stats + 2 * (t.matrix * s.columns + c) : NULL, moved,
                          kept, offset);
        bf16 *out = (bf16 *)p.y + t.matrix * s.rows * s.pitch + s.at + c;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int r = threadIdx.y + k * LANES;
            if (r >= s.rows) continue;
            unpack(step, u[k]);
#pragma unroll
            for (int j = 0; j < 4; j++) step[j] = scale[j] * fmaf(sign, step[j], w[k][j]);
            pack_store<bf16, 4>(out + r * s.pitch, step);
        }
    }
}

static __device__ __forceinline__ void slope_fetch(const SlopeParts &parts, const Run &run,
                                                   bf16 *tiles, int first, int i, int end) {
    if (i < end) {
        const Item t = item_at(run, i);
        const SlopePart p = part_number<SlopePart>(parts, t.part);
        const Matrices s = p.s;
        const int column = blockIdx.x % run.tiles * COLUMNS, columns = s.columns - column;
        const int64_t from = t.matrix * s.rows * s.pitch + s.at + column;
        bf16 *tile = tiles + (i - first) % BACK_STAGES * 2 * s.rows * COLUMNS;
        tile_fetch(tile, (const bf16 *)p.dy + from, s.pitch, s.rows, columns);
        tile_fetch(tile + s.rows * COLUMNS, (const bf16 *)p.y + from, s.pitch, s.rows, columns);
    }
    copies_commit();
}

/* The sums of a block's matrices of one weight. */
static __device__ __forceinline__ void sums_leave(const Run &run, int group, int rows,
                                                  float (&sum)[HELD][4]) {
    const int seat = blockIdx.x / run.tiles - team_of(run, group * run.each);
    const int64_t tile = ((int64_t)group * run.most + seat) * run.tiles + blockIdx.x % run.tiles;
    float *to = run.partial + tile * rows * COLUMNS;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        const int r = threadIdx.y + k * LANES;
        if (r < rows) pack_store<float, 4>(to + r * COLUMNS + threadIdx.x * 4, sum[k]);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[k][j] = 0;
    }
}

__global__ void __launch_bounds__(32 * WARPS, 1)
    weight_step_back_run_kernel(SlopeParts parts, Run run, float sign) {
    extern __shared__ __align__(16) bf16 tiles[]; /* [BACK_STAGES][2][rows][COLUMNS] */
    __shared__ float shared[WARPS][COLUMNS];
    const int team = blockIdx.x / run.tiles;
    const int first = run_begin(run, team), end = run_begin(run, team + 1);
    const int c = blockIdx.x % run.tiles * COLUMNS + threadIdx.x * 4;
    float sum[HELD][4] = {};
    for (int i = 0; i < BACK_STAGES; i++) slope_fetch(parts, run, tiles, first, first + i, end);
    for (int i = first; i < end; i++) {
        const Item t = item_at(run, i);
        const SlopePart p = part_number<SlopePart>(parts, t.part);
        const Matrices s = p.s;
        const bool real = c < s.columns;
        float factor[8] = {};
        if (real) line_load<8>(factor, p.stats + 2 * (t.matrix * s.columns + c));
        copies_wait<BACK_STAGES - 1>();
        __syncthreads();
        const bf16 *tile = tiles + (i - first) % BACK_STAGES * 2 * s.rows * COLUMNS;
        uint2 g[HELD], y[HELD];
        tile_take(g, tile, s.rows, real);
        tile_take(y, tile + s.rows * COLUMNS, s.rows, real);
        float pull[4] = {}, a[4], b[4];
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            unpack(a, g[k]);
            unpack(b, y[k]);
#pragma unroll
            for (int j = 0; j < 4; j++) pull[j] = fmaf(a[j], b[j], pull[j]);
        }
        column_sums<4, WARPS>(pull, shared); /* all have read the tiles */
        slope_fetch(parts, run, tiles, first, i + BACK_STAGES, end);
#pragma unroll
        for (int j = 0; j < 4; j++) pull[j] *= factor[2 * j + 1];
        bf16 *to = (bf16 *)p.du + t.matrix * s.rows * s.columns + c;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            const int r = threadIdx.y + k * LANES;
            if (!real || r >= s.rows) continue;
            unpack(a, g[k]);
            unpack(b, y[k]);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[j] = sign * (factor[2 * j] * a[j] - pull[j] * b[j]);
                sum[k][j] += a[j];
            }
            pack_store<bf16, 4>(to + (int64_t)r * s.columns, a);
        }
        if (i + 1 == end || (i + 1) / run.each != t.group) sums_leave(run, t.group, s.rows, sum);
    }
}

/* dw (+)= sign times what the teams left, in their order. */
__global__ void __launch_bounds__(256)
    weight_sums_kernel(SlopeSums sums, Run run, int rows, int columns, float sign) {
    const int group = blockIdx.z, at = blockIdx.x * 256 + threadIdx.x;
    const int r = at / (COLUMNS / 4), c = at % (COLUMNS / 4) * 4;
    const int weight = group % run.period, column = blockIdx.y * COLUMNS + c;
    const int part = group / run.period;
    const Grad dw = part == 0 ? sums.dw[0] : part == 1 ? sums.dw[1] : sums.dw[2];
    if (r >= rows || column >= columns || !dw.t.data) return;
    const int seats = team_of(run, (group + 1) * run.each - 1) - team_of(run, group * run.each) + 1;
    const int64_t step = (int64_t)run.tiles * rows * COLUMNS;
    const float *from =
        run.partial + group * run.most * step + ((int64_t)blockIdx.y * rows + r) * COLUMNS + c;
    float sum[4] = {}, v[4];
    for (int i = 0; i < seats; i++) {
        pack_load<float, 4>(v, from + i * step);
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] += v[j];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] *= sign;
    pack_put<float, 4>((float *)dw.t.data + ((int64_t)weight * rows + r) * columns + column, sum,
                       dw.add);
}

/* ---- host ----------------------------------------------------------------------------------- */

static Run run_of(Device *d, const Matrices &s, int parts) {
    Run r = {};
    r.tiles = (int)ceil_div(s.columns, COLUMNS), r.period = s.period;
    r.teams = backend_of(d)->sm_count / r.tiles;
    r.each = (int)(s.outer / s.period);
    r.items = parts * r.period * r.each;
    r.most = r.each / (r.items / r.teams) + 2;
    return r;
}

/* Of one size, and enough of them for every team, that divide among the weights. */
static bool run_fits(Device *d, const Matrices &s, int parts) {
    const int64_t tiles = ceil_div(s.columns, COLUMNS), teams = backend_of(d)->sm_count / tiles;
    const size_t bytes = sizeof(bf16) * 4 * COLUMNS * (size_t)s.rows;
    return teams >= 1 && s.outer * parts >= 2 * teams && s.outer * parts < INT32_MAX / 1024 &&
           s.period > 0 && s.period <= 16384 && s.outer % s.period == 0 && s.rows <= HELD * LANES &&
           s.columns % 8 == 0 && bytes + 8192 <= backend_of(d)->smem_limit;
}

bool weight_step_run_fits(Device *d, const StepParts &p, int parts) {
    const int period = p.part[0].s.period;
    bool fits = run_fits(d, p.part[0].s, parts);
    for (int i = 0; i < parts; i++) {
        const StepPart *q = &p.part[i];
        fits = fits && q->s.period == period && q->u && is_aligned(q->u, 16) &&
               is_aligned(q->w, 16) && is_aligned(q->y, 8) && q->s.pitch % 4 == 0 &&
               q->s.at % 4 == 0;
    }
    return fits;
}

Status weight_step_run(Device *d, const StepParts &p, int parts, float sign, float offset) {
    const Matrices s = p.part[0].s;
    const int bytes = (int)sizeof(bf16) * STEP_STAGES * COLUMNS * s.rows;
    const Run run = run_of(d, s, parts);
    CUDA_TRY(cudaFuncSetAttribute(weight_step_run_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "weight_step");
    weight_step_run_kernel<<<run.tiles * run.teams, dim3(COLUMNS / 4, LANES), bytes,
                             stream_of(d)>>>(p, run, sign, offset);
    return launched("weight_step");
}

bool weight_slope_run_fits(Device *d, const SlopeParts &p, int parts) {
    const int period = p.part[0].s.period;
    bool fits = run_fits(d, p.part[0].s, parts);
    for (int i = 0; i < parts; i++) {
        const SlopePart *q = &p.part[i];
        fits = fits && q->s.period == period && q->du && !q->add && q->stats &&
               is_aligned(q->du, 8) && is_aligned(q->dy, 16) && is_aligned(q->y, 16) &&
               is_aligned(q->stats, 16) && q->s.pitch % 8 == 0 && q->s.at % 8 == 0;
    }
    return fits;
}

Status weight_slope_run(Device *d, const SlopeParts &p, const SlopeSums &sums, int parts,
                        float sign) {
    const Matrices s = p.part[0].s;
    const int bytes = (int)sizeof(bf16) * BACK_STAGES * 2 * COLUMNS * s.rows;
    Run run = run_of(d, s, parts);
    const int groups = parts * run.period;
    const size_t matrix = sizeof(float) * COLUMNS * (size_t)s.rows * (size_t)run.tiles;
    TRY(scratch_take(d, matrix * (size_t)(groups * run.most), (void **)&run.partial));
    CUDA_TRY(cudaFuncSetAttribute(weight_step_back_run_kernel,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "weight_step_backward");
    weight_step_back_run_kernel<<<run.tiles * run.teams, dim3(COLUMNS / 4, LANES), bytes,
                                  stream_of(d)>>>(p, run, sign);
    TRY(launched("weight_step_backward"));
    const dim3 grid((unsigned)ceil_div(s.rows, 32), (unsigned)run.tiles, (unsigned)groups);
    weight_sums_kernel<<<grid, 256, 0, stream_of(d)>>>(sums, run, s.rows, s.columns, sign);
    return launched("weight_step_backward");
}
