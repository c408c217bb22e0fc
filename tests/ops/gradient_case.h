/* How rows of the gradient cases are written; for gradient_cases.c and gradient_plain.c. */
#ifndef TTV_TESTS_OPS_GRADIENT_CASE_H
#define TTV_TESTS_OPS_GRADIENT_CASE_H

#include "gradient.h"

/* An input of that kind, N(0, scale^2), and its shape. */
#define INPUT(kind_, scale_, ...)                                                                  \
    {                                                                                              \
        .kind = kind_, .scale = scale_, .shape = {__VA_ARGS__},                                    \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                                 \
    }
#define ACT(scale_, ...)    INPUT(INPUT_ACT, scale_, __VA_ARGS__)
#define WEIGHT(scale_, ...) INPUT(INPUT_WEIGHT, scale_, __VA_ARGS__)
#define PLAIN(scale_, ...)  INPUT(INPUT_F32, scale_, __VA_ARGS__)
#define FIXED(scale_, ...)  INPUT(INPUT_FIXED, scale_, __VA_ARGS__)

#define CASE(op_, variant_, build_, ...)                                                           \
    { .op = op_, .variant = variant_, .build = build_, .in = __VA_ARGS__ }

/* Those of gradient_plain.c, which come first. */
extern const GradientCase gradient_plain[];
extern const int gradient_plain_count;

#endif
