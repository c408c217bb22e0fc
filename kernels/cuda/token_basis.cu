/* A triangular factor and a basis of the rows of matrices: which kernels, and their memory. */
#include "kernels/cuda/token_basis.cuh"

static bool basis_fits(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x) {
    const int64_t n = x.shape[1], c = x.shape[2];
    return backend_of(d)->sm90a && x.dtype == DTYPE_BF16 && n % 64 == 0 && c % 64 == 0 &&
           n <= BASIS_MOST && x.shape[0] * n <= INT32_MAX / 2 && is_aligned(x.data, 16) &&
           is_aligned(q.data, 16) && is_aligned(r.data, 16) && is_aligned(inv.data, 16);
}

static Status basis_quick(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x) {
    const int64_t n = x.shape[1], c = x.shape[2], squares = x.shape[0] * n * n;
    const BasisSizes b = {(int)x.shape[0], (int)n, (int)c};
    void *s, *rest;
    TRY(scratch_take(d, sizeof(float) * (size_t)squares, &s));
    TRY(scratch_take(d, sizeof(bf16) * (size_t)squares, &rest));
    TRY(basis_gram(d, b, (float *)s, (const bf16 *)x.data));
    TRY(basis_factor(d, b, (bf16 *)r.data, (bf16 *)inv.data, (bf16 *)rest, (float *)s));
    return basis_product(d, b, (bf16 *)q.data, (const bf16 *)inv.data, (const bf16 *)rest,
                         (const bf16 *)x.data);
}

extern "C" Status token_basis_cuda(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x) {
    const Status status =
        basis_fits(d, q, r, inv, x) ? basis_quick(d, q, r, inv, x) : basis_any(d, q, r, inv, x);
    scratch_done(d);
    return status;
}
