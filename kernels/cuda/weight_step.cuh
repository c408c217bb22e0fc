/* What the kernels of weight_step share. A block takes 32 columns of a matrix, a thread V of them
 * in the rows of its lane.
 */
#ifndef TTV_KERNELS_CUDA_WEIGHT_STEP_CUH
#define TTV_KERNELS_CUDA_WEIGHT_STEP_CUH

#include "kernels/cuda/mma.cuh"

#define COLUMNS 32

typedef struct Matrices {
    int64_t outer, pitch, at; /* y and dy have rows of `pitch`, of which [at, at + columns) */
    int rows, columns, period;
} Matrices;

/* What one launch takes: matrices of one size. */
typedef struct StepPart {
    void *y;
    float *stats;
    const void *u;
    const float *w;
    Matrices s;
} StepPart;
typedef struct StepParts {
    StepPart part[WEIGHT_PARTS];
} StepParts;

typedef struct SlopePart {
    void *du;
    const void *dy, *y;
    const float *stats;
    Matrices s;
    bool add;
} SlopePart;
typedef struct SlopeParts {
    SlopePart part[WEIGHT_PARTS];
} SlopeParts;

/* Where the slopes of the shared weights of the parts go, F32. */
typedef struct SlopeSums {
    Grad dw[WEIGHT_PARTS];
} SlopeSums;

/* Without a run-time index, which would move the parts to local memory. */
template <typename Part, typename Parts>
static __device__ __forceinline__ Part part_number(const Parts &p, int i) {
    return i == 0 ? p.part[0] : i == 1 ? p.part[1] : p.part[2];
}

/* Sum of a value per column over the block of `COUNT` warps, the same in every thread of a column.
 */
template <int V, int COUNT>
static __device__ __forceinline__ void column_sums(float (&v)[V], float (*shared)[COLUMNS]) {
    const int thread = threadIdx.y * (COLUMNS / V) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
        for (int step = COLUMNS / V; step < 32; step *= 2)
            v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
    }
    __syncthreads();
    if (thread % 32 < COLUMNS / V) {
#pragma unroll
        for (int i = 0; i < V; i++) shared[thread / 32][threadIdx.x * V + i] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++) {
        v[i] = 0;
#pragma unroll
        for (int warp = 0; warp < COUNT; warp++) v[i] += shared[warp][threadIdx.x * V + i];
    }
}

/* Factors of the columns from the sums of their squares. */
template <int V>
static __device__ __forceinline__ void column_factors(float (&scale)[V], float *stats,
                                                      const float (&moved)[V],
                                                      const float (&start)[V], float offset) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float norm = sqrtf(moved[i]), wanted = sqrtf(start[i]), product = norm * wanted;
        scale[i] = wanted / (norm + offset);
        if (!stats || threadIdx.y > 0) continue;
        stats[2 * i] = scale[i];
        stats[2 * i + 1] = product > 0 ? 1.0f / product : 0.0f;
    }
}

/* Kernels for many BF16 matrices (weight_step_run.cu), each block with a run of them: whether they
 * take all parts, and the call. All parts have a norm; du is set, and what dw gets is summed on the
 * way. */
bool weight_step_run_fits(Device *d, const StepParts &p, int parts);
Status weight_step_run(Device *d, const StepParts &p, int parts, float sign, float offset);
bool weight_slope_run_fits(Device *d, const SlopeParts &p, int parts);
Status weight_slope_run(Device *d, const SlopeParts &p, const SlopeSums &sums, int parts,
                        float sign);

#endif
