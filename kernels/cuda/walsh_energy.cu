/* Energies of rows mixed by a Walsh matrix. A block transforms 32 columns of a run of rows, three
 * bits of the row at a time in registers and between them through shared memory, so that nothing of
 * the result reaches memory but the squares' sums of its columns.
 */
#include "kernels/cuda/common.cuh"

#define WARPS   8
#define COLUMNS 32 /* of a block: a lane each */

/* v <- sums and differences over all bits of its index. */
template <int R> static __device__ __forceinline__ void butterflies(float (&v)[R]) {
#pragma unroll
    for (int half = 1; half < R; half *= 2)
#pragma unroll
        for (int i = 0; i < R; i++)
            if (!(i & half)) {
                const float sum = v[i] + v[i + half];
                v[i + half] = v[i] - v[i + half];
                v[i] = sum;
            }
}

/* Sums of the squares of R rows over the lanes; row i of them goes to to[i * stride]. A lane keeps
 * half of its rows each time. */
template <int R>
static __device__ __forceinline__ void store_squares(float *to, int stride, const float (&v)[R]) {
    float kept[R];
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < R; i++) kept[i] = v[i] * v[i];
    int row = 0, by = 16;
#pragma unroll
    for (int half = R / 2; half >= 1; half /= 2, by /= 2) {
        const bool upper = lane & by;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float sent = upper ? kept[i] : kept[i + half];
            kept[i] = (upper ? kept[i + half] : kept[i]) + __shfl_xor_sync(0xffffffffu, sent, by);
        }
        row += upper ? half : 0;
    }
    const int last = by;
#pragma unroll
    for (int step = 16; step >= 1; step /= 2)
        if (step <= last) kept[0] += __shfl_xor_sync(0xffffffffu, kept[0], step);
    if ((lane & (2 * last - 1)) == 0) to[row * stride] = kept[0];
}

/* The row of digits high, middle, low; a digit of zero bits is 0. */
template <int BITS> struct Digits {
    static constexpr int HIGH = BITS < 3 ? BITS : 3;
    static constexpr int MIDDLE = BITS - HIGH < 3 ? BITS - HIGH : 3;
    static constexpr int LOW = BITS - HIGH - MIDDLE;
};

/* partial[G][column block][n], unscaled. Grid: column blocks, runs, G. */
template <typename T, int BITS>
__global__ void __launch_bounds__(32 * WARPS)
    energy_kernel(float *partial, const T *x, int n, int c) {
    typedef Digits<BITS> D;
    constexpr int HIGHS = 1 << D::HIGH, MIDDLES = 1 << D::MIDDLE, LOWS = 1 << D::LOW;
    extern __shared__ float tile[]; /* [run][COLUMNS] */
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int column = blockIdx.x * COLUMNS + lane, first = blockIdx.y << BITS;
    /* lanes past the last column take it once more and count as 0: without a branch all loads are
     * under way at once */
    const T *in = x + ((int64_t)blockIdx.z * n + first) * c + min(column, c - 1);
    const float weight = column < c ? 1.0f : 0.0f;
    float *out = partial + ((int64_t)blockIdx.z * gridDim.x + blockIdx.x) * n + first;
#pragma unroll 2
    for (int rest = warp; rest < MIDDLES * LOWS; rest += WARPS) {
        float v[HIGHS];
#pragma unroll
        for (int i = 0; i < HIGHS; i++)
            v[i] = to_float(in[(int64_t)(i * MIDDLES * LOWS + rest) * c]);
#pragma unroll
        for (int i = 0; i < HIGHS; i++) v[i] *= weight;
        butterflies<HIGHS>(v);
        if (D::MIDDLE == 0) {
            store_squares<HIGHS>(out + rest, MIDDLES * LOWS, v);
        } else {
#pragma unroll
            for (int i = 0; i < HIGHS; i++)
                tile[(i * MIDDLES * LOWS + rest) * COLUMNS + lane] = v[i];
        }
    }
    if (D::MIDDLE == 0) return;
    __syncthreads();
    for (int rest = warp; rest < HIGHS * LOWS; rest += WARPS) {
        const int at = rest / LOWS * MIDDLES * LOWS + rest % LOWS;
        float v[MIDDLES];
#pragma unroll
        for (int i = 0; i < MIDDLES; i++) v[i] = tile[(at + i * LOWS) * COLUMNS + lane];
        butterflies<MIDDLES>(v);
        if (D::LOW == 0) {
            store_squares<MIDDLES>(out + at, LOWS, v);
        } else {
#pragma unroll
            for (int i = 0; i < MIDDLES; i++) tile[(at + i * LOWS) * COLUMNS + lane] = v[i];
        }
    }
    if (D::LOW == 0) return;
    __syncthreads();
    for (int rest = warp; rest < HIGHS * MIDDLES; rest += WARPS) {
        float v[LOWS];
#pragma unroll
        for (int i = 0; i < LOWS; i++) v[i] = tile[(rest * LOWS + i) * COLUMNS + lane];
        butterflies<LOWS>(v);
        store_squares<LOWS>(out + rest * LOWS, 1, v);
    }
}

/* energy = scale times the sum of its parts, in their order. */
__global__ void energy_total_kernel(float *energy, const float *partial, int parts, int n,
                                    int64_t count, float scale) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const float *own = partial + i / n * parts * n + i % n;
    float sum = 0;
    for (int p = 0; p < parts; p++) sum += own[(int64_t)p * n];
    energy[i] = scale * sum;
}

template <typename T, int BITS>
static Status energy_parts(Device *d, float *partial, const T *x, int64_t groups, int n, int c) {
    const size_t bytes = BITS > 3 ? sizeof(float) * COLUMNS << BITS : 0;
    const dim3 grid((unsigned)ceil_div(c, COLUMNS), (unsigned)(n >> BITS), (unsigned)groups);
    if (bytes > 48 * 1024)
        CUDA_TRY(cudaFuncSetAttribute(energy_kernel<T, BITS>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                 "walsh_energy");
    energy_kernel<T, BITS><<<grid, dim3(COLUMNS, WARPS), bytes, stream_of(d)>>>(partial, x, n, c);
    return launched("walsh_energy");
}

template <typename T>
static Status energy_by_run(Device *d, float *partial, const T *x, int64_t groups, int n, int c) {
    switch (walsh_run(n)) {
    case 1:
        return energy_parts<T, 0>(d, partial, x, groups, n, c);
    case 2:
        return energy_parts<T, 1>(d, partial, x, groups, n, c);
    case 4:
        return energy_parts<T, 2>(d, partial, x, groups, n, c);
    case 8:
        return energy_parts<T, 3>(d, partial, x, groups, n, c);
    case 16:
        return energy_parts<T, 4>(d, partial, x, groups, n, c);
    case 32:
        return energy_parts<T, 5>(d, partial, x, groups, n, c);
    case 64:
        return energy_parts<T, 6>(d, partial, x, groups, n, c);
    case 128:
        return energy_parts<T, 7>(d, partial, x, groups, n, c);
    case 256:
        return energy_parts<T, 8>(d, partial, x, groups, n, c);
    default:
        return energy_parts<T, 9>(d, partial, x, groups, n, c);
    }
}

static Status energies(Device *d, Tensor energy, Tensor x) {
    const int64_t groups = x.shape[0], parts = ceil_div(x.shape[2], COLUMNS);
    const int n = (int)x.shape[1], c = (int)x.shape[2];
    const int64_t count = groups * n;
    float *partial;
    TRY(scratch_take(d, sizeof(float) * (size_t)(count * parts), (void **)&partial));
    WITH_ACT("walsh_energy", x.dtype, T,
             TRY(energy_by_run<T>(d, partial, (const T *)x.data, groups, n, c)));
    energy_total_kernel<<<(unsigned)ceil_div(count, 256), 256, 0, stream_of(d)>>>(
        (float *)energy.data, partial, (int)parts, n, count, 1.0f / (float)walsh_run(n));
    return launched("walsh_energy");
}

extern "C" Status walsh_energy_cuda(Device *d, Tensor energy, Tensor x) {
    const Status status = energies(d, energy, x);
    scratch_done(d);
    return status;
}
