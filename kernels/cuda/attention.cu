/* Attention within windows (lact_nvs.md 3.2, 5.5): which path takes it, and the gradients of the
 * norms' weights. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/few_attention.cuh"

/* ---- gradients of the weights ---------------------------------------------------------------- */

#define SUM_PARTS 160 /* that one block sums: no fewer than blocks of one head at a time */
#define SUM_ROWS  16  /* of threads, which share a block's parts */

/* The sums of parts [begin, end), in every row of threads. */
static __device__ __forceinline__ void parts_sum(float (*sums)[ATTENTION_WIDTH], const float *from,
                                                 int64_t begin, int64_t end, int width) {
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0;
#pragma unroll 8
        for (int64_t p = begin + threadIdx.y; p < end; p += SUM_ROWS) sum += from[p * width + c];
        sums[threadIdx.y][c] = sum;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < width && threadIdx.y == 0; c += blockDim.x) {
        float sum = 0;
#pragma unroll
        for (int y = 0; y < SUM_ROWS; y++) sum += sums[y][c];
        sums[0][c] = sum;
    }
}

/* to[block][width] = sum of the block's share of the parts. */
__global__ void __launch_bounds__(64 * SUM_ROWS)
    attention_sum_kernel(float *to, const float *from, int64_t parts, int width) {
    __shared__ float sums[SUM_ROWS][ATTENTION_WIDTH];
    parts_sum(sums, from, parts * blockIdx.x / gridDim.x, parts * (blockIdx.x + 1) / gridDim.x,
              width);
    for (int c = threadIdx.x; c < width && threadIdx.y == 0; c += blockDim.x)
        to[(int64_t)blockIdx.x * width + c] = sums[0][c];
}

__global__ void __launch_bounds__(64 * SUM_ROWS)
    attention_weights_kernel(Grad dq_w, Grad dk_w, const float *from, int parts, AttentionArgs a) {
    __shared__ float sums[SUM_ROWS][ATTENTION_WIDTH];
    parts_sum(sums, from, 0, parts, a.width);
    for (int c = threadIdx.x; c < a.width && threadIdx.y == 0; c += blockDim.x) {
        const float sum = sums[0][c] * a.scale;
        float q[1] = {sum * a.k_w[c]}, k[1] = {sum * a.q_w[c]};
        if (dq_w.t.data) pack_put<float, 1>((float *)dq_w.t.data + c, q, dq_w.add);
        if (dk_w.t.data) pack_put<float, 1>((float *)dk_w.t.data + c, k, dk_w.add);
    }
}

Status attention_weights(Device *d, Grad dq_w, Grad dk_w, const AttentionArgs &a, int64_t parts) {
    const float *from = a.weights;
    if (parts > SUM_PARTS) {
        void *less;
        TRY(scratch_take(d, sizeof(float) * SUM_PARTS * a.width, &less));
        attention_sum_kernel<<<SUM_PARTS, dim3(64, SUM_ROWS), 0, stream_of(d)>>>(
            (float *)less, from, parts, a.width);
        from = (const float *)less;
        parts = SUM_PARTS;
    }
    attention_weights_kernel<<<1, dim3(64, SUM_ROWS), 0, stream_of(d)>>>(dq_w, dk_w, from,
                                                                         (int)parts, a);
    return launched("attention_backward, weights");
}

/* ---- the slots ------------------------------------------------------------------------------- */

static Status args_check(Device *d, const Tensor &packed, int64_t heads, Tensor other) {
    const int64_t width = tensor_last(packed) / (3 * heads);
    if (other.dtype != packed.dtype) return refuse_dtype("attention", other.dtype);
    if (width > ATTENTION_WIDTH)
        return status_set(STATUS_INTERNAL, "attention on CUDA: heads of %lld channels, at most %d",
                          (long long)width, ATTENTION_WIDTH);
    if (packed.shape[1] > INT32_MAX / 2 || attention_any_shared(width) > backend_of(d)->smem_limit)
        return status_set(STATUS_INTERNAL, "attention on CUDA: %lld tokens, heads of %lld channels",
                          (long long)packed.shape[1], (long long)width);
    return STATUS_OK;
}

static AttentionArgs args_of(const Tensor &packed, Tensor q_w, Tensor k_w, int64_t heads,
                             float eps) {
    AttentionArgs a = {};
    a.packed = packed.data;
    a.q_w = (const float *)q_w.data;
    a.k_w = (const float *)k_w.data;
    a.tokens = (int)packed.shape[1];
    a.heads = (int)heads;
    a.width = (int)(tensor_last(packed) / (3 * heads));
    a.scale = 1.0f / sqrtf((float)a.width);
    a.eps = eps;
    return a;
}

extern "C" Status attention_cuda(Device *d, Tensor o, Tensor lse, Tensor packed, Tensor q_w,
                                 Tensor k_w, int64_t heads, float eps) {
    if (tensor_count(packed) == 0) return STATUS_OK;
    TRY(args_check(d, packed, heads, o));
    AttentionArgs a = args_of(packed, q_w, k_w, heads, eps);
    a.to = o.data;
    a.lse = (float *)lse.data;
    const int64_t windows = packed.shape[0];
    if (attention_mma_fits(d, packed, heads) && is_aligned(o.data, 16)) {
        const int64_t blocks = windows * heads * ceil_div(a.tokens, 64);
        if (blocks <= backend_of(d)->sm_count && few_attention_fits(d, a))
            return few_attention(d, a, windows);
        /* a block has a whole head: few of them leave the card idle */
        const bool many = windows * heads >= backend_of(d)->sm_count;
        return many && attention_hopper_fits(d, a, windows) ? attention_hopper(d, a, windows)
                                                            : attention_mma(d, a, windows);
    }
    return attention_any(d, a, windows, packed.dtype);
}

static Status backward(Device *d, AttentionArgs &a, Grad dq_w, Grad dk_w, const Tensor &packed,
                       bool fast) {
    const int64_t windows = packed.shape[0], rows = windows * a.heads * a.tokens;
    const bool window = fast && attention_window_backward_fits(d, a, windows);
    const int64_t parts = window ? attention_window_parts(d, windows, a.heads)
                          : fast ? attention_mma_parts(windows, a.heads)
                                 : attention_any_parts(windows, a.heads, a.tokens);
    const bool sums = dq_w.t.data || dk_w.t.data;
    void *memory;
    if (sums) {
        TRY(scratch_take(d, sizeof(float) * parts * a.width, &memory));
        a.weights = (float *)memory;
    }
    if (fast) {
        const size_t carry = attention_mma_carry(windows, a.heads, a.tokens);
        if (carry) {
            TRY(scratch_take(d, carry, &memory));
            a.carry = (float *)memory;
        }
        TRY(window                                 ? attention_window_backward(d, a, windows)
            : attention_hopper_fits(d, a, windows) ? attention_hopper_backward(d, a, windows)
                                                   : attention_mma_backward(d, a, windows));
    } else {
        TRY(scratch_take(d, sizeof(float) * rows, &memory));
        a.delta = (float *)memory;
        TRY(attention_any_backward(d, a, windows, packed.dtype));
    }
    return sums ? attention_weights(d, dq_w, dk_w, a, parts) : STATUS_OK;
}

extern "C" Status attention_backward_cuda(Device *d, Tensor dpacked, Grad dq_w, Grad dk_w,
                                          Tensor dout, Tensor o, Tensor lse, Tensor packed,
                                          Tensor q_w, Tensor k_w, int64_t heads, float eps) {
    if (tensor_count(packed) == 0) return STATUS_OK;
    TRY(args_check(d, packed, heads, dpacked));
    TRY(args_check(d, packed, heads, dout));
    AttentionArgs a = args_of(packed, q_w, k_w, heads, eps);
    a.to = dpacked.data;
    a.dout = dout.data;
    a.o = o.data;
    a.lse = (float *)lse.data;
    const bool fast = attention_mma_fits(d, packed, heads) && is_aligned(dpacked.data, 16) &&
                      is_aligned(dout.data, 16) && is_aligned(o.data, 16);
    const Status status = backward(d, a, dq_w, dk_w, packed, fast);
    scratch_done(d);
    return status;
}
