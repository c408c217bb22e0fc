/* Matrix product for the shapes that cuBLASLt has no algorithm for (odd pitches of BF16, say): 32 x
 * 32 tiles in shared memory, four results per thread. Correct for every size; not fast. */
#include "kernels/cuda/gemm.cuh"

#define TILE 32

template <typename Ti, typename To>
__global__ void __launch_bounds__(TILE * 8) gemm_simple_kernel(GemmCall g) {
    __shared__ float as[TILE][TILE + 1], bs[TILE][TILE + 1];
    const Ti *a = (const Ti *)g.a + blockIdx.z * g.step_a;
    const Ti *b = (const Ti *)g.b + blockIdx.z * g.step_b;
    To *c = (To *)g.c + blockIdx.z * g.step_c;
    const int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE;
    const int tx = threadIdx.x, ty = threadIdx.y;
    float sum[4] = {};
    for (int64_t k0 = 0; k0 < g.k; k0 += TILE) {
        for (int r = ty; r < TILE; r += 8) {
            /* the fast index of the thread runs along the memory's fast index */
            const int64_t am = g.ta ? m0 + tx : m0 + r, ak = g.ta ? k0 + r : k0 + tx;
            const int64_t bk = g.tb ? k0 + tx : k0 + r, bn = g.tb ? n0 + r : n0 + tx;
            const float av =
                am < g.m && ak < g.k ? to_float(a[g.ta ? ak * g.lda + am : am * g.lda + ak]) : 0;
            const float bv =
                bn < g.n && bk < g.k ? to_float(b[g.tb ? bn * g.ldb + bk : bk * g.ldb + bn]) : 0;
            as[g.ta ? tx : r][g.ta ? r : tx] = av;
            bs[g.tb ? tx : r][g.tb ? r : tx] = bv;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int q = 0; q < 4; q++) sum[q] += as[ty + 8 * q][k] * bs[k][tx];
        __syncthreads();
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const int64_t m = m0 + ty + 8 * q, n = n0 + tx;
        if (m >= g.m || n >= g.n) continue;
        float value[1] = {g.alpha * sum[q] + (g.bias ? g.bias[n] : 0.0f)};
        if (g.add && g.from)
            value[0] += to_float(((const To *)g.from)[blockIdx.z * g.step_c + m * g.ldc + n]);
        pack_put<To, 1>(c + m * g.ldc + n, value, g.add && !g.from);
    }
}

Status gemm_simple(Device *d, const GemmCall *g) {
    const dim3 block(TILE, 8);
    GemmCall part = *g;
    for (int64_t first = 0; first < g->batch; first += 65535) { /* limit of the grid's third axis */
        const int64_t left = g->batch - first, count = left < 65535 ? left : 65535;
        const dim3 grid((unsigned)ceil_div(g->n, TILE), (unsigned)ceil_div(g->m, TILE),
                        (unsigned)count);
        part.a = (const char *)g->a + first * g->step_a * (int64_t)dtype_size(g->in);
        part.b = (const char *)g->b + first * g->step_b * (int64_t)dtype_size(g->in);
        part.c = (char *)g->c + first * g->step_c * (int64_t)dtype_size(g->out);
        if (g->from)
            part.from = (const char *)g->from + first * g->step_c * (int64_t)dtype_size(g->out);
        WITH_ACT("matmul", g->in, Ti,
                 WITH_ACT("matmul", g->out, To,
                          gemm_simple_kernel<Ti, To><<<grid, block, 0, stream_of(d)>>>(part)));
        TRY(launched("matmul"));
    }
    return STATUS_OK;
}
