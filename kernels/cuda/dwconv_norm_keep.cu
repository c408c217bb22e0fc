/* The position encoding with the layer norm that follows it, on whole rows of the map (Hopper),
 * outputs kept in registers.
 *
 * A thread has V channels and walks along a row; the row's outputs stay with it, rounded, while
 * the block adds up their means and variances, and become the norm's results there. Each warp has
 * sums of its own channels around one of its own values; they are put together as Chan, Golub and
 * LeVeque do ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
 */
#include "kernels/cuda/dwconv_norm.cuh"
#include "kernels/cuda/rowtaps.cuh"

#define MOST_PIXELS   16 /* of a row */
#define MOST_WARPS    12
#define MOST_CHANNELS 768
#define SLOTS         4 /* of the ring: three in use, one in flight */

#if HAVE_SM90A

/* V channels as V / 2 words. */
template <int V> static __device__ __forceinline__ void words_get(uint32_t (&w)[V / 2], Shared at) {
    if (V == 4)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[V / 2 - 1]) : "r"(at));
    else
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(at));
}
template <int V>
static __device__ __forceinline__ void words_put(bf16 *to, const uint32_t (&w)[V / 2]) {
    if (V == 4)
        *reinterpret_cast<uint2 *>(to) = make_uint2(w[0], w[V / 2 - 1]);
    else
        *reinterpret_cast<uint32_t *>(to) = w[0];
}
static __device__ __forceinline__ float word_value(uint32_t w, int i) {
    return __uint_as_float(i ? w & 0xffff0000u : w << 16);
}

/* A column of inputs into the outputs that it touches. */
template <int V>
static __device__ __forceinline__ void keep_column(float (&left)[V], float (&here)[V],
                                                   float (&right)[V], ThreeRows &t,
                                                   const float (&w)[9][V]) {
#pragma unroll
    for (int k = 0; k < 3; k++) {
        uint32_t raw[V / 2];
        words_get<V>(raw, t.at[k]);
        t.at[k] += t.step[k];
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float x = word_value(raw[v / 2], v % 2);
            left[v] += w[3 * k + 2][v] * x;
            here[v] += w[3 * k + 1][v] * x;
            right[v] += w[3 * k][v] * x;
        }
    }
}

/* One row of outputs, rounded, to memory and into `kept`. */
template <int V, int W>
static __device__ __forceinline__ void row_keep(uint32_t (&kept)[W][V / 2], bf16 *sum, ThreeRows t,
                                                int channels, const float (&w)[9][V],
                                                const float (&bias)[V]) {
    float left[V], here[V], right[V];
#pragma unroll
    for (int v = 0; v < V; v++) here[v] = right[v] = bias[v];
#pragma unroll
    for (int x = 0; x <= W; x++) {
        if (x < W) keep_column<V>(left, here, right, t, w);
        if (x > 0) {
#pragma unroll
            for (int v = 0; v < V; v += 2) kept[x - 1][v / 2] = pack2(left[v], left[v + 1]);
            words_put<V>(sum + (x - 1) * channels, kept[x - 1]);
        }
#pragma unroll
        for (int v = 0; v < V; v++) left[v] = here[v], here[v] = right[v], right[v] = bias[v];
    }
}

/* v[16] summed over the warp; lane l is left with v[l / 2]. */
template <int SIZE> static __device__ __forceinline__ void lanes_fold(float (&v)[16]) {
    const bool upper = threadIdx.x & (2 * SIZE);
#pragma unroll
    for (int i = 0; i < SIZE; i++) {
        const float give = upper ? v[i] : v[SIZE + i], keep = upper ? v[SIZE + i] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, 2 * SIZE);
    }
}
static __device__ __forceinline__ float lanes_sum(float (&v)[16]) {
    lanes_fold<8>(v);
    lanes_fold<4>(v);
    lanes_fold<2>(v);
    lanes_fold<1>(v);
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

/* Lane l: mean of the warp's 32 V channels of pixel l / 2 and the sum of squares around it. */
template <int V, int W>
static __device__ __forceinline__ float2 warp_moments(const uint32_t (&kept)[W][V / 2]) {
    float sum[16], square[16], mine = 0; /* mine: the lane's pixel's pivot */
#pragma unroll
    for (int x = 0; x < 16; x++) {
        sum[x] = square[x] = 0;
        if (x >= W) continue;
        const float pivot = word_value(__shfl_sync(0xffffffffu, kept[x][0], 0), 0);
        if (threadIdx.x % 32 / 2 == x) mine = pivot;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float u = word_value(kept[x][v / 2], v % 2) - pivot;
            sum[x] += u;
            square[x] += u * u;
        }
    }
    const float s = lanes_sum(sum), q = lanes_sum(square), mean = s * (1.0f / (32 * V));
    return make_float2(mine + mean, fmaxf(q - s * mean, 0.0f));
}

/* Lane l: mean and rate of pixel l / 2 from all warps' moments [warp][16]. */
template <int V>
static __device__ __forceinline__ float2 block_moments(const float2 *parts, int warps,
                                                       const NormArgs &n) {
    const int lane = threadIdx.x % 32, first = lane % 2;
    float sum = 0, square = 0;
    for (int i = first; i < warps; i += 2) sum += parts[i * 16 + lane / 2].x;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    const float mean = sum * (32 * V) * n.inverse;
    for (int i = first; i < warps; i += 2) {
        const float2 p = parts[i * 16 + lane / 2];
        const float off = p.x - mean;
        square += p.y + 32 * V * off * off;
    }
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    return make_float2(mean, rsqrtf(square * n.inverse + n.eps));
}

template <int V, int W>
static __device__ __forceinline__ void row_finish(bf16 *y, const uint32_t (&kept)[W][V / 2],
                                                  const float2 *moments, int channels,
                                                  const float (&gain)[V], const float (&shift)[V]) {
#pragma unroll
    for (int x = 0; x < W; x++) {
        const float2 m = moments[x];
        uint32_t out[V / 2];
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            float u[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                u[i] = (word_value(kept[x][v / 2], i) - m.x) * m.y * gain[v + i] + shift[v + i];
            out[v / 2] = pack2(u[0], u[1]);
        }
        words_put<V>(y + x * channels, out);
    }
}

#endif /* HAVE_SM90A */

/* Shared memory: the ring, zeros, barriers, moments of the warps, twice, and of the row by warp.
 * Without NORM y is not wanted. */
template <int V, int W, bool NORM>
__global__ void __launch_bounds__(MOST_CHANNELS / V, 2)
    dwconv3_keep_kernel(bf16 *sum, bf16 *y, float *stats, const bf16 *x, RowCut c, ConvArgs g,
                        NormArgs n) {
#if HAVE_SM90A
    extern __shared__ __align__(128) char rows[];
    __shared__ float2 parts[2][MOST_WARPS * MOST_PIXELS], moments[MOST_WARPS][MOST_PIXELS];
    const int pitch = c.channels * (int)sizeof(bf16);
    char *zeros = rows + SLOTS * c.row_bytes;
    const RowRing ring = {shared_address(rows), shared_address(zeros) + pitch, SLOTS};
    const int channel = threadIdx.x * V, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    const bool feeder = threadIdx.x == 0;
    float w[9][V], bias[V], gain[V], shift[V];
    conv_taps<V>(w, bias, g, 0, channel);
#pragma unroll
    for (int v = 0; v < V && NORM; v++) gain[v] = n.w[channel + v], shift[v] = n.b[channel + v];
    zeros_init(zeros, pitch);
    if (feeder) ring_init(ring);
    __syncthreads();
    RowFeed feed = feed_init(x, c, 1);
    if (feeder) feed_rows(feed, ring, c, SLOTS);
    RowReader at = {};
    int turn = 0;
    for (int unit = blockIdx.x; unit < c.units; unit += gridDim.x) {
        const RowUnit u = row_unit(c, unit, 1);
        reader_unit(at, u);
        for (int row = u.begin; row < u.end; row++, turn ^= 1) {
            const int64_t first = ((int64_t)u.sample * c.height + row) * W;
            uint32_t kept[W][V / 2];
            reader_wait(at, ring, min(row + 2, u.bottom));
            reader_move(at, ring, row);
            row_keep<V, W>(kept, sum + first * c.channels + channel,
                           three_rows(at, ring, c, shared_address(zeros), row, pitch, 0,
                                      channel * (int)sizeof(bf16)),
                           c.channels, w, bias);
            const float2 mine = warp_moments<V, W>(kept);
            if (lane % 2 == 0) parts[turn][warp * 16 + lane / 2] = mine;
            __syncthreads();
            if (feeder)
                feed_rows(feed, ring, c,
                          row + 1 == u.end ? u.bottom - max(row - 1, u.top) : row > u.top);
            if (!NORM && warp < warps - 1) continue;
            const float2 all = block_moments<V>(parts[turn], warps, n);
            if (lane % 2 == 0) moments[warp][lane / 2] = all;
            if (stats && warp == warps - 1 && lane % 2 == 0 && lane / 2 < W)
                *reinterpret_cast<float2 *>(stats + 2 * (first + lane / 2)) = all;
            if (!NORM) continue;
            __syncwarp();
            row_finish<V, W>(y + first * c.channels + channel, kept, moments[warp], c.channels,
                             gain, shift);
            __syncwarp();
        }
    }
#endif
}

template <int V, int W, bool NORM>
static Status keep_launch(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x,
                          const ConvArgs &g, const NormArgs &n) {
    const int pitch = (int)(x.shape[3] * (int64_t)sizeof(bf16)), threads = (int)x.shape[3] / V;
    const int bytes = SLOTS * (int)x.shape[2] * pitch + pitch + 8 * SLOTS;
    int resident = 1;
    CUDA_TRY(cudaFuncSetAttribute(dwconv3_keep_kernel<V, W, NORM>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "dwconv3_norm");
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                 &resident, dwconv3_keep_kernel<V, W, NORM>, threads, bytes),
             "dwconv3_norm");
    const int64_t blocks = (int64_t)(resident > 0 ? resident : 1) * backend_of(d)->sm_count;
    const RowCut c = row_cut(x, blocks);
    dwconv3_keep_kernel<V, W, NORM>
        <<<(unsigned)(c.units < blocks ? c.units : blocks), threads, bytes, stream_of(d)>>>(
            (bf16 *)sum.data, (bf16 *)y.data, (float *)stats.data, (const bf16 *)x.data, c, g, n);
    return launched("dwconv3_norm");
}

/* Four channels a thread are faster than two where whole warps divide the row. */
template <int W, bool NORM>
static Status keep_run(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x, const ConvArgs &g,
                       const NormArgs &n) {
    return x.shape[3] % 128 == 0 ? keep_launch<4, W, NORM>(d, sum, y, stats, x, g, n)
                                 : keep_launch<2, W, NORM>(d, sum, y, stats, x, g, n);
}

bool dwconv3_norm_keeps(Tensor x) {
    const int64_t channels = x.shape[3], width = x.shape[2];
    return x.dtype == DTYPE_BF16 && (width == 14 || width == 16) && channels <= MOST_CHANNELS &&
           channels % 64 == 0;
}

Status dwconv3_norm_keep(Device *d, Tensor sum, Tensor y, Tensor stats, Tensor x, const ConvArgs &g,
                         const NormArgs &n) {
    if (!y.data)
        return x.shape[2] == 14 ? keep_run<14, false>(d, sum, y, stats, x, g, n)
                                : keep_run<16, false>(d, sum, y, stats, x, g, n);
    return x.shape[2] == 14 ? keep_run<14, true>(d, sum, y, stats, x, g, n)
                            : keep_run<16, true>(d, sum, y, stats, x, g, n);
}
