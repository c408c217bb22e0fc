/* Prefixes of tokens: running sums with decay, and scores of earlier tokens (fastweight.md 2.4,
 * 2.5). A thread owns a channel of a group (scan) or a pair of tokens (scores), so that every sum
 * has one order.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 128

/* Sizes of [G, n, C]; decays: values of a log decay per token, 0, 1 or C. */
typedef struct Prefix {
    int64_t groups;
    int tokens, width, decays;
} Prefix;

static Prefix prefix_of(Tensor x, Tensor decay) {
    Prefix s;
    s.groups = x.shape[0];
    s.tokens = (int)x.shape[1], s.width = (int)x.shape[2];
    s.decays = tensor_is_none(decay) ? 0 : (int)tensor_last(decay);
    return s;
}

static Status refuse_decay(const char *kernel, Tensor x, Tensor decay) {
    if (x.rank != 3 || x.dtype != DTYPE_F32) return refuse_dtype(kernel, x.dtype);
    if (!tensor_is_none(decay) && tensor_last(decay) != 1 && tensor_last(decay) != x.shape[2])
        return status_set(STATUS_INTERNAL, "%s: log decays of width %lld for tokens of %lld",
                          kernel, (long long)tensor_last(decay), (long long)x.shape[2]);
    return STATUS_OK;
}

/* Log decay of channel i of a token. */
static __device__ __forceinline__ float decay_at(const float *f, const Prefix &s, int64_t row,
                                                 int i) {
    return s.decays == 0 ? 0.0f : f[row * s.decays + (s.decays == 1 ? 0 : i)];
}

/* ---- running sum ---- */

__global__ void __launch_bounds__(THREADS)
    scan_kernel(float *y, const float *x, const float *f, const float *start, Prefix s) {
    const int64_t id = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (id >= s.groups * s.width) return;
    const int64_t g = id / s.width;
    const int i = (int)(id % s.width);
    float sum = start ? start[id] : 0.0f;
    for (int t = 0; t < s.tokens; t++) {
        const int64_t row = g * s.tokens + t;
        sum = expf(decay_at(f, s, row, i)) * sum + x[row * s.width + i];
        y[row * s.width + i] = sum;
    }
}

static unsigned blocks_of(int64_t threads) {
    return (unsigned)ceil_div(threads, THREADS);
}

extern "C" Status decay_scan_cuda(Device *d, Tensor y, Tensor x, Tensor f, Tensor start) {
    TRY(refuse_decay("decay_scan", x, f));
    const Prefix s = prefix_of(x, f);
    scan_kernel<<<blocks_of(s.groups * s.width), THREADS, 0, stream_of(d)>>>(
        (float *)y.data, (const float *)x.data, (const float *)f.data, (const float *)start.data,
        s);
    return launched("decay_scan");
}

typedef struct ScanBackward {
    float *dx, *df, *dstart, *part; /* part [G,n,C]: df before the sum over channels */
    bool dx_add, df_add, dstart_add;
    const float *dy, *y, *f, *start;
} ScanBackward;

__global__ void __launch_bounds__(THREADS) scan_backward_kernel(ScanBackward b, Prefix s) {
    const int64_t id = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (id >= s.groups * s.width) return;
    const int64_t g = id / s.width;
    const int i = (int)(id % s.width);
    float carry = 0.0f;
    for (int t = s.tokens - 1; t >= 0; t--) {
        const int64_t row = g * s.tokens + t, at = row * s.width + i;
        const float before = t ? b.y[at - s.width] : b.start ? b.start[id] : 0.0f;
        carry += b.dy[at];
        if (b.dx) b.dx[at] = (b.dx_add ? b.dx[at] : 0.0f) + carry;
        carry *= expf(decay_at(b.f, s, row, i));
        if (b.part)
            b.part[at] = carry * before;
        else if (b.df)
            b.df[at] = (b.df_add ? b.df[at] : 0.0f) + carry * before;
    }
    if (b.dstart) b.dstart[id] = (b.dstart_add ? b.dstart[id] : 0.0f) + carry;
}

/* out[row] (+)= sum of the row: a warp each. */
__global__ void __launch_bounds__(THREADS)
    row_sum_kernel(float *out, bool add, const float *x, int64_t rows, int width) {
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = threadIdx.x % 32; c < width; c += 32) sum += x[row * width + c];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) out[row] = (add ? out[row] : 0.0f) + sum;
}

static Status row_sum(Device *d, Grad out, const float *x, Prefix s) {
    const int64_t rows = s.groups * s.tokens;
    row_sum_kernel<<<blocks_of(32 * rows), THREADS, 0, stream_of(d)>>>((float *)out.t.data, out.add,
                                                                       x, rows, s.width);
    return launched("sums of rows");
}

extern "C" Status decay_scan_backward_cuda(Device *d, Grad dx, Grad df, Grad dstart, Tensor dy,
                                           Tensor y, Tensor f, Tensor start) {
    TRY(refuse_decay("decay_scan_backward", dy, f));
    const Prefix s = prefix_of(dy, f);
    ScanBackward b = {};
    b.dx = (float *)dx.t.data, b.df = (float *)df.t.data, b.dstart = (float *)dstart.t.data;
    b.dx_add = dx.add, b.df_add = df.add, b.dstart_add = dstart.add;
    b.dy = (const float *)dy.data, b.y = (const float *)y.data, b.f = (const float *)f.data;
    b.start = (const float *)start.data;
    if (b.df && s.decays == 1 && s.width > 1)
        TRY(scratch_take(d, sizeof(float) * tensor_count(dy), (void **)&b.part));
    scan_backward_kernel<<<blocks_of(s.groups * s.width), THREADS, 0, stream_of(d)>>>(b, s);
    Status status = launched("decay_scan_backward");
    if (status == STATUS_OK && b.part) status = row_sum(d, df, b.part, s);
    scratch_done(d);
    return status;
}

__global__ void __launch_bounds__(THREADS)
    reverse_kernel(float *y, bool add, const float *x, Prefix s) {
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= s.groups * s.tokens * s.width) return;
    const int64_t row = at / s.width, first = row / s.tokens * s.tokens;
    const int64_t from = 2 * first + s.tokens - 1 - row;
    y[at] = (add ? y[at] : 0.0f) + x[from * s.width + at % s.width];
}

extern "C" Status reverse_tokens_cuda(Device *d, Grad y, Tensor x) {
    if (tensor_is_none(y.t)) return STATUS_OK;
    TRY(refuse_decay("reverse_tokens", x, tensor_none()));
    const Prefix s = prefix_of(x, tensor_none());
    reverse_kernel<<<blocks_of(s.groups * s.tokens * s.width), THREADS, 0, stream_of(d)>>>(
        (float *)y.t.data, y.add, (const float *)x.data, s);
    return launched("reverse_tokens");
}

/* ---- scores of earlier tokens ---- */

__global__ void __launch_bounds__(THREADS)
    scores_kernel(float *a, const float *q, const float *k, const float *l, Prefix s) {
    const int64_t id = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (id >= s.groups * s.tokens * s.tokens) return;
    const int64_t row = id / s.tokens, key = row / s.tokens * s.tokens + id % s.tokens;
    float sum = 0.0f;
    if (key <= row) {
        for (int i = 0; i < s.width; i++) {
            const float x = q[row * s.width + i] * k[key * s.width + i];
            sum += s.decays > 1 ? x * expf(decay_at(l, s, row, i) - decay_at(l, s, key, i)) : x;
        }
        if (s.decays == 1) sum *= expf(l[row] - l[key]);
    }
    a[id] = sum;
}

extern "C" Status decay_scores_cuda(Device *d, Tensor a, Tensor q, Tensor k, Tensor l) {
    TRY(refuse_decay("decay_scores", q, l));
    const Prefix s = prefix_of(q, l);
    scores_kernel<<<blocks_of(s.groups * s.tokens * s.tokens), THREADS, 0, stream_of(d)>>>(
        (float *)a.data, (const float *)q.data, (const float *)k.data, (const float *)l.data, s);
    return launched("decay_scores");
}

typedef struct ScoresBackward {
    float *dq, *dk, *dl, *part;
    bool dq_add, dk_add, dl_add;
    const float *da, *q, *k, *l;
} ScoresBackward;

/* A thread per channel of a token: its sums over the tokens before (dq) and behind (dk). */
__global__ void __launch_bounds__(THREADS) scores_backward_kernel(ScoresBackward b, Prefix s) {
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= s.groups * s.tokens * s.width) return;
    const int64_t row = at / s.width, first = row / s.tokens * s.tokens, t = row - first;
    const int i = (int)(at % s.width);
    const float here = decay_at(b.l, s, row, i);
    float dq = 0.0f, dk = 0.0f;
    for (int64_t j = 0; j <= t; j++) {
        const float power = s.decays ? expf(here - decay_at(b.l, s, first + j, i)) : 1.0f;
        dq += b.da[row * s.tokens + j] * b.k[(first + j) * s.width + i] * power;
    }
    for (int64_t j = t; j < s.tokens; j++) {
        const float power = s.decays ? expf(decay_at(b.l, s, first + j, i) - here) : 1.0f;
        dk += b.da[(first + j) * s.tokens + t] * b.q[(first + j) * s.width + i] * power;
    }
    if (b.dq) b.dq[at] = (b.dq_add ? b.dq[at] : 0.0f) + dq;
    if (b.dk) b.dk[at] = (b.dk_add ? b.dk[at] : 0.0f) + dk;
    const float dl = b.q[at] * dq - b.k[at] * dk;
    if (b.part)
        b.part[at] = dl;
    else if (b.dl)
        b.dl[at] = (b.dl_add ? b.dl[at] : 0.0f) + dl;
}

extern "C" Status decay_scores_backward_cuda(Device *d, Grad dq, Grad dk, Grad dl, Tensor da,
                                             Tensor q, Tensor k, Tensor l) {
    TRY(refuse_decay("decay_scores_backward", q, l));
    const Prefix s = prefix_of(q, l);
    ScoresBackward b = {};
    b.dq = (float *)dq.t.data, b.dk = (float *)dk.t.data, b.dl = (float *)dl.t.data;
    b.dq_add = dq.add, b.dk_add = dk.add, b.dl_add = dl.add;
    b.da = (const float *)da.data, b.q = (const float *)q.data, b.k = (const float *)k.data;
    b.l = (const float *)l.data;
    if (b.dl && s.decays == 1 && s.width > 1)
        TRY(scratch_take(d, sizeof(float) * tensor_count(q), (void **)&b.part));
    scores_backward_kernel<<<blocks_of(s.groups * s.tokens * s.width), THREADS, 0, stream_of(d)>>>(
        b, s);
    Status status = launched("decay_scores_backward");
    if (status == STATUS_OK && b.part) status = row_sum(d, dl, b.part, s);
    scratch_done(d);
    return status;
}
