/* Slot token_basis for any sizes and types: Gram matrix, Cholesky by one block a matrix, the
 * inverse a column a thread, and their product, all in F32.
 */
#include "kernels/cuda/token_basis.cuh"

#define TILE    16
#define THREADS 512

/* s[G,n,n] = x x' at and below the diagonal, tiles of TILE x TILE. */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE) gram_kernel(float *s, const T *x, int n, int c) {
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    if (blockIdx.x > blockIdx.y) return;
    const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    const int i = threadIdx.y, j = threadIdx.x;
    const T *in = x + (int64_t)blockIdx.z * n * c;
    float sum = 0;
    for (int at = 0; at < c; at += TILE) {
        const bool inside = at + j < c;
        a[i][j] = inside && row + i < n ? to_float(in[(int64_t)(row + i) * c + at + j]) : 0;
        b[i][j] = inside && column + i < n ? to_float(in[(int64_t)(column + i) * c + at + j]) : 0;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; k++) sum = fmaf(a[i][k], b[j][k], sum);
        __syncthreads();
    }
    if (row + i < n && column + j <= row + i)
        s[((int64_t)blockIdx.z * n + row + i) * n + column + j] = sum;
}

/* s becomes r in its place, a column after the other, each taken from all behind it; own[G,n] is
 * memory for the diagonal of S. */
__global__ void __launch_bounds__(THREADS) factor_kernel(float *s, float *own, int n) {
    float *r = s + (int64_t)blockIdx.x * n * n, *diagonal = own + (int64_t)blockIdx.x * n;
    for (int t = threadIdx.x; t < n; t += THREADS) {
        diagonal[t] = r[(int64_t)t * n + t];
        r[(int64_t)t * n + t] *= 1.0f + TOKEN_SHIFT;
    }
    for (int t = 0; t < n; t++) {
        __syncthreads();
        const float least = fmaxf(0.5f * TOKEN_SHIFT * diagonal[t], TOKEN_LEAST * TOKEN_LEAST);
        const float pivot = sqrtf(fmaxf(r[(int64_t)t * n + t], least));
        __syncthreads();
        for (int i = t + threadIdx.x; i < n; i += THREADS) {
            float *to = r + (int64_t)i * n + t;
            *to = i == t ? pivot : *to / pivot;
        }
        __syncthreads();
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (int i = t + 1 + warp; i < n; i += THREADS / 32) {
            const float rate = r[(int64_t)i * n + t];
            for (int j = t + 1 + lane; j <= i; j += 32)
                r[(int64_t)i * n + j] -= rate * r[(int64_t)j * n + t];
        }
    }
}

/* A thread a column, by substitution; above the diagonal 0. */
__global__ void __launch_bounds__(THREADS) invert_kernel(float *inverse, const float *s, int n) {
    const int column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= n) return;
    const float *r = s + (int64_t)blockIdx.x * n * n;
    float *to = inverse + (int64_t)blockIdx.x * n * n + column;
    for (int t = 0; t < n; t++) {
        float rest = t == column ? 1.0f : 0.0f;
        for (int i = column; i < t; i++) rest -= r[(int64_t)t * n + i] * to[(int64_t)i * n];
        to[(int64_t)t * n] = t < column ? 0.0f : rest / r[(int64_t)t * n + t];
    }
}

/* q = inv x, a thread a value; a block a row. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    project_kernel(T *q, const float *inverse, const T *x, int n, int c) {
    const float *rates = inverse + ((int64_t)blockIdx.y * n + blockIdx.x) * n;
    const T *in = x + (int64_t)blockIdx.y * n * c;
    for (int j = threadIdx.x; j < c; j += THREADS) {
        float sum = 0;
        for (int s = 0; s <= (int)blockIdx.x; s++)
            sum = fmaf(rates[s], to_float(in[(int64_t)s * c + j]), sum);
        from_float(q + ((int64_t)blockIdx.y * n + blockIdx.x) * c + j, sum);
    }
}

/* y[G,n,n] = x at and below the diagonal, 0 above. */
template <typename T>
__global__ void __launch_bounds__(THREADS) lower_kernel(T *y, const float *x, int n) {
    const int64_t row = (int64_t)blockIdx.y * n + blockIdx.x;
    for (int j = threadIdx.x; j < n; j += THREADS)
        from_float(y + row * n + j, j <= (int)blockIdx.x ? x[row * n + j] : 0.0f);
}

Status basis_any(Device *d, Tensor q, Tensor r, Tensor inv, Tensor x) {
    const int64_t count = x.shape[0];
    const int n = (int)x.shape[1], c = (int)x.shape[2];
    const size_t square = sizeof(float) * (size_t)(count * n * n);
    float *s, *inverse, *own;
    TRY(scratch_take(d, square, (void **)&s));
    TRY(scratch_take(d, square, (void **)&inverse));
    TRY(scratch_take(d, sizeof(float) * (size_t)(count * n), (void **)&own));
    const unsigned g = (unsigned)count, tiles = (unsigned)ceil_div(n, TILE);
    const dim3 rows((unsigned)n, g), pieces(g, (unsigned)ceil_div(n, THREADS));
    const cudaStream_t stream = stream_of(d);
    WITH_ACT("token_basis", x.dtype, T, {
        const T *in = (const T *)x.data;
        gram_kernel<T><<<dim3(tiles, tiles, g), dim3(TILE, TILE), 0, stream>>>(s, in, n, c);
        factor_kernel<<<g, THREADS, 0, stream>>>(s, own, n);
        invert_kernel<<<pieces, THREADS, 0, stream>>>(inverse, s, n);
        project_kernel<T><<<rows, THREADS, 0, stream>>>((T *)q.data, inverse, in, n, c);
        lower_kernel<T><<<rows, THREADS, 0, stream>>>((T *)r.data, s, n);
        lower_kernel<T><<<rows, THREADS, 0, stream>>>((T *)inv.data, inverse, n);
    });
    return launched("token_basis");
}
