/* The slots of struct Kernels as a list, for tables, declarations and tests. */
#ifndef TTV_KERNELS_SLOTS_H
#define TTV_KERNELS_SLOTS_H

#include "kernels/kernels.h"

#define KERNEL_SLOTS(X)                                                                            \
    X(zero)                                                                                        \
    X(fill)                                                                                        \
    X(copy)                                                                                        \
    X(add)                                                                                         \
    X(mul)                                                                                         \
    X(unary)                                                                                       \
    X(unary_mul)                                                                                   \
    X(sum_batch)                                                                                   \
    X(residual)                                                                                    \
    X(scale_rows)                                                                                  \
    X(matmul)                                                                                      \
    X(linear)                                                                                      \
    X(linear_residual)                                                                             \
    X(linear_dx)                                                                                   \
    X(linear_dw)                                                                                   \
    X(layernorm)                                                                                   \
    X(layernorm_backward)                                                                          \
    X(softnorm)                                                                                    \
    X(softnorm_backward)                                                                           \
    X(rmsnorm)                                                                                     \
    X(rmsnorm_backward)                                                                            \
    X(softmax)                                                                                     \
    X(softmax_backward)                                                                            \
    X(row_dot)                                                                                     \
    X(decay_scan)                                                                                  \
    X(decay_scan_backward)                                                                         \
    X(reverse_tokens)                                                                              \
    X(decay_scores)                                                                                \
    X(decay_scores_backward)                                                                       \
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(dwconv3)                                                                                     \
    X(dwconv3_taps)                                                                                \
    X(dwconv3_norm)                                                                                \
    X(dwconv3_backward)                                                                            \
    X(image_normalise)                                                                             \
    X(image_prepare)                                                                               \
    X(patchify)                                                                                    \
    X(view_tokens)                                                                                 \
    X(split_heads)                                                                                 \
    X(merge_heads)                                                                                 \
    X(mean_tokens)                                                                                 \
    X(mean_tokens_backward)                                                                        \
    X(cross_entropy)                                                                               \
    X(cross_entropy_backward)                                                                      \
    X(mse)                                                                                         \
    X(mse_backward)                                                                                \
    X(grad_norm)                                                                                   \
    X(adamw)                                                                                       \
    X(muon_momentum)                                                                               \
    X(muon_step)                                                                                   \
    X(ema)                                                                                         \
    X(vittt_glu)                                                                                   \
    X(vittt_glu_backward)                                                                          \
    X(vittt_dwc)                                                                                   \
    X(vittt_dwc_backward)                                                                          \
    X(newton_schulz)                                                                               \
    X(newton_schulz_backward)                                                                      \
    X(silu_heads)                                                                                  \
    X(silu_heads_backward)                                                                         \
    X(token_rates)                                                                                 \
    X(token_rates_backward)                                                                        \
    X(lact_write)                                                                                  \
    X(lact_write_backward)                                                                         \
    X(lact_gate)                                                                                   \
    X(lact_gate_backward)                                                                          \
    X(weight_step)                                                                                 \
    X(weight_step_backward)

#endif
