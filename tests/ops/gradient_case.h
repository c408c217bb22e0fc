/* How rows of the gradient cases are written; for gradient_cases.c and gradient_plain.c. */
#ifndef TTV_TESTS_OPS_GRADIENT_CASE_H
#define TTV_TESTS_OPS_GRADIENT_CASE_H

#include "gradient.h"

#define ACT(scale_, ...)                                                                           \
    {                                                                                              \
        .kind = INPUT_ACT, .scale = scale_, .shape = {__VA_ARGS__},                                \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                                 \
    }
#define WEIGHT(scale_, ...)                                                                        \
    {                                                                                              \
        .kind = INPUT_WEIGHT, .scale = scale_, .shape = {__VA_ARGS__},                             \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                                 \
    }
#define PLAIN(scale_, ...)                                                                         \
    {                                                                                              \
        .kind = INPUT_F32, .scale = scale_, .shape = {__VA_ARGS__},                                \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                                 \
    }
#define FIXED(scale_, ...)                                                                         \
    {                                                                                              \
        .kind = INPUT_FIXED, .scale = scale_, .shape = {__VA_ARGS__},                              \
        .rank = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)                                 \
    }

#define CASE(op_, variant_, build_, ...)                                                           \
    { .op = op_, .variant = variant_, .build = build_, .in = __VA_ARGS__ }

/* Those of gradient_plain.c, which come first. */
extern const GradientCase gradient_plain[];
extern const int gradient_plain_count;

#endif
