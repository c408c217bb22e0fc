/* What every .cu file shares: the backend behind a Device, error checks, 16-byte packs, reductions.
 *
 * Code here is C with templates over dtype and tile. Numbers are F32 in registers whatever they are
 * in memory. Reductions have a fixed order: never atomics.
 */
#ifndef TTV_KERNELS_CUDA_COMMON_CUH
#define TTV_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" { /* C headers, before anything that includes them */
#include "core/memory.h"
#include "core/status.h"
#include "kernels/kernels.h"
}
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table.h"

typedef __nv_bfloat16 bf16;
typedef struct GemmCache GemmCache;

#define STAGING_BUFFERS 4
#define STAGING_BYTES   ((size_t)8 << 20)
#define FEEDS           8

/* One destination of device_stage(): its data waits in `staged` until device_commit(). */
typedef struct Feed {
    void *dst, *staged, *pinned;
    size_t capacity, pending; /* bytes; pending 0: nothing waits */
} Feed;

/* Device.backend of a CUDA device. */
typedef struct CudaBackend {
    cudaStream_t stream;
    int sm_count;
    int compute;                    /* 10 major + minor */
    bool sm90a;                     /* the loaded code has the instructions of Hopper alone */
    size_t smem_limit;              /* most shared memory that one block may have */
    void *staging[STAGING_BUFFERS]; /* pinned */
    cudaEvent_t staging_free[STAGING_BUFFERS];
    int staging_next;
    cudaStream_t copies; /* of the feeds: runs beside `stream` */
    Feed feeds[FEEDS];
    int feed_count;
    cudaEvent_t arrived, taken; /* all staged data; the copies of the last commit */
    GemmCache *gemm;
} CudaBackend;

static inline CudaBackend *backend_of(Device *d) {
    return (CudaBackend *)d->backend;
}
static inline cudaStream_t stream_of(Device *d) {
    return backend_of(d)->stream;
}

/* STATUS_DEVICE (STATUS_MEMORY when memory ran out) with CUDA's own words. */
Status cuda_fault(cudaError_t code, const char *doing);

#define CUDA_TRY(call, doing)                                                                      \
    do {                                                                                           \
        cudaError_t cuda_code_ = (call);                                                           \
        if (cuda_code_ != cudaSuccess) return cuda_fault(cuda_code_, doing);                       \
    } while (0)

/* After a launch: its configuration error, if any. */
static inline Status launched(const char *kernel) {
    const cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? STATUS_OK : cuda_fault(code, kernel);
}

static inline Status refuse_dtype(const char *kernel, DType dtype) {
    return status_set(STATUS_INTERNAL, "%s on CUDA: no case for dtype %s", kernel,
                      dtype_name(dtype));
}

/* Runs the statements with T = float or bf16. */
#define WITH_ACT(kernel, dtype_of, T, ...)                                                         \
    do {                                                                                           \
        if ((dtype_of) == DTYPE_F32) {                                                             \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((dtype_of) == DTYPE_BF16) {                                                     \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            return refuse_dtype(kernel, dtype_of);                                                 \
        }                                                                                          \
    } while (0)

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline bool is_aligned(const void *p, size_t bytes) {
    return (uintptr_t)p % bytes == 0;
}

/* ---- memory of a kernel's own -------------------------------------------------------------------
 */

/* scratch_take() from d->scratch; scratch_done() empties it again (stream order keeps the contents
 * until the kernels that were launched have read them). */
static inline Status scratch_take(Device *d, size_t bytes, void **out) {
    return arena_take(&d->scratch, bytes, out);
}
static inline void scratch_done(Device *d) {
    arena_reset(&d->scratch);
}

/* ---- numbers ------------------------------------------------------------------------------------
 */

static __device__ __forceinline__ float to_float(float x) {
    return x;
}
static __device__ __forceinline__ float to_float(bf16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ void from_float(float *y, float x) {
    *y = x;
}
static __device__ __forceinline__ void from_float(bf16 *y, float x) {
    *y = __float2bfloat16_rn(x);
}

/* V elements of T as one access of V * sizeof(T) bytes (at most 16). */
template <typename T, int V> struct alignas(V * sizeof(T)) Pack { T v[V]; };

template <typename T, int V>
static __device__ __forceinline__ void pack_load(float (&out)[V], const T *p) {
    const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V> *>(p);
#pragma unroll
    for (int i = 0; i < V; i++) out[i] = to_float(pack.v[i]);
}

template <typename T, int V>
static __device__ __forceinline__ void pack_store(T *p, const float (&in)[V]) {
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; i++) from_float(&pack.v[i], in[i]);
    *reinterpret_cast<Pack<T, V> *>(p) = pack;
}

/* y (+)= value */
template <typename T, int V>
static __device__ __forceinline__ void pack_put(T *p, float (&value)[V], bool add) {
    if (add) {
        float old[V];
        pack_load<T, V>(old, p);
#pragma unroll
        for (int i = 0; i < V; i++) value[i] += old[i];
    }
    pack_store<T, V>(p, value);
}

/* V floats in accesses of 16 bytes where V allows that. */
template <int V> static __device__ __forceinline__ void line_load(float (&out)[V], const float *p) {
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(p + i);
            out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) out[i] = p[i];
    }
}

/* ---- functions ----------------------------------------------------------------------------------
 */

/* 1/y to one unit in the last place. A full division has a slow path, and its branches keep the
 * compiler from working on several elements at once. */
static __device__ __forceinline__ float reciprocal(float y) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    return r;
}

/* 2^x to two units in the last place; 0 where the result would be denormal. */
static __device__ __forceinline__ float exponential2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

static __device__ __forceinline__ float logistic(float x) {
    return reciprocal(1.0f + exponential2(x * -1.4426950408889634f));
}

/* GELU and its derivative, x Phi(x) and Phi(x) + x phi(x), to 1.5e-7: 1 - Phi(|x|) by Abramowitz
 * and Stegun 7.1.26, whose exponential is also that of the density. */
static __device__ __forceinline__ float normal_tail(float x, float *e) {
    const float t = reciprocal(fmaf(0.2316418882f, fabsf(x), 1.0f)); /* 0.3275911 / sqrt(2) */
    *e = exponential2(x * x * -0.7213475204f);                       /* e^(-x^2/2) */
    float poly = fmaf(0.5307027145f, t, -0.7265760135f);
    poly = fmaf(poly, t, 0.7107068705f);
    poly = fmaf(poly, t, -0.142248368f);
    poly = fmaf(poly, t, 0.127414796f);
    return poly * t * *e;
}
static __device__ __forceinline__ float gelu_quick(float x) {
    float e;
    const float tail = normal_tail(x, &e);
    return fmaf(-fabsf(x), tail, fmaxf(x, 0.0f));
}
static __device__ __forceinline__ float gelu_slope_quick(float x) {
    float e;
    const float tail = normal_tail(x, &e);
    return fmaf(0.39894228040143268f * x, e, 0.5f + copysignf(0.5f - tail, x));
}

/* Sum over the 32 lanes, the same value in each. */
static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}
static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

/* ---- second stage of every two-stage reduction ---------------------------------------------- */

/* out[n] (+)= alpha * sum over p of partial[p * stride + n], in a fixed order. */
Status reduce_partials(Device *d, Grad out, const float *partial, int64_t parts, int64_t stride,
                       float alpha);
/* Two of them, alpha 1, with one launch; either may be none. */
Status reduce_partials_two(Device *d, Grad a, Grad b, const float *partial_a,
                           const float *partial_b, int64_t parts, int64_t stride);

#endif
