/* Attention within windows: what the general path and the one for tensor cores share. */
#ifndef TTV_KERNELS_CUDA_ATTENTION_CUH
#define TTV_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/common.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453f

/* packed [W,l,3d], o and dout [W,l,d], lse [W,heads,l]; width: channels of a head. */
typedef struct AttentionArgs {
    const void *packed, *dout, *o;
    void *to;   /* o of the forward, dpacked of the backward */
    float *lse; /* written (or NULL) by the forward */
    const float *q_w, *k_w;
    float *delta;   /* [W,heads,l]: general backward */
    float *weights; /* backward: [parts][width], see attention_weights; NULL: not wanted */
    float *carry;   /* backward: sums over blocks of keys, see there; NULL: one block */
    int tokens, heads, width;
    float scale, eps;
} AttentionArgs;

/* First element of a head's q (third 0), k or v of one token, and of its part of o. */
static __device__ __forceinline__ int64_t packed_at(const AttentionArgs &a, int64_t window,
                                                    int third, int head, int token) {
    return ((window * a.tokens + token) * 3 + third) * a.heads * a.width + head * a.width;
}
static __device__ __forceinline__ int64_t plain_at(const AttentionArgs &a, int64_t window, int head,
                                                   int token) {
    return ((window * a.tokens + token) * a.heads + head) * a.width;
}

/* The weights' gradients. Both follow from A[c] = sum over i, j of dS_ij q_ic k_jc rate_i rate_j:
 * dq_w = k_w A, dk_w = q_w A. The kernels leave A / scale in `parts` parts. */
Status attention_weights(Device *d, Grad dq_w, Grad dk_w, const AttentionArgs &a, int64_t parts);

#define ATTENTION_WIDTH 256 /* most channels of a head */

/* The path for every size and type; bytes of shared memory that it needs. */
Status attention_any(Device *d, const AttentionArgs &a, int64_t windows, DType dtype);
size_t attention_any_shared(int64_t width);
int64_t attention_any_parts(int64_t windows, int64_t heads, int64_t tokens);
Status attention_any_backward(Device *d, const AttentionArgs &a, int64_t windows, DType dtype);

/* The path for BF16 and heads of 64 channels. */
bool attention_mma_fits(Device *d, const Tensor &packed, int64_t heads);
Status attention_mma(Device *d, const AttentionArgs &a, int64_t windows);
/* Parts that attention_mma_backward leaves, and bytes of its `carry`. */
int64_t attention_mma_parts(int64_t windows, int64_t heads);
size_t attention_mma_carry(int64_t windows, int64_t heads, int64_t tokens);
Status attention_mma_backward(Device *d, const AttentionArgs &a, int64_t windows);

/* The path for windows of at most 256 tokens on Hopper, besides that attention_mma_fits: the same
 * parts, no carry. */
bool attention_hopper_fits(Device *d, const AttentionArgs &a, int64_t windows);
Status attention_hopper(Device *d, const AttentionArgs &a, int64_t windows);
Status attention_hopper_backward(Device *d, const AttentionArgs &a, int64_t windows);
/* For windows of more than 192 tokens; parts that it leaves. */
bool attention_window_backward_fits(Device *d, const AttentionArgs &a, int64_t windows);
int64_t attention_window_parts(Device *d, int64_t windows, int64_t heads);
Status attention_window_backward(Device *d, const AttentionArgs &a, int64_t windows);

#endif
