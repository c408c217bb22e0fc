/* The end of a strip: what is added to its sums, what they are multiplied by, and what is found
 * from them for others (newton_schulz_quad.cu).
 */
#ifndef TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_END_CUH
#define TTV_KERNELS_CUDA_NEWTON_SCHULZ_QUAD_END_CUH

#include "kernels/cuda/newton_schulz_quad.cuh"
#include "kernels/cuda/newton_schulz_quad_ring.cuh"

#if HAVE_SM90A

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

/* The inner product of those boxes and s. */
template <int FIRST>
static __device__ __forceinline__ float factor_take(const float (&sum)[128], const Ring &r,
                                                    int boxes, int which, Count &n) {
    barrier_wait(full_at(r, n.slot), round_of(n.slot));
    const float dot = boxes_dot<FIRST>(sum, stage_at(r, n.slot) + which * 2 * TILE_BYTES, boxes);
    sends_fence();
    __syncwarp();
    stage_release(r, n.slot++);
    return dot;
}

/* A warp's part of the inner product of a strip and s, to its own place. */
static __device__ __forceinline__ void strip_dot(const float (&sum)[128], const Ring &r,
                                                 const Chain &c, const Quad &q, int strip,
                                                 int boxes, int which, Count &n) {
    const Phase &p = c.phase[q.phase];
    const int across = (p.columns + QUAD - 1) / QUAD;
    const int quad = q.matrix * p.sets + q.row / QUAD * across + q.column / QUAD;
    float dot = factor_take<0>(sum, r, boxes, which, n);
    if (q.boxes > 2) dot += factor_take<2>(sum, r, boxes, which, n);
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) p.dots[(quad * BOXES + strip) * 4 + threadIdx.x / 32 % 4] = dot;
}

/* What the parts of a product are multiplied by: sums, what is added to them, and the diagonal. */
typedef struct Scales {
    float sums, added, second, diagonal;
} Scales;

/* The gradient through g / (norm + offset): rate dx - rate^2 dot / norm g. */
static __device__ __forceinline__ Scales slope_scales(const Chain &c, const Quad &q) {
    const float norm = c.norms[q.matrix];
    float dot = 0;
    for (int i = threadIdx.x % 32; i < c.parts; i += 32)
        dot += __ldcg(c.dots + q.matrix * c.parts + i);
    dot = warp_sum(dot);
    if (norm < NORM_VANISHED) return {1.0f, 0.0f, 0.0f, 1.0f};
    const float rate = 1.0f / (norm + NORM_OFFSET);
    return {1.0f, rate, -rate * rate * dot / norm, 1.0f};
}

static __device__ __forceinline__ Scales scales_of(const Chain &c, const Quad &q) {
    const Phase &p = c.phase[q.phase];
    if (p.second != NOBODY) return slope_scales(c, q);
    float rate = p.power > 0 ? c.rates[q.matrix] : 1.0f;
    if (p.power == 2) rate *= rate;
    return {rate, rate, 0.0f, rate};
}

#endif /* HAVE_SM90A */

#endif
