/* What slots of the kernel table take besides tensors: kinds, sizes and descriptions. */
#ifndef TTV_KERNELS_KERNEL_TYPES_H
#define TTV_KERNELS_KERNEL_TYPES_H

#include "kernels/device.h"

/* Elementwise functions. gelu is the erf form; sigma = logistic, silu(x) = x sigma(x),
 * silu' = s(1+x(1-s)), silu'' = s(1-s)(2+x(1-2s)) (vittt.md 0). softplus(x) = log(1+e^x), whose
 * derivative is sigma; sigma' = s(1-s). gelu'' = (2-x^2) phi(x). GELU_TANH is the form with
 * tanh(sqrt(2/pi)(x + 0.044715 x^3)) (fastweight.md 0). STEP is relu' (0 at 0), SIGN(0) = 0.
 * RSQRT is 1/sqrt(x) and DRSQRT its derivative, both 0 where x <= 0.
 * LOG takes x below 1e-30 for 1e-30, where DLOG is 0. */
typedef enum UnaryKind {
    UNARY_SILU,
    UNARY_DSILU,
    UNARY_D2SILU,
    UNARY_GELU,
    UNARY_DGELU,
    UNARY_SIGMOID,
    UNARY_DSIGMOID,
    UNARY_SOFTPLUS,
    UNARY_D2GELU,
    UNARY_GELU_TANH,
    UNARY_DGELU_TANH,
    UNARY_D2GELU_TANH,
    UNARY_D2SIGMOID,
    UNARY_TANH,
    UNARY_DTANH,
    UNARY_D2TANH,
    UNARY_RELU,
    UNARY_STEP,
    UNARY_SIGN,
    UNARY_EXP,
    UNARY_RSQRT,
    UNARY_DRSQRT,
    UNARY_LOG,
    UNARY_DLOG
} UnaryKind;

typedef enum Activation { ACT_NONE, ACT_GELU } Activation;

/* Which 3x3 operator: CORRELATE y[p] = sum_t w[t] x[p+t]; TRANSPOSE y[p] = sum_t w[t] x[p-t]
 * (its adjoint). t runs over {-1,0,1}^2, zero padding, tap index (ty+1)*3 + tx+1. */
typedef enum TapMode { TAPS_CORRELATE, TAPS_TRANSPOSE } TapMode;

/* Sizes of the packed ViTTT projection (vittt.md 2): qkv is [B,N,3C+3d] with channels
 * q1[C] k1[C] v1[C] q2[d] k2[d] v2[d]; cat is [B,N,C+d]. */
typedef struct VitttShape {
    int64_t batch, height, width, heads, head_dim;
} VitttShape;

#define NEWTON_SCHULZ_MOST 8

/* A Newton-Schulz iteration as data: `steps` triples (a, b, c) (fastweight.md 4.3). */
typedef struct NewtonSchulz {
    int steps; /* 0 to NEWTON_SCHULZ_MOST */
    bool bf16; /* products may round their operands to BF16 */
    float triple[NEWTON_SCHULZ_MOST][3];
} NewtonSchulz;

/* Of slot token_basis: what is added to the Gram matrix by its own diagonal, and the smallest
 * diagonal element of r. The shift bounds what F32 makes of tokens that are nearly alike; what it
 * changes lies where Newton-Schulz is still linear, so that q' f(r' y) = f(x' y) there all the
 * same. */
#define TOKEN_SHIFT 1e-4f
#define TOKEN_LEAST 1e-10f

/* Most rows that one run of a Walsh matrix mixes (slots walsh_rows, walsh_energy). */
#define WALSH_RUN 512
static inline int64_t walsh_run(int64_t n) {
    const int64_t run = n & -n;
    return run < WALSH_RUN ? run : WALSH_RUN;
}

/* A matrix of fast weights in a step, and in its backward (slots weight_step). */
#define WEIGHT_PARTS 3
typedef struct WeightStep {
    Tensor y;
    int64_t at;
    Tensor stats, u, w;
} WeightStep;
typedef struct WeightSlope {
    Grad du, dw;
    Tensor dy;
    int64_t at;
    Tensor y, stats;
} WeightSlope;

/* Fast weights of one kind in a step between chunks (slot chunk_step). */
typedef struct ChunkStep {
    Tensor w, y;
    int64_t at;
    Tensor u, before, kept;
} ChunkStep;

/* A block of LaCT-NVS whose tokens only read (lact_nvs.md 3.2 to 3.4): its weights. Matrices act,
 * vectors F32. */
typedef struct ViewBlock {
    Tensor norm_w[3];                         /* [d] each: before attention, reading, MLP */
    Tensor qkv_w, q_norm_w, k_norm_w, proj_w; /* [3d,d], [dh], [dh], [d,d] */
    Tensor query_w, gates, back;              /* [d,d]; fast weights [B,H,e,2h], [B,H,h,e] */
    Tensor out_norm_w, out_w;                 /* [e], [d,d] */
    Tensor fc_w, fc_out_w;                    /* [f,d], [d,f] */
} ViewBlock;

/* What its blocks share, and memory for what lies between: u, o [R,d] and wide [R,max(3d,3Hh,f)]
 * act, R rows of all tokens. */
typedef struct ViewForm {
    int64_t heads, window;                          /* of attention: dh = d/heads, l tokens */
    float norm_eps, head_eps, unit_offset, out_eps; /* layer norms, q/k norms, |q|, o_norm */
    Tensor zeros;                                   /* F32 [d] */
    Tensor u, o, wide;
    Tensor end_norm_w, colours_w; /* what makes colours of the last x: F32 [d], act [C,d] */
    Tensor colours;               /* F32 [R,C], C <= the columns of wide; none: not wanted */
} ViewForm;

#endif
