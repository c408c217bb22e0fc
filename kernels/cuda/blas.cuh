/* cuBLASLt, loaded when the first card is opened.
 *
 * Linked, it would be loaded by every start of the program, also where no card is asked for: half a
 * second for its half a gigabyte.
 */
#ifndef TTV_KERNELS_CUDA_BLAS_CUH
#define TTV_KERNELS_CUDA_BLAS_CUH

#include <cublasLt.h>

extern "C" {
#include "core/status.h"
}

/* The functions in use, by their names without "cublasLt". */
#define BLAS_FUNCTIONS(X)                                                                          \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetStatusString)                                                                             \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutSetAttribute)

typedef struct Blas {
#define BLAS_MEMBER(name) decltype(&cublasLt##name) name;
    BLAS_FUNCTIONS(BLAS_MEMBER)
#undef BLAS_MEMBER
} Blas;

extern Blas blas; /* valid after blas_load() */

/* Loads the library once per process; it stays. STATUS_DEVICE with the loader's words when it, or a
 * function of it, is not found. May be called from several threads. */
Status blas_load(void);

#endif
