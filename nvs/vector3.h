/* Private to nvs/: the few operations on vectors of three that cameras need. */
#ifndef TTV_NVS_VECTOR3_H
#define TTV_NVS_VECTOR3_H

#include <math.h>
#include <stdbool.h>

static inline double dot3(const double a[3], const double b[3]) {
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

static inline void cross3(const double a[3], const double b[3], double out[3]) {
    out[0] = a[1] * b[2] - a[2] * b[1];
    out[1] = a[2] * b[0] - a[0] * b[2];
    out[2] = a[0] * b[1] - a[1] * b[0];
}

/* False when x is (nearly) zero. */
static inline bool unit3(double x[3]) {
    const double n = sqrt(dot3(x, x));
    if (!(n > 1e-9)) return false;
    for (int i = 0; i < 3; i++) x[i] /= n;
    return true;
}

/* Column j of a row-major matrix with rows of four. */
static inline void column3(const double matrix[16], int j, double out[3]) {
    for (int i = 0; i < 3; i++) out[i] = matrix[4 * i + j];
}

#endif
