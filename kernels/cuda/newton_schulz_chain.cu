#include "kernels/cuda/newton_schulz.cuh"
bool chain_fits(const Iteration *it) {
    (void)it;
    return false;
}
Status iterate_chain(const Iteration *it, void *u, DType type, void *x) {
    return iterate_blas(it, u, type, x);
}
Status iterate_chain_backward(const Iteration *it, float *dx0, void *dx, void *x) {
    return iterate_blas_backward(it, dx0, dx, x);
}
