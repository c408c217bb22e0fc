/* Places of a 3x3 convolution with padding 1 on a map. */
#ifndef TTV_KERNELS_CUDA_PLACES_CUH
#define TTV_KERNELS_CUDA_PLACES_CUH

#include "kernels/cuda/common.cuh"

typedef struct Places {
    int64_t batch;
    int height, width, channels, stride, rows, columns;
} Places;

static inline Places places_of(Tensor x, int64_t stride) {
    return {x.shape[0],
            (int)x.shape[1],
            (int)x.shape[2],
            (int)x.shape[3],
            (int)stride,
            (int)ceil_div(x.shape[1], stride),
            (int)ceil_div(x.shape[2], stride)};
}

static inline unsigned over_batch(const Places &p) {
    return (unsigned)(p.batch < 65535 ? p.batch : 65535);
}

/* Kernels count within a sample in 32 bits. */
static inline Status fits_sample(const char *kernel, const Places &p) {
    if (9 * (int64_t)p.height * p.width * p.channels < (int64_t)1 << 31) return STATUS_OK;
    return status_set(STATUS_INTERNAL, "%s on CUDA: a map of %d x %d x %d is too large", kernel,
                      p.height, p.width, p.channels);
}

/* The place whose tap t looks at (h, w) of the map, or -1. */
static __device__ __forceinline__ int looking(const Places &p, int h, int w, int t) {
    const int y = h - (t / 3 - 1), x = w - (t % 3 - 1);
    if (y < 0 || x < 0 || y % p.stride || x % p.stride) return -1;
    const int row = y / p.stride, column = x / p.stride;
    return row < p.rows && column < p.columns ? row * p.columns + column : -1;
}

/* Convolutions of `channels` to as many channels with stride 1 and BF16 on tensor cores
 * (conv3_mma.cu). */
bool conv3_mma_fits(Device *d, const Places *p, int64_t outputs, DType act);
/* y (+)= the convolution of x; turned: with the adjoint of w. */
Status conv3_mma(Device *d, Grad y, Tensor x, Tensor w, const Places &p, bool turned);
Status conv3_mma_dw(Device *d, Grad dw, Tensor dy, Tensor x, const Places &p);

#endif
