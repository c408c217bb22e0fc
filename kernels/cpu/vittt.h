/* Shared by the two fused ViTTT branches: vittt_glu.c and vittt_dwc.c. */
#ifndef TTV_KERNELS_CPU_VITTT_H
#define TTV_KERNELS_CPU_VITTT_H

#include "kernels/cpu/values.h"
#include "kernels/kernels.h"

/* Parts of the batch whose weight gradients are summed apart, then added in order. */
#define VITTT_PARTS 16

/* c = s/N with s = 1/3 (vittt.md 0, 2.1). */
static inline float vittt_factor(VitttShape s) {
    return (float)(1.0 / (3.0 * (double)(s.height * s.width)));
}

static inline int64_t vittt_width(VitttShape s) {
    return s.heads * s.head_dim;
}
static inline int64_t vittt_packed(VitttShape s) {
    return 3 * (s.heads + 1) * s.head_dim;
}

#endif
